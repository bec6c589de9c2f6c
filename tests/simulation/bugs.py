"""The catalogue of planted bugs: each breaks one rule of the store in this process, and the simulation has to notice
it.

Bugs that the benches of real processes also plant come from there (``tests.faults.bench.mutants``).
"""

import asyncio
import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logstore.kafka_batches.header import BatchHeader
from tests.faults.bench import mutants
from tests.faults.cluster import mutants as cluster_mutants
from tests.simulation import bugs_of_replication as replication
from tests.simulation import bugs_of_tables as tables
from tests.simulation.process_disk import ProcessDisk
from tests.support.faulty_filesystem import kind_of


@dataclass(frozen=True, slots=True)
class Bug:
    """A planted bug. The first world of the run with ``seed``, ``brokers`` and ``kind`` of faults shows it.

    ``seed`` is None if no world has shown it yet.
    """

    plant: Callable[[], None]
    brokers: int
    seed: int | None = None
    kind: str | None = None


# ---- the disk -------------------------------------------------------------------------------------------------------


def ack_before_fsync() -> None:
    """Acknowledge an append when it is written: the journal is never synced."""
    _leave_out("fdatasync", "journal")


def no_journal_directory_sync() -> None:
    """Leave the names of new journal files unsynced."""
    _leave_out("sync_directory", "journal")


def no_segment_sync() -> None:
    """Commit a segment, and free its journal range, before its bytes are on the disk."""
    _leave_out("fdatasync", "segment")
    _leave_out("sync_file", "segment")


def no_segment_directory_sync() -> None:
    """Commit a segment before its name is durable."""
    _leave_out("sync_directory", "segment")


def no_entry_sync() -> None:
    """Count a commit as done when its entry is written to the table's log, before it is durable."""
    _leave_out("fdatasync", "delta")
    _leave_out("sync_file", "delta")
    _leave_out("sync_directory", "delta")


def fsync_again() -> None:
    """Retry a failed fsync, and believe its success."""
    sync = ProcessDisk.fdatasync

    def twice(self: ProcessDisk, fd: int) -> None:
        try:
            sync(self, fd)
        except OSError:
            sync(self, fd)

    ProcessDisk.fdatasync = twice  # type: ignore[method-assign]


def _leave_out(call: str, kind: str) -> None:
    """Make ``call`` do nothing for files of a kind."""
    real = getattr(ProcessDisk, call)

    def of_others(self: ProcessDisk, place: Any, *args: Any) -> None:
        path = Path(self._where(place)) if isinstance(place, int) else place
        if kind_of(path) != kind:
            real(self, place, *args)

    setattr(ProcessDisk, call, of_others)


# ---- the log --------------------------------------------------------------------------------------------------------


def high_watermark_before_durable() -> None:
    """Show records to readers, and answer producers, when the records are queued for the journal."""
    from logstore.log.partition_log import PartitionLog

    track = PartitionLog.track

    def early(self: PartitionLog, frame: Any) -> None:
        track(self, frame)
        self.require_leader().advance(frame.header.end_offset)

    PartitionLog.track = early  # type: ignore[method-assign]


def damaged_frames_count() -> None:
    """Accept a frame of the journal whatever its checksum says."""
    from logstore.journal import scan

    scan.crc32c = lambda *_: 0  # type: ignore[attr-defined]


# ---- the listeners --------------------------------------------------------------------------------------------------


def fetch_session_forgets() -> None:
    """Look at only the first partition of a session in an incremental fetch."""
    from logstore.kafka_listener.fetch_sessions import _IncrementalFetching

    _IncrementalFetching.partitions = property(  # type: ignore[assignment,method-assign]
        lambda self: [(key, cached.asked) for key, cached in self._session.partitions.items()][:1]
    )


def produce_tells_the_last_offset() -> None:
    """Return the last offset of a batch as its base offset in the response to Produce."""
    from logstore.broker.produce.batches import BatchProducing

    produce = BatchProducing.produce

    async def produce_batches(self: BatchProducing, context: Any, requests: Any, **options: Any) -> Any:
        counts = [[BatchHeader.read(memoryview(data)).record_count for _, data in one.batches] for one in requests]
        produced = await produce(self, context, requests, **options)
        for of_topic, of_one in zip(produced.outcomes, counts, strict=True):
            for at, (outcome, count) in enumerate(zip(of_topic, of_one, strict=True)):
                if outcome.error is None:
                    of_topic[at] = outcome._replace(base_offset=outcome.base_offset + count - 1)
        return produced

    BatchProducing.produce = produce_batches  # type: ignore[method-assign]


