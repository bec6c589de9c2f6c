"""Writes ``logstore/kafka_protocol/messages.pyi`` for type checkers: the classes that ``messages`` makes of Kafka's
definitions, for the APIs that the store serves.

``python -m conf.kafka_messages_stub`` (``make docs``).
"""

from collections.abc import Iterator
from pathlib import Path

from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.definitions import Field, MessageDefinition, request_and_response

STUB = Path(__file__).parent.parent / "logstore/kafka_protocol/messages.pyi"

_HEAD = """\
# Made by `make docs` of Kafka's definitions and of the table in apis.py.
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from logstore.filesystem import Buffer
from logstore.kafka_protocol.definitions import Field

ZERO_UUID: Final[bytes]

def structure_classes(message: str) -> dict[str, type[msgspec.Struct]]: ...
def default_of(field: Field, classes: dict[str, type[msgspec.Struct]]) -> Any: ...
"""
_TYPES = {"bool": "bool", "float64": "float", "string": "str", "bytes": "bytes", "uuid": "bytes"}


def render() -> str:
    messages = [message for key in sorted(APIS) for message in request_and_response(key)]
    return _HEAD + "".join(f"\n{line}" if line.startswith("class") else line for line in _lines(messages))


def _lines(messages: list[MessageDefinition]) -> Iterator[str]:
    for message in messages:
        yield f"class {message.name}(msgspec.Struct, frozen=True):\n"
        written: set[str] = set()
        yield from _nested(message, message.fields, written)
        yield from _attributes(message, message.fields, "    ")


def _nested(message: MessageDefinition, fields: tuple[Field, ...], written: set[str]) -> Iterator[str]:
    for field in fields:
        name = field.element_type
        if field.has_structure and name not in written:
            written.add(name)
            within = message.structure(field)
            yield from _nested(message, within, written)
            yield f"    class {name}(msgspec.Struct, frozen=True):\n"
            yield from _attributes(message, within, "        ")
            yield "\n"


def _attributes(message: MessageDefinition, fields: tuple[Field, ...], indent: str) -> Iterator[str]:
    for field in fields:
        yield f"{indent}{field.attribute}: {_annotation(message, field)} = ...\n"
    if not fields:
        yield f"{indent}pass\n"


def _annotation(message: MessageDefinition, field: Field) -> str:
    if field.type == "records":
        return "memoryview | None" if message.type == "request" else "Buffer | list[Buffer] | None"
    element = field.element_type
    name = f"{message.name}.{element}" if field.has_structure else _TYPES.get(element, "int")
    annotation = f"Sequence[{name}]" if field.is_array else name
    return f"{annotation} | None" if field.nullable_versions or field.default == "null" else annotation


if __name__ == "__main__":
    STUB.write_text(render())
