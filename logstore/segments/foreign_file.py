"""Reads files of other writers, and files with deletion vectors, as if they were segments: records by rising offset, in
row groups.

Spark, delta-rs and others write the rows of a topic's table in any order, with timestamps of any unit, without
statistics and with additional columns. The offsets of such a file are read once. If they rise, its row groups are used
as they are. If not, the file is read in runs of its sorted rows; each run decodes the row groups that have rows of it,
so a file in random order is read several times.

Invariants: returned records have rising offsets, each once, and LOG_SCHEMA; anything else is a CorruptionError with the
file's name and the remedy. A row in the file's deletion vector is never returned. Memory: one row group of the writer,
or one run; for a file in another order 4 bytes a row while it is read, which ``FOREIGN_ROWS_MAX`` bounds; and the
vector as it is stored, compressed.
"""

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cachetools import LRUCache
from pyroaring import BitMap64

from logstore.errors import CorruptionError
from logstore.limits import MIB, ROW_GROUP_BYTES_MAX, ROW_GROUP_ROWS_MAX
from logstore.records.schema import LOG_SCHEMA
from logstore.segments.deletion_vectors import DeletionVector, deleted_rows
from logstore.segments.foreign_names import foreign_records
from logstore.segments.parquet_file import ParquetFile, damaged, open_parquet
from logstore.segments.row_group import RowGroup
from logstore.table_files import TableFiles

#: The most rows of a file whose offsets do not rise. Sorting briefly takes 24 bytes a row.
FOREIGN_ROWS_MAX = 16 * 1024 * 1024
#: Each run of a file in random order decodes the whole file: with fewer runs it is read less often.
_RUN_BYTES = 2 * ROW_GROUP_BYTES_MAX
_ORDERS_BYTES_MAX = 128 * MIB
_ROWS_AT_ONCE = 64 * 1024
_NEEDED = ("offset", "timestamp")

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OffsetRuns:
    """The offsets of a file as ranges [start, end) that rise and do not touch. If there were too many ranges, small
    holes count as offsets.
    """

    starts: Numbers
    ends: Numbers
    num_records: int
    min_timestamp_ms: int
    max_timestamp_ms: int


#: The runs that each file may have at least, whatever the number in other files.
_RUNS_MIN = 65_536
#: The most runs of all files that are read together. Files whose rows interleave at random have nearly a run for each
#: row, and the store sorts at most this many rows.
RUNS_MAX = FOREIGN_ROWS_MAX


def read_offset_runs(files: TableFiles, name: str, others: Iterable[OffsetRuns] = ()) -> OffsetRuns:
    """Read the offsets of a file, masked or not. ``others`` are those of files that are in memory at the same time, to
    bound the memory of all.

    Raises CorruptionError if the file has no offsets, or one twice, FileNotFoundError and OSError.
    """
    runs_max = max(_RUNS_MIN, RUNS_MAX - sum(len(runs.starts) for runs in others))
    records = foreign_records(name)
    file = _Source(files, records.paths[0], records.vectors[0])
    scanned = list(file.scan())
    if not any(len(offsets) for _, offsets, _ in scanned):
        empty = np.empty(0, dtype=np.int64)
        return OffsetRuns(empty, empty, 0, -1, -1)
    offsets = np.sort(np.concatenate([offsets for _, offsets, _ in scanned]))
    steps = np.diff(offsets)
    if (steps == 0).any():
        raise _twice(file.parquet, int(offsets[1:][steps == 0][0]))
    breaks = np.flatnonzero(steps > 1)
    if len(breaks) >= runs_max:
        breaks = np.sort(breaks[np.argpartition(steps[breaks], -runs_max + 1)[-runs_max + 1 :]])
    return OffsetRuns(
        offsets[np.append(0, breaks + 1)],
        offsets[np.append(breaks, len(offsets) - 1)] + 1,
        len(offsets),
        min(int(times.min()) for _, _, times in scanned if len(times)),
        max(int(times.max()) for _, _, times in scanned if len(times)),
    )


