"""The broker: what the HTTP tier calls. Owns the data directory, the journal, the topics and the background rolls.

Everything here runs on one event loop; disk work runs in threads. A produce request walks: check, choose partitions,
split, encode, assign offsets and append to the journal in one step without awaiting, wait for the fsync, answer.
"""

import asyncio
import contextlib
import itertools
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
import structlog

from logstore.broker.coordinator import Coordinator, EmbeddedCoordinator
from logstore.broker.idempotence import claim, require_partitions_named
from logstore.broker.problems import ProblemState, TopicProblem
from logstore.broker.recovery import Unserved, recover_partitions
from logstore.broker.rolling import RETRY_MAX_S, RETRY_S, ROLLS_AT_A_TIME, RollSchedule
from logstore.broker.secret import load_secret
from logstore.broker.topic_catalog import TopicCatalog, check_no_collision, check_topic_name, names_collide
from logstore.clock import Clock, SystemClock
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    BrokerNotReadyError,
    CommitRefusedError,
    CorruptionError,
    InvalidPartitionsError,
    InvalidProducerRequestError,
    InvalidRecordError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    QuarantinedError,
    RequestTimedOutError,
    StorageError,
    ThrottledError,
    TopicExistsError,
    UnknownTopicError,
    unforeseen,
)
from logstore.filesystem import FileSystem, local_filesystem
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.journal import Journal
from logstore.limits import JOURNAL_FILE_BYTES, MIB, PARTITIONS_PER_TOPIC_MAX
from logstore.lock_file import LockFile
from logstore.log.log_reader import FetchResult, LogReader
from logstore.log.partition_log import PartitionLog
from logstore.log.roller import Roller, RollResult, roll_threads
from logstore.log.topic import Topic
from logstore.observability import (
    FETCHED_BYTES,
    FETCHED_RECORDS,
    PRODUCED_BYTES,
    PRODUCED_RECORDS,
    REPLAYED_RECORDS,
    THROTTLED,
    forget_topic,
)
from logstore.records.batch import (
    DecodedRecords,
    PartitionBatch,
    Records,
    SplitRecords,
    check_record_sizes,
    split_by_partition,
)
from logstore.records.batch_identity import (
    NOBODY,
    PRODUCER_EPOCH_MAX,
    BatchIdentity,
    IdempotencyKey,
    ProducerIdentity,
)
from logstore.records.partitioner import choose_partitions
from logstore.records.payload import encode_payload
from logstore.records.stored_batch import StoredBatch
from logstore.settings import Settings
from logstore.topic_config import TopicConfig, config_key, validate_overrides

log = structlog.stdlib.get_logger(__name__)

