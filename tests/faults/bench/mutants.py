"""Servers that are broken on purpose: each function, by its name in ``LOGSTORE_MUTANT``, breaks the process it runs in.

Invariant: each breaks one rule and nothing else. A checker that is silent about one of these would also be silent about
a real defect. ``EXPOSED_BY`` has the faults of a run that expose it.
"""

import asyncio
import contextlib
import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from logstore.table_files import open_table
from tests.faults.bench.schedule import HOUR_MS, Fault

_LATE_S, _LATE_MAX_S = 5.0, 12.0
_WITHHELD_S, _WITHHELD_MAX_S = 15.0, 120.0
#: The delay is longer than a run.
_RECORD_LATE_S = 600.0
#: The number of groups of appends that become durable, then of answers with records that are not, before the power cut.
_SYNCED, _SHOWN = 12, 4

#: The fault waits until there are acknowledged, read and committed records to lose.
_UNDER_LOAD: Final = {"after": ("journal.synced", 30)}
STRICT_POWER_CUT: Final = Fault("power_cut", 0, 0, {"seed": 1, "strict": True, **_UNDER_LOAD})
#: Readers have the answers a second later.
POWER_CUT_WHEN_SHOWN: Final = Fault(
    "power_cut", 0, 0, {"seed": 1, "strict": True, "after": ("mutant.shown", _SHOWN), "and_then": 1.0}
)
#: Journal files were freed, so their records are in Delta alone.
STRICT_POWER_CUT_OF_HISTORY: Final = Fault(
    "power_cut", 0, 0, {"seed": 1, "strict": True, "after": ("journal.file_freed", 2)}
)
KILL: Final = Fault("kill", 0, 0, _UNDER_LOAD)
#: The process dies when the journal has freed a file.
KILL_WHEN_FREED: Final = Fault("kill_at", 0, 0, {"point": "journal.file_freed"})
#: Records that have just become durable are not acknowledged yet.
KILL_WHEN_SYNCED: Final = Fault("kill_at", 0.5, 0, {"point": "journal.synced"})
#: Written records wait for their fsync, and then are lost.
POWER_CUT_BEFORE_THE_SYNC: Final = Fault("slow_fsync", 4, 0, {"seconds": 3.0, **_UNDER_LOAD}, inside=STRICT_POWER_CUT)
#: Acknowledgements come later than producers wait for them, so requests are repeated.
SLOWER_THAN_A_REQUEST: Final = Fault("slow_fsync", 10, 0, {"seconds": 6.0, **_UNDER_LOAD})
CLOCK_SET_BACK: Final = Fault("clock", 0.5, 0, {"offset_ms": -HOUR_MS, "for": (("journal.synced", 30),), **_UNDER_LOAD})
OVERWRITE: Final = Fault("overwrite_quietly", 0, 0)
POWER_CUT_AFTER_DELETE: Final = Fault("power_cut_after_delete", 0, 0, {"seed": 1, "strict": True})
FSYNC_ERROR: Final = Fault("fsync_error", 0.2, 0, {"nth": 3, "restart": "power_cut", "strict": True, **_UNDER_LOAD})

