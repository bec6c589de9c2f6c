"""Checksums of a segment. They cover every byte of the file, so damage is found before Parquet is parsed.

``logstore.crc32c`` in the footer's key-value metadata is a chain: the CRC-32C of the file from its first byte up to the
end of each column chunk, in the order of the file, then up to the footer, then up to the end of the file; eight
hexadecimal digits each, the last one computed with its own digits as zeros. A stretch between two of these places is
unchanged if the CRC at its beginning, continued over it, equals the CRC at its end: a reader of two columns reads and
checks only these two.

Parquet's own page checksums leave out page headers, the page index and the footer, and Arrow ends the process on some
footers with one flipped bit. So a footer that has a chain is parsed only after it was checked.
"""

import re
from collections.abc import Sequence

import pyarrow.parquet as pq

from logstore.crc32c import crc32c
from logstore.segments import thrift

KEY = "logstore.crc32c"
MAGIC = b"PAR1"
#: The length of the footer and the magic number, which come after the footer.
TRAILER_BYTES = 8

_DIGITS = 8
# The key and its value as in Thrift's compact protocol: a field of type binary is 0x18, a length, the bytes. No user's
# text looks like it: JSON has no control characters.
_ENTRY = re.compile(rb"logstore\.crc32c\x18[\x80-\xff]*[\x00-\x7f]((?:[0-9a-f]{8}){2,})\x00")


def places(metadata: pq.FileMetaData, footer_at: int) -> list[int]:
    """Return the places up to which the CRCs of ``check_footer`` go. Each column chunk begins where the previous one
    ends.
    """
    ends = [len(MAGIC)]
    for row_group in map(metadata.row_group, range(metadata.num_row_groups)):
        ends += [bounds(chunk)[1] for chunk in map(row_group.column, range(metadata.num_columns))]
    return [*ends, footer_at]


def bounds(chunk: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the beginning and the end of a column chunk in its file."""
    begin: int = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return begin, begin + chunk.total_compressed_size


def placeholder(chunks: int) -> str:
    """Return the placeholder for the chain of a file with this many column chunks, until its footer is written."""
    return "0" * _DIGITS * (chunks + 2)


def with_chain(crcs: Sequence[int], footer: bytes) -> bytes:
    """Return ``footer`` (up to the end of the file) with the chain in place of the placeholder. ``crcs`` are the CRCs
    up to each of ``places`` except the first.
    """
    entry = _ENTRY.search(footer)
    assert entry is not None
    at, end = entry.span(1)
    value = "".join(f"{crc:08x}" for crc in crcs).encode()
    assert end - at == len(value) + _DIGITS
    unfinished = footer[:at] + value + b"0" * _DIGITS + footer[end:]
    whole = f"{crc32c(unfinished, crcs[-1]):08x}".encode()
    return footer[:at] + value + whole + footer[end:]


def check_footer(footer: bytes) -> tuple[int, ...] | None:
    """Return the CRCs of the file up to its ``places``, if ``footer`` (up to the end of the file) is as it was written.
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
    """Return whether ``footer`` (up to the end of the file) is whole and has no chain in its key-value metadata.

    Elsewhere the name of the key means nothing: statistics hold the data of users. If even the structure is damaged, as
    with a wrong length, nothing is known, and False is returned.
    """
    try:
        fields = thrift.decode(footer[:-TRAILER_BYTES])
        kinds = [(number, kind) for number, (kind, _) in fields.items()]
        _, (_, entries) = fields.get(_KEY_VALUE_METADATA, (thrift.LIST, (thrift.STRUCT, [])))
        keys = [entry[1][1] for entry in entries]
    except (ValueError, TypeError, KeyError):
        return False
    return kinds[: len(_FIRST_FIELDS)] == _FIRST_FIELDS and KEY.encode() not in keys


# The required fields of Parquet's FileMetaData: version, schema, num_rows, row_groups.
_FIRST_FIELDS = [(1, thrift.I32), (2, thrift.LIST), (3, thrift.I64), (4, thrift.LIST)]
_KEY_VALUE_METADATA = 5
