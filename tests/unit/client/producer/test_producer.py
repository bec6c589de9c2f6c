import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.free_port import free_port
from logstore.client.admin import Admin
from logstore.client.producer import Producer
from logstore.client.producer.delivery import Delivery, RecordMetadata
from logstore.client.producer.record_columns import from_columns
from logstore.errors import (
    InvalidRecordError,
    InvalidRequestError,
    InvalidTopicError,
    LogStoreError,
    RecordTooLargeError,
    RequestTimedOutError,
    RequestTooLargeError,
    SerializationError,
    StoreUnreachableError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from logstore.records.murmur2 import murmur2
from tests.support.eventually import eventually
from tests.support.faulty_proxy import FaultyProxy
from tests.support.server_process import ServerProcess
from tests.support.stored_records import stored_records

pytestmark = pytest.mark.system

NOBODY = "127.0.0.1:1"


def test_an_error_that_ends_the_block_has_one_traceback(store: str):
    with pytest.raises(UnknownTopicError) as raised, Producer(store) as producer:
        producer.send("absent-topic", b"v").result()
    assert raised.value.__context__ is None
    assert not {"__exit__", "close", "flush"} & {entry.name for entry in raised.traceback}
    assert "result" in {entry.name for entry in raised.traceback}


def test_each_delivery_names_the_place_of_its_record(store: str, topic: str):
    with Producer(store, linger_ms=1_000) as producer:
        sent = [
            (f"{i}".encode(), producer.send(topic, f"{i}", key=None if i % 3 else f"k{i % 7}", headers={"h": b"x"}))
            for i in range(500)
        ]
        producer.flush()
    stored = {(r.partition, r.offset): r for records in stored_records(store, topic).values() for r in records}
    assert len(stored) == 500
    for value, delivery in sent:
        where = delivery.result()
        record = stored[where.partition, where.offset]
        assert record.value == value
        assert record.headers == [("h", b"x")]
        if record.key is not None:
            assert where.partition == (murmur2(record.key) & 0x7FFFFFFF) % 4


def test_a_record_is_stored_as_it_was_given(store: str, topic: str):
    with Producer(store, linger_ms=1_000) as producer:
        producer.send(topic, b"a", b"k", [("h", b"1"), ("h", None)], 2, 1_500)
        producer.send(topic, partition=2)
        producer.send(topic, memoryview(b"c"), bytearray(b"k"), partition=2, headers=[])
        producer.send(topic, "é", "ü", partition=2, timestamp_ms=0)
    first, tombstone, third, fourth = stored_records(store, topic)[2]
    assert first == (2, 0, 1_500, b"k", b"a", [("h", b"1"), ("h", None)])
    assert (tombstone.key, tombstone.value, tombstone.headers) == (None, None, None)
    assert tombstone.timestamp_ms > 1_700_000_000_000
    assert (third.key, third.value) == (b"k", b"c")
    assert (fourth.key, fourth.value, fourth.timestamp_ms) == ("ü".encode(), "é".encode(), 0)


@pytest.mark.parametrize("options", [{}, {"compression_type": "lz4"}, {"enable_idempotence": False}])
def test_records_of_one_partition_keep_their_order_over_many_requests(store: str, topic: str, options):
    with Producer(store, batch_size=2_000, max_request_size=3_000, linger_ms=0, **options) as producer:
        deliveries = [producer.send(topic, f"{i}", partition=i % 3) for i in range(3_000)]
    found = stored_records(store, topic)
    for partition in range(3):
        assert [int(r.value) for r in found[partition]] == list(range(partition, 3_000, 3))
    assert [delivery.result().offset for delivery in deliveries] == [i // 3 for i in range(3_000)]


def test_columns_are_sent_after_the_records_before_them(store: str, topic: str):
    with Producer(store, linger_ms=1_000, compression_type="zstd") as producer:
        producer.send(topic, "first", partition=2)
        columns = {"value": ["a", "b", "c", "d"], "partition": pa.array([2, 0, None, 2]), "timestamp": [1, 2, 3, 4]}
        where = producer.send_batch(topic, columns).result()
    assert where.partitions[[0, 1, 3]].tolist() == [2, 0, 2]
    assert where.offsets[[0, 3]].tolist() == [1, 2] if where.partitions[2] != 2 else [1, 3]
    found = stored_records(store, topic)
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
    assert stored_records(store, topic)[int(partition)][0].timestamp_ms == 1_500


def test_columns_may_come_as_a_stream_of_arrow_and_headers_as_pairs():
    class Frame:
        def __arrow_c_stream__(self, schema=None):
            return pa.table({"value": pa.array(["v"], pa.string_view())}).__arrow_c_stream__(schema)

    assert from_columns(Frame())[0].column("value").to_pylist() == [b"v"]
    columns, _ = from_columns({"value": ["v"], "headers": [[("k", b"1")]]})
    assert columns.column("headers").to_pylist() == [[{"key": "k", "value": b"1"}]]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"key": ["k"]}, "'value' is needed"),
        ({"value": ["v"], "Key": ["k"]}, "no column 'Key'"),
        ({"value": [1]}, "'value' of type int64 is to be bytes or text"),
        ({"value": ["v"], "headers": [["k"]]}, "Arrow knows"),
        ({"value": ["v"], "timestamp": ["now"]}, "'timestamp'"),
        ({"value": ["v"], "partition": [2**40]}, "'partition'"),
        ({"value": ["v"], "key": ["a", "b"]}, "one length"),
        ({"value": []}, "without records|of type null"),
    ],
)
def test_columns_that_are_no_records_are_refused_at_once(store: str, columns, says):
    with Producer(store) as producer, pytest.raises(InvalidRequestError, match=says):
        producer.send_batch("t", columns)


