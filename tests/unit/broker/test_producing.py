"""The producing room: several topics in one append, a step before the claim, and appends that only a leader takes."""

import asyncio
import contextlib
import errno
import gc
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.produce.appends import AppendGroup
from logstore.broker.produce.batches import TopicBatches
from logstore.errors import InvalidRecordError, LogStoreError, NotLeaderOrFollowerError
from logstore.journal.frame import Frame
from logstore.log.acknowledgements import Acknowledgement
from logstore.log.topic import Topic
from tests.support.eventually import eventually_async
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.kafka_batches import client_batch
from tests.support.records import Row
from tests.support.running_broker import produce, records, running_broker
from tests.support.virtual_time import run


async def new_topic(broker: Broker, name: str, **configs: str) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, name, partitions=2, configs=configs)
    assert topic
    return topic


def test_offsets_are_claimed_after_the_step_before_the_claim(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, "t")
            waiting, go_on = asyncio.Event(), asyncio.Event()
            asked: list[Any] = []

            async def step(_: object, parts: Any) -> None:
                asked.append(parts)
                waiting.set()
                await go_on.wait()

            broker.produce.records.before_claim.append(step)
            held = asyncio.create_task(produce(broker, topic, [b"held"], partition=1))
            await waiting.wait()
            assert asked == [[(topic, [1], None)]]
            assert topic.partition(1).next_offset == 0
            broker.produce.records.before_claim.clear()
            assert await produce(broker, topic, [b"first"], partition=1) == 0
            go_on.set()
            assert await held == 1

    run(scenario())


def test_a_partition_that_is_led_elsewhere_refuses_appends_and_the_others_do_not(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, "t")
            topic.partition(0).resign(9)
            with pytest.raises(NotLeaderOrFollowerError, match="does not lead t-0"):
                await produce(broker, topic, [b"x"])
            assert await produce(broker, topic, [b"x"], partition=1) == 0
            topic.partition(0).become_leader(10)
            assert await produce(broker, topic, [b"x"]) == 0

    run(scenario())


def test_a_topic_that_is_compacted_by_the_time_of_the_claim_takes_no_record_without_a_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, "t")

            async def compact(*_: Any) -> None:
                await broker.topics.changes.alter_configs(INTERNAL, "t", {"cleanup.policy": "compact"})

            broker.produce.records.before_claim.append(compact)
            with pytest.raises(InvalidRecordError, match="has no key"):
                await produce(broker, topic, [b"a"])
            assert topic.partition(0).next_offset == 0

    run(scenario())


@pytest.mark.parametrize("of_kafka", [False, True])
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_nothing_is_held_for_requests_that_ended_in_any_way(tmp_path: Path, acks: int, of_kafka: bool) -> None:
    async def scenario() -> None:
        before = _appends()
        keys: list[bytes | None] = [str(number).encode() for number in range(20)]
        filesystem = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=filesystem, journal_topic_max_bytes=20_000) as broker:
            topic = await new_topic(broker, "t")
            ended: list[str] = []

            async def by_http(timeout_ms: int) -> None:
                some = records([bytes(100)] * 20, keys=keys)
                await broker.produce.records.produce(INTERNAL, topic, some, acks=acks, timeout_ms=timeout_ms)

            batch = client_batch([Row(1, b"k", bytes(100), None)] * 10)

            async def by_kafka(timeout_ms: int) -> None:
                sent = [TopicBatches("t", [(0, batch), (1, batch)])]
                told = await broker.produce.batches.produce(INTERNAL, sent, acks=acks, timeout_ms=timeout_ms)
                for outcome in told.outcomes[0]:
                    if outcome.error is not None:
                        raise outcome.error

            async def send(timeout_ms: int, cancelled: bool) -> None:
                sent = (by_kafka if of_kafka else by_http)(timeout_ms)
                try:
                    async with asyncio.timeout(0) if cancelled else contextlib.nullcontext():
                        await sent
                    ended.append("stored")
                except (LogStoreError, TimeoutError) as error:
                    ended.append(type(error).__name__)

            for at in range(12):
                if at % 4 == 3:
                    filesystem.fail("journal.write_at", errno.ENOSPC)
                await asyncio.gather(*(send(0 if n == 1 else 30_000, n == 2) for n in range(8)))
                await eventually_async(lambda: not broker.journal.queued_bytes)
                assert topic.journal_bytes == sum(log.unsealed_bytes for log in topic.partitions)
                filesystem.heal()
                if at % 4 != 1:
                    await broker.topics.tables.roll(INTERNAL, topic)
                    assert topic.journal_bytes == broker.journal.needed_bytes == 0
            wanted = {"stored", "ThrottledError"}
            if acks:
                wanted |= {"RequestTimedOutError", "TimeoutError", "StorageFullError"}
            assert set(ended) == wanted
            assert not _appends() - before

    run(scenario())


def _appends() -> set[int]:
    """Return the identities of requests and their frames that are still in memory."""
    gc.collect()
    return {id(one) for one in gc.get_objects() if isinstance(one, Acknowledgement | AppendGroup | Frame)}