# Above this, splitting and encoding a request would hold up the event loop for milliseconds.
_ENCODE_IN_THREAD_BYTES = 1 * MIB
#: A roll that has not begun this long after a stop did does not begin any more: supervisors lose patience after ten
#: seconds, and its records are as safe in the journal.
ROLL_AT_STOP_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProducedRange:
    """Records of a request that got consecutive offsets in one partition.

    ``rows`` are their positions in the request, in offset order (None: all of them, 0 to count - 1).
    """

    partition: int
    base_offset: int
    count: int
    rows: np.ndarray | None


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """``replayed``: nothing was stored, all of it was there already."""

    ranges: tuple[ProducedRange, ...]
    count: int
    replayed: bool = False

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Partition (int32) and offset (int64) of each record, in the order of the request."""
        partitions = np.empty(self.count, np.int32)
        offsets = np.empty(self.count, np.int64)
        for found in self.ranges:
            rows = slice(None) if found.rows is None else found.rows
            partitions[rows] = found.partition
            offsets[rows] = np.arange(found.base_offset, found.base_offset + found.count)
        return partitions, offsets


class ProducerId(NamedTuple):
    producer_id: int
    producer_epoch: int


class Broker:
    """Make one with ``start``. Every method raises the errors of ``logstore.errors`` that its docstring names."""

    def __init__(
        self,
        settings: Settings,
        coordinator: Coordinator,
        catalog: TopicCatalog,
        journal: Journal,
        clock: Clock,
        filesystem: FileSystem,
    ) -> None:
        self.settings = settings
        self.cluster_id = coordinator.cluster_id
        self.broker_id = coordinator.broker_id
        #: What ``IdempotencyKey.of`` takes.
        self.idempotency_secret = load_secret(settings.data / "brokers" / str(self.broker_id), filesystem)
        self._coordinator = coordinator
        self._catalog = catalog
        self._catalog_lock = asyncio.Lock()
        self._journal = journal
        self._clock = clock
        self._filesystem = filesystem
        self._topics: dict[str, Topic] = {}
        self._deleted: frozenset[uuid.UUID] = frozenset()
        #: By name: what is in the way of serving a topic whose directory is there.
        self._quarantined: dict[str, QuarantinedError] = {}
        self._unserved = Unserved({}, {}, set())
        #: Gone for everybody, but a power cut may bring them back: the journal keeps their records until it cannot.
        self._removals: list[Topic] = []
        self._remover: asyncio.Task[None] | None = None
        #: Called, and awaited, with each topic that was deleted, before another of its name can be made.
        self.topic_deleted_listeners: list[Callable[[Topic], Awaitable[None]]] = []
        self._leader_epoch = 0
        self._sticky = itertools.count()
        self._not_ready: str | None = "the store is starting"
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="read")
        # Few: each holds a request twice, as it was sent and as it is stored.
        self._encoders = ThreadPoolExecutor(2, thread_name_prefix="encode")
        self._writers = roll_threads()
        self._roller = Roller(journal, filesystem, clock, self._writers)
        self._reader = LogReader(journal, self._readers, self._roller.refresh)
        self._schedule = RollSchedule(self._roller, journal, clock, settings.journal_max_bytes, self._topics)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls, settings: Settings, *, clock: Clock | None = None, filesystem: FileSystem | None = None
    ) -> AsyncIterator[Self]:
        """``start`` and ``stop`` around a block."""
        broker = await cls.start(settings, clock=clock, filesystem=filesystem)
        try:
            yield broker
        finally:
            await broker.stop()

    @classmethod
    async def start(
        cls, settings: Settings, *, clock: Clock | None = None, filesystem: FileSystem | None = None
    ) -> Self:
        """Lock the data directory, recover what is in it, and begin to serve.

        Raises DataDirectoryError if another process has it or it is of another format, CorruptionError if stored bytes
        are not what was written.
        """
        clock = clock or SystemClock()
        filesystem = filesystem or local_filesystem()
        home = settings.data / "brokers" / str(settings.broker_id)
        filesystem.make_directory(settings.data)
        locks = [LockFile.acquire(settings.data)]

        def require_locks() -> None:
            for lock in locks:
                lock.require()

        try:
            coordinator = EmbeddedCoordinator(settings.data, settings.broker_id, filesystem)
            journal_directory = home / "journal" / "0"
            filesystem.make_directory(journal_directory)
            # Its own: the journal is no other process's, even if the lock of the data directory was removed.
            locks.append(LockFile.acquire(journal_directory))
            catalog = TopicCatalog(settings.data, filesystem)
            file_bytes = min(JOURNAL_FILE_BYTES, max(MIB, settings.journal_max_bytes // 32))
            journal = Journal(
                journal_directory, filesystem=filesystem, clock=clock, file_bytes=file_bytes, require_lock=require_locks
            )
            broker = cls(settings, coordinator, catalog, journal, clock, filesystem)
            broker._locks = locks
            await broker._recover()
        except BaseException:
            for lock in reversed(locks):
                lock.release()
            raise
        return broker

    _locks: list[LockFile]

    async def _recover(self) -> None:
        began = self._clock.monotonic()
        tables, self._quarantined = await asyncio.to_thread(self._catalog.load)
        epochs = (state.leader_epoch for table in tables.values() for state in table.latest.partitions.values())
        self._leader_epoch = self._coordinator.elect(above=max(epochs, default=0))
        for name, table in tables.items():
            self._topics[name] = self._topic(name, table, table.latest)
        by_id = {topic.topic_id: topic for topic in self._topics.values()}
        self._deleted = frozenset(self._catalog.deleted())
        self._unserved = await asyncio.to_thread(recover_partitions, self._journal, by_id, self._deleted)
        await asyncio.to_thread(self._catalog.forget_deleted, self._unserved.deleted)
        await self._journal.start(self._snapshot_frames)
        self._filesystem.reached("recovery.half")
        await asyncio.to_thread(self._schedule.mark_all)
        for topic in self._topics.values():
            try:
                await self._roller.refresh(topic, at_start=True)
            except (CorruptionError, StorageError, CommitRefusedError) as error:
                # The schedule tries again. Until then nobody builds on a table that may show too little.
                topic.quarantine(str(error), "Mend its table; the store looks at it every few seconds")
                log.error("topic.quarantined", topic=topic.name, why=str(error))
                continue
            for partition_log in topic.partitions:
                self._journal.release(topic.topic_id, partition_log.partition, partition_log.sealed_offset)
        self._schedule.start()
        self._not_ready = None
        unsealed = sum(p.log_end_offset - p.sealed_offset for t in self._topics.values() for p in t.partitions)
        log.info(
            "broker.started",
            data=str(self.settings.data),
            topics=len(self._topics),
            unsealed_records=unsealed,
            leader_epoch=self._leader_epoch,
            seconds=round(self._clock.monotonic() - began, 3),
        )

    def _topic(self, name: str, table: TopicTable, snapshot: TopicSnapshot) -> Topic:
        return Topic(
            name,
            table,
            snapshot,
            location=f"{self.settings.location}/topics/{urllib.parse.quote(name)}",
            defaults=self.settings.topic_defaults,
            leader_epoch=self._leader_epoch,
            clock=self._clock,
            producer_id_expiration_ms=self.settings.producer_id_expiration_ms,
        )

    def _snapshot_frames(self) -> list[Frame]:
        logs = [p for t in (*self._topics.values(), *self._removals) for p in t.partitions]
        served = {(p.topic_id, p.partition) for p in logs if p.recovered}
        kept = [frame for key, frame in self._unserved.snapshots.items() if key not in served]
        return [*(p.snapshot_frame() for p in logs if p.recovered), *kept]

    async def stop(self) -> None:
        """Refuse new appends, seal what can be sealed in ``ROLL_AT_STOP_S``, and let go of the data directory."""
        self._not_ready = "the store is stopping"
        await self._schedule.stop()
        async with self._catalog_lock:  # a removal under way comes to its end; the next start finishes the others
            if self._remover is not None:
                self._remover.cancel()
        await self._roll_at_stop()
        await self._roller.drain()
        for topic in self._topics.values():
            for partition_log in topic.partitions:
                partition_log.close(BrokerNotReadyError("The store is stopping. Try again in a few seconds."))
        try:
            await self._journal.close()
        finally:
            self._encoders.shutdown()
            self._readers.shutdown()
            self._writers.shutdown()
            for lock in reversed(self._locks):
                lock.release()
        log.info("broker.stopped")

    async def _roll_at_stop(self) -> None:
        """Seal what there is time for; the rest stays in the journal, and is rolled after the next start."""
        unsealed = iter([topic for topic in self._topics.values() if topic.has_unsealed])
        left: list[Topic] = []
        end = self._clock.monotonic() + ROLL_AT_STOP_S

        async def roll_one_after_another() -> None:
            for topic in unsealed:
                if self._clock.monotonic() >= end:
                    left.append(topic)
                    continue
                try:
                    await self._roller.roll(topic)
                except Exception as error:
                    log.warning(
                        "broker.not_rolled_at_stop", topic=topic.name, error=str(error), exc_info=unforeseen(error)
                    )

        await asyncio.gather(*(roll_one_after_another() for _ in range(ROLLS_AT_A_TIME)))
        if left:
            records = sum(p.log_end_offset - p.sealed_offset for topic in left for p in topic.partitions)
            log.warning("broker.left_in_journal_at_stop", topics=len(left), records=records, seconds=ROLL_AT_STOP_S)

    # ---- state ------------------------------------------------------------------------------------------------------

    @property
    def not_ready_reason(self) -> str | None:
        """Why appends are refused; None while they are taken."""
        if self._not_ready is not None:
            return self._not_ready
        if self._journal.failed is not None:
            return str(self._journal.failed)
        lost = next((lock.path for lock in self._locks if not lock.held), None)
        return None if lost is None else f"{lost} was removed or replaced while this process held it: stop this process"

    @property
    def ready(self) -> bool:
        return self.not_ready_reason is None

    def _require_ready(self) -> None:
        if self._journal.failed is not None:
            raise self._journal.failed
        if self._not_ready is not None:
            raise BrokerNotReadyError(f"Not now: {self._not_ready}. Try again in a few seconds.")

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def journal(self) -> Journal:
        """To look at."""
        return self._journal

    @property
    def in_sync_replicas(self) -> tuple[int, ...]:
        return self._coordinator.in_sync_replicas()

    def topics(self, *, include_internal: bool = False) -> list[Topic]:
        """By name."""
        return [t for _, t in sorted(self._topics.items()) if include_internal or not t.is_internal]

    def topic(self, name: str) -> Topic:
        """Raises UnknownTopicError, QuarantinedError."""
        topic = self._topics.get(name)
        if topic is None:
            if name in self._quarantined:
                raise self._quarantined[name]
            raise UnknownTopicError(f"Topic {name!r} not found.")
        return topic

    def problems(self) -> list[TopicProblem]:
        """What is wrong with topics and partitions, by name; empty when all are served whole."""
        quarantined = ProblemState.QUARANTINED
        found = [TopicProblem(name, None, quarantined, e.reason, e.remedy) for name, e in self._quarantined.items()]
        known = {topic.topic_id for topic in self._topics.values()}
        for topic_id, count in self._unserved.unsealed_records.items():
            reason = f"The journal holds {count} records of the topic with id {topic_id}, whose table is not served"
            remedy = (
                "Mend the topic that is quarantined, or bring its directory back, and restart the store. To give the "
                f"records up, make an empty directory deleted/{topic_id} in the data directory"
            )
            if topic_id not in known:
                found.append(TopicProblem(str(topic_id), None, quarantined, reason, remedy))
        for topic in self._topics.values():
            for p in topic.partitions:
                if (error := p.quarantined) is not None:
                    found.append(TopicProblem(topic.name, p.partition, quarantined, error.reason, error.remedy))
                for gap in p.missing:
                    reason, remedy = p.explain_missing(gap)
                    missing = ProblemState.RECORDS_MISSING
                    found.append(TopicProblem(topic.name, p.partition, missing, reason, remedy))
        return sorted(found, key=lambda problem: (problem.topic, problem.partition or 0))

    def was_deleted(self, topic_id: uuid.UUID) -> bool:
        """Whether the topic is known to have been deleted before the start; one that is merely missing is not."""
        return topic_id in self._deleted

    # ---- topic administration ---------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> Topic | None:
        """A new topic; None for ``validate_only``.

        Raises InvalidTopicError, TopicExistsError, InvalidPartitionsError, InvalidReplicationFactorError,
        InvalidConfigError, StorageFullError.
        """
        return await self._change(
            self._create_topic(name, partitions, replication_factor, configs or {}, validate_only)
        )

    async def internal_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> Topic:
        """A topic of the store's own, made if it is not there: only ``produce(internal=True)`` writes to it, nobody
        alters or deletes it. Raises StorageFullError, QuarantinedError.
        """

        async def find_or_make() -> Topic:
            try:
                return self.topic(name)
            except UnknownTopicError:
                return await self._make_topic(name, partitions, dict(configs))

        found = self._topics.get(name)
        return await self._change(find_or_make()) if found is None else found

    async def _create_topic(
        self,
        name: str,
        partitions: int | None,
        replication_factor: int | None,
        configs: Mapping[str, str | None],
        validate_only: bool,
    ) -> Topic | None:
        check_topic_name(name)
        check_no_collision(name, (*self._topics, *self._quarantined))
        count = self.settings.num_partitions if partitions is None else partitions
        _check_partitions(count)
        if replication_factor not in {None, 1, -1}:
            raise InvalidReplicationFactorError(
                f"Replication factor {replication_factor} is larger than the number of brokers (1): leave it out."
            )
        overrides = validate_overrides({key: value for key, value in configs.items() if value is not None})
        TopicConfig.parse(overrides, self.settings.topic_defaults)
        return None if validate_only else await self._make_topic(name, count, overrides)

    async def _make_topic(self, name: str, count: int, overrides: dict[str, str]) -> Topic:
        for topic in [t for t in self._removals if names_collide(t.name, name)]:
            await self._finish_removal(topic)  # else a power cut could bring the old topic back beside the new one
        table = await asyncio.to_thread(self._catalog.create, name, num_partitions=count, config_overrides=overrides)
        try:
            topic = self._topic(name, table, await asyncio.to_thread(table.snapshot))
        except BaseException:
            await asyncio.to_thread(self._catalog.take_back, name)
            raise
        self._topics[name] = topic
        log.info("topic.created", topic=name, partitions=count, configs=overrides)
        return topic

    async def delete_topic(self, name: str) -> None:
        """Gone for readers and writers at once; its files follow.

        Raises UnknownTopicError, InvalidTopicError, StorageFullError; StorageError, too, if it is gone, but not yet for
        sure: what is left to do is then tried again until it is done.
        """
        await self._change(self._delete_topic(name))

    async def _delete_topic(self, name: str) -> None:
        topic = self.topic(name)
        _require_users_topic(topic)
        async with topic.commit_lock:
            await asyncio.to_thread(self._catalog.remove, name, topic.topic_id)
            topic.delete()
            del self._topics[name]
            self._removals.append(topic)
            self._roller.forget(topic)
            forget_topic(name)
            try:
                await self._finish_removal(topic)
            except BaseException:
                if self._remover is None or self._remover.done():
                    self._remover = asyncio.create_task(self._finish_removals())
                raise

    async def _finish_removal(self, topic: Topic) -> None:
        """What follows once a topic is out of the catalogue; after an error it may be called again. StorageError."""
        await asyncio.to_thread(self._catalog.sync_removal, topic.name)
        # Not before: a topic that a power cut brings back has its records in the journal.
        self._journal.forget(topic.topic_id)
        for listener in self.topic_deleted_listeners:
            await listener(topic)
        self._removals.remove(topic)
        log.info("topic.deleted", topic=topic.name)
        await asyncio.to_thread(self._catalog.purge)

    async def _finish_removals(self) -> None:
        """Try again what ``_delete_topic`` could not finish, until nothing is left."""
        pause = RETRY_S
        while self._removals:
            await asyncio.sleep(pause)
            pause = min(RETRY_MAX_S, 2 * pause)
            async with self._catalog_lock:
                for topic in list(self._removals):
                    try:
                        await self._finish_removal(topic)
                    except Exception as error:  # noqa: BLE001 - a listener's, too: nobody else would try again
                        log.error("topic.removal_unfinished", topic=topic.name, error=str(error))

    async def alter_configs(
        self, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Set keys; None takes a key back to its default.

        Raises UnknownTopicError, InvalidTopicError, InvalidConfigError.
        """
        topic = self.topic(name)
        _require_users_topic(topic)
        checked: dict[str, str | None] = dict(
            validate_overrides({key: value for key, value in changes.items() if value is not None})
        )
        checked.update({config_key(key).name: None for key, value in changes.items() if value is None})

        def alter() -> int:
            topic.config_with(checked)  # here no other change of it is under way
            return topic.table.alter_config(checked)

        if validate_only:
            topic.config_with(checked)
        elif checked:
            await self._roller.commit(topic, alter)
            self._schedule.touch(topic)
            log.info("topic.configs_altered", topic=name, changes=checked)
        return topic

    async def add_partitions(self, name: str, total: int) -> Topic:
        """Grow to ``total`` partitions.

        Raises InvalidPartitionsError for fewer than there are, UnknownTopicError, InvalidTopicError.
        """
        return await self._change(self._add_partitions(name, total))

    async def _add_partitions(self, name: str, total: int) -> Topic:
        topic = self.topic(name)
        _require_users_topic(topic)
        _check_partitions(total)
        if total < len(topic.partitions):
            raise InvalidPartitionsError(
                f"Topic '{name}' has {len(topic.partitions)} partitions; partitions can be added, never removed."
            )
        if total > len(topic.partitions):
            await self._roller.commit(topic, lambda: topic.table.add_partitions(total))
            log.info("topic.partitions_added", topic=name, partitions=total)
        return topic

    async def _change(self, change: Coroutine[object, object, T]) -> T:
        """One change of the catalogue at a time, each to its end even if the caller goes away."""

        async def locked() -> T:
            async with self._catalog_lock:
                return await change

        return await asyncio.shield(asyncio.create_task(locked()))

    # ---- records ----------------------------------------------------------------------------------------------------

    async def topic_for_produce(self, name: str) -> Topic:
        """The topic; made first if ``auto.create.topics.enable`` says so.

        Raises UnknownTopicError, InvalidTopicError, BrokerNotReadyError, StorageFullError.
        """
        if name not in self._topics and self.settings.auto_create_topics_enable:
            self._require_ready()
            with contextlib.suppress(TopicExistsError):  # another request was faster
                await self.create_topic(name)
        return self.topic(name)

    async def produce(
        self,
        topic: Topic,
        records: Records,
        *,
        partition: int | None = None,
        acks: int = -1,
        timeout_ms: int | None = 30_000,
        internal: bool = False,
        identity: ProducerIdentity | IdempotencyKey | None = None,
    ) -> ProduceResult:
        """Append a request's records; per partition all of them with consecutive offsets, or none.

        ``acks``: 0 returns once they are queued, 1 when they are durable here, -1 (all) on all in-sync replicas.
        ``internal``: the store itself writes, to a topic of its own. Requests of up to 1 MiB are appended in the order
        of the calls. With an ``identity`` what is stored already is not stored again, and told of as at first, whatever
        the topic's configuration is by now.

        Raises UnknownPartitionError, InvalidTopicError, InvalidRecordError (a null key in a compacted topic),
        ThrottledError (the journal is at ``journal.max.bytes``), BrokerNotReadyError, StorageFullError, StorageError,
        RequestTimedOutError; with an ``identity`` also what ``claim`` raises, and RecordTooLargeError, which decoding
        is to find for all others.
        """
        self._require_ready()
        if not internal:
            _require_users_topic(topic)
        if identity is not None:
            return await self._produce_once(topic, records, partition, acks, timeout_ms, identity)
        _check_keys(topic, records)
        parts, payloads = await self._encode(topic, records, partition, next(self._sticky))
        self._filesystem.reached("produce.parsed")
        self._require_ready()
        self._require_room(sum(len(payload) for payload in payloads))
        ranges, durable = self._append(topic, parts, payloads)
        count, nbytes = records.num_rows, records.nbytes
        # What waits for the fsync is held once, by the journal.
        del records, parts, payloads
        if acks != 0:
            await self._acknowledged([durable], timeout_ms)
        PRODUCED_RECORDS.count(topic, count)
        PRODUCED_BYTES.count(topic, nbytes)
        return ProduceResult(ranges, count)

    async def _produce_once(
        self,
        topic: Topic,
        records: Records,
        partition: int | None,
        acks: int,
        timeout_ms: int | None,
        identity: ProducerIdentity | IdempotencyKey,
    ) -> ProduceResult:
        """``produce`` without what is stored already, or on its way."""
        if isinstance(identity, ProducerIdentity):
            self._require_handed_out(identity.producer_id)
            require_partitions_named(records, partition)
            sticky = 0
        else:
            sticky = identity.partition_hash
        parts, payloads = await self._encode(topic, records, partition, sticky)
        self._filesystem.reached("produce.parsed")
        self._require_ready()
        claims = claim(topic, parts, identity)
        new = [at for at, claimed in enumerate(claims) if claimed.stored is None]
        # What was stored is not asked for what is asked of new records by now.
        for part in [parts[at] for at in new]:
            rows = np.arange(part.batch.num_rows) if part.rows is None else part.rows
            check_record_sizes(part.batch, topic.config.max_message_bytes, rows)
            _check_batch_keys(topic, part.batch, rows)
        if new:
            self._require_room(sum(len(payloads[at]) for at in new))
        waiting = {c.stored.durable for c in claims if c.stored is not None and c.stored.durable is not None}
        appended: tuple[ProducedRange, ...] = ()
        if new:
            appended, durable = self._append(
                topic, [parts[at] for at in new], [payloads[at] for at in new], [claims[at].identity for at in new]
            )
            waiting.add(durable)
        if acks != 0:
            await self._acknowledged(waiting, timeout_ms)
        PRODUCED_RECORDS.count(topic, sum(r.count for r in appended))
        PRODUCED_BYTES.count(topic, sum(parts[at].batch.nbytes for at in new))
        REPLAYED_RECORDS.count(topic, records.num_rows - sum(r.count for r in appended))
        stored = iter(appended)
        ranges = tuple(
            next(stored)
            if claimed.stored is None
            else ProducedRange(part.partition, claimed.stored.batch.base_offset, part.batch.num_rows, part.rows)
            for part, claimed in zip(parts, claims, strict=True)
        )
        return ProduceResult(ranges, records.num_rows, replayed=not new)

    async def _acknowledged(
        self, appends: Collection[asyncio.Future[list[FrameLocation]]], timeout_ms: int | None
    ) -> None:
        if appends and timeout_ms is not None:
            await asyncio.wait(appends, timeout=timeout_ms / 1000)
        for durable in appends:
            if timeout_ms is None:
                await durable
            elif not durable.done():
                raise not_acknowledged(timeout_ms)
            durable.result()
        self._filesystem.reached("produce.durable")

    def init_producer(self, producer_id: int | None = None, producer_epoch: int = -1) -> ProducerId:
        """A new id for an idempotent producer with epoch 0; for an id and its epoch the same with the next epoch.

        After epoch 32767 it is a new id, as Kafka's producers without a transactional id have it (KIP-360). Raises
        InvalidProducerRequestError for an id that was never handed out.
        """
        self._require_ready()
        if producer_id is not None:
            self._require_handed_out(producer_id)
            if producer_epoch < PRODUCER_EPOCH_MAX:
                return ProducerId(producer_id, producer_epoch + 1)
        return ProducerId(self._coordinator.new_producer_id(), 0)

    def _require_handed_out(self, producer_id: int) -> None:
        # Else it could be handed out later, to somebody whose batches would then be taken for repetitions.
        if not self._coordinator.handed_out(producer_id):
            raise InvalidProducerRequestError(
                f"Producer id {producer_id} was not handed out by this store: ask POST /producers for one."
            )

    async def _encode(
        self, topic: Topic, records: Records, partition: int | None, sticky: int
    ) -> tuple[list[PartitionBatch], list[pa.Buffer]]:
        def encode() -> tuple[list[PartitionBatch], list[pa.Buffer]]:
            parts = _split(topic, records, partition, sticky)
            return parts, [encode_payload(p.batch) if p.verbatim is None else p.verbatim for p in parts]

        if isinstance(records, DecodedRecords) and records.nbytes > _ENCODE_IN_THREAD_BYTES:
            return await asyncio.get_running_loop().run_in_executor(self._encoders, encode)
        return encode()

    def _append(
        self,
        topic: Topic,
        parts: list[PartitionBatch],
        payloads: list[pa.Buffer],
        identities: Iterable[BatchIdentity] = itertools.repeat(NOBODY),
    ) -> tuple[tuple[ProducedRange, ...], asyncio.Future[list[FrameLocation]]]:
        # No await in here: the order of offsets is the order of frames in the journal.
        frames: list[Frame] = []
        last: dict[int, Frame] = {}
        for part, payload, identity in zip(parts, payloads, identities, strict=False):
            frame = topic.partition(part.partition).next_frame(
                part.batch,
                payload,
                inflated_bytes=payload.size if part.verbatim is None else part.batch.nbytes,
                log_append_time=topic.config.log_append_time,
                after=last.get(part.partition),
                identity=identity,
            )
            last[part.partition] = frame
            frames.append(frame)
        durable = self._journal.append(frames)
        self._schedule.touch(topic)
        for at, (part, frame) in enumerate(zip(parts, frames, strict=True)):
            topic.partitions[part.partition].track(frame, durable, at)
        ranges = tuple(
            ProducedRange(part.partition, frame.header.base_offset, frame.header.record_count, part.rows)
            for part, frame in zip(parts, frames, strict=True)
        )
        return ranges, durable

    def _require_room(self, num_bytes: int) -> None:
        journal, settings = self._journal, self.settings
        # What acks=0 and timed-out requests left behind is in no request's account any more, but still in memory.
        if journal.queued_bytes and journal.queued_bytes + num_bytes > settings.queued_max_request_bytes:
            THROTTLED.labels("in_flight").inc()
            raise ThrottledError(
                f"{journal.queued_bytes} bytes wait for the disk; queued.max.request.bytes is "
                f"{settings.queued_max_request_bytes}. Send less, or try again in a moment."
            )
        # What nothing is held back for is let in whatever its size: else it never could be.
        held = journal.needed_bytes + journal.queued_bytes
        if held and held + num_bytes > settings.journal_max_bytes:
            self._schedule.press()
            THROTTLED.labels("journal").inc()
            raise ThrottledError(
                f"The journal holds {held} bytes not yet in Delta; journal.max.bytes is "
                f"{settings.journal_max_bytes}. Send less, or try again after the next roll."
            )

    async def fetch(
        self, topic: Topic, partition: int, offset: int, *, max_bytes: int, min_bytes: int, max_wait_ms: int
    ) -> FetchResult[pa.Table]:
        """Records from ``offset`` on; see ``LogReader.fetch``."""
        return _counted(
            topic,
            await self._reader.fetch(
                topic, partition, offset, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_s=max_wait_ms / 1000
            ),
        )

    async def fetch_stored(
        self, topic: Topic, partition: int, offset: int, *, max_bytes: int, min_bytes: int, max_wait_ms: int
    ) -> FetchResult[list[StoredBatch]]:
        """Records from ``offset`` on, as they are stored; see ``LogReader.fetch_stored``."""
        return _counted(
            topic,
            await self._reader.fetch_stored(
                topic, partition, offset, max_bytes=max_bytes, min_bytes=min_bytes, max_wait_s=max_wait_ms / 1000
            ),
        )

    async def offset_for_timestamp(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """The smallest offset with a timestamp of at least ``timestamp_ms``, and its timestamp; None without one."""
        return await self._reader.offset_for_timestamp(topic, partition, timestamp_ms)

    async def delete_records(self, topic: Topic, partition: int, before_offset: int) -> int:
        """Move the log start offset up to ``before_offset`` (-1: the high watermark); the new log start offset.

        Readers of this project stop seeing what is below at once; the files follow with the retention job. Raises
        OffsetOutOfRangeError beyond the high watermark or below -1, UnknownPartitionError, InvalidTopicError.
        """
        self._require_ready()
        _require_users_topic(topic)
        partition_log = topic.partition(partition)
        partition_log.require_served()
        target = partition_log.high_watermark if before_offset == -1 else before_offset
        if not 0 <= target <= partition_log.high_watermark:
            raise OffsetOutOfRangeError(
                f"Cannot delete the records of {topic.name}-{partition} before offset {before_offset}: "
                f"send an offset of {partition_log.log_start_offset} to {partition_log.high_watermark}, or -1 for all.",
                log_start_offset=partition_log.log_start_offset,
                high_watermark=partition_log.high_watermark,
            )
        if target > partition_log.sealed_offset:
            await self._roller.roll(topic, lambda p: p is partition_log)
        if target > partition_log.log_start_offset:
            await self._roller.commit(
                topic,
                lambda: topic.table.advance_log_start({partition: target}, {partition: partition_log.leader_epoch}),
            )
        return partition_log.log_start_offset

    async def roll(self, topic: Topic) -> RollResult:
        """Seal all that is acknowledged; returns when the Delta commit is durable. See ``Roller.roll``."""
        self._require_ready()
        return await self._roller.roll(topic)

    async def refresh(self, topic: Topic) -> int:
        """Read what others committed to the topic's table; the version that every read from here on sees.

        Raises as ``Roller.refresh``.
        """
        self._require_ready()
        await self._roller.refresh(topic)
        return topic.version


def not_acknowledged(timeout_ms: int) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"The records were not acknowledged within {timeout_ms} ms; they may or may not be stored."
    )


