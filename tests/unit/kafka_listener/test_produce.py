"""Produce at the socket: an outcome for each partition, and batches that no producer should send."""

import errno
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.context import INTERNAL
from logstore.crc32c import crc32c
from logstore.kafka_batches.header import Compression
from logstore.kafka_protocol.messages import InitProducerIdRequest, ProduceRequest
from logstore.limits import RECORD_ERRORS_MAX
from logstore.records.batch_identity import BatchIdentity
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.kafka_batches import client_batch, raw_batch, raw_records, varint
from tests.support.kafka_client import INIT_PRODUCER_ID, PRODUCE, batch_of, kafka_server, produce_request
from tests.support.kafka_handlers import kafka_handlers
from tests.support.records import Row
from tests.support.running_broker import read_all
from tests.support.virtual_time import run


def outcomes(answer: Any) -> list[tuple[int, int, int]]:
    """Return (number, error, base offset) of each partition of the first topic."""
    return [(one.index, one.error_code, one.base_offset) for one in answer.responses[0].partition_responses]


def producer(producer_id: int, epoch: int, transactional_id: str | None = None) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch)


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_stores_and_returns_the_first_offset(tmp_path: Path, version: int):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=3)
            client = await server.connect()
            named = topic.topic_id.bytes if version >= 13 else "t"
            for base in (0, 2):
                request = produce_request({2: batch_of(b"a", b"b"), 0: batch_of(b"c", b"d")}, topic=named)
                answer = await client.ask(PRODUCE, version, request)
                assert outcomes(answer) == [(2, 0, base), (0, 0, base)]
                assert (answer.responses[0].topic_id if version >= 13 else answer.responses[0].name) == named
            stored = [value for _, value in await read_all(server.store.broker, topic, 2)]
            assert stored == [b"a", b"b", b"a", b"b"]

    run(ask())


@pytest.mark.parametrize("compression", Compression)
def test_every_codec_is_taken(tmp_path: Path, compression: Compression):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            values = [b"value %d" % number * 20 for number in range(100)]
            request = produce_request({0: batch_of(*values, compression=compression)})
            assert outcomes(await client.ask(PRODUCE, 12, request)) == [(0, 0, 0)]
            assert [value for _, value in await read_all(server.store.broker, topic)] == values

    run(ask())


def with_crc(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c(batch[21:])) + batch[21:]


def with_attributes(batch: bytes, bits: int) -> bytes:
    (attributes,) = struct.unpack_from(">h", batch, 21)
    return with_crc(batch[:21] + struct.pack(">h", attributes | bits) + batch[23:])


GOOD = batch_of(b"value")
REFUSED: dict[str, tuple[bytes | None, int]] = {
    "no batch": (None, 87),
    "no bytes": (b"", 87),
    "cut": (GOOD[:-1], 2),
    "a header alone": (GOOD[:30], 2),
    "a wrong CRC": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), 2),
    "a right CRC over broken records": (with_crc(GOOD[:-3] + b"\xff\xff\xff"), 87),
    "old magic": (GOOD[:16] + b"\1" + GOOD[17:], 87),
    "control": (with_attributes(GOOD, 0x20), 87),
    "transactional": (with_attributes(batch_of(b"v", identity=BatchIdentity(0, 0, 0)), 0x10), 53),
    "two batches": (GOOD + GOOD, 87),
    "a lying count": (with_crc(GOOD[:57] + struct.pack(">i", 2) + GOOD[61:]), 87),
    "a negative count": (with_crc(GOOD[:57] + struct.pack(">i", -1) + GOOD[61:]), 87),
    "a negative length": (GOOD[:8] + struct.pack(">i", -5) + GOOD[12:], 2),
    "an unknown codec": (with_attributes(GOOD, 7), 76),
    "too large": (batch_of(b"x" * 1_100_000), 10),
    "a producer id that nobody has": (batch_of(b"v", identity=BatchIdentity(2**62, 0, 0)), 59),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_batch_is_refused_with_its_reason_and_the_others_are_stored(tmp_path: Path, name: str):
    records, error_code = REFUSED[name]

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=3)
            client = await server.connect()
            request = produce_request({0: GOOD, 1: records, 2: GOOD})
            answer = await client.ask(PRODUCE, 9, request)
            (first, bad, last) = outcomes(answer)
            assert (first, last) == ((0, 0, 0), (2, 0, 0))
            assert bad[2] == -1
            assert bad[1] == error_code
            assert answer.responses[0].partition_responses[1].error_message
            assert [p.high_watermark for p in topic.partitions] == [1, 0, 1]

    run(ask())


