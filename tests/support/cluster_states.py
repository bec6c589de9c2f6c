"""Cluster states of a cluster's brokers, in one process, on a real ZooKeeper."""

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from logstore.cluster import znodes
from logstore.cluster.cluster_state import KnownTopic, PartitionState
from logstore.cluster.znodes import PartitionRegistration, TopicRegistration
from logstore.cluster.zookeeper import Servers, SessionState, ZooKeeper
from logstore.cluster.zookeeper_cluster_state import ZooKeeperClusterState
from logstore.filesystem import FileSystem
from logstore.journal.identity import FoundJournal
from logstore.lock_file import LockFile
from tests.support.eventually import eventually_async

#: ZooKeeper grants 2 to 20 ticks, so sessions of two seconds to twenty.
TICK_MS = 1_000
#: The default, which a busy machine does not exceed. Tests of an ending session use a shorter one, or ``expire`` it.
SESSION_MS = 18_000
_chroots = itertools.count()

T = TypeVar("T")


def no_journal(_locks: Sequence[LockFile]) -> FoundJournal:
    """Find no journal."""
    return FoundJournal(Path("journal"), 0, None, is_empty=True)


class Brokers:
    """Brokers below a separate chroot. ``zookeeper`` is a session beside theirs, to inspect and change nodes."""

    def __init__(self, servers: str, directory: Path) -> None:
        self.servers = servers
        self.directory = directory
        self.chroot = f"/cluster-{next(_chroots)}"
        self.zookeeper = ZooKeeper(Servers.parse(servers), session_timeout_ms=SESSION_MS)
        self.running: dict[int, ZooKeeperClusterState] = {}
        self.tables: list[KnownTopic] = []

    def path(self, path: str) -> str:
        """Return the path as ``zookeeper`` names it, which has no chroot."""
        return self.chroot + path

    def make(self, broker_id: int, *, servers: str | None = None, **options) -> ZooKeeperClusterState:
        log_directory = options.pop("log_directory", self.directory / f"broker-{broker_id}")
        data = options.pop("data", self.directory / "data")
        options = {
            "url": f"http://h{broker_id}",
            "peer": f"h{broker_id}:1",
            "session_timeout_ms": SESSION_MS,
            **options,
        }
        connect = (servers or self.servers) + self.chroot
        return ZooKeeperClusterState(connect, data, log_directory, broker_id, FileSystem(), **options)

    async def start(self, *broker_ids: int, **options) -> list[ZooKeeperClusterState]:
        for broker_id in broker_ids:
            cluster_state = self.make(broker_id, **options)
            await cluster_state.start(no_journal)
            self.running[broker_id] = cluster_state
            await cluster_state.find_leaders(self.tables)
        return [self.running[broker_id] for broker_id in broker_ids]

    async def stop(self, broker_id: int) -> None:
        await self.running.pop(broker_id).stop()

    async def create_topic(self, name: str, partitions: int, replication_factor: int) -> UUID:
        """Create a topic that all brokers know and that is placed; wait until every broker's view has it."""
        topic = KnownTopic(name, uuid.uuid4(), (0,) * partitions, replication_factor=replication_factor)
        self.tables.append(topic)
        for cluster_state in self.running.values():
            cluster_state.set_partitions(topic)
        for cluster_state in self.running.values():
            await eventually_async(
                lambda it=cluster_state: it.partition_state(topic.topic_id, 0).leader != -1, "no leader"
            )
        return topic.topic_id

    async def document(self, topic: str) -> TopicRegistration:
        path = self.path(znodes.topic_path(topic))
        node = await self.zookeeper.get(path)
        assert node is not None, f"{path} is not there"
        return znodes.decode(path, node.data, TopicRegistration)

    async def row(self, topic: str, partition: int = 0) -> PartitionRegistration:
        return (await self.document(topic)).partitions[partition]

    async def write_row(self, topic: str, row: PartitionRegistration) -> None:
        """Write the state of a topic's only partition by hand, whatever it was."""
        path = self.path(znodes.topic_path(topic))
        node = await self.zookeeper.get(path)
        found = znodes.decode(path, node.data, TopicRegistration)
        changed = TopicRegistration(found.topic_id, found.version, found.deleting, (row,))
        await self.zookeeper.write(path, znodes.encode(path, changed), node.version)

    async def seen_by(self, cluster_states: Iterable[ZooKeeperClusterState], found: Callable, what: str) -> None:
        for cluster_state in cluster_states:
            await eventually_async(lambda it=cluster_state: found(it), what)

    @property
    def controller(self) -> ZooKeeperClusterState | None:
        return next((one for one in self.running.values() if one.controller.is_active), None)


@contextlib.asynccontextmanager
async def brokers_on(servers: str, directory: Path) -> AsyncIterator[Brokers]:
    brokers = Brokers(servers, directory)
    await brokers.zookeeper.start()
    await brokers.zookeeper.create(brokers.chroot, b"")
    try:
        yield brokers
    finally:
        for cluster_state in brokers.running.values():
            with contextlib.suppress(Exception):
                await cluster_state.stop()
        await brokers.zookeeper.stop()


async def expire(cluster_state: ZooKeeperClusterState) -> None:
    """End the cluster state's session in ZooKeeper: a second connection to the session closes it."""
    from kazoo.client import KazooClient

    zookeeper = cluster_state.zookeeper
    client_id = zookeeper._client.client_id
    told: list[SessionState] = []
    zookeeper.listen(told.append)
    for _ in range(10):
        twin = KazooClient(hosts=zookeeper.servers.hosts, client_id=client_id, timeout=SESSION_MS / 1000)
        await asyncio.to_thread(twin.start)
        await asyncio.to_thread(twin.stop)
        await asyncio.to_thread(twin.close)
        with contextlib.suppress(AssertionError):
            await eventually_async(lambda: SessionState.EXPIRED in told, seconds=3)
            return
        # The cluster state's own client has reconnected first, which ended the connection of this one.
    raise AssertionError("the session does not end")


def state(leader: int, epoch: int, isr: tuple[int, ...], replicas: tuple[int, ...]) -> PartitionState:
    return PartitionState(leader, epoch, replicas, isr)
