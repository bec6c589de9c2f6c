"""The store's work for each of many topics. The tests count it, because times would say more about the machine."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import pytest

from logstore.broker import roll_schedule
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.roll_schedule import RollSchedule
from logstore.delta.topic_table import TopicTable
from logstore.log.topic import Topic
from logstore.settings import Settings
from tests.support.captured_logs import captured_logs
from tests.support.eventually import eventually_async
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, read_all, running_broker, start_broker, stop_broker
from tests.support.table_paths import path_of
from tests.support.topics import HookedFileSystem, overwrite_entry
from tests.support.virtual_time import run

TOPICS = [f"topic-{number:02d}" for number in range(50)]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count by topic how often delta-rs has read a log from its beginning."""
    count: Counter[str] = Counter()

    class Counting(deltalake.DeltaTable):
        def __init__(self, table_uri: str, *args: Any, **options: Any) -> None:
            super().__init__(table_uri, *args, **options)
            count[Path(table_uri).name] += 1

    monkeypatch.setattr(deltalake, "DeltaTable", Counting)
    return count


def test_a_start_has_delta_rs_open_no_table_not_even_those_that_others_wrote_to(
    tmp_path: Path, opened: Counter[str]
) -> None:
    others = TOPICS[:10]

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            for name in TOPICS:
                topic = await broker.topics.changes.create(INTERNAL, name)
                assert topic
                await produce(broker, topic, [b"a", b"b"])
            paths = [path_of(broker.topics.served.topic(INTERNAL, name).table) for name in others]
        for path in paths:
            deltalake.DeltaTable(path).alter.set_table_properties({"a": "b"}, raise_if_not_exists=False)
        opened.clear()
        async with running_broker(tmp_path) as broker:
            assert opened == {}
            for name in (TOPICS[0], TOPICS[-1]):
                assert await read_all(broker, broker.topics.served.topic(INTERNAL, name)) == [(0, b"a"), (1, b"b")]

    run(scenario())


class Looks:
    """The tables that were looked at since it was emptied, by the names of their topics, and the number of passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.passes = 0
        snapshot, changed = TopicTable.snapshot, RollSchedule._changed

        def counted(table: TopicTable) -> Any:
            self.names.append(path_of(table).name)
            return snapshot(table)

        def one_pass(schedule: RollSchedule, topics: Sequence[Topic]) -> list[tuple[Topic, int | None]]:
            self.passes += 1
            return changed(schedule, topics)

        monkeypatch.setattr(TopicTable, "snapshot", counted)
        monkeypatch.setattr(RollSchedule, "_changed", one_pass)


def make_old(broker: Broker) -> None:
    """Set the last change of all tables' logs to an hour ago."""
    for topic in broker.topics.served.all(INTERNAL):
        log = path_of(topic.table) / "_delta_log"
        then = log.stat().st_mtime_ns - 3600 * 10**9
        os.utime(log, ns=(then, then))


def test_at_rest_only_tables_that_changed_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roll_schedule, "_REFRESH_S", 0.01)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            for name in TOPICS[:20]:
                topic = await broker.topics.changes.create(INTERNAL, name)
                assert topic
                await produce(broker, topic, [b"a", b"b"])
                await broker.topics.tables.roll(INTERNAL, topic)
            make_old(broker)
            await eventually_async(lambda: len(broker._schedule._seen) == 20)
            looks = Looks(monkeypatch)
            begun = looks.passes
            await eventually_async(lambda: looks.passes == begun + 20)
            # Each pass looks at one, so all have their turn, including those whose change left no trace.
            assert 1 <= len(looks.names) <= looks.passes + 1
            overwritten = broker.topics.served.topic(INTERNAL, TOPICS[7])
            overwrite_entry(overwritten.table, overwritten.version)
            await eventually_async(lambda: overwritten.version == 2)
            assert deltalake.DeltaTable(path_of(overwritten.table)).to_pyarrow_table().num_rows == 2
            make_old(broker)
        looks.names.clear()
        async with running_broker(tmp_path):
            at_start, begun = len(looks.names), looks.passes
            await eventually_async(lambda: looks.passes >= begun + 5)
            assert len(looks.names) - at_start <= looks.passes - begun + 1

    run(scenario())


def test_a_change_in_the_moment_of_the_last_one_is_not_passed_over(tmp_path: Path) -> None:
    """Change a table twice within one tick of the file system's clock, which lasts milliseconds: the times agree."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t")
            assert topic
            assert topic.table.log_mark() is None, "too young to tell"
            make_old(broker)
            mark = topic.table.log_mark()
            assert mark is not None
            assert topic.table.log_mark() == mark
            overwrite_entry(topic.table, 0)
            assert topic.table.log_mark() != mark

    run(scenario())


def test_a_stop_out_of_time_leaves_records_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, filesystem = ManualClock(), HookedFileSystem()
    monkeypatch.setattr(roll_schedule, "ROLLS_AT_A_TIME", 1)

    async def scenario() -> None:
        broker = await start_broker(Settings(data=tmp_path), clock=clock, filesystem=filesystem)
        for name in TOPICS[:5]:
            topic = await broker.topics.changes.create(INTERNAL, name)
            assert topic
            await produce(broker, topic, [b"a", b"b"])
        filesystem.at("delta.committed", lambda: clock.advance(4_000), lambda: clock.advance(4_000))
        with captured_logs() as lines:
            await stop_broker(broker)
        (said,) = [line for line in lines if line["event"] == "broker.left_in_journal_at_stop"]
        assert (said["topics"], said["records"]) == (3, 6)
        async with running_broker(tmp_path, clock=clock) as broker:
            sealed = [broker.topics.served.topic(INTERNAL, name).partition(0).sealed_offset for name in TOPICS[:5]]
            assert sealed == [2, 2, 0, 0, 0]
            for name in TOPICS[:5]:
                assert await read_all(broker, broker.topics.served.topic(INTERNAL, name)) == [(0, b"a"), (1, b"b")]
            clock.advance(60_000)
            await eventually_async(lambda: not any(topic.has_unsealed for topic in broker.topics.served.all(INTERNAL)))

    run(scenario())
