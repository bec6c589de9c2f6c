"""The work of the executors: read segments, and write segments with the writer of the roll. This module is sent to the
executors by value; besides, they need only ``logstore``. Invariants: a task reads the files that the driver planned,
whole, or fails; a record keeps its offset, timestamp, key, value and headers; an attempt that fails or is given up
leaves at worst a file that no commit names.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compaction_jobs.planning import Cleanings, join_cleanings
from logstore.errors import CorruptionError, storage_error
from logstore.records.batch_identity import RememberedBatch
from logstore.segments.footer import SegmentFooter
from logstore.segments.layout import layout_of
from logstore.segments.reader import read_footer, read_row_group, row_groups
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import TableFiles, open_table

Batches = Iterator[pa.RecordBatch]
Rows = npt.NDArray[np.int64]

#: Columns of ``scan_keys``, ``count_by_source`` and ``assign_tasks``, and of both writers.
KEY_COLUMNS = "partition int, row long, key binary"
COUNT_COLUMNS = "source int, records long"
TASK_COLUMNS = "task int, row long"
WRITTEN_COLUMNS = "task int, expired long, segment string"
_WRITTEN_SCHEMA = pa.schema([("task", pa.int32()), ("expired", pa.int64()), ("segment", pa.string())])


@dataclass(frozen=True, slots=True)
class Source:
    """An active file. ``first_row`` numbers its first record among all records of all sources of a job, in order."""

    partition: int
    path: str
    num_records: int
    first_row: int


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Make one segment of [base_offset, end_offset) from neighbouring ``sources``, without the records below
    ``log_start``. ``end_offset`` None is the end of the last source. ``table`` is the ``uri`` of its files.

    The rest is for compaction: tombstones first compacted ``delete_retention_ms`` ago or earlier are dropped.
    """

    topic: str
    table: str
    partition: int
    sources: tuple[Source, ...]
    base_offset: int
    end_offset: int | None
    log_start: int
    codec: str
    operation: str
    idempotency_window_ms: int
    first_dirty: int = 0
    now_ms: int = 0
    delete_retention_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """``segment`` has no record if none was left; ``expired`` counts tombstones that were dropped."""

    task: int
    expired: int
    segment: Segment

    @classmethod
    def from_row(cls, task: int, expired: int, segment: str) -> "Written":
        return cls(task, expired, Segment(**json.loads(segment)))


# ---- reading keys ---------------------------------------------------------------------------------------------------


def scan_keys(table: str, sources: Sequence[Source], log_start: dict[int, int]) -> Callable[[Batches], Batches]:
    """Gives KEY_COLUMNS of the sources whose indices come in: records with a key, from the log start on."""

    def scan(batches: Batches) -> Batches:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from _keys_of(open_table(table), sources[index], log_start[sources[index].partition])

    return scan


def _keys_of(files: TableFiles, source: Source, log_start: int) -> Batches:
    row = source.first_row
    for group in row_groups(files, source.path):
        batch = read_row_group(files, source.path, group.index, ["offset", "key"])
        rows = np.arange(row, row + batch.num_rows, dtype=np.int64)
        row += batch.num_rows
        has_key = batch.column("key").is_valid().to_numpy(zero_copy_only=False)
        keep = (batch.column("offset").to_numpy() >= log_start) & has_key
        partitions = np.full(int(keep.sum()), source.partition, dtype=np.int32)
        keys = batch.column("key").filter(pa.array(keep))
        yield pa.RecordBatch.from_arrays(
            [pa.array(partitions), pa.array(rows[keep]), keys], names=["partition", "row", "key"]
        )
    if row - source.first_row != source.num_records:
        raise _other_count(files, source, row - source.first_row)


def _other_count(files: TableFiles, source: Source, found: int) -> CorruptionError:
    return CorruptionError(f"{files.where(source.path)} holds {found} records; the Delta log says {source.num_records}")


def count_by_source(first_rows: Rows) -> Callable[[Batches], Batches]:
    """How many of the rows that come in lie in each source; ``first_rows`` of the sources, rising."""

    def count(batches: Batches) -> Batches:
        counts = np.zeros(len(first_rows), dtype=np.int64)
        for batch in batches:
            rows = batch.column("row").to_numpy()
            counts += np.bincount(np.searchsorted(first_rows, rows, side="right") - 1, minlength=len(first_rows))
        found = np.flatnonzero(counts)
        yield pa.RecordBatch.from_arrays(
            [pa.array(found.astype(np.int32)), pa.array(counts[found])], names=["source", "records"]
        )

    return count


def assign_tasks(first_rows: Rows) -> Callable[[Batches], Batches]:
    """Each row with the task that writes it; ``first_rows`` of the tasks, rising."""

    def assign(batches: Batches) -> Batches:
        for batch in batches:
            rows = batch.column("row")
            tasks = np.searchsorted(first_rows, rows.to_numpy(), side="right") - 1
            yield pa.RecordBatch.from_arrays([pa.array(tasks.astype(np.int32)), rows], names=["task", "row"])

    return assign


# ---- writing segments -----------------------------------------------------------------------------------------------


