"""Writes one segment out of several: for compaction, merge and the boundary of retention, in a job's executors and in
the store itself.

Invariants: the sources are read whole, as the plan saw them, or the work fails; a record keeps its offset, timestamp,
key, value and headers, and what others have put into columns of theirs; the footer has the state at the end of the last
source, as if the range had been rolled at once. It is unknown whose timestamps the records of another writer's file
have, so they count as the producers'. Work that fails or is given up leaves at worst a file that no commit names.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.errors import CorruptionError, storage_error
from logstore.records.batch_identity import RememberedBatch
from logstore.segments.footer import SegmentFooter
from logstore.segments.foreign_names import is_file
from logstore.segments.inherited_state import FOREIGN
from logstore.segments.layout import TableLayout
from logstore.segments.null_counts import null_values
from logstore.segments.offset_ranges import join_ranges
from logstore.segments.reader import column_names, read_footer, read_row_group, row_groups
from logstore.segments.value_sizes import are_incompressible
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import TableFiles, open_table

Batches = Iterator[pa.RecordBatch]
Rows = npt.NDArray[np.int64]

#: Rising (end offset, time in ms): offsets from the previous end up to this one were first compacted at that time.
Cleanings = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Source:
    """An active file. ``first_row`` is the number of its first record among all records of all sources of a job, in
    order.
    """

    partition: int
    path: str
    num_records: int
    first_row: int


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The task to make one segment of [base_offset, end_offset) from neighbouring ``sources``, without the records
    below ``log_start``. ``end_offset`` None means the end of the last source. ``table`` is the ``uri`` of its files.

    Compaction drops tombstones that were first compacted ``delete_retention_ms`` ago or earlier; None drops none. The
    record of these times is continued: offsets below ``first_dirty`` were compacted before; without an entry, at
    ``now_ms`` at the latest. Idempotency keys that are ``idempotency_window_ms`` old by then are left out.

    ``layout`` is that of the table when the work was planned. A file is right with the layout of any version.
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
    layout: TableLayout = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a task. ``segment`` has no record if none was left; ``expired`` counts dropped tombstones."""

    task: int
    expired: int
    segment: Segment


class KeptRows(Protocol):
    """The rows that stay, with numbers as in ``Source.first_row``, taken from the first one on."""

    def take(self, end: int) -> Rows:
        """Return the rows below ``end`` that were not taken before, rising."""


class NoRows:
    """No row stays."""

    def take(self, end: int) -> Rows:  # noqa: ARG002  of the protocol
        return np.empty(0, dtype=np.int64)


def write_empty(number: int, task: WriteTask) -> Written:
    """Write the segment of a task that leaves no record: its range, and the state at its end. It reads only footers,
    and needs no executor. Raises StorageFullError, StorageError, CorruptionError.
    """
    return write_here(number, task, NoRows())


def write_here(
    number: int,
    task: WriteTask,
    kept: KeptRows | None = None,
    pace: Callable[[int], None] = lambda _: None,
    files: TableFiles | None = None,
) -> Written:
    """Call ``write_segment`` in the process that plans. Raises StorageFullError, StorageError, CorruptionError."""
    try:
        return write_segment(number, task, kept, pace, files)
    except OSError as error:
        raise storage_error(f"writing a segment of topic {task.topic!r}", error) from error