@pytest.mark.parametrize(
    ("record", "kind", "says"),
    [
        ({"value": 1}, SerializationError, "value is bytes, text or None, not int"),
        ({"value": b"", "key": 1.5}, SerializationError, "key_serializer"),
        ({"value": "\ud800"}, SerializationError, "UTF-8"),
        ({"value": b"", "partition": -1}, InvalidRecordError, "Partition -1"),
        ({"value": b"", "partition": "0"}, InvalidRecordError, "Partition '0'"),
        ({"value": b"", "timestamp_ms": -1}, InvalidRecordError, "Timestamp -1"),
        ({"value": b"", "timestamp_ms": 2**62}, InvalidRecordError, "Timestamp"),
        ({"value": b"", "headers": [("h", "text")]}, InvalidRecordError, "Header 'h'"),
        ({"value": b"", "headers": ["h"]}, InvalidRecordError, "Header 'h'"),
        ({"value": b"", "headers": {"\ud800": b""}}, InvalidRecordError, "UTF-8"),
        ({"value": b"x" * 1_000}, RecordTooLargeError, "max_request_size = 1000"),
        ({"topic": "..", "value": b""}, InvalidTopicError, "topic's name"),
    ],
)
def test_records_that_no_store_takes_are_refused_at_once(record, kind, says):
    with (
        Producer(NOBODY, max_request_size=1_000, batch_size=1_000) as producer,
        pytest.raises(kind, match=says),
    ):
        producer.send(**{"topic": "t", **record})


def test_serializers_see_what_is_not_none_and_their_failures_queue_nothing(store: str, topic: str):
    serializers = {"key_serializer": lambda key: f"k{key}", "value_serializer": lambda value: b"%d" % value}
    with Producer(store, **serializers) as producer:
        producer.send(topic, 7, 1, partition=0)
        producer.send(topic, None, None, partition=0)
        with pytest.raises(SerializationError, match="value_serializer failed on a value") as raised:
            producer.send(topic, "seven", 1, partition=0)
        assert isinstance(raised.value.__cause__, TypeError)
    assert [(r.key, r.value) for r in stored_records(store, topic)[0]] == [(b"k1", b"7"), (None, None)]


def test_only_the_record_that_is_too_large_fails(store: str, topic: str, admin: Admin):
    admin.alter_configs(topic, {"max.message.bytes": "1000"})
    producer = Producer(store, linger_ms=1_000)
    deliveries = [producer.send(topic, b"x" * (2_000 if i == 17 else 10), partition=i % 2) for i in range(40)]
    with pytest.raises(RecordTooLargeError):
        producer.close()
    assert [i for i, delivery in enumerate(deliveries) if delivery.exception()] == [17]
    assert [d.result().offset for d in deliveries[::2]] == list(range(20))
    assert [d.result().offset for i, d in enumerate(deliveries) if i % 2 and i != 17] == list(range(19))
    assert {p: len(records) for p, records in stored_records(store, topic).items()} == {0: 20, 1: 19}


def test_a_record_that_one_partition_refuses_fails_alone_with_its_partition(store: str, topic: str, admin: Admin):
    admin.alter_configs(topic, {"cleanup.policy": "compact"})
    columns = {"value": list("abcdef"), "key": ["k", "k", "k", None, "k", "k"], "partition": [0, 1, 2, 1, 0, 3]}
    with Producer(store) as producer:
        delivery = producer.send_batch(topic, columns)
        ((rows, error),) = delivery.failures()
        assert isinstance(delivery.exception(), InvalidRecordError)
        assert (rows.tolist(), error.kafka_name) == ([1, 3], "INVALID_RECORD")
        assert delivery.places().offsets.tolist() == [0, -1, 0, -1, 1, 0]
        with pytest.raises(InvalidRecordError):
            producer.flush()


