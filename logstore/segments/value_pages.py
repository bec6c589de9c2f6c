"""Row groups of segments whose values are not decoded: they stay in their pages, from which they are copied to where
readers get them. All other columns are Arrow's.

Nearly all bytes of most records are their values. As a column of Arrow's they would be copied once more, into new
memory. Pages that are not as this store writes them are not taken: ``reader`` reads every row group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.kafka_batches.plain_pages import PageCodec, PlainPage, copied_bytes
from logstore.segments import thrift
from logstore.segments.chunk_memory import Bytes, ChunkMemory
from logstore.segments.parquet_file import BAD_BYTES, ParquetFile

#: The columns that are decoded.
DECODED: Final = ("offset", "timestamp", "key", "headers")

# A value of Parquet's metadata, and Arrow's name of the codec.
_CODECS: Final = {
    "UNCOMPRESSED": None, "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw",
}  # fmt: skip
# Fields of Parquet's structs (parquet.thrift): PageHeader.
_TYPE, _INFLATED, _STORED, _CRC, _DATA_HEADER = 1, 2, 3, 4, 5
# DataPageHeader.
_NUM_VALUES, _ENCODING, _LEVELS, _REPETITIONS = 1, 2, 3, 4
# PageType and Encoding.
_DATA_PAGE, _PLAIN, _RLE = 0, 0, 3
#: The most bytes of the header of a page: those of this store have no statistics.
PAGE_HEADER_BYTES: Final = 128
# A header that has fields of another type, or none.
_MALFORMED: Final = (ValueError, LookupError, TypeError)

Flags = npt.NDArray[np.bool_]


class OtherPageError(ValueError):
    """A page that is not as this store writes them."""


class StoredPage(NamedTuple):
    """A page: its rows in the row group, its ``size`` bytes from ``begin`` on in the column chunk, inflated and not."""

    first_row: int
    end_row: int
    begin: int
    size: int
    inflated: int


class ValuePages:
    """The pages of the values of a row group, which are read by rising rows. ``chunk`` are the bytes of the column."""

    def __init__(self, codec: PageCodec, chunk: Bytes, pages: Sequence[StoredPage], compression: str | None) -> None:
        self.pages = pages
        self.codec = codec
        self.chunk = chunk
        self._inflater = None if compression is None else pa.Codec(compression)
        self._at = 0
        self._page: PlainPage | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes that are held; a page with a larger value may have more than others."""
        of_page = 0 if self._page is None else self._page.data.size + self._page.offsets.size
        return self.chunk.size + of_page

    def page_of(self, row: int) -> tuple[StoredPage, PlainPage]:
        """Return the page that has the row, which is not before that of the last call. Raises OtherPageError."""
        while row >= self.pages[self._at].end_row:
            self._at += 1
            self._page = None
        place = self.pages[self._at]
        if self._page is None:
            self._page = self._read(place)
        return place, self._page

    def _read(self, place: StoredPage) -> PlainPage:
        data = pa.py_buffer(self.chunk[place.begin : place.begin + place.size])
        try:
            if self._inflater is not None:
                data = self._inflater.decompress(data, place.inflated)
        except BAD_BYTES as error:
            raise OtherPageError(str(error)) from error
        page = self.codec.read(data, place.end_row - place.first_row)
        if page is None:
            raise OtherPageError(f"the page of rows {place.first_row} to {place.end_row} is not plain")
        return page

    @property
    def copied_bytes(self) -> int:
        """The most bytes that ``copy`` writes."""
        return sum(
            PAGE_HEADER_BYTES + copied_bytes(page.inflated, page.end_row - page.first_row) for page in self.pages
        )

    def copy(self, kept: Flags, out: pa.Buffer, at: int) -> int:
        """Write the pages with only the ``kept`` rows, not compressed, to ``out`` from its byte ``at`` on. Return the
        byte after them. Raises OtherPageError.
        """
        for place in self.pages:
            rows = kept[place.first_row : place.end_row]
            if not (count := int(np.count_nonzero(rows))):
                continue
            _, page = self.page_of(place.first_row)
            size = self.codec.copied_size(page, rows)
            header = thrift.encode(_page_header(size, size, count))
            memoryview(out).cast("B")[at : at + len(header)] = header
            at += len(header)
            self.codec.copy(page, rows, out, at)
            at += size
        return at

    def inflated_bytes_from(self, row: int) -> int:
        """Return the bytes of the pages that have the rows from ``row`` on."""
        return sum(page.inflated for page in self.pages[self._at :] if page.end_row > row)


@dataclass(frozen=True, slots=True)
class PagedRowGroup:
    """A row group. ``rows`` has the decoded columns of all its rows; ``kept`` says which of them are not deleted, None
    if all are kept.
    """

    rows: pa.RecordBatch
    kept: Flags | None
    values: ValuePages

    def next_kept(self, row: int, end: int) -> int:
        """Return the first row of [row, end) that is kept, or ``end``."""
        if self.kept is None or row >= end:
            return row
        found = row + int(self.kept[row:end].argmax())
        return found if self.kept[found] else end


def read_value_pages(codec: PageCodec, file: ParquetFile, row_group: int, memory: ChunkMemory) -> ValuePages | None:
    """Read the values of a row group of a file with checksums into ``memory``; None if they are not in pages as this
    store writes them. Raises OSError and CorruptionError.
    """
    metadata, schema = file.metadata.row_group(row_group), file.metadata.schema
    leaf = next(at for at in range(metadata.num_columns) if metadata.column(at).path_in_schema == "value")
    chunk, column = metadata.column(leaf), schema.column(leaf)
    if chunk.has_dictionary_page or chunk.physical_type != "BYTE_ARRAY" or chunk.compression not in _CODECS:
        return None
    if (column.max_definition_level, column.max_repetition_level) != (1, 0):
        return None
    content = file.read_chunk(row_group, "value", memory)
    pages = _stored_pages(content.data, metadata.num_rows)
    return None if pages is None else ValuePages(codec, content, pages, _CODECS[chunk.compression])


def _page_header(inflated: int, stored: int, values: int) -> thrift.Struct:
    fields = {_NUM_VALUES: values, _ENCODING: _PLAIN, _LEVELS: _RLE, _REPETITIONS: _RLE}
    return {
        _TYPE: (thrift.I32, _DATA_PAGE),
        _INFLATED: (thrift.I32, inflated),
        _STORED: (thrift.I32, stored),
        _DATA_HEADER: (thrift.STRUCT, {field: (thrift.I32, number) for field, number in fields.items()}),
    }


def _stored_pages(chunk: memoryview, rows: int) -> list[StoredPage] | None:
    pages: list[StoredPage] = []
    at = row = 0
    while row < rows:
        try:
            header, size = thrift.decode_first(bytes(chunk[at : at + PAGE_HEADER_BYTES]))
            inflated, stored = header[_INFLATED][1], header[_STORED][1]
            values = header[_DATA_HEADER][1][_NUM_VALUES][1]
        except _MALFORMED:
            return None
        header.pop(_CRC, None)
        at += size
        if header != _page_header(inflated, stored, values):
            return None
        if not 0 <= values <= rows - row or not 0 <= stored <= len(chunk) - at or inflated < 0:
            return None
        pages.append(StoredPage(row, row + values, at, stored, inflated))
        row += values
        at += stored
    return pages
