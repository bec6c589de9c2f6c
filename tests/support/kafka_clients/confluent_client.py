"""confluent-kafka: librdkafka under Python."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.kafka_clients.records import CODECS, ReadRecord, SentRecord
from tests.support.kafka_clients.served import Served

SECONDS = 60


class Confluent:
    name = "confluent-kafka"
    codecs = CODECS

    def can_send(self, _record: SentRecord) -> bool:
        return True

    def produce(self, served: Served, topic: str, records: Sequence[SentRecord], compression: str) -> list[int]:
        return produce(served.bootstrap, topic, records, **{"compression.type": compression})

    def read(self, served: Served, topics: Mapping[str, int]) -> dict[str, list[ReadRecord]]:
        partitions = [TopicPartition(topic, p, 0) for topic, count in topics.items() for p in range(count)]
        found: dict[str, list[ReadRecord]] = {topic: [] for topic in topics}
        config = consumer_config(served.bootstrap, "reader", **{"enable.partition.eof": True})
        with closing(Consumer(config)) as consumer:
            consumer.assign(partitions)
            at_end: set[tuple[str, int]] = set()
            stop = time.monotonic() + SECONDS
            while len(at_end) < len(partitions):
                assert time.monotonic() < stop, f"only {len(at_end)} of {len(partitions)} partitions came to their end"
                for message in consumer.consume(10_000, 0.1):
                    error = message.error()
                    if error is None:
                        found[message.topic()].append(read_record(message))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        at_end.add((message.topic(), message.partition()))
                    else:
                        raise KafkaException(error)
        return found


def produce(bootstrap: str, topic: str, records: Sequence[SentRecord], **configs: Any) -> list[int]:
    """Produce the records with an idempotent producer, and return their offsets."""
    offsets: dict[int, int] = {}
    failures: list[str] = []

    def on_delivery(number: int) -> Any:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(str(error))
            else:
                offsets[number] = message.offset()

        return report

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "broker.address.family": "v4",
            "enable.idempotence": True,
            "linger.ms": 20,
            "message.timeout.ms": 1000 * SECONDS,
            **configs,
        }
    )
    for number, record in enumerate(records):
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers) or None,
            on_delivery=on_delivery(number),
        )
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not failures, failures[:3]
    return [offsets[number] for number in range(len(records))]


def consumer_config(bootstrap: str, group: str, **configs: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "broker.address.family": "v4",
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 100,
        **configs,
    }


def read_record(message: Message) -> ReadRecord:
    kind, timestamp_ms = message.timestamp()
    return ReadRecord(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
        timestamp_ms,
        # librdkafka counts from "not available".
        kind - 1,
    )
