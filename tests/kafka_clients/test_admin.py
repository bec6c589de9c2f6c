"""Topics and groups managed by other admin clients, and what HTTP shows of them afterwards."""

import asyncio
import time

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AiokafkaPartitions
from aiokafka.admin import NewTopic as AiokafkaTopic
from aiokafka.admin.config_resource import ConfigResource as AiokafkaResource
from aiokafka.admin.config_resource import ConfigResourceType as AiokafkaResourceType
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import ConfigResourceType as KafkaPythonResourceType
from kafka.admin import NewTopic as KafkaPythonTopic

from logstore.client.admin import Admin
from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT, Served
from tests.support.kafka_clients.kafka_python_client import closed
from tests.support.kafka_clients.records import alike_records

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def admin(served: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})


def _result(futures):
    (future,) = futures.values()
    return future.result(30)


def _code(call) -> str:
    with pytest.raises(KafkaException) as raised:
        call()
    return raised.value.args[0].name()


def test_a_topic_is_made_described_altered_and_deleted(served: Served, admin: AdminClient, new_topic):
    topic = new_topic("life", 2, retention_ms="3600000")
    described = eventually(lambda: admin.list_topics(timeout=30).topics.get(topic), "the topic is not listed")
    assert sorted(described.partitions) == [0, 1]
    assert described.error is None
    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = _result(admin.describe_configs([resource]))
    assert configs["retention.ms"].value == "3600000"
    assert configs["retention.ms"].source == 1  # set on the topic itself
    assert configs["cleanup.policy"].value == "delete"
    changed = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    _result(admin.incremental_alter_configs([changed]))
    configs = _result(admin.describe_configs([resource]))
    assert configs["retention.ms"].value == "7200000"
    assert set(configs["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    _result(admin.create_partitions([NewPartitions(topic, 5)]))
    eventually(lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == 5, "no new partitions")
    _result(admin.delete_topics([topic]))
    eventually(lambda: topic not in admin.list_topics(timeout=30).topics, "the topic is still listed")


def test_refusals_have_kafkas_errors(admin: AdminClient, new_topic):
    topic = new_topic("refused", 2)

    def create(*given, **configs):
        return lambda: _result(admin.create_topics([NewTopic(*given, **configs)]))

    assert _code(create(topic, 2, 1)) == "TOPIC_ALREADY_EXISTS"
    assert _code(create("a name with spaces", 2, 1)) == "TOPIC_EXCEPTION"
    assert _code(create("many-replicas", 2, 5)) == "INVALID_REPLICATION_FACTOR"
    assert _code(create("no-partitions", 0, 1)) == "INVALID_PARTITIONS"
    assert _code(create("wrong-config", 1, 1, config={"cleanup.policy": "burn"})) == "INVALID_CONFIG"
    assert _code(create("unknown-config", 1, 1, config={"no.such.key": "1"})) == "INVALID_CONFIG"
    assert _code(lambda: _result(admin.create_partitions([NewPartitions(topic, 1)]))) == "INVALID_PARTITIONS"
    assert _code(lambda: _result(admin.delete_topics(["nobody-made-this"]))) == "UNKNOWN_TOPIC_OR_PART"
    assert _code(lambda: _result(admin.delete_consumer_groups(["no-such-group"]))) == "GROUP_ID_NOT_FOUND"


def test_a_key_that_nobody_knows_is_deleted_and_not_set(admin: AdminClient, new_topic):
    topic = new_topic("unknown-keys", 1, retention_ms="3600000")

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        _result(
            admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])])
        )

    alter("no.such.key", None, AlterConfigOpType.DELETE)
    assert _code(lambda: alter("no.such.key", "1", AlterConfigOpType.SET)) == "INVALID_CONFIG"
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    configs = _result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))
    assert configs["retention.ms"].value != "3600000"


def test_offsets_are_found_by_time_and_at_both_ends(served: Served, admin: AdminClient, new_topic):
    topic = new_topic("times", 2)
    records = alike_records(100)
    CONFLUENT.produce(served, topic, records, "gzip")
    place = TopicPartition(topic, 0)

    def offset(spec) -> tuple[int, int]:
        found = _result(admin.list_offsets({place: spec}, isolation_level=IsolationLevel.READ_COMMITTED))
        return found.offset, found.timestamp

    own = [record for record in records if record.partition == 0]
    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 50
    assert offset(OffsetSpec.max_timestamp()) == (49, own[-1].timestamp_ms)
    assert offset(OffsetSpec.for_timestamp(own[20].timestamp_ms)) == (20, own[20].timestamp_ms)
    assert offset(OffsetSpec.for_timestamp(own[-1].timestamp_ms + 1))[0] == -1
    found = _result(admin.delete_records([TopicPartition(topic, 0, 30)]))
    assert found.low_watermark == 30
    assert offset(OffsetSpec.earliest())[0] == 30


