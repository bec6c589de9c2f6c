"""The topics that are served: found at the start, and looked up. ``TopicChanges`` makes and removes them, on one node
and at the controller; on the other brokers of a cluster they appear and disappear by ``TopicDiscovery``.

Invariant: one change of the catalogue at a time, under ``lock``.
"""

import asyncio
import functools
import urllib.parse
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.nobody import Discovery
from logstore.broker.replica_manager import ReplicaManager
from logstore.broker.roll_schedule import RollSchedule
from logstore.broker.topics.catalog import TopicCatalog
from logstore.broker.topics.recovery import Unserved, end_at_holes, recover_partitions, recover_topic
from logstore.broker.topics.removals import Removals
from logstore.clock import Clock
from logstore.cluster.cluster_state import ClusterState, KnownTopic, PartitionState
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    CommitRefusedError,
    CorruptionError,
    DataDirectoryError,
    LeaderNotAvailableError,
    LogStoreError,
    QuarantinedError,
    StorageError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from logstore.filesystem import FileSystem
from logstore.journal.frame import Frame
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.log.journal_tail import JournalTail
from logstore.log.partition_log import PartitionLog
from logstore.log.roller import Roller
from logstore.log.topic import Topic
from logstore.names import INTERNAL_TOPICS, is_legal_name
from logstore.observability import forget_topic
from logstore.records.erasure_record import ERASURES_TOPIC
from logstore.settings import Settings

log = structlog.stdlib.get_logger(__name__)


