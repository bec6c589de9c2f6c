"""The store of a simulated world as clients see it: a node, or a cluster in which they find the right broker."""

import contextlib
import enum
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from logstore.broker.context import INTERNAL
from logstore.errors import LogStoreError, NotLeaderOrFollowerError
from logstore.node import Store
from tests.simulation.cluster import Cluster
from tests.simulation.network import Network
from tests.simulation.node import NoConnectionError, Node

T = TypeVar("T")


class Log(NamedTuple):
    """Led by one broker."""

    topic: str
    partition: int


class GroupName(NamedTuple):
    """Coordinated by one broker."""

    name: str


class Controller(enum.Enum):
    """The broker that makes and changes topics."""

    CONTROLLER = enum.auto()


CONTROLLER = Controller.CONTROLLER
Place = Log | GroupName | Controller | None


class Site:
    """``nodes`` by their numbers; ``cluster`` if they are brokers of one; their listeners are on ``network``."""

    def __init__(self, nodes: list[Node], cluster: Cluster | None, network: Network, rng: random.Random) -> None:
        self.nodes, self.cluster, self.network = nodes, cluster, network
        self._rng = rng
        #: Errors of requests that are no errors of the store.
        self.unforeseen: list[str] = []

    def now_ms(self) -> int:
        """The wall clock of the first node."""
        return self.nodes[0].clock.now_ms()

    async def call(self, work: Callable[[Store], Awaitable[T]], place: Place = None) -> T:
        """Have ``work`` done where the log is led or the group coordinated; by any node if that does not matter.

        Raises NoConnectionError also if nobody knows such a node, and as ``Node.call``.
        """
        node = self._find(place)
        if node is None:
            raise NoConnectionError
        return await node.call(work)

    def require_one_leader(self, log: Log) -> None:
        """Raise NotLeaderOrFollowerError if a former leader may still answer, with what is old: it does not reach
        ZooKeeper, and its followers have not told it yet that they follow another one (decision 58).
        """
        leaders = 0
        for node in self.nodes:
            if node.store is not None:
                with contextlib.suppress(LogStoreError):
                    leaders += (
                        node.store.broker.topics.served.topic(INTERNAL, log.topic).partition(log.partition).is_settled
                    )
        if leaders > 1:
            raise NotLeaderOrFollowerError(f"{log.topic}-{log.partition} has {leaders} leaders")

    def _find(self, place: Place) -> Node | None:
        if self.cluster is None:
            return self.nodes[0]
        running = self.cluster.running
        if not running:
            return None
        match place:
            case Controller.CONTROLLER:
                return self.cluster.controller()
            case Log(topic, partition):
                return self.cluster.leader(topic, partition)
            case GroupName(name):
                for node in running:
                    assert node.store is not None
                    try:
                        found = node.store.groups.coordinator_of(INTERNAL, name)
                    except LogStoreError:
                        continue
                    if found >= 0:
                        return self.cluster.nodes[found]
                return None
        return self._rng.choice(running)