def test_a_batch_larger_than_a_request_goes_out_in_parts(store: str, topic: str):
    values = [bytes([i]) * 600_000 for i in range(30)]
    with Producer(store) as producer:
        where = producer.send_batch(topic, {"value": values, "partition": np.zeros(30, np.int32)}).result()
    assert where.offsets.tolist() == list(range(30))
    assert [r.value for r in stored_records(store, topic)[0]] == values


def test_flush_raises_a_failure_nobody_looked_at_once(store: str):
    producer = Producer(store)
    producer.send("absent-topic", b"v")
    with pytest.raises(UnknownTopicError):
        producer.flush()
    producer.flush()
    producer.close()
    producer.close()
    with pytest.raises(InvalidRequestError, match="closed"):
        producer.send("absent-topic", b"v")


@pytest.mark.parametrize("how", ["result", "await", "failures", "callback"])
def test_the_end_of_a_with_block_does_not_raise_again_what_was_raised(store: str, topic: str, how: str):
    told: list[object] = []
    with Producer(store) as producer:
        if how == "failures":
            assert producer.send_batch(topic, {"value": ["v"], "partition": [99]}).failures()
        elif how == "callback":
            producer.send(topic, b"v", partition=99, on_delivery=lambda error, _: told.append(error))
        else:
            delivery = producer.send(topic, b"v", partition=99)
            with pytest.raises(UnknownPartitionError):
                asyncio.run(_awaited(delivery)) if how == "await" else delivery.result()
    assert len(told) == (how == "callback")


def test_the_end_of_a_with_block_raises_what_is_new_after_what_was_raised(store: str, topic: str):
    def produce() -> None:
        with Producer(store) as producer:
            with pytest.raises(UnknownPartitionError):
                producer.send(topic, b"v", partition=99).result()
            producer.send("absent-topic", b"v")

    with pytest.raises(UnknownTopicError):
        produce()


async def _awaited(delivery: Delivery) -> RecordMetadata:
    return await delivery


def test_an_unknown_partition_fails_the_records_that_name_it(store: str, topic: str):
    with Producer(store, linger_ms=1_000) as producer:
        deliveries = [producer.send(topic, f"{i}", partition=partition) for i, partition in enumerate([0, 4, 0, 9, 1])]
        with pytest.raises(UnknownPartitionError, match=f"Partition 4 not found: topic '{topic}' has 4"):
            producer.flush()
    errors = [type(delivery.exception()) for delivery in deliveries]
    assert errors == [type(None), UnknownPartitionError, type(None), UnknownPartitionError, type(None)]
    assert [r.value for r in stored_records(store, topic)[0]] == [b"0", b"2"]


def test_partitions_that_are_added_are_noticed_by_name_and_by_age(store: str, topic: str, admin: Admin):
    with Producer(store) as producer, Producer(store, metadata_max_age_ms=0, partitioner="round_robin") as often:
        assert producer.partitions_for(topic) == {0, 1, 2, 3}
        often.send(topic, b"v").result()
        admin.add_partitions(topic, 6)
        assert producer.send(topic, b"v", partition=5).result().partition == 5
        for _ in range(200):
            if often.send(topic, b"v").result().partition > 3:
                break
        else:
            pytest.fail("never asked again")


def test_partitions_that_a_new_topic_of_the_same_name_lacks_are_noticed(store: str, topic: str, admin: Admin):
    with Producer(store) as producer:
        producer.send(topic, b"v", partition=3).result()
        admin.delete_topic(topic)
        admin.create_topic(topic, partitions=1)
        producer.send(topic, b"v", partition=3).exception()
        later = [producer.send(topic, b"v", key=f"{i}") for i in range(20)]
        assert {delivery.result().partition for delivery in later} == {0}
        with pytest.raises(UnknownTopicIdError, match="the new topic has 1"):
            producer.flush()


def test_waiting_records_are_bounded_and_sending_blocks():
    # Nothing listens at this address, so nothing leaves the buffer.
    producer = Producer(NOBODY, buffer_memory=10_000, max_block_ms=200)
    for _ in range(10):
        producer.send("t", b"x" * 968)
    with pytest.raises(ThrottledError, match=r"buffer_memory = 10000 bytes are full .* nothing was queued"):
        producer.send("t", b"x" * 968)
    with pytest.raises(RequestTooLargeError, match="buffer_memory"):
        producer.send("t", b"x" * 10_000)
    with pytest.raises(RequestTimedOutError, match="not delivered"):
        producer.close(0.1)


