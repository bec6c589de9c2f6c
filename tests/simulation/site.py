"""The store of a simulated world as clients see it: one node, or a cluster in which they find the right broker."""

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
    """A partition of a topic, which one broker leads."""

    topic: str
    partition: int


class GroupName(NamedTuple):
    """A group, which one broker coordinates."""

    name: str


class Controller(enum.Enum):
    """The broker that creates and changes topics."""

    CONTROLLER = enum.auto()


CONTROLLER = Controller.CONTROLLER
Place = Log | GroupName | Controller | None


class Site:
    """The store as clients see it.

    ``nodes`` are in the order of their numbers, and listen on ``network``; ``cluster`` is None for a single node.
    """

    def __init__(self, nodes: list[Node], cluster: Cluster | None, network: Network, rng: random.Random) -> None:
        self.nodes, self.cluster, self.network = nodes, cluster, network
        self._rng = rng
        #: Errors that requests raised and that are not LogStoreErrors.
        self.unforeseen: list[str] = []

    def now_ms(self) -> int:
        """Return the wall clock of the first node."""
        return self.nodes[0].clock.now_ms()

    async def call(self, work: Callable[[Store], Awaitable[T]], place: Place = None) -> T:
        """Do ``work`` on the node that leads the log or coordinates the group, or on any node if that does not matter.

        Raises NoConnectionError also if no node is known to do so, and what ``Node.call`` raises.
        """
        node = self._find(place)
        if node is None:
            raise NoConnectionError
        return await node.call(work)

    def require_one_leader(self, log: Log) -> None:
        """Raise NotLeaderOrFollowerError if a former leader may still return old data.

        It does not reach ZooKeeper, and has not learned yet from its followers that they follow another leader
        (decision 58).
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
