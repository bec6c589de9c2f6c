"""Random messages of Kafka's protocol, made from their definitions."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from logstore.filesystem import Buffer
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.definitions import Field, MessageDefinition, message_definitions, request_and_response
from logstore.kafka_protocol.messages import structure_classes

_INTEGERS = {"int8": (1, True), "int16": (2, True), "uint16": (2, False), "int32": (4, True), "uint32": (4, False)}
_INTEGERS["int64"] = (8, True)
_LETTERS = "aZ0-._ äß漢🙂\x00"


def messages_and_versions() -> Iterator[tuple[MessageDefinition, int]]:
    """Yield all messages of Kafka, each in all its versions."""
    for definition in message_definitions().values():
        for version in range(definition.versions.first, definition.versions.last + 1):
            yield definition, version


def advertised_messages_and_versions() -> Iterator[tuple[MessageDefinition, int]]:
    for api in APIS.values():
        for definition in request_and_response(api.key):
            for version in range(api.version_min, api.version_max + 1):
                yield definition, version


def name_of(value: object) -> str:
    """Return a name for the id of a parametrized test."""
    return value.name if isinstance(value, MessageDefinition) else f"v{value}"


def random_message(
    definition: MessageDefinition, version: int, chance: random.Random, *, extremes: bool = True
) -> msgspec.Struct:
    """Return a message with values for exactly the fields of ``version``. Without ``extremes``, error codes are
    Kafka's, and times are of this century.
    """
    return _RandomMessage(definition, version, chance, extremes=extremes).structure(definition.name, definition.fields)


class _RandomMessage:
    def __init__(self, definition: MessageDefinition, version: int, chance: random.Random, *, extremes: bool) -> None:
        self._definition = definition
        self._version = version
        self._chance = chance
        self._extremes = extremes
        self._classes = structure_classes(definition.name)

    def structure(self, name: str, fields: tuple[Field, ...]) -> msgspec.Struct:
        values: dict[str, Any] = {}
        for field in fields:
            # A tagged field that is left out has its default.
            told = not field.is_tagged_in(self._version) or self._chance.random() < 0.5
            if field.is_in(self._version) and told:
                values[field.attribute] = self._value(field)
        return self._classes[name](**values)

    def _value(self, field: Field) -> Any:
        if field.is_nullable_in(self._version) and self._chance.random() < 0.2:
            return None
        if field.is_array:
            return [self._single(field, field.element_type) for _ in range(self._length(3))]
        return self._single(field, field.type)

    def _length(self, usual_max: int) -> int:
        return self._chance.choice((0, 1, self._chance.randint(0, usual_max)))

    def _single(self, field: Field, kafka_type: str) -> Any:
        chance = self._chance
        if field.has_structure:
            return self.structure(kafka_type, self._definition.structure(field))
        match kafka_type:
            case "bool":
                return chance.random() < 0.5
            case "float64":
                return chance.choice((0.0, -1.5, chance.random() * 1e9))
            case "string":
                # Lengths are around those where one byte of length becomes two.
                length = chance.choice((self._length(20), 126, 127, 128))
                return "".join(chance.choices(_LETTERS, k=length))
            case "bytes" | "records":
                return chance.randbytes(chance.choice((self._length(20), 127, 128, 5000, 20_000)))
            case "uuid":
                return chance.randbytes(16)
        return self._integer(field, kafka_type)

    def _integer(self, field: Field, kafka_type: str) -> int:
        chance = self._chance
        if not self._extremes:
            if field.name.endswith("ErrorCode"):
                return chance.randint(-1, 100)
            if field.name.endswith(("Ms", "Timestamp")):
                return chance.randint(0, 2**31 - 1)
        size, signed = _INTEGERS[kafka_type]
        least = -(1 << 8 * size - 1) if signed else 0
        most = (1 << 8 * size - signed) - 1
        return chance.choice((least, most, max(-1, least), 0, 1, chance.randint(least, most)))


def plain(value: Any) -> Any:
    """Return ``value`` with arrays as lists and buffers as bytes, so that it can be compared."""
    if isinstance(value, msgspec.Struct):
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        return type(value)(**fields)
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, (memoryview, bytearray)) else value


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(buffers)
