"""Brokers of a cluster in one process, without sockets and without ZooKeeper: the state of partitions is a dictionary,
and a fetch is a call. It is for tests of replication itself.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from logstore.broker.authorizer import Authorizer
from logstore.broker.broker import Broker
from logstore.broker.elsewhere.nobody import Links
from logstore.broker.opened_journal import OpenedJournal
from logstore.broker.quotas import Quotas
from logstore.broker.topics.catalog import TopicCatalog
from logstore.cluster.cluster_state import NO_PARTITION, BrokerEndpoint, KnownTopic, PartitionListener, PartitionState
from logstore.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    NetworkError,
    NotLeaderOrFollowerError,
    ZooKeeperUnavailableError,
)
from logstore.filesystem import Buffer, FileSystem
from logstore.limits import RECENT_FRAMES_BYTES
from logstore.replication.fetch_session import FetchSession
from logstore.replication.protocol import Body, MessageType, decode_fetch
from logstore.settings import Settings
from logstore.table_root import TableRoot
from tests.support.journals import MemoryRecord
from tests.support.virtual_time import clock_of_loop


class MemoryCluster:
    """The partitions' states, and the running brokers. ``placement``: the replicas of each new partition."""

    def __init__(self, data: Path, placement: Sequence[int]) -> None:
        self.data = data
        self.placement = tuple(placement)
        self.states: dict[tuple[UUID, int], PartitionState] = {}
        self.brokers: dict[int, Broker] = {}
        self.cluster_states: dict[int, MemoryClusterState] = {}
        #: Links (follower, leader) that are cut, and brokers that ZooKeeper does not answer.
        self.cut: set[tuple[int, int]] = set()
        self.without_zookeeper: set[int] = set()
        #: Brokers whose registration has ended, although they still fetch.
        self.unregistered: set[int] = set()
        #: The number of ISR changes that leaders have requested.
        self.isr_changes = 0
        self.next_producer_id = 1 << 32

    async def start(self, broker_id: int, **settings: Any) -> Broker:
        cluster_state = self.cluster_states[broker_id] = MemoryClusterState(self, broker_id)
        given = {"replica_fetch_backoff_ms": 20, "replica_fetch_wait_max_ms": 50, **settings}
        wanted = Settings(data=self.data, broker_id=broker_id, **given)
        opened = OpenedJournal(wanted, FileSystem(), clock_of_loop(), recent_bytes=RECENT_FRAMES_BYTES)
        opened.read(())
        broker = await Broker.start(
            wanted,
            cluster_state,  # type: ignore[arg-type]
            opened,
            Authorizer(),
            Quotas(),
            clock=clock_of_loop(),
            filesystem=FileSystem(),
            links=Links(lambda leader: self.connect(broker_id, leader), _NoRequests(), None),  # type: ignore[arg-type]
        )
        self.brokers[broker_id] = broker
        self.tell_of_brokers()
        return broker

    async def stop(self, broker_id: int) -> None:
        del self.cluster_states[broker_id]
        await self.brokers.pop(broker_id).stop()

    def tell_of_brokers(self) -> None:
        for cluster_state in list(self.cluster_states.values()):
            cluster_state.tell_of_brokers()

    async def connect(self, follower: int, leader: int) -> "_Connection":
        self.require_link(follower, leader)
        return _Connection(self, follower, leader)

    def require_link(self, follower: int, leader: int) -> None:
        if leader not in self.brokers or (follower, leader) in self.cut:
            raise NetworkError(f"broker {leader} cannot be reached from broker {follower}")

    def set(self, topic_id: UUID, partition: int, state: PartitionState) -> None:
        """Write a state, and notify all brokers."""
        self.states[topic_id, partition] = state
        for cluster_state in list(self.cluster_states.values()):
            cluster_state.tell(topic_id, partition, state)

    def elect(self, topic_id: UUID, partition: int, leader: int, **changes: Any) -> PartitionState:
        """Elect a leader with the next epoch; ``changes`` are fields of the state."""
        before = self.states[topic_id, partition]
        state = dataclasses.replace(before, leader=leader, leader_epoch=before.leader_epoch + 1, **changes)
        self.set(topic_id, partition, state)
        return state