_AT: Final = {"which": 0, "partition": 0}
COPY: Final = Fault("copy", 0.2, 0, {**_AT, "how": "copy", "name": "{}.bak", **_UNDER_LOAD})
RECREATE: Final = Fault("recreate", 0.2, 0, {"restart": None})
TWO_STORES: Final = Fault(
    "lock", 0.2, 0, {"locks": "both", "stop_at": None, "end": "kill", "then": "kill", **_UNDER_LOAD}
)
JOURNAL_LOST: Final = Fault("journal", 0.2, 0, {"how": "lost", "end": "kill", "then": "put back", **_UNDER_LOAD})
RESTORE: Final = Fault("restore", 0.3, 0, {**_AT, "how": "restore", "back": 1, "restart": None})
STRANGE_PROPERTY: Final = Fault("strange", 0.2, 0, {**_AT, "what": "abc", "restart": "kill", **_UNDER_LOAD})
#: This leaves time for a stream to begin, and for more small files than the store leaves alone.
STREAM_KILL: Final = Fault("stream_kill", 0, 25, {"and_then": 0})
MEMBER_ADD: Final = Fault("member_add", 0, 1, {"which": 0.9})
MEMBER_RESTART: Final = Fault("member_restart", 0, 1, {"which": 0.9})
MEMBER_FENCE: Final = Fault("member_fence", 0, 1, {"which": 0})
KILL_WHEN_SETTLED: Final = Fault("kill_when_settled", 0, 0, {"which": 0})
_OF_A_FILE: Final = {**_AT, "file": 0, "every": 1, "undone": False, "restart": None}
DELETE: Final = Fault("statement", 0.2, 0, {**_OF_A_FILE, "how": "delete", **_UNDER_LOAD})
UPDATE: Final = Fault("statement", 0.2, 0, {**_OF_A_FILE, "how": "update", **_UNDER_LOAD})
FOREIGN_ROW: Final = Fault("strange", 0.2, 0, {**_AT, "what": -1, "restart": None})


@dataclass(frozen=True, slots=True)
class Exposure:
    """The faults that expose a mutant, a pattern for the beginning of an anomaly, and further conditions.

    ``readers``: how many are needed or in the way; ``rolled``: true if the load reaches Delta meanwhile; ``observed``:
    true if a Delta reader has to look at every version; ``streamed``: true if streaming queries of Spark are needed;
    ``kafka``: true if clients with Kafka's protocol are needed; ``stuck``: a log may serve nothing any more, which
    exposes the mutant; ``sent_again``: true if producers may bring back lost records; ``grouped``: true if members of
    groups are needed.
    """

    faults: tuple[Fault, ...]
    told: str
    readers: int = 1
    rolled: bool = True
    observed: bool = False
    streamed: bool = False
    stuck: bool = False
    sent_again: bool = True
    grouped: bool = False
    kafka: bool = False


# ---- durability -----------------------------------------------------------------------------------------------------


def ack_before_fsync() -> None:
    """Acknowledge an append when it is written; its fsync comes later."""
    _defer_syncs()


def hw_is_leo() -> None:
    """Acknowledge correctly, but show readers records that are written and not yet durable.

    After some groups of appends nothing becomes durable until seconds after readers were shown some of it.
    """
    from logstore.broker.context import INTERNAL
    from logstore.broker.fetch.fetching import Fetching
    from logstore.broker.produce.records import Producing

    filesystem = _filesystem()
    syncs = _defer_syncs(0.5, withhold=lambda: filesystem.hits["journal.synced"] >= _SYNCED)
    produce, fetch = Producing.produce, Fetching._fetch
    #: By topic and partition, the lowest offset that was appended while nothing became durable.
    early: dict[tuple[str, int], int] = {}

    async def produce_and_wait(self: Producing, context: Any, topic: Any, *args: Any, **kwargs: Any) -> Any:
        result = await produce(self, context, topic, *args, **kwargs)
        if syncs.withheld:
            for response in result.partitions:
                if response.error is None:
                    early.setdefault((topic.name, response.partition), response.base_offset)
        wanted = syncs.begun
        # Commits of offsets do not wait, because readers would be blocked.
        while syncs.done < wanted and context is not INTERNAL:  # noqa: ASYNC110 - a thread counts them
            await asyncio.sleep(0.01)
        return result

    async def fetch_and_count(self: Fetching, context: Any, partitions: Any, *args: Any) -> Any:
        fetched = await fetch(self, context, partitions, *args)
        for at, answer in fetched.answers.items():
            first = early.get(partitions[at][:2])
            if first is not None and getattr(answer, "count", 0) and answer.next_offset > first:
                filesystem.hits["mutant.shown"] += 1
                if filesystem.hits["mutant.shown"] >= _SHOWN:
                    syncs.shown()
        return fetched

    Producing.produce = produce_and_wait  # type: ignore[method-assign]
    Fetching._fetch = fetch_and_count  # type: ignore[method-assign]


