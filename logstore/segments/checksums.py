"""Checksums of a segment: every byte of the file is under one, so that damage is found before Parquet is parsed.

``logstore.crc32c`` in the footer's key-value metadata is a chain: the CRC-32C of the file from its first byte up to the
end of each column chunk, in the order of the file, then up to the footer, then up to the end of the file; eight
hexadecimal digits each, the last one computed with its own digits as zeros. A stretch between two of these places is as
it was written if the CRC at its begin, continued over it, gives the CRC at its end: who reads two columns reads and
checks two columns.

Parquet's own page checksums leave out page headers, the page index and the footer, and Arrow ends the process over some
footers with one flipped bit: a footer that has a chain is parsed only after it was checked.
"""

import re
from collections.abc import Iterator, Sequence

import pyarrow.parquet as pq

from logstore.crc32c import crc32c

KEY = "logstore.crc32c"
MAGIC = b"PAR1"
#: The length of the footer and the magic number, after it.
TRAILER_BYTES = 8

_DIGITS = 8
# The key and its value as Thrift's compact protocol writes them: a field of type binary is 0x18, a length, the bytes.
# No text of a user looks like it: what is JSON has no control characters.
_ENTRY = re.compile(rb"logstore\.crc32c\x18[\x80-\xff]*[\x00-\x7f]((?:[0-9a-f]{8}){2,})\x00")


def places(metadata: pq.FileMetaData, footer_at: int) -> list[int]:
    """Up to where the CRCs of ``check_footer`` go. Each column chunk begins where the one before it ends."""
    ends = [len(MAGIC)]
    for row_group in map(metadata.row_group, range(metadata.num_row_groups)):
        for chunk in map(row_group.column, range(metadata.num_columns)):
            begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            ends.append(begin + chunk.total_compressed_size)
    return [*ends, footer_at]


def placeholder(chunks: int) -> str:
    """What stands for the chain of a file with so many column chunks until its footer is written."""
    return "0" * _DIGITS * (chunks + 2)


def chain(crcs: Sequence[int], footer: bytes) -> tuple[int, bytes]:
    """Where in ``footer`` (up to the end of the file) the placeholder is, and the chain to put there.

    ``crcs`` are those up to ``places``, without the first.
    """
    entry = _ENTRY.search(footer)
    assert entry is not None
    at, end = entry.span(1)
    value = "".join(f"{crc:08x}" for crc in crcs).encode()
    assert end - at == len(value) + _DIGITS
    unfinished = footer[:at] + value + b"0" * _DIGITS + footer[end:]
    return at, value + f"{crc32c(unfinished, crcs[-1]):08x}".encode()


def check_footer(footer: bytes) -> tuple[int, ...] | None:
    """The CRCs of the file up to its ``places``, if ``footer`` (up to the end of the file) is as it was written.

    None if it has no chain, as in a file of another writer. Raises ValueError.
    """
    entry = _ENTRY.search(footer)
    if entry is None:
        return None
    value = entry[1]
    crcs = [int(value[at : at + _DIGITS], 16) for at in range(0, len(value), _DIGITS)]
    end = entry.end(1)
    if crc32c(footer[: end - _DIGITS] + b"0" * _DIGITS + footer[end:], crcs[-2]) != crcs[-1]:
        raise ValueError("the checksum of the footer does not match")
    return crc32c(MAGIC), *crcs[:-1]


def is_without_chain(footer: bytes) -> bool:
    """Whether ``footer`` (up to the end of the file) is a whole one with no chain among its key-value metadata.

    Elsewhere the name of the key means nothing: statistics hold what users write. If not even the structure is whole,
    as where its length is damaged, there is no telling.
    """
    try:
        walk = _Walk(footer[:-TRAILER_BYTES])
        fields = list(walk.fields(_KEYS))
    except (IndexError, ValueError, RecursionError):
        return False
    return walk.at == len(walk.data) and fields[: len(_FIRST_FIELDS)] == _FIRST_FIELDS and KEY.encode() not in walk.keys


# Of Parquet's FileMetaData: version (i32), schema (a list), num_rows (i64), row_groups (a list), as field and type; the
# field with the key-value metadata.
_FIRST_FIELDS = [(1, 5), (2, 9), (3, 6), (4, 9)]
_KEYS = 5


class _Walk:
    """Over a struct in Thrift's compact protocol. IndexError, ValueError where it is none."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        #: Those of the key-value metadata.
        self.keys: set[bytes] = set()

    def fields(self, keys: int | None = None) -> Iterator[tuple[int, int]]:
        """Number and type of each field, which is passed over; ``keys`` is that with the key-value metadata."""
        number = 0
        while (header := self._byte()) != 0:
            number = number + (header >> 4) if header >> 4 else self._zigzag()
            kind = header & 0xF
            if number == keys and kind == 9:
                self._key_values()
            elif kind > 2:  # a boolean is in the type
                self._value(kind)
            yield number, kind

    def _value(self, kind: int) -> bytes:
        began = self.at
        if kind in {1, 2, 3}:  # in a list a boolean is a byte
            self._byte()
        elif kind in {4, 5, 6}:
            self._varint()
        elif kind == 7:
            self.at += 8
        elif kind == 8:
            length = self._varint()
            began, self.at = self.at, self.at + length
        elif kind in {9, 10}:
            count, element = self._list()
            for _ in range(count):
                self._value(element)
        elif kind == 12:
            for _ in self.fields():
                pass
        else:  # Parquet has no maps
            raise ValueError(f"no type {kind}")
        if self.at > len(self.data):
            raise IndexError
        return self.data[began : self.at]

    def _key_values(self) -> None:
        count, element = self._list()
        if element != 12:
            raise ValueError("not a list of structs")
        for _ in range(count):
            if self._byte() != 0x18:  # field 1, binary
                raise ValueError("no key")
            self.keys.add(self._value(8))
            # The value is field 2, or there is none.
            header = self._byte()
            if header not in {0x18, 0}:
                raise ValueError("no value")
            if header:
                self._value(8)
                if self._byte() != 0:
                    raise ValueError("more than key and value")

    def _list(self) -> tuple[int, int]:
        header = self._byte()
        return (header >> 4 if header >> 4 < 15 else self._varint()), header & 0xF

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

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

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
