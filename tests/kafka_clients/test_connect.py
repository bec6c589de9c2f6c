"""Kafka Connect on the store: a file sink, and MirrorMaker 2 from a real Kafka into the store and back again."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from benchmarks.kafka import Broker, Kafka, find_connect, find_kafka
from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT, Served
from tests.support.kafka_clients.confluent_client import consumer_config
from tests.support.kafka_clients.java_tools import JavaTools
from tests.support.kafka_clients.records import PARTITIONS, alike_records, by_partition, peculiar_records

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

STANDALONE = "org.apache.kafka.connect.cli.ConnectStandalone"
MIRROR_MAKER = "org.apache.kafka.connect.mirror.MirrorMaker"
#: The records are from 2020. Kafka deletes records older than the retention half a minute after its start.
_THIRTY_YEARS_MS, _FIFTY_YEARS_MS = "946080000000", "1576800000000"


@pytest.fixture
def tools(store: Served, tmp_path: Path) -> JavaTools:
    connect = find_connect()
    if isinstance(connect, str):
        pytest.skip(connect)
    return JavaTools(connect, store.bootstrap, tmp_path)


def properties(path: Path, **values: str) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(path)


def test_a_file_sink_has_every_record_once(tools: JavaTools, store: Served, new_topic):
    topic = new_topic("sunk", PARTITIONS)
    records = alike_records(2_000)
    CONFLUENT.produce(store, topic, records, "gzip")
    sunk = tools.directory / "sunk.txt"
    worker = properties(
        tools.directory / "worker.properties",
        **{
            "bootstrap.servers": store.bootstrap,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": str(tools.directory / "offsets"),
            "offset.flush.interval.ms": "500",
            "listeners": "http://127.0.0.1:0",
        },
    )
    sink = properties(
        tools.directory / "sink.properties",
        **{
            "name": topic,
            "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
            "topics": topic,
            "file": str(sunk),
            "tasks.max": "2",
            "consumer.override.auto.offset.reset": "earliest",
        },
    )
    with tools.running("connect.log", STANDALONE, worker, sink) as connect:
        eventually(
            lambda: connect.process.poll() is not None or (sunk.exists() and sunk.read_bytes().count(b"\n") >= 2_000),
            "not all records were sunk",
            seconds=240,
            every_s=0.5,
        )
        group = f"connect-{topic}"
        eventually(
            lambda: committed(store.bootstrap, group, topic) == {0: 1_000, 1: 1_000}, "not committed", every_s=0.5
        )
    assert sorted(sunk.read_bytes().splitlines()) == sorted(record.value for record in records)


def committed(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    with closing(Consumer(consumer_config(bootstrap, group))) as consumer:
        found = consumer.committed([TopicPartition(topic, p) for p in range(PARTITIONS)], timeout=30)
    return {each.partition: each.offset for each in found if each.offset >= 0}


@pytest.fixture
def real_kafka(tmp_path: Path) -> Iterator[Broker]:
    kafka = find_kafka()
    if not isinstance(kafka, Kafka):
        pytest.skip(kafka)
    with Broker(kafka, tmp_path / "kafka") as broker:
        yield broker


def test_mirror_maker_copies_from_a_real_kafka_and_back(tools: JavaTools, store: Served, new_topic, real_kafka: Broker):
    """Copy topics, their configuration, records with all their fields, and offsets of groups."""
    theirs = Served(real_kafka.bootstrap)
    ours_topic = new_topic("ours", PARTITIONS, retention_ms=_THIRTY_YEARS_MS)
    theirs_topic = f"theirs-{ours_topic}"
    admin = AdminClient({"bootstrap.servers": theirs.bootstrap, "broker.address.family": "v4"})
    topic = NewTopic(theirs_topic, PARTITIONS, 1, config={"retention.ms": _FIFTY_YEARS_MS})
    admin.create_topics([topic])[theirs_topic].result(60)
    sent = peculiar_records() + alike_records(500)
    CONFLUENT.produce(theirs, theirs_topic, sent, "snappy")
    CONFLUENT.produce(store, ours_topic, sent, "zstd")
    # MirrorMaker translates the offset of the last record exactly, and may give a lower one for earlier records.
    end = sum(record.partition == 0 for record in sent)
    with closing(Consumer(consumer_config(theirs.bootstrap, "readers"))) as consumer:
        eventually(lambda: _commit(consumer, TopicPartition(theirs_topic, 0, end)), "no coordinator", every_s=0.5)
    mirror = properties(
        tools.directory / "mirror.properties",
        **{
            "clusters": "kafka, store",
            "kafka.bootstrap.servers": theirs.bootstrap,
            "store.bootstrap.servers": store.bootstrap,
            "kafka->store.enabled": "true",
            "kafka->store.topics": theirs_topic,
            "store->kafka.enabled": "true",
            "store->kafka.topics": ours_topic,
            "replication.factor": "1",
            "checkpoints.topic.replication.factor": "1",
            "heartbeats.topic.replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "config.storage.replication.factor": "1",
            "sync.topic.acls.enabled": "false",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "2",
            "emit.checkpoints.interval.seconds": "2",
            "refresh.topics.interval.seconds": "5",
            "sync.topic.configs.interval.seconds": "5",
            "offset.lag.max": "0",
            "dedicated.mode.enable.internal.rest": "false",
        },
    )
    with tools.running("mirror.log", MIRROR_MAKER, mirror) as maker:
        for server, name in ((store, f"kafka.{theirs_topic}"), (theirs, f"store.{ours_topic}")):

            def copied(server=server, name=name) -> bool:
                assert maker.process.poll() is None, maker.text[-3000:]
                return count(server, name) >= len(sent)

            eventually(copied, f"{name} was not copied:\n{maker.text[-3000:]}", seconds=400, every_s=1)
        eventually(
            lambda: committed(store.bootstrap, "readers", f"kafka.{theirs_topic}") == {0: end},
            "the group's offsets were not copied",
            seconds=240,
            every_s=1,
        )
    for server, name, retention_ms in (
        (store, f"kafka.{theirs_topic}", _FIFTY_YEARS_MS),
        (theirs, f"store.{ours_topic}", _THIRTY_YEARS_MS),
    ):
        assert configuration(server, name)["retention.ms"] == retention_ms
        copy = by_partition(CONFLUENT.read(server, {name: PARTITIONS})[name])
        assert {p: [record.sent for record in records] for p, records in copy.items()} == {
            p: [record for record in sent if record.partition == p] for p in range(PARTITIONS)
        }, name


def configuration(server: Served, topic: str) -> dict[str, str | None]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "broker.address.family": "v4"})
    described = admin.describe_configs([resource])[resource].result(60)
    return {name: entry.value for name, entry in described.items()}


def _commit(consumer: Consumer, place: TopicPartition) -> bool:
    """Return whether the commit succeeded: a Kafka that has only just started has no coordinator yet."""
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException as error:
        if error.args[0].name() not in {"NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE"}:
            raise
        return False
    return True


def count(server: Served, topic: str) -> int:
    with closing(Consumer(consumer_config(server.bootstrap, "counts"))) as consumer:
        if topic not in consumer.list_topics(timeout=30).topics:
            return 0
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in range(PARTITIONS))
