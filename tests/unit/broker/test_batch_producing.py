"""Record batches of Kafka's clients are stored as they come, every reader reads them, and each partition has an
outcome.
"""

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.produce.batches import BatchOutcome, TopicBatches
from logstore.errors import (
    CorruptRecordBatchError,
    InvalidProducerEpochError,
    InvalidRecordBatchError,
    InvalidRecordError,
    InvalidRequestError,
    InvalidTimestampError,
    InvalidTopicError,
    LogStoreError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RequestTimedOutError,
    StorageFullError,
    TransactionalIdAuthorizationError,
    UnknownPartitionError,
    UnknownProducerIdError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from logstore.journal.frame import Frame, FrameFlags, FrameType
from logstore.journal.journal import Callback
from logstore.kafka_batches.header import LOG_APPEND_TIME, Compression, check_crc
from logstore.limits import MIB
from logstore.log.topic import Topic
from logstore.records.batch_identity import SEQUENCE_MAX, BatchIdentity, ProducerIdentity
from tests.support import every_reader
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.kafka_batches import client_batch, header_of, raw_batch, raw_records, sealed
from tests.support.manual_clock import ManualClock
from tests.support.records import Row
from tests.support.replicas import running_cluster
from tests.support.running_broker import CLIENT, produce, records, running_broker
from tests.support.virtual_time import run

PLAIN = Row(1_000, b"k", b"v", None)
#: Edge cases: nulls and empty values, no timestamp, repeated headers, times that do not rise.
ROWS = [
    Row(1_700_000_000_000, b"key", b"value", None),
    Row(None, None, b"", (("same", b"1"), ("same", None), ("ключ", b""))),
    Row(5, b"", None, (("", b"x" * 70),)),
    Row(None, b"k" * 130, b"v" * 300, None),
]


async def new_topic(broker: Broker, name: str = "t", partitions: int = 2, **configs: str) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, name, partitions=partitions, configs=configs)
    assert topic
    return topic


async def send(broker: Broker, topic: str, *batches: bytes, partition: int = 0) -> int:
    """Send ``batches`` one after the other; return the base offset of the last. Raises the partition's error."""
    base_offset = -1
    for batch in batches:
        produced = await broker.produce.batches.produce(CLIENT, [TopicBatches(topic, [(partition, batch)])])
        ((outcome,),) = produced.outcomes
        if outcome.error is not None:
            raise outcome.error
        base_offset = outcome.base_offset
    return base_offset


def timed(rows: Sequence[Row], append_time_ms: int) -> list[Row]:
    """Return ``rows`` with the append time for a record without a timestamp."""
    return [
        Row(append_time_ms if row.timestamp is None else row.timestamp, row.key, row.value, row.headers) for row in rows
    ]


def of(*expected: Row, first: int = 0) -> dict[int, Row]:
    return dict(enumerate(expected, first))


def frames_of(topic: Topic, broker: Broker, partition: int = 0) -> list[Frame]:
    return broker.journal.read_many([frame.location for frame in topic.partition(partition).index])


@pytest.mark.parametrize("compression", Compression)
def test_every_reader_gets_what_a_kafka_client_has_sent(tmp_path: Path, compression: Compression) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        data, copy = tmp_path / "live", tmp_path / "killed"
        async with running_broker(data, clock=clock) as broker:
            topic = await new_topic(broker)
            now = clock.now_ms()
            expected = of(*timed(ROWS, now), Row(now, None, b"http", None), PLAIN, PLAIN)
            batch = client_batch(ROWS, compression=compression)
            assert await send(broker, "t", batch) == 0
            assert await produce(broker, topic, [b"http"]) == 4
            assert await send(broker, "t", client_batch([PLAIN] * 2, compression=compression)) == 5
            first, second, _ = frames_of(topic, broker)
            assert bytes(first.payload) == batch
            assert (first.header.type, second.header.type) == (FrameType.KAFKA_BATCH, FrameType.DATA)
            assert (first.header.max_timestamp_ms, first.header.append_time_ms) == (now, now)
            for max_bytes in (1, 200, 1 << 20):
                assert await every_reader.decoded(broker, topic, max_bytes=max_bytes) == expected
                assert await every_reader.stored(broker, topic, max_bytes=max_bytes) == expected
            copy_of_one_moment(data, copy)
            await broker.topics.tables.roll(INTERNAL, topic)
            assert await every_reader.decoded(broker, topic) == expected
            assert await every_reader.stored(broker, topic) == expected
            assert every_reader.in_table(data, "t") == expected
        async with running_broker(copy, clock=clock) as broker:
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert await every_reader.decoded(broker, topic) == expected
            assert await every_reader.stored(broker, topic) == expected
            assert await send(broker, "t", batch) == 7
            await broker.topics.tables.roll(INTERNAL, topic)
            assert every_reader.in_table(copy, "t") == expected | of(*timed(ROWS, now), first=7)

    run(scenario())