class MemoryClusterState:
    def __init__(self, cluster: MemoryCluster, broker_id: int) -> None:
        self._cluster = cluster
        self.broker_id = broker_id
        self.cluster_id = "memory"
        self.controller_id = 1
        self.has_lease = True
        self.locks = ()
        self.journal_record = MemoryRecord()
        self.may_lack_frames = False
        self.producer_ids_begin = 1 << 32
        self.is_migration = False
        self.not_ready_reason = None
        self.damaged_topics: Mapping[str, str] = {}
        self._listeners: list[PartitionListener] = []
        self._broker_listeners: list[Callable[[], None]] = []

    @property
    def brokers(self) -> Sequence[int]:
        return sorted({*self._cluster.cluster_states, *self._cluster.placement})

    @property
    def brokers_by_id(self) -> Mapping[int, BrokerEndpoint]:
        return {broker: BrokerEndpoint(broker, None) for broker in self.brokers}

    @property
    def placeable_brokers(self) -> int:
        return len(self.brokers)

    def registered_topic(self, name: str) -> None:
        del name

    def table_lock(self, topic: str) -> contextlib.AbstractAsyncContextManager[None]:
        del topic
        return contextlib.nullcontext()

    async def refresh_topics(self, names: Collection[str]) -> None: ...

    def is_gone(self, topic_id: UUID) -> bool:
        del topic_id
        return False

    async def table_changed(self, topic_id: UUID) -> None:
        pass

    async def refresh_producer_ids(self) -> None:
        pass

    async def find_leaders(self, topics: Sequence[KnownTopic]) -> None:
        for topic in topics:
            self.set_partitions(topic)

    def listen(self, listener: PartitionListener) -> None:
        self._listeners.append(listener)
        for (topic_id, partition), state in list(self._cluster.states.items()):
            listener(topic_id, partition, state)

    def listen_to_topics(self, listener: Callable[[str], None]) -> None: ...

    def on_election(self, prepare: Callable[[], Awaitable[None]]) -> None: ...

    def registered_topics(self) -> Sequence[str]:
        return ()

    def listen_to_brokers(self, listener: Callable[[], None]) -> None:
        self._broker_listeners.append(listener)

    def tell_of_brokers(self) -> None:
        for listener in self._broker_listeners:
            listener()

    def may_join(self, broker_id: int, broker_epoch: int) -> bool:
        del broker_epoch
        return broker_id in self._cluster.cluster_states and broker_id not in self._cluster.unregistered

    def tell(self, topic_id: UUID, partition: int, state: PartitionState) -> None:
        for listener in self._listeners:
            listener(topic_id, partition, state)

    def set_partitions(self, topic: KnownTopic) -> None:
        placement = self._cluster.placement
        for partition, epoch in enumerate(topic.leader_epochs):
            if (topic.topic_id, partition) not in self._cluster.states:
                state = PartitionState(placement[0], epoch + 1, placement, placement)
                self._cluster.set(topic.topic_id, partition, state)

    async def mark_deleting(self, topic_id: UUID) -> None:
        pass

    def forget_topic(self, topic_id: UUID) -> None:
        pass

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        return self._cluster.states.get((topic_id, partition), NO_PARTITION)

    async def leads_still(self, topic_id: UUID, partition: int, leader_epoch: int) -> bool:
        state = self._cluster.states[topic_id, partition]
        return (state.leader, state.leader_epoch) == (self.broker_id, leader_epoch)

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
        self._cluster.isr_changes += 1
        await asyncio.sleep(0.001)
        if self.broker_id in self._cluster.without_zookeeper:
            raise ZooKeeperUnavailableError("ZooKeeper does not answer")
        state = self._cluster.states[topic_id, partition]
        if (state.leader, state.leader_epoch) != (self.broker_id, seen.leader_epoch):
            raise FencedLeaderEpochError("another leader")
        if state != seen:
            raise InvalidUpdateVersionError("another state")
        if not all(self.may_join(broker, epoch) for broker, epoch in broker_epochs.items()):
            raise IneligibleReplicaError("not registered")
        state = dataclasses.replace(
            state, in_sync_replicas=tuple(in_sync_replicas), recovering=state.recovering and recovering
        )
        self._cluster.set(topic_id, partition, state)
        return state

    async def new_producer_id(self) -> int:
        self._cluster.next_producer_id += 1
        return self._cluster.next_producer_id - 1

    def is_issued(self, producer_id: int) -> bool:
        return 0 <= producer_id < self._cluster.next_producer_id


class _NoRequests:
    """Nothing is forwarded: a broker refuses what it does not lead."""

    async def request(self, broker_id: int, *_: object, **__: object) -> Buffer:
        raise NotLeaderOrFollowerError(f"broker {broker_id} leads the partition")


class _Connection:
    def __init__(self, cluster: MemoryCluster, follower: int, leader: int) -> None:
        self._cluster = cluster
        self._link = (follower, leader)
        self._broker = cluster.brokers[leader]
        self._session: FetchSession = self._broker.fetch_session(follower, 1)

    is_stale = False

    async def request(self, message_type: MessageType, body: Body = b"", timeout_s: float | None = None) -> Buffer:
        del message_type, timeout_s
        self._require_open()
        assert isinstance(body, bytes)
        answer = await self._session.fetch(decode_fetch(body))
        self._require_open()
        return b"".join(answer)

    def _require_open(self) -> None:
        """Raise NetworkError if the link is cut, or if the process at the other side has ended."""
        self._cluster.require_link(*self._link)
        if self._cluster.brokers.get(self._link[1]) is not self._broker:
            raise NetworkError("the connection was closed")

    def close(self) -> None:
        self._session.close()


@contextlib.asynccontextmanager
async def running_cluster(
    data: Path, *brokers: int, configs: dict[str, str] | None = None, partitions: int = 1, **settings: Any
) -> AsyncIterator[MemoryCluster]:
    """Run brokers on one data directory with a topic ``t``. Each partition has all as replicas; the first one leads."""
    catalog = TopicCatalog(TableRoot(data, FileSystem()))
    catalog.create("t", num_partitions=partitions, config_overrides=configs or {})
    cluster = MemoryCluster(data, brokers)
    try:
        for broker in brokers:
            await cluster.start(broker, **settings)
        yield cluster
    finally:
        for broker in list(cluster.brokers):
            await cluster.stop(broker)
