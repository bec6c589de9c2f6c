"""Shards at the start of a broker, among the replicas of a cluster."""

import asyncio
from pathlib import Path

from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.group_shards import OFFSETS_TOPIC_CONFIGS
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.context import INTERNAL
from logstore.broker.topic_catalog import TopicCatalog
from logstore.filesystem import FileSystem
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.table_root import TableRoot
from tests.support.eventually import eventually_async
from tests.support.replicas import running_cluster
from tests.support.running_broker import run

_SOON_S = 10


def test_a_start_does_not_wait_for_groups_whose_replicas_wait_for_the_start(tmp_path: Path) -> None:
    """All brokers were killed: each leads partitions whose followers are answered once it has started."""

    async def scenario() -> None:
        catalog = TopicCatalog(TableRoot(tmp_path, FileSystem()))
        catalog.create(OFFSETS_TOPIC, num_partitions=1, config_overrides=OFFSETS_TOPIC_CONFIGS)
        async with running_cluster(tmp_path, 1, 2) as cluster:
            async with GroupCoordinator.running(cluster.brokers[1]) as groups:
                offsets = [OffsetToCommit("t", 0, 0)]
                await eventually_async(lambda: groups.coordinator_of(INTERNAL, "g") == 1)
                await groups.commit(INTERNAL, "g", offsets)
            for broker in (1, 2):
                await cluster.stop(broker)
            for topic_id, partition in list(cluster.states):
                cluster.elect(topic_id, partition, 1)
            # Broker 2 fetches from nobody yet.
            broker = await cluster.start(1)
            async with asyncio.timeout(_SOON_S):
                groups = await GroupCoordinator.start(broker)
            await cluster.start(2)
            await eventually_async(lambda: len(groups.committed(INTERNAL, "g")) == 1)
            await groups.close()

    run(scenario())
