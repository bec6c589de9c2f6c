"""Kafka's own tools against the listener: console, administration, performance, and the Verifiable clients."""

import csv
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.kafka import Kafka, find_kafka
from benchmarks.rivals import PRODUCED
from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT, Served
from tests.support.kafka_clients.java_tools import JavaTools, json_lines
from tests.support.kafka_clients.records import CODECS, alike_records, peculiar_records

pytestmark = pytest.mark.long

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"


@pytest.fixture(scope="session")
def kafka() -> Kafka:
    found = find_kafka()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def tools(kafka: Kafka, served: Served, tmp_path: Path) -> JavaTools:
    return JavaTools(kafka, served.bootstrap, tmp_path)


def test_topics(tools: JavaTools, new_topic):
    topic = new_topic("java", 1) + "-made-by-java"
    tools.admin(TOPICS, "--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=3600000")
    assert topic in tools.admin(TOPICS, "--list").split()
    described = tools.admin(TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=3600000" in described
    assert described.count("Leader: ") == 3
    assert "already exists" in tools.admin(TOPICS, "--create", "--topic", topic, "--partitions", "3", fails=True)
    tools.admin(TOPICS, "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tools.admin(TOPICS, "--describe", "--topic", topic)
    tools.admin(TOPICS, "--delete", "--topic", topic)
    eventually(lambda: topic not in tools.admin(TOPICS, "--list").split(), "the topic is still there", every_s=1)


def test_configs(tools: JavaTools, new_topic):
    entity = ["--entity-type", "topics", "--entity-name", new_topic("java", 1)]
    tools.admin(CONFIGS, "--alter", *entity, "--add-config", "retention.ms=1234567,cleanup.policy=[compact,delete]")
    described = tools.admin(CONFIGS, "--describe", *entity)
    assert "retention.ms=1234567" in described
    assert "cleanup.policy=compact,delete" in described
    tools.admin(CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in tools.admin(CONFIGS, "--describe", *entity)
    assert "max.message.bytes=" in tools.admin(CONFIGS, "--describe", "--all", *entity)
    assert "no.such.key" in tools.admin(CONFIGS, "--alter", *entity, "--add-config", "no.such.key=1", fails=True)


def test_the_broker_returns_its_versions_and_its_cluster(tools: JavaTools):
    told = tools.admin("org.apache.kafka.tools.BrokerApiVersionsCommand")
    assert "Produce(0): " in told
    assert "ConsumerGroupHeartbeat(68): " in told
    assert "Cluster ID: " in tools.run(
        "org.apache.kafka.tools.ClusterTool", "cluster-id", "--bootstrap-server", tools.bootstrap
    )
    sizes = tools.admin("org.apache.kafka.tools.LogDirsCommand", "--describe")
    assert json.loads(sizes[sizes.index("{") :])["brokers"]


@pytest.mark.parametrize("codec", CODECS)
def test_console_producer_and_consumer(tools: JavaTools, new_topic, codec: str):
    topic = new_topic("console", 1)
    lines = "".join(f"h{n}:{n}\tkey-{n}\tvalue {n}\n" for n in range(50))
    tools.run(
        CONSOLE_PRODUCER, "--bootstrap-server", tools.bootstrap, "--topic", topic, "--compression-codec", codec,
        "--property", "parse.key=true", "--property", "parse.headers=true", stdin=lines,
    )  # fmt: skip
    read = tools.admin(
        CONSOLE_CONSUMER, "--topic", topic, "--from-beginning", "--max-messages", "50",
        *(f"--property=print.{what}=true" for what in ("key", "headers", "partition", "offset")),
    )  # fmt: skip
    assert read.splitlines() == [f"Partition:0\tOffset:{n}\th{n}:{n}\tkey-{n}\tvalue {n}" for n in range(50)]


def test_the_console_consumer_reads_history_and_what_others_sent(tools: JavaTools, served: Served, new_topic):
    topic = new_topic("peculiar", 1)
    records = [record._replace(partition=0) for record in peculiar_records()]
    CONFLUENT.produce(served, topic, records, "zstd")
    read = tools.admin(
        CONSOLE_CONSUMER, "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages",
        str(len(records)), *(f"--property=print.{what}=true" for what in ("timestamp", "key", "offset")),
        "--property=print.value=false", "--isolation-level", "read_committed",
    )  # fmt: skip
    keys = {None: "null", b"": "", b"key": "key"}
    assert [line.split("\t") for line in read.splitlines()] == [
        [f"CreateTime:{record.timestamp_ms}", f"Offset:{offset}", keys[record.key]]
        for offset, record in enumerate(records)
    ]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_groups(tools: JavaTools, served: Served, new_topic, protocol: str):
    topic = new_topic("groups", 2)
    group = f"group-{topic}"
    CONFLUENT.produce(served, topic, alike_records(40), "none")
    tools.admin(
        CONSOLE_CONSUMER, "--topic", topic, "--group", group, "--from-beginning", "--max-messages", "40",
        "--consumer-property", f"group.protocol={protocol}",
    )  # fmt: skip
    assert group in tools.admin(GROUPS, "--list").split()
    described = tools.admin(GROUPS, "--describe", "--group", group)
    assert sorted(line.split()[1:6] for line in described.splitlines() if line.startswith(group)) == [
        [topic, str(partition), "20", "20", "0"] for partition in range(2)
    ]
    tools.admin(GROUPS, "--group", group, "--topic", f"{topic}:1", "--reset-offsets", "--to-offset", "5", "--execute")
    described = tools.admin(GROUPS, "--describe", "--group", group)
    assert sorted(line.split()[3] for line in described.splitlines() if line.startswith(group)) == ["20", "5"]
    assert "Empty" in tools.admin(GROUPS, "--describe", "--group", group, "--state")
    tools.admin(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:0")
    exported = tools.admin(
        GROUPS, "--group", group, "--all-topics", "--reset-offsets", "--to-current", "--export", "--dry-run"
    )
    assert [row[-3:] for row in csv.reader(exported.split())] == [[topic, "1", "5"]]
    tools.admin(GROUPS, "--delete", "--group", group)
    assert group not in tools.admin(GROUPS, "--list").split()


def test_offsets_and_deleted_records(tools: JavaTools, served: Served, new_topic):
    topic = new_topic("offsets", 2)
    records = alike_records(40)
    CONFLUENT.produce(served, topic, records, "none")
    shell = "org.apache.kafka.tools.GetOffsetShell"

    def offsets(*arguments: str) -> list[str]:
        return [
            line.removeprefix(f"{topic}:") for line in tools.admin(shell, "--topic", topic, *arguments).splitlines()
        ]

    assert offsets() == ["0:20", "1:20"]
    assert offsets("--time", str(records[10].timestamp_ms)) == ["0:5", "1:5"]
    assert offsets("--time", "max-timestamp") == ["0:19", "1:19"]
    (tools.directory / "delete.json").write_text(
        json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 7}]})
    )
    tools.admin("org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", "delete.json")
    assert offsets("--time", "earliest") == ["0:7", "1:0"]


