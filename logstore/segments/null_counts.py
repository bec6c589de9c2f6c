"""Counts the null values of a segment from its footer alone: a compaction looks for tombstones without reading values.

Parquet's size statistics have a histogram of definition levels for each column chunk (``parquet.thrift``,
``SizeStatistics``); level 0 of a flat column is null.
"""

from logstore.segments import thrift
from logstore.segments.parquet_file import BAD_BYTES, damaged, open_parquet
from logstore.table_files import TableFiles

# Fields of Parquet's structs: FileMetaData, RowGroup, ColumnChunk, ColumnMetaData, SizeStatistics.
_ROW_GROUPS, _COLUMNS, _META_DATA, _PATH, _SIZE_STATISTICS, _LEVELS = 4, 1, 3, 3, 16, 3


def null_values(files: TableFiles, name: str, column: str = "value") -> list[int | None]:
    """Return for each row group the number of records whose value (a tombstone), or other ``column``, is null; None if
    the file does not say. Raises OSError and CorruptionError.
    """
    file = open_parquet(files, name)
    if not file.chain:
        return [None] * file.metadata.num_row_groups
    try:
        footer = thrift.decode(file.footer_bytes)
        groups: list[thrift.Struct] = footer[_ROW_GROUPS][1][1] if file.metadata.num_row_groups else []
        return [_nulls(group, column.encode()) for group in groups]
    except (*BAD_BYTES, IndexError) as error:
        raise damaged(file.place, error) from error


def _nulls(group: thrift.Struct, column: bytes) -> int | None:
    chunks: list[thrift.Struct] = group[_COLUMNS][1][1]
    for chunk in chunks:
        told: thrift.Struct = chunk[_META_DATA][1]
        if told[_PATH][1][1] == [column]:
            levels = told[_SIZE_STATISTICS][1].get(_LEVELS) if _SIZE_STATISTICS in told else None
            return int(levels[1][1][0]) if levels and len(levels[1][1]) == 2 else None
    return None