def refused_records(answer: Any) -> list[list[tuple[int, str]]]:
    """Return the refused records' numbers and messages, for each partition of the first topic."""
    return [
        [(record.batch_index, record.batch_index_error_message) for record in one.record_errors]
        for one in answer.responses[0].partition_responses
    ]


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_the_records_that_are_the_reason_are_named(tmp_path: Path, version: int, timestamp_type: str):
    keyless = client_batch([Row(1, None if at % 10 == 3 else b"k", b"v", None) for at in range(40)])
    one_keyless = client_batch([Row(1, None if at == 2 else b"k", b"v", None) for at in range(4)])

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=4, cleanup_policy="compact", message_timestamp_type=timestamp_type)
            client = await server.connect()
            named = topic.topic_id.bytes if version >= 13 else "t"
            request = produce_request({0: keyless, 1: GOOD, 2: GOOD[:-1], 3: one_keyless}, topic=named)
            answer = await client.ask(PRODUCE, version, request)
            assert outcomes(answer) == [(0, 87, -1), (1, 0, 0), (2, 2, -1), (3, 87, -1)]
            message = "The record has no key, and topic 't' is compacted (cleanup.policy=compact): send a key."
            named_records = [[(number, message) for number in (3, 13, 23, 33)], [], [], [(2, message)]]
            assert refused_records(answer) == (named_records if version >= 8 else [[], [], [], []])
            assert [p.high_watermark for p in topic.partitions] == [0, 1, 0, 0]

    run(ask())


def test_no_more_records_than_the_bound_are_named(tmp_path: Path):
    keyless = client_batch([Row(1, None, b"", None)] * (RECORD_ERRORS_MAX + 1))

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic(partitions=2, cleanup_policy="compact")
            client = await server.connect()
            answer = await client.ask(PRODUCE, 9, produce_request({0: keyless, 1: keyless}))
            first, second = refused_records(answer)
            assert [number for number, _ in first] == list(range(RECORD_ERRORS_MAX))
            assert not second
            assert outcomes(answer) == [(0, 87, -1), (1, 87, -1)]

    run(ask())


def test_a_timestamp_that_no_table_has_is_reported_with_its_record(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic()
            client = await server.connect()
            late = raw_batch(raw_records(3, timestamp_delta=varint(2**60)), 3)
            answer = await client.ask(PRODUCE, 9, produce_request({0: late}))
            assert outcomes(answer) == [(0, 32, -1)]
            (((number, message),),) = refused_records(answer)
            assert number == 2
            assert message.startswith("The record has a timestamp outside")

    run(ask())


def test_unknown_topics_partitions_and_ids_stop_no_other(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            one = ProduceRequest.PartitionProduceData(index=0, records=GOOD)
            beyond = ProduceRequest.PartitionProduceData(index=9, records=GOOD)
            by_name = [("none", [one]), ("t", [beyond, one]), ("__consumer_offsets", [one])]
            data = [ProduceRequest.TopicProduceData(name=name, partition_data=parts) for name, parts in by_name]
            answer = await client.ask(PRODUCE, 9, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data))
            found = [[one.error_code for one in topic.partition_responses] for topic in answer.responses]
            assert found == [[3], [3, 0], [3]]
            ids = [b"\7" * 16, topic.topic_id.bytes]
            data = [ProduceRequest.TopicProduceData(topic_id=each, partition_data=[one]) for each in ids]
            answer = await client.ask(PRODUCE, 13, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=data))
            found = [[one.error_code for one in topic.partition_responses] for topic in answer.responses]
            assert found == [[100], [0]]

    run(ask())


