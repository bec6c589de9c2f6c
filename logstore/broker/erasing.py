"""Removes erased records of a topic from every file of the store, and keeps a report of that in ``__erasures``.

Each step is on disk before the next one begins:

1. The request is in the table of ``__erasures``.
2. The topic is rolled, so that no journal needs a frame with the records.
3. One commit removes the records from the table, and readers follow it.
4. Each broker sees that commit, waits for a merge in progress, begins a new journal file and removes the older ones.
5. Runs of jobs that began before the commit have ended.
6. Files that have the records and that the table does not name are deleted.
7. The report says ``erased``.

Invariants:

- Each step may be repeated, and is repeated after a kill: the leader of the topic's partition 0 continues every erasure
  that is not ``erased``. Once a request was answered, no part of it is only in memory.
- The report says ``erased`` only after each broker that may have the bytes has confirmed and the last file is gone.
- A broker that starts does its own part before it serves.
- If another writer or a backup brings erased records back, ``TableFollower`` erases them again before a reader sees
  them, and this module deletes the files that came with them.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

import msgspec
import pyarrow as pa
import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.elsewhere.nobody import Elsewhere
from logstore.broker.elsewhere.partition_offsets import PartitionOffsets
from logstore.broker.produce.records import Producing
from logstore.broker.roll_schedule import RollSchedule
from logstore.broker.topics.changes import TopicChanges
from logstore.broker.topics.served import Topics
from logstore.broker.upkeep import Upkeep
from logstore.clock import Clock
from logstore.cluster.cluster_state import ClusterState
from logstore.delta.erased_files import ERASED
from logstore.delta.snapshot import TopicSnapshot
from logstore.entropy import new_uuid
from logstore.errors import (
    InvalidRequestError,
    LogStoreError,
    PeerUnavailableError,
    StorageError,
    UnknownErasureError,
    UnknownTopicError,
    storage_error,
    unforeseen,
)
from logstore.filesystem import FileSystem
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.limits import ERASED_KEYS_MAX, ERASED_RANGES_MAX
from logstore.log.erasures import (
    ErasedUpTo,
    ErasureLog,
    KnownErasure,
    SelectedNow,
    TableErasure,
    bounds_of,
    hidden_literals,
    ranges_of,
)
from logstore.log.erasures_table import ErasuresTable
from logstore.log.relocation import renew
from logstore.log.roller import Roller
from logstore.log.table_erasure import (
    ErasureProgress,
    ErasureWaitsError,
    SweptFiles,
    count_records,
    delete_erased_files,
    erase_commits,
    erasing_commits,
    find_offsets,
    next_commit,
)
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords
from logstore.records.erasure_record import (
    ERASURES_CONFIGS,
    ERASURES_TOPIC,
    ErasedBroker,
    ErasedPartition,
    Erasure,
    ErasureRepeat,
    hash_keys,
    new_salt,
)
from logstore.records.schema import WIRE_SCHEMA
from logstore.records.where.evaluation import Where
from logstore.records.where.expression import Node
from logstore.segments.merge import Rows
from logstore.settings import Settings
from logstore.threads import threads

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

_LOOK_S: Final = 0.5
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
#: How long one attempt waits for a follower to learn the sealed offset.
_SEALED_S: Final = 5.0
#: How many snapshots one request reads, when commits keep replacing the files of each.
_LOOKS: Final = 5
_SWEEP_S: Final = 3_600.0
#: The delay of the first sweep after a start, when the store has other work to do first.
_FIRST_SWEEP_S: Final = 60.0
_THREADS_MAX: Final = 4
_NICENESS: Final = 10
_NAMES_MAX: Final = 1_000
_COUNTS_KEPT: Final = 100
#: The locks that runs of jobs hold, which replace files of a table.
_JOBS: Final = ("compact", "retention", "merge")
NOT_REACHED: Final = (
    "backups and copies of the data directory",
    "mirrors, and topics that the records were copied to",
    "copies of consumers: their memory, their sinks and exports",
    "statements of other writers in the history of the table (DESCRIBE HISTORY), until its log entries expire",
)


@dataclass(slots=True)
class _Run:
    """The current attempt of an erasure, or the last one if it failed."""

    progress: ErasureProgress = field(default_factory=ErasureProgress)
    task: "asyncio.Task[None] | None" = None
    waiting: str | None = None
    delay_s: float = _RETRY_S / 2
    not_before: float = 0.0


@dataclass(slots=True)
class Count:
    """The search for the records of an erasure that has not started yet, or of a dry run (``is_dry``).

    ``failure`` is the reason if the search failed.
    """

    erasure: Erasure
    is_dry: bool = True
    progress: ErasureProgress = field(default_factory=ErasureProgress)
    is_done: bool = False
    failure: str | None = None
    files: int = 0


class Erasing:
    def __init__(
        self,
        topics: Topics,
        changes: TopicChanges,
        producing: Producing,
        roller: Roller,
        journal: Journal,
        schedule: RollSchedule,
        upkeep: Upkeep,
        admission: Admission,
        authorizer: Authorizer,
        cluster_state: ClusterState,
        erasures: ErasureLog,
        settings: Settings,
        clock: Clock,
        filesystem: FileSystem,
        elsewhere: Elsewhere,
    ) -> None:
        self._topics = topics
        self._changes = changes
        self._producing = producing
        self._roller = roller
        self._journal = journal
        self._schedule = schedule
        self._upkeep = upkeep
        self._admission = admission
        self._authorizer = authorizer
        self._cluster_state = cluster_state
        self._erasures = erasures
        self._settings = settings
        self._clock = clock
        self._filesystem = filesystem
        self._elsewhere = elsewhere
        self._table = ErasuresTable()
        self._runs: dict[str, _Run] = {}
        self._counts: dict[str, Count] = {}
        #: By topic id: names of files that were searched, and when the topic's directory is searched next.
        self._known: dict[UUID, set[str]] = {}
        self._next_sweep: dict[UUID, float] = {}
        #: Keeps the order of the records that are taken over.
        self._loading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._counting: dict[asyncio.Task[None], None] = {}
        self._threads: Executor | None = None
        self._pool: Executor | None = None

    # ---- life -------------------------------------------------------------------------------------------------------

    async def load(self, topic: Topic) -> None:
        """Take over the new records in the table of ``__erasures``. Raises CorruptionError, StorageError."""
        async with self._loading:
            try:
                self._erasures.take(await asyncio.to_thread(self._table.read, topic))
            except OSError as error:
                raise storage_error(f"reading {ERASURES_TOPIC}", error) from error

    async def recover(self, bases: Mapping[PartitionKey, int | None]) -> None:
        """Do the part of this broker in all erasures, before it serves.

        ``bases`` has, by partition, the lowest offset of the frames that were found in the journal. Raises as
        ``Roller.roll`` and ``renew``.
        """
        is_old = False
        for erasure in self._erasures.by_id.values():
            if erasure.record.state == "started":
                continue  # its records are still served
            bounds = erasure.record.partitions
            found = []
            for one in bounds:
                base = bases.get((erasure.topic_id, one.partition))
                if base is not None and base < one.end_offset:
                    found.append(one.partition)
            is_old = is_old or bool(found)
            if found and self._topics.knows_id(erasure.topic_id):
                topic = self._topics.by_id(erasure.topic_id)
                # A backup of the journal was restored, and its frames were replayed.
                if any(p.is_leader and p.has_unsealed and p.partition in found for p in topic.partitions):
                    await self._roller.roll(topic)
        if is_old:
            await renew(self._journal, self._schedule.keepers())

    def start(self) -> None:
        self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """Cancel the work in progress; the next start continues it."""
        self._stopping = True
        tasks = [one for one in (self._task, *(run.task for run in self._runs.values()), *self._counting) if one]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pool in (self._threads, self._pool):
            if pool is not None:
                await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def begin(
        self,
        context: RequestContext,
        topic: Topic,
        keys: Sequence[bytes] = (),
        where: Node | None = None,
        *,
        dry_run: bool = False,
    ) -> str:
        """Begin to erase the present records of ``keys``, or those that ``where`` selects, and return the erasure's id.

        With ``dry_run`` the records are only counted. The records that an expression selects are searched first, and
        remembered by offset. Until the search is complete, the erasure is ``counting``, and is lost if the broker ends.

        Raises TopicAuthorizationError, BrokerNotReadyError, InvalidTopicError, InvalidRequestError, QuarantinedError,
        MissingRecordsError, LeaderNotAvailableError, and as ``Producing.produce`` and ``Roller.roll``.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        topic.require_not_internal()
        if where is None and not keys:
            raise InvalidRequestError(f"an erasure is of 1 to {ERASED_KEYS_MAX} keys, or of an expression")
        if where is not None and keys:
            raise InvalidRequestError("an erasure is of keys, or of what an expression selects, not of both")
        partitions = await self._bounds(topic)
        salt = new_salt()
        erasure = Erasure(
            id=str(new_uuid()),
            number=0,
            state="started",
            topic=topic.name,
            topic_id=str(topic.topic_id),
            requested_ms=self._clock.now_ms(),
            partitions=partitions,
            salt=salt,
            keys=await asyncio.to_thread(hash_keys, keys, salt),
            where=None if where is None else hidden_literals(where, salt),
            not_reached=NOT_REACHED,
        )
        if dry_run or where is not None:
            self._begin_count(topic, erasure, where, dry_run=dry_run)
        else:
            await self._write(erasure, topic)
            self._wake.set()
            log.info("erasure.started", topic=topic.name, id=erasure.id, keys=len(erasure.keys))
        return erasure.id

    async def _bounds(self, topic: Topic) -> tuple[ErasedPartition, ...]:
        """Return bounds that cover all records that are acknowledged now."""
        elsewhere = await self._elsewhere.offsets(topic.partitions)
        ends, epochs = {}, {}
        for partition_log in topic.partitions:
            partition_log.require_served()
            offsets = PartitionOffsets.of(partition_log, elsewhere)
            offsets.require_known(partition_log)
            ends[partition_log.partition] = offsets.high_watermark
            epochs[partition_log.partition] = offsets.leader_epoch
        return bounds_of(ends, epochs)

    def _next_number(self, topic: Topic) -> int:
        """Return the time in ms, or more than any known number if the clock is behind.

        So numbers rise even if ``__erasures`` was lost.
        """
        known = [one.number for one in self._erasures.of_topic(topic.topic_id)]
        return max(self._clock.now_ms(), topic.snapshot.transactions.get(ERASED, 0) + 1, *(one + 1 for one in known))

    def report(self, topic: Topic, erasure_id: str) -> tuple[Erasure, ErasureProgress, str | None]:
        """Return the newest record of an erasure, this broker's progress, and the reason why the erasure waits.

        Raises UnknownErasureError.
        """
        known = self._erasures.by_id.get(erasure_id)
        if known is None or known.topic_id != topic.topic_id:
            raise UnknownErasureError(f"Topic {topic.name!r} has no erasure {erasure_id!r}.")
        run = self._runs.get(erasure_id) or _Run()
        return known.record, run.progress, run.waiting or known.record.waiting

    def count(self, topic: Topic, erasure_id: str) -> Count | None:
        """Return a dry run, or an erasure whose records are still searched; None if that id has neither."""
        found = self._counts.get(erasure_id)
        return None if found is None or found.erasure.topic_id != str(topic.topic_id) else found

    def reports(self, topic: Topic) -> list[Erasure]:
        """Return the newest records of a topic's erasures, in their order."""
        return [known.record for known in self._erasures.of_topic(topic.topic_id)]

    # ---- dry runs ---------------------------------------------------------------------------------------------------

    def _begin_count(self, topic: Topic, erasure: Erasure, where: Node | None, *, dry_run: bool) -> None:
        count = self._counts[erasure.id] = Count(erasure, dry_run)
        while len(self._counts) > _COUNTS_KEPT:
            del self._counts[next(iter(self._counts))]
        task = asyncio.create_task(self._count(topic, count, where))
        self._counting[task] = None
        task.add_done_callback(self._counting.pop)

    async def _count(self, topic: Topic, count: Count, where: Node | None) -> None:
        erasure = count.erasure
        try:
            await self._roll_to_end(topic, erasure)
            files, pool, progress = topic.table.files, self._workers(), count.progress
            selected = KnownErasure(erasure) if where is None else SelectedNow(erasure.partitions, Where(where))
            if count.is_dry:
                found = await self._look_into(topic, lambda now: count_records(files, now, [selected], pool, progress))
                count.files = len(found)
                count.erasure = msgspec.structs.replace(erasure, records=sum(map(len, found.values())))
            else:
                offsets = await self._look_into(topic, lambda now: find_offsets(files, now, selected, pool, progress))
                await self._write(_with_offsets(erasure, offsets), topic)
                del self._counts[erasure.id]
                self._wake.set()
                log.info("erasure.started", topic=topic.name, id=erasure.id, where=erasure.where)
        except Exception as error:  # noqa: BLE001  the client gets the message
            count.failure = str(error)
        count.is_done = True

    async def _look_into(self, topic: Topic, work: Callable[[TopicSnapshot], T]) -> T:
        """Run blocking work on the newest snapshot; repeat it if a commit has replaced files meanwhile."""
        for _ in range(_LOOKS):
            snapshot = topic.snapshot
            try:
                return await self._in_thread(functools.partial(work, snapshot))
            except StorageError:
                if topic.snapshot is snapshot:
                    raise
        raise ErasureWaitsError(f"Other commits to topic {topic.name!r} kept replacing the files: ask again")

    # ---- the steps of an erasure ------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        while not self._stopping:  # wait_for may swallow a cancellation that comes together with the event
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _LOOK_S)
            self._wake.clear()
            try:
                await self._look()
            except Exception as error:
                log.error("erasure.failed", error=str(error), exc_info=unforeseen(error))
                await asyncio.sleep(_RETRY_S)

    async def _look(self) -> None:
        topic = self._topics.served(ERASURES_TOPIC)
        if topic is None:
            return
        await self.load(topic)
        now, busy = self._clock.monotonic(), set()
        for erasure in self._erasures.unfinished():
            run = self._runs.setdefault(erasure.record.id, _Run())
            if erasure.topic_id in busy:
                continue
            is_waiting = now < run.not_before or not self._is_owner(erasure, topic)
            # The table has one number for all erasures that it shows, so they are committed in the order of their
            # numbers. One that is committed, and waits for a broker, holds up no other.
            if not is_waiting or erasure.record.state == "started":
                busy.add(erasure.topic_id)
            if not is_waiting and run.task is None:
                run.task = asyncio.create_task(self._run(erasure, run))
        while self._erasures.came_back:
            topic_id, repeated = self._erasures.came_back[0]
            self._next_sweep[topic_id] = now
            await self._report_repeat(topic_id, repeated)
            self._erasures.came_back.popleft()
        for topic_id in {one.topic_id for one in self._erasures.by_id.values()}:
            if self._next_sweep.setdefault(topic_id, now + _FIRST_SWEEP_S) <= now:
                self._next_sweep[topic_id] = now + _SWEEP_S
                await self._sweep_again(topic_id)

    def _is_owner(self, erasure: KnownErasure, erasures_topic: Topic) -> bool:
        if self._topics.knows_id(erasure.topic_id):
            return self._topics.by_id(erasure.topic_id).is_maintained_here
        return erasures_topic.is_maintained_here

    async def _run(self, erasure: KnownErasure, run: _Run) -> None:
        try:
            await self._erase(erasure.record, run)
        except Exception as error:  # noqa: BLE001
            run.waiting = str(error)
            waits = isinstance(error, ErasureWaitsError)
            run.delay_s = _RETRY_S if waits else min(_RETRY_MAX_S, 2 * run.delay_s)
            run.not_before = self._clock.monotonic() + run.delay_s
            level = log.info if waits else log.error
            level("erasure.waits", id=erasure.record.id, why=run.waiting, exc_info=unforeseen(error))
        else:
            run.waiting = None
            run.delay_s = _RETRY_S / 2
        finally:
            run.task = None

    async def _erase(self, record: Erasure, run: _Run) -> None:
        """Do the steps of an erasure that are possible now."""
        topic = self._topic_of(record)
        if record.state == "started":
            if topic is not None:
                run.progress.step = "rolling"
                await self._roll_to_end(topic, record)
                self._filesystem.reached("erase.rolled")
                done = await self._erase_from_table(topic, record, run.progress)
                record = msgspec.structs.replace(
                    record, records=done.records, versions=tuple(done.versions), rewritten_count=done.rewritten
                )
            record = msgspec.structs.replace(record, state="pending", pending=tuple(self._expected(record)))
            record = await self._write(record)
            self._filesystem.reached("erase.pending")
        run.progress.step = "journals"
        record = await self._erase_from_journals(record)
        if topic is not None:
            run.progress.step = "deleting"
            swept = await self._sweep(topic, ErasedUpTo((KnownErasure(record),)), run.progress)
            record = _with_files(record, swept)
            self._filesystem.reached("erase.swept")
        if record.pending:
            if record != self._erasures.by_id[record.id].record:
                await self._write(record)
            raise ErasureWaitsError(
                f"Brokers {', '.join(map(str, record.pending))} are not running: each erases before it serves again"
            )
        await self._write(msgspec.structs.replace(record, state="erased", waiting=None, erased_ms=self._clock.now_ms()))
        self._filesystem.reached("erase.reported")
        log.info("erasure.done", topic=record.topic, id=record.id, records=record.records)

    def _topic_of(self, record: Erasure) -> Topic | None:
        """Return the erasure's topic; None if it was deleted. Raises ErasureWaitsError if it is not served now."""
        topic_id = UUID(record.topic_id)
        if self._topics.knows_id(topic_id):
            return self._topics.by_id(topic_id)
        try:
            self._topics.get(record.topic)
        except UnknownTopicError:
            return None
        except LogStoreError as error:
            raise ErasureWaitsError(f"Topic {record.topic!r} is not served: {error.message}") from error
        return None  # another topic has the name

    async def _roll_to_end(self, topic: Topic, record: Erasure) -> None:
        """Seal all records that the erasure may cover.

        Raises ErasureWaitsError if that is not possible now, and as ``Roller.roll``.
        """
        await self._roller.roll(topic)
        if await self._elsewhere.ask_leaders(INTERNAL, topic, "roll"):
            await self._roller.refresh(topic)
        for one in record.partitions:
            if topic.snapshot.partitions[one.partition].sealed < one.end_offset:
                raise ErasureWaitsError(
                    f"{topic.name}-{one.partition} is sealed up to {topic.snapshot.partitions[one.partition].sealed}, "
                    f"and its records up to {one.end_offset} are to be looked at: it is rolled again"
                )

    async def _erase_from_table(self, topic: Topic, record: Erasure, progress: ErasureProgress) -> TableErasure:
        earlier = self._erasures.committed(topic.topic_id)
        known = (*(() if earlier is None else earlier.erasures), KnownErasure(record))
        wanted = ErasedUpTo(tuple(sorted(known, key=lambda one: one.number)))
        commits = erasing_commits(
            topic.table, topic.name, wanted, topic.config, self._clock.now_ms(), self._workers(), progress=progress
        )
        # Readers follow each commit before the search goes on.
        found = await self._in_thread(lambda: next_commit(commits))
        while not isinstance(found, TableErasure):
            outcome = await self._roller.commit(topic, found)
            found = await self._in_thread(functools.partial(next_commit, commits, outcome))
        if found.unserved:
            raise ErasureWaitsError(found.unserved)
        return await self._in_thread(lambda: erase_commits(topic.table.files, record.number))

    # ---- brokers ----------------------------------------------------------------------------------------------------

    def _expected(self, record: Erasure) -> set[int]:
        """Return the brokers whose journals may have the bytes."""
        partitions = (one.partition for one in record.partitions)
        return {self._cluster_state.broker_id} | self._elsewhere.with_journals(UUID(record.topic_id), partitions)

    async def _erase_from_journals(self, record: Erasure) -> Erasure:
        """Ask each live broker to confirm; brokers that have not confirmed are ``pending`` afterwards."""
        confirmed = {one.broker: one for one in record.brokers}
        expected = self._expected(record) - confirmed.keys()
        here = self._cluster_state.broker_id
        asked: dict[int, Awaitable[ErasedBroker]] = {}
        for broker in expected & {here, *self._cluster_state.brokers_by_id}:
            asked[broker] = (
                self.erase_here(record) if broker == here else self._elsewhere.erase_from_journal(broker, record.id)
            )
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, ErasedBroker):
                confirmed[answer.broker] = answer
            elif not isinstance(answer, PeerUnavailableError):
                raise answer
        return msgspec.structs.replace(
            record,
            brokers=tuple(confirmed[broker] for broker in sorted(confirmed)),
            pending=tuple(sorted(expected - confirmed.keys())),
        )

    async def erase_known(self, erasure_id: str) -> ErasedBroker:
        """Do ``erase_here`` for an erasure whose record is in the table. Raises UnknownErasureError."""
        topic = self._topics.get(ERASURES_TOPIC)
        await self._roller.refresh(topic)
        await self.load(topic)
        known = self._erasures.by_id.get(erasure_id)
        if known is None or known.record.state == "started":
            raise UnknownErasureError(f"The table of {ERASURES_TOPIC} has no erasure {erasure_id!r} that is committed.")
        return await self.erase_here(known.record)

    async def erase_here(self, record: Erasure) -> ErasedBroker:
        """Do the part of this broker in an erasure that is committed.

        Afterwards no file of its journal has the bytes, and its readers see the commit. Raises ErasureWaitsError, and
        as ``Roller.refresh`` and ``renew``.
        """
        topic_id = UUID(record.topic_id)
        if self._topics.knows_id(topic_id):
            topic = self._topics.by_id(topic_id)
            await self._roller.refresh(topic)
            end = self._clock.monotonic() + _SEALED_S
            while (why := _unsealed(topic, record)) is not None:
                if self._clock.monotonic() > end:
                    raise ErasureWaitsError(f"Broker {self._cluster_state.broker_id}: {why}")
                await asyncio.sleep(_LOOK_S / 10)
        for one in record.partitions:
            kept = self._schedule.unserved.get((topic_id, one.partition))
            if kept is not None and (kept.index.base_offset or 0) < one.end_offset and len(kept.index):
                raise ErasureWaitsError(
                    f"Broker {self._cluster_state.broker_id} keeps records of {record.topic}-{one.partition}, "
                    "which is quarantined: mend it, as logstore doctor says"
                )
        await self._upkeep.settled()
        removed = await renew(self._journal, self._schedule.keepers())
        self._filesystem.reached("erase.journal")
        return ErasedBroker(self._cluster_state.broker_id, self._clock.now_ms(), removed)

    # ---- files that the table does not name -------------------------------------------------------------------------

    async def _sweep(self, topic: Topic, erased: ErasedUpTo, progress: ErasureProgress) -> SweptFiles:
        """Delete leftover files, once no run of a job is left that began before the commit.

        Raises ErasureWaitsError, and as ``delete_erased_files``.
        """
        files = topic.table.files

        def sweep() -> SweptFiles:
            for job in _JOBS:
                with files.try_lock(f".{job}.lock") as held:
                    if not held:
                        raise ErasureWaitsError(f"A run of the job {job} is working on topic {topic.name!r}")
            self._admission.require_locks()
            swept = delete_erased_files(files, topic.table.snapshot(), erased.erasures, known=set(), progress=progress)
            # An attempt that was cut short has deleted files that this one does not find any more.
            files.sync_removals()
            return swept

        return await self._in_thread(sweep)

    async def _sweep_again(self, topic_id: UUID) -> None:
        """Delete files that came later: from a backup, or from another writer that was rewriting files."""
        erased = self._erasures.committed(topic_id)
        if erased is None or not self._topics.knows_id(topic_id):
            return
        topic = self._topics.by_id(topic_id)
        if not topic.is_maintained_here:
            return
        known = self._known.setdefault(topic_id, set())
        try:
            swept = await self._in_thread(
                lambda: delete_erased_files(topic.table.files, topic.table.snapshot(), erased.erasures, known=known)
            )
        except (LogStoreError, OSError) as error:
            log.warning("erasure.not_swept", topic=topic.name, why=str(error))
            return
        if swept.deleted:
            log.warning("erasure.files_deleted", topic=topic.name, files=len(swept.deleted))

    async def _report_repeat(self, topic_id: UUID, repeated: TableErasure) -> None:
        erased = self._erasures.committed(topic_id)
        if erased is None:
            return
        record = erased.erasures[-1].record
        repeat = ErasureRepeat(max(repeated.versions), repeated.records, self._clock.now_ms())
        await self._write(msgspec.structs.replace(record, repeats=(*record.repeats, repeat)))

    # ---- the records ------------------------------------------------------------------------------------------------

    async def _write(self, record: Erasure, erased_topic: Topic | None = None) -> Erasure:
        """Put a record into the table of ``__erasures``; a new one of ``erased_topic`` gets its number, so that numbers
        rise in the order of the records. Raises as ``Producing.produce`` and ``Roller.roll``.
        """
        async with self._writing:
            topic = await self._erasures_topic()
            if erased_topic is not None:
                await self.load(topic)
                record = msgspec.structs.replace(record, number=self._next_number(erased_topic))
            key, value = record.encoded()
            row = {"timestamp": [None], "key": [key], "value": [value], "headers": [None]}
            batch = pa.RecordBatch.from_pydict(row, schema=WIRE_SCHEMA)
            result = await self._producing.produce(INTERNAL, topic, DecodedRecords(batch, None), partition=0)
            result.require_stored()
            self._filesystem.reached("erase.recorded")
            await self._roller.roll(topic)
            if await self._elsewhere.ask_leaders(INTERNAL, topic, "roll"):
                await self._roller.refresh(topic)
            await self.load(topic)
            return record

    async def _erasures_topic(self) -> Topic:
        if (found := self._topics.served(ERASURES_TOPIC)) is not None:
            return found
        if self._cluster_state.controller_id != self._cluster_state.broker_id:
            await self._elsewhere.make_topic_of_erasures()
        return await self.make_topic()

    async def make_topic(self) -> Topic:
        """Make ``__erasures`` if it does not exist. Raises as ``TopicChanges.internal``."""
        return await self._changes.internal(
            INTERNAL,
            ERASURES_TOPIC,
            partitions=1,
            configs=ERASURES_CONFIGS,
            replication_factor=self._settings.offsets_topic_replication_factor,
        )

    # ---- threads ----------------------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._threads is None:
            self._threads = threads().pool(2, "erasing")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except OSError as error:
            raise storage_error("erasing records", error) from error

    def _workers(self) -> Executor:
        """Return the threads that read and rewrite files; each holds two row groups."""
        if self._pool is None:
            count = min(int(pa.cpu_count()), _THREADS_MAX)
            self._pool = threads().pool(count, "erase", _NICENESS)
        return self._pool


