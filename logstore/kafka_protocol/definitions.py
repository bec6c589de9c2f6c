"""Kafka's definitions of its messages (``schemas/schemas.json``), typed; only what decides the bytes of a message.

The language of the definitions is Kafka's ``clients/src/main/resources/common/message/README.md``: a field is in the
``versions`` that its definition names; strings, arrays and bytes are compact, and structures have tagged fields, in
``flexibleVersions``.
"""

import functools
import re
from importlib import resources
from typing import Final, NamedTuple

import msgspec

#: The fixed types, as characters of ``struct``. A uuid is 16 bytes.
FIXED_TYPES: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
_VERSION_MAX: Final = 0x7FFF


class Versions(NamedTuple):
    """Versions from ``first`` to ``last``, both included; empty if ``last`` is less."""

    first: int
    last: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.first <= version <= self.last


NO_VERSIONS: Final = Versions(0, -1)


def parse_versions(text: str | None) -> Versions:
    """Parse ``"3"``, ``"3-7"``, ``"3+"`` or ``"none"``."""
    if text is None or text == "none":
        return NO_VERSIONS
    first, dash, last = text.removesuffix("+").partition("-")
    return Versions(int(first), _VERSION_MAX if text.endswith("+") else int(last if dash else first))


def snake_case(name: str) -> str:
    """Return the name of a field in Python: ``TopicIdPartition`` is ``topic_id_partition``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


class Field(msgspec.Struct, frozen=True, rename="camel"):
    """A field of a structure. ``fields`` are those of its type, unless that is a common one of the message."""

    name: str
    type: str
    versions: str
    nullable_versions: str | None = None
    tagged_versions: str | None = None
    tag: int = -1
    flexible_versions: str | None = None
    default: str | None = None
    fields: tuple["Field", ...] = ()

    @property
    def attribute(self) -> str:
        return snake_case(self.name)

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element_type(self) -> str:
        """The type of the elements, or the type itself if it is not an array."""
        return self.type.removeprefix("[]")

    @property
    def has_structure(self) -> bool:
        """True if the type, or that of the elements, is a structure."""
        return self.element_type[0].isupper()

    def is_in(self, version: int) -> bool:
        return version in parse_versions(self.versions)

    def is_nullable_in(self, version: int) -> bool:
        return version in parse_versions(self.nullable_versions)

    def is_tagged_in(self, version: int) -> bool:
        return version in parse_versions(self.tagged_versions)


class _CommonStructure(msgspec.Struct, frozen=True):
    name: str
    fields: tuple[Field, ...]


class MessageDefinition(msgspec.Struct, frozen=True, rename="camel"):
    """A message with all its versions. ``type`` is request, response, header, data or another use of Kafka's."""

    name: str
    type: str
    valid_versions: str
    fields: tuple[Field, ...]
    flexible_versions: str | None = None
    api_key: int = -1
    latest_version_unstable: bool = False
    common_structs: tuple[_CommonStructure, ...] = ()

    @property
    def versions(self) -> Versions:
        return parse_versions(self.valid_versions)

    @property
    def stable_versions(self) -> Versions:
        """The versions without the one that may still change; a definition of a request says whether there is one."""
        first, last = self.versions
        return Versions(first, last - self.latest_version_unstable)

    def is_flexible(self, version: int) -> bool:
        return version in parse_versions(self.flexible_versions)

    def structure(self, field: Field) -> tuple[Field, ...]:
        """Return the fields of the structure that ``field`` has, or whose array it is."""
        if field.fields:
            return field.fields
        return next(common.fields for common in self.common_structs if common.name == field.element_type)


class _Schemas(msgspec.Struct, frozen=True):
    source: str
    messages: tuple[MessageDefinition, ...]


@functools.cache
def _schemas() -> _Schemas:
    text = resources.files(__package__).joinpath("schemas/schemas.json").read_bytes()
    return msgspec.json.decode(text, type=_Schemas)


@functools.cache
def message_definitions() -> dict[str, MessageDefinition]:
    """Return all messages of Kafka, by name."""
    return {message.name: message for message in _schemas().messages}


@functools.cache
def request_and_response(api_key: int) -> tuple[MessageDefinition, MessageDefinition]:
    """Return the two messages of an API. Raises KeyError if Kafka has none with that key."""
    found = {message.type: message for message in _schemas().messages if message.api_key == api_key}
    return found["request"], found["response"]
