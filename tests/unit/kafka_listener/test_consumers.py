"""An aiokafka consumer at the listener's socket reads the same records as HTTP, however they are stored."""

import asyncio
import random
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from logstore.broker.context import INTERNAL
from tests.support.kafka_client import kafka_server
from tests.support.kafka_reading import http_rows
from tests.support.mixed_sources import SOURCES
from tests.support.records import Row
from tests.support.running_broker import produce
from tests.support.virtual_time import run


def consumer_at(port: int, **options: object) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{port}", auto_offset_reset="none", enable_auto_commit=False, **options
    )


async def read(consumer: AIOKafkaConsumer, partition: TopicPartition, offset: int, end: int) -> dict[int, Row]:
    """Return the records from ``offset`` up to the position ``end``."""
    consumer.seek(partition, offset)
    found: dict[int, Row] = {}
    async with asyncio.timeout(30):
        while await consumer.position(partition) < end:
            for record in (await consumer.getmany(partition, timeout_ms=100)).get(partition, []):
                headers = tuple(record.headers) or None
                found[record.offset] = Row(record.timestamp, record.key, record.value, headers)
    return found


@pytest.mark.parametrize("max_partition_fetch_bytes", [300, 1 << 20])
def test_from_any_offset_a_consumer_reads_what_http_reads(tmp_path: Path, max_partition_fetch_bytes: int) -> None:
    rng = random.Random(11)

    async def scenario() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(segment_ms="100000000")
            broker = server.store.broker
            for write in SOURCES["all of them"]:
                await write(broker, topic, rng)
            expected = await http_rows(broker, topic)
            log = topic.partition(0)
            consumer = consumer_at(server.port, max_partition_fetch_bytes=max_partition_fetch_bytes)
            await consumer.start()
            try:
                partition = TopicPartition("t", 0)
                consumer.assign([partition])
                assert await consumer.beginning_offsets([partition]) == {partition: 0}
                assert await consumer.end_offsets([partition]) == {partition: log.high_watermark}
                for offset in range(0, log.high_watermark, 7):
                    wanted = {at: row for at, row in expected.items() if at >= offset}
                    assert await read(consumer, partition, offset, log.high_watermark) == wanted
                # A waiting consumer gets the record at once.
                end = log.high_watermark
                waiting = asyncio.create_task(read(consumer, partition, end, end + 1))
                await produce(broker, topic, [b"news"])
                assert [row.value for row in (await waiting).values()] == [b"news"]
                newest = max(row.timestamp for row in expected.values() if row.timestamp is not None)
                found = await consumer.offsets_for_times({partition: newest})
                assert expected[found[partition].offset].timestamp == newest
            finally:
                await consumer.stop()
            assert await broker.fetch.partition(INTERNAL, topic, 0, 0, max_bytes=1, min_bytes=1, max_wait_ms=0)

    run(scenario())
