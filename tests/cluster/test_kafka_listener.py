"""Kafka's clients at the brokers of a cluster: each broker names the others and the leaders."""

import asyncio
from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import DescribeClusterRequest, MetadataRequest
from tests.support.cluster_states import Brokers
from tests.support.cluster_stores import ClusterStores
from tests.support.kafka_client import DESCRIBE_CLUSTER, METADATA, PRODUCE, batch_of, produce_request
from tests.support.kafka_handlers import Handlers

pytestmark = [pytest.mark.anyio, pytest.mark.system]

NOT_LEADER = 6


async def test_a_leader_is_found_by_any_broker_and_named_by_a_wrong_one(brokers: Brokers, tmp_path: Path):
    stores = ClusterStores(brokers, tmp_path / "data")
    try:
        await stores.start(1, 2)
        await (await stores.making()).topics.changes.create(INTERNAL, "t", partitions=2)
        topics = await stores.everywhere("t", 2)
        asked = {one: Handlers(store.broker, store.groups) for one, store in stores.stores.items()}
        for one, handlers in asked.items():
            store = stores.stores[one]
            handlers.store = KafkaStore(
                store.broker.settings, store.broker, store.groups, store.cluster_state, (f"h{one}", 9092)
            )
        wanted = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="t")])
        for handlers in asked.values():
            found = await handlers.ask(METADATA, 12, wanted)
            assert [(one.node_id, one.host, one.port) for one in found.brokers] == [(1, "h1", 9092), (2, "h2", 9092)]
            described = await handlers.ask(DESCRIBE_CLUSTER, 2, DescribeClusterRequest())
            assert [(one.broker_id, one.host) for one in described.brokers] == [(1, "h1"), (2, "h2")]
            assert found.controller_id == described.controller_id == await stores.controller()
            partitions = {one.partition_index: one for one in found.topics[0].partitions}
            assert {one.leader_id for one in partitions.values()} == {1, 2}
        for number, told in partitions.items():
            wrong = 3 - told.leader_id
            request = produce_request({number: batch_of(b"v")})
            answer = await asked[wrong].ask(PRODUCE, 12, request)
            (refused,) = answer.responses[0].partition_responses
            assert (refused.error_code, refused.base_offset) == (NOT_LEADER, -1)
            assert refused.current_leader.leader_id == told.leader_id
            assert refused.current_leader.leader_epoch == told.leader_epoch
            (endpoint,) = answer.node_endpoints
            assert (endpoint.node_id, endpoint.host, endpoint.port) == (told.leader_id, f"h{told.leader_id}", 9092)
            answer = await asked[told.leader_id].ask(PRODUCE, 12, request)
            assert answer.responses[0].partition_responses[0].error_code == 0
            # Frames have the leader epoch that the metadata gave to clients.
            led = topics[told.leader_id - 1].partition(number)
            assert led.state.leader_epochs.last == told.leader_epoch
        await stores.stop(2)
        one = asked[1]

        async def leaders() -> set[tuple[int, int]]:
            found = await one.ask(METADATA, 12, wanted)
            return {(partition.error_code, partition.leader_id) for partition in found.topics[0].partitions}

        # Each partition has one replica, so those of the stopped broker have no leader.
        for _ in range(200):
            if (now := await leaders()) == {(0, 1), (5, -1)}:
                break
            await asyncio.sleep(0.05)
        assert now == {(0, 1), (5, -1)}
    finally:
        await stores.stop()
