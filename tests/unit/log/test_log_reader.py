"""A reader of the log returns slices, and does the work for them only once."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.limits import RECORD_OVERHEAD_BYTES
from logstore.log import slice_reader
from logstore.log.topic import Topic
from logstore.segments import reader as segments_reader
from tests.support.journals import control_frame
from tests.support.kafka_reading import consume, fetch_one, rows_from
from tests.support.running_broker import produce, read_all, running_broker
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Record the calls of a function, which still runs."""
    calls: list[Any] = []
    original: Callable[..., Any] = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(owner, name, call)
    return calls


def values(count: int, largest: int) -> list[bytes | None]:
    rng = random.Random(5)
    return [None if rng.random() < 0.05 else bytes(rng.randrange(largest)) for _ in range(count)]


async def history(broker: Broker, records: list[bytes | None]) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
    assert topic is not None
    await produce(broker, topic, records)
    await broker.topics.tables.roll(INTERNAL, topic)
    return topic


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 200, 5_000, 70_000, 10**6])
def test_a_slice_holds_as_many_records_as_fit_and_at_least_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sealed: bool, max_bytes: int
) -> None:
    monkeypatch.setattr(segments_reader, "_BATCH_BYTES", 30_000)
    records = values(3_000, 200)
    sizes = [len(value or b"") + RECORD_OVERHEAD_BYTES for value in records]

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            if sealed:
                topic = await history(broker, records)
            else:
                topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)  # type: ignore[assignment]
                await produce(broker, topic, records[:2_000])
                await produce(broker, topic, records[2_000:])
            at = 0
            for _ in range(30):
                found = await broker.fetch.partition(
                    INTERNAL, topic, 0, at, max_bytes=max_bytes, min_bytes=1, max_wait_ms=0
                )
                end = found.next_offset
                assert found.records["offset"].to_pylist() == list(range(at, end))
                assert found.records["value"].to_pylist() == records[at:end]
                assert (found.count, found.num_bytes) == (end - at, sum(sizes[at:end]))
                assert found.num_bytes <= max_bytes or found.count == 1
                # A slice may end early where one frame ends and the next begins.
                fits_more = end < len(records) and found.num_bytes + sizes[end] <= max_bytes
                assert not fits_more or (not sealed and end == 2_000)
                if end == len(records):
                    break
                at = end

    run(scenario())


def test_history_is_decoded_once_for_each_of_two_readers_in_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_reader, "_BATCH_BYTES", 2_000)
    begun = counted(monkeypatch, slice_reader, "row_group_batches")
    records = values(500, 100)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await history(broker, records)
            both = await asyncio.gather(*(read_all(broker, topic, max_bytes=1_000) for _ in range(2)))
            assert both == [list(enumerate(records))] * 2
            assert len(begun) <= 2
            assert not broker.fetch._reader._slices._begun
            assert await read_all(broker, topic) == list(enumerate(records))
            assert len(begun) <= 3

    run(scenario())


@pytest.mark.parametrize(("value_bytes", "steps_most"), [(0, 5), (10, 3), (100, 1), (1_000, 1)])
def test_history_for_kafkas_clients_is_read_in_few_steps_for_each_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value_bytes: int, steps_most: int
) -> None:
    """Leave some of an answer empty: filling it to the last byte takes ever more steps, with ever fewer records.

    Record batches are smaller than the measured size of their rows.
    """
    steps = counted(monkeypatch, slice_reader.SliceReader, "read_segment")
    max_bytes = 30_000

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await history(broker, [bytes(value_bytes)] * 12_000)
            at = 0
            while True:
                steps.clear()
                answer = await fetch_one(broker, topic, at, max_bytes=max_bytes)
                at = answer.next_offset
                assert len(steps) <= steps_most
                if at == 12_000:
                    break
                assert 0.75 * max_bytes <= answer.num_bytes <= max_bytes

    run(scenario())