def _unsealed(topic: Topic, record: Erasure) -> str | None:
    """Describe a partition whose frames on this broker may have the records; None if no partition has such frames."""
    for one in record.partitions:
        partition_log = topic.partitions[one.partition]
        base = partition_log.index.base_offset
        if base is not None and base < one.end_offset:
            return f"{topic.name}-{one.partition} has records in the journal from offset {base} on"
    return None


def _with_offsets(record: Erasure, found: Mapping[int, Rows]) -> Erasure:
    """Return the record with the offsets that were found. Raises InvalidRequestError if there are too many ranges."""
    ranges = {partition: ranges_of(offsets) for partition, offsets in found.items()}
    if (count := sum(map(len, ranges.values()))) > ERASED_RANGES_MAX:
        raise InvalidRequestError(
            f"the expression selects records in {count} places, and an erasure has up to {ERASED_RANGES_MAX}: narrow "
            "it, with timestamp < ... and timestamp >= ..., and erase in several steps"
        )
    partitions = (msgspec.structs.replace(one, offsets=ranges.get(one.partition, ())) for one in record.partitions)
    return msgspec.structs.replace(record, partitions=tuple(partitions))


def _with_files(record: Erasure, swept: SweptFiles) -> Erasure:
    names = (*record.deleted_files, *swept.deleted)
    unreadable = (f"files of other writers that cannot be read: {name}" for name in swept.unreadable)
    return msgspec.structs.replace(
        record,
        deleted_count=record.deleted_count + len(swept.deleted),
        deleted_files=names[:_NAMES_MAX],
        not_reached=tuple(dict.fromkeys((*record.not_reached, *unreadable))),
    )