def fsync_again() -> None:
    """Try a failed fsync again, and believe it."""
    filesystem = _filesystem()
    sync = filesystem.fdatasync

    def twice(fd: int) -> None:
        try:
            sync(fd)
        except OSError:
            sync(fd)

    filesystem.fdatasync = twice


def no_directory_sync() -> None:
    """Leave the names of new journal files without a sync, so that they never become durable."""
    filesystem = _filesystem()
    sync = filesystem.sync_directory
    filesystem.sync_directory = lambda path, fd=None: None if _is_journal(path) else sync(path, fd)


def no_segment_sync() -> None:
    """Commit a segment, and free its journal range, without its bytes on the disk."""
    filesystem = _filesystem()
    sync, sync_file = filesystem.fdatasync, filesystem.sync_file

    def of_others(fd: int) -> None:
        if not _is_segment(_path_of(fd)):
            sync(fd)

    def file_of_others(path: Path) -> None:
        if not _is_segment(path):
            sync_file(path)

    filesystem.fdatasync, filesystem.sync_file = of_others, file_of_others


def no_entry_sync() -> None:
    """Answer a delete-records when its entry is in the table's log; only the next commit makes that durable."""
    from logstore.delta.committer import Committer

    class Careless:
        """The files of a table; entries are written without an fsync."""

        def __init__(self, files: Any) -> None:
            self._files = files

        def __getattr__(self, name: str) -> Any:
            return getattr(self._files, name)

        def put_if_absent(self, name: str, entry: bytes) -> bool:
            with contextlib.suppress(FileExistsError), Path(self._files._place(name)).open("xb") as file:
                return file.write(entry) > 0
            return False

    put, sync = Committer._put, Committer.sync

    def note(self: Any, snapshot: Any, plan: Any, commit_id: str) -> None:
        self.careless = snapshot.version + 1 if plan.operation == "advance-log-start" else None
        files = self._files
        if self.careless:
            self._files = Careless(files)
        try:
            put(self, snapshot, plan, commit_id)
        finally:
            self._files = files

    def skip(self: Any, version: int) -> None:
        if version != getattr(self, "careless", None):
            sync(self, version)

    Committer._put, Committer.sync = note, skip  # type: ignore[method-assign]


def free_journal_before_commit() -> None:
    """Free a range of the journal when its roll begins."""
    from logstore.log import roller

    write_new = roller.Roller._write_new

    async def freed_first(self: Any, topic: Any, partitions: Any) -> Any:
        spans = [
            roller._plan(p, topic.config.segment_bytes) for p in partitions if p.sealed_offset < p.last_stable_offset
        ]
        locations = [frame.location for span in spans for piece in span.pieces for frame in piece.frames]
        kept = dict(zip(locations, self._journal.read_many(locations), strict=True))
        for span in spans:
            self._journal.release(topic.topic_id, span.partition, span.end_offset)
        await asyncio.sleep(0.3)
        reader = SimpleNamespace(read_many=lambda wanted: [kept[location] for location in wanted])
        blind = copy.copy(self)
        blind._journal = reader
        return await write_new(blind, topic, partitions)

    roller.Roller._write_new = freed_first  # type: ignore[method-assign]


# ---- the log --------------------------------------------------------------------------------------------------------


def reuse_offsets_after_restart() -> None:
    """Start from the end that is in Delta, whatever the journal holds beyond."""
    from logstore.log.partition_log import PartitionLog

    def forget_the_tail(self: PartitionLog) -> None:
        self.index.finish_recovery(self.sealed_offset)
        self.index.drop_below(max(self.sealed_offset, self.index.end_offset or 0))
        self.next_offset = self._high_watermark.offset = self.log_end_offset = self.sealed_offset

    PartitionLog.finish_recovery = forget_the_tail  # type: ignore[method-assign]


def forget_sequences() -> None:
    """Store a batch of an idempotent producer whatever its sequence number is."""
    from logstore.log.producer_state import ProducerStates

    ProducerStates.check = lambda *_: None  # type: ignore[assignment, method-assign]