def test_a_full_buffer_takes_more_when_something_is_delivered(store: str, topic: str):
    with Producer(store, buffer_memory=10_000, batch_size=3_000) as producer:
        deliveries = [producer.send(topic, b"x" * 900, partition=0) for _ in range(100)]
    assert [delivery.result().offset for delivery in deliveries] == list(range(100))


def test_topics_whose_batches_are_not_full_leave_room_for_others(store: str, admin: Admin):
    topics = [f"t-{uuid4().hex[:12]}" for _ in range(5)]
    for topic in topics:
        admin.create_topic(topic, partitions=1)
    with Producer(store, linger_ms=60_000, buffer_memory=2_000, batch_size=1_000, max_block_ms=10_000) as producer:
        deliveries = [producer.send(topic, f"{i}") for i in range(10) for topic in topics]
        producer.flush()
    assert [delivery.result().offset for delivery in deliveries] == [i for i in range(10) for _ in topics]


def test_closing_in_time_fails_what_is_left_and_leaves_nobody_waiting():
    producer = Producer(NOBODY, linger_ms=0)
    first, second = producer.send("t", b"1"), producer.send("u", b"2")
    third = producer.send_batch("t", {"value": ["3"]})
    eventually(lambda: first.outcome.last_error is not None)
    with pytest.raises(RequestTimedOutError, match="not delivered"):
        producer.close(0.2)
    assert isinstance(first.exception(5), StoreUnreachableError)
    assert second.exception(5) is not None
    assert isinstance(third.exception(5), (StoreUnreachableError, RequestTimedOutError))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("logstore-producer")]


@pytest.mark.parametrize("given", ["a record", "columns"])
def test_a_wait_that_times_out_says_why_it_takes_so_long(given: str):
    producer = Producer("127.0.0.1:1")
    delivery = producer.send("t", "1") if given == "a record" else producer.send_batch("t", {"value": ["1"]})
    eventually(lambda: delivery.outcome.last_error is not None)
    for wait in (delivery.result, producer.flush, producer.close):
        with pytest.raises(
            RequestTimedOutError, match=r"The last try failed: No store answers at http://127\.0\.0\.1:1 "
        ):
            wait(0.01)


def test_closing_does_not_wait_for_an_answer_that_does_not_come(store: str, topic: str):
    with FaultyProxy(store) as proxy:
        proxy.hold()
        producer = Producer(proxy.url, linger_ms=0)
        delivery = producer.send(topic, b"v", partition=0)
        with pytest.raises(RequestTimedOutError, match="not delivered"):
            producer.close(0.5)
        assert delivery.exception(0).kafka_name == "NETWORK_EXCEPTION"


def test_without_acks_there_is_no_offset(store: str, topic: str):
    with Producer(store, acks=0) as producer:
        assert producer.send(topic, b"v", partition=1).result() == RecordMetadata(topic, 1, -1)


def test_callbacks_report_each_record(store: str, topic: str, admin: Admin):
    admin.alter_configs(topic, {"max.message.bytes": "1000"})
    told: dict[str, tuple[LogStoreError | None, RecordMetadata | None]] = {}
    done = []

    def tell(name: str) -> Callable[[LogStoreError | None, RecordMetadata | None], None]:
        return lambda error, metadata: told.__setitem__(name, (error, metadata))

    with Producer(store, linger_ms=1_000) as producer:
        producer.send(topic, b"v", partition=0, on_delivery=tell("stored"))
        failed = producer.send(topic, b"v" * 2_000, partition=0, on_delivery=tell("failed"))
        failed.add_done_callback(done.append)
        with pytest.raises(RecordTooLargeError):
            producer.flush()
        assert told["stored"] == (None, RecordMetadata(topic, 0, 0))
        assert told["failed"] == (failed.exception(), None)
        failed.add_done_callback(done.append)
        batch = producer.send_batch(topic, {"value": ["v"]})
        batch.add_done_callback(done.append)
        producer.flush()
    assert done == [failed, failed, batch]


def test_an_exception_of_a_callback_comes_out_of_flush_and_stops_nothing(store: str, topic: str):
    def fail(*_: object) -> None:
        raise KeyError("mine")

    with Producer(store, linger_ms=1_000) as producer:
        deliveries = [producer.send(topic, b"v", partition=0, on_delivery=fail) for _ in range(3)]
        with pytest.raises(KeyError, match="mine"):
            producer.flush()
        assert [delivery.result().offset for delivery in deliveries] == [0, 1, 2]


