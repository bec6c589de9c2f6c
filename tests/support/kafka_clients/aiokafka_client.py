"""aiokafka: pure Python on asyncio, with its own codecs."""

import asyncio
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.kafka_clients.records import CODECS, ReadRecord, SentRecord
from tests.support.kafka_clients.served import Served

SECONDS = 60


class Aiokafka:
    name = "aiokafka"
    codecs = CODECS

    def can_send(self, record: SentRecord) -> bool:
        return not (record.key is None and record.value is None)

    def produce(self, served: Served, topic: str, records: Sequence[SentRecord], compression: str) -> list[int]:
        return asyncio.run(_produce(served.bootstrap, topic, records, compression))

    def read(self, served: Served, topics: Mapping[str, int]) -> dict[str, list[ReadRecord]]:
        return asyncio.run(_read(served.bootstrap, topics))


async def _produce(bootstrap: str, topic: str, records: Sequence[SentRecord], compression: str) -> list[int]:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if compression == "none" else compression,
        enable_idempotence=True,
        linger_ms=20,
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        async with asyncio.timeout(SECONDS):
            return [(await delivered).offset for delivered in sent]
    finally:
        await producer.stop()


async def _read(bootstrap: str, topics: Mapping[str, int]) -> dict[str, list[ReadRecord]]:
    partitions = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
    found: dict[str, list[ReadRecord]] = {topic: [] for topic in topics}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, fetch_max_wait_ms=100)
    await consumer.start()
    try:
        async with asyncio.timeout(SECONDS):
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            waiting = {partition: end for partition, end in (await consumer.end_offsets(partitions)).items() if end > 0}
            while waiting:
                for partition, records in (await consumer.getmany(timeout_ms=1_000)).items():
                    found[partition.topic] += [
                        ReadRecord(
                            record.partition,
                            record.offset,
                            record.key,
                            record.value,
                            tuple(record.headers),
                            record.timestamp,
                            record.timestamp_type,
                        )
                        for record in records
                    ]
                for partition, end in list(waiting.items()):
                    if await consumer.position(partition) >= end:
                        del waiting[partition]
    finally:
        await consumer.stop()
    return found
