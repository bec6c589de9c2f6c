"""The work of the executors: read the keys of segments, and write segments by ``logstore.segments.merge``.

This module is sent to the executors by value; besides, they need only ``logstore``. Invariants: a task reads the whole
files that the driver planned, or fails; an attempt that fails or is abandoned leaves at worst a file that no commit
names.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from compaction_jobs.throttle import Throttle
from logstore.segments.merge import Batches, Rows, Source, WriteTask, Written, other_count, write_segment
from logstore.segments.reader import read_row_group, row_groups
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles, open_table

#: Columns of ``scan_keys``, ``count_by_source`` and ``assign_tasks``, and of both writers.
KEY_COLUMNS = "partition int, row long, key binary"
COUNT_COLUMNS = "source int, records long"
TASK_COLUMNS = "task int, row long"
WRITTEN_COLUMNS = "task int, expired long, segment string"
_WRITTEN_SCHEMA = pa.schema([("task", pa.int32()), ("expired", pa.int64()), ("segment", pa.string())])


# ---- reading keys ---------------------------------------------------------------------------------------------------


def scan_keys(
    table: str, sources: Sequence[Source], log_start: dict[int, int], pace: float | None = None
) -> Callable[[Batches], Batches]:
    """Return a function from indices of sources to KEY_COLUMNS: records with a key, from the log start offset on.

    No task reads and writes more than ``pace`` bytes a second; this also holds for the functions below.
    """

    def scan(batches: Batches) -> Batches:
        files = _open(table, pace)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from _keys_of(files, sources[index], log_start[sources[index].partition])

    return scan


def _open(table: str, pace: float | None) -> TableFiles:
    files = open_table(table)
    return files if pace is None else files.paced(Throttle(pace))


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
        raise other_count(files, source, row - source.first_row)


def count_by_source(first_rows: Rows) -> Callable[[Batches], Batches]:
    """Return a function that counts the rows in each source. ``first_rows`` of the sources are rising."""

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


def tasks_of_sources(sources: Sequence[Source], tasks: Sequence[WriteTask]) -> Rows:
    """Return the number of the task that writes each source; -1 for a file that stays as it is."""
    by_path = {source.path: number for number, task in enumerate(tasks) for source in task.sources}
    return np.array([by_path.get(source.path, -1) for source in sources], dtype=np.int64)


def assign_tasks(first_rows: Rows, tasks: Rows) -> Callable[[Batches], Batches]:
    """Return a function that adds to each row the task that writes it, and drops rows without one.

    ``first_rows`` and ``tasks`` are those of the sources.
    """

    def assign(batches: Batches) -> Batches:
        for batch in batches:
            rows = batch.column("row").to_numpy()
            its = tasks[np.searchsorted(first_rows, rows, side="right") - 1]
            written = its >= 0
            yield pa.RecordBatch.from_arrays(
                [pa.array(its[written].astype(np.int32)), pa.array(rows[written])], names=["task", "row"]
            )

    return assign


# ---- writing segments -----------------------------------------------------------------------------------------------


def write_whole(tasks: Sequence[WriteTask], pace: float | None = None) -> Callable[[Batches], Batches]:
    """Return a function that runs the tasks with the given numbers, with all records from the log start offset on."""

    def write(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield _as_batch(write_segment(task, tasks[task], None, files=_open(tasks[task].table, pace)))

    return write


def write_kept(tasks: Sequence[WriteTask], pace: float | None = None) -> Callable[[Batches], Batches]:
    """Return a function that runs the tasks in TASK_COLUMNS, sorted by row, with the records of those rows."""

    def write(batches: Batches) -> Batches:
        kept = _KeptRows(batches)
        while (task := kept.next_task()) is not None:
            yield _as_batch(write_segment(task, tasks[task], kept, files=_open(tasks[task].table, pace)))

    return write


def written_from_row(task: int, expired: int, segment: str) -> Written:
    """Parse a row of WRITTEN_COLUMNS."""
    return Written(task, expired, msgspec.json.decode(segment, type=Segment))


def _as_batch(written: Written) -> pa.RecordBatch:
    row = {
        "task": [written.task],
        "expired": [written.expired],
        "segment": [msgspec.json.encode(written.segment).decode()],
    }
    return pa.RecordBatch.from_pydict(row, schema=_WRITTEN_SCHEMA)


class _KeptRows:
    """Sorted rows of several tasks, one after the other, taken piece by piece."""

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
        """Return the rows below ``end`` that were not taken before."""
        taken = []
        while self.next_task() is not None:
            count = int(np.searchsorted(self._rows, end))
            taken.append(self._rows[:count])
            self._tasks, self._rows = self._tasks[count:], self._rows[count:]
            if len(self._rows):
                break
        return np.concatenate(taken) if taken else self._rows