def test_timestamps_are_found_in_record_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker)
            await send(broker, "t", client_batch([Row(10, None, b"", None), Row(30, None, b"", None)]))
            await send(broker, "t", client_batch([Row(None, None, b"", None)], compression=Compression.ZSTD))
            now = clock.now_ms()
            for wanted, found in ((0, (0, 10)), (11, (1, 30)), (31, (2, now)), (now + 1, None)):
                assert await broker.fetch.offset_for_timestamp(INTERNAL, topic, 0, wanted) == found

    run(scenario())


def test_a_header_with_another_max_timestamp_is_corrected(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            batch = bytearray(client_batch([Row(10, None, b"", None), Row(30, None, b"", None)]))
            batch[35:43] = (77).to_bytes(8, "big")
            assert await send(broker, "t", sealed(bytes(batch))) == 0
            (frame,) = frames_of(topic, broker)
            assert bytes(frame.payload) == client_batch([Row(10, None, b"", None), Row(30, None, b"", None)])
            assert frame.header.max_timestamp_ms == 30

    run(scenario())


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_log_append_time_is_written_over_the_records_own(tmp_path: Path, compression: Compression) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running_broker(tmp_path, clock=clock) as broker:
            topic = await new_topic(broker, **{"message.timestamp.type": "LogAppendTime"})
            # No table can hold this timestamp.
            forged = sealed(raw_batch(raw_records(2), 2, base_timestamp=-(2**60)))
            produced = await broker.produce.batches.produce(
                CLIENT,
                [TopicBatches("t", [(0, client_batch(ROWS, compression=compression)), (1, forged)])],
            )
            now = clock.now_ms()
            assert produced.outcomes == [[BatchOutcome(0, 0, now, 0), BatchOutcome(1, 0, now, 0)]]
            (frame,) = frames_of(topic, broker)
            view = memoryview(bytes(frame.payload))
            header = header_of(bytes(view))
            check_crc(view, header)
            assert (header.attributes, header.max_timestamp) == (LOG_APPEND_TIME | compression, now)
            assert (frame.header.flags, frame.header.max_timestamp_ms) == (FrameFlags.LOG_APPEND_TIME, now)
            expected = of(*[Row(now, row.key, row.value, row.headers) for row in ROWS])
            clock.advance(1_000)
            assert await every_reader.decoded(broker, topic) == await every_reader.stored(broker, topic) == expected
            assert [row.timestamp for row in (await every_reader.decoded(broker, topic, 1)).values()] == [now, now]
            await broker.topics.tables.roll(INTERNAL, topic)
            assert every_reader.in_table(tmp_path, "t") == expected

    run(scenario())


def test_each_partition_has_its_own_outcome(tmp_path: Path) -> None:
    good = client_batch([PLAIN])

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=13)
            await new_topic(broker, "u", **{"cleanup.policy": "compact", "max.message.bytes": "1100"})
            internal = await broker.topics.changes.internal(INTERNAL, "__audit", partitions=1, configs={})
            topic.partition(2).resign(9)
            topic.partition(3).quarantine("damaged", "mend it")
            damaged = bytearray(good)
            damaged[-1] ^= 1
            no_key = client_batch([PLAIN, Row(1, None, b"", None)])
            produced = await broker.produce.batches.produce(
                CLIENT,
                [
                    TopicBatches(
                        "t",
                        [
                            (0, good),
                            (1, bytes(damaged)),
                            (2, good),
                            (3, good),
                            (4, None),
                            (5, good + good),
                            (6, client_batch([PLAIN], control=True)),
                            (7, client_batch([PLAIN], transactional=True)),
                            (8, sealed(good[:21] + bytes((0, 8)) + good[23:])),
                            (9, client_batch([PLAIN], identity=BatchIdentity(2**62, 0, 0))),
                            (10, raw_batch(raw_records(1), 1, base_timestamp=-2)),
                            (11, good[:20]),
                            (13, good),
                            (0, good),
                            (12, good),
                        ],
                    ),
                    TopicBatches("none", [(0, good)]),
                    TopicBatches(uuid4(), [(0, good)]),
                    TopicBatches(internal.topic_id, [(0, good)]),
                    TopicBatches("u", [(0, no_key), (1, client_batch([Row(1, b"k", bytes(1_100), None)]))]),
                ],
            )
            found = [[type(outcome.error) for outcome in outcomes] for outcomes in produced.outcomes]
            assert found == [
                [
                    type(None),
                    CorruptRecordBatchError,
                    NotLeaderOrFollowerError,
                    type(topic.partition(3).quarantined),
                    InvalidRecordBatchError,
                    InvalidRecordBatchError,
                    InvalidRecordBatchError,
                    TransactionalIdAuthorizationError,
                    InvalidTimestampError,
                    UnknownProducerIdError,
                    InvalidTimestampError,
                    CorruptRecordBatchError,
                    UnknownPartitionError,
                    InvalidRequestError,
                    type(None),
                ],
                [UnknownTopicError],
                [UnknownTopicIdError],
                [InvalidTopicError],
                [InvalidRecordError, RecordTooLargeError],
            ]
            assert [outcome.partition for outcome in produced.outcomes[0]] == [*range(12), 13, 0, 12]
            assert all(outcome.base_offset == -1 for one in produced.outcomes for outcome in one if outcome.error)
            assert [log.high_watermark for log in topic.partitions] == [1, *[0] * 11, 1]

    run(scenario())


