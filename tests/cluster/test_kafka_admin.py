"""Kafka's admin requests to the brokers of a cluster: three processes on a ZooKeeper and one data directory."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.free_port import free_port
from logstore.kafka_protocol.messages import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from tests.cluster.test_serve import environment, started
from tests.support.cluster_states import Brokers
from tests.support.kafka_client import KafkaConnection
from tests.support.server_process import ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.system]

METADATA, CREATE, DELETE, DELETE_RECORDS, DESCRIBE_CONFIGS, ALTER = 3, 19, 20, 21, 32, 33
GROW, INCREMENTAL, DESCRIBE = 37, 44, 75
NOT_LEADER, NOT_CONTROLLER, INVALID_ASSIGNMENT, INVALID_CONFIG, UNKNOWN = 6, 41, 39, 40, 3


async def until(ask: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    for _ in range(200):
        found = await ask()
        if is_so(found):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"it stayed {found}")


async def replicas(connection: KafkaConnection, name: str) -> list[list[int]]:
    request = DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequest.TopicRequest(name=name)])
    (topic,) = (await connection.ask(DESCRIBE, 0, request)).topics
    return [list(one.replica_nodes) for one in topic.partitions]


async def retention(connection: KafkaConnection) -> str:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name="t", configuration_keys=["retention.ms"]
    )
    (found,) = (await connection.ask(DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=[resource]))).results
    return found.configs[0].value


def creation(name: str, assignment: list[list[int]]) -> CreateTopicsRequest:
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=at, broker_ids=brokers)
        for at, brokers in enumerate(assignment)
    ]
    topic = CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)


def growth(count: int, assignment: list[list[int]]) -> CreatePartitionsRequest:
    assignments = [CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignment]
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=count, assignments=assignments)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=30_000)


def change(*configs: tuple[str, int, str | None], name: str = "t") -> IncrementalAlterConfigsRequest:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=2,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in configs
        ],
    )
    return IncrementalAlterConfigsRequest(resources=[resource])


def code(answer: Any) -> int:
    for field in ("topics", "responses", "results"):
        if hasattr(answer, field):
            return int(getattr(answer, field)[0].error_code)
    raise AssertionError(answer)


@pytest.mark.long
async def test_topics_change_at_the_controller_and_configurations_at_any_broker(brokers: Brokers, tmp_path: Path):
    ports = [free_port() for _ in range(3)]
    servers: list[ServerProcess] = []
    connections: list[KafkaConnection] = []
    try:
        for number, port in enumerate(ports, start=1):
            settings = environment(brokers, number, **{"kafka.listeners": f"127.0.0.1:{port}"})
            servers.append(await started(tmp_path / "data", settings))
        connections += [KafkaConnection(*await asyncio.open_connection("127.0.0.1", port)) for port in ports]

        def metadata() -> Any:
            return connections[0].ask(METADATA, 9, MetadataRequest(topics=[]))

        found = await until(metadata, lambda found: len(found.brokers) == 3 and found.controller_id > 0)
        assert {one.node_id: one.port for one in found.brokers} == dict(enumerate(ports, start=1))
        controller = connections[found.controller_id - 1]
        others = [one for one in connections if one is not controller]

        # Only the controller creates topics, with the requested replicas.
        wanted = [[3, 1], [2, 3]]
        assert [code(await one.ask(CREATE, 7, creation("t", wanted))) for one in others] == [NOT_CONTROLLER] * 2
        assert code(await controller.ask(CREATE, 7, creation("t", [[3, 1], [2]]))) == INVALID_ASSIGNMENT
        answer = await controller.ask(CREATE, 7, creation("t", wanted))
        assert (code(answer), answer.topics[0].num_partitions, answer.topics[0].replication_factor) == (0, 2, 2)
        for connection in connections:
            assert await replicas(connection, "t") == wanted
        assert code(await others[0].ask(GROW, 3, growth(3, [[1, 2]]))) == NOT_CONTROLLER
        assert code(await controller.ask(GROW, 3, growth(3, [[1]]))) == INVALID_ASSIGNMENT
        assert code(await controller.ask(GROW, 3, growth(3, [[1, 2]]))) == 0
        assert await replicas(controller, "t") == [*wanted, [1, 2]]

        # Any broker takes changes of configuration and forwards them to the controller.
        for number, connection in enumerate(connections):
            asked = change(("retention.ms", 0, str(number)), ("cleanup.policy", 2, "compact"))
            assert code(await connection.ask(INCREMENTAL, 1, asked)) == 0
            assert await retention(controller) == str(number)
        for other in others:
            refused = await other.ask(INCREMENTAL, 1, change(("retention.ms", 0, "soon")))
            assert code(refused) == INVALID_CONFIG
            assert "retention.ms cannot be 'soon'" in refused.responses[0].error_message
            assert code(await other.ask(INCREMENTAL, 1, change(("retention.ms", 1, None), name="gone"))) == UNKNOWN
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=2,
            resource_name="t",
            configs=[AlterConfigsRequest.AlterableConfig(name="retention.ms", value="77")],
        )
        assert code(await others[1].ask(ALTER, 2, AlterConfigsRequest(resources=[resource]))) == 0
        for connection in connections:
            await until(lambda connection=connection: retention(connection), "77".__eq__)

        # Records are deleted at the leader of their partition, which is the first of its replicas.
        partitions = [DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=-1)]
        topic = DeleteRecordsRequest.DeleteRecordsTopic(name="t", partitions=partitions)
        codes = {}
        for number, connection in enumerate(connections, start=1):
            answer = await connection.ask(DELETE_RECORDS, 2, DeleteRecordsRequest(topics=[topic], timeout_ms=30_000))
            codes[number] = answer.topics[0].partitions[0].error_code
        assert codes == {1: NOT_LEADER, 2: NOT_LEADER, 3: 0}

        state = [DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=bytes(16))]
        deletion = DeleteTopicsRequest(topics=state, timeout_ms=30_000)
        assert code(await others[0].ask(DELETE, 6, deletion)) == NOT_CONTROLLER
        assert code(await controller.ask(DELETE, 6, deletion)) == 0
    finally:
        for connection in connections:
            await connection.close()
        for server in servers:
            server.kill()
