"""ZooKeeper as brokers see it: a document with compare-and-set, registrations that end, watches that are late.

A request is executed when the schedule says so, and its response may be lost.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from logstore.cluster import znodes
from logstore.cluster.alter_partition_manager import AlterPartitionManager
from logstore.cluster.cluster_state import PartitionListener, PartitionState
from logstore.cluster.registration import Registration
from logstore.cluster.view import ClusterView, LiveBroker, TopicNode
from logstore.cluster.znodes import BrokerRegistration, PartitionRegistration, TopicRegistration
from logstore.cluster.zookeeper import Check, MultiRefusedError, Operation, VersionConflictError, Write
from logstore.cluster.zookeeper_cluster_state import ZooKeeperClusterState
from logstore.errors import ZooKeeperUnavailableError

TOPIC = "t"
PATH = znodes.topic_path(TOPIC)


class ZooKeeper:
    def __init__(self, topic_id: UUID, row: PartitionRegistration) -> None:
        self.topic = TopicNode(TopicRegistration(topic_id, 0, False, (row,)), 0, 1)
        self.brokers: dict[int, LiveBroker] = {}
        self.record_versions: dict[int, int] = {}
        self._zxid = 1
        #: Called with the row before and after each write.
        self.written: Callable[[PartitionRegistration, PartitionRegistration], None] = lambda _, __: None

    @property
    def row(self) -> PartitionRegistration:
        return self.topic.document.partitions[0]

    @property
    def view(self) -> ClusterView:
        return ClusterView(None, dict(self.brokers), {TOPIC: self.topic})

    def write(self, document: TopicRegistration, version: int | None = None) -> None:
        """Write the document, over any version unless one is given. Raises VersionConflictError."""
        if version is not None and version != self.topic.version:
            raise VersionConflictError(f"version {self.topic.version} instead of {version}")
        before = self.row
        self._zxid += 1
        self.topic = TopicNode(document, self.topic.version + 1, self._zxid)
        self.written(before, self.row)

    def write_row(self, row: PartitionRegistration) -> None:
        if row != self.row:
            self.write(replace(self.topic.document, partitions=(row,)))

    # ---- brokers ----

    def begin(self, broker: int, *, is_known: bool) -> None:
        """Begin as ``Registration.begin`` does for a start."""
        registration: Any = Registration.__new__(Registration)
        registration._broker_id = broker
        change = registration._resign if is_known else registration._leave
        if not is_known:
            self.record_versions[broker] = self.record_versions.get(broker, 0) + 1
        self.write_row(change(self.row))
        self.record_versions[broker] = self.record_versions.get(broker, 0) + 1

    def register(self, broker: int, state: Any = "running") -> int:
        """Register the broker and return its new broker epoch."""
        self._zxid += 1
        registration = BrokerRegistration("", "", None, state, self.record_versions[broker])
        self.brokers[broker] = LiveBroker(registration, self._zxid)
        return self._zxid

    def stop_running(self, broker: int) -> None:
        """Mark the broker as shutting down, in the same registration."""
        live = self.brokers[broker]
        self.brokers[broker] = LiveBroker(replace(live.registration, state="shutting_down"), live.epoch)

    def execute(self, operations: Sequence[Operation]) -> None:
        for at, operation in enumerate(operations):
            version = (
                self.record_versions[int(operation.path.rpartition("/")[2])]
                if isinstance(operation, Check)
                else self.topic.version
            )
            if operation.version != version:  # type: ignore[union-attr]
                raise MultiRefusedError(at, operation, VersionConflictError("another version"))
        for operation in operations:
            if isinstance(operation, Write):
                self.write(znodes.decode(PATH, operation.data, TopicRegistration))


class Request:
    """A request of a broker that ZooKeeper has not executed yet."""

    def __init__(self, session: "Session", operations: Sequence[Operation] | None) -> None:
        self.session = session
        #: The writes of the request; None for a read of the nodes.
        self.operations = operations
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def execute(self, *, answer_is_lost: bool) -> None:
        error: Exception | None = None
        try:
            if self.operations is not None:
                self.session.zookeeper.execute(self.operations)
            else:
                self.session.learn([PATH])
        except MultiRefusedError as refused:
            error = refused
        if answer_is_lost:
            error = ZooKeeperUnavailableError("the answer was lost")
        if not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)

    def fail(self) -> None:
        if not self.done.done():
            self.done.set_exception(ZooKeeperUnavailableError("no connection"))


class Session:
    """A process's session, with its watched view: ``ZooKeeper`` and ``WatchedView`` for ``AlterPartitionManager``."""

    def __init__(self, zookeeper: ZooKeeper, requests: list[Request], run: Callable[..., Any]) -> None:
        self.zookeeper = zookeeper
        self._requests = requests
        self._run = run
        self.view = zookeeper.view
        self.is_connected = True
        self.changed: Callable[[ClusterView, ClusterView, Iterable[str]], None] = lambda _, __, ___: None

    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._request(operations)

    async def sync(self) -> None:
        """Return at once, because there is only one server."""

    async def refresh(self, paths: Iterable[str]) -> None:
        del paths
        await self._request(None)

    async def _request(self, operations: Sequence[Operation] | None) -> None:
        if not self.is_connected:
            await asyncio.sleep(0.01)
            raise ZooKeeperUnavailableError("no connection")
        request = Request(self, operations)
        self._requests.append(request)
        await request.done

    def learn(self, paths: Sequence[str]) -> None:
        """Read the nodes at ``paths``, whose watches have fired, and perhaps not the others yet."""
        before, there = self.view, self.zookeeper
        topics = {TOPIC: there.topic} if PATH in paths else before.topics
        brokers: Mapping[int, LiveBroker] = dict(there.brokers) if znodes.BROKER_IDS in paths else before.brokers
        self.view = ClusterView(None, brokers, topics)
        changed = [TOPIC] if topics[TOPIC] is not before.topics[TOPIC] else []
        if changed or brokers != before.brokers:
            self._run(self.changed, before, self.view, changed)


class PlayedClusterState:
    """A cluster state like ``ZooKeeperClusterState``, with that class's parts."""

    def __init__(self, broker_id: int, session: Session, topic_id: UUID, producer_ids_begin: int) -> None:
        self.broker_id = broker_id
        self.has_lease = True
        self.producer_ids_begin = producer_ids_begin
        self._broker_id = broker_id
        self._is_registered = True
        self._session = session
        self._changes = AlterPartitionManager(session, session, broker_id)  # type: ignore[arg-type]
        self._listeners: list[PartitionListener] = []
        self._topic_listeners: list[Any] = []
        self._broker_listeners: list[Any] = []
        self._names: dict[UUID, str] = {topic_id: TOPIC}
        self._tables: dict[UUID, Any] = {}
        self._view_changed_event = SimpleNamespace(set=lambda: None)
        session.changed = self._view_changed  # type: ignore[assignment]

    @property
    def view(self) -> ClusterView:
        return self._session.view

    _view_changed: Any = ZooKeeperClusterState._view_changed
    _look_for_loss: Any = ZooKeeperClusterState._look_for_loss
    _notify_of_partitions: Any = ZooKeeperClusterState._notify_of_partitions
    _believed: Any = ZooKeeperClusterState._believed
    listen: Any = ZooKeeperClusterState.listen
    listen_to_brokers: Any = ZooKeeperClusterState.listen_to_brokers
    may_join: Any = ZooKeeperClusterState.may_join

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
        return await self._changes.alter(
            TOPIC, topic_id, partition, seen, in_sync_replicas, broker_epochs, recovering=recovering
        )