def test_all_partitions_of_a_request_are_one_append(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic, other = await new_topic(broker), await new_topic(broker, "u")
            appends = []
            store = broker.journal.store
            broker.journal.store = lambda frames, told: (appends.append(frames), store(frames, told))  # type: ignore[method-assign,assignment]
            batch = client_batch([PLAIN])
            produced = await broker.produce.batches.produce(
                CLIENT, [TopicBatches("u", [(1, batch)]), TopicBatches(topic.topic_id, [(0, batch), (1, batch)])]
            )
            (frames,) = appends
            assert [(frame.header.topic_id, frame.header.partition) for frame in frames] == [
                (other.topic_id, 1),
                (topic.topic_id, 0),
                (topic.topic_id, 1),
            ]
            assert produced.outcomes == [[BatchOutcome(1, 0, -1, 0)], [BatchOutcome(n, 0, -1, 0) for n in (0, 1)]]

    run(scenario())


def test_http_and_kafka_share_a_producers_sequence(tmp_path: Path) -> None:
    async def scenario() -> None:
        data, copy = tmp_path / "live", tmp_path / "killed"
        async with running_broker(data) as broker:
            topic = await new_topic(broker)
            producer_id, epoch = await broker.produce.records.init_producer(CLIENT)

            def numbered(sequence: int, count: int = 2, epoch: int = epoch) -> bytes:
                return client_batch([PLAIN] * count, identity=BatchIdentity(producer_id, epoch, sequence))

            assert await send(broker, "t", numbered(0)) == 0
            identity = ProducerIdentity(producer_id, epoch, {0: 2})
            for _ in range(2):
                told = await broker.produce.records.produce(
                    CLIENT, topic, records([b"a", b"b"]), partition=0, identity=identity
                )
                assert told.partitions[0].base_offset == 2
            assert told.replayed
            assert await send(broker, "t", numbered(4)) == 4
            for sequence in (0, 4):
                assert await send(broker, "t", numbered(sequence)) == sequence, "the first offsets again"
            with pytest.raises(OutOfOrderSequenceError):
                await send(broker, "t", numbered(8))
            assert topic.partition(0).high_watermark == 6
            copy_of_one_moment(data, copy)
        async with running_broker(copy) as broker:
            assert await send(broker, "t", numbered(4)) == 4, "remembered over a kill"
            assert await send(broker, "t", numbered(0, epoch=epoch + 1)) == 6
            with pytest.raises(InvalidProducerEpochError):
                await send(broker, "t", numbered(6))

    run(scenario())


def test_one_request_may_have_batches_of_several_producers(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker, partitions=3)
            first, second = [(await broker.produce.records.init_producer(CLIENT)).producer_id for _ in range(2)]
            sent = TopicBatches(
                "t",
                [
                    (0, client_batch([PLAIN])),
                    (1, client_batch([PLAIN], identity=BatchIdentity(first, 0, 0))),
                    (2, client_batch([PLAIN], identity=BatchIdentity(second, 0, 0))),
                ],
            )
            for expected in ([0, 0, 0], [1, 0, 0]):
                (outcomes,) = (await broker.produce.batches.produce(CLIENT, [sent])).outcomes
                assert [outcome.base_offset for outcome in outcomes] == expected
            assert [log.high_watermark for log in topic.partitions] == [2, 1, 1]

    run(scenario())


def test_a_producer_continues_in_a_topic_that_was_made_again(tmp_path: Path) -> None:
    """Keep the producer's sequence numbers, as librdkafka does: an error for them would end it (KIP-360)."""

    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker)
            kafkas, https = [(await broker.produce.records.init_producer(CLIENT)).producer_id for _ in range(2)]

            async def sent(sequence: int) -> tuple[int, int]:
                identity = ProducerIdentity(https, 0, {0: sequence})
                topic = broker.topics.served.topic(CLIENT, "t")
                by_http = await broker.produce.records.produce(
                    CLIENT, topic, records([b"a", b"b"]), partition=0, identity=identity
                )
                by_http.require_stored()
                by_kafka = client_batch([PLAIN] * 2, identity=BatchIdentity(kafkas, 0, sequence))
                return by_http.partitions[0].base_offset, await send(broker, "t", by_kafka)

            assert await sent(0) == (0, 2)
            await broker.topics.changes.delete(CLIENT, "t")
            await new_topic(broker)
            for _ in range(2):
                assert await sent(2) == (0, 2)
                assert await sent(4) == (4, 6)
            for missing in (0, 7):
                with pytest.raises(OutOfOrderSequenceError, match="6 is next"):
                    await sent(missing)
                with pytest.raises(OutOfOrderSequenceError, match="6 is next"):
                    await send(broker, "t", client_batch([PLAIN] * 2, identity=BatchIdentity(kafkas, 0, missing)))
        async with running_broker(tmp_path) as broker:
            assert await sent(4) == (4, 6)
            with pytest.raises(OutOfOrderSequenceError, match="6 is next"):
                await sent(0)
            assert await sent(6) == (8, 10)

    run(scenario())


