"""Encoders: one Python function for a message and a version, like the decoders.

An encoder appends to a bytearray. After records it continues in a new one, so that the records are not copied: the
message is a list of buffers, to be written one after the other.
"""

import functools
import struct
from typing import Any, Final, Protocol

import msgspec

from logstore.filesystem import Buffer
from logstore.kafka_protocol.definitions import FIXED_TYPES, Field, MessageDefinition, message_definitions
from logstore.kafka_protocol.messages import default_of, structure_classes
from logstore.kafka_protocol.source_lines import SourceLines
from logstore.kafka_protocol.varints import varint

# Below this size a copy costs less than writing one more buffer.
_RECORDS_COPIED_MAX: Final = 4096


class Encoder(Protocol):
    def __call__(self, message: Any, head: bytearray, /) -> list[Buffer]:
        """Return ``head`` with ``message`` after it. Fields that the version does not have are left out.

        Raises TypeError, AttributeError, struct.error if a value does not have its field's type, or is null where the
        version does not allow it.
        """


@functools.cache
def encoder(message: str, version: int) -> Encoder:
    """Return the encoder. Raises KeyError if Kafka has no such message, AssertionError if it has no such version."""
    definition = message_definitions()[message]
    assert version in definition.versions, f"{message} has no version {version}"
    return _EncoderSource(definition, version).compiled()


_NAMES: Final[dict[str, Any]] = {"varint": varint, "pack": struct.pack, "COPIED_MAX": _RECORDS_COPIED_MAX}