def test_a_callback_may_send_but_neither_flush_nor_close(store: str, topic: str):
    raised: list[Exception] = []
    more = []

    def called(*_: object) -> None:
        more.append(producer.send(topic, b"more", partition=0))
        for wait in (producer.flush, producer.close):
            try:
                wait()
            except InvalidRequestError as error:
                raised.append(error)

    with Producer(store) as producer:
        producer.send(topic, b"v", partition=0, on_delivery=called)
        producer.flush()
        assert more[0].result().offset == 1
        assert producer.send(topic, b"on", partition=0).result().offset == 2
    assert ["callbacks" in str(error) for error in raised] == [True, True]


def test_deliveries_are_awaitable(store: str, topic: str):
    async def run() -> None:
        assert (await producer.send(topic, b"v", partition=0)).offset == 0
        deliveries = [producer.send(topic, b"v", partition=0) for _ in range(10)]
        places = await asyncio.gather(*deliveries)
        assert [place.offset for place in places] == list(range(1, 11))
        assert (await deliveries[0]).offset == 1
        assert (await producer.send_batch(topic, {"value": ["v"], "partition": [0]})).offsets.tolist() == [11]
        with pytest.raises(UnknownPartitionError):
            await producer.send(topic, b"v", partition=7)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.ensure_future(asyncio.gather(slow.send(topic, b"v"))), 0.01)

    with Producer(store) as producer:
        slow = Producer(NOBODY)
        asyncio.run(run())
        with pytest.raises(RequestTimedOutError):
            slow.close(0)
        with pytest.raises(UnknownPartitionError):
            producer.flush()


def test_several_threads_send_side_by_side_each_in_its_order(store: str, topic: str):
    deliveries: dict[int, list[object]] = {}

    def run(thread: int) -> None:
        deliveries[thread] = [
            producer.send(topic, f"{thread} {i}", key=f"{thread}")
            if i % 100
            else producer.send_batch(topic, {"value": [f"{thread} {i}"], "key": [f"{thread}"]})
            for i in range(1_000)
        ]

    with Producer(store, batch_size=5_000, linger_ms=1, buffer_memory=100_000) as producer:
        threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stored = [r.value for records in stored_records(store, topic).values() for r in records]
    for thread in range(4):
        own = [value for value in stored if value.startswith(b"%d " % thread)]
        assert own == [b"%d %d" % (thread, i) for i in range(1_000)]


def test_a_forked_process_needs_a_producer_of_its_own(store: str, topic: str):
    with Producer(store, linger_ms=60_000) as producer, Producer(store) as unused:
        mine = producer.send(topic, b"parent", partition=0)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                unused.send(topic, b"child", partition=1).result(30)
                producer.close()
                producer.send(topic, b"never", partition=0)
            except InvalidRequestError as error:
                code = 0 if "fork" in error.message else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        producer.flush()
        assert mine.result().offset == 0
    found = stored_records(store, topic)
    assert {partition: [r.value for r in records] for partition, records in found.items()} == {
        0: [b"parent"],
        1: [b"child"],
    }


def test_survives_kills_of_the_store_and_makes_a_topic_by_producing(tmp_path: Path):
    environment = {"LOGSTORE_AUTO_CREATE_TOPICS_ENABLE": "true", "LOGSTORE_NUM_PARTITIONS": "3"}
    port = free_port()
    with (
        ServerProcess(tmp_path / "data", port=port, environment=environment) as server,
        Producer(server.url, linger_ms=0, batch_size=2_000) as producer,
    ):
        deliveries = [producer.send("made", f"{i}", key=f"{i % 100}") for i in range(2_000)]
        # The kill comes after the first delivery, in the middle of the records.
        deliveries[0].result(30)
        server.kill()
        deliveries += [producer.send("made", f"{i}", key=f"{i % 100}") for i in range(2_000, 2_100)]
        with ServerProcess(tmp_path / "data", port=port, environment=environment):
            places = [delivery.result(60) for delivery in deliveries]
            found = stored_records(server.url, "made")
    assert sum(len(records) for records in found.values()) == 2_100
    for i, where in enumerate(places):
        assert found[where.partition][where.offset].value == b"%d" % i
        assert where.partition == (murmur2(b"%d" % (i % 100)) & 0x7FFFFFFF) % 3
    for records in found.values():
        assert [int(r.value) for r in records] == sorted(int(r.value) for r in records)