def test_sequences_begin_again_at_0_behind_the_largest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker)
            producer_id, epoch = await broker.produce.records.init_producer(CLIENT)
            sequences = [SEQUENCE_MAX - 1, 1, 4]
            batches = [client_batch([PLAIN] * 3, identity=BatchIdentity(producer_id, epoch, s)) for s in sequences]
            assert await send(broker, "t", *batches) == 6
            assert await send(broker, "t", batches[0]) == 0

    run(scenario())


def test_batches_with_one_turn_are_appended_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker, **{"max.message.bytes": str(8 * MIB)})
            producer_id, epoch = await broker.produce.records.init_producer(CLIENT)
            turn = asyncio.Lock()
            # Large batches are checked in threads, small ones at once.
            sizes = [3 * MIB, 1, 2 * MIB, 1, 1]
            sent = [
                broker.produce.batches.produce(
                    CLIENT,
                    [
                        TopicBatches(
                            "t",
                            [
                                (
                                    0,
                                    client_batch(
                                        [Row(1, b"k", bytes(size), None)],
                                        identity=BatchIdentity(producer_id, epoch, number),
                                        compression=Compression.ZSTD if number else Compression.NONE,
                                    ),
                                )
                            ],
                        )
                    ],
                    turn=turn,
                )
                for number, size in enumerate(sizes)
            ]
            produced = await asyncio.gather(*sent)
            assert [one.outcomes[0][0].base_offset for one in produced] == [0, 1, 2, 3, 4]

    run(scenario())


