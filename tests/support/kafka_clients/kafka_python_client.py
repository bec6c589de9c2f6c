"""kafka-python: pure Python with threads and its own codecs."""

import gc
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.support.kafka_clients.records import CODECS, ReadRecord, SentRecord
from tests.support.kafka_clients.served import Served

SECONDS = 60


@contextmanager
def closed(client: Any) -> Iterator[Any]:
    """Close the client as ``closing`` does, without warnings about its open sockets in a later test."""
    try:
        with closing(client):
            yield client
    finally:
        del client
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


class KafkaPython:
    name = "kafka-python"
    codecs = CODECS

    def can_send(self, record: SentRecord) -> bool:
        """Return whether the client accepts the record; it also refuses a header whose value is null."""
        return not (record.key is None and record.value is None) and all(
            value is not None for _, value in record.headers
        )

    def produce(self, served: Served, topic: str, records: Sequence[SentRecord], compression: str) -> list[int]:
        producer = KafkaProducer(
            bootstrap_servers=served.bootstrap,
            compression_type=None if compression == "none" else compression,
            acks="all",
            linger_ms=20,
        )
        with closed(producer):
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            return [future.get(SECONDS).offset for future in sent]

    def read(self, served: Served, topics: Mapping[str, int]) -> dict[str, list[ReadRecord]]:
        partitions = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
        found: dict[str, list[ReadRecord]] = {topic: [] for topic in topics}
        consumer = KafkaConsumer(bootstrap_servers=served.bootstrap, enable_auto_commit=False, fetch_max_wait_ms=100)
        with closed(consumer):
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            waiting = {partition: end for partition, end in consumer.end_offsets(partitions).items() if end > 0}
            stop = time.monotonic() + SECONDS
            while waiting:
                assert time.monotonic() < stop, (
                    f"{len(waiting)} of {len(partitions)} partitions did not come to their end"
                )
                for partition, records in consumer.poll(timeout_ms=1_000, max_records=10_000).items():
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
                    if consumer.position(partition) >= end:
                        del waiting[partition]
        return found
