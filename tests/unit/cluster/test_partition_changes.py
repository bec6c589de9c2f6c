"""A leader's ISR changes over a ZooKeeper that the test controls."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from logstore.cluster.partition_changes import LINGER_S, PartitionChanges
from logstore.cluster.view import ClusterView, LiveBroker, TopicNode
from logstore.cluster.znodes import BrokerRegistration, PartitionRegistration, TopicRegistration
from logstore.cluster.zookeeper import Operation
from logstore.errors import InvalidUpdateVersionError, ZooKeeperUnavailableError
from tests.support.virtual_time import run

TOPIC_ID = UUID(int=1)
ROW = PartitionRegistration(1, 5, (1,), (1, 2))
RUNNING = BrokerRegistration("", "", None, "running", 0)


def view_of(row: PartitionRegistration, version: int, *brokers: int) -> ClusterView:
    topic = TopicNode(TopicRegistration(TOPIC_ID, 0, False, (row,)), version, version)
    return ClusterView(None, {broker: LiveBroker(RUNNING, 7) for broker in brokers}, {"t": topic})


class ZooKeeper:
    """A ``ZooKeeper`` and ``WatchedView`` on which a write succeeds, and the read after it fails."""

    def __init__(self) -> None:
        self.view = view_of(ROW, 0, 1, 2)
        self.written: list[Sequence[Operation]] = []
        self.is_connected = True

    async def multi(self, operations: Sequence[Operation]) -> None:
        self.written.append(operations)
        self.is_connected = False

    async def sync(self) -> None: ...

    async def refresh(self, paths: Iterable[str]) -> None:
        del paths
        if not self.is_connected:
            raise ZooKeeperUnavailableError("the connection was lost")
        self.view = view_of(replace(ROW, isr=(1, 2)), 1, *self.view.brokers)


def test_a_change_that_was_done_and_not_read_is_read_before_it_is_tried_again() -> None:
    """Read first: a refusal by the old view would end the proposal, and the high watermark would pass an in-sync
    replica.
    """

    async def scenario() -> None:
        zookeeper: Any = ZooKeeper()
        changes = PartitionChanges(zookeeper, zookeeper, 1)
        with pytest.raises(ZooKeeperUnavailableError):
            await changes.alter("t", TOPIC_ID, 0, ROW.state, [1, 2], {2: 7}, recovering=False)
        assert len(zookeeper.written) == 1
        # A pass that began before the write has reported that broker 2 is gone.
        zookeeper.view = view_of(ROW, 0, 1)
        with pytest.raises(ZooKeeperUnavailableError):
            await changes.alter("t", TOPIC_ID, 0, ROW.state, [1, 2], {2: 7}, recovering=False)
        zookeeper.is_connected = True
        with pytest.raises(InvalidUpdateVersionError):
            await changes.alter("t", TOPIC_ID, 0, ROW.state, [1, 2], {2: 7}, recovering=False)
        assert len(zookeeper.written) == 1
        await changes.stop()

    asyncio.run(scenario())


def test_a_change_behind_one_that_waits_is_refused_when_that_is_written() -> None:
    """Refuse the change late: a leader that retries at once keeps a broker busy, a simulation for ever (seed 77.1)."""

    async def scenario() -> None:
        zookeeper: Any = ZooKeeper()
        changes = PartitionChanges(zookeeper, zookeeper, 1)
        first = asyncio.create_task(changes.alter("t", TOPIC_ID, 0, ROW.state, [1, 2], {2: 7}, recovering=False))
        await asyncio.sleep(0)
        first.cancel()
        began = asyncio.get_running_loop().time()
        with pytest.raises(InvalidUpdateVersionError, match="under way"):
            await changes.alter("t", TOPIC_ID, 0, ROW.state, [1, 2], {2: 7}, recovering=False)
        assert asyncio.get_running_loop().time() - began >= LINGER_S
        await changes.stop()

    run(scenario())
