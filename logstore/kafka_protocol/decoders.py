"""Decoders: one Python function for a message and a version, with all loops over its arrays in it.

Neighbouring fields of fixed size are read in one call of ``struct``, together with the length that follows them: a
partition of a fetch request is one call. The function counts the elements of all arrays down from a bound, so that the
memory for a message is at most that of the bound's objects, whatever its lengths claim.

Strings and bytes are copied, since they outlive the frame; ``records`` are slices of the frame.
"""

import functools
import struct
from typing import Any, Final, Protocol

import msgspec

from logstore.errors import MalformedMessageError
from logstore.filesystem import Buffer
from logstore.kafka_protocol.definitions import FIXED_TYPES, Field, MessageDefinition, message_definitions
from logstore.kafka_protocol.messages import default_of, structure_classes
from logstore.kafka_protocol.source_lines import SourceLines
from logstore.kafka_protocol.varints import read_varint, skip_tagged_fields
from logstore.limits import KAFKA_MESSAGE_ELEMENTS_MAX

# The bound is that of Kafka's own reader; in versions that are not flexible, 16 bits hold no more.
_STRING_BYTES_MAX: Final = 0x7FFF


class Decoder(Protocol):
    def __call__(self, buffer: Buffer, position: int = 0, /) -> Any:
        """Decode the message that begins at ``position``; what comes after its fields is ignored.

        Raises MalformedMessageError if it is cut, or is not a message of the version.
        """


@functools.cache
def decoder(message: str, version: int) -> Decoder:
    """Return the decoder. Raises KeyError if Kafka has no such message. The caller raises UnsupportedVersionError: an
    unknown version is an AssertionError here.
    """
    definition = message_definitions()[message]
    assert version in definition.versions, f"{message} has no version {version}"
    return _DecoderSource(definition, version).compiled()


def _end(what: str, needed: int) -> MalformedMessageError:
    return MalformedMessageError(f"{what} goes beyond the end, which would need {needed} bytes")


def _null(what: str) -> MalformedMessageError:
    return MalformedMessageError(f"{what} is null, which this version does not allow")


def _too_many(what: str, count: int) -> MalformedMessageError:
    return MalformedMessageError(f"{what} has {count} elements, more than the message has room for")


def _too_long(what: str, size: int) -> MalformedMessageError:
    return MalformedMessageError(f"{what} has {size} bytes; a string has at most {_STRING_BYTES_MAX}")


def _tag_size(what: str, size: int) -> MalformedMessageError:
    return MalformedMessageError(f"the tagged field {what} does not have the {size} bytes that its size says")


_NAMES: Final[dict[str, Any]] = {
    "MalformedMessageError": MalformedMessageError,
    "unreadable": (struct.error, IndexError, UnicodeDecodeError),
    "read_varint": read_varint,
    "skip_tagged_fields": skip_tagged_fields,
    "unpack_from": struct.unpack_from,
    "ELEMENTS_MAX": KAFKA_MESSAGE_ELEMENTS_MAX,
    "end_error": _end,
    "null_error": _null,
    "count_error": _too_many,
    "length_error": _too_long,
    "tag_size_error": _tag_size,
}


