"""The cluster state of a broker in a cluster: it passes ZooKeeper's state to the broker.

It combines the parts: the session, the broker's registration and lease, the watched view, the controller (which each
broker may become), the leader's writes, ids of producers and locks of tables. When a session ends, the broker registers
again with a new epoch, and reads everything again; it continues to lead what ZooKeeper still says it leads.
"""

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final
from uuid import UUID

import structlog
from msgspec.structs import replace

from logstore.clock import Clock, SystemClock
from logstore.cluster import znodes
from logstore.cluster.alter_partition_manager import AlterPartitionManager
from logstore.cluster.cluster_state import (
    NO_PARTITION,
    BrokerEndpoint,
    Elected,
    ElectionType,
    KnownTopic,
    PartitionListener,
    PartitionState,
    ReadJournal,
    RegisteredTopic,
    TopicListener,
)
from logstore.cluster.controller import IMBALANCE_CHECK_INTERVAL_S, Controller
from logstore.cluster.kazoo_client import MakeClient, kazoo_client
from logstore.cluster.log_directory import REPLICAS_ARE_COPIED, DirectoryRecord
from logstore.cluster.producer_ids import ProducerIdBlocks
from logstore.cluster.reconcile import Policy, Preferred
from logstore.cluster.registration import Registration
from logstore.cluster.table_locks import TableLocks
from logstore.cluster.view import ClusterView, TopicNode, WatchedView
from logstore.cluster.znodes import NO_LEADER, PartitionRegistration, TopicRegistration
from logstore.cluster.zookeeper import SESSION_TIMEOUT_MS, Servers, SessionState, ZooKeeper
from logstore.errors import LogStoreError, NotControllerError, UnknownTopicIdError, ZooKeeperUnavailableError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalCorruptionError
from logstore.journal.identity import FoundJournal
from logstore.lock_file import LockFile
from logstore.settings import Settings

log = structlog.stdlib.get_logger(__name__)

_RETRY_S: Final = 0.2
#: The longest wait for ZooKeeper to confirm a leader.
_TELL_S: Final = 2.0


