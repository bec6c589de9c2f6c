"""A fleet moves from the classic protocol to KIP-848's and back, one client at a time, and continues to read."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

import logstore
from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT, Served
from tests.support.kafka_clients.confluent_client import consumer_config
from tests.support.kafka_clients.kafka_python_client import closed
from tests.support.kafka_clients.records import alike_records

pytestmark = pytest.mark.system

PARTITIONS = 6


class _Member:
    """A member: ``poll`` returns (partition, offset) of records, ``partitions`` its assigned partitions."""

    def __init__(self, poll: Callable[[], list[tuple[int, int]]], partitions: Callable[[], set[int]]) -> None:
        self.poll = poll
        self.partitions = partitions


def librdkafka(served: Served, topic: str, group: str, stack: ExitStack, **options: Any) -> _Member:
    config = {**consumer_config(served.bootstrap, group), "enable.auto.commit": True, "auto.commit.interval.ms": 200}
    consumer = stack.enter_context(closing(Consumer({**config, **options})))
    consumer.subscribe([topic])

    def poll() -> list[tuple[int, int]]:
        messages = consumer.consume(500, 0.05)
        assert not [message.error() for message in messages if message.error()]
        return [(message.partition(), message.offset()) for message in messages]

    return _Member(poll, lambda: {one.partition for one in consumer.assignment()})


def rdkafka_classic(served: Served, topic: str, group: str, stack: ExitStack) -> _Member:
    sessions = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 300}
    return librdkafka(served, topic, group, stack, **sessions, **{"partition.assignment.strategy": "range"})


def rdkafka_consumer(served: Served, topic: str, group: str, stack: ExitStack) -> _Member:
    return librdkafka(served, topic, group, stack, **{"group.protocol": "consumer"})


def python_classic(served: Served, topic: str, group: str, stack: ExitStack) -> _Member:
    consumer = stack.enter_context(
        closed(
            KafkaConsumer(
                topic,
                bootstrap_servers=served.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                auto_commit_interval_ms=200,
                session_timeout_ms=10_000,
                heartbeat_interval_ms=300,
            )
        )
    )

    def poll() -> list[tuple[int, int]]:
        found = consumer.poll(timeout_ms=50, max_records=500)
        return [(record.partition, record.offset) for records in found.values() for record in records]

    return _Member(poll, lambda: {one.partition for one in consumer.assignment()})


def ours(served: Served, topic: str, group: str, stack: ExitStack, **options: Any) -> _Member:
    assert served.url is not None
    given = {"group_id": group, "auto_offset_reset": "earliest", "auto_commit_interval_ms": 200, **options}
    consumer = stack.enter_context(closing(logstore.Consumer(served.url, **given)))
    consumer.subscribe([topic])

    def poll() -> list[tuple[int, int]]:
        return [(record.partition, record.offset) for record in consumer.poll(timeout_s=0.05)]

    return _Member(poll, lambda: {one.partition for one in consumer.assignment()})


def ours_classic(served: Served, topic: str, group: str, stack: ExitStack) -> _Member:
    sessions = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 300}
    return ours(
        served, topic, group, stack, group_protocol="classic", partition_assignment_strategy="range", **sessions
    )


def ours_consumer(served: Served, topic: str, group: str, stack: ExitStack) -> _Member:
    return ours(served, topic, group, stack, group_protocol="consumer")


@pytest.mark.parametrize(
    "cooperative", [False, pytest.param(True, marks=pytest.mark.long)], ids=["eager", "cooperative"]
)
def test_a_fleet_moves_one_client_at_a_time_and_back(served: Served, new_topic, *, cooperative: bool):
    """Check at each step that the members share all partitions and read every record, in a group of the right kind."""
    if served.is_kafka and cooperative:
        pytest.skip("Kafka 4.1 converts no group with user data, which librdkafka's cooperative-sticky assigns")
    topic = new_topic("fleet", PARTITIONS)
    group = f"fleet-{topic}"
    seen: set[tuple[int, int]] = set()
    sent: set[tuple[int, int]] = set()
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})
    classic = [rdkafka_classic, python_classic, *([] if served.is_kafka else [ours_classic])]
    if cooperative:
        strategy = {"partition.assignment.strategy": "cooperative-sticky", "heartbeat.interval.ms": 300}
        classic = [lambda *given: librdkafka(*given, **strategy)] * 3
    modern = [rdkafka_consumer, rdkafka_consumer if served.is_kafka else ours_consumer, rdkafka_consumer][
        : len(classic)
    ]
    stacks = [ExitStack() for _ in classic]
    with ExitStack() as all_of_them:
        for stack in stacks:
            all_of_them.push(stack)
        members = [make(served, topic, group, stack) for make, stack in zip(classic, stacks, strict=True)]

        def step(what: str, kind: str) -> None:
            records = [one._replace(partition=at % PARTITIONS) for at, one in enumerate(alike_records(PARTITIONS * 5))]
            offsets = CONFLUENT.produce(served, topic, records, "none")
            sent.update(zip([record.partition for record in records], offsets, strict=True))

            def is_shared_and_read() -> bool:
                for member in members:
                    seen.update(member.poll())
                shares = [member.partitions() for member in members]
                return (
                    sorted(at for share in shares for at in share) == list(range(PARTITIONS))
                    and all(shares)
                    and seen == sent
                )

            eventually(is_shared_and_read, f"{what}: not shared, or not all records are read", seconds=60)
            described = admin.describe_consumer_groups([group])[group].result(30)
            assert described.type.name.lower() == kind, what
            assert len(described.members) == len(members)

        step("all are classic", "classic")
        for at, make in enumerate(modern):
            stacks[at].close()
            members[at] = make(served, topic, group, stacks[at])
            step(f"{at + 1} of the consumer protocol", "consumer")
        for at, make in enumerate(classic):
            stacks[at].close()
            members[at] = make(served, topic, group, stacks[at])
            step(f"{at + 1} classic again", "classic" if at == len(classic) - 1 else "consumer")
