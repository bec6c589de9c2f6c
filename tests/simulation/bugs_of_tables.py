"""Planted bugs of tables, of what changes them (erasures, jobs, other writers), of topics and of reading."""

import dataclasses
from typing import Any

from tests.support.rewritten import rewritten

# ---- erasures -------------------------------------------------------------------------------------------------------


def erase_from_no_journal() -> None:
    """Leave the files of the journal unchanged in an erasure."""
    from logstore.broker import erasing

    async def renewed(*_: Any) -> int:
        return 0

    erasing.renew = renewed


def erase_from_no_old_file() -> None:
    """Keep the files that the commit of an erasure has replaced."""
    from logstore.broker import erasing
    from logstore.log.table_erasure import SweptFiles

    erasing.delete_erased_files = lambda *_, **__: SweptFiles()


def erase_the_first_of_several() -> None:
    """Erase only the first record that is found in a row group, and report that the erasure is done."""
    from logstore.log.erasures import KnownErasure

    mask = KnownErasure.mask

    def first(self: KnownErasure, *args: Any) -> Any:
        found = mask(self, *args)
        found[found.argmax() + 1 :] = False
        return found

    KnownErasure.mask = first  # type: ignore[method-assign]


def erase_neighbours() -> None:
    """Erase also the record after each erased one."""
    from logstore.log.erasures import KnownErasure

    mask = KnownErasure.mask

    def wider(self: KnownErasure, *args: Any) -> Any:
        found = mask(self, *args)
        found[1:] |= found[:-1].copy()
        return found

    KnownErasure.mask = wider  # type: ignore[method-assign]


def forget_erasures_at_a_kill() -> None:
    """Abandon an erasure whose process was killed."""
    from logstore.broker.erasing import Erasing

    write, look = Erasing._write, Erasing._look
    begun: set[tuple[int, str]] = set()

    async def note(self: Erasing, record: Any, *args: Any) -> Any:
        begun.add((id(self), record.id))
        return await write(self, record, *args)

    async def look_at_own(self: Erasing) -> None:
        real = self._erasures.unfinished
        self._erasures.unfinished = lambda: [one for one in real() if (id(self), one.record.id) in begun]  # type: ignore[method-assign]
        try:
            await look(self)
        finally:
            del self._erasures.unfinished

    Erasing._write, Erasing._look = note, look_at_own  # type: ignore[method-assign]


# ---- jobs -----------------------------------------------------------------------------------------------------------


def move_no_log_start() -> None:
    """Remove files in retention without moving the log start."""
    from compaction_jobs import retention

    plan = retention.plan_retention

    def without_start(partition: int, state: Any, *args: Any) -> Any:
        made = plan(partition, state, *args)
        return made and dataclasses.replace(made, log_start=state.log_start, boundary=None)

    retention.plan_retention = without_start