def test_records_that_inflate_to_more_than_a_request_may_have_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, max_request_size=2 * MIB) as broker:
            await new_topic(broker)
            bomb = client_batch([Row(1, b"k", bytes(3 * MIB), None)], compression=Compression.ZSTD)
            assert len(bomb) < 10_000
            produced = await broker.produce.batches.produce(
                CLIENT, [TopicBatches("t", [(0, bomb), (1, client_batch([PLAIN]))])]
            )
            first, second = produced.outcomes[0]
            assert isinstance(first.error, RecordBatchTooLargeError)
            assert (second.error, second.base_offset) == (None, 0)

    run(scenario())


def test_a_topic_without_room_in_the_journal_stops_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_topic_max_bytes=20_000) as broker:
            await new_topic(broker, "full", **{"segment.ms": "100000000"})
            await new_topic(broker, "t")
            large = client_batch([Row(1, b"k", bytes(15_000), None)])
            assert await send(broker, "full", large) == 0
            batches = [TopicBatches("full", [(0, large)]), TopicBatches("t", [(0, client_batch([PLAIN]))])]
            (refused,), (stored,) = (await broker.produce.batches.produce(CLIENT, batches)).outcomes
            assert isinstance(refused.error, LogStoreError)
            assert refused.error.kafka_name == "THROTTLING_QUOTA_EXCEEDED"
            assert (stored.error, stored.base_offset) == (None, 0)

    run(scenario())


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acks(tmp_path: Path, acks: int) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            sent = [TopicBatches("t", [(0, client_batch([PLAIN]))])]
            produced = await broker.produce.batches.produce(CLIENT, sent, acks=acks)
            assert produced.outcomes == [[BatchOutcome(0, 0, -1, 0)]]
            assert (topic.partition(0).high_watermark == 1) == (acks == 1)
            assert await send(broker, "t", client_batch([PLAIN])) == 1
            assert topic.partition(0).high_watermark == 2

    run(scenario())


def test_the_journal_holds_no_request_that_is_much_larger_than_its_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            await new_topic(broker)
            held: list[Frame] = []
            store = broker.journal.store
            broker.journal.store = lambda frames, told: (held.extend(frames), store(frames, told))  # type: ignore[method-assign,assignment]
            batch = client_batch([Row(1, None, bytes(1_000), None)])
            request = bytes(len(batch)) + batch + bytes(len(batch))
            parts = [(0, memoryview(request)[len(batch) : -len(batch)]), (1, memoryview(batch))]
            await broker.produce.batches.produce(CLIENT, [TopicBatches("t", parts)])
            assert [bytes(frame.payload) for frame in held] == [batch, batch]
            assert [memoryview(frame.payload).obj is request for frame in held] == [False, False]
            assert memoryview(held[1].payload).obj is batch, "not copied in vain"
            held.clear()
            request = batch + batch
            parts = [(0, memoryview(request)[: len(batch)]), (1, memoryview(request)[len(batch) :])]
            await broker.produce.batches.produce(CLIENT, [TopicBatches("t", parts)])
            assert [bytes(frame.payload) for frame in held] == [batch, batch]
            assert [memoryview(frame.payload).obj is request for frame in held] == [True, True], "together they are it"

    run(scenario())