def write_segment(
    number: int,
    task: WriteTask,
    kept: KeptRows | None,
    pace: Callable[[int], None] = lambda _: None,
    files: TableFiles | None = None,
) -> Written:
    """Write the segment of a task; ``kept`` None keeps all from the log start on.

    ``pace`` is called for each row group with the bytes that it takes in its file, before it is read. It may wait, or
    raise to give the work up: then there is no file. ``files`` are the table's, where they are open. Raises
    CorruptionError, OSError, and as ``pace``.
    """
    # It must not create a table: one that was deleted meanwhile must not come back.
    files = files or open_table(task.table)
    footers = [read_footer(files, source.path, source.partition) for source in task.sources]
    layout = task.layout.carrying(_columns_of_others(files, task))
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
        layout=layout,
        distinct_keys=task.delete_retention_ms is not None,
        raw_values=are_incompressible(files, [source.path for source in task.sources], task.codec),
    ) as writer:
        for source, footer in zip(task.sources, footers, strict=True):
            copied = _copied(layout, footer)
            for batch in _records(files, source, kept, pace, copied):
                records = _from_log_start(batch, task.log_start)
                lasting = _without_expired(records, task, footer)
                writer.write(layout.with_columns(lasting) if copied or layout.fingerprint else lasting)
                expired += records.num_rows - lasting.num_rows
        segment = writer.finish(
            last.leader_epochs,
            last.producers,
            _keys_in_window(task, footers),
            operation=task.operation,
            cleanings=_cleanings(files, task, footers, end_offset),
            append_time_ms=_last_append_ms(footers),
            open_transactions=last.open_transactions,
            markers=last.markers,
            producers_forgotten_up_to=last.producers_forgotten_up_to,
            log_append_times=join_ranges(times for footer in footers for times in footer.log_append_times),
        )
    return Written(number, expired, segment)


def other_count(files: TableFiles, source: Source, found: int) -> CorruptionError:
    """Return the error of a source with another number of records than its add action says."""
    return CorruptionError(f"{files.where(source.path)} holds {found} records; the Delta log says {source.num_records}")


def _columns_of_others(files: TableFiles, task: WriteTask) -> set[str]:
    """Return the names of all columns of the sources, if others have added columns to the table."""
    if not task.layout.others.names:
        return set()
    return {name for source in task.sources for name in column_names(files, source.path)}


def _copied(layout: TableLayout, footer: SegmentFooter) -> list[pa.Field]:
    """Return the columns that are copied from a source, beside those of the log."""
    is_derived = layout.fingerprint is not None and footer.columns == layout.fingerprint
    return [*(layout.extra if is_derived else ()), *layout.carried]


def _records(
    files: TableFiles, source: Source, kept: KeptRows | None, pace: Callable[[int], None], copied: Sequence[pa.Field]
) -> Batches:
    """Yield the records of a source that are kept, with ``copied`` columns behind them, a row group at a time; groups
    without any are not read.
    """
    row = source.first_row
    for group in row_groups(files, source.path):
        if kept is None:
            pace(group.stored_bytes)
            yield read_row_group(files, source.path, group.index, more=copied)
        else:
            rows = kept.take(row + group.num_rows) - row
            if len(rows):
                pace(group.stored_bytes)
                yield _kept(read_row_group(files, source.path, group.index, more=copied), rows)
        row += group.num_rows
    if row - source.first_row != source.num_records:
        raise other_count(files, source, row - source.first_row)


def _kept(batch: pa.RecordBatch, rows: Rows) -> pa.RecordBatch:
    """Return the rows of a batch by their numbers. For many rows a mask takes a quarter of the time of numbers."""
    if len(rows) == batch.num_rows:
        return batch
    if len(rows) < batch.num_rows // 8:
        return batch.take(pa.array(rows))
    mask = np.zeros(batch.num_rows, dtype=bool)
    mask[rows] = True
    return batch.filter(pa.array(mask))


def _from_log_start(batch: pa.RecordBatch, log_start: int) -> pa.RecordBatch:
    offsets = batch.column("offset").to_numpy()
    if not len(offsets) or offsets[0] >= log_start:
        return batch
    return batch.slice(int(np.searchsorted(offsets, log_start)))


def _without_expired(batch: pa.RecordBatch, task: WriteTask, footer: SegmentFooter) -> pa.RecordBatch:
    if task.delete_retention_ms is None or not batch.column("value").null_count:
        return batch
    return batch.filter(pa.array(~expired_tombstones(batch, footer, task.now_ms, task.delete_retention_ms)))