class ZooKeeperClusterState:
    """``connect`` is ``zookeeper.connect``, ``data`` the directory that all brokers share, ``log_directory`` this
    broker's own. ``url`` and ``peer`` (host:port) are the addresses for clients and for brokers.

    ``start`` raises InvalidConfigError, ZooKeeperUnavailableError, DataDirectoryError and ClusterStateError.
    """

    def __init__(
        self,
        connect: str,
        data: Path,
        log_directory: Path,
        broker_id: int,
        filesystem: FileSystem,
        *,
        url: str,
        peer: str,
        kafka: str | None = None,
        rack: str | None = None,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        policy: Policy | None = None,
        imbalance_check_interval_s: float = IMBALANCE_CHECK_INTERVAL_S,
        clock: Clock | None = None,
        make_client: MakeClient = kazoo_client,
    ) -> None:
        clock = clock or SystemClock()
        self._broker_id = broker_id
        self._log_directory = log_directory
        self._filesystem = filesystem
        self._locks: tuple[LockFile, ...] = ()
        self.zookeeper = zookeeper = ZooKeeper(
            Servers.parse(connect), session_timeout_ms=session_timeout_ms, clock=clock, make_client=make_client
        )
        self.registration = Registration(
            zookeeper, data, log_directory, broker_id, filesystem, clock, url=url, kafka=kafka, peer=peer, rack=rack
        )
        self._watched = WatchedView(zookeeper)
        self._tables: dict[UUID, KnownTopic] = {}
        self.controller = Controller(
            zookeeper,
            self._watched,
            broker_id,
            self._tables,
            policy or Policy(),
            is_registered=lambda: self._is_registered,
            imbalance_check_interval_s=imbalance_check_interval_s,
        )
        self._changes = AlterPartitionManager(zookeeper, self._watched, broker_id)
        self._producer_ids = ProducerIdBlocks(zookeeper)
        self._producer_ids_begin = 0
        self._table_locks = TableLocks(zookeeper, broker_id)
        self._listeners: list[PartitionListener] = []
        self._topic_listeners: list[TopicListener] = []
        self._broker_listeners: list[Callable[[], None]] = []
        self._handing_over = False
        self._names: dict[UUID, str] = {}
        self._to_register = asyncio.Event()
        self._view_changed_event = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    def of(
        cls,
        settings: Settings,
        filesystem: FileSystem,
        *,
        url: str,
        kafka: str | None = None,
        clock: Clock | None = None,
        make_client: MakeClient = kazoo_client,
    ) -> "ZooKeeperClusterState":
        """Make one from the settings of a broker with ``zookeeper.connect``. Raises InvalidConfigError."""
        assert settings.zookeeper_connect is not None
        return cls(
            settings.zookeeper_connect,
            settings.data,
            settings.log_directory,
            settings.broker_id,
            filesystem,
            url=url,
            kafka=kafka,
            peer="",  # ``Registration.advertise`` sets it
            rack=settings.broker_rack or socket.gethostname(),
            session_timeout_ms=settings.zookeeper_session_timeout_ms,
            policy=Policy(
                default_replication_factor=settings.default_replication_factor,
                preferred=Preferred.IMBALANCED if settings.auto_leader_rebalance_enable else Preferred.NONE,
                imbalance_percentage=settings.leader_imbalance_per_broker_percentage,
            ),
            imbalance_check_interval_s=settings.leader_imbalance_check_interval_seconds,
            clock=clock,
            make_client=make_client,
        )

    # ---- start and stop ---------------------------------------------------------------------------------------------

    async def start(self, read_journal: ReadJournal) -> None:
        try:
            await asyncio.to_thread(self.registration.look_at_data)
            await asyncio.to_thread(self._lock)
            # This happens before anyone counts on this broker: with a damaged journal it does not register.
            found = await asyncio.to_thread(self._read, read_journal)
            await self.zookeeper.start()
            try:
                await self.registration.begin(found)
                self._watched.listen(self._view_changed)
                await self._watched.start()
                await self.registration.register()
                await self._watched.refresh([znodes.BROKER_IDS])
            except BaseException:
                await self._watched.stop()
                await self.zookeeper.stop()
                raise
        except BaseException:
            self._release()
            raise
        self.registration.read_view = self._read_topics
        self.zookeeper.listen(self._session_changed)
        self._tasks = [
            asyncio.create_task(self._keep_registered()),
            asyncio.create_task(self.registration.keep_lease(self._register_again)),
        ]

    def _lock(self) -> None:
        self._filesystem.make_directory(self._log_directory)
        self._locks = (LockFile.acquire(self._log_directory, self._filesystem),)

    def _read(self, read_journal: ReadJournal) -> FoundJournal:
        try:
            return read_journal(self._locks)
        except JournalCorruptionError as error:
            if self.registration.is_migration:  # no other broker has the records of a store of one node
                raise
            remedy = f"Remove the log directory {self._log_directory} (keep a copy): {REPLICAS_ARE_COPIED}"
            raise JournalCorruptionError(error.path, error.position, error.reason, remedy) from error

    def _release(self) -> None:
        self.registration.release()
        for lock in self._locks:
            lock.release()

    async def stop(self) -> None:
        """End the session; the controller notices at once."""
        await self.controller.stop()
        await self._changes.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._watched.stop()
        self.registration.session_ended()
        await self.zookeeper.stop()
        self._release()

    # ---- session ----------------------------------------------------------------------------------------------------

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self.registration.session_ended()
            log.warning("cluster.session_ended", broker=self._broker_id)
        elif state is SessionState.CONNECTED and self.registration.broker_epoch == -1:
            self._to_register.set()

    async def _register_again(self) -> None:
        self._to_register.set()

    async def _keep_registered(self) -> None:
        failure = ""
        while True:
            await self._to_register.wait()
            self._to_register.clear()
            if self.registration.broker_epoch != -1:
                continue
            try:
                await self.registration.register()
                self._registered_again()
                failure = ""
            except LogStoreError as error:
                if error.message != failure:
                    log.error("cluster.not_registered", broker=self._broker_id, why=error.message)
                failure = error.message
                if self.zookeeper.state is SessionState.CONNECTED:
                    await asyncio.sleep(_RETRY_S)
                    self._to_register.set()

    # ---- the view ---------------------------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        return self.registration.cluster_id

    @property
    def broker_id(self) -> int:
        return self._broker_id

    @property
    def broker_epoch(self) -> int:
        """The czxid of the broker's node; -1 while it is not registered."""
        return self.registration.broker_epoch

    @property
    def view(self) -> ClusterView:
        return self._watched.view

    @property
    def brokers(self) -> Sequence[int]:
        return sorted(self.view.brokers)

    @property
    def brokers_by_id(self) -> Mapping[int, BrokerEndpoint]:
        registered = {one: broker.registration for one, broker in sorted(self.view.brokers.items())}
        return {one: BrokerEndpoint(one, found.url, found.rack, found.kafka) for one, found in registered.items()}

    @property
    def is_migration(self) -> bool:
        return self.registration.is_migration

    @property
    def placeable_brokers(self) -> int:
        return sum(broker.is_running for broker in self.view.brokers.values())

    @property
    def not_ready_reason(self) -> str | None:
        if self._handing_over:
            return "the broker stops: others lead its partitions from now on"
        if self.registration.broker_epoch == -1:
            return f"ZooKeeper has ended the session of broker {self._broker_id}: it registers again"
        return None  # this also holds without a connection: what needs no lease continues

    @property
    def damaged_topics(self) -> Mapping[str, str]:
        topics = f"{znodes.TOPICS}/"
        return {path.removeprefix(topics): why for path, why in self.view.damaged.items() if path.startswith(topics)}

    @property
    def locks(self) -> Sequence[LockFile]:
        return self._locks

    @property
    def journal_record(self) -> DirectoryRecord:
        return self.registration.journal_record

    @property
    def may_lack_frames(self) -> bool:
        return self.registration.may_lack_frames

    @property
    def controller_id(self) -> int:
        return -1 if self.view.controller is None else self.view.controller.broker_id

    @property
    def has_lease(self) -> bool:
        return self.registration.lease.is_held

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        node = self.view.topics.get(self._names.get(topic_id, ""))
        if node is None or not 0 <= partition < len(node.document.partitions):
            return NO_PARTITION
        return self._believed(_state(node.document, node.document.partitions[partition]))

    def listen(self, listener: PartitionListener) -> None:
        self._listeners.append(listener)
        for node in list(self.view.topics.values()):
            for partition, state in enumerate(_states(node)):
                if state.leader != NO_LEADER:
                    _notify(listener, node.document.topic_id, partition, self._believed(state))

    def listen_to_brokers(self, listener: Callable[[], None]) -> None:
        self._broker_listeners.append(listener)

    def may_join(self, broker_id: int, broker_epoch: int) -> bool:
        return self.view.may_join(broker_id, broker_epoch)

    def listen_to_topics(self, listener: TopicListener) -> None:
        self._topic_listeners.append(listener)
        for name in list(self.view.topics):
            listener(name)

    def registered_topics(self) -> Sequence[str]:
        return list(self.view.topics)

    def registered_topic(self, name: str) -> RegisteredTopic | None:
        node = self.view.topics.get(name)
        if node is None:
            return None
        found = node.document
        return RegisteredTopic(found.topic_id, found.version, found.deleting, len(found.partitions))

    async def refresh_topics(self, names: Collection[str]) -> None:
        await self.zookeeper.sync()
        await self._watched.refresh(znodes.topic_path(name) for name in names)

    async def _read_topics(self) -> None:
        """Read all documents and the current leaders. Raises ZooKeeperUnavailableError."""
        await self.zookeeper.sync()
        try:
            await self._watched.refresh([znodes.TOPICS, *(znodes.topic_path(topic) for topic in self.view.topics)])
        except LogStoreError:
            raise
        except Exception as error:
            raise ZooKeeperUnavailableError("The view of the cluster cannot be read: see the log.") from error

    def is_gone(self, topic_id: UUID) -> bool:
        # An unreadable document may be the topic's.
        return topic_id not in self._names and not self.damaged_topics and not self.registration.is_migration

    def on_election(self, prepare: Callable[[], Awaitable[None]]) -> None:
        self.controller.prepare = prepare

    def _view_changed(self, before: ClusterView, after: ClusterView, changed: Collection[str]) -> None:
        self._view_changed_event.set()
        for name in sorted(changed):
            self._look_for_loss(before.topics.get(name), after.topics.get(name))
            self._notify_of_partitions(name, before.topics.get(name), after.topics.get(name))
            for listener in self._topic_listeners:
                listener(name)
        if before.brokers != after.brokers:
            for told in self._broker_listeners:
                told()

    def _look_for_loss(self, old: TopicNode | None, new: TopicNode | None) -> None:
        """Keep a topic from being placed again if its document was removed by hand, as it went without ``deleting``:
        its records may be in journals alone.
        """
        if old is None or old.document.deleting or (new and new.document.topic_id == old.document.topic_id):
            return
        if (table := self._tables.get(old.document.topic_id)) is not None:
            self._tables[table.topic_id] = dataclasses.replace(table, has_records=True)

    def _notify_of_partitions(self, name: str, old: TopicNode | None, new: TopicNode | None) -> None:
        if old is not None and (new is None or new.document.topic_id != old.document.topic_id):
            self._names.pop(old.document.topic_id, None)
            old = None
        if new is None:
            return
        self._names[new.document.topic_id] = name
        known = _states(old)
        for partition, state in enumerate(_states(new)):
            if partition < len(known) and known[partition] == state:
                continue
            if partition >= len(known) and state.leader == NO_LEADER:
                continue
            for listener in self._listeners:
                _notify(listener, new.document.topic_id, partition, self._believed(state))

    @property
    def _is_registered(self) -> bool:
        return self.registration.broker_epoch != -1

    def _believed(self, state: PartitionState) -> PartitionState:
        """Return the state as this broker may act on it. While it is not registered, another process may have its id
        and lead: then the state is about that process.
        """
        if state.leader != self._broker_id or self._is_registered:
            return state
        return dataclasses.replace(state, leader=NO_LEADER)

    def _registered_again(self) -> None:
        """Report the partitions that this broker leads, and wake the controller, which may be elected here."""
        self.controller.wake(None)
        for node in list(self.view.topics.values()):
            for partition, state in enumerate(_states(node)):
                for listener in self._listeners if state.leader == self._broker_id else ():
                    _notify(listener, node.document.topic_id, partition, state)

    # ---- topics -----------------------------------------------------------------------------------------------------

    async def find_leaders(self, topics: Sequence[KnownTopic]) -> None:
        for topic in topics:
            self._tables[topic.topic_id] = topic
        last_epoch = max((epoch for topic in topics for epoch in topic.leader_epochs), default=0)
        await self._producer_ids.start(max(last_epoch, self.registration.last_epoch_of_one_node))
        self._producer_ids_begin = self._producer_ids.known_end
        if self.registration.is_migration:
            await self._migrate(topics)
        # Only a controller that knows the tables knows which of them lack a document.
        self.controller.start()

    async def _migrate(self, topics: Sequence[KnownTopic]) -> None:
        """Register a former store of one node: this broker has the only replica of everything, and its journal the
        tail. After a crash it begins again, even if the store of one node has served in between.
        """
        last = self.registration.last_epoch_of_one_node
        for topic in topics:
            path = znodes.topic_path(topic.name)
            node = await self.zookeeper.get(path)
            epochs = [max(epoch, last) for epoch in topic.leader_epochs]
            if node is not None:
                rows = znodes.decode(path, node.data, TopicRegistration).partitions
                epochs = [max(epoch, *(row.leader_epoch for row in rows)) for epoch in epochs]
            own = (self._broker_id,)
            partitions = tuple(PartitionRegistration(NO_LEADER, epoch, own, own) for epoch in epochs)
            data = znodes.encode(path, TopicRegistration(topic.topic_id, 0, False, partitions))
            if node is None:
                await self.zookeeper.create(path, data)
            else:
                await self.zookeeper.write(path, data, node.version)
        await self.registration.end_migration()
        await self._watched.refresh([znodes.TOPICS, *(znodes.topic_path(topic.name) for topic in topics)])

    def set_partitions(self, topic: KnownTopic) -> None:
        self._tables[topic.topic_id] = topic
        self.controller.wake(topic.name)

    async def mark_deleting(self, topic_id: UUID) -> None:
        if not self.controller.is_active:
            raise NotControllerError(f"Broker {self.controller_id} is the controller: topics are deleted there.")
        if (name := self._names.get(topic_id)) is not None:
            await self.controller.mark_deleting(name, topic_id)

    def forget_topic(self, topic_id: UUID) -> None:
        topic = self._tables.pop(topic_id, None)
        if topic is not None:
            self.controller.wake(topic.name)

    async def leads_still(self, topic_id: UUID, partition: int, leader_epoch: int) -> bool:
        try:
            async with asyncio.timeout(_TELL_S):
                await self.refresh_topics([self._name(topic_id)])
        except (TimeoutError, LogStoreError):
            return False
        state = self.partition_state(topic_id, partition)
        return (state.leader, state.leader_epoch) == (self._broker_id, leader_epoch)

    async def alter_partition(
        self,
        topic_id: UUID,
        partition: int,
        seen: PartitionState,
        in_sync_replicas: Sequence[int],
        *,
        broker_epochs: Mapping[int, int],
        recovering: bool = False,
    ) -> PartitionState:
        name = self._name(topic_id)
        return await self._changes.alter(
            name, topic_id, partition, seen, in_sync_replicas, broker_epochs, recovering=recovering
        )

    async def elect_leaders(
        self, election: ElectionType, partitions: Mapping[str, Collection[int]] | None = None
    ) -> Elected:
        return await self.controller.elect(election, partitions)

    async def reassign(self, topic: str, targets: Mapping[int, Sequence[int] | None]) -> None:
        await self.controller.reassign(topic, targets)

    async def table_changed(self, topic_id: UUID) -> None:
        """Make all brokers read the changed configuration in the topic's table."""
        await self._changes.bump_version(self._name(topic_id), topic_id)

    def _name(self, topic_id: UUID) -> str:
        try:
            return self._names[topic_id]
        except KeyError:
            raise UnknownTopicIdError(f"ZooKeeper has no topic with the id {topic_id}.") from None

    def table_lock(self, topic: str) -> AbstractAsyncContextManager[None]:
        return self._table_locks.hold(topic)

    # ---- this broker ------------------------------------------------------------------------------------------------

    async def set_offline(self, offline: Mapping[str, Sequence[int]]) -> None:
        """Report, by topic, the partitions that this broker's disk cannot serve, so that others lead them.

        Raises ZooKeeperUnavailableError.
        """
        found = {topic: tuple(partitions) for topic, partitions in offline.items()}
        await self.registration.update(lambda registration: replace(registration, offline=found))

    def replicas_here(self) -> Mapping[str, Sequence[int]]:
        rows = {name: enumerate(node.document.partitions) for name, node in self.view.topics.items()}
        here = {name: [at for at, row in found if self._broker_id in row.replicas] for name, found in rows.items()}
        return {name: partitions for name, partitions in here.items() if partitions}

    async def hand_over(self, timeout_s: float) -> bool:
        self._handing_over = True
        with contextlib.suppress(TimeoutError, ZooKeeperUnavailableError):
            async with asyncio.timeout(timeout_s):
                await self.registration.update(lambda registration: replace(registration, state="shutting_down"))
                while self._leads_what_others_could:
                    self._view_changed_event.clear()
                    await self._view_changed_event.wait()
                return True
        return False

    @property
    def _leads_what_others_could(self) -> bool:
        view = self.view
        return any(
            row.leader == self._broker_id
            and not row.recovering
            and any(
                one != self._broker_id and view.is_replica_live(one, name, partition) and view.brokers[one].is_running
                for one in row.isr
            )
            for name, node in view.topics.items()
            for partition, row in enumerate(node.document.partitions)
        )

    @property
    def producer_ids_begin(self) -> int:
        return self._producer_ids_begin

    async def new_producer_id(self) -> int:
        return await self._producer_ids.new()

    def is_issued(self, producer_id: int) -> bool:
        return self._producer_ids.is_given(producer_id)

    async def refresh_producer_ids(self) -> None:
        """Learn which ids other brokers have given, before ``is_issued`` refuses one. Raises
        ZooKeeperUnavailableError.
        """
        await self._producer_ids.refresh()


def _notify(listener: PartitionListener, topic_id: UUID, partition: int, state: PartitionState) -> None:
    try:
        listener(topic_id, partition, state)
    except Exception:
        # If a listener fails for one partition, the events of the others still arrive; they would not come again.
        log.exception("cluster.partition_not_told", topic_id=str(topic_id), partition=partition)


def _states(node: TopicNode | None) -> tuple[PartitionState, ...]:
    """Return the states by partition."""
    return () if node is None else tuple(_state(node.document, row) for row in node.document.partitions)


def _state(document: TopicRegistration, row: PartitionRegistration) -> PartitionState:
    """Return the row's state; without a leader if the topic is being deleted."""
    if not document.deleting:
        return row.state
    return PartitionState(NO_LEADER, row.leader_epoch + 1, row.replicas, row.isr)
