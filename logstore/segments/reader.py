"""Reads segments: the footer, the list of row groups, and one row group, whole or in parts.

Files of other writers, and the joined and masked names of records, are read by the same functions (``foreign_file``).
Invariant: returned records have rising offsets and LOG_SCHEMA; anything else is a CorruptionError with the file's name.
Memory is bounded by one row group; in parts, by its compressed bytes and a few MiB.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.kafka_batches.plain_pages import PAGE_CODEC
from logstore.limits import MIB
from logstore.records.log_batches import int64_values
from logstore.records.schema import LOG_SCHEMA, SEGMENT_SCHEMA
from logstore.segments.chunk_memory import ChunkMemory
from logstore.segments.footer import SegmentFooter, is_segment, log_append_times
from logstore.segments.foreign_file import ForeignFile, open_foreign
from logstore.segments.foreign_names import foreign_records, is_file
from logstore.segments.inherited_state import inherited_footer
from logstore.segments.names import known_segment_name, parse_segment_name, partition_directory
from logstore.segments.offset_ranges import OffsetRanges
from logstore.segments.parquet_file import ParquetFile, damaged, open_parquet
from logstore.segments.row_group import RowGroup
from logstore.segments.value_pages import DECODED, PagedRowGroup, read_value_pages
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles

_BATCH_BYTES = MIB


def read_footer(files: TableFiles, name: str, partition: int | None = None) -> SegmentFooter:
    """Read the footer of a segment; for a file of another writer, the state that it inherits (``inherited_footer``).

    ``partition`` is that of the file, needed if its directory may not contain it: Spark puts files of a table with
    column mapping into directories of any name. Raises FileNotFoundError, OSError, or CorruptionError if the file is
    not whole.
    """
    if (path := _segment_of(files, name)) is not None:
        return open_parquet(files, path).footer
    groups = open_foreign(files, name).groups
    base, end = (groups[0].first_offset, groups[-1].last_offset + 1) if groups else (0, 0)
    if partition is None:
        (path, *_) = foreign_records(name).paths
        partition = int(path.partition("/")[0].removeprefix("partition="))
    return inherited_footer(files, partition, base, end)


def segment_from_file(files: TableFiles, name: str) -> Segment:
    """Return everything needed to commit the file again (rule R7), read from its end alone: see ``verify_segment``."""
    file = open_parquet(files, name)
    footer = file.footer
    groups = _row_groups(file)
    return Segment(
        path=name,
        size=file.size,
        partition=footer.partition,
        base_offset=footer.base_offset,
        end_offset=footer.end_offset,
        leader_epoch=footer.leader_epoch,
        num_records=file.metadata.num_rows,
        min_offset=groups[0].first_offset if groups else -1,
        max_offset=groups[-1].last_offset if groups else -1,
        min_timestamp_us=min((group.min_timestamp_ms for group in groups), default=-1) * 1000,
        max_timestamp_us=max((group.max_timestamp_ms for group in groups), default=-1) * 1000,
        operation=footer.operation,
    )


def verify_segment(files: TableFiles, name: str) -> None:
    """Read the whole file. Raises FileNotFoundError, OSError, and CorruptionError if a byte has changed since it was
    written.
    """
    open_parquet(files, name).verify()


@dataclass(frozen=True, slots=True)
class FoundSegments:
    """The segments that were found. ``unreadable`` files were torn by a crash while they were written, or are damaged:
    paths within the table.
    """

    segments: tuple[Segment, ...]
    unreadable: tuple[str, ...]


def find_segments(files: TableFiles, partition: int, start: int, end: int) -> FoundSegments:
    """Find segments on disk, committed or not, of ranges within [start, end); rising, newest epoch first. Only the ends
    of files are read, and files whose names say another range are not. It serves rule R7 at start-up: the caller knows
    the sealed offset from its journal, and picks the chain that reaches it.
    """
    found, unreadable = [], []
    directory = partition_directory(partition)
    for entry in files.list(directory, f"{directory}/{start:020d}"):
        try:
            name = parse_segment_name(entry.name)
            if name is None or name.base_offset < start or (name.end_offset or 0) > end:
                continue
            segment = segment_from_file(files, entry.name)
            if segment.end_offset <= end:
                found.append(segment)
        except CorruptionError:
            unreadable.append(entry.name)
    found.sort(key=lambda segment: (segment.base_offset, -segment.leader_epoch, segment.path))
    return FoundSegments(tuple(found), tuple(sorted(unreadable)))


class SegmentIndex(NamedTuple):
    """The row groups of a segment, and ``SegmentFooter.log_append_times``. ``file`` is the segment, open; None if the
    records are those of another writer's file, or of several files.
    """

    groups: tuple[RowGroup, ...]
    log_append_times: OffsetRanges
    file: ParquetFile | None

    @property
    def num_bytes(self) -> int:
        """About the memory that it takes: parsed, a footer takes some ten times its bytes."""
        return 1024 + 512 * len(self.groups) + (0 if self.file is None else 10 * self.file.metadata.serialized_size)


def read_index(files: TableFiles, name: str) -> SegmentIndex:
    """Read the row groups, as ``row_groups`` does, and the append times."""
    path = _segment_of(files, name)
    if path is None:
        return SegmentIndex(open_foreign(files, name).groups, (), None)
    file = open_parquet(files, path)
    groups = _row_groups(file) if path == name else open_foreign(files, name).groups
    return SegmentIndex(groups, log_append_times(file.metadata.metadata or {}, file.place), file)


def row_groups(files: TableFiles, name: str) -> tuple[RowGroup, ...]:
    """Return the row groups of a segment: rising and disjoint. Raises FileNotFoundError, and CorruptionError if they
    are not.
    """
    return read_index(files, name).groups


def read_row_group(
    files: TableFiles, name: str, index: int, columns: Sequence[str] = LOG_SCHEMA.names
) -> pa.RecordBatch:
    """Read one row group as one batch of ``columns``, which include ``offset``, in the order and with the types of
    LOG_SCHEMA. Raises FileNotFoundError, OSError, and CorruptionError if it does not read back.
    """
    if (foreign := _foreign(files, name)) is not None:
        schema = pa.schema([field for field in LOG_SCHEMA if field.name in columns])
        parts = foreign.batches(index, schema.names, foreign.groups[index].num_rows)
        (whole,) = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
        return whole
    file = open_parquet(files, name)
    batches = list(_batches(file, index, columns, file.metadata.row_group(index).num_rows))
    if len(batches) != 1:
        raise CorruptionError(f"{file.where(index)}: {len(batches)} batches where one is expected")
    return batches[0]


def row_group_batches(
    files: TableFiles, name: str, group: RowGroup, columns: Sequence[str] = LOG_SCHEMA.names
) -> Iterator[pa.RecordBatch]:
    """Read like ``read_row_group``, but yield about 1 MiB at a time."""
    rows = max(1, group.num_rows * _BATCH_BYTES // max(group.encoded_bytes, 1))
    if (foreign := _foreign(files, name)) is not None:
        return foreign.batches(group.index, [name for name in LOG_SCHEMA.names if name in columns], rows)
    return _batches(open_parquet(files, name), group.index, columns, rows)


def read_paged(
    files: TableFiles, name: str, index: SegmentIndex, group: RowGroup, memory: ChunkMemory
) -> PagedRowGroup | None:
    """Read a row group of the segment ``name``, masked or not, with the pages of its values in ``memory``; None if they
    cannot be taken as they are, or if this process has no library for it. Raises FileNotFoundError, OSError, and
    CorruptionError if it does not read back.
    """
    file = index.file
    if PAGE_CODEC is None or file is None or not file.chain:
        return None
    stored = (group.index, None) if is_file(name) else open_foreign(files, name).kept_rows(group.index)
    if stored is None:
        return None
    row_group, kept = stored
    values = read_value_pages(PAGE_CODEC, file, row_group, memory)
    if values is None:
        return None
    batches = list(_batches(file, row_group, DECODED, file.metadata.row_group(row_group).num_rows))
    return PagedRowGroup(batches[0], kept, values) if len(batches) == 1 else None


def _foreign(files: TableFiles, name: str) -> ForeignFile | None:
    """Return the file of another writer; None for a segment, whatever its name, unless it has a deletion vector."""
    return None if _segment_of(files, name) == name else open_foreign(files, name)


def _segment_of(files: TableFiles, name: str) -> str | None:
    """Return the path of the only segment whose records, or what a vector left of them, the name means; None for
    others.
    """
    if not is_file(name):
        records = foreign_records(name)
        if records.bounds is not None:
            return None
        (name,) = records.paths
    if known_segment_name(name) is None:
        file = open_parquet(files, name)
        if not is_segment(file.metadata.metadata or {}, file.place):
            return None
    return name


def _batches(file: ParquetFile, index: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([field for field in LOG_SCHEMA if field.name in columns])
    before = -1
    for batch in file.read(index, schema.names, rows):
        try:
            batch = batch.select(schema.names).cast(schema)  # noqa: PLW2901
        except (pa.ArrowException, KeyError) as error:
            raise damaged(file.where(index), error) from error
        offsets = int64_values(batch.column("offset"))
        if offsets[0] <= before or not (offsets[1:] > offsets[:-1]).all():
            raise CorruptionError(f"{file.where(index)}: offsets do not rise")
        before = int(offsets[-1])
        yield batch


def _row_groups(file: ParquetFile) -> tuple[RowGroup, ...]:
    path, metadata = file.place, file.metadata
    # Flat columns come first in SEGMENT_SCHEMA; only another writer's file has another order.
    columns = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    names = {name.split(".")[0] for name in columns}
    if not set(SEGMENT_SCHEMA.names) <= names:
        raise CorruptionError(f"{path} has columns {sorted(names)}, a segment has {SEGMENT_SCHEMA.names}")
    groups: list[RowGroup] = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        offsets = group.column(columns["offset"]).statistics
        timestamps = group.column(columns["timestamp"]).statistics
        if offsets is None or timestamps is None or not offsets.has_min_max or not timestamps.has_min_max:
            raise CorruptionError(f"{path}, row group {index}: no statistics of offset and timestamp")
        if groups and offsets.min <= groups[-1].last_offset:
            raise CorruptionError(f"{path}, row group {index}: offsets do not rise")
        groups.append(
            RowGroup(
                index,
                offsets.min,
                offsets.max,
                group.num_rows,
                group.total_byte_size,
                sum(group.column(leaf).total_compressed_size for leaf in range(group.num_columns)),
                timestamps.min_raw // 1000,
                -(-timestamps.max_raw // 1000),
            )
        )
    return tuple(groups)
