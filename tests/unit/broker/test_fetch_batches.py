"""Fetches in the form of Kafka's record batches return the same records as HTTP, however they are stored, in batches by
which consumers find their position.
"""

import random
from pathlib import Path

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import FetchLimits, WantedPartition
from logstore.broker.produce.batches import TopicBatches
from logstore.errors import LogStoreError, OffsetOutOfRangeError, UnknownTopicError
from logstore.kafka_batches.encoding import encode_batch
from logstore.kafka_batches.header import Compression
from logstore.log import kafka_records
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords
from logstore.records.batch_identity import ProducerIdentity
from tests.support import foreign_writers as others
from tests.support.kafka_batches import log_batch
from tests.support.kafka_reading import MIB, consume, fetch_one, http_rows, read_batches, rows_from
from tests.support.keyed_topics import KeyedTopic
from tests.support.local_jobs import merge
from tests.support.manual_clock import ManualClock
from tests.support.mixed_sources import SOURCES
from tests.support.records import Row, compressed_payload, wire_batch
from tests.support.running_broker import running_broker
from tests.support.table_paths import path_of
from tests.support.virtual_time import run

NEVER = {"segment.ms": "100000000"}


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("source", SOURCES)
def test_from_every_offset_the_records_are_those_over_http(tmp_path: Path, source: str, timestamp_type: str) -> None:
    rng = random.Random(7)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            configs = {**NEVER, "message.timestamp.type": timestamp_type}
            topic = await broker.topics.changes.create(INTERNAL, "t", configs=configs)
            assert topic is not None
            for write in SOURCES[source]:
                await write(broker, topic, rng)
            expected = await http_rows(broker, topic)
            assert expected
            log = topic.partition(0)
            # A small limit needs many fetches, so it begins at fewer offsets.
            for max_bytes, step in ((1, 11), (700, 5), (MIB, 1)):
                for offset in range(log.log_start_offset, log.high_watermark + 1, step):
                    batches = await consume(broker, topic, offset, max_bytes=max_bytes)
                    wanted = {at: row for at, row in expected.items() if at >= offset}
                    assert rows_from(batches, offset) == wanted, (offset, max_bytes)

    run(scenario())


async def new_topic(broker: Broker, **configs: str) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, "t", configs={**NEVER, **configs})
    assert topic is not None
    return topic


async def produce_rows(broker: Broker, topic: Topic, rows: list[Row], identity: ProducerIdentity | None = None) -> None:
    decoded = DecodedRecords(wire_batch(rows), None)
    (await broker.produce.records.produce(INTERNAL, topic, decoded, partition=0, identity=identity)).require_stored()


def test_a_batch_of_a_client_goes_out_as_it_came(tmp_path: Path) -> None:
    rows = [Row(5 + n, None, b"v" * 3_000, None) for n in range(20)]
    sent = encode_batch(log_batch(rows, range(20)), leader_epoch=3, compression=Compression.NONE)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            for _ in range(3):
                wanted = [TopicBatches("t", [(0, sent)])]
                assert (await broker.produce.batches.produce(INTERNAL, wanted, acks=-1, timeout_ms=9_000)).outcomes[0]
            answer = await fetch_one(broker, topic, 25)
            placed, records, *_ = answer.records
            # The records are still in the buffer into which the journal was read.
            assert (len(placed), memoryview(records)) == (16, memoryview(sent)[16:])
            assert len(memoryview(records).obj) > len(sent)
            batches = read_batches(answer.records)
            epoch = topic.partition(0).leader_epoch
            assert [(one.header.base_offset, one.header.leader_epoch) for one in batches] == [(20, epoch), (40, epoch)]
            assert (answer.count, answer.num_bytes) == (35, 2 * len(sent))

    run(scenario())


