"""Unsigned variable-length integers and sections of tagged fields, as flexible versions have them (KIP-482).

The readers take a buffer and a position in it, and return the value and the position behind it. They raise IndexError
if the buffer ends before, which the decoders turn into a MalformedMessageError.
"""

from typing import Final

from logstore.errors import MalformedMessageError
from logstore.filesystem import Buffer

_BYTES_MAX: Final = 5


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    # Lengths of strings have one byte or two, those of records mostly three.
    low = buffer[position]
    if low < 0x80:
        return low, position + 1
    middle = buffer[position + 1]
    if middle < 0x80:
        return low & 0x7F | middle << 7, position + 2
    value = low & 0x7F | (middle & 0x7F) << 7
    for index in range(2, _BYTES_MAX):
        byte = buffer[position + index]
        if byte < 0x80:
            return value | byte << 7 * index, position + index + 1
        value |= (byte & 0x7F) << 7 * index
    raise MalformedMessageError(f"a variable-length integer has more than {_BYTES_MAX} bytes")


def varint(value: int) -> bytes:
    """Return the encoding of ``value``, from 0 to 2^35 - 1."""
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80)) + varint(value >> 21)


def skip_tagged_fields(buffer: Buffer, position: int, elements_left: int) -> tuple[int, int]:
    """Return the position behind the section of tagged fields that begins at ``position``, and the number of elements
    that the message may still have: a tagged field counts as one.
    """
    count, position = read_varint(buffer, position)
    elements_left -= count
    if elements_left < 0:
        raise MalformedMessageError(f"{count} tagged fields are more than the message has room for")
    for _ in range(count):
        _, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        position += size
        if position > len(buffer):
            raise MalformedMessageError(f"a tagged field of {size} bytes goes beyond the end")
    return position, elements_left