class _DecoderSource:
    """The source of a decoder. In it, ``b`` is the buffer, ``p`` the position, ``e`` the end, ``left`` the number of
    elements that may still come, and ``m`` a view of the buffer if there are records.
    """

    def __init__(self, definition: MessageDefinition, version: int) -> None:
        self._definition = definition
        self._version = version
        self._flexible = definition.is_flexible(version)
        self._classes = structure_classes(definition.name)
        self._lines = SourceLines(_NAMES)
        # The fields of fixed size that are not read yet: characters of `struct`, and variables for the values.
        self._pending: list[tuple[str, str]] = []

    def compiled(self) -> Decoder:
        name = f"{self._definition.name} v{self._version}"
        lines = self._lines
        lines.add("def decode(b, p=0, /):")
        lines.indent()
        lines.add("e = len(b)")
        lines.add("left = e - p")
        lines.add("if left > ELEMENTS_MAX: left = ELEMENTS_MAX")
        if self._has_records(self._definition.fields):
            lines.add("m = memoryview(b)")
        lines.add("try:")
        lines.indent()
        made = self._structure(self._definition.name, self._definition.fields)
        lines.add(f"return {made}")
        lines.dedent()
        lines.add("except unreadable as error:")
        lines.add(f' raise MalformedMessageError(f"{name} cannot be read: {{error}}") from None')
        lines.add("except MalformedMessageError as error:")
        lines.add(f' raise MalformedMessageError(f"{name} cannot be read: {{error}}") from None')
        decode: Decoder = lines.function("decode", name)
        return decode

    def _has_records(self, fields: tuple[Field, ...]) -> bool:
        return any(
            field.type == "records" or (field.has_structure and self._has_records(self._definition.structure(field)))
            for field in fields
        )

    # ---- fields of fixed size ----------------------------------------------------------------------------------------

    def _fixed(self, character: str, letter: str = "v") -> str:
        """Return a variable that gets the value with the next ``_read``."""
        variable = self._lines.variable(letter)
        self._pending.append((character, variable))
        return variable

    def _read(self) -> None:
        if not self._pending:
            return
        formats = "".join(character for character, _ in self._pending)
        variables = ", ".join(variable for _, variable in self._pending)
        self._pending.clear()
        if formats == "B":
            self._lines.add(f"{variables} = b[p]; p += 1")
            return
        unpack = self._lines.structs(formats, "unpack_from")
        comma = "," if len(formats) == 1 or formats == "16s" else ""
        self._lines.add(f"{variables}{comma} = {unpack}(b, p); p += {struct.calcsize('>' + formats)}")

    # ---- structures --------------------------------------------------------------------------------------------------

    def _structure(self, name: str, fields: tuple[Field, ...]) -> str:
        """Read all of a structure, and return the expression that makes it."""
        values: list[str] = []
        tagged: list[tuple[Field, str]] = []
        for field in fields:
            if not field.is_in(self._version):
                values.append(self._default(field))
            elif field.is_tagged_in(self._version):
                tagged.append((field, self._lines.variable("g")))
                values.append(tagged[-1][1])
            else:
                values.append(self._field(field, f"{name}.{field.name}"))
        if self._flexible:
            self._tagged_fields(tagged)
        else:
            self._read()
        return f"{self._lines.constant(name, self._classes[name])}({', '.join(values)})"

    def _default(self, field: Field) -> str:
        value = default_of(field, self._classes)
        if isinstance(value, msgspec.Struct):
            return self._lines.constant(f"default_{field.attribute}", value)
        return repr(value)

    def _tagged_fields(self, known: list[tuple[Field, str]]) -> None:
        count = self._fixed("B", "t")
        self._read()
        lines = self._lines
        for field, variable in known:
            lines.add(f"{variable} = {self._default(field)}")
        lines.add(f"if {count}:")
        lines.indent()
        if known:
            self._known_tagged_fields(count, known)
        else:
            lines.add("p, left = skip_tagged_fields(b, p - 1, left)")
        lines.dedent()

    def _known_tagged_fields(self, count: str, known: list[tuple[Field, str]]) -> None:
        lines = self._lines
        tag, size, end = (lines.variable(letter) for letter in "ksq")
        lines.add(f"if {count} > 127: {count}, p = read_varint(b, p - 1)")
        lines.add(f"left -= {count}")
        lines.add(f"if left < 0: raise count_error('the section of tagged fields', {count})")
        lines.add(f"for _ in range({count}):")
        lines.indent()
        lines.add(f"{tag}, p = read_varint(b, p)")
        lines.add(f"{size}, p = read_varint(b, p)")
        lines.add(f"{end} = p + {size}")
        lines.add(f"if {end} > e: raise end_error('a tagged field', {size})")
        condition = "if"
        for field, variable in known:
            lines.add(f"{condition} {tag} == {field.tag}:")
            lines.indent()
            value = self._field(field, field.name)
            self._read()
            lines.add(f"{variable} = {value}")
            lines.add(f"if p != {end}: raise tag_size_error({field.name!r}, {size})")
            lines.dedent()
            condition = "elif"
        lines.add(f"else: p = {end}")
        lines.dedent()

    # ---- fields of any size ------------------------------------------------------------------------------------------

    def _field(self, field: Field, what: str) -> str:
        """Read a field, or leave it pending, and return the expression for its value."""
        nullable = field.is_nullable_in(self._version)
        if field.is_array:
            return self._array(field, what, nullable=nullable)
        if field.has_structure:
            return self._single_structure(field, nullable=nullable)
        return self._value(field.type, what, nullable=nullable)

    def _value(self, kafka_type: str, what: str, *, nullable: bool) -> str:
        if kafka_type in FIXED_TYPES:
            return self._fixed(FIXED_TYPES[kafka_type])
        if kafka_type == "string":
            return self._sized("h", "str(b[p:{end}], 'utf-8')", what, nullable=nullable, size_max=_STRING_BYTES_MAX)
        if kafka_type == "bytes":
            return self._sized("i", "bytes(b[p:{end}])", what, nullable=nullable)
        assert kafka_type == "records", kafka_type
        return self._sized("i", "m[p:{end}]", what, nullable=nullable)

    def _length(self, character: str) -> str:
        """Read the length of a string, bytes or an array; -1: null."""
        lines = self._lines
        if not self._flexible:
            length = self._fixed(character, "n")
            self._read()
            return length
        length = self._fixed("B", "n")
        self._read()
        lines.add(f"if {length} > 127: {length}, p = read_varint(b, p - 1)")
        lines.add(f"{length} -= 1")
        return length

    def _sized(self, character: str, expression: str, what: str, *, nullable: bool, size_max: int = 0) -> str:
        lines = self._lines
        length = self._length(character)
        value, end = lines.variable(), lines.variable("q")
        lines.add(f"if {length} < 0:")
        lines.add(f" {value} = None" if nullable else f" raise null_error({what!r})")
        lines.add("else:")
        lines.indent()
        if size_max and self._flexible:
            lines.add(f"if {length} > {size_max}: raise length_error({what!r}, {length})")
        lines.add(f"{end} = p + {length}")
        lines.add(f"if {end} > e: raise end_error({what!r}, {length})")
        lines.add(f"{value} = {expression.format(end=end)}; p = {end}")
        lines.dedent()
        return value

    def _single_structure(self, field: Field, *, nullable: bool) -> str:
        lines = self._lines
        structure = self._definition.structure(field)
        if not nullable:
            return self._structure(field.type, structure)
        sign = self._fixed("b", "n")
        self._read()
        value = lines.variable()
        lines.add(f"if {sign} < 0: {value} = None")
        lines.add("else:")
        lines.indent()
        lines.add(f"{value} = {self._structure(field.type, structure)}")
        lines.dedent()
        return value

    def _array(self, field: Field, what: str, *, nullable: bool) -> str:
        lines = self._lines
        count = self._length("i")
        value = lines.variable()
        lines.add(f"if {count} < 0:")
        lines.add(f" {value} = None" if nullable else f" raise null_error({what!r})")
        lines.add("else:")
        lines.indent()
        lines.add(f"left -= {count}")
        lines.add(f"if left < 0: raise count_error({what!r}, {count})")
        element = field.element_type
        if element in FIXED_TYPES and element != "uuid":
            character = FIXED_TYPES[element]
            lines.add(f"{value} = unpack_from('>%d{character}' % {count}, b, p)")
            lines.add(f"p += {count} * {struct.calcsize('>' + character)}")
        else:
            lines.add(f"{value} = []")
            lines.add(f"for _ in range({count}):")
            lines.indent()
            if field.has_structure:
                made = self._structure(element, self._definition.structure(field))
            else:
                made = self._value(element, what, nullable=False)
                self._read()
            lines.add(f"{value}.append({made})")
            lines.dedent()
        lines.dedent()
        return value