def _counted(topic: Topic, result: FetchResult[T]) -> FetchResult[T]:
    FETCHED_RECORDS.count(topic, result.count)
    FETCHED_BYTES.count(topic, result.num_bytes)
    return result


def _require_users_topic(topic: Topic) -> None:
    if topic.is_internal:
        raise InvalidTopicError(
            f"Topic {topic.name!r} is the store's own: it can be read and rolled, but not written, changed or deleted."
        )


def _check_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(f"A topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}.")


def _check_keys(topic: Topic, records: Records) -> None:
    if not topic.config.compacted:
        return
    row = 0
    for batch in [part.batch for part in records.parts] if isinstance(records, SplitRecords) else [records.batch]:
        _check_batch_keys(topic, batch, range(row, row + batch.num_rows))
        row += batch.num_rows


def _check_batch_keys(topic: Topic, batch: pa.RecordBatch, rows: np.ndarray | range) -> None:
    keys = batch.column("key")
    if topic.config.compacted and keys.null_count:
        first = rows[int(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))[0])]
        raise InvalidRecordError(
            f"Record {first} has no key, and topic '{topic.name}' is compacted (cleanup.policy=compact): send a key."
        )


def _sticky_partition(topic: Topic, turn: int) -> int:
    """For records that leave it open: one that is served, if there is any."""
    served = [p.partition for p in topic.partitions if p.quarantined is None] or [0]
    return served[turn % len(served)]


def _split(topic: Topic, records: Records, partition: int | None, sticky: int) -> list[PartitionBatch]:
    if isinstance(records, SplitRecords):
        for part in records.parts:
            topic.partition(part.partition)
            if partition is not None and part.partition != partition:
                raise InvalidRequestError(
                    f"An Arrow batch names partition {part.partition} in its metadata, but the path names {partition}: "
                    "leave it out of the metadata, or post to the topic."
                )
        return list(records.parts)
    if partition is None:
        chosen = choose_partitions(records, len(topic.partitions), _sticky_partition(topic, sticky))
        return split_by_partition(records, chosen)
    topic.partition(partition)
    if records.partitions is not None:
        others = np.flatnonzero((records.partitions != partition) & (records.partitions != -1))
        if len(others):
            raise InvalidRequestError(
                f"Record {int(others[0])} names partition {int(records.partitions[others[0]])}, but the path names "
                f"{partition}: leave it out of the record, or post to the topic."
            )
    return [PartitionBatch(partition, records.batch, None, records.verbatim)]


__all__ = ["Broker", "FetchResult", "PartitionLog", "ProduceResult", "ProducedRange", "RollResult", "Topic"]