def test_performance_tools(tools: JavaTools, new_topic):
    topic = new_topic("perf", 4)
    sent = tools.run(
        "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", "50000", "--record-size",
        "100", "--throughput", "-1", "--producer-props", f"bootstrap.servers={tools.bootstrap}", "acks=all",
    )  # fmt: skip
    assert PRODUCED.findall(sent)[-1][0] == "50000"
    read = tools.admin(
        "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic, "--messages", "50000", "--hide-header"
    )
    assert int(read.strip().splitlines()[-1].split(", ")[4]) == 50_000
    ends = tools.run("org.apache.kafka.tools.EndToEndLatency", tools.bootstrap, topic, "100", "all", "100")
    assert "Percentiles: 50th" in ends


def test_the_compatibility_test_of_kafkas_clients(tools: JavaTools, new_topic):
    told = tools.run(
        "org.apache.kafka.tools.ClientCompatibilityTest", "--bootstrap-server", tools.bootstrap, "--topic",
        new_topic("compatible", 1), "--offsets-for-times-supported", "true", "--cluster-id-supported", "true",
        "--expect-record-too-large-exception", "false", "--num-cluster-nodes", "1", "--create-topics-supported", "true",
        "--describe-acls-supported", "false", "--describe-configs-supported", "true",
        "--idempotent-producer-supported", "true",
    )  # fmt: skip
    assert "SUCCESS" in told.upper() or told == ""


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_verifiable_clients(tools: JavaTools, new_topic, protocol: str):
    """Run a consumer that ends, one that takes over, and one producer: every record is read once, in order."""
    topic = new_topic("verifiable", 4)
    group = f"group-{topic}"

    def consumer(name: str):
        return tools.running(
            name, VERIFIABLE_CONSUMER, "--bootstrap-server", tools.bootstrap, "--topic", topic, "--group-id", group,
            "--reset-policy", "earliest", "--group-protocol", protocol, "--verbose",
        )  # fmt: skip

    with ExitStack() as stack:
        first = stack.enter_context(consumer("first"))
        second = stack.enter_context(consumer("second"))
        eventually(
            lambda: _assigned(first.events) == _assigned(second.events) == 2, "no two partitions each", every_s=0.5
        )
        _produce(tools, topic, 2_000)
        eventually(lambda: _consumed([first, second]) >= 2_000, "not all records came", every_s=0.5)
        second.stop()
        eventually(lambda: _assigned(first.events) == 4, "the first one did not take over", every_s=0.5)
        _produce(tools, topic, 500)
        eventually(lambda: _consumed([first, second]) >= 2_500, "not all records came after", every_s=0.5)
        first.stop()
        places = [
            (event["partition"], event["offset"])
            for member in (first, second)
            for event in member.events
            if event["name"] == "record_data"
        ]
        commits = [
            event for member in (first, second) for event in member.events if event["name"] == "offsets_committed"
        ]
    assert len(places) == len(set(places)) == 2_500
    assert commits
    assert all(event["success"] for event in commits)


def _produce(tools: JavaTools, topic: str, records: int) -> None:
    output = tools.run(
        VERIFIABLE_PRODUCER, "--bootstrap-server", tools.bootstrap, "--topic", topic, "--max-messages", str(records),
        "--acks", "-1",
    )  # fmt: skip
    summary = next(event for event in json_lines(output) if event["name"] == "tool_data")
    assert (summary["sent"], summary["acked"]) == (records, records)


def _assigned(events) -> int:
    partitions: set[int] = set()
    for event in events:
        changed = {each["partition"] for each in event.get("partitions", []) if isinstance(each, dict)}
        if event["name"] == "partitions_assigned":
            partitions |= changed
        elif event["name"] == "partitions_revoked":
            partitions -= changed
    return len(partitions)


def _consumed(members) -> int:
    return sum(event["count"] for member in members for event in member.events if event["name"] == "records_consumed")
