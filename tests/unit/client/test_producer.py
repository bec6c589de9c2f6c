import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from logstore.client.admin import Admin
from logstore.client.consumer import Consumer, Record
from logstore.client.producer import Producer
from logstore.errors import (
    InvalidRecordError,
    InvalidRequestError,
    RecordTooLargeError,
    RequestTooLargeError,
    StoreUnreachableError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.records.partitioner import murmur2
from tests.support.server_process import ServerProcess


def read(store: str, topic: str) -> dict[int, list[Record]]:
    """All records of a topic, by partition."""
    found: dict[int, list[Record]] = {}
    with Consumer(store) as consumer:
        consumer.assign(topic, start="earliest")
        while fetched := consumer.poll(0):
            found.setdefault(fetched.partition, []).extend(fetched.records())
    return found


def test_each_delivery_names_the_place_of_its_record(store: str, topic: str):
    with Producer(store, linger_ms=1_000) as producer:
        sent = [
            (f"{i}".encode(), producer.send(topic, f"{i}", key=None if i % 3 else f"k{i % 7}", headers=[("h", b"x")]))
            for i in range(500)
        ]
        producer.flush()
    stored = {(r.partition, r.offset): r for records in read(store, topic).values() for r in records}
    assert len(stored) == 500
    for value, delivery in sent:
        where = delivery.result()
        record = stored[where.partition, where.offset]
        assert record.value == value
        assert record.headers == (("h", b"x"),)
        if record.key is not None:
            assert where.partition == (murmur2(record.key) & 0x7FFFFFFF) % 4


def test_records_of_one_partition_keep_their_order_over_batches(store: str, topic: str):
    with Producer(store, batch_bytes=2_000, linger_ms=0) as producer:
        for i in range(2_000):
            producer.send(topic, f"{i}", partition=i % 2)
    found = read(store, topic)
    assert [int(r.value) for r in found[0]] == list(range(0, 2_000, 2))
    assert [int(r.value) for r in found[1]] == list(range(1, 2_000, 2))


def test_columns_are_sent_after_the_records_before_them(store: str, topic: str):
    with Producer(store, linger_ms=1_000, compression="zstd") as producer:
        producer.send(topic, "first", partition=2)
        columns = {"value": ["a", "b", "c", "d"], "partition": pa.array([2, 0, None, 2]), "timestamp": [1, 2, 3, 4]}
        where = producer.send_batch(topic, columns).result()
    assert where.partitions[[0, 1, 3]].tolist() == [2, 0, 2]
    assert where.offsets[[0, 3]].tolist() == [1, 2] if where.partitions[2] != 2 else [1, 3]
    found = read(store, topic)
    assert [r.value for r in found[2] if r.value != b"c"] == [b"first", b"a", b"d"]
    assert sorted(r.timestamp_ms for rs in found.values() for r in rs if r.value != b"first") == [1, 2, 3, 4]


def test_a_table_of_any_timestamp_unit_is_taken(store: str, topic: str):
    table = pa.table(
        {
            "value": pa.chunked_array([[b"a"], [b"b"]], pa.large_binary()),
            "timestamp": pa.array([1_500_999, None], pa.timestamp("us")),
        }
    )
    with Producer(store) as producer:
        partition = producer.send_batch(topic, table).result().partitions[0]
    assert read(store, topic)[int(partition)][0].timestamp_ms == 1_500


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"key": ["k"]}, "'value' is needed"),
        ({"value": ["v"], "Key": ["k"]}, "no column 'Key'"),
        ({"value": [1]}, "'value' of type int64"),
        ({"value": ["v"], "timestamp": ["now"]}, "'timestamp'"),
        ({"value": ["v"], "partition": [2**40]}, "'partition'"),
        ({"value": ["v"], "key": ["a", "b"]}, "one length"),
        ({"value": []}, "without records|of type null"),
    ],
)
def test_columns_that_are_no_records_are_refused_at_once(store: str, columns, says):
    with Producer(store) as producer, pytest.raises(InvalidRequestError, match=says):
        producer.send_batch("t", columns)


def test_records_that_no_store_takes_are_refused_at_once(store: str, topic: str):
    with Producer(store) as producer:
        for bad in ({"value": 1}, {"value": b"", "partition": -1}, {"value": b"", "timestamp_ms": -1}):
            with pytest.raises(InvalidRecordError):
                producer.send(topic, **bad)
        with pytest.raises(InvalidRecordError, match="Header"):
            producer.send(topic, b"", headers=[("h", "text")])


