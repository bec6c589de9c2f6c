"""A complete check of one file of a table: every byte, every record, and what its footer and statistics say about them.

Files of another writer have neither checksums nor a footer of ours. They are decoded, with the checksums of Parquet's
pages if they have any; their offsets need not rise, but none may occur twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from logstore.errors import CorruptionError
from logstore.limits import ROW_GROUP_ROWS_MAX
from logstore.records.log_batches import int64_values
from logstore.segments.footer import SegmentFooter, is_segment
from logstore.segments.parquet_file import ParquetFile, open_parquet
from logstore.segments.reader import row_group_batches, row_groups
from logstore.table_files import TableFiles


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The contents of a file. ``footer`` is None in a file of another writer. Bounds are inclusive, timestamps in µs;
    all four are None without a record.
    """

    name: str
    size: int
    footer: SegmentFooter | None
    num_records: int
    min_offset: int | None = None
    max_offset: int | None = None
    min_timestamp_us: int | None = None
    max_timestamp_us: int | None = None


def check_file(files: TableFiles, name: str) -> CheckedFile:
    """Read the whole file. Raises FileNotFoundError, OSError, and CorruptionError if a byte has changed since it was
    written, or if its statistics, footer and name do not match its records.
    """
    file = open_parquet(files, name)
    file.verify()
    if not is_segment(file.metadata.metadata or {}, file.place):
        return _check_foreign(file)
    footer = file.footer
    bounds = _Bounds()
    for group in row_groups(files, name):
        part = _Bounds()
        for batch in row_group_batches(files, name, group):
            part.add(int64_values(batch.column("offset")), int64_values(batch.column("timestamp")) * 1000)
        stated = (group.num_rows, group.first_offset, group.last_offset)
        found = (part.count, part.offsets[0], part.offsets[1])
        times = (group.min_timestamp_ms * 1000, group.max_timestamp_ms * 1000)
        if stated != found or times != part.timestamps:
            raise CorruptionError(
                f"{file.where(group.index)}: its statistics are not those of its records: {stated} records, first and "
                f"last offset, found {found}; timestamps {times}, found {part.timestamps}"
            )
        if not footer.base_offset <= part.offsets[0] <= part.offsets[1] < footer.end_offset:
            raise CorruptionError(
                f"{file.where(group.index)}: its offsets are not in the range of the file, "
                f"[{footer.base_offset}, {footer.end_offset})"
            )
        bounds.join(part)
    return bounds.of(file, footer)


def _check_foreign(file: ParquetFile) -> CheckedFile:
    bounds = _Bounds()
    seen: list[np.ndarray] = []
    for batch in _columns(file):
        offsets, timestamps = batch.columns
        if offsets.null_count or timestamps.null_count:
            raise CorruptionError(f"{file.place}: a record without an offset or a timestamp")
        values = int64_values(offsets)
        bounds.add(values, int64_values(timestamps))
        seen.append(values)
    if seen and len(np.unique(np.concatenate(seen))) != bounds.count:
        raise CorruptionError(f"{file.place}: two of its records have the same offset")
    return bounds.of(file, None)


def _columns(file: ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield offsets and timestamps (µs) of a file without a footer of ours."""
    schema = pa.schema([("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))])
    names = {file.metadata.schema.column(at).path for at in range(file.metadata.num_columns)}
    if missing := set(schema.names) - names:
        raise CorruptionError(f"{file.place} has no column {' and '.join(sorted(missing))}: not records of a topic")
    for index in range(file.metadata.num_row_groups):
        for batch in file.read(index, schema.names, ROW_GROUP_ROWS_MAX):
            try:
                offsets, timestamps = (batch.column(name) for name in schema.names)
                # The cast is not safe, because other writers' timestamps may have nanoseconds, which are cut off.
                columns = [offsets.cast(pa.int64()), timestamps.cast(schema.field("timestamp").type, safe=False)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            except pa.ArrowException as error:
                raise CorruptionError(f"{file.where(index)}: {error}") from error


class _Bounds:
    """The number, smallest and largest offset and timestamp of some records."""

    def __init__(self) -> None:
        self.count = 0
        self.offsets = self.timestamps = (2**63 - 1, -(2**63))

    def add(self, offsets: np.ndarray, timestamps: np.ndarray) -> None:
        if len(offsets):
            self._widen(len(offsets), (int(offsets.min()), int(offsets.max())), _ends(timestamps))

    def join(self, other: "_Bounds") -> None:
        self._widen(other.count, other.offsets, other.timestamps)

    def _widen(self, count: int, offsets: tuple[int, int], timestamps: tuple[int, int]) -> None:
        self.count += count
        self.offsets = min(self.offsets[0], offsets[0]), max(self.offsets[1], offsets[1])
        self.timestamps = min(self.timestamps[0], timestamps[0]), max(self.timestamps[1], timestamps[1])

    def of(self, file: ParquetFile, footer: SegmentFooter | None) -> CheckedFile:
        if not self.count:
            return CheckedFile(file.name, file.size, footer, 0)
        return CheckedFile(file.name, file.size, footer, self.count, *self.offsets, *self.timestamps)


def _ends(values: np.ndarray) -> tuple[int, int]:
    return int(values.min()), int(values.max())
