"""A cluster of the simulated world: brokers that share a data directory, with a ZooKeeper and a network in memory."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import PartitionState
from logstore.cluster.zookeeper_cluster_state import ZooKeeperClusterState
from logstore.errors import LogStoreError
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.node import Membership, Node
from tests.simulation.zookeeper import Ensemble

_SETTINGS: dict[str, object] = {
    "zookeeper_session_timeout_ms": 4_000,
    "default_replication_factor": 3,
    "offsets_topic_num_partitions": 2,
    "journal_max_bytes": 32 * 1024 * 1024,
}
_LOOK_S = 0.05


class Cluster:
    """A cluster; ``nodes`` has its nodes by broker id, from 0 on."""

    def __init__(
        self,
        loop: SimulatedLoop,
        directory: Path,
        seed: int,
        note: Callable[..., None],
        *,
        brokers: int = 3,
        settings: dict[str, object] | None = None,
    ) -> None:
        self.zookeeper = Ensemble(loop, random.Random(f"{seed} zookeeper"), note)
        self.network = Network(loop, random.Random(f"{seed} network"))
        self.nodes = {
            broker_id: Node(
                loop,
                directory,
                random.Random(f"{seed} node {broker_id}"),
                {**_SETTINGS, **(settings or {})},
                note,
                self.network,
                Membership(broker_id, self.zookeeper),
            )
            for broker_id in range(brokers)
        }

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.store is not None]

    def cluster_state(self, broker_id: int) -> ZooKeeperClusterState:
        store = self.nodes[broker_id].store
        assert store is not None
        assert isinstance(store.cluster_state, ZooKeeperClusterState)
        return store.cluster_state

    def controller(self) -> Node | None:
        """Return the node that believes it is the controller; if several do, the first of them."""
        active = (one for one in self.nodes if self.nodes[one].store and self.cluster_state(one).controller.is_active)
        return next((self.nodes[one] for one in active), None)

    def state(self, broker_id: int, topic: str, partition: int) -> PartitionState | None:
        """Return a partition's state as that broker sees it, or None if it is down or does not know the topic."""
        node = self.nodes[broker_id]
        if node.store is None:
            return None
        try:
            found = node.store.broker.topics.served.topic(INTERNAL, topic)
        except LogStoreError:
            return None
        return self.cluster_state(broker_id).partition_state(found.topic_id, partition)

    def leader(self, topic: str, partition: int) -> Node | None:
        """Return the running node that believes it leads; if several do, the one with the highest epoch."""
        led = [
            (state.leader_epoch, broker_id)
            for broker_id in self.nodes
            if (state := self.state(broker_id, topic, partition)) is not None and state.leader == broker_id
        ]
        return self.nodes[max(led)[1]] if led else None

    def is_whole(self) -> bool:
        """Return True if all brokers run and all replicas are in sync, so that a disk may be lost."""
        first = self.nodes[0].store
        if first is None or len(self.running) < len(self.nodes):
            return False
        for topic in first.broker.topics.served.all(INTERNAL, include_internal=True):
            for partition in range(len(topic.partitions)):
                leader = self.leader(topic.name, partition)
                state = None if leader is None else self.state(int(leader.name), topic.name, partition)
                if state is None or state.is_under_replicated or state.is_reassigning or len(state.replicas) < 2:
                    return False
        return True

    async def eventually(self, found: Callable[[], bool], what: str, within_s: float = 60.0) -> None:
        """Wait until ``found`` returns True. Raises AssertionError after ``within_s`` simulated seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not found():
            assert loop.time() < deadline, what
            await asyncio.sleep(_LOOK_S)

    def heal(self) -> None:
        """End all faults of the network and of ZooKeeper."""
        self.network.heal()
        self.zookeeper.heal()

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def remove(self) -> None:
        for node in self.nodes.values():
            node.remove()
