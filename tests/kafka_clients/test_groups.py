"""Groups of other consumers: assignments, rebalances, commits, and offsets that are the same over HTTP."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from logstore.client.admin import Admin
from tests.support.eventually import eventually
from tests.support.kafka_clients import CONFLUENT, Served
from tests.support.kafka_clients.confluent_client import consumer_config
from tests.support.kafka_clients.kafka_python_client import closed
from tests.support.kafka_clients.records import alike_records

pytestmark = pytest.mark.system

Places = list[tuple[int, int]]


def group_config(served: Served, group: str, protocol: str) -> dict[str, object]:
    config = consumer_config(served.bootstrap, group)
    if protocol == "consumer":
        return {**config, "group.protocol": "consumer"}
    return {**config, "session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.long), "consumer"])
def test_two_members_share_and_one_takes_over(served: Served, new_topic, protocol: str):
    topic = new_topic("shared", 4)
    sent = [record._replace(partition=number % 4) for number, record in enumerate(alike_records(400))]
    CONFLUENT.produce(served, topic, sent, "none")
    config = group_config(served, f"group-{topic}", protocol)
    seen: Places = []
    with closing(Consumer(config)) as first:
        with closing(Consumer(config)) as second:
            for member in (first, second):
                member.subscribe([topic])

            def shared() -> bool:
                seen.extend(_poll(first) + _poll(second))
                return len(first.assignment()) == len(second.assignment()) == 2

            eventually(shared, "the two members never had two partitions each")
            assert {p.partition for member in (first, second) for p in member.assignment()} == set(range(4))

            def all_read() -> bool:
                """Wait also for the member that has the partition now: without a read it has nothing to commit."""
                seen.extend(_poll(first) + _poll(second))
                positions = [p.offset for member in (first, second) for p in member.position(member.assignment())]
                return positions == [100] * 4

            eventually(all_read, "not all records came")
            assert len(set(seen)) == 400
            for member in (first, second):
                member.commit(asynchronous=False)

        def taken_over() -> bool:
            seen.extend(_poll(first))
            return len(first.assignment()) == 4

        eventually(taken_over, "the last member never had all partitions")
        CONFLUENT.produce(served, topic, sent[:8], "none")
        after = len(seen)

        def rest_read() -> bool:
            seen.extend(_poll(first))
            return len(seen) - after >= 8

        eventually(rest_read, "records after the takeover did not come")
        # The commits took effect: the member that took over began after the other's committed offsets.
        assert sorted(seen[after:]) == [(partition, offset) for partition in range(4) for offset in (100, 101)]
        first.commit(asynchronous=False)
    assert _committed(served, f"group-{topic}", topic, 4) == dict.fromkeys(range(4), 102)


def _poll(consumer: Consumer) -> Places:
    messages = consumer.consume(1_000, 0.05)
    assert not [message.error() for message in messages if message.error()]
    return [(message.partition(), message.offset()) for message in messages]


def _committed(served: Served, group: str, topic: str, partitions: int) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, p) for p in range(partitions)])
    (answer,) = admin.list_consumer_group_offsets([asked]).values()
    return {found.partition: found.offset for found in answer.result(30).topic_partitions if found.offset >= 0}


@contextmanager
def _confluent_member(served: Served, group: str, topic: str) -> Iterator[Callable[[], Places]]:
    config = {**group_config(served, group, "classic"), "partition.assignment.strategy": "range"}
    with closing(Consumer(config)) as consumer:
        consumer.subscribe([topic])

        def poll() -> Places:
            found = _poll(consumer)
            if found:
                consumer.commit(asynchronous=False)
            return found

        yield poll


@contextmanager
def _kafka_python_member(served: Served, group: str, topic: str) -> Iterator[Callable[[], Places]]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=served.bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=10_000,
        heartbeat_interval_ms=500,
        fetch_max_wait_ms=100,
    )
    with closed(consumer):

        def poll() -> Places:
            found = [
                (record.partition, record.offset)
                for records in consumer.poll(timeout_ms=50).values()
                for record in records
            ]
            if found:
                consumer.commit()
            return found

        yield poll


@contextmanager
def _aiokafka_member(served: Served, group: str, topic: str) -> Iterator[Callable[[], Places]]:
    async def started() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=served.bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            fetch_max_wait_ms=100,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        await consumer.start()
        return consumer

    async def taken(consumer: AIOKafkaConsumer) -> Places:
        batches = await consumer.getmany(timeout_ms=50)
        found = [(record.partition, record.offset) for records in batches.values() for record in records]
        if found:
            await consumer.commit()
        return found

    with asyncio.Runner() as runner, ThreadPoolExecutor(1) as thread:
        # Its heartbeats need a running loop, even while other members are polled.
        loop = runner.get_loop()
        running = thread.submit(loop.run_forever)
        try:
            consumer = asyncio.run_coroutine_threadsafe(started(), loop).result(60)
            yield lambda: asyncio.run_coroutine_threadsafe(taken(consumer), loop).result(60)
            asyncio.run_coroutine_threadsafe(consumer.stop(), loop).result(60)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            running.result(60)


@pytest.mark.long
def test_members_of_three_kinds_are_one_group(served: Served, new_topic):
    """librdkafka, kafka-python and aiokafka agree on ``range``, and read every record once between them."""
    topic = new_topic("kinds", 6)
    group = f"group-{topic}"
    admin = AdminClient({"bootstrap.servers": served.bootstrap, "broker.address.family": "v4"})
    stop = threading.Event()
    places: list[list[tuple[float, int, int]]] = []

    def run(member) -> None:
        own: list[tuple[float, int, int]] = []
        places.append(own)
        with member(served, group, topic) as poll:
            while not stop.is_set():
                own.extend((time.monotonic(), *place) for place in poll())

    with ThreadPoolExecutor(3) as pool, ExitStack() as stack:
        stack.callback(stop.set)
        members = [pool.submit(run, member) for member in (_confluent_member, _kafka_python_member, _aiokafka_member)]
        eventually(
            lambda: _members(admin, group) == [2, 2, 2], "the three members never had two partitions each", every_s=0.1
        )
        sent = [record._replace(partition=number % 6) for number, record in enumerate(alike_records(600))]
        CONFLUENT.produce(served, topic, sent, "lz4")
        eventually(
            lambda: sum(map(len, places)) >= 600 or any(member.done() for member in members), "not all records came"
        )
        stop.set()
        for member in members:
            member.result(60)
    seen = [(partition, offset) for own in places for _, partition, offset in own]
    assert sorted(seen) == [(partition, offset) for partition in range(6) for offset in range(100)]
    assert sorted(len({partition for _, partition, _ in own}) for own in places) == [2, 2, 2]
    assert _committed(served, group, topic, 6) == dict.fromkeys(range(6), 100)


def _members(admin: AdminClient, group: str) -> list[int]:
    """Return the number of partitions of each member, by Kafka's own description of the group."""
    described = admin.describe_consumer_groups([group])[group].result(30)
    if described.state.name != "STABLE":
        return []
    return sorted(len(member.assignment.topic_partitions) for member in described.members)


def test_offsets_are_the_same_over_http(store: Served, new_topic):
    topic = new_topic("offsets", 2)
    CONFLUENT.produce(store, topic, alike_records(20), "none")
    group = f"group-{topic}"
    with closing(Consumer(consumer_config(store.bootstrap, group))) as consumer, Admin(store.url) as admin:
        consumer.commit(offsets=[TopicPartition(topic, 0, 7, metadata="by Kafka")], asynchronous=False)
        (found,) = admin.group_offsets(group)
        assert (found.topic, found.partition, found.offset) == (topic, 0, 7)
        admin.commit_offsets(group, {(topic, 1): 3})
        committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=30)
        assert [each.offset for each in committed] == [7, 3]
        assert group in {listed.group for listed in admin.list_groups()}
