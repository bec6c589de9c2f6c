"""The classes of Kafka's messages, made from their definitions when they are first used: ``messages.FetchRequest``, and
for a structure within it ``messages.FetchRequest.FetchTopic``. ``messages.pyi`` declares those that the store serves
for type checkers and editors (``python -m conf.kafka_messages_stub`` writes it).

A class has the fields of all versions, with Kafka's defaults. A version without a field decodes it as the default, and
leaves a set value out. Instances do not change, so that defaults can be shared; ``msgspec.structs.replace`` makes one
with another value. Values: int, bool, float, str, bytes; a uuid is 16 bytes; an array is a list or tuple; ``records``
of a decoded message are a memoryview of its frame, of one to be encoded any buffer or a list of buffers.
"""

import functools
from typing import Any, Final

import msgspec

from logstore.kafka_protocol.definitions import Field, MessageDefinition, message_definitions

#: "No uuid", as a topic id.
ZERO_UUID: Final = bytes(16)


def __getattr__(name: str) -> type[msgspec.Struct]:
    if name not in message_definitions():
        raise AttributeError(f"Kafka has no message {name}")
    return structure_classes(name)[name]


@functools.cache
def structure_classes(message: str) -> dict[str, type[msgspec.Struct]]:
    """Return the classes of a message and of all structures in it, by their names."""
    definition = message_definitions()[message]
    classes: dict[str, type[msgspec.Struct]] = {}
    _add_classes(definition, definition.fields, classes)
    classes[message] = _structure_class(message, definition.fields, classes, nested=dict(classes))
    return classes


def _add_classes(
    definition: MessageDefinition, fields: tuple[Field, ...], classes: dict[str, type[msgspec.Struct]]
) -> None:
    for field in fields:
        name = field.element_type
        if field.has_structure and name not in classes:
            within = definition.structure(field)
            _add_classes(definition, within, classes)
            classes[name] = _structure_class(name, within, classes, nested={})


def _structure_class(
    name: str, fields: tuple[Field, ...], classes: dict[str, type[msgspec.Struct]], nested: dict[str, Any]
) -> type[msgspec.Struct]:
    # Nothing in a message refers back to it, so that the garbage collector need not track it.
    return msgspec.defstruct(
        name,
        [(field.attribute, Any, default_of(field, classes)) for field in fields],
        frozen=True,
        gc=False,
        namespace=nested,
        module=__name__,
    )


def default_of(field: Field, classes: dict[str, type[msgspec.Struct]]) -> Any:
    """Return the value of ``field`` in a message that does not set it."""
    given = field.default
    if given == "null" or field.type == "records":
        return None
    if field.is_array:
        return ()
    match field.type:
        case "bool":
            return given == "true"
        case "string":
            return given or ""
        case "bytes":
            return b""
        case "uuid":
            return ZERO_UUID
        case "float64":
            return float(given or 0)
        case _ if field.has_structure:
            return _all_defaults(classes[field.type])
    return int(given or "0", 0)


@functools.cache
def _all_defaults(structure: type[msgspec.Struct]) -> msgspec.Struct:
    """Return one shared instance: codecs recognise it by identity."""
    return structure()