def open_outcome_is_a_refusal() -> None:
    """Answer a Produce whose records may be stored with an error that says they are not."""
    from logstore import errors
    from logstore.kafka_listener import produce

    number_of = produce._number_of
    is_open = (errors.RequestTimedOutError, errors.NotEnoughReplicasAfterAppendError, errors.StorageError)

    def number(error: errors.LogStoreError) -> int:
        return errors.NotEnoughReplicasError.kafka_code if isinstance(error, is_open) else number_of(error)

    produce._number_of = number


def commit_answered_early() -> None:
    """Answer OffsetCommit at once, and commit a little later."""
    from logstore.kafka_listener import dispatch
    from logstore.kafka_protocol.messages import OffsetCommitResponse as Response

    commit, committing = dispatch.HANDLERS[8], []

    async def later(*request: Any) -> None:
        await asyncio.sleep(0.1)
        await commit(*request)

    async def answer(store: Any, context: Any, request: Any, version: int) -> Any:
        committing.append(asyncio.ensure_future(later(store, context, request, version)))
        partition = Response.OffsetCommitResponsePartition
        topics = [
            Response.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[partition(partition_index=one.partition_index) for one in topic.partitions],
            )
            for topic in request.topics
        ]
        return Response(topics=topics)

    dispatch.HANDLERS[8] = answer  # type: ignore[index]


def sessions_of_members_never_end() -> None:
    """Keep a silent member of a consumer group in its group, with its partitions."""
    from consumer_offsets.groups.consumer_group import ConsumerGroup

    ConsumerGroup._arm_session = lambda *_: None  # type: ignore[method-assign]


def partitions_are_given_at_once() -> None:
    """Give a member of a consumer group its partitions before their former owners have revoked them."""
    from consumer_offsets.groups.consumer_group import ConsumerGroup

    heartbeat = ConsumerGroup._heartbeat

    def with_target(self: ConsumerGroup, event: Any, now_ms: int) -> Any:
        told = heartbeat(self, event, now_ms)
        return replace(told, assignment=self._by_topic(self._targets.get(told.member_id, frozenset())))

    ConsumerGroup._heartbeat = with_target  # type: ignore[method-assign]


def half_a_frame_counts() -> None:
    """Treat a frame that a closed connection cut short as complete."""
    from logstore.kafka_listener.connection import Connection

    def eof_received(self: Connection) -> bool:
        reader = self._reader
        arrived = reader._end - reader._start
        if reader._long is None and arrived >= 4:
            (size,) = struct.unpack_from(">i", reader._shared, reader._start)
            missing = max(0, size + 4 - arrived)
            buffer = reader.buffer()
            if missing <= len(buffer):
                buffer[:missing] = bytes(missing)
                self.buffer_updated(missing)
        return False

    Connection.eof_received = eof_received  # type: ignore[method-assign]


def read_on_at_the_end() -> None:
    """Make a reader over HTTP continue at the high watermark, although the response has fewer records."""
    from ingest_api.routers import records

    respond = records.RecordsResponse

    def response(*body: Any, headers: Any, **options: Any) -> Any:
        end = {"Logstore-Next-Offset": headers["Logstore-High-Watermark"]}
        return respond(*body, headers={**headers, **end}, **options)

    records.RecordsResponse = response  # type: ignore[assignment,misc]