class _EncoderSource:
    """The source of an encoder. In it, ``w`` is the bytearray that is written to, ``done`` the buffers before it."""

    def __init__(self, definition: MessageDefinition, version: int) -> None:
        self._definition = definition
        self._version = version
        self._flexible = definition.is_flexible(version)
        self._classes = structure_classes(definition.name)
        self._lines = SourceLines(_NAMES)
        # The fields of fixed size that are not written yet: characters of `struct`, and expressions of the values.
        self._pending: list[tuple[str, str]] = []

    def compiled(self) -> Encoder:
        lines = self._lines
        lines.add("def encode(o, w, /):")
        lines.indent()
        lines.add("done = []")
        self._structure("o", self._definition.fields)
        lines.add("done.append(w)")
        lines.add("return done")
        encode: Encoder = lines.function("encode", f"{self._definition.name} v{self._version}")
        return encode

    # ---- fields of fixed size ----------------------------------------------------------------------------------------

    def _packed(self, *more: tuple[str, str]) -> str:
        """Return the expression for the pending fields, and ``more``."""
        fields = [*self._pending, *more]
        formats = "".join(character for character, _ in fields)
        # `x` is a zero byte without a value.
        values = ", ".join(expression for character, expression in fields if character != "x")
        return f"{self._lines.structs(formats, 'pack')}({values})"

    def _write(self) -> None:
        if self._pending == [("x", "")]:
            self._lines.add("w.append(0)")
        elif self._pending:
            self._lines.add(f"w += {self._packed()}")
        self._pending.clear()

    # ---- structures --------------------------------------------------------------------------------------------------

    def _structure(self, of: str, fields: tuple[Field, ...]) -> None:
        tagged: list[Field] = []
        for field in fields:
            if field.is_in(self._version):
                if field.is_tagged_in(self._version):
                    tagged.append(field)
                else:
                    self._field(field, f"{of}.{field.attribute}")
        if tagged:
            self._tagged_fields(of, sorted(tagged, key=lambda field: field.tag))
        elif self._flexible:
            self._pending.append(("x", ""))
        self._write()

    def _tagged_fields(self, of: str, fields: list[Field]) -> None:
        """Write the tagged fields. A field with its default value is left out."""
        self._write()
        lines = self._lines
        conditions = {field.name: self._is_set(field, lines.variable("g"), of) for field in fields}
        lines.add(f"if not ({' or '.join(conditions.values())}): w.append(0)")
        lines.add("else:")
        lines.indent()
        count, before, sections = lines.variable("n"), lines.variable("w"), lines.variable("t")
        lines.add(f"{count} = 0; {before} = w; {sections} = bytearray()")
        for field in fields:
            lines.add(f"if {conditions[field.name]}:")
            lines.indent()
            lines.add(f"{count} += 1; w = bytearray()")
            self._field(field, f"{of}.{field.attribute}")
            self._write()
            lines.add(f"{sections} += varint({field.tag}) + varint(len(w)) + w")
            lines.dedent()
        lines.add(f"w = {before}; w += varint({count}) + {sections}")
        lines.dedent()

    def _is_set(self, field: Field, variable: str, of: str) -> str:
        assert field.type != "records", "records in a tagged field would leave it"
        self._lines.add(f"{variable} = {of}.{field.attribute}")
        default = default_of(field, self._classes)
        if default is None:
            return f"{variable} is not None"
        if default in ((), ""):
            return f"({variable} is None or len({variable}) > 0)"
        if isinstance(default, msgspec.Struct):
            name = self._lines.constant(f"default_{field.attribute}", default)
            return f"({variable} is not {name} and {variable} != {name})"
        return f"{variable} != {default!r}"

    # ---- fields of any size ------------------------------------------------------------------------------------------

    def _field(self, field: Field, value: str) -> None:
        nullable = field.is_nullable_in(self._version)
        if field.is_array:
            self._array(field, value, nullable=nullable)
        elif field.has_structure:
            self._single_structure(field, value, nullable=nullable)
        else:
            self._value(field.type, value, nullable=nullable)

    def _value(self, kafka_type: str, value: str, *, nullable: bool) -> None:
        if kafka_type in FIXED_TYPES:
            self._pending.append((FIXED_TYPES[kafka_type], value))
        elif kafka_type == "string":
            self._sized("h", value, "{0} = {0}.encode()", nullable=nullable)
        elif kafka_type == "bytes":
            self._sized("i", value, "", nullable=nullable)
        else:
            self._records(value, nullable=nullable)

    def _length(self, character: str, variable: str) -> None:
        """Write the pending fields and a length, which is in ``variable``: the number of elements, and -1 for null."""
        lines = self._lines
        if not self._flexible:
            lines.add(f"w += {self._packed((character, variable))}")
        elif self._pending:
            lines.add(f"if {variable} < 127: w += {self._packed(('B', f'{variable} + 1'))}")
            lines.add(f"else: w += {self._packed()} + varint({variable} + 1)")
        else:
            lines.add(f"if {variable} < 127: w.append({variable} + 1)")
            lines.add(f"else: w += varint({variable} + 1)")
        self._pending.clear()

    def _measured(self, value: str, empty: str, prepared: str, *, nullable: bool) -> tuple[str, str]:
        """Return variables for a value and its length."""
        lines = self._lines
        variable, length = lines.variable(), lines.variable("n")
        lines.add(f"{variable} = {value}")
        if nullable:
            lines.add(f"if {variable} is None: {variable} = {empty}; {length} = -1")
            lines.add("else:")
            lines.indent()
        if prepared:
            lines.add(prepared.format(variable))
        lines.add(f"{length} = len({variable})")
        if nullable:
            lines.dedent()
        return variable, length

    def _sized(self, character: str, value: str, prepared: str, *, nullable: bool) -> None:
        variable, length = self._measured(value, "b''", prepared, nullable=nullable)
        self._length(character, length)
        self._lines.add(f"w += {variable}")

    def _records(self, value: str, *, nullable: bool) -> None:
        """Write records: one buffer, or a list of buffers."""
        lines = self._lines
        variable, length = lines.variable(), lines.variable("n")
        lines.add(f"{variable} = {value}")
        if nullable:
            lines.add(f"if {variable} is None: {variable} = (); {length} = -1")
        lines.add(f"{'elif' if nullable else 'if'} {variable}.__class__ is list: {length} = sum(map(len, {variable}))")
        lines.add(f"else: {length} = len({variable}); {variable} = ({variable},)")
        self._length("i", length)
        lines.add(f"if {length} > COPIED_MAX: done.append(w); done += {variable}; w = bytearray()")
        lines.add("else:")
        lines.add(f" for r in {variable}: w += r")

    def _single_structure(self, field: Field, value: str, *, nullable: bool) -> None:
        lines = self._lines
        structure = self._definition.structure(field)
        variable = lines.variable("o")
        lines.add(f"{variable} = {value}")
        if not nullable:
            self._structure(variable, structure)
            return
        self._write()
        lines.add(f"if {variable} is None: w.append(255)")
        lines.add("else:")
        lines.indent()
        self._pending.append(("b", "1"))
        self._structure(variable, structure)
        lines.dedent()

    def _array(self, field: Field, value: str, *, nullable: bool) -> None:
        lines = self._lines
        variable, length = self._measured(value, "()", "", nullable=nullable)
        self._length("i", length)
        element = field.element_type
        if element in FIXED_TYPES and element != "uuid":
            lines.add(f"if {length} > 0: w += pack('>%d{FIXED_TYPES[element]}' % {length}, *{variable})")
            return
        each = lines.variable("o")
        lines.add(f"for {each} in {variable}:")
        lines.indent()
        if field.has_structure:
            self._structure(each, self._definition.structure(field))
        else:
            self._value(element, each, nullable=False)
            self._write()
        lines.dedent()
