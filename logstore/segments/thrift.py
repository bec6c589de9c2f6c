"""Thrift's compact protocol, as far as Parquet's footers use it: structs as dictionaries, and back to the same bytes.

A field is its number with its type and value: a boolean, a number (``int``; a double stays its eight bytes), ``bytes``,
a list as its elements' type with the elements, a struct as a dictionary. Source: thrift-compact-protocol.md of Apache
Thrift.
"""

from typing import Any, TypeAlias

#: Types of fields and elements.
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _MAP, STRUCT = range(1, 13)

#: A struct's fields: type and value by field number.
Struct: TypeAlias = dict[int, tuple[int, Any]]

_DEPTH_MAX = 16


def decode(data: bytes) -> Struct:
    """Decode a struct that takes up all of ``data``. Raises ValueError if it is anything else."""
    struct, size = decode_first(data)
    if size != len(data):
        raise ValueError(f"{len(data) - size} bytes follow the struct")
    return struct


def decode_first(data: bytes) -> tuple[Struct, int]:
    """Decode the struct at the beginning of ``data``; return it with its size. Raises ValueError if there is none."""
    reader = _Reader(data)
    try:
        return reader.struct(_DEPTH_MAX), reader.at
    except IndexError:
        raise ValueError("it ends in the middle of a struct") from None


def encode(struct: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int) -> Struct:
        fields: Struct = {}
        number = 0
        while header := self._byte():
            number = number + (header >> 4) if header >> 4 else _unzigzag(self._varint())
            kind = header & 0xF
            # The type of a field contains its boolean.
            fields[number] = kind, kind == TRUE if kind in {TRUE, FALSE} else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in {I16, I32, I64}:
            return _unzigzag(self._varint())
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind in {TRUE, FALSE, BYTE}:  # in a list a boolean is a byte
            return self._byte()
        if kind == DOUBLE:
            return self._bytes(8)
        if not depth:
            raise ValueError("structs within structs without end")
        if kind == STRUCT:
            return self.struct(depth - 1)
        if kind in {LIST, SET}:
            header = self._byte()
            count = header >> 4 if header >> 4 < 15 else self._varint()
            element = header & 0xF
            if count > len(self._data) - self.at:  # an element has at least one byte
                raise ValueError(f"a list of {count} where {len(self._data) - self.at} bytes are left")
            return element, [self._value(element, depth - 1) for _ in range(count)]
        raise ValueError(f"no type {kind} is in a footer of Parquet")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        began, self.at = self.at, self.at + count
        if self.at > len(self._data):
            raise ValueError(f"{count} bytes where {len(self._data) - began} are left")
        return self._data[began : self.at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("too long a number")


def _unzigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


def _write_struct(out: bytearray, struct: Struct) -> None:
    before = 0
    for number, (kind, value) in struct.items():
        if 0 < number - before < 16:
            out.append((number - before) << 4 | kind)
        else:
            out.append(kind)
            _write_varint(out, _zigzag(number))
        before = number
        if kind not in {TRUE, FALSE}:
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in {I16, I32, I64}:
        _write_varint(out, _zigzag(value))
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in {LIST, SET}:
        element, values = value
        if len(values) < 15:
            out.append(len(values) << 4 | element)
        else:
            out.append(0xF0 | element)
            _write_varint(out, len(values))
        for one in values:
            _write_value(out, element, one)
    elif kind == DOUBLE:
        out += value
    else:
        out.append(value)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
