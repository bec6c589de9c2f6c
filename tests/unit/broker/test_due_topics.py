import asyncio
import threading
from pathlib import Path

import pytest

from logstore.broker import roll_schedule
from logstore.broker.context import INTERNAL
from logstore.broker.due_topics import DueTopics
from tests.support.eventually import eventually_async
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, records, run, running_broker
from tests.support.topics import HookedFileSystem


@pytest.fixture(autouse=True)
def no_rolls(monkeypatch: pytest.MonkeyPatch) -> None:
    """But those that a test asks for."""
    monkeypatch.setattr(roll_schedule, "_TICK_S", 1e9)


def test_a_topic_is_due_once_its_oldest_record_is_old_enough(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, due = ManualClock(), DueTopics(journal_bytes_max=10**9)
        async with running_broker(tmp_path, clock=clock) as broker:
            old = await broker.create_topic(INTERNAL, "old", configs={"segment.ms": "50000"})
            quiet = await broker.create_topic(INTERNAL, "quiet", configs={"segment.ms": "50000"})
            assert old
            assert quiet
            for topic in (old, quiet):
                due.touch(topic)
            assert due.take(clock.monotonic()) == []
            await produce(broker, old, [b"a"])
            due.touch(old)
            assert due.take(clock.monotonic()) == []
            clock.advance(49_000)
            await produce(broker, old, [b"b"])
            due.touch(old)
            assert due.take(clock.monotonic()) == []
            clock.advance(1_100)
            assert due.take(clock.monotonic()) == [old]
            await broker.roll(INTERNAL, old)
            due.touch(old)
            clock.advance(1e9)
            assert due.take(clock.monotonic()) == []

    run(scenario())


def test_a_topic_is_due_once_it_is_big_enough(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, due = ManualClock(), DueTopics(journal_bytes_max=10**9)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.create_topic(INTERNAL, "t", partitions=2, configs={"segment.bytes": str(1 << 20)})
            assert topic
            await produce(broker, topic, [bytes(1 << 19)], partition=1)
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            await produce(broker, topic, [bytes(1 << 19)], partition=1)
            due.touch(topic)
            assert due.take(clock.monotonic()) == [topic]

    run(scenario())


def test_records_being_fsynced_are_not_forgotten(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, due, synced = ManualClock(), DueTopics(journal_bytes_max=10**9), threading.Event()
        filesystem = HookedFileSystem()
        async with running_broker(tmp_path, clock=clock, filesystem=filesystem) as broker:
            topic = await broker.create_topic(INTERNAL, "t")
            assert topic
            filesystem.at("journal.written", lambda: synced.wait(30))
            producing = asyncio.create_task(broker.produce(INTERNAL, topic, records([b"a"]), partition=0))
            await eventually_async(lambda: "journal.written" in filesystem.points)
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            synced.set()
            await producing
            assert due.take(clock.monotonic()) == []
            clock.advance(61_000)
            assert due.take(clock.monotonic()) == [topic]

    run(scenario())


def test_a_shorter_segment_ms_counts_from_its_change(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, due = ManualClock(), DueTopics(journal_bytes_max=10**9)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.create_topic(INTERNAL, "t")
            assert topic
            await produce(broker, topic, [b"a"])
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            await broker.alter_configs(INTERNAL, "t", {"segment.ms": "1000"})
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            clock.advance(1_100)
            assert due.take(clock.monotonic()) == [topic]

    run(scenario())


def test_a_deleted_topic_is_not_due(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock, due = ManualClock(), DueTopics(journal_bytes_max=10**9)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.create_topic(INTERNAL, "t")
            assert topic
            await produce(broker, topic, [b"a"])
            due.touch(topic)
            assert due.take(clock.monotonic()) == []
            await broker.delete_topic(INTERNAL, "t")
            clock.advance(61_000)
            assert due.take(clock.monotonic()) == []

    run(scenario())
