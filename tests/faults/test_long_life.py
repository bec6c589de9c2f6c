"""A long life in a short time: rolls of four partitions, an hour of the store's clock apart, with merges, checkpoints,
clean-up and deletions as the store does them; sizes and delays are scaled down. Whatever its age, the topic has few
files and few log entries, and a roll costs the same. The long form has 10,000 rolls.
"""

import asyncio
import os
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from logstore.broker import upkeep
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.delta import schema
from logstore.delta.topic_table import TopicTable
from logstore.log.merge import target_bytes
from logstore.log.topic import Topic
from logstore.segments import layout
from tests.support.examples import TORTURE
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.table_paths import path_of

ROLLS, PARTITIONS = (10_000, 4) if TORTURE else (120, 2)
HOUR_MS = 3_600_000
#: Each part of a life has separate figures.
PARTS = 10 if TORTURE else 3


@dataclass(frozen=True, slots=True)
class Age:
    """Figures of one part of a life.

    They are the most files that a partition had beyond one for each target's bytes, log entries, data files on disk
    that are not active, and the median CPU time of a roll in ms.
    """

    files: int
    entries: int
    idle_files: int
    roll_ms: float


@pytest.fixture
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Delta log forget quickly: it forgets by the clock of the machine, which is not the store's here."""
    forgets = {"delta.deletedFileRetentionDuration": "interval 1 seconds"}
    monkeypatch.setattr("logstore.delta.topic_table.DELTA_PROPERTIES", schema.DELTA_PROPERTIES | forgets)
    monkeypatch.setattr(layout, "PLAIN_LAYOUT", replace(layout.PLAIN_LAYOUT, log_retention="interval 1 seconds"))
    monkeypatch.setattr("logstore.delta.maintenance.DELTA_CHECKPOINT_INTERVAL", 20)
    monkeypatch.setattr(upkeep, "OVERWRITES_NOTICED_MS", 0)
    monkeypatch.setattr(upkeep, "_LOOK_S", 1e9)  # the test asks for each round


async def live(broker: Broker, topic: Topic, clock: ManualClock, rolls: int, first: int) -> Age:
    ages: list[Age] = []
    took: list[float] = []
    for at in range(first, first + rolls):
        values: list[bytes | None] = [os.urandom(30) for _ in range(10 + at % 20)]
        await asyncio.gather(*(produce(broker, topic, values, partition=p) for p in range(PARTITIONS)))
        clock.advance(HOUR_MS)
        began = time.process_time()
        await broker.topics.tables.roll(INTERNAL, topic)
        took.append(1000 * (time.process_time() - began))
        while await broker._upkeep._round():
            pass
        if at % 20 == 0:
            await broker._roller.refresh(topic)  # as the schedule does every few seconds: it maintains the log
            active = {file.path for p in topic.partitions for file in p.segments}
            target = target_bytes(topic.config)
            ages.append(
                Age(
                    max(len(p.segments) - p.segments.size_bytes // target for p in topic.partitions),
                    len(list((path_of(topic.table) / "_delta_log").glob("*.json"))),
                    len(list(path_of(topic.table).glob("*/*.parquet"))) - len(active),
                    0,
                )
            )
    return Age(
        max(age.files for age in ages),
        max(age.entries for age in ages),
        max(age.idle_files for age in ages),
        statistics.median(took),
    )


@pytest.mark.usefixtures("short_memory")
@pytest.mark.long
def test_files_log_entries_and_the_cost_of_a_roll_stay_flat(tmp_path: Path) -> None:
    async def scenario() -> None:
        # Files are deleted by the storage's clock, which the store's never passes.
        clock = ManualClock(time.time_ns() // 1_000_000 - 2 * ROLLS * HOUR_MS)
        configs = {
            "segment.ms": str(10**15),
            "merge.target.bytes": "20000",
            "file.delete.delay.ms": "0",
        }
        parts: list[Age] = []
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", partitions=PARTITIONS, configs=configs)
            assert topic
            table = topic.table
            while len(parts) < PARTS:
                parts += [await live(broker, topic, clock, ROLLS // PARTS, len(parts) * (ROLLS // PARTS))]
            records = [offset for offset, _ in await read_all(broker, topic)]
            assert records == list(range(topic.partition(0).high_watermark))
            versions = topic.version
            assert any(file.size >= 20_000 for p in topic.partitions for file in p.segments), "sizes are scaled down"
        assert max(age.files for age in parts) <= 50, parts
        # The log remembers the rolls of one second, and those since the last checkpoint.
        assert max(age.entries for age in parts) <= 150, parts
        assert max(age.idle_files for age in parts) <= PARTITIONS * 50, parts
        assert max(age.roll_ms for age in parts[1:]) <= 2 * parts[0].roll_ms + 5, parts
        assert versions <= 1.2 * ROLLS
        began = time.process_time()
        assert TopicTable.recover(table.files).snapshot().version == versions
        assert time.process_time() - began < 1.0
        print(versions, parts)

    asyncio.run(asyncio.wait_for(scenario(), 3_600 if TORTURE else 500))
