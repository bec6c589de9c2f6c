"""Pages of Parquet (V1, plain, of a column that may be null), written by hand."""

import struct
from random import Random

Values = list[bytes | None]


def unsigned(number: int) -> bytes:
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def levels_of(values: Values, chance: Random) -> bytes:
    """Return the levels in runs of both kinds, cut at random."""
    bits = [int(value is not None) for value in values]
    levels = bytearray()
    while bits:
        same = next((at for at, bit in enumerate(bits) if bit != bits[0]), len(bits))
        if chance.random() < 0.5:
            taken = chance.randint(1, same)
            levels += unsigned(taken << 1) + bytes([bits[0]])
        else:
            groups = chance.randint(1, -(-len(bits) // 8))
            taken = min(8 * groups, len(bits))
            packed = sum(bit << at for at, bit in enumerate(bits[:taken]))
            levels += unsigned(groups << 1 | 1) + packed.to_bytes(groups, "little")
        bits = bits[taken:]
    return bytes(levels)


def page_of(values: Values, levels: bytes) -> bytes:
    plain = b"".join(struct.pack("<I", len(value)) + value for value in values if value is not None)
    return struct.pack("<I", len(levels)) + levels + plain
