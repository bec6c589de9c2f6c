"""Several threads work on one batch, step by step; the tests of ``Producer`` cover the rest of the sender."""

import threading

import numpy as np
import pytest

from logstore.client.metadata import TopicPartitions
from logstore.client.producer.record_accumulator import RecordAccumulator
from logstore.client.producer.record_columns import RecordList
from logstore.client.producer.sender import Sender
from logstore.client.producer.topic_queue import ClosedBatch
from logstore.client.transport import Transport
from logstore.errors import RequestTimedOutError
from tests.unit.client.producer.test_record_accumulator import one_node, options


@pytest.fixture
def accumulator() -> RecordAccumulator:
    return RecordAccumulator(options(), one_node())


@pytest.fixture
def sender(accumulator: RecordAccumulator) -> Sender:
    # Nothing listens at this address.
    return Sender(accumulator, Transport("127.0.0.1:1"), one_node(), options())


def queue_one(accumulator: RecordAccumulator, partition: int) -> ClosedBatch:
    records = RecordList()
    records.flat += (b"v", None, None)
    batch, _ = records.columns()
    (closed,) = accumulator.append_batch("t", 1, 100, lambda: (batch, np.array([partition], np.int32)))
    return closed


def test_a_batch_that_another_thread_has_begun_to_split_is_left_to_it(accumulator: RecordAccumulator, sender: Sender):
    batch = queue_one(accumulator, 0)
    # The thread that asks for partitions was faster than the thread that closed the batch.
    assert accumulator.begin_asking("t")
    assert accumulator.next_unsplit("t") is batch
    sender.split(batch)
    assert not accumulator.has_unsplit("t")
    assert not sender.threads
    assert accumulator.close("closed") == ([], [])


@pytest.mark.parametrize(("count", "partition"), [(3, 0), (3, 9), (0, 0)])
def test_a_batch_that_is_split_too_late_fails(
    accumulator: RecordAccumulator, sender: Sender, count: int, partition: int
):
    if count:
        accumulator.set_partitions("t", TopicPartitions("id", count))
    batch = queue_one(accumulator, partition)
    sender.stop("closed")
    sender.split(batch)
    assert batch.outcome.done()
    assert isinstance(batch.outcome.error_at(0), RequestTimedOutError)
    assert not accumulator.begin_asking("t")
    assert not sender.threads


def test_a_stop_waits_for_requests_that_are_being_given_to_threads(
    accumulator: RecordAccumulator, sender: Sender, monkeypatch: pytest.MonkeyPatch
):
    accumulator.set_partitions("t", TopicPartitions("id", 3))
    batch = queue_one(accumulator, 0)
    drain = accumulator.drain
    stopping = threading.Thread(target=sender.stop, args=("closed",))

    def drain_as_it_stops() -> object:
        requests = drain()
        stopping.start()
        stopping.join(0.2)
        return requests

    monkeypatch.setattr(accumulator, "drain", drain_as_it_stops)
    sender.split(batch)
    monkeypatch.undo()
    stopping.join(10)
    assert batch.outcome.done()
    assert len(sender.threads) == 1
    assert not sender.threads[0].is_alive()