def test_small_frames_are_one_batch_and_those_of_producers_are_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            rows = [Row(7, b"k", b"v", None)]
            producer = await broker.produce.records.init_producer(INTERNAL)
            for sequence in (None, None, None, 0, 1, None):
                identity = None
                if sequence is not None:
                    identity = ProducerIdentity(producer.producer_id, producer.producer_epoch, {0: sequence})
                await produce_rows(broker, topic, rows, identity)
            headers = [batch.header for batch in await consume(broker, topic, 0)]
            assert [header.record_count for header in headers] == [3, 1, 1, 1]
            assert [header.producer_id for header in headers] == [-1, producer.producer_id, producer.producer_id, -1]
            assert [header.base_sequence for header in headers] == [-1, 0, 1, -1]
            assert [header.producer_epoch for header in headers] == [-1, 0, 0, -1]

    run(scenario())


def test_append_times_are_marked_in_the_tail(tmp_path: Path) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker, **{"message.timestamp.type": "LogAppendTime"})
            rows = [Row(7, b"k", b"v", None)] * 2
            for seconds in (0, 0, 3):
                clock.advance(seconds * 1000)
                await produce_rows(broker, topic, rows)
            headers = [batch.header for batch in await consume(broker, topic, 0)]
            assert [(header.is_log_append_time, header.record_count) for header in headers] == [(True, 4), (True, 2)]
            assert headers[1].max_timestamp - headers[0].max_timestamp == 3_000

    run(scenario())


def test_append_times_are_marked_in_history(tmp_path: Path) -> None:
    """Change the topic's configuration: each record keeps the kind of timestamp that it was appended with."""
    clock = ManualClock()
    expected: dict[int, tuple[bool, int]] = {}

    async def write(broker: Broker, topic: Topic, timestamp_type: str) -> None:
        await broker.topics.changes.alter_configs(INTERNAL, "t", {"message.timestamp.type": timestamp_type})
        is_append_time = timestamp_type == "LogAppendTime"
        for number in range(3):
            clock.advance(2 if number else 0)
            first = topic.partition(0).log_end_offset
            rows = [Row(7 + number, b"k", b"v", None)] * 2
            await produce_rows(broker, topic, rows)
            sent = encode_batch(log_batch(rows, range(2)), leader_epoch=-1)
            produced = await broker.produce.batches.produce(INTERNAL, [TopicBatches("t", [(0, sent)])])
            assert produced.outcomes[0][0].error is None
            time = clock.now_ms() if is_append_time else 7 + number
            expected.update(dict.fromkeys(range(first, first + 4), (is_append_time, time)))

    async def check(broker: Broker, topic: Topic) -> None:
        for offset in (0, 1, 6, 13, 25):
            batches = await consume(broker, topic, offset)
            found = {
                at: (header.is_log_append_time, row.timestamp) for header, rows in batches for at, row in rows.items()
            }
            assert {at: found[at] for at in found if at >= offset} == {
                at: expected[at] for at in expected if at >= offset
            }

    async def scenario() -> None:
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker)
            # One roll has both kinds, and one kind is in several rolls.
            for timestamp_type in ("CreateTime", "LogAppendTime", "LogAppendTime"):
                await write(broker, topic, timestamp_type)
            await broker.topics.tables.roll(INTERNAL, topic)
            for timestamp_type in ("LogAppendTime", "CreateTime", "LogAppendTime", "LogAppendTime"):
                await write(broker, topic, timestamp_type)
                await check(broker, topic)
                await broker.topics.tables.roll(INTERNAL, topic)
            await check(broker, topic)
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            await check(broker, topic)
            merge(KeyedTopic(tmp_path, "t", topic.table), clock.now_ms())
            await broker.topics.tables.refresh(INTERNAL, topic)
            assert len(topic.partition(0).segments.files) < 5
            await check(broker, topic)
            # Another writer does not know the kind, and may have changed the times.
            others.z_order(path_of(topic.table))
            await broker.topics.tables.refresh(INTERNAL, topic)
            expected.update({at: (False, time) for at, (_, time) in expected.items()})
            await check(broker, topic)

    run(scenario())