def test_only_the_record_that_is_too_large_fails(store: str, topic: str, admin: Admin):
    admin.alter_configs(topic, {"max.message.bytes": "1000"})
    producer = Producer(store, linger_ms=1_000)
    deliveries = [producer.send(topic, b"x" * (2_000 if i == 17 else 10), partition=0) for i in range(40)]
    with pytest.raises(RecordTooLargeError):
        producer.close()
    assert [i for i, delivery in enumerate(deliveries) if delivery.exception()] == [17]
    assert [d.result().offset for i, d in enumerate(deliveries) if i != 17] == list(range(39))
    assert len(read(store, topic)[0]) == 39


def test_a_batch_larger_than_a_request_goes_out_in_parts(store: str, topic: str):
    values = [bytes([i]) * 600_000 for i in range(30)]
    with Producer(store) as producer:
        where = producer.send_batch(topic, {"value": values, "partition": np.zeros(30, np.int32)}).result()
    assert where.offsets.tolist() == list(range(30))
    assert [r.value for r in read(store, topic)[0]] == values


def test_flush_raises_a_failure_nobody_looked_at_once(store: str):
    producer = Producer(store)
    producer.send("absent-topic", b"v")
    with pytest.raises(UnknownTopicError):
        producer.flush()
    producer.flush()
    producer.close()
    with pytest.raises(InvalidRequestError, match="closed"):
        producer.send("absent-topic", b"v")


def test_an_unknown_partition_fails(store: str, topic: str):
    with Producer(store) as producer:
        delivery = producer.send(topic, b"v", partition=4)
        assert isinstance(delivery.exception(), UnknownPartitionError)
        with pytest.raises(UnknownPartitionError):
            producer.flush()


def test_partitions_that_a_new_topic_of_the_same_name_lacks_are_noticed(store: str, topic: str, admin: Admin):
    with Producer(store) as producer:
        producer.send(topic, b"v", partition=3).result()
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=1)
        producer.send(topic, b"v", partition=3).exception()
        later = [producer.send(topic, b"v", key=f"{i}") for i in range(20)]
        assert {delivery.result().partition for delivery in later} == {0}
        with pytest.raises(UnknownPartitionError):
            producer.flush()


def test_waiting_records_are_bounded_and_sending_blocks():
    # Nobody listens there: nothing leaves the buffer.
    producer = Producer("127.0.0.1:1", buffer_bytes=10_000, max_block_s=0.2, delivery_timeout_s=60)
    try:
        for _ in range(10):
            producer.send("t", b"x" * 968)
        with pytest.raises(ThrottledError, match="nothing was queued"):
            producer.send("t", b"x" * 968)
        with pytest.raises(RequestTooLargeError):
            producer.send("t", b"x" * 10_000)
    finally:
        with pytest.raises(Exception, match="not delivered"):
            producer.close(0.1)


def test_closing_in_time_fails_what_is_left_and_leaves_nobody_waiting():
    producer = Producer("127.0.0.1:1", linger_ms=0)
    first, second = producer.send("t", b"1"), producer.send("u", b"2")
    with pytest.raises(Exception, match="not delivered"):
        producer.close(0.2)
    assert isinstance(first.exception(5), StoreUnreachableError)
    assert second.exception(5) is not None
    assert "logstore-producer" not in {thread.name for thread in threading.enumerate()}


def test_without_acks_there_is_no_offset(store: str, topic: str):
    with Producer(store, acks=0) as producer:
        where = producer.send(topic, b"v", partition=1).result()
        assert (where.partition, where.offset) == (1, -1)


def test_survives_a_restart_of_the_store_and_a_topic_created_by_producing(tmp_path: Path):
    environment = {"LOGSTORE_AUTO_CREATE_TOPICS_ENABLE": "true", "LOGSTORE_NUM_PARTITIONS": "3"}
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        port = int(server.url.rpartition(":")[2])
        with Producer(server.url) as producer:
            deliveries = [producer.send("made", f"{i}", key=f"{i}") for i in range(50)]
            producer.flush()
            server.stop()
            deliveries += [producer.send("made", f"{i}", key=f"{i}") for i in range(50, 60)]
            with ServerProcess(tmp_path / "data", port=port, environment=environment):
                places = [delivery.result(30) for delivery in deliveries]
                found = read(server.url, "made")
        for i, where in enumerate(places):
            assert found[where.partition][where.offset].value == b"%d" % i
            assert where.partition == (murmur2(b"%d" % i) & 0x7FFFFFFF) % 3