class ForeignFile:
    """The records of one name: those of a file, or of several files within a range of offsets."""

    def __init__(self, files: TableFiles, name: str) -> None:
        records = foreign_records(name)
        self._sources = [_Source(files, *source) for source in zip(records.paths, records.vectors, strict=True)]
        #: (source, row group in it, first row among all rows) of each row group of the writers.
        self._stored: list[tuple[_Source, int, int]] = []
        scans: list[tuple[Numbers, Numbers]] = []
        rows = 0
        for source in self._sources:
            for group, offsets, times in source.scan():
                if len(offsets):
                    self._stored.append((source, group, rows))
                    scans.append((offsets, times))
                    rows += len(offsets)
        self._rows = rows
        #: The numbers of the rows by rising offset; None if they rise as they are.
        self._order: npt.NDArray[np.uint32] | None = None
        if records.bounds is None and _rise([offsets for offsets, _ in scans]):
            self.groups = tuple(
                _row_group(at, *scan, *_bytes(self._stored[at][0].parquet, self._stored[at][1]))
                for at, scan in enumerate(scans)
            )
            return
        if rows > FOREIGN_ROWS_MAX:
            raise CorruptionError(
                f"{self.place} has {rows} rows that are not in the order of their offsets; the store sorts up to "
                f"{FOREIGN_ROWS_MAX} of a file. Restore the table to the version before, or write smaller files: set "
                "spark.databricks.delta.optimize.maxFileSize, and OPTIMIZE again"
            )
        offsets = np.concatenate([offsets for offsets, _ in scans] or [np.empty(0, np.int64)])
        times = np.concatenate([times for _, times in scans] or [np.empty(0, np.int64)])
        order = np.argsort(offsets, kind="stable")
        if records.bounds is not None:
            low, high = np.searchsorted(offsets[order], records.bounds)
            order = order[low:high]
        offsets, times = offsets[order], times[order]
        if (offsets[1:] == offsets[:-1]).any():
            raise _twice(self._sources[0].parquet, int(offsets[1:][offsets[1:] == offsets[:-1]][0]))
        self._order = order.astype(np.uint32)
        sizes = [_bytes(source.parquet, group) for source, group, _ in self._stored]
        encoded, stored = (sum(size[at] for size in sizes) for at in (0, 1))
        self._run_rows = max(1, min(ROW_GROUP_ROWS_MAX, _RUN_BYTES * rows // max(1, encoded)))
        self.groups = tuple(
            _row_group(index, offsets[at:to], times[at:to], encoded * (to - at) // rows, stored * (to - at) // rows)
            for index, at in enumerate(range(0, len(order), self._run_rows))
            for to in (min(at + self._run_rows, len(order)),)
        )

    @property
    def place(self) -> str:
        """The file names, for messages."""
        return " and ".join(source.parquet.place for source in self._sources)

    @property
    def stored_groups(self) -> list[tuple[int, bool]]:
        """For each of ``groups`` the stored row group that has its rows, and whether it also has deleted rows. Empty if
        the rows are in another order than stored.
        """
        if self._order is not None:
            return []
        return [(group, source.has_deleted(group)) for source, group, _ in self._stored]

    def kept_rows(self, index: int) -> tuple[int, npt.NDArray[np.bool_] | None] | None:
        """Return the stored row group that has the rows of one of ``groups``, in their order, and which of its rows are
        not deleted (None: all); None if there is no such row group.
        """
        if self._order is not None:
            return None
        source, group, _ = self._stored[index]
        return group, source.kept_rows(group)

    @property
    def order_bytes(self) -> int:
        """The memory that the sorted order takes."""
        vectors = sum(source.deleted_bytes for source in self._sources)
        return 1024 + 256 * len(self.groups) + vectors + (0 if self._order is None else self._order.nbytes)

    def batches(self, index: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of one of ``groups``, ``rows`` at a time. Raises FileNotFoundError, OSError,
        CorruptionError.
        """
        if self._order is None:
            source, group, _ = self._stored[index]
            yield from source.batches(group, columns, rows)
            return
        whole = self._sorted_run(index, columns)
        for at in range(0, whole.num_rows, rows):
            yield whole.slice(at, rows)

    def _sorted_run(self, index: int, columns: Sequence[str]) -> pa.RecordBatch:
        assert self._order is not None
        wanted = self._order[index * self._run_rows : (index + 1) * self._run_rows]
        in_file = np.sort(wanted)
        found: list[pa.RecordBatch] = []
        ends = [*(first for _, _, first in self._stored[1:]), self._rows]
        for (source, group, first), end in zip(self._stored, ends, strict=True):
            low, high = np.searchsorted(in_file, (first, end))
            if low < high:
                found += source.rows(group, columns, in_file[low:high] - np.uint32(first))
        table = pa.Table.from_batches(found).take(pa.array(np.searchsorted(in_file, wanted)))
        (batch,) = table.combine_chunks().to_batches()
        return batch


_opened: LRUCache[tuple[str, str], ForeignFile] = LRUCache(_ORDERS_BYTES_MAX, getsizeof=lambda file: file.order_bytes)
_lock = threading.Lock()


def open_foreign(files: TableFiles, name: str) -> ForeignFile:
    """Return the records of a name, whose offsets were read at the first call. Raises FileNotFoundError, OSError, and
    CorruptionError if these are not records of a log.
    """
    key = (files.uri, name)
    with _lock:
        found = _opened.get(key)
    if found is None:
        found = ForeignFile(files, name)
        with _lock:
            _opened[key] = found
    return found


def stored_batches(files: TableFiles, path: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in its own order. An offset may occur twice, as in a file of the change data feed.

    Raises CorruptionError, FileNotFoundError and OSError.
    """
    source = _Source(files, path, None)
    for group in range(source.parquet.metadata.num_row_groups):
        yield from source.batches(group, columns, ROW_GROUP_ROWS_MAX)


class _Source:
    """A file without the rows of its vector: neither their numbers nor their records are returned. Methods raise
    CorruptionError, FileNotFoundError, OSError.
    """

    def __init__(self, files: TableFiles, path: str, vector: DeletionVector | None) -> None:
        self.parquet = open_parquet(files, path)
        self._deleted = BitMap64() if vector is None else deleted_rows(vector, files)
        self.deleted_bytes = 0 if vector is None else vector.size_in_bytes
        metadata = self.parquet.metadata
        sizes = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        #: The number of the first row of each group in the file.
        self._first_rows = list(accumulate(sizes, initial=0))
        if self._deleted and self._deleted.max() >= self._first_rows[-1]:
            raise CorruptionError(
                f"{self.parquet.place} has {self._first_rows[-1]} rows, and its deletion vector row "
                f"{self._deleted.max()}: it is the vector of another file. Restore the table to the version before"
            )

    def has_deleted(self, group: int) -> bool:
        """Return whether a row of the row group is deleted."""
        low, high = self._first_rows[group : group + 2]
        return not self._deleted.isdisjoint(BitMap64(range(low, high)))

    def kept_rows(self, group: int) -> npt.NDArray[np.bool_] | None:
        """Return which rows of the row group are not deleted; None if none is."""
        return self._kept(*self._first_rows[group : group + 2])

    def _kept(self, low: int, high: int) -> npt.NDArray[np.bool_] | None:
        gone = self._deleted & BitMap64(range(low, high))
        if not gone:
            return None
        kept = np.ones(high - low, dtype=bool)
        kept[np.array(gone.to_array(), dtype=np.int64) - low] = False
        return kept

    def scan(self) -> Iterator[tuple[int, Numbers, Numbers]]:
        """Yield offsets and timestamps (ms) of each row group."""
        for group in range(self.parquet.metadata.num_row_groups):
            read = list(self.batches(group, _NEEDED, ROW_GROUP_ROWS_MAX))
            columns = (
                np.concatenate(
                    [np.empty(0, np.int64), *(batch.column(name).cast(pa.int64()).to_numpy() for batch in read)]
                )
                for name in _NEEDED
            )
            yield (group, *columns)  # type: ignore[misc]

    def batches(self, group: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of a row group, up to ``rows`` at a time."""
        at = self._first_rows[group]
        for batch in self.parquet.read(group, columns, rows):
            # The batch is converted first, because Arrow cannot take rows of every type that others write.
            records = _as_log(self.parquet, batch, columns)
            kept = self._kept(at, at + batch.num_rows)
            if kept is not None:
                records = records.filter(pa.array(kept))
            at += batch.num_rows
            if records.num_rows:
                yield records

    def rows(self, group: int, columns: Sequence[str], wanted: npt.NDArray[np.uint32]) -> Iterator[pa.RecordBatch]:
        """Yield records of a row group by their rising numbers among its records."""
        at = 0
        for batch in self.batches(group, columns, _ROWS_AT_ONCE):
            low, high = np.searchsorted(wanted, (at, at + batch.num_rows))
            if low < high:
                yield batch.take(pa.array(wanted[low:high] - np.uint32(at)))
            at += batch.num_rows
            if high == len(wanted):
                return


def _as_log(file: ParquetFile, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the batch with the types of LOG_SCHEMA. A column that the file leaves out is null, as in Delta."""
    schema = pa.schema([field for field in LOG_SCHEMA if field.name in columns])
    arrays = []
    for field in schema:
        if field.name not in batch.schema.names:
            if not field.nullable:
                raise _not_records(file, f"it has no column {field.name}")
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        if column.null_count and not field.nullable:
            raise _not_records(file, f"{field.name} is null in it")
        try:
            # The cast is not safe for timestamps, because others may have microseconds, which are cut off.
            arrays.append(column.cast(field.type, safe=field.name != "timestamp"))
        except pa.ArrowException as error:
            raise damaged(file.place, error) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rise(scans: Sequence[Numbers]) -> bool:
    before = -1
    for offsets in scans:
        if offsets[0] <= before or not (offsets[1:] > offsets[:-1]).all():
            return False
        before = int(offsets[-1])
    return True


def _row_group(index: int, offsets: Numbers, times: Numbers, encoded: int, stored: int) -> RowGroup:
    bounds = int(offsets[0]), int(offsets[-1])
    return RowGroup(index, *bounds, len(offsets), encoded, stored, int(times.min()), int(times.max()))


def _bytes(file: ParquetFile, index: int) -> tuple[int, int]:
    """Return the encoded and the stored bytes of a row group."""
    group = file.metadata.row_group(index)
    stored = sum(group.column(leaf).total_compressed_size for leaf in range(group.num_columns))
    return int(group.total_byte_size), int(stored)


def _twice(file: ParquetFile, offset: int) -> CorruptionError:
    return _not_records(file, f"it has offset {offset} twice")


def _not_records(file: ParquetFile, why: str) -> CorruptionError:
    return CorruptionError(
        f"{file.place} was written by another writer, and its rows are no records of a log: {why}. Restore the table "
        "to the version before, or remove the file from the table"
    )
