import itertools
import threading

import pyarrow as pa
import pytest

from logstore.client.admin import Admin
from logstore.client.consumer import Consumer
from logstore.client.producer import Producer
from logstore.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownPartitionError, UnknownTopicError


@pytest.fixture
def filled(store: str, topic: str) -> str:
    """100 records in partition 0 and 50 in partition 2, a second apart."""
    with Producer(store) as producer:
        for i in range(100):
            producer.send(topic, f"{i}", key=b"k", partition=0, timestamp_ms=1_000 * i)
        for i in range(50):
            producer.send(topic, f"{i}", partition=2, timestamp_ms=1_000 * i)
    return topic


def drain(consumer: Consumer) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    while fetched := consumer.poll(0):
        found.setdefault(fetched.partition, []).extend(fetched.batch.column("offset").to_pylist())
    return found


def test_reads_every_record_once_in_small_fetches_over_sealed_and_tail(store: str, filled: str, admin: Admin):
    admin.roll(filled)
    with Producer(store) as producer:
        producer.send(filled, "tail", partition=0)
    with Consumer(store, fetch_max_bytes=100) as consumer:
        consumer.assign(filled, start="earliest")
        assert drain(consumer) == {0: list(range(101)), 2: list(range(50))}
        assert [consumer.position(filled, p) for p in range(4)] == [101, 0, 50, 0]


def test_a_batch_has_the_documented_columns(store: str, filled: str):
    with Consumer(store) as consumer:
        consumer.assign(filled, [0], start=98)
        fetched = consumer.poll()
    assert fetched is not None
    assert fetched.batch.schema.names == ["offset", "timestamp", "key", "value", "headers"]
    assert fetched.batch.schema.field("timestamp").type == pa.timestamp("ms", "UTC")
    assert (fetched.next_offset, fetched.log_start_offset, fetched.high_watermark) == (100, 0, 100)
    record = list(fetched.records())[-1]
    assert (record.offset, record.timestamp_ms, record.key, record.value, record.headers) == (
        99,
        99_000,
        b"k",
        b"99",
        (),
    )


def test_starts_where_it_is_told(store: str, filled: str):
    with Consumer(store) as consumer:
        consumer.assign(filled)
        assert consumer.position(filled, 0) == 100
        consumer.assign(filled, [0, 2], start_timestamp_ms=48_001)
        assert (consumer.position(filled, 0), consumer.position(filled, 2)) == (49, 49)
        consumer.assign(filled, start_timestamp_ms=60_000)
        assert (consumer.position(filled, 0), consumer.position(filled, 2)) == (60, 50)
        consumer.seek(filled, 0, "earliest")
        consumer.seek(filled, 2, 45)
        consumer.unassign(filled, 0)
        assert drain(consumer) == {2: [45, 46, 47, 48, 49]}


def test_waits_for_records_of_any_partition(store: str, topic: str):
    with Consumer(store) as consumer, Producer(store) as producer:
        consumer.assign(topic, start="latest")
        later = threading.Timer(0.3, producer.send, (topic, "late"), {"partition": 3})
        later.start()
        fetched = consumer.poll(20)
        later.join()
    assert fetched is not None
    assert (fetched.partition, len(fetched)) == (3, 1)


def test_iterates_over_records(store: str, filled: str):
    with Consumer(store) as consumer:
        consumer.assign(filled, [2], start=10)
        assert [record.offset for record in itertools.islice(consumer, 5)] == [10, 11, 12, 13, 14]


def test_a_position_outside_the_log(store: str, filled: str, admin: Admin):
    admin.delete_records(filled, 0, 40)
    with Consumer(store) as consumer:
        consumer.assign(filled, [0], start=5)
        with pytest.raises(OffsetOutOfRangeError) as raised:
            consumer.poll()
        assert (raised.value.log_start_offset, raised.value.high_watermark) == (40, 100)
    with Consumer(store, auto_offset_reset="earliest") as consumer:
        consumer.assign(filled, [0], start=5)
        fetched = consumer.poll(5)
    assert fetched is not None
    assert fetched.batch.column("offset")[0].as_py() == 40


def test_wrong_use_says_what_to_do(store: str, filled: str):
    with Consumer(store) as consumer:
        with pytest.raises(InvalidRequestError, match="assign"):
            consumer.poll()
        with pytest.raises(UnknownPartitionError):
            consumer.assign(filled, [7])
        with pytest.raises(UnknownTopicError):
            consumer.assign("absent-topic")
        consumer.assign(filled, [0])
        with pytest.raises(InvalidRequestError, match="negative"):
            consumer.seek(filled, 0, -1)
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.position(filled, 1)
