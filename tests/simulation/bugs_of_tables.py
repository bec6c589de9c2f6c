"""Planted bugs of tables, of what works on them (erasures, jobs, other writers), of topics and of reading."""

import dataclasses
from typing import Any

from tests.support.rewritten import rewritten

# ---- erasures -------------------------------------------------------------------------------------------------------


def erase_from_no_journal() -> None:
    """An erasure leaves the files of the journal as they are."""
    from logstore.broker import erasing

    async def renewed(*_: Any) -> int:
        return 0

    erasing.renew = renewed


def erase_from_no_old_file() -> None:
    """An erasure leaves the files that its commit has replaced."""
    from logstore.broker import erasing
    from logstore.log.table_erasure import SweptFiles

    erasing.delete_erased_files = lambda *_, **__: SweptFiles()


def erase_the_first_of_several() -> None:
    """An erasure takes the first record that it finds in a row group, and says that it is done."""
    from logstore.log.erasures import KnownErasure

    mask = KnownErasure.mask

    def first(self: KnownErasure, *args: Any) -> Any:
        found = mask(self, *args)
        found[found.argmax() + 1 :] = False
        return found

    KnownErasure.mask = first  # type: ignore[method-assign]


def erase_neighbours() -> None:
    """An erasure takes the record after each one, too."""
    from logstore.log.erasures import KnownErasure

    mask = KnownErasure.mask

    def wider(self: KnownErasure, *args: Any) -> Any:
        found = mask(self, *args)
        found[1:] |= found[:-1].copy()
        return found

    KnownErasure.mask = wider  # type: ignore[method-assign]


def forget_erasures_at_a_kill() -> None:
    """An erasure that was begun by a process that is gone is continued by nobody."""
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
    """Retention removes files, and the log start stays where it was."""
    from compaction_jobs import retention

    plan = retention.plan_retention

    def without_start(partition: int, state: Any, *args: Any) -> Any:
        made = plan(partition, state, *args)
        return made and dataclasses.replace(made, log_start=state.log_start, boundary=None)

    retention.plan_retention = without_start


def compact_to_the_first() -> None:
    """Compaction keeps the first record of each key instead of the last."""
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
    """Compaction drops a record for another one of its key in the next source only."""
    from compaction_jobs import local_compaction

    find = local_compaction.find_kept

    def fewer(*args: Any) -> Any:
        found = find(*args)
        found.of_source[-1] = found.of_source[-1][:-1]
        return found

    local_compaction.find_kept = fewer


def merge_loses_a_row() -> None:
    """A merge leaves out the last record of its last file."""
    from logstore.segments import joining

    records = joining._records

    def shorter(files: Any, source: Any, kept: Any, pace: Any) -> Any:
        for batch in records(files, source, kept, pace):
            yield batch.slice(0, max(1, batch.num_rows - 1)) if kept is None else batch

    joining._records = shorter


# ---- rolls and reading ----------------------------------------------------------------------------------------------


def roll_loses_a_row() -> None:
    """A roll leaves out the first record of a segment that has several."""
    from logstore.segments.writer import SegmentWriter

    write = SegmentWriter.write

    def from_the_second(self: Any, batch: Any) -> None:
        write(self, batch.slice(1) if batch.num_rows > 3 else batch)

    SegmentWriter.write = from_the_second  # type: ignore[method-assign]


def read_segments_unchecked() -> None:
    """The bytes of a segment are read whatever their checksum says."""
    from logstore.segments.parquet_file import ParquetFile

    ParquetFile._checked = ParquetFile._unchecked  # type: ignore[method-assign]


def find_the_next_offset_by_time() -> None:
    """The offset of a timestamp is that of the record after it."""
    from logstore.log.log_reader import LogReader

    find = LogReader.offset_for_timestamp

    async def after(self: LogReader, *args: Any) -> Any:
        found = await find(self, *args)
        return found and (found[0] + 1, found[1])

    LogReader.offset_for_timestamp = after  # type: ignore[method-assign]


def skip_the_end_of_history() -> None:
    """A reader who comes to the end of the table goes on one record too far."""
    from logstore.log.log_reader import LogReader

    history_slice = LogReader._history_slice

    async def one_too_far(self: LogReader, topic: Any, log: Any, *args: Any) -> Any:
        found = await history_slice(self, topic, log, *args)
        if found.next_offset == log.sealed_offset and log.high_watermark > log.sealed_offset:
            return dataclasses.replace(found, next_offset=found.next_offset + 1)
        return found

    LogReader._history_slice = one_too_far  # type: ignore[method-assign]


def read_deleted_records() -> None:
    """Readers get records below the log start as long as their file is there."""
    from logstore.log import log_reader

    log_reader.require_in_range = lambda *_: None


def delete_records_in_memory() -> None:
    """The log start moves in memory, and no commit says so."""
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
    """A producer that asks for the next epoch of its id gets the one that it has."""
    from logstore.broker.produce.records import ProducerId, Producing

    init = Producing.init_producer

    async def same(self: Any, context: Any, producer_id: int | None = None, producer_epoch: int = -1) -> Any:
        if producer_id is None:
            return await init(self, context)
        return ProducerId(producer_id, producer_epoch)

    Producing.init_producer = same  # type: ignore[method-assign]


def give_ids_twice() -> None:
    """A start begins again with the first producer id."""
    from logstore.cluster.embedded_coordinator import EmbeddedCoordinator

    async def from_one(self: Any) -> int:
        self.given = getattr(self, "given", 0) + 1
        self._next_producer_id = 1 << 40
        return int(self.given)

    EmbeddedCoordinator.new_producer_id = from_one  # type: ignore[method-assign]


def commit_offsets_unsynced() -> None:
    """A commit of offsets is answered when it is queued."""
    from consumer_offsets.coordinator_shard import CoordinatorShard

    CoordinatorShard._append = rewritten(  # type: ignore[method-assign]
        CoordinatorShard._append,
        ("partition=self._partition, timeout_ms=None", "partition=self._partition, acks=0, timeout_ms=None"),
        ("produced.require_stored()", "pass"),
    )


def refuse_what_is_stored() -> None:
    """A record that waits for its replicas is refused as if it had not been stored."""
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
    """A changed configuration is not in the table."""
    from logstore.delta.topic_table import TopicTable

    TopicTable.alter_config = lambda self, _: self.snapshot().version  # type: ignore[method-assign]


def delete_the_name_alone() -> None:
    """A deleted topic is found again at the next start."""
    from logstore.table_root import TableRoot

    TableRoot.remove = lambda *_, **__: None  # type: ignore[method-assign, assignment]


def leave_small_files_unsynced() -> None:
    """Small files are replaced without an fsync of what replaces them."""
    from logstore.filesystem import FileSystem

    FileSystem.write_atomically = rewritten(FileSystem.write_atomically, ("self.fdatasync(fd)", "pass"))  # type: ignore[method-assign]