#: Bugs with the seed whose first world shows them, and the only kind of faults in it.
_ON_ONE_NODE: dict[Callable[[], None], tuple[int, str | None]] = {
    ack_before_fsync: (1, None),
    no_journal_directory_sync: (1, None),
    no_segment_sync: (1, None),
    no_segment_directory_sync: (1, None),
    no_entry_sync: (1, None),
    fsync_again: (1, "journal_error"),
    high_watermark_before_durable: (1, None),
    damaged_frames_count: (1, None),
    mutants.free_journal_before_commit: (1, None),
    mutants.reuse_offsets_after_restart: (1, None),
    mutants.forget_sequences: (1, None),
    mutants.append_time_goes_back: (1, None),
    mutants.forget_commits_at_start: (1, None),
    mutants.forget_offsets_at_start: (1, None),
    tables.erase_from_no_journal: (1, None),
    tables.erase_from_no_old_file: (1, None),
    tables.erase_the_first_of_several: (1, None),
    tables.erase_neighbours: (1, None),
    tables.compact_to_the_first: (2, None),
    tables.roll_loses_a_row: (1, None),
    tables.find_the_next_offset_by_time: (1, None),
    tables.skip_the_end_of_history: (1, None),
    tables.delete_records_in_memory: (1, None),
    tables.refuse_what_is_stored: (1, None),
    tables.alter_in_memory: (1, None),
    tables.delete_the_name_alone: (1, None),
    tables.leave_small_files_unsynced: (1, None),
    fetch_session_forgets: (1, None),
    produce_tells_the_last_offset: (1, None),
    commit_answered_early: (1, None),
    sessions_of_members_never_end: (1, None),
    partitions_are_given_at_once: (1, None),
    half_a_frame_counts: (1, None),
    read_on_at_the_end: (2, None),
    mutants.pass_over_missing_records: (1, None),
    mutants.commit_deleted_segments_again: (2, None),
    mutants.serve_own_files_after_a_statement: (2, None),
    tables.forget_erasures_at_a_kill: (1, None),
    tables.compact_too_far: (1, None),
    tables.merge_loses_a_row: (1, None),
    tables.give_ids_twice: (1, None),
}
_IN_A_CLUSTER: dict[Callable[[], None], tuple[int, str | None]] = {
    cluster_mutants.count_the_leader_alone: (1, None),
    cluster_mutants.join_wherever_it_is: (1, None),
    cluster_mutants.tell_the_end_at_once: (2, None),
    cluster_mutants.lead_without_producers: (1, None),
    cluster_mutants.append_times_of_its_own: (2, None),
    replication.snapshots_know_no_producers: (1, None),
    open_outcome_is_a_refusal: (2, None),
    cluster_mutants.elect_without_an_epoch: (1, None),
    cluster_mutants.roll_all_there_is: (2, None),
    cluster_mutants.count_producers_alone: (1, "zookeeper_down"),
    cluster_mutants.stay_in_the_isr: (1, "lose_disk"),
    cluster_mutants.trust_what_stands_beside: (1, "lose_journal"),
    replication.fetches_of_other_epochs_count: (1, "cut_off_and_kill"),
    replication.count_truncated_batches: (1, None),
}
#: Bugs that no world has shown yet, with the number of brokers. Other tests show them (docs/fault-tests.md).
_UNNOTICED = {
    mutants.skip_seal_check: 1,
    tables.move_no_log_start: 1,
    tables.read_segments_unchecked: 1,
    tables.read_deleted_records: 1,
    tables.give_no_new_epoch: 1,
    tables.commit_offsets_unsynced: 1,
    cluster_mutants.compare_no_positions: 3,
    cluster_mutants.bring_back_what_was_truncated: 3,
    cluster_mutants.acknowledge_with_too_few: 3,
    cluster_mutants.hold_the_lease_for_ever: 3,
    replication.only_the_former_isr_counts: 3,
    replication.only_the_proposed_isr_counts: 3,
    replication.a_former_leader_moves_the_high_watermark: 3,
    replication.join_below_the_start_of_the_epoch: 3,
    replication.write_over_any_state: 3,
    replication.compare_no_epochs: 3,
    replication.truncate_to_the_high_watermark: 3,
    replication.take_stale_answers: 3,
    replication.adopt_no_last_roll: 3,
    replication.join_for_what_it_was: 3,
    replication.append_with_too_few: 3,
    replication.know_no_producers_at_the_table: 3,
    replication.remember_truncated_epochs: 3,
}
#: The bugs by name.
BUGS: dict[str, Bug] = {
    plant.__name__: Bug(plant, brokers, seed, kind)
    for brokers, bugs in ((1, _ON_ONE_NODE), (3, _IN_A_CLUSTER))
    for plant, (seed, kind) in bugs.items()
} | {plant.__name__: Bug(plant, brokers) for plant, brokers in _UNNOTICED.items()}


@functools.cache
def plant(name: str) -> None:
    """Break this process for good, once. Raises KeyError for an unknown bug."""
    BUGS[name].plant()