def append_time_goes_back() -> None:
    """Take LogAppendTime from the wall clock, even after a step back."""
    from logstore.log.partition_frames import PartitionFrames

    PartitionFrames.next_append_time_ms = lambda self: self._clock.now_ms()  # type: ignore[method-assign]


def forget_commits_at_start() -> None:
    """Keep committed offsets in memory only."""
    from consumer_offsets.groups_machine import GroupsMachine

    def nothing(self: GroupsMachine, *_: Any) -> None:
        pass

    GroupsMachine.replay = nothing  # type: ignore[method-assign]


# ---- Kafka's protocol ------------------------------------------------------------------------------------------------


def acknowledge_batches_unsynced() -> None:
    """Answer Kafka's clients for acks=1 and acks=all as for acks=0: when their batches are queued."""
    from logstore.broker.produce.batches import BatchProducing

    produce_batches = BatchProducing.produce

    def at_once(self: BatchProducing, context: Any, requests: Any, *, acks: int = -1, **others: Any) -> Any:
        return produce_batches(self, context, requests, acks=0, **others)

    BatchProducing.produce = at_once  # type: ignore[method-assign]


def store_repeated_batches() -> None:
    """Ignore the producer id and the sequence number of a record batch."""
    from logstore.broker.produce import batches as batch_producing
    from logstore.records.batch_identity import NO_IDENTITY

    batch_producing.BatchIdentity = lambda *_: NO_IDENTITY  # type: ignore[assignment,misc,attr-defined]


def serve_batches_without_their_place() -> None:
    """Serve a record batch with the base offset that its producer wrote."""
    from logstore.kafka_batches.header import BatchHeader, bytes_of
    from logstore.log import kafka_records

    placed = kafka_records.placed

    def as_produced(batch: Any, _: int, leader_epoch: int) -> Any:
        return placed(batch, BatchHeader.read(bytes_of(batch)).base_offset, leader_epoch)

    kafka_records.placed = as_produced  # type: ignore[attr-defined]


# ---- groups ---------------------------------------------------------------------------------------------------------


def accept_commits_of_former_members() -> None:
    """Accept a commit from any sender, of any generation."""
    from consumer_offsets.groups.classic_group import ClassicGroup
    from consumer_offsets.groups.consumer_group import ConsumerGroup

    ClassicGroup.check_commit = lambda *_: None  # type: ignore[assignment, method-assign]
    ConsumerGroup.check_commit = lambda *_: None  # type: ignore[assignment, method-assign]


def assign_before_revocation() -> None:
    """Give a partition to its next member when it is taken from the one before, which still has it."""
    from consumer_offsets.groups import consumer_group

    reconcile = consumer_group.reconcile

    def at_once(member: Any, target: Any, epoch: int, owners: Any, _: Any) -> Any:
        return reconcile(member, target, epoch, owners, frozenset())

    consumer_group.reconcile = at_once


def answer_before_the_group_is_recorded() -> None:
    """Answer members at once, and append the group's record much later."""
    from consumer_offsets.coordinator_shard import CoordinatorShard
    from consumer_offsets.effects import AppendRecord
    from consumer_offsets.groups.group_record import GroupRecord

    perform = CoordinatorShard._perform

    def answered_first(self: Any, effects: Any) -> None:
        made = list(effects)
        late = [e for e in made if isinstance(e, AppendRecord) and isinstance(e.record, GroupRecord)]
        perform(self, [effect for effect in made if effect not in late])
        if late:
            asyncio.get_running_loop().call_later(_RECORD_LATE_S, perform, self, late)

    CoordinatorShard._perform = answered_first  # type: ignore[method-assign]


def forget_offsets_at_start() -> None:
    """Restart with the members of the groups, but without their committed offsets."""
    from consumer_offsets.committed_offsets import CommittedOffsets
    from consumer_offsets.groups_machine import GroupsMachine

    machine_replay, replay = GroupsMachine.replay, CommittedOffsets.replay

    def only_groups(self: GroupsMachine, *args: Any) -> None:
        CommittedOffsets.replay = lambda *_: None  # type: ignore[assignment, method-assign]
        try:
            machine_replay(self, *args)
        finally:
            CommittedOffsets.replay = replay  # type: ignore[method-assign]

    GroupsMachine.replay = only_groups  # type: ignore[method-assign]