# ---- in a cluster ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_followers_have_the_frames_as_the_leader_has_them(tmp_path: Path, timestamp_type: str) -> None:
    async def scenario() -> None:
        configs = {"message.timestamp.type": timestamp_type}
        async with running_cluster(tmp_path, 1, 2, 3, configs=configs) as cluster:
            leader, second, third = cluster.brokers.values()
            topic = leader.topics.served.topic(INTERNAL, "t")
            producer_id, epoch = await leader.produce.records.init_producer(CLIENT)
            last = client_batch(ROWS, identity=BatchIdentity(producer_id, epoch, 0))
            for number, compression in enumerate(Compression):
                assert await send(leader, "t", client_batch(ROWS, compression=compression)) == 5 * number
                assert await produce(leader, topic, [b"http"]) == 5 * number + 4
            assert await send(leader, "t", last) == 25
            expected = await every_reader.decoded(leader, topic)
            assert len(expected) == 29
            frames = [(header, bytes(payload)) for header, payload in frames_of(topic, leader)]
            for broker in (second, third):
                copies = frames_of(broker.topics.served.topic(INTERNAL, "t"), broker)
                assert [(header, bytes(payload)) for header, payload in copies] == frames
            with pytest.raises(NotLeaderOrFollowerError):
                await send(second, "t", last)
            cluster.elect(topic.topic_id, 0, 2)
            topic = second.topics.served.topic(INTERNAL, "t")
            assert await send(second, "t", last) == 25, "the next leader knows the producer"
            assert await every_reader.decoded(second, topic) == await every_reader.stored(second, topic) == expected
            assert await send(second, "t", client_batch([PLAIN])) == 29

    run(scenario())


def test_a_partition_whose_replicas_are_slow_makes_no_other_fail(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_cluster(tmp_path, 1, 2, partitions=2) as cluster:
            leader = cluster.brokers[1]
            topic = leader.topics.served.topic(INTERNAL, "t")
            batch = client_batch([PLAIN])
            assert await send(leader, "t", batch) == 0
            assert await send(leader, "t", batch, partition=1) == 0
            # Partition 1's follower is gone. It is not in the ISR of partition 0.
            cluster.cut.add((2, 1))
            leadership = topic.partition(0).require_leader()
            leadership.commit((1, 2), (1,), 0.0)
            sent = TopicBatches("t", [(0, batch), (1, batch)])
            (first, second) = (await leader.produce.batches.produce(CLIENT, [sent], timeout_ms=3_000)).outcomes[0]
            assert (first.error, first.base_offset) == (None, 1)
            assert isinstance(second.error, RequestTimedOutError)
            assert second.base_offset == -1

    run(scenario())


def test_a_partition_that_loses_its_leader_meanwhile_makes_no_other_fail(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path) as broker:
            topic = await new_topic(broker)
            held: list[tuple[Sequence[Frame], Callback]] = []
            store = broker.journal.store
            broker.journal.store = lambda frames, told: held.append((frames, told))  # type: ignore[method-assign]
            batch = client_batch([PLAIN])
            sending = asyncio.create_task(
                broker.produce.batches.produce(CLIENT, [TopicBatches("t", [(0, batch), (1, batch)])])
            )
            await eventually_async(lambda: bool(held), "not appended")
            topic.partition(0).resign(9)
            await asyncio.sleep(0)
            assert not sending.done()
            store(*held[0])
            first, second = (await sending).outcomes[0]
            assert isinstance(first.error, RequestTimedOutError)
            assert (second.error, second.base_offset) == (None, 0)

    run(scenario())


def test_a_full_disk_is_the_error_of_all_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        filesystem = FaultyFileSystem()
        async with running_broker(tmp_path, filesystem=filesystem) as broker:
            topic = await new_topic(broker)
            batch = client_batch([PLAIN])
            filesystem.fail("journal.write_at", errno.ENOSPC)
            outcomes = (
                await broker.produce.batches.produce(CLIENT, [TopicBatches("t", [(0, batch), (1, batch)])])
            ).outcomes[0]
            assert [type(outcome.error) for outcome in outcomes] == [StorageFullError] * 2
            assert [log.next_offset for log in topic.partitions] == [0, 0]
            assert await send(broker, "t", batch) == 0

    run(scenario())