def expired_tombstones(
    batch: pa.RecordBatch, footer: SegmentFooter, now_ms: int, delete_retention_ms: int
) -> npt.NDArray[np.bool_]:
    """Return which rows of a batch with offsets and values are tombstones that compaction met long enough ago."""
    # After the last entry, now is the first time.
    ends = np.array([end for end, _ in footer.cleanings], dtype=np.int64)
    times = np.array([*(time_ms for _, time_ms in footer.cleanings), now_ms], dtype=np.int64)
    first_cleaned = times[np.searchsorted(ends, batch.column("offset").to_numpy(), side="right")]
    tombstones = batch.column("value").is_null().to_numpy(zero_copy_only=False)
    expired: npt.NDArray[np.bool_] = tombstones & (now_ms - first_cleaned >= delete_retention_ms)
    return expired


def _keys_in_window(task: WriteTask, footers: Sequence[SegmentFooter]) -> list[RememberedBatch]:
    """Return the idempotency keys of the new file's range: those of all sources whose window is open when it is made. A
    start would recall no others.
    """
    over_ms = task.now_ms - task.idempotency_window_ms
    return [batch for footer in footers for batch in footer.idempotency_keys if batch.append_time_ms > over_ms]


def _last_append_ms(footers: Sequence[SegmentFooter]) -> int:
    """Return the last append time of all sources, because the last file may not have it."""
    return max(footer.append_time_ms for footer in footers)


# ---- when tombstones were first compacted ---------------------------------------------------------------------------


def has_unmet_tombstone(files: TableFiles, source: Source) -> bool:
    """Return whether a file below the clean point holds a tombstone that no compaction has met: a RESTORE brought it
    back. Older records of its key may also have come back. They have to go before its time begins to count. Raises
    CorruptionError and OSError.
    """
    footer, groups = read_footer(files, source.path, source.partition), row_groups(files, source.path)
    met_end = _met_end(footer)
    if not groups or groups[-1].last_offset < met_end:
        return False
    nulls = (
        [None] * len(groups)
        if footer.operation == FOREIGN or not is_file(source.path)
        else null_values(files, source.path)
    )
    for group, count in zip(groups, nulls, strict=True):
        if count != 0 and group.last_offset >= met_end:
            batch = read_row_group(files, source.path, group.index, ["offset", "value"])
            unmet = batch.slice(int(np.searchsorted(batch.column("offset").to_numpy(), met_end)))
            if unmet.column("value").null_count:
                return True
    return False


def _met_end(footer: SegmentFooter) -> int:
    return footer.cleanings[-1][0] if footer.cleanings else footer.base_offset


def _cleanings(files: TableFiles, task: WriteTask, footers: Sequence[SegmentFooter], end_offset: int) -> Cleanings:
    if task.delete_retention_ms is None and (len(footers) == 1 or not any(footer.cleanings for footer in footers)):
        return footers[-1].cleanings
    parts = [(footer.cleanings, footer.end_offset) for footer in footers]
    if task.delete_retention_ms is None:
        # Only a compaction meets a tombstone, so the times end before one that no compaction has met.
        for at, (source, footer) in enumerate(zip(task.sources, footers, strict=True)):
            if has_unmet_tombstone(files, source):
                end = _met_end(footer)
                parts = [*parts[:at], *([(footer.cleanings, end)] if footer.cleanings else [])]
                return join_cleanings(parts, task.first_dirty, end, task.now_ms) if parts else ()
    return join_cleanings(parts, task.first_dirty, end_offset, task.now_ms)


def join_cleanings(parts: Iterable[tuple[Cleanings, int]], first_dirty: int, end_offset: int, now_ms: int) -> Cleanings:
    """Return the cleanings of a segment made of several, each with its end offset, in order; it ends at ``end_offset``.

    From ``first_dirty`` on, the first time is now. The same holds for offsets without an entry (after a rewrite that
    kept no times): a tombstone then stays longer, never shorter.
    """
    entries: list[tuple[int, int]] = []
    for cleanings, part_end in parts:
        limit = min(part_end, first_dirty)
        entries += [(min(end, limit), time_ms) for end, time_ms in cleanings]
        entries.append((limit, now_ms))
    joined: list[tuple[int, int]] = []
    for end, time_ms in [*entries, (end_offset, now_ms)]:
        if joined and end <= joined[-1][0]:
            continue
        if joined and joined[-1][1] == time_ms:
            joined.pop()
        joined.append((end, time_ms))
    return tuple(joined)