def test_other_acks_are_refused_for_every_partition(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic(partitions=2)
            client = await server.connect()
            answer = await client.ask(PRODUCE, 9, produce_request({0: GOOD, 1: GOOD}, acks=2))
            assert [one.error_code for one in answer.responses[0].partition_responses] == [21, 21]
            assert "acks is 2" in answer.responses[0].partition_responses[0].error_message

    run(ask())


def test_a_batch_that_comes_twice_is_stored_once(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            made = await client.ask(INIT_PRODUCER_ID, 4, producer(-1, -1))
            assert (made.error_code, made.producer_epoch) == (0, 0)

            def request(first: int) -> ProduceRequest:
                identity = BatchIdentity(made.producer_id, made.producer_epoch, first)
                return produce_request({0: batch_of(b"a", b"b", identity=identity)})

            for first, outcome in ((0, (0, 0, 0)), (0, (0, 0, 0)), (4, (0, 45, -1)), (2, (0, 0, 2))):
                assert outcomes(await client.ask(PRODUCE, 9, request(first))) == [outcome]
            assert topic.partition(0).high_watermark == 4
            # Java's producer starts again after UNKNOWN_PRODUCER_ID if the answer has the log start.
            stranger = batch_of(b"a", identity=BatchIdentity(made.producer_id + 10_000_000, 0, 0))
            answer = await client.ask(PRODUCE, 9, produce_request({0: stranger}))
            assert (outcomes(answer), answer.responses[0].partition_responses[0].log_start_offset) == ([(0, 59, -1)], 0)
            # The next epoch fences this one.
            answer = await client.ask(INIT_PRODUCER_ID, 4, producer(made.producer_id, made.producer_epoch))
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, made.producer_id, 1)

    run(ask())


@pytest.mark.parametrize("version", range(6))
def test_a_transactional_id_is_refused(tmp_path: Path, version: int):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            client = await server.connect()
            answer = await client.ask(INIT_PRODUCER_ID, version, producer(-1, -1, "t"))
            assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (35, -1, -1)

    run(ask())


def test_append_times_are_reported(tmp_path: Path):
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(message_timestamp_type="LogAppendTime")
            client = await server.connect()
            answer = await client.ask(PRODUCE, 9, produce_request({0: GOOD}))
            (partition,) = answer.responses[0].partition_responses
            fetched = await server.store.broker.fetch.partition(
                INTERNAL, topic, 0, 0, max_bytes=1000, min_bytes=1, max_wait_ms=0
            )
            assert fetched.records["timestamp"].cast("int64").to_pylist() == [partition.log_append_time_ms]

    run(ask())


def test_after_a_failed_fsync_the_outcome_is_open_and_a_full_disk_has_stored_nothing(tmp_path: Path):
    """Use the numbers as librdkafka reads them: it gives up or retries only what is certainly not stored."""
    timed_out, storage_error = 7, 56

    async def ask() -> None:
        disk = FaultyFileSystem()
        async with kafka_handlers(tmp_path, filesystem=disk) as handlers:
            await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=20)
            disk.fill()
            large = produce_request(dict.fromkeys(range(20), batch_of(random.randbytes(900_000))))
            assert outcomes(await handlers.ask(PRODUCE, 9, large)) == [(at, storage_error, -1) for at in range(20)]
            disk.heal()
            disk.fail("fdatasync", errno.EIO)
            assert outcomes(await handlers.ask(PRODUCE, 9, produce_request({0: GOOD}))) == [(0, timed_out, -1)]

    run(ask())