def compact_to_the_first() -> None:
    """Keep the first record of each key instead of the last in compaction."""
    from compaction_jobs import latest_rows

    add = latest_rows._LastRows.add

    def backwards(self: Any, keys: Any, rows: Any) -> None:
        add(self, keys, -rows)

    folded = latest_rows._LastRows.folded

    def forwards(self: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = folded(self)
        return pa.table({"key": found["key"], "row": pc.negate(found["row"])})

    latest_rows._LastRows.add, latest_rows._LastRows.folded = backwards, forwards  # type: ignore[method-assign]


def compact_too_far() -> None:
    """Drop the last kept record of the last source in compaction."""
    from compaction_jobs import local_compaction

    find = local_compaction.find_kept

    def fewer(*args: Any) -> Any:
        found = find(*args)
        found.of_source[-1] = found.of_source[-1][:-1]
        return found

    local_compaction.find_kept = fewer


def merge_loses_a_row() -> None:
    """Leave out the last record of each batch of a merge."""
    from logstore.segments import merge

    records = merge._records

    def shorter(files: Any, source: Any, kept: Any, pace: Any) -> Any:
        for batch in records(files, source, kept, pace):
            yield batch.slice(0, max(1, batch.num_rows - 1)) if kept is None else batch

    merge._records = shorter


# ---- rolls and reading ----------------------------------------------------------------------------------------------


def roll_loses_a_row() -> None:
    """Leave out the first record of each batch of more than three in a roll."""
    from logstore.segments.writer import SegmentWriter

    write = SegmentWriter.write

    def from_the_second(self: Any, batch: Any) -> None:
        write(self, batch.slice(1) if batch.num_rows > 3 else batch)

    SegmentWriter.write = from_the_second  # type: ignore[method-assign]


def read_segments_unchecked() -> None:
    """Read the bytes of a segment whatever their checksum says."""
    from logstore.segments.parquet_file import ParquetFile

    ParquetFile._checked = ParquetFile._unchecked  # type: ignore[method-assign]


def find_the_next_offset_by_time() -> None:
    """Return the offset of the record after the right one for a timestamp."""
    from logstore.log.log_reader import LogReader

    find = LogReader.offset_for_timestamp

    async def after(self: LogReader, *args: Any) -> Any:
        found = await find(self, *args)
        return found and (found[0] + 1, found[1])

    LogReader.offset_for_timestamp = after  # type: ignore[method-assign]


def skip_the_end_of_history() -> None:
    """Skip one record when a reader reaches the end of the table."""
    from logstore.log.log_reader import LogReader

    history_slice = LogReader._history_slice

    async def one_too_far(self: LogReader, topic: Any, log: Any, *args: Any) -> Any:
        found = await history_slice(self, topic, log, *args)
        if found.next_offset == log.sealed_offset and log.high_watermark > log.sealed_offset:
            return dataclasses.replace(found, next_offset=found.next_offset + 1)
        return found

    LogReader._history_slice = one_too_far  # type: ignore[method-assign]


def read_deleted_records() -> None:
    """Return records below the log start as long as their file exists."""
    from logstore.log import log_reader

    log_reader.require_in_range = lambda *_: None


def delete_records_in_memory() -> None:
    """Move the log start in memory, without a commit."""
    from logstore.broker.topics.tables import TopicTables

    async def in_memory(self: Any, context: Any, topic: Any, before_offsets: Any) -> Any:
        found = dict(before_offsets)
        for partition in before_offsets:
            log = topic.partition(partition)
            found[partition] = max(log.log_start_offset, min(before_offsets[partition], log.high_watermark))
        return found

    TopicTables.delete_all_records = in_memory  # type: ignore[method-assign]


# ---- producers and groups -------------------------------------------------------------------------------------------


def give_no_new_epoch() -> None:
    """Return the current epoch to a producer that asks for the next one."""
    from logstore.broker.produce.records import ProducerId, Producing

    init = Producing.init_producer

    async def same(self: Any, context: Any, producer_id: int | None = None, producer_epoch: int = -1) -> Any:
        if producer_id is None:
            return await init(self, context)
        return ProducerId(producer_id, producer_epoch)

    Producing.init_producer = same  # type: ignore[method-assign]


def give_ids_twice() -> None:
    """Give out producer ids from the first one again after each start."""
    from logstore.cluster.embedded_cluster_state import EmbeddedClusterState

    async def from_one(self: Any) -> int:
        self.given = getattr(self, "given", 0) + 1
        self._next_producer_id = 1 << 40
        return int(self.given)

    EmbeddedClusterState.new_producer_id = from_one  # type: ignore[method-assign]


def commit_offsets_unsynced() -> None:
    """Answer a commit of offsets when it is queued."""
    from consumer_offsets.coordinator_shard import CoordinatorShard

    CoordinatorShard._append = rewritten(  # type: ignore[method-assign]
        CoordinatorShard._append,
        ("partition=self._partition, timeout_ms=None", "partition=self._partition, acks=0, timeout_ms=None"),
        ("produced.require_stored()", "pass"),
    )


def refuse_what_is_stored() -> None:
    """Refuse every tenth request although its records are stored."""
    from logstore.broker.produce.records import Producing
    from logstore.errors import ThrottledError

    produce = Producing.produce
    count = iter(range(1, 1 << 40))

    async def refused(self: Any, context: Any, topic: Any, *args: Any, **options: Any) -> Any:
        result = await produce(self, context, topic, *args, **options)
        if not topic.name.startswith("__") and next(count) % 10 == 0:
            raise ThrottledError("later, perhaps")
        return result

    Producing.produce = refused  # type: ignore[method-assign]


# ---- topics ---------------------------------------------------------------------------------------------------------


def alter_in_memory() -> None:
    """Leave a changed configuration out of the table."""
    from logstore.delta.topic_table import TopicTable

    TopicTable.alter_config = lambda self, _: self.snapshot().version  # type: ignore[method-assign]


def delete_the_name_alone() -> None:
    """Keep the directory of a deleted topic, so that the next start finds the topic again."""
    from logstore.table_root import TableRoot

    TableRoot.remove = lambda *_, **__: None  # type: ignore[method-assign, assignment]


def leave_small_files_unsynced() -> None:
    """Replace small files without an fsync of the new content."""
    from logstore.filesystem import FileSystem

    FileSystem.write_atomically = rewritten(FileSystem.write_atomically, ("self.fdatasync(fd)", "pass"))  # type: ignore[method-assign]