def test_the_cluster_names_itself(admin: AdminClient, store: Served):
    described = admin.describe_cluster().result(30)
    assert [f"{node.host}:{node.port}" for node in described.nodes] == [store.bootstrap]
    assert described.controller.id == described.nodes[0].id
    with Admin(store.url) as ours:
        assert described.cluster_id == ours.cluster_id


def test_http_and_kafka_describe_a_topic_the_same(admin: AdminClient, store: Served, new_topic):
    topic = new_topic("same", 3, retention_ms="60000")
    with Admin(store.url) as ours:
        assert len(ours.describe_topic(topic).partitions) == 3
        assert {entry.name: entry.value for entry in ours.topic_configs(topic)}["retention.ms"] == "60000"
        ours.create_topic(f"{topic}-http", partitions=2, configs={"segment.ms": "5000"})
    eventually(lambda: f"{topic}-http" in admin.list_topics(timeout=30).topics, "a topic made over HTTP is not listed")
    configs = _result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, f"{topic}-http")]))
    assert configs["segment.ms"].value == "5000"


def test_kafka_python_administers(served: Served, admin: AdminClient):
    name = f"by-kafka-python-{time.monotonic_ns()}"
    with closed(KafkaAdminClient(bootstrap_servers=served.bootstrap)) as client:
        client.create_topics([KafkaPythonTopic(name=name, num_partitions=2, replication_factor=1)])
        assert name in client.list_topics()
        (described,) = client.describe_topics([name])
        assert len(described["partitions"]) == 2
        assert client.describe_cluster()["brokers"]
        client.delete_topics([name])
    eventually(lambda: name not in admin.list_topics(timeout=30).topics, "the topic is still listed")


def test_kafka_python_configures_deletes_records_and_measures(served: Served, new_topic):
    topic = new_topic("measured", 2)
    CONFLUENT.produce(served, topic, alike_records(100), "none")
    place = KafkaPythonPartition(topic, 0)
    with closed(KafkaAdminClient(bootstrap_servers=served.bootstrap)) as client:
        resource = KafkaPythonResource(KafkaPythonResourceType.TOPIC, topic, configs={"retention.ms": "60000"})
        assert client.alter_configs([resource]) == {"topic": {topic: "OK"}}
        asked = KafkaPythonResource(KafkaPythonResourceType.TOPIC, topic)
        configs = client.describe_configs([asked], config_filter="all")["topic"][topic]
        retention = configs["retention.ms"]
        assert (retention["value"], retention["config_source"]) == ("60000", "DYNAMIC_TOPIC_CONFIG")
        assert client.delete_records({place: 20})[place]["low_watermark"] == 20
        pages = client.describe_topic_partitions([topic], response_partition_limit=1)
        assert (len(pages["topics"][0]["partitions"]), pages["next_cursor"]["partition_index"]) == (1, 1)
        (broker,) = client.describe_log_dirs()
        (directory,) = broker["log_dirs"]
        (measured,) = [one for one in directory["topics"] if one["name"] == topic]
        assert all(one["partition_size"] > 0 and one["offset_lag"] == 0 for one in measured["partitions"])


def test_aiokafka_administers(served: Served):
    name = f"by-aiokafka-{time.monotonic_ns()}"

    async def scenario() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=served.bootstrap)
        await client.start()
        try:
            made = await client.create_topics([AiokafkaTopic(name, 2, 1, topic_configs={"retention.ms": "60000"})])
            assert [one[1] for one in made.topic_errors] == [0]
            grown = await client.create_partitions({name: AiokafkaPartitions(3)})
            assert [one[1] for one in grown.topic_errors] == [0]
            (described,) = await client.describe_topics([name])
            assert len(described["partitions"]) == 3
            resource = AiokafkaResource(AiokafkaResourceType.TOPIC, name, configs={"segment.ms": "9"})
            # The older AlterConfigs resets the keys that it does not name.
            (altered,) = await client.alter_configs([resource])
            assert [one[0] for one in altered.resources] == [0]
            (answer,) = await client.describe_configs([AiokafkaResource(AiokafkaResourceType.TOPIC, name)])
            values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
            assert (values["segment.ms"], values["retention.ms"]) == ("9", "-1")
            deleted = await client.delete_topics([name])
            assert [one[1] for one in deleted.topic_error_codes] == [0]
        finally:
            await client.close()

    asyncio.run(scenario())
