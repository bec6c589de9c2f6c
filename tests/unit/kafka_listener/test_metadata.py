"""Metadata and DescribeCluster: brokers, leaders, topics by name and id, and an error for each topic."""

from pathlib import Path
from uuid import UUID

import pytest

from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import BrokerEndpoint, PartitionState
from logstore.kafka_listener.metadata import _partition
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import DescribeClusterRequest, MetadataRequest
from tests.support.kafka_client import DESCRIBE_CLUSTER, METADATA, PRODUCE, batch_of, kafka_server, produce_request
from tests.support.virtual_time import run

TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
NOT_ASKED = -(2**31)


def named(*names: str, **options: bool) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names], **options)


@pytest.mark.parametrize("version", range(14))
def test_every_version_returns_brokers_and_topics(tmp_path: Path, version: int):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=3)
            await server.topic("other")
            client = await server.connect()
            answer = await client.ask(METADATA, version, named("t", "none"))
            assert [(one.node_id, one.host, one.port) for one in answer.brokers] == [(0, "127.0.0.1", server.port)]
            found, none = answer.topics
            assert (found.error_code, found.name, found.is_internal) == (0, "t", False)
            assert (none.error_code, none.name, len(none.partitions)) == (3, "none", 0)
            assert [(p.partition_index, p.leader_id, p.error_code) for p in found.partitions] == [
                (number, 0, 0) for number in range(3)
            ]
            assert all(list(p.replica_nodes) == list(p.isr_nodes) == [0] for p in found.partitions)
            if version >= 1:
                assert answer.controller_id == 0
            if version >= 2:
                assert answer.cluster_id == server.store.broker.cluster_id
            if version >= 7:
                assert {p.leader_epoch for p in found.partitions} == {topic.partition(0).leader_epoch}
            if version >= 10:
                assert found.topic_id == topic.topic_id.bytes
            assert found.topic_authorized_operations == NOT_ASKED
            every = await client.ask(METADATA, version, MetadataRequest(topics=None if version else []))
            assert [one.name for one in every.topics] == ["other", "t"]
            if version:
                assert (await client.ask(METADATA, version, named())).topics == []

    run(ask())


def test_topics_by_id(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            ids = [topic.topic_id.bytes, UUID(int=7).bytes]
            asked = [MetadataRequest.MetadataRequestTopic(topic_id=one, name=None) for one in ids]
            found, none = (await client.ask(METADATA, 12, MetadataRequest(topics=asked))).topics
            assert (found.error_code, found.name, found.topic_id) == (0, "t", ids[0])
            assert (none.error_code, none.name, none.topic_id) == (100, None, ids[1])

    run(ask())


def test_the_leader_epoch_is_that_of_the_frames(tmp_path: Path):
    """Start the store several times: each start begins another epoch."""

    async def ask() -> int:
        async with kafka_server(tmp_path) as server:
            if not server.store.broker.topics.served.all(INTERNAL):
                await server.topic()
            client = await server.connect()
            await client.ask(PRODUCE, 9, produce_request({0: batch_of(b"v")}))
            (topic,) = (await client.ask(METADATA, 12, named("t"))).topics
            frames = server.store.broker.topics.served.topic(INTERNAL, "t").partition(0).state.leader_epochs
            assert topic.partitions[0].leader_epoch == frames.last
            return int(frames.last)

    assert run(ask()) < run(ask())


@pytest.mark.parametrize(("is_enabled", "is_allowed"), [(True, True), (True, False), (False, True)])
def test_a_topic_is_made_if_store_and_client_want_it(tmp_path: Path, is_enabled: bool, is_allowed: bool):
    async def ask() -> None:
        async with kafka_server(tmp_path, auto_create_topics_enable=is_enabled, num_partitions=2) as server:
            client = await server.connect()
            request = named("new", "a/b", allow_auto_topic_creation=is_allowed)
            made, bad = (await client.ask(METADATA, 12, request)).topics
            if is_enabled and is_allowed:
                assert made.error_code == 0
                assert [one.leader_id for one in made.partitions] == [0, 0]
            else:
                assert made.error_code == 3
                assert not server.store.broker.topics.served.all(INTERNAL)
            assert bad.error_code == 17

    run(ask())


def test_authorized_operations_are_returned_on_request(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic()
            client = await server.connect()
            request = named("t", include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
            answer = await client.ask(METADATA, 10, request)
            assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS
            assert answer.cluster_authorized_operations == CLUSTER_OPERATIONS
            asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
            assert (await client.ask(DESCRIBE_CLUSTER, 0, asked)).cluster_authorized_operations == CLUSTER_OPERATIONS

    run(ask())


def test_describe_cluster(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            client = await server.connect()
            for version in range(3):
                answer = await client.ask(DESCRIBE_CLUSTER, version, DescribeClusterRequest())
                assert (answer.error_code, answer.controller_id) == (0, 0)
                assert [(one.broker_id, one.host, one.port) for one in answer.brokers] == [
                    (0, "127.0.0.1", server.port)
                ]
                assert answer.cluster_authorized_operations == NOT_ASKED
            for endpoint_type, error_code in ((2, 114), (3, 115)):
                asked = DescribeClusterRequest(endpoint_type=endpoint_type)
                assert (await client.ask(DESCRIBE_CLUSTER, 1, asked)).error_code == error_code

    run(ask())


@pytest.mark.parametrize(
    ("leader", "version", "told"),
    [
        (1, 12, (0, 1, (1, 2, 3), (3,))),
        (-1, 12, (5, -1, (1, 2, 3), (3,))),
        (3, 12, (72, -1, (1, 2, 3), (3,))),
        (3, 5, (5, -1, (1, 2, 3), (3,))),
        (1, 0, (9, 1, (1, 2), (3,))),
    ],
)
def test_brokers_that_kafkas_clients_cannot_reach(leader: int, version: int, told: tuple[object, ...]):
    state = PartitionState(leader, 4, (1, 2, 3), (1, 3))
    found = _partition(0, state, {1, 2}, version)
    assert (found.error_code, found.leader_id, tuple(found.replica_nodes), tuple(found.offline_replicas)) == told
    assert found.leader_epoch == 4


def test_the_address_of_another_broker_is_the_one_that_it_registered(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            others = {
                0: BrokerEndpoint(0, "http://h0:1", None, "h0:9092"),
                1: BrokerEndpoint(1, "http://h1:1", "r", "[::1]:9093"),
                2: BrokerEndpoint(2, "http://h2:1", "r", None),
            }

            class Others:
                broker_id = 0
                brokers_by_id = others
                clock = server.store.broker.clock

            store = KafkaStore(
                server.kafka.settings, Others(), server.store.groups, server.store.cluster_state, ("here", 1)
            )
            assert [store.endpoint(one) for one in range(4)] == [("here", 1), ("::1", 9093), None, None]

    run(ask())
