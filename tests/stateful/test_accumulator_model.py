"""A producer's record accumulator against lists: one thread does what the program and all others do, in any order."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from logstore.client.metadata import TopicPartitions
from logstore.client.producer.delivery import Delivery
from logstore.client.producer.producer_batch import ProducerBatch
from logstore.client.producer.record_accumulator import RecordAccumulator
from logstore.client.producer.record_columns import RecordList, check_extras
from logstore.client.producer.topic_queue import ClosedBatch
from logstore.errors import RequestTimedOutError, ThrottledError
from tests.unit.client.producer.test_record_accumulator import options, parts_of

_RECORD = 100
_BATCH = 3 * _RECORD
_BUFFER = 10 * _RECORD
_PARTITIONS = 3
_choices = st.integers(0, 11)


class AccumulatorModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.accumulator = RecordAccumulator(options(batch_size=_BATCH, buffer_memory=_BUFFER))
        self.accumulator.set_partitions("t", TopicPartitions("id", _PARTITIONS))
        self.deliveries: list[Delivery] = []
        self.sent: list[list[bytes]] = [[] for _ in range(_PARTITIONS)]
        self.left: list[list[bytes]] = [[] for _ in range(_PARTITIONS)]
        self.closed: list[ClosedBatch] = []
        self.under_way: list[list[ProducerBatch]] = []

    @rule(partition=st.integers(0, _PARTITIONS - 1))
    def send(self, partition: int) -> None:
        value, extras = b"%d" % len(self.deliveries), check_extras(None, partition, None, None)
        while (delivery := self.accumulator.append("t", value, None, extras, _RECORD)) is None:
            if full := self.accumulator.close_full("t", _RECORD):
                self.closed.append(full)
            try:
                self.accumulator.open("t", _RECORD)
            except ThrottledError:
                # Rightly so: no memory is taken but by batches that are not complete.
                outcomes = [delivery.outcome for delivery in self.deliveries if not delivery.done()]
                assert len(outcomes) * _RECORD + _BATCH > _BUFFER
                return
        self.deliveries.append(delivery)
        self.sent[partition].append(value)

    @rule(choice=_choices)
    def split(self, choice: int) -> None:
        if self.closed:
            batch = self.closed.pop(choice % len(self.closed))
            assert self.accumulator.add_parts(batch, parts_of(batch))

    @rule()
    def drain(self) -> None:
        for _, batches in self.accumulator.drain():
            busy = {part.partition for request in self.under_way for part in request}
            assert not busy & {part.partition for part in batches}
            self.under_way.append(batches)
            for part in batches:
                self.left[part.partition] += part.message.to_pybytes().split(b",")

    @rule(choice=_choices)
    def answer(self, choice: int) -> None:
        if self.under_way:
            request = self.under_way.pop(choice % len(self.under_way))
            for part in request:
                self.accumulator.complete(part.outcome, part.rows, part.partition, 0)
            self.accumulator.answered("t", request)

    @rule()
    def flush(self) -> None:
        closed, self.flushed = self.accumulator.begin_flush()
        self.closed += closed

    @invariant()
    def requests_are_counted_and_bounded(self) -> None:
        assert self.accumulator.in_flight == len(self.under_way) <= 2

    def teardown(self) -> None:
        self.flush()
        while not all(delivery.done() for delivery in self.deliveries):
            with pytest.raises(RequestTimedOutError):
                self.accumulator.await_flush(self.flushed, 0)
            self.split(0)
            self.drain()
            self.answer(0)
        self.accumulator.await_flush(self.flushed, 0)
        assert self.left == self.sent
        # All memory is free again.
        self.accumulator.append_batch("whole", 1, _BUFFER, RecordList().columns)


TestAccumulatorModel = AccumulatorModel.TestCase
