"""The checks find nothing beside a store that appends, rolls and replaces its files as fast as it can."""

import asyncio
from pathlib import Path

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.cli.data_directory import log_directories
from logstore.cli.topic_table import read_journals
from logstore.delta.topic_table import RewritePart, TopicTable
from logstore.inspection.journal import verify
from logstore.inspection.table_check import verify_topic
from logstore.log.topic import Topic
from logstore.segments.reader import read_footer
from logstore.segments.writer import SegmentWriter
from logstore.table_root import open_root
from tests.support.running_broker import produce, running_broker
from tests.support.topics import log_batch
from tests.support.virtual_time import run

pytestmark = pytest.mark.system

_LOOKS = 25


def look(data: Path) -> list[str]:
    damage = [report.damage for report in (verify(path) for path in data.glob("brokers/*/journal/*/")) if report.damage]
    journals, unreadable = read_journals(log_directories(data))
    report = verify_topic(open_root(data).open("t"), journals)
    return [*map(str, damage), *map(str, unreadable), *(f.text for f in report.problems)]


async def append(broker: Broker, topic: Topic) -> None:
    while True:
        await produce(broker, topic, [b"x" * 500] * 3, partition=0)
        await produce(broker, topic, [b"y"], partition=1)


async def roll(broker: Broker, topic: Topic) -> None:
    while True:
        await broker.topics.tables.roll(INTERNAL, topic)
        await asyncio.to_thread(empty_all_but_the_last, topic.table)
        await broker.topics.tables.refresh(INTERNAL, topic)


def empty_all_but_the_last(table: TopicTable) -> None:
    """Replace all segments but the last by one with a single record, as a compaction does, and vacuum at once."""
    files = table.snapshot().segments(0)[:-1]
    if len(files) < 2:
        return
    last = read_footer(table.files, files[-1].path)
    with SegmentWriter(table.files, 0, files[0].base_offset, last.end_offset, last.leader_epoch) as writer:
        writer.write(log_batch([files[0].base_offset]))
        made = writer.finish(last.leader_epochs, operation="key-compaction")
    part = RewritePart(0, tuple(file.path for file in files), (made,))
    table.commit_rewrites([part], data_change=False, operation="key-compaction")
    table.files.remove([file.path for file in files])


@pytest.mark.long
def test_nothing_is_found_beside_a_store_at_work(tmp_path: Path) -> None:
    async def scenario() -> list[str]:
        found: list[str] = []
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=2)
            assert topic
            work = [asyncio.create_task(append(broker, topic)), asyncio.create_task(roll(broker, topic))]
            for _ in range(_LOOKS):
                found += await asyncio.to_thread(look, tmp_path)
            for task in work:
                assert not task.done(), task
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        return found + look(tmp_path)

    assert run(scenario()) == []