def write_whole(tasks: Sequence[WriteTask]) -> Callable[[Batches], Batches]:
    """Runs the tasks whose numbers come in, with all records from the log start on."""

    def write(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield _as_batch(write_segment(task, tasks[task], None))

    return write


def write_kept(tasks: Sequence[WriteTask]) -> Callable[[Batches], Batches]:
    """Runs the tasks that come in as TASK_COLUMNS, sorted by row, with the records of those rows."""

    def write(batches: Batches) -> Batches:
        kept = _KeptRows(batches)
        while (task := kept.next_task()) is not None:
            yield _as_batch(write_segment(task, tasks[task], kept))

    return write


def _as_batch(written: Written) -> pa.RecordBatch:
    row = {"task": [written.task], "expired": [written.expired], "segment": [json.dumps(asdict(written.segment))]}
    return pa.RecordBatch.from_pydict(row, schema=_WRITTEN_SCHEMA)


class _KeptRows:
    """Sorted rows of several tasks, one after the other, taken bit by bit."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._tasks: Rows = np.empty(0, dtype=np.int64)
        self._rows: Rows = np.empty(0, dtype=np.int64)

    def next_task(self) -> int | None:
        while not len(self._rows):
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._tasks, self._rows = batch.column("task").to_numpy(), batch.column("row").to_numpy()
        return int(self._tasks[0])

    def take(self, end: int) -> Rows:
        """The rows below ``end`` that were not taken before."""
        taken = []
        while self.next_task() is not None:
            count = int(np.searchsorted(self._rows, end))
            taken.append(self._rows[:count])
            self._tasks, self._rows = self._tasks[count:], self._rows[count:]
            if len(self._rows):
                break
        return np.concatenate(taken) if taken else self._rows


def write_empty(number: int, task: WriteTask) -> Written:
    """Write the segment of a task of which no record is left: its range, and the state at its end. It reads footers
    only, and needs no executor. Raises StorageFullError, StorageError, CorruptionError.
    """
    try:
        return write_segment(number, task, _KeptRows(iter(())))
    except OSError as error:
        raise storage_error(f"writing a segment of topic {task.topic!r}", error) from error


def write_segment(number: int, task: WriteTask, kept: _KeptRows | None) -> Written:
    """Write the segment of a task; ``kept`` None keeps all from the log start on. CorruptionError, OSError."""
    # It makes no table: one that was deleted meanwhile must not come back.
    files = open_table(task.table)
    footers = [read_footer(files, source.path) for source in task.sources]
    last = footers[-1]
    end_offset = last.end_offset if task.end_offset is None else task.end_offset
    if last.end_offset > end_offset:
        raise CorruptionError(
            f"{files.where(task.sources[-1].path)} ends at offset {last.end_offset}, its place in the Delta log "
            f"at {end_offset}"
        )
    expired = 0
    with SegmentWriter(
        files,
        task.partition,
        task.base_offset,
        end_offset,
        last.leader_epoch,
        task.codec,
        layout=layout_of(task.topic),
    ) as writer:
        for source, footer in zip(task.sources, footers, strict=True):
            for batch in _records(files, source, kept):
                records = batch.filter(pa.array(batch.column("offset").to_numpy() >= task.log_start))
                lasting = _without_expired(records, task, footer)
                writer.write(lasting)
                expired += records.num_rows - lasting.num_rows
        segment = writer.finish(
            last.leader_epochs,
            last.producers,
            _keys_in_window(task, footers),
            operation=task.operation,
            cleanings=_cleanings(task, footers, end_offset),
            append_time_ms=last.append_time_ms,
            open_transactions=last.open_transactions,
            markers=last.markers,
        )
    return Written(number, expired, segment)


def _records(files: TableFiles, source: Source, kept: _KeptRows | None) -> Batches:
    """The records of a source that are kept, a row group at a time; groups with none are not read."""
    row = source.first_row
    for group in row_groups(files, source.path):
        if kept is None:
            yield read_row_group(files, source.path, group.index)
        else:
            rows = kept.take(row + group.num_rows) - row
            if len(rows):
                yield read_row_group(files, source.path, group.index).take(pa.array(rows))
        row += group.num_rows
    if row - source.first_row != source.num_records:
        raise _other_count(files, source, row - source.first_row)


def _without_expired(batch: pa.RecordBatch, task: WriteTask, footer: SegmentFooter) -> pa.RecordBatch:
    if task.delete_retention_ms is None or not batch.column("value").null_count:
        return batch
    offsets = batch.column("offset").to_numpy()
    # Past the last entry, now is the first time.
    ends = np.array([end for end, _ in footer.cleanings], dtype=np.int64)
    times = np.array([*(time_ms for _, time_ms in footer.cleanings), task.now_ms], dtype=np.int64)
    first_cleaned = times[np.searchsorted(ends, offsets, side="right")]
    tombstones = batch.column("value").is_null().to_numpy(zero_copy_only=False)
    expired = tombstones & (task.now_ms - first_cleaned >= task.delete_retention_ms)
    return batch.filter(pa.array(~expired))


def _keys_in_window(task: WriteTask, footers: Sequence[SegmentFooter]) -> list[RememberedBatch]:
    """A file has the idempotency keys of its own range: those of all sources whose window is open at its end."""
    over_ms = footers[-1].append_time_ms - task.idempotency_window_ms
    return [batch for footer in footers for batch in footer.idempotency_keys if batch.append_time_ms > over_ms]


def _cleanings(task: WriteTask, footers: Sequence[SegmentFooter], end_offset: int) -> Cleanings:
    if task.delete_retention_ms is None:
        return footers[-1].cleanings
    parts = [(footer.cleanings, footer.end_offset) for footer in footers]
    return join_cleanings(parts, task.first_dirty, end_offset, task.now_ms)
