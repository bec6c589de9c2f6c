"""Shards at the start of a broker, among the replicas of a cluster."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.group_shards import OFFSETS_TOPIC_CONFIGS
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.context import INTERNAL
from logstore.broker.topics.catalog import TopicCatalog
from logstore.errors import CoordinatorLoadInProgressError, NotCoordinatorError
from logstore.filesystem import FileSystem
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.table_root import TableRoot
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async
from tests.support.replicas import MemoryCluster, running_cluster
from tests.support.virtual_time import clock_of_loop, run

_SOON_S = 10


def test_a_start_does_not_wait_for_groups_whose_replicas_wait_for_the_start(tmp_path: Path) -> None:
    """Start after all brokers were killed: each leads partitions whose followers are answered only after its start."""

    async def scenario() -> None:
        data, image = tmp_path / "data", tmp_path / "image"
        catalog = TopicCatalog(TableRoot(data, FileSystem()))
        catalog.create(OFFSETS_TOPIC, num_partitions=1, config_overrides=OFFSETS_TOPIC_CONFIGS)
        offsets = [OffsetToCommit("t", 0, 0)]
        async with (
            running_cluster(data, 1, 2) as cluster,
            GroupCoordinator.running(cluster.brokers[1], clock=clock_of_loop()) as groups,
        ):
            await groups.commit(INTERNAL, "g", offsets)
            copy_of_one_moment(data, image)
            states = dict(cluster.states)
        killed = MemoryCluster(image, (1, 2))
        killed.states.update(states)
        for topic_id, partition in states:
            killed.elect(topic_id, partition, 1)
        broker = await killed.start(1)
        try:
            assert not broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC).partition(0).require_leader().is_settled
            async with asyncio.timeout(_SOON_S):
                groups = await GroupCoordinator.start(broker, clock=clock_of_loop())
            await killed.start(2)
            await eventually_async(lambda: is_committed(groups))
            await groups.close()
        finally:
            for one in list(killed.brokers):
                await killed.stop(one)

    run(scenario())


def test_a_coordinator_that_is_cut_off_returns_no_old_offsets(tmp_path: Path) -> None:
    async def scenario() -> None:
        catalog = TopicCatalog(TableRoot(tmp_path, FileSystem()))
        catalog.create(OFFSETS_TOPIC, num_partitions=1, config_overrides=OFFSETS_TOPIC_CONFIGS)
        async with (
            running_cluster(tmp_path, 1, 2) as cluster,
            GroupCoordinator.running(cluster.brokers[1], clock=clock_of_loop()) as groups,
        ):
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 0)])
            leader = cluster.brokers[1].topics.served.topic(INTERNAL, OFFSETS_TOPIC).partition(0).require_leader()
            leader._has_lease = lambda: False
            assert is_committed(groups), "while its follower follows"
            leader._is_followed = lambda _: False
            with pytest.raises(NotCoordinatorError, match="neither ZooKeeper nor all replicas"):
                groups.committed(INTERNAL, "g")
            leader._has_lease = lambda: True
            assert is_committed(groups)

    run(scenario())


def is_committed(groups: GroupCoordinator) -> bool:
    with contextlib.suppress(CoordinatorLoadInProgressError):
        return [found.offset for found in groups.committed(INTERNAL, "g")] == [0]
    return False
