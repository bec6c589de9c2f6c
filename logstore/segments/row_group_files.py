"""Row groups of a segment, each as a separate Parquet file, for readers that decode history themselves.

Such a file has the column chunks as they are in the segment, and a footer that says where they are now. It has the
segment's columns and none of its metadata. Invariant: a returned file was compared with the segment's checksums. If a
reader may have only some rows of a row group, or if the file has no checksums, the rows are written as a file of the
same kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.crc32c import crc32c
from logstore.limits import RECORD_OVERHEAD_BYTES
from logstore.records.log_batches import int64_values
from logstore.records.schema import LOG_SCHEMA
from logstore.segments import thrift
from logstore.segments.checksums import MAGIC, TRAILER_BYTES
from logstore.segments.foreign_file import open_foreign
from logstore.segments.foreign_names import foreign_records, is_file
from logstore.segments.parquet_file import BAD_BYTES, damaged, open_parquet
from logstore.segments.value_pages import PagedRowGroup
from logstore.table_files import TableFiles

# Fields of Parquet's structs (parquet.thrift): FileMetaData.
_VERSION, _SCHEMA, _NUM_ROWS, _ROW_GROUPS, _CREATED_BY = 1, 2, 3, 4, 6
# RowGroup, which also has a _NUM_ROWS.
_COLUMNS, _TOTAL_BYTE_SIZE = 1, 2
# ColumnChunk.
_FILE_OFFSET, _META_DATA = 2, 3
# ColumnMetaData.
_PATH, _TOTAL_UNCOMPRESSED, _TOTAL_COMPRESSED = 3, 6, 7
_DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET, _STATISTICS, _ENCODING_STATISTICS, _SIZE_STATISTICS = 9, 11, 12, 13, 16
# SizeStatistics.
_UNENCODED_BYTES = 1
# Four numbers of a footer are larger with values than without.
_FOOTER_GROWS_MAX = 64


@dataclass(frozen=True, slots=True)
class RowGroupFile:
    """The Parquet file of one row group. Its column chunks are the bytes [begin, end) of the segment; ``crc_before``
    and ``crc_after`` are the CRC-32C of the segment up to either place. ``footer`` is that of the new file, up to its
    end. ``decoded_bytes`` are its records' keys, values and headers, with the overhead of each record.
    ``has_deleted``: it also has rows that a deletion vector removes, so no reader may get it.
    """

    row_group: int
    begin: int
    end: int
    crc_before: int
    crc_after: int
    footer: bytes
    decoded_bytes: int
    has_deleted: bool = False


def row_group_files(files: TableFiles, name: str) -> tuple[RowGroupFile, ...]:
    """Return a file for each row group, in order; no files if the segment has no checksums. Raises FileNotFoundError,
    OSError, CorruptionError.
    """
    if is_file(name):
        return _row_group_files(files, name)
    records = foreign_records(name)
    if records.bounds is not None or not (stored := _row_group_files(files, records.paths[0])):
        return ()
    groups = open_foreign(files, name).stored_groups
    return tuple(replace(stored[group], has_deleted=has_deleted) for group, has_deleted in groups)


def _row_group_files(files: TableFiles, name: str) -> tuple[RowGroupFile, ...]:
    file = open_parquet(files, name)
    if not file.chain:
        return ()
    try:
        footer = thrift.decode(file.footer_bytes)
        found = []
        for index, row_group in enumerate(_elements(footer, _ROW_GROUPS)):
            begin, crc_before = file.chain[index * file.metadata.num_columns]
            end, crc_after = file.chain[(index + 1) * file.metadata.num_columns]
            its_footer, decoded_bytes = _footer(footer, row_group, begin), _decoded_bytes(row_group)
            found.append(RowGroupFile(index, begin, end, crc_before, crc_after, its_footer, decoded_bytes))
    except (*BAD_BYTES, IndexError) as error:
        raise damaged(file.place, error) from error
    return tuple(found)


def read_row_group_file(files: TableFiles, name: str, file: RowGroupFile) -> memoryview:
    """Read the Parquet file. Raises FileNotFoundError, OSError, and CorruptionError if its bytes have changed."""
    if not is_file(name):
        (name,) = foreign_records(name).paths
    size = file.end - file.begin
    view = memoryview(pa.allocate_buffer(len(MAGIC) + size + len(file.footer))).cast("B")
    view[: len(MAGIC)] = MAGIC
    data = view[len(MAGIC) : len(MAGIC) + size]
    try:
        files.read_ranges(name, [(file.begin, data)])
        if crc32c(data, file.crc_before) != file.crc_after:
            raise ValueError("the checksum of its data does not match")
    except (EOFError, ValueError) as error:
        raise open_parquet(files, name).damaged_in(file.row_group, error) from error
    view[len(MAGIC) + size :] = file.footer
    return view


def write_row_group_file(rows: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """Write the Parquet file of ``rows`` (LOG_SCHEMA), at least one batch: one row group, quick to write and read."""
    sink = pa.BufferOutputStream()
    table = pa.Table.from_batches(rows)
    pq.write_table(
        table, sink, row_group_size=len(table), compression="none", use_dictionary=False, write_statistics=False
    )
    return sink.getvalue()


class KeptRows(NamedTuple):
    """The Parquet file of ``num_rows`` rows of a row group, and the first one's offset."""

    payload: memoryview
    num_rows: int
    first_offset: int