@pytest.mark.parametrize("max_bytes", [500, 5_000])
def test_an_answer_behind_a_marker_has_a_record(tmp_path: Path, max_bytes: int) -> None:
    """Put a record behind the marker that is larger than the answer's limit."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic is not None
            await produce(broker, topic, [b"first"])
            await append_marker(broker, topic)
            await produce(broker, topic, [bytes(100_000)])
            reader, log = broker.fetch._reader, topic.partition(0)
            for read in (reader.read, reader.read_stored, reader.read_batches):
                found = await read(topic, log, 1, max_bytes=max_bytes, min_bytes=1)
                assert (found.count, found.next_offset) == (1, 3)

    run(scenario())


def test_a_large_frame_is_read_and_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = values(2_000, 100)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic is not None
            await produce(broker, topic, records)
            read = counted(monkeypatch, broker.journal, "read")
            assert await read_all(broker, topic, max_bytes=2_000) == list(enumerate(records))
            assert len(read) == 1
            assert not broker.fetch._reader._slices._begun

    run(scenario())


def test_readings_kept_between_slices_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop readings: their readers begin again, and miss nothing."""
    monkeypatch.setattr(slice_reader, "READINGS_BYTES_MAX", 3 * slice_reader._DECODER_BYTES)
    monkeypatch.setattr(segments_reader, "_BATCH_BYTES", 2_000)
    records = values(500, 100)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await history(broker, records)
            ends = [0] * 6
            for _ in range(4):
                for reader, at in enumerate(ends):
                    max_bytes = 1_000 + 100 * reader
                    found = await broker.fetch.partition(
                        INTERNAL, topic, 0, at, max_bytes=max_bytes, min_bytes=1, max_wait_ms=0
                    )
                    ends[reader] = found.next_offset
                    assert found.records["offset"].to_pylist() == list(range(at, found.next_offset))
                    assert 0 < len(broker.fetch._reader._slices._begun) <= 2

    run(scenario())


def test_reading_the_same_again_leaves_little_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what stays in memory with its batch, even if that is larger than others."""
    monkeypatch.setattr(segments_reader, "_BATCH_BYTES", 2_000)
    records: list[bytes | None] = [b"x"] * 3_000 + [bytes(300_000)] * 4

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await history(broker, records)
            for _ in range(10):
                await broker.fetch.partition(INTERNAL, topic, 0, 3_001, max_bytes=1, min_bytes=1, max_wait_ms=0)
            assert len(broker.fetch._reader._slices._begun) == 4
            for reading in broker.fetch._reader._slices._begun:
                assert reading.num_bytes > slice_reader._DECODER_BYTES + 300_000

    run(scenario())


async def append_marker(broker: Broker, topic: Topic) -> None:
    log = topic.partition(0)
    frame = control_frame(log.next_offset)
    header = frame.header._replace(topic_id=topic.topic_id, leader_epoch=log.leader_epoch, max_timestamp_ms=2**62)
    frame = frame._replace(header=header)
    log.track(frame)
    (location,) = await broker.journal.append([frame])
    log.stored(frame, location)


@pytest.mark.parametrize("max_bytes", [1, 200, 1_000, 10**6])
def test_offsets_without_a_record_are_passed_over(tmp_path: Path, max_bytes: int) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic is not None
            expected: list[tuple[int, bytes | None]] = []
            for number, markers in enumerate((1, 0, 3, 2, 0, 4)):
                value = b"%d" % number
                at = await produce(broker, topic, [value, value])
                expected += [(at, value), (at + 1, value)]
                for _ in range(markers):
                    await append_marker(broker, topic)
            log = topic.partition(0)
            assert log.high_watermark == len(expected) + 10
            assert await read_all(broker, topic, max_bytes=max_bytes) == expected
            # A read may begin anywhere, even at an offset without a record.
            for start in range(log.high_watermark):
                found = []
                at = start
                while at < log.high_watermark:
                    read = await broker.fetch.partition(
                        INTERNAL, topic, 0, at, max_bytes=max_bytes, min_bytes=1, max_wait_ms=0
                    )
                    assert read.next_offset > at
                    assert read.count == len(read.records)
                    at = read.next_offset
                    found += read.records["offset"].to_pylist()
                assert found == [offset for offset, _ in expected if offset >= start]
                batches = await consume(broker, topic, start, max_bytes=max_bytes)
                assert [*rows_from(batches, start)] == found
            stored = []
            at = 0
            while at < log.high_watermark:
                batches = await broker.fetch._reader.read_stored(topic, log, at, max_bytes=max_bytes, min_bytes=1)
                assert batches.next_offset > at
                assert batches.count == sum(batch.record_count for batch in batches.records)
                at = batches.next_offset
                stored += [batch.base_offset for batch in batches.records]
            assert stored == [offset for offset, _ in expected[::2]]
            last = expected[-1][0]
            time_ms = (
                (await broker.fetch.partition(INTERNAL, topic, 0, last, max_bytes=1, min_bytes=1, max_wait_ms=0))
                .records["timestamp"][0]
                .value
            )
            assert await broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, time_ms + 1) is None, (
                "no marker is found"
            )

            await broker.topics.tables.roll(INTERNAL, topic)
            assert log.sealed_offset == log.high_watermark
            assert await read_all(broker, topic, max_bytes=max_bytes) == expected

    run(scenario())