@pytest.mark.parametrize("in_one_file", [True, False])
def test_a_batch_has_one_leader_epoch(tmp_path: Path, *, in_one_file: bool) -> None:
    async def scenario() -> None:
        for start in range(3):
            async with running_broker(tmp_path) as broker:
                topic = broker.topics.served.topic(INTERNAL, "t") if start else await new_topic(broker)
                await produce_rows(broker, topic, [Row(7, None, b"v", None)] * 4)
        async with running_broker(tmp_path) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            log = topic.partition(0)
            if in_one_file:
                await broker.topics.tables.roll(INTERNAL, topic)
                others.optimize(path_of(topic.table))
                await broker.topics.tables.refresh(INTERNAL, topic)
                assert len(log.segments.files) == 1
            for offset in range(12):
                batches = await consume(broker, topic, offset)
                assert len(batches) == 3 - offset // 4
                for batch in batches:
                    epochs = {log.state.leader_epochs.epoch_of(at) for at in batch.rows}
                    assert epochs == {batch.header.leader_epoch}

    run(scenario())


@pytest.mark.parametrize("offsets_max", [2**31, 5])
def test_a_gap_of_any_width_is_crossed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offsets_max: int) -> None:
    monkeypatch.setattr(kafka_records, "_OFFSETS_MAX", offsets_max)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            for _ in range(3):
                await produce_rows(broker, topic, [Row(7, None, b"v", None)] * 10)
                await broker.topics.tables.roll(INTERNAL, topic)
            others.delete(path_of(topic.table), '"offset" > 3 AND "offset" != 17')
            await broker.topics.tables.refresh(INTERNAL, topic)
            batches = await consume(broker, topic, 0)
            assert [*rows_from(batches, 0)] == [0, 1, 2, 3, 17]
            assert max(header.last_offset_delta for header, _ in batches) < offsets_max
            (batch, *_) = await consume(broker, topic, 20)
            assert (batch.header.record_count, batch.header.base_offset) == (0, 20)
            if offsets_max > 30:
                assert [header.last_offset for header, _ in batches] == [29]
                assert batch.header.last_offset == 29
                # A fetch does not wait for records that exist.
                assert (await fetch_one(broker, topic, 20, max_wait_ms=100)).next_offset == 30

    run(scenario())


def test_errors_and_room_are_those_of_every_fetch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            await produce_rows(broker, topic, [Row(7, None, b"v" * 1_000, None)] * 10)
            limits = FetchLimits(MIB, MIB, 1, 0)
            deleted = await broker.topics.changes.create(INTERNAL, "u")
            assert deleted is not None
            gone = WantedPartition(deleted, deleted.partition(0), 0)
            await broker.topics.changes.delete(INTERNAL, "u")
            wanted = [gone, *(WantedPartition(topic, topic.partition(0), offset) for offset in (0, 11))]
            fetched = await broker.fetch.batches(INTERNAL, wanted, limits)
            assert isinstance(fetched.answers[0], UnknownTopicError)
            found = fetched.answers[1]
            assert not isinstance(found, LogStoreError)
            assert isinstance(fetched.answers[2], OffsetOutOfRangeError)
            assert fetched.reservation.size == sum(map(len, found.records)) == found.num_bytes > 10_000
            assert broker.admission.answers.reserved == found.num_bytes
            fetched.reservation.release()
            assert broker.admission.answers.reserved == 0

    run(scenario())


def test_frames_that_inflate_to_more_than_is_wanted_wait_for_the_next_fetch(tmp_path: Path) -> None:
    batch = wire_batch([Row(7, None, b"v" * 10_000, None)] * 10)

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            for _ in range(5):
                decoded = DecodedRecords(batch, None, verbatim=compressed_payload(batch, "zstd"))
                (await broker.produce.records.produce(INTERNAL, topic, decoded, partition=0)).require_stored()
            assert topic.partition(0).unsealed_bytes < 50_000
            answer = await fetch_one(broker, topic, 0, max_bytes=250_000)
            assert (answer.next_offset, answer.count) == (20, 20)
            assert 200_000 < answer.num_bytes < 250_000
            assert (await fetch_one(broker, topic, 0, max_bytes=10)).next_offset == 10

    run(scenario())