def write_kept_rows(group: PagedRowGroup, start: int) -> KeptRows:
    """Write the file of the kept rows, at least one, from the offset ``start`` on, as ``write_row_group_file`` does.
    Their values are copied from page to page. Raises OtherPageError.
    """
    offsets = int64_values(group.rows.column("offset"))
    kept = np.ones(len(offsets), np.bool_) if group.kept is None else group.kept.copy()
    kept[: np.searchsorted(offsets, start)] = False
    rows = group.rows.filter(pa.array(kept))
    columns = [
        pa.nulls(rows.num_rows, field.type) if field.name == "value" else rows.column(field.name)
        for field in LOG_SCHEMA
    ]
    written = write_row_group_file([pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA)])
    # The pages of the values come in place of the footer, and the footer again after them.
    footer_at, footer = _footer_of(memoryview(written).cast("B"))
    out = pa.allocate_buffer(written.size + group.values.copied_bytes + _FOOTER_GROWS_MAX)
    view = memoryview(out).cast("B")
    view[:footer_at] = memoryview(written).cast("B")[:footer_at]
    end = group.values.copy(kept, out, footer_at)
    trailer = _trailer(_with_values(footer, footer_at, end))
    view[end : end + len(trailer)] = trailer
    return KeptRows(view[: end + len(trailer)], rows.num_rows, int(int64_values(rows.column("offset"))[0]))


def _footer_of(file: memoryview) -> tuple[int, thrift.Struct]:
    """Return where the footer of a Parquet file begins, and the footer."""
    end = len(file) - TRAILER_BYTES
    begin = end - int.from_bytes(file[end : end + 4], "little")
    return begin, thrift.decode(bytes(file[begin:end]))


def _with_values(footer: thrift.Struct, begin: int, end: int) -> thrift.Struct:
    """Return the footer of a file of one row group, with the pages [begin, end) in place of those of null values."""
    (row_group,) = _elements(footer, _ROW_GROUPS)
    columns: list[thrift.Struct] = [chunk[_META_DATA][1] for chunk in _elements(row_group, _COLUMNS)]
    (values,) = (column for column in columns if column[_PATH][1][1] == [b"value"])
    for field in (_STATISTICS, _ENCODING_STATISTICS, _SIZE_STATISTICS):
        values.pop(field, None)
    values[_TOTAL_UNCOMPRESSED] = values[_TOTAL_COMPRESSED] = thrift.I64, end - begin
    values[_DATA_PAGE_OFFSET] = thrift.I64, begin
    row_group[_TOTAL_BYTE_SIZE] = thrift.I64, sum(column[_TOTAL_UNCOMPRESSED][1] for column in columns)
    return footer


def _trailer(footer: thrift.Struct) -> bytes:
    """Return the end of a Parquet file: footer, its length and the magic number."""
    encoded = thrift.encode(footer)
    return encoded + len(encoded).to_bytes(4, "little") + MAGIC


def _elements(struct: thrift.Struct, field: int) -> list[thrift.Struct]:
    """Return the structs of a field that is a list of structs."""
    elements: list[thrift.Struct] = struct[field][1][1]
    return elements


def _decoded_bytes(row_group: thrift.Struct) -> int:
    """Return the bytes of decoded records. The footer's own size is of encoded pages: a small part if keys repeat."""
    sizes = [chunk[_META_DATA][1].get(_SIZE_STATISTICS, (0, {}))[1] for chunk in _elements(row_group, _COLUMNS)]
    unencoded: int = sum(size[_UNENCODED_BYTES][1] for size in sizes if _UNENCODED_BYTES in size)
    encoded: int = row_group[_TOTAL_BYTE_SIZE][1]
    rows: int = row_group[_NUM_ROWS][1]
    return max(unencoded, encoded) + RECORD_OVERHEAD_BYTES * rows


def _footer(of_segment: thrift.Struct, row_group: thrift.Struct, begin: int) -> bytes:
    """Return the footer, without page index, of a file whose column chunks from ``begin`` follow the magic number."""
    shift = len(MAGIC) - begin
    columns = []
    for chunk in _elements(row_group, _COLUMNS):
        metadata = {field: told for field, told in chunk[_META_DATA][1].items() if field != _STATISTICS}
        for field in (_DATA_PAGE_OFFSET, _DICTIONARY_PAGE_OFFSET):
            if field in metadata:
                kind, at = metadata[field]
                metadata[field] = kind, at + shift
        columns.append({_FILE_OFFSET: (thrift.I64, 0), _META_DATA: (thrift.STRUCT, metadata)})
    rows = row_group[_NUM_ROWS]
    group = {
        _COLUMNS: (thrift.LIST, (thrift.STRUCT, columns)),
        _TOTAL_BYTE_SIZE: row_group[_TOTAL_BYTE_SIZE],
        _NUM_ROWS: rows,
    }
    return _trailer(
        {
            _VERSION: of_segment[_VERSION],
            _SCHEMA: of_segment[_SCHEMA],
            _NUM_ROWS: rows,
            _ROW_GROUPS: (thrift.LIST, (thrift.STRUCT, [group])),
            _CREATED_BY: of_segment[_CREATED_BY],
        }
    )