def keep_silent_members() -> None:
    """Keep the session of a member for ever."""
    from consumer_offsets.groups.classic_group import ClassicGroup
    from consumer_offsets.groups.consumer_group import ConsumerGroup

    ClassicGroup._on_session_timer = lambda *_: None  # type: ignore[assignment, method-assign]
    ConsumerGroup.on_timer = lambda *_: None  # type: ignore[assignment, method-assign]


# ---- the table ------------------------------------------------------------------------------------------------------


def skip_seal_check() -> None:
    """Commit a roll whatever the table is sealed up to."""
    from logstore.delta import topic_table
    from logstore.errors import CommitRefusedError

    is_rolled = topic_table.is_rolled

    def unchecked(*args: Any) -> bool:
        try:
            return is_rolled(*args)
        except CommitRefusedError:
            return False

    topic_table.is_rolled = unchecked


def merge_changes_data() -> None:
    """Commit a merge as if the records of its files were new."""
    from logstore.delta.committer import Committer
    from logstore.log.merge import MERGE

    commit = Committer.commit

    def changing(self: Committer, plan: Callable[[Any], Any]) -> Any:
        def changed(snapshot: Any) -> Any:
            made = plan(snapshot)
            return replace(made, data_change=True) if made is not None and made.operation == MERGE else made

        return commit(self, changed)

    Committer.commit = changing  # type: ignore[method-assign]


# ---- others ---------------------------------------------------------------------------------------------------------


def take_a_copy_for_the_topic() -> None:
    """Take a directory as the topic of its name, whatever its table says."""
    from logstore.broker.topics import catalog as topic_catalog
    from logstore.delta.topic_table import TopicTable

    topic_catalog.TopicCatalog._open = lambda self, name: TopicTable.recover(open_table(self._root.open(name)))  # type: ignore[method-assign]
    topic_catalog._same_id = lambda _: {}


def take_one_topic_for_another() -> None:
    """Serve every request from the topic with that name, whatever topic id the request has."""
    import consumer_offsets.group_coordinator
    import ingest_api.routers.fetch
    import ingest_api.routers.produce
    import ingest_api.topic_ids

    modules: tuple[Any, ...] = (
        consumer_offsets.group_coordinator,
        ingest_api.routers.fetch,
        ingest_api.routers.produce,
        ingest_api.topic_ids,
    )
    for module in modules:
        module.require_topic_id = lambda *_: None


def ignore_lost_locks() -> None:
    """Take the locks at the start and never look at them again."""
    from logstore.lock_file import LockFile

    LockFile.held = True  # type: ignore[assignment, method-assign]


def trust_what_stands_beside() -> None:
    """Accept any journal as the expected one, whatever the file beside it says (C12 in a cluster)."""
    from logstore.journal.identity import ExpectedJournal

    ExpectedJournal.difference = lambda *_: None  # type: ignore[method-assign]


def pass_over_missing_records() -> None:
    """Treat a range that is missing in the table as a gap of compaction, and do not commit its files again."""
    from logstore.log import table_follower
    from logstore.log.partition_log import PartitionLog

    table_follower.dropped_segments = lambda *_: []  # type: ignore[assignment]
    PartitionLog.readable_end = lambda self, _: self.last_stable_offset  # type: ignore[method-assign]


def start_whole_or_not_at_all() -> None:
    """Serve no topic while one topic cannot be served."""
    from logstore.broker.topics.catalog import TopicCatalog

    load = TopicCatalog.load

    def strict(self: TopicCatalog) -> Any:
        tables, quarantined = load(self)
        for error in quarantined.values():
            raise error
        return tables, quarantined

    TopicCatalog.load = strict  # type: ignore[method-assign]


def serve_foreign_rows() -> None:
    """Treat every file in the table as the store's own."""
    from logstore.delta.snapshot import TopicSnapshot

    TopicSnapshot.check = lambda *_: None  # type: ignore[method-assign]