class Topics:
    """``by_name`` is shared with the schedule of rolls; only this class changes it. ``appeared`` is called with a topic
    that another broker made, once it is served here.
    """

    def __init__(
        self,
        by_name: dict[str, Topic],
        settings: Settings,
        cluster_state: ClusterState,
        catalog: TopicCatalog,
        journal: Journal,
        roller: Roller,
        schedule: RollSchedule,
        replica_manager: ReplicaManager,
        authorizer: Authorizer,
        clock: Clock,
        appeared: Callable[[Topic], None],
    ) -> None:
        self._topics = by_name
        self._settings = settings
        self._location = settings.location
        self._cluster_state = cluster_state
        self._catalog = catalog
        self.lock = asyncio.Lock()
        self._journal = journal
        self._roller = roller
        self._schedule = schedule
        self._replica_manager = replica_manager
        self._authorizer = authorizer
        self._clock = clock
        self._appeared = appeared
        self.removals = Removals(catalog, journal, self.lock)
        self.removals.listeners.append(self._removed)
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._deleted: frozenset[uuid.UUID] = frozenset()
        #: Topics that other brokers made, and that are about to be served.
        self._appearing: set[str] = set()
        #: By name, the reason why a topic whose directory exists is not served.
        self.quarantined: dict[str, QuarantinedError] = {}
        #: The records in the journal of partitions that are not served.
        self.unserved = Unserved({}, {}, {}, set())

    def _has_copies(self, topic_id: uuid.UUID, partition: int) -> bool:
        """Return True if other brokers also have the partition, as far as ZooKeeper knows."""
        return len(self._cluster_state.partition_state(topic_id, partition).replicas) > 1

    async def recover(
        self,
        filesystem: FileSystem,
        tails: Mapping[PartitionKey, JournalTail],
        discovery: Discovery,
        load_erasures: Callable[[Topic], Awaitable[None]],
    ) -> None:
        """Bring every topic to its state before the stop, and start the journal. Raises CorruptionError.

        ``tails`` has the journal's frames of each partition. ``load_erasures`` reads the table of ``__erasures``.
        """
        tables, self.quarantined = await asyncio.to_thread(self._catalog.load)
        if self._catalog.is_shared:
            tables |= await self._mend(list(self.quarantined))
        for name, table in tables.items():
            self._add(self._topic(name, table, table.latest))
        by_id = self._by_id
        self._deleted = frozenset(self._catalog.deleted())
        ended = end_at_holes(tails, by_id, self._has_copies) if self._cluster_state.may_lack_frames else []
        self.unserved = await asyncio.to_thread(
            recover_partitions,
            self._journal,
            tails,
            by_id,
            lambda topic_id: topic_id in self._deleted or self._is_gone(topic_id),
            producer_ids_begin=lambda: self._cluster_state.producer_ids_begin,
        )
        if self._cluster_state.is_migration:
            self._require_all_served()
        await self._cluster_state.find_leaders([_known(topic) for topic in by_id.values()])
        if discovery.leads_before_journal:
            self._cluster_state.listen(self._partition_changed)
        self._schedule.keep_unserved(self.unserved.partitions)
        for topic_id, count in self.unserved.lost_partitions.items():
            await self._add_lost_partitions(by_id[topic_id], count)
        await asyncio.to_thread(self._catalog.forget_deleted, self.unserved.deleted)
        truncations = [p.truncation(p.log_end_offset, 0) for p in ended if p.recovered]
        await self._journal.start(self._snapshot_frames, self._cluster_state.journal_record, truncations)
        if not discovery.leads_before_journal:
            self._cluster_state.listen(self._partition_changed)
        filesystem.reached("recovery.half")
        await asyncio.to_thread(self._schedule.mark_all)
        # The topic of erasures comes first, because the table of another topic may contain erased records again.
        for topic in sorted(self._topics.values(), key=lambda topic: topic.name != ERASURES_TOPIC):
            await self.look_at_start(topic)
            if topic.name == ERASURES_TOPIC:
                await load_erasures(topic)
        discovery.start()

    async def _mend(self, names: Sequence[str]) -> dict[str, TopicTable]:
        """Return the tables among ``names`` that can be served once their logs are mended, by one broker at a time."""
        mended: dict[str, TopicTable] = {}
        for name in names:
            found = await asyncio.to_thread(self._catalog.open, name, mend=False)
            if isinstance(found, TopicTable):
                continue  # its log is whole: another table has the same id
            async with self._cluster_state.table_lock(name):
                found = await asyncio.to_thread(self._catalog.open, name, mend=True)
            if isinstance(found, TopicTable):
                mended[name] = found
                del self.quarantined[name]
        return mended

    def _require_all_served(self) -> None:
        """Raise DataDirectoryError unless all topics are served: a store of one node becomes a cluster whole."""
        unserved = {str(topic_id) for topic_id, _ in self.unserved.partitions if topic_id not in self._by_id}
        unserved |= {t.name for t in self._topics.values() if any(p.quarantined for p in t.partitions)}
        for name in sorted({*self.quarantined, *unserved}):
            raise DataDirectoryError(
                f"Topic {name} is quarantined: start the store without zookeeper.connect, mend it, as logstore "
                "doctor says, and then start the cluster."
            )

    def _is_gone(self, topic_id: uuid.UUID) -> bool:
        """Return True if the topic was certainly deleted: an unreadable table might be its table."""
        unknown = [name for name in self.quarantined if self._cluster_state.registered_topic(name) is None]
        return not unknown and self._cluster_state.is_gone(topic_id)

    async def _add_lost_partitions(self, topic: Topic, count: int) -> None:
        """Add the partitions again whose commit another writer overwrote: the journal has more than the table (R7)."""
        await asyncio.to_thread(topic.table.add_partitions, count)
        before = len(topic.partitions)
        topic.follow(await asyncio.to_thread(topic.table.snapshot))
        for partition_log in topic.partitions[before:]:
            why = "the commit that added it to the table was overwritten; it is committed again"
            partition_log.quarantine(why, "Restart the store: it then reads what the journal has of it")
            partition_log.postpone_recovery(None)
            log.error("partition.quarantined", topic=topic.name, partition=partition_log.partition, why=why)

    async def stop(self) -> None:
        """Let a removal under way finish; the next start finishes the others."""
        async with self.lock:
            self.removals.stop()

    def close(self, reason: LogStoreError) -> None:
        for topic in self._topics.values():
            for partition_log in topic.partitions:
                partition_log.close(reason)

    def _topic(self, name: str, table: TopicTable, snapshot: TopicSnapshot) -> Topic:
        return Topic(
            name,
            table,
            snapshot,
            location=f"{self._location}/topics/{urllib.parse.quote(name)}",
            defaults=self._settings.topic_defaults,
            clock=self._clock,
            producer_id_expiration_ms=self._settings.producer_id_expiration_ms,
        )

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = self._by_id[topic.topic_id] = topic
        topic.on_change(self._table_changed)

    def _table_changed(self, topic: Topic) -> None:
        """Report the topic's partitions to the cluster state, and apply their state: another broker may have registered
        them.
        """
        self._cluster_state.set_partitions(_known(topic))
        for partition_log in topic.partitions:
            state = self._cluster_state.partition_state(topic.topic_id, partition_log.partition)
            if partition_log.leader_epoch < 0 and state.replicas:
                self._partition_changed(topic.topic_id, partition_log.partition, state)

    def _partition_changed(self, topic_id: uuid.UUID, partition: int, state: PartitionState) -> None:
        """Pass the cluster state's event on to the replicas."""
        topic = self._by_id.get(topic_id)
        if topic is not None and partition < len(topic.partitions):
            self._replica_manager.partition_changed(topic, topic.partitions[partition], state)

    def _snapshot_frames(self) -> list[Frame]:
        logs = [p for t in (*self._topics.values(), *self.removals.unfinished) for p in t.partitions]
        served = {(p.topic_id, p.partition) for p in logs if p.recovered}
        kept = [k.snapshot for key, k in self.unserved.partitions.items() if k.snapshot and key not in served]
        return [*(p.snapshot_frame() for p in logs if p.recovered), *kept]

    # ---- lookups ----------------------------------------------------------------------------------------------------

    def all(self, context: RequestContext, *, include_internal: bool = False) -> list[Topic]:
        """Return the topics that the principal may describe, by name."""
        shown = self._authorizer.described(context, list(self._topics))
        found = sorted(self._topics.items())
        return [t for name, t in found if name in shown and (include_internal or not t.is_internal)]

    def topic(self, context: RequestContext, name: str, operation: Operation = Operation.DESCRIBE) -> Topic:
        """Return the topic, for ``operation``. Raises TopicAuthorizationError, UnknownTopicError and
        QuarantinedError.
        """
        self._authorizer.require(context, operation, ResourceType.TOPIC, name)
        return self.get(name)

    def topic_by_id(
        self, context: RequestContext, topic_id: uuid.UUID, operation: Operation = Operation.DESCRIBE
    ) -> Topic:
        """Return the topic as ``topic`` does. Raises UnknownTopicIdError instead of UnknownTopicError."""
        topic = self.by_id(topic_id)
        self._authorizer.require(context, operation, ResourceType.TOPIC, topic.name)
        return topic

    def get(self, name: str) -> Topic:
        """Return the topic, for the broker's own rooms, without a check of permissions.

        Raises UnknownTopicError, QuarantinedError, and LeaderNotAvailableError for one that other brokers already know.
        """
        topic = self._topics.get(name)
        if topic is None:
            if name in self.quarantined:
                raise self.quarantined[name]
            if (registered := self._cluster_state.registered_topic(name)) is not None and not registered.deleting:
                raise LeaderNotAvailableError(f"This broker is about to serve topic {name!r}: try again.")
            raise _unknown(name)
        return topic

    def served(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def names(self) -> list[str]:
        """Return the names that are taken: those of served topics, and those of topics that cannot be served."""
        return [*self._topics, *self.quarantined]

    def partition_log(self, topic_id: uuid.UUID, partition: int) -> PartitionLog | None:
        """Return a partition's log by its topic's id, for other brokers; None if it is not known here."""
        topic = self._by_id.get(topic_id)
        return None if topic is None or not 0 <= partition < len(topic.partitions) else topic.partitions[partition]

    def is_known(self, name: str, partitions: int = 1) -> bool:
        """Return True if ``get`` finds the topic, with this many partitions, or knows that it is quarantined."""
        topic = None if name in self._appearing else self._topics.get(name)
        return name in self.quarantined or (topic is not None and len(topic.partitions) >= partitions)

    def knows_id(self, topic_id: uuid.UUID) -> bool:
        """Return True if the topic with this id is served."""
        topic = self._by_id.get(topic_id)
        return topic is not None and topic.name not in self._appearing

    def by_id(self, topic_id: uuid.UUID) -> Topic:
        """Return the topic as ``get`` does. Raises UnknownTopicIdError."""
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicIdError(f"This broker has no topic with the id {topic_id}: it was deleted, or is new.")
        return topic

    def facts(self) -> dict[str, int]:
        """Return numbers for the log line of a start."""
        unsealed = sum(p.log_end_offset - p.sealed_offset for t in self._topics.values() for p in t.partitions)
        epochs = (p.leader_epoch for t in self._topics.values() for p in t.partitions)
        return {"topics": len(self._topics), "unsealed_records": unsealed, "leader_epoch": max(epochs, default=-1)}

    def was_deleted(self, context: RequestContext, topic_id: uuid.UUID) -> bool:
        """Return True if the topic is known to have been deleted before the start; a missing one is not.

        Raises ClusterAuthorizationError.
        """
        self._authorizer.require_cluster(context, Operation.CLUSTER_ACTION)
        return topic_id in self._deleted

    # ---- changes, under the lock ------------------------------------------------------------------------------------

    async def make(
        self,
        name: str,
        count: int,
        overrides: dict[str, str],
        replication_factor: int | None = None,
        assignments: Sequence[Sequence[int]] = (),
    ) -> Topic:
        """Make a new topic: its table, then its registration. Raises StorageFullError and StorageError."""
        await self.removals.make_way(name)
        table = await asyncio.to_thread(self._catalog.create, name, num_partitions=count, config_overrides=overrides)
        try:
            topic = self._topic(name, table, await asyncio.to_thread(table.snapshot))
        except BaseException:
            await asyncio.to_thread(self._catalog.take_back, name)
            raise
        topic.assign(0, assignments)
        self._add(topic)
        self._cluster_state.set_partitions(_known(topic, replication_factor))
        log.info("topic.created", topic=name, partitions=count, configs=overrides)
        return topic

    async def remove(self, topic: Topic) -> None:
        """Remove the topic, under ``lock``. Raises StorageFullError and StorageError."""
        async with topic.commit_lock:
            await asyncio.to_thread(self._catalog.remove, topic.name, topic.topic_id)
            self._end(topic)
            await self.removals.begin(topic)

    def _end(self, topic: Topic) -> None:
        """Stop serving the topic."""
        topic.delete()
        if self._by_id.pop(topic.topic_id, None) is not None:
            del self._topics[topic.name]
        self._roller.forget(topic)
        self._replica_manager.forget(topic)
        forget_topic(topic.name)

    async def _removed(self, topic: Topic) -> None:
        # This runs once the removal is durable: a table that a power cut brings back must not be taken for a new one.
        self.unserved.forget(topic.topic_id)
        self._cluster_state.forget_topic(topic.topic_id)

    # ---- changes of other brokers (TopicDiscovery) ------------------------------------------------------------------

    def forget_gone(self) -> None:
        for topic_id in {key[0] for key in self.unserved.partitions}:
            if topic_id not in self._by_id and self._is_gone(topic_id):
                self.unserved.forget(topic_id)
                self._journal.forget(topic_id)

    async def appear(self, name: str, topic_id: uuid.UUID) -> None:
        """Serve the topic by its table. Raises StorageError if that is missing or another topic's, and
        QuarantinedError.
        """
        self._appearing.add(name)
        try:
            if not await asyncio.to_thread(self._catalog.exists, name):
                raise StorageError(f"The table of topic {name!r} is not there: restore it, or delete the topic.")
            topic = await self._open(name)
            if topic.topic_id != topic_id:
                raise StorageError(
                    f"The table of topic {name!r} has the id {topic.topic_id}, and ZooKeeper {topic_id}."
                )
            await self._serve(topic)
        finally:
            self._appearing.discard(name)

    async def _open(self, name: str) -> Topic:
        table = await asyncio.to_thread(self._catalog.open, name, mend=False)
        if isinstance(table, QuarantinedError):
            async with self._cluster_state.table_lock(name):
                table = await asyncio.to_thread(self._catalog.open, name, mend=True)
        if isinstance(table, QuarantinedError):
            self.quarantined[name] = table
            raise table
        return self._topic(name, table, table.latest)

    async def _serve(self, topic: Topic) -> None:
        """Serve a topic whose table existed before this broker knew of it, with its frames in the journal."""
        begin = self._cluster_state.producer_ids_begin
        recover = functools.partial(recover_topic, topic, self.unserved, producer_ids_begin=begin)
        # Kept frames may be copied forward in the meantime. On the event loop nothing comes between.
        kept = any(key[0] == topic.topic_id for key in self.unserved.partitions)
        count = recover() if kept else await asyncio.to_thread(recover)
        self.unserved.served(topic)
        self.quarantined.pop(topic.name, None)
        self._add(topic)
        if count > len(topic.partitions):
            await self._add_lost_partitions(topic, count)
        await self.look_at_start(topic)
        self._table_changed(topic)
        self._schedule.touch(topic)
        self._appeared(topic)
        log.info("topic.appeared", topic=topic.name, partitions=len(topic.partitions))

    async def follow(self, topic: Topic) -> None:
        await self._roller.refresh(topic)
        self._schedule.touch(topic)
        self._appeared(topic)

    async def look_at_start(self, topic: Topic) -> None:
        try:
            await self._roller.refresh(topic, at_start=True)
        except (CorruptionError, CommitRefusedError) as error:
            # The schedule tries again. Until then nothing is built on a table that may show too little.
            topic.quarantine(str(error), "Mend its table; the store looks at it every few seconds")
            log.error("topic.quarantined", topic=topic.name, why=str(error))
            return
        except StorageError:
            if not self._catalog.is_shared or not await self.was_removed(topic):
                raise
            # Another broker has deleted it since this one began to start. Discovery drops it.
            log.info("topic.deleted_meanwhile", topic=topic.name)
            return
        for partition_log in topic.partitions:
            self._journal.release(topic.topic_id, partition_log.partition, partition_log.sealed_offset)

    async def was_removed(self, topic: Topic) -> bool:
        def look() -> bool:
            return topic.topic_id in self._catalog.deleted() or not self._catalog.exists(topic.name)

        return await asyncio.to_thread(look)

    def let_go(self, topic: Topic) -> None:
        self._replica_manager.let_go(topic)

    async def drop(self, topic: Topic) -> None:
        async with topic.commit_lock:
            self._end(topic)
            self._journal.forget(topic.topic_id)
            for listener in self.removals.listeners:
                await listener(topic)
        log.info("topic.disappeared", topic=topic.name)

    async def look_at_tables(self) -> None:
        for name in await asyncio.to_thread(self._catalog.names):
            found = self._cluster_state.registered_topic(name)
            is_deleting = found is not None and found.deleting
            if name in self._topics and not is_deleting:
                continue
            try:
                topic = self._topics.get(name) or await self._open(name)
                if is_deleting:
                    self._cluster_state.set_partitions(_known(topic))
                else:
                    await self._serve(topic)
            except LogStoreError as error:
                log.error("topic.not_opened", topic=name, error=str(error))
                if found is not None and found.deleting:
                    self._cluster_state.set_partitions(KnownTopic(name, found.topic_id, ()))

    async def finish_deletion(self, name: str, topic_id: uuid.UUID) -> None:
        topic = self._by_id.get(topic_id)
        if topic is None and await asyncio.to_thread(self._catalog.exists, name):
            topic = await self._open(name)
        if topic is None or topic.topic_id != topic_id:
            self._cluster_state.forget_topic(topic_id)
            return
        log.info("topic.deletion_finished", topic=name)
        await self.remove(topic)


def _known(topic: Topic, replication_factor: int | None = None) -> KnownTopic:
    in_table = topic.snapshot.partitions
    epochs = tuple(max(in_table[p.partition].leader_epoch, p.state.leader_epochs.last) for p in topic.partitions)
    has_records = any(p.log_end_offset for p in topic.partitions)
    unclean = topic.config.unclean_leader_election_enable
    return KnownTopic(topic.name, topic.topic_id, epochs, has_records, replication_factor, unclean, topic.assignments)


def _unknown(name: str) -> UnknownTopicError:
    if not is_legal_name(name, TOPIC_NAME_LENGTH_MAX):
        return UnknownTopicError(f"Topic {name[:TOPIC_NAME_LENGTH_MAX]!r} not found: no topic can have that name.")
    if name in INTERNAL_TOPICS:
        return UnknownTopicError(f"Topic {name!r} not found: the store creates it when it needs it.")
    return UnknownTopicError(
        f"Topic {name!r} not found: logstore topic list has the names, logstore topic create {name} makes it."
    )
