"""Retention cuts a store's tables behind its back."""

import time

import pytest

from compaction_jobs.jobs import run_job, topics_of
from logstore.broker.context import INTERNAL
from logstore.errors import OffsetOutOfRangeError
from logstore.table_root import open_root
from tests.support.eventually import eventually_async
from tests.support.job_context import job_context
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, read_all, records, running_broker
from tests.support.table_paths import path_of
from tests.support.virtual_time import run


def retain(data) -> None:
    with job_context(time.time_ns() // 1_000_000) as context:
        report = run_job("retention", topics_of("retention", open_root(data), [], {}), context)
    assert not report.failed
    assert report.topics[0].versions


async def fetch(broker, topic, offset):
    return await broker.fetch.partition(INTERNAL, topic, 0, offset, max_bytes=1 << 20, min_bytes=1, max_wait_ms=0)


def test_all_of_history_may_go_and_the_log_continues(tmp_path):
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(
                INTERNAL, "events", partitions=1, configs={"retention.bytes": "0"}
            )
            await produce(broker, topic, [b"0", b"1", b"2"])
            await broker.topics.tables.roll(INTERNAL, topic)
            assert len(await read_all(broker, topic)) == 3
            retain(tmp_path)
            await produce(broker, topic, [b"3"])
            await broker.topics.tables.roll(INTERNAL, topic)
            await produce(broker, topic, [b"4"])
            assert topic.partition(0).log_start_offset == 3
            for offset in (0, 2):
                with pytest.raises(OffsetOutOfRangeError, match="offsets 3 to 5 can be read"):
                    await fetch(broker, topic, offset)
            assert await read_all(broker, topic) == [(3, b"3"), (4, b"4")]
        retain(tmp_path)
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "events")
            partition_log = topic.partition(0)
            assert (partition_log.log_start_offset, partition_log.sealed_offset) == (5, 5)
            assert await read_all(broker, topic) == []
            assert await produce(broker, topic, [b"5"]) == 5
            assert await read_all(broker, topic) == [(5, b"5")]

    run(scenario())


def test_a_fetch_whose_file_has_gone_looks_at_the_table_again(tmp_path):
    """Delete files before the store has followed: offsets below the new log start are out of range, not corrupt."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(
                INTERNAL, "events", partitions=1, configs={"retention.bytes": "1"}
            )
            for value in (b"0", b"1"):
                await produce(broker, topic, [value])
                await broker.topics.tables.roll(INTERNAL, topic)
            first = path_of(topic.table) / topic.partition(0).segments.files[0].path
            retain(tmp_path)
            first.unlink()
            assert topic.partition(0).log_start_offset == 0, "not followed yet"
            with pytest.raises(OffsetOutOfRangeError, match="offsets 1 to 2 can be read"):
                await fetch(broker, topic, 0)
            assert await read_all(broker, topic) == [(1, b"1")]

    run(scenario())


@pytest.mark.parametrize(
    "configs",
    [
        pytest.param({"segment.ms": "20m", "retention.ms": "1h"}, id="rolled by age"),
        pytest.param({"segment.ms": "30d", "retention.ms": "1h"}, id="rolled because it has expired"),
        pytest.param(
            {"segment.ms": "30d", "retention.ms": "1h", "cleanup.policy": "compact,delete"}, id="both policies"
        ),
    ],
)
def test_an_idle_topic_empties_by_itself(tmp_path, configs):
    """Let records in the journal expire: the store then rolls them, and retention can remove them."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "events", configs=configs)
            for value in (b"0", b"1"):
                await produce_keyed(broker, topic, value)
            clock.advance(3_600_000 - 1_000)
            await eventually_async(lambda: topic.partition(0).sealed_offset == (2 if "20m" in configs.values() else 0))
            assert retain_at(tmp_path, clock.now_ms()).versions == ()
            assert await read_all(broker, topic) == [(0, b"0"), (1, b"1")]

            clock.advance(70_000)
            await eventually_async(lambda: topic.partition(0).sealed_offset == 2)
            retained = retain_at(tmp_path, clock.now_ms())
            assert (retained.partitions, retained.after.records) == ((0,), 0)
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert (topic.partition(0).log_start_offset, await read_all(broker, topic)) == (2, [])
            assert await produce_keyed(broker, topic, b"2") == 2

    run(scenario())


def retain_at(data, now_ms):
    with job_context(now_ms) as context:
        (report,) = run_job("retention", topics_of("retention", open_root(data), [], {}), context).topics
    assert report.error is None
    return report


async def produce_keyed(broker, topic, value):
    result = await broker.produce.records.produce(INTERNAL, topic, records([value], keys=[b"k"]), partition=0)
    result.require_stored()
    return result.partitions[0].base_offset