def commit_deleted_segments_again() -> None:
    """Treat whatever a statement of another writer removes from the table as dropped by mistake."""
    from logstore.delta import file_history

    file_history._MEANT = frozenset()  # type: ignore[misc]
    file_history._has_predicate = lambda _: False


def serve_own_files_after_a_statement() -> None:
    """Serve the segments from before another writer's change of records, until a start."""
    from logstore.log.log_segments import LogSegments

    follow = LogSegments.follow

    def keep(self: LogSegments, files: Any, refused: Any = ()) -> None:
        if any(file.foreign for file in files) and self.files:
            end = self.files[-1].end_offset
            files = (*self.files, *(file for file in files if file.base_offset >= end))
        follow(self, files, refused)

    LogSegments.follow = keep  # type: ignore[method-assign]


_LOST: Final = "(A1 acknowledged record is (lost|replaced)|B1 two acknowledged records at an offset)"
EXPOSED_BY: Final[Mapping[Callable[[], None], Exposure]] = {
    ack_before_fsync: Exposure((STRICT_POWER_CUT,), _LOST, rolled=False),
    # The record that was read is gone, another one has its place, or its offset is above the end.
    hw_is_leo: Exposure(
        (POWER_CUT_WHEN_SHOWN,),
        "(D1 read record is lost|A4 two readers, two records|B4 high watermark fell)",
        readers=3,
        rolled=False,
        stuck=True,
        sent_again=False,
    ),
    no_directory_sync: Exposure((STRICT_POWER_CUT,), _LOST, rolled=False),
    fsync_again: Exposure((FSYNC_ERROR,), "a failed fsync of the journal did not make the store refuse"),
    # A damaged segment of the group offsets prevents the start; one of a topic fails its readers.
    no_segment_sync: Exposure(
        (STRICT_POWER_CUT_OF_HISTORY,),
        "the run broke off: .*(parquet is damaged|takes or gives nothing)",
        stuck=True,
    ),
    no_entry_sync: Exposure((POWER_CUT_AFTER_DELETE,), "B4 log start fell", rolled=False),
    # Commits of offsets also hold the journal, and roll only every few seconds.
    free_journal_before_commit: Exposure(
        (KILL_WHEN_FREED,),
        # The partition lacks records, and is refused from the next start on.
        f"{_LOST}|J2 no progress after healing",
        readers=0,
        stuck=True,
    ),
    reuse_offsets_after_restart: Exposure((KILL,), _LOST, rolled=False),
    forget_sequences: Exposure((KILL_WHEN_SYNCED,) * 3, "A2 record is stored twice", rolled=False),
    forget_commits_at_start: Exposure((KILL,) * 2, "G3 commit is lost"),
    acknowledge_batches_unsynced: Exposure((POWER_CUT_BEFORE_THE_SYNC,), _LOST, rolled=False, kafka=True),
    store_repeated_batches: Exposure((SLOWER_THAN_A_REQUEST,), "A2 record is stored twice", rolled=False, kafka=True),
    serve_batches_without_their_place: Exposure(
        (KILL,), "(A4 two readers|C2 rows out of order)", rolled=False, kafka=True
    ),
    accept_commits_of_former_members: Exposure(
        (MEMBER_FENCE,), "G2 commit of a former owner is accepted", grouped=True
    ),
    assign_before_revocation: Exposure(
        (MEMBER_ADD, MEMBER_RESTART) * 2, "(G1 partition has two owners|G2 commit of a former owner)", grouped=True
    ),
    answer_before_the_group_is_recorded: Exposure(
        (KILL_WHEN_SETTLED,), "G2 (generation fell|more than one rebalance)", grouped=True
    ),
    forget_offsets_at_start: Exposure(
        (KILL, MEMBER_ADD), "G3 (commit is lost|owner begins before the committed offset)", grouped=True
    ),
    keep_silent_members: Exposure((MEMBER_FENCE,), "G7 .* stands still, and its partitions", stuck=True, grouped=True),
    append_time_goes_back: Exposure((CLOCK_SET_BACK,), "B5 append time went back"),
    # Sometimes the store looks at its table between the overwriting and the next roll.
    skip_seal_check: Exposure((OVERWRITE,) * 3, "D2 rows are missing", observed=True),
    merge_changes_data: Exposure((STREAM_KILL,), "D4 table cannot be streamed", streamed=True),
    take_a_copy_for_the_topic: Exposure((COPY,), f"{_LOST}|the run broke off: .*takes or gives nothing", stuck=True),
    take_one_topic_for_another: Exposure((RECREATE,), "made.again.*(where a new topic has|OutOfOrder)", rolled=False),
    ignore_lost_locks: Exposure(
        (TWO_STORES,), f"{_LOST}|a store that lost its lock|the run broke off: .*is corrupt", rolled=False, stuck=True
    ),
    trust_what_stands_beside: Exposure((JOURNAL_LOST,), "a store has started on a journal that is not the one"),
    pass_over_missing_records: Exposure(
        (RESTORE,), "(C2 existing record skipped|records that version .* took away do not come back)"
    ),
    start_whole_or_not_at_all: Exposure((STRANGE_PROPERTY,), "the run broke off: .*cannot start: .*is quarantined"),
    serve_foreign_rows: Exposure((FOREIGN_ROW,), ".* does not say that .* has a foreign file"),
    commit_deleted_segments_again: Exposure((DELETE,), "I5 deleted record is back", stuck=True),
    # A merge may have replaced a segment with the changed records before the end.
    serve_own_files_after_a_statement: Exposure(
        (UPDATE,), "(I5 record is not as a statement left it|.* is not served as a statement)", stuck=True
    ),
}


