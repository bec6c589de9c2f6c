from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from logstore.client.cluster_metadata import ClusterMetadata
from logstore.client.metadata import TopicPartitions
from logstore.client.producer.delivery import Delivery, Outcome
from logstore.client.producer.options import DEFAULT_MAX_REQUEST_SIZE, RETRIES_MAX, ProducerOptions
from logstore.client.producer.producer_batch import ProducerBatch
from logstore.client.producer.record_accumulator import RecordAccumulator
from logstore.client.producer.record_columns import RecordList, check_extras
from logstore.client.producer.topic_queue import ClosedBatch
from logstore.client.transport import Transport
from logstore.errors import InvalidRequestError, RequestTimedOutError, UnknownTopicError

_RECORD = 100
PARTITIONS = TopicPartitions("id", 3)


def options(**other: Any) -> ProducerOptions:
    """Return options of ``Producer`` with which no call waits for memory."""
    defaults: dict[str, Any] = {
        "client_id": None,
        "acks": "all",
        "key_serializer": None,
        "value_serializer": None,
        "linger_ms": 60_000,
        "batch_size": 3 * _RECORD,
        "buffer_memory": 1_000,
        "max_block_ms": 0,
        "compression_type": None,
        "retries": RETRIES_MAX,
        "retry_backoff_ms": 1,
        "retry_backoff_max_ms": 1,
        "delivery_timeout_ms": 120_000,
        "max_in_flight_requests_per_connection": 2,
        "request_timeout_ms": 30_000,
        "max_request_size": DEFAULT_MAX_REQUEST_SIZE,
        "metadata_max_age_ms": 300_000,
        "partitioner": "murmur2",
        "enable_idempotence": None,
    }
    return ProducerOptions(**{**defaults, **other})


def one_node() -> ClusterMetadata:
    """Return the metadata of one node, which is also that before anything is known: any broker may be asked."""
    return ClusterMetadata(Transport("127.0.0.1:1"))


@pytest.fixture
def accumulator() -> RecordAccumulator:
    accumulator = RecordAccumulator(options(), one_node())
    accumulator.set_partitions("t", PARTITIONS)
    return accumulator


def queue_one(accumulator: RecordAccumulator, *, partition: int = 0) -> Delivery:
    """Append a record of _RECORD bytes, in a batch that it opens."""
    accumulator.open("t", _RECORD)
    delivery = accumulator.append("t", b"v", None, check_extras(None, partition, None, None), _RECORD)
    assert delivery is not None
    return delivery


def parts_of(batch: ClosedBatch) -> list[ProducerBatch]:
    """Return the batch's values as messages, one part for each partition."""
    columns, named = batch.columns()
    assert named is not None
    parts = []
    for partition in sorted(set(named.tolist())):
        rows = np.flatnonzero(named == partition)
        message = pa.py_buffer(b",".join(columns.column("value").take(pa.array(rows)).to_pylist()))
        parts.append(ProducerBatch(batch.outcome, partition, rows, message, batch.deadline, PARTITIONS))
    return parts


def test_a_batch_that_no_record_has_joined_yet_holds_nobody_up(accumulator: RecordAccumulator) -> None:
    accumulator.open("t", _RECORD)
    closed, number = accumulator.begin_flush()
    assert not closed
    accumulator.await_flush(number, 0)
    accumulator.open("t", _RECORD)
    assert accumulator.close("closed") == ([], [])
    accumulator.await_flush(number + 1, 0)


def test_a_flush_raises_the_first_failure_once_and_waits_for_callbacks(accumulator: RecordAccumulator) -> None:
    delivery = queue_one(accumulator)
    (batch,), number = accumulator.begin_flush()
    seen = []

    def look() -> None:
        with pytest.raises(RequestTimedOutError):
            accumulator.await_flush(number, 0)
        seen.append(delivery.done())
        raise KeyError

    batch.outcome.add_callback(look)
    accumulator.complete(batch.outcome, np.arange(1), error=UnknownTopicError("gone"))
    assert seen == [True]
    with pytest.raises(UnknownTopicError):
        accumulator.await_flush(number, 0)
    accumulator.await_flush(number, 0)


