"""Reads segments: what they hold (footer), where (row groups), and one row group at a time.

Invariant: what is handed out has rising offsets and is LOG_SCHEMA; anything else is CorruptionError naming the file.
Memory is bounded by one row group. Page checksums are verified.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import CorruptionError
from logstore.records.schema import LOG_SCHEMA, SEGMENT_SCHEMA
from logstore.segments.footer import SegmentFooter, decode_footer
from logstore.segments.names import parse_segment_name, partition_directory
from logstore.segments.writer import Segment


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One unit of reading. Bounds are inclusive; ``num_bytes`` is its uncompressed size in Parquet."""

    index: int
    first_offset: int
    last_offset: int
    num_rows: int
    num_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int


def read_footer(path: Path) -> SegmentFooter:
    """Raises FileNotFoundError, or CorruptionError if the file is not a whole segment."""
    return decode_footer(_open(path).metadata.metadata or {}, str(path))


def segment_from_file(table_path: Path, relative: str) -> Segment:
    """Everything needed to commit the file again (rule R7), read from the file alone."""
    path = table_path / relative
    parquet = _open(path)
    footer = decode_footer(parquet.metadata.metadata or {}, str(path))
    groups = _row_groups(parquet, path)
    if not groups:
        raise CorruptionError(f"{path} holds no records")
    return Segment(
        path=relative,
        size=path.stat().st_size,
        partition=footer.partition,
        base_offset=footer.base_offset,
        end_offset=footer.end_offset,
        leader_epoch=footer.leader_epoch,
        num_records=parquet.metadata.num_rows,
        min_offset=groups[0].first_offset,
        max_offset=groups[-1].last_offset,
        min_timestamp_us=min(group.min_timestamp_ms for group in groups) * 1000,
        max_timestamp_us=max(group.max_timestamp_ms for group in groups) * 1000,
        operation=footer.operation,
    )


def find_segments(table_path: Path, partition: int, from_offset: int) -> tuple[Segment, ...]:
    """Segments on disk, committed or not, whose base offset is at least ``from_offset``; rising, newest epoch first.

    Torn files (a crash while they were written) are left out. For rule R7 at start-up: the caller knows from its
    journal what was sealed, and picks the chain that reaches it.
    """
    found = []
    for path in (table_path / partition_directory(partition)).glob("*.parquet"):
        relative = path.relative_to(table_path).as_posix()
        name = parse_segment_name(relative)
        if name is None or name.base_offset < from_offset:
            continue
        try:
            found.append(segment_from_file(table_path, relative))
        except CorruptionError:
            continue
    return tuple(sorted(found, key=lambda segment: (segment.base_offset, -segment.leader_epoch, segment.path)))


def row_groups(path: Path) -> tuple[RowGroup, ...]:
    """The index of a segment: rising and disjoint. FileNotFoundError; CorruptionError if it is not."""
    return _row_groups(_open(path), path)


def read_row_group(path: Path, index: int) -> pa.RecordBatch:
    """One row group as one LOG_SCHEMA batch. FileNotFoundError, OSError; CorruptionError if it does not read back."""
    parquet = _open(path)
    try:
        batches = _to_log(parquet.read_row_group(index)).combine_chunks().to_batches()
    except (pa.ArrowException, OSError) as error:
        if _of_the_system(error):
            raise
        raise CorruptionError(f"{path}, row group {index}: {error}") from error
    if len(batches) != 1:
        raise CorruptionError(f"{path}, row group {index}: {len(batches)} batches where one is expected")
    offsets = batches[0].column("offset").to_numpy()
    if not (offsets[1:] > offsets[:-1]).all():
        raise CorruptionError(f"{path}, row group {index}: offsets do not rise")
    return batches[0]


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        if _of_the_system(error):
            raise
        raise CorruptionError(f"{path} is not a readable Parquet file: {error}") from error


def _of_the_system(error: Exception) -> bool:
    """Arrow raises OSError for bad bytes too; only the system's (no such file, no descriptors) have a number."""
    return isinstance(error, OSError) and error.errno is not None


def _row_groups(parquet: pq.ParquetFile, path: Path) -> tuple[RowGroup, ...]:
    names = parquet.schema_arrow.names
    if not set(SEGMENT_SCHEMA.names) <= set(names):
        raise CorruptionError(f"{path} has columns {names}, a segment has {SEGMENT_SCHEMA.names}")
    # Flat columns come first in SEGMENT_SCHEMA; only another writer's file has another order.
    columns = {parquet.metadata.schema.column(i).path: i for i in range(parquet.metadata.num_columns)}
    groups: list[RowGroup] = []
    for index in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(index)
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
                timestamps.min_raw // 1000,
                -(-timestamps.max_raw // 1000),
            )
        )
    return tuple(groups)


def _to_log(table: pa.Table) -> pa.Table:
    """SEGMENT_SCHEMA to LOG_SCHEMA; ArrowInvalid if a timestamp is finer than a millisecond."""
    return table.select(SEGMENT_SCHEMA.names).cast(LOG_SCHEMA)