# ---- how ------------------------------------------------------------------------------------------------------------


def _filesystem() -> Any:
    from logstore.filesystem import local_filesystem

    return local_filesystem()


def _path_of(fd: int) -> Path | None:
    path: Path | None = _filesystem()._paths.get(fd)
    return path


def _is_segment(path: Path | None) -> bool:
    return path is not None and path.suffix == ".parquet"


def _is_journal(path: Path | None) -> bool:
    return path is not None and "journal" in path.parts


def _defer_syncs(late_s: float = _LATE_S, withhold: Callable[[], bool] = lambda: False) -> SimpleNamespace:
    """Make the journal's fdatasync return at once and sync for all together seconds later; return counts of begun and
    done.

    The delay doubles each time, up to a bound: the store makes progress at first, then there is time to be too early.
    Once ``withhold`` is true, nothing is synced until seconds after ``shown`` is called, which happens once in a life.
    """
    from logstore.cluster.log_directory import DirectoryRecord

    filesystem = _filesystem()
    sync = filesystem.fdatasync
    waiting: set[int] = set()
    ended = threading.Event()
    record = DirectoryRecord.record
    # Without this the next start would miss files that never became durable, and refuse.
    DirectoryRecord.record = lambda self, _: record(self, None)  # type: ignore[method-assign]

    def shown() -> None:
        if not ended.is_set():
            _daemon_timer(_WITHHELD_S, ended.set)

    syncs = SimpleNamespace(begun=0, done=0, late_s=late_s, withheld=False, shown=shown)

    def all_together() -> None:
        if withhold() and not ended.is_set():
            syncs.withheld = True
            ended.wait(_WITHHELD_MAX_S)
            syncs.withheld = False
            ended.set()
        done = syncs.begun
        for fd in list(waiting):
            waiting.discard(fd)
            # A file may be gone by then.
            with contextlib.suppress(OSError):
                sync(fd)
        syncs.done = done

    def begin(fd: int) -> None:
        if not _is_journal(_path_of(fd)):
            sync(fd)
            return
        if not waiting:
            _daemon_timer(syncs.late_s, all_together)
            syncs.late_s = min(2 * syncs.late_s, _LATE_MAX_S)
        waiting.add(fd)
        syncs.begun += 1

    filesystem.fdatasync = begin
    return syncs


def _daemon_timer(seconds: float, work: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()