def test_batches_have_lingered_at_their_time_but_not_while_others_wait_before_them() -> None:
    accumulator = RecordAccumulator(options(linger_ms=0), one_node())
    accumulator.set_partitions("t", PARTITIONS)
    first = queue_one(accumulator)
    (before,) = accumulator.wait_for_due() or ()
    second = queue_one(accumulator, partition=1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(accumulator.wait_for_due)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        accumulator.add_parts(before, parts_of(before))
        accumulator.drain()
        (after,) = waiting.result(10) or ()
    assert [before.outcome, after.outcome] == [first.outcome, second.outcome]
    accumulator.close("closed")
    assert accumulator.wait_for_due() is None


def part_ways(accumulator: RecordAccumulator, batch: ClosedBatch) -> list[list[int]]:
    """Split ``batch``, and return the partitions of each request that leaves then."""
    assert accumulator.add_parts(batch, parts_of(batch))
    return [[part.partition for part in batches] for _, _, batches in accumulator.drain()]


def test_batches_behind_a_busy_partition_hold_up_no_free_one() -> None:
    accumulator = RecordAccumulator(options(linger_ms=0), one_node())
    accumulator.set_partitions("t", PARTITIONS)
    left = []
    for partition in (0, 0, 1):
        queue_one(accumulator, partition=partition)
        (batch,) = accumulator.wait_for_due() or ()
        left.append(part_ways(accumulator, batch))
    assert left == [[[0]], [], [[1]]]


@pytest.mark.parametrize("why", ["all partitions are busy", "no more requests may be in flight"])
def test_records_gather_in_one_batch_while_none_could_leave(why: str) -> None:
    in_flight = 1 if why == "no more requests may be in flight" else 2
    accumulator = RecordAccumulator(options(linger_ms=0, max_in_flight_requests_per_connection=in_flight), one_node())
    accumulator.set_partitions("t", TopicPartitions("id", 2 if in_flight == 1 else 1))
    for _ in range(2):
        queue_one(accumulator)
        (batch,) = accumulator.wait_for_due() or ()
        part_ways(accumulator, batch)
    with ThreadPoolExecutor(1) as threads:
        together = [queue_one(accumulator)]
        waiting = threads.submit(accumulator.wait_for_due)
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        together.append(queue_one(accumulator))
        accumulator.answered("t", None, [0])
        assert [part.partition for _, _, batches in accumulator.drain() for part in batches] == [0]
        (batch,) = waiting.result(10) or ()
    assert {delivery.outcome for delivery in together} == {batch.outcome}


def test_a_record_is_done_and_called_back_with_its_partition_and_the_batch_with_the_last(
    accumulator: RecordAccumulator,
) -> None:
    first, second = queue_one(accumulator), queue_one(accumulator, partition=1)
    told: list[object] = []
    second.add_done_callback(told.append)
    first.add_done_callback(told.append)
    (batch,), number = accumulator.begin_flush()
    batch.outcome.add_callback(lambda: told.append("all"))
    accumulator.complete(batch.outcome, np.array([1]), 1, 7)
    assert (first.done(), second.done(), batch.outcome.done()) == (False, True, False)
    assert second.result() == ("t", 1, 7)
    assert told == [second]
    with pytest.raises(RequestTimedOutError):
        first.result(0)
    with pytest.raises(RequestTimedOutError):
        accumulator.await_flush(number, 0)
    accumulator.complete(batch.outcome, np.array([0]), 0, 3)
    assert told == [second, first, "all"]
    assert (first.result(), second.result()) == (("t", 0, 3), ("t", 1, 7))
    accumulator.await_flush(number, 0)


def test_memory_is_free_when_the_callbacks_of_all_partitions_have_returned(accumulator: RecordAccumulator) -> None:
    queue_one(accumulator), queue_one(accumulator, partition=1)
    (batch,), number = accumulator.begin_flush()

    def complete_the_other() -> None:
        accumulator.complete(batch.outcome, np.array([1]), 1, 0)
        with pytest.raises(RequestTimedOutError):
            accumulator.await_flush(number, 0)

    batch.outcome.add_callback(complete_the_other, 0)
    accumulator.complete(batch.outcome, np.array([0]), 0, 0)
    accumulator.await_flush(number, 0)


def test_partitions_are_asked_for_by_one_at_a_time_and_whoever_waits_is_split() -> None:
    accumulator = RecordAccumulator(options(), one_node())
    queue_one(accumulator)
    (batch,), _ = accumulator.begin_flush()
    assert accumulator.begin_asking("t")
    assert accumulator.in_flight == 1
    assert not accumulator.begin_asking("t")
    assert accumulator.next_unsplit("t") is batch
    assert not accumulator.has_unsplit("t")
    assert accumulator.next_unsplit("t") is None
    assert accumulator.in_flight == 0
    accumulator.set_partitions("t", PARTITIONS)
    assert not accumulator.begin_asking("t")
    assert accumulator.put_back(batch)
    assert accumulator.begin_asking("t")


@pytest.mark.parametrize(
    "call",
    [
        lambda accumulator: accumulator.open("t", _RECORD),
        lambda accumulator: accumulator.append_batch("t", 1, _RECORD, RecordList().columns),
        RecordAccumulator.check_open,
    ],
)
def test_nothing_is_queued_once_it_is_closed(call: Callable[[RecordAccumulator], object]) -> None:
    accumulator = RecordAccumulator(options(), one_node())
    accumulator.close("The reason")
    with pytest.raises(InvalidRequestError, match="The reason"):
        call(accumulator)


def test_batches_that_have_not_left_are_given_back_at_close_except_those_being_split(
    accumulator: RecordAccumulator,
) -> None:
    batches = []
    for partition in range(3):
        queue_one(accumulator, partition=partition)
        batches += accumulator.begin_flush()[0]
    assert accumulator.add_parts(batches[0], parts_of(batches[0]))
    accumulator.drain()
    assert accumulator.add_parts(batches[2], parts_of(batches[2]))
    unnamed = ClosedBatch(Outcome("t"), RecordList().columns, 0.0, None)
    queue_one(accumulator)
    unsplit, parts = accumulator.close("closed")
    assert [part.outcome for part in parts] == [batches[2].outcome]
    assert len(unsplit) == 1
    assert not accumulator.add_parts(batches[1], parts_of(batches[1]))
    assert not accumulator.put_back(unnamed)
    assert not accumulator.drain()
