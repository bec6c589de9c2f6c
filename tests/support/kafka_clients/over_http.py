"""The store's own interface: its Python client to produce, plain HTTP to read."""

from collections.abc import Mapping, Sequence

from logstore.client.producer import Producer
from tests.support.kafka_clients.records import ReadRecord, SentRecord
from tests.support.kafka_clients.served import Served
from tests.support.stored_records import stored_records


class OverHttp:
    name = "http"
    codecs = ("none", "lz4", "zstd")

    def can_send(self, _record: SentRecord) -> bool:
        return True

    def produce(self, served: Served, topic: str, records: Sequence[SentRecord], compression: str) -> list[int]:
        assert served.url is not None
        with Producer(served.url, compression_type=None if compression == "none" else compression) as producer:
            sent = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=record.headers or None,
                )
                for record in records
            ]
            return [delivery.result(60).offset for delivery in sent]

    def read(self, served: Served, topics: Mapping[str, int]) -> dict[str, list[ReadRecord]]:
        assert served.url is not None
        return {
            topic: [
                ReadRecord(
                    record.partition,
                    record.offset,
                    record.key,
                    record.value,
                    tuple(record.headers or ()),
                    record.timestamp_ms,
                    None,
                )
                for records in stored_records(served.url, topic).values()
                for record in records
            ]
            for topic in topics
        }
