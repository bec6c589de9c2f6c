import asyncio
import threading
from pathlib import Path

import pytest

from logstore.broker import roll_schedule
from logstore.broker.context import INTERNAL
from logstore.broker.due_topics import DueTopics
from logstore.log.in_sync_replicas import InSyncReplicas
from logstore.log.topic import Topic
from tests.support.eventually import eventually_async
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, records, running_broker
from tests.support.topics import HookedFileSystem
from tests.support.virtual_time import run


@pytest.fixture(autouse=True)
def no_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable all rolls except those that a test asks for."""
    monkeypatch.setattr(roll_schedule, "_TICK_S", 1e9)


def test_a_topic_is_due_once_its_oldest_record_is_old_enough(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        due = DueTopics(clock, journal_bytes_max=10**9, check_interval_ms=300_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            old = await broker.topics.changes.create(INTERNAL, "old", configs={"segment.ms": "50000"})
            quiet = await broker.topics.changes.create(INTERNAL, "quiet", configs={"segment.ms": "50000"})
            assert old
            assert quiet
            for topic in (old, quiet):
                due.touch(topic)
            assert due.take(clock.monotonic()) == []
            await produce(broker, old, [b"a"])
            due.appended(old, [0])
            assert due.take(clock.monotonic()) == []
            clock.advance(49_000)
            await produce(broker, old, [b"b"])
            due.appended(old, [0])
            assert due.take(clock.monotonic()) == []
            clock.advance(1_100)
            assert due.take(clock.monotonic()) == [old]
            await broker.topics.tables.roll(INTERNAL, old)
            due.touch(old)
            clock.advance(1e9)
            assert due.take(clock.monotonic()) == []

    run(scenario())


def test_a_topic_is_due_once_it_is_big_enough(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        due = DueTopics(clock, journal_bytes_max=10**9, check_interval_ms=300_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(
                INTERNAL, "t", partitions=2, configs={"segment.bytes": str(1 << 20)}
            )
            assert topic
            for partition in (1, 0, 1):
                assert due.take(clock.monotonic()) == []
                await produce(broker, topic, [bytes(1 << 19)], partition=partition)
                due.appended(topic, [partition])
            assert due.take(clock.monotonic()) == [topic]

    run(scenario())


def test_records_being_fsynced_are_not_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, synced = ManualClock(), threading.Event()
        due = DueTopics(clock, journal_bytes_max=10**9, check_interval_ms=300_000)
        filesystem = HookedFileSystem()
        async with running_broker(tmp_path, clock=clock, filesystem=filesystem) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            assert topic
            filesystem.at("journal.written", lambda: synced.wait(30))
            producing = asyncio.create_task(
                broker.produce.records.produce(INTERNAL, topic, records([b"a"]), partition=0)
            )
            await eventually_async(lambda: "journal.written" in filesystem.points)
            due.appended(topic, [0])
            assert due.take(clock.monotonic()) == []
            synced.set()
            await producing
            assert due.take(clock.monotonic()) == []
            clock.advance(61_000)
            assert due.take(clock.monotonic()) == [topic]

    asyncio.run(scenario())  # on real time, which continues while a thread is held


def test_records_that_followers_do_not_have_are_not_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        due = DueTopics(clock, journal_bytes_max=10**9, check_interval_ms=300_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            assert topic
            (log,) = topic.partitions
            replicas = InSyncReplicas(1, (1, 2), (1, 2), min_in_sync=lambda: 1, now=clock.monotonic())
            log.become_leader(log.leader_epoch + 1, replicas)
            await broker.produce.records.produce(INTERNAL, topic, records([b"a"]), partition=0, acks=1)
            due.appended(topic, [0])
            assert due.take(clock.monotonic()) == []
            log.require_leader().fetched(2, 1, log.log_end_offset, clock.monotonic())
            assert due.take(clock.monotonic()) == []
            clock.advance(61_000)
            assert due.take(clock.monotonic()) == [topic]

    run(scenario())


def test_a_shorter_segment_ms_counts_from_its_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        due = DueTopics(clock, journal_bytes_max=10**9, check_interval_ms=300_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            assert topic
            await produce(broker, topic, [b"a"])
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            await broker.topics.changes.alter_configs(INTERNAL, "t", {"segment.ms": "1000"})
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            clock.advance(1_100)
            assert due.take(clock.monotonic()) == [topic]

    run(scenario())


def test_a_deleted_topic_is_not_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        due = DueTopics(clock, journal_bytes_max=10**9, check_interval_ms=300_000)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            assert topic
            await produce(broker, topic, [b"a"])
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            await broker.topics.changes.delete(INTERNAL, "t")
            clock.advance(61_000)
            assert due.take(clock.monotonic()) == []

    run(scenario())


def test_a_topic_is_due_once_all_its_records_have_expired(tmp_path: Path) -> None:
    """Roll expired records. Kafka rolls an active segment of expired records and deletes it; the store rolls it."""

    async def scenario() -> None:
        clock = ManualClock()
        due = DueTopics(clock, journal_bytes_max=10**9, check_interval_ms=300_000)
        a_month = {"segment.ms": "30d"}
        async with running_broker(tmp_path, clock=clock) as broker:
            by_policy: dict[str, Topic] = {}
            for policy in ("delete", "compact", "compact,delete"):
                configs = {**a_month, "retention.ms": "1h", "cleanup.policy": policy}
                made = await broker.topics.changes.create(INTERNAL, policy.replace(",", "-"), configs=configs)
                assert made
                by_policy[policy] = made
            forever = await broker.topics.changes.create(INTERNAL, "forever", configs=a_month)
            assert forever
            topics = [*by_policy.values(), forever]

            async def append(timestamp_ms: int) -> None:
                for topic in topics:
                    batch = records([b"a"], keys=[b"k"], timestamp=timestamp_ms)
                    (await broker.produce.records.produce(INTERNAL, topic, batch, partition=0)).require_stored()
                    due.appended(topic, [0])

            def due_after(milliseconds: float) -> set[str]:
                clock.advance(milliseconds)
                return {topic.name for topic in due.take(clock.monotonic())}

            await append(clock.now_ms())
            await append(clock.now_ms() - 7_200_000)
            assert due_after(3_599_000) == set(), "one record is younger than retention.ms"
            assert due_after(61_000) == {"delete", "compact-delete"}
            for topic in topics:
                await broker.topics.tables.roll(INTERNAL, topic)

            await append(clock.now_ms() - 7_200_000)
            assert due_after(299_000) == set(), "what comes expired waits for the check interval"
            assert due_after(1_100) == {"delete", "compact-delete"}
            for name in ("delete", "compact,delete"):
                await broker.topics.tables.roll(INTERNAL, by_policy[name])
                due.touch(by_policy[name])
            assert due_after(1e9) == set()

    run(scenario())
