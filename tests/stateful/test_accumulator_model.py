"""A producer's record accumulator against lists: one thread plays the program and all other threads, in any order.

``linger.ms`` is 0, so whenever a record could leave, the accumulator must have closed its batch.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from logstore.client.metadata import TopicPartitions
from logstore.client.producer.delivery import Delivery
from logstore.client.producer.producer_batch import ProducerBatch
from logstore.client.producer.record_accumulator import RecordAccumulator
from logstore.client.producer.record_columns import RecordList, check_extras
from logstore.client.producer.topic_queue import ClosedBatch
from logstore.errors import RequestTimedOutError, ThrottledError
from tests.unit.client.producer.test_record_accumulator import one_node, options, parts_of

_RECORD = 100
_BATCH = 3 * _RECORD
_BUFFER = 10 * _RECORD
_PARTITIONS = 3
_IN_FLIGHT = 2
_choices = st.integers(0, 11)


class AccumulatorModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.accumulator = RecordAccumulator(
            options(
                batch_size=_BATCH,
                buffer_memory=_BUFFER,
                linger_ms=0,
                max_in_flight_requests_per_connection=_IN_FLIGHT,
            ),
            one_node(),
        )
        self.threads = ThreadPoolExecutor(1)
        self.accumulator.set_partitions("t", TopicPartitions("id", _PARTITIONS))
        self.deliveries: list[Delivery] = []
        self.sent: list[list[bytes]] = [[] for _ in range(_PARTITIONS)]
        self.left: list[list[bytes]] = [[] for _ in range(_PARTITIONS)]
        self.closed: list[ClosedBatch] = []
        # The records of batches that were split together with all earlier batches, by partition. ``in_order`` has the
        # other closed batches, each with its parts once it is split.
        self.lined_up: list[list[bytes]] = [[] for _ in range(_PARTITIONS)]
        self.in_order: list[tuple[ClosedBatch, list[ProducerBatch] | None]] = []
        self.answered: list[Delivery] = []
        self.under_way: list[list[ProducerBatch]] = []

    @rule(partition=st.integers(0, _PARTITIONS - 1))
    def send(self, partition: int) -> None:
        value, extras = b"%d" % len(self.deliveries), check_extras(None, partition, None, None)
        while (delivery := self.accumulator.append("t", value, None, extras, _RECORD)) is None:
            if full := self.accumulator.close_full("t", _RECORD):
                self.close(full)
            try:
                self.accumulator.open("t", _RECORD)
            except ThrottledError:
                # Throttling is right here: only incomplete batches hold memory.
                outcomes = [delivery.outcome for delivery in self.deliveries if not delivery.outcome.done()]
                assert len(outcomes) * _RECORD + _BATCH > _BUFFER
                return
        self.deliveries.append(delivery)
        self.sent[partition].append(value)

    @rule(choice=_choices)
    def split(self, choice: int) -> None:
        if self.closed:
            batch = self.closed.pop(choice % len(self.closed))
            parts = parts_of(batch)
            assert self.accumulator.add_parts(batch, parts)
            self.in_order = [(each, parts if each is batch else found) for each, found in self.in_order]
            while self.in_order and (ready := self.in_order[0][1]) is not None:
                del self.in_order[0]
                for part in ready:
                    self.lined_up[part.partition] += part.message.to_pybytes().split(b",")

    @rule()
    def drain(self) -> None:
        for _, _, batches in self.accumulator.drain():
            assert not self.busy & {part.partition for part in batches}
            self.under_way.append(batches)
            for part in batches:
                self.left[part.partition] += part.message.to_pybytes().split(b",")
        if len(self.under_way) < _IN_FLIGHT:
            # A partition without a request in flight does not wait for another partition.
            assert self.waiting <= self.busy

    @precondition(lambda self: self.could_leave)
    @rule()
    def linger(self) -> None:
        waiting = self.threads.submit(self.accumulator.wait_for_due)
        try:
            due = waiting.result(60) or ()
        except TimeoutError:
            self.accumulator.close("The thread is to end")
            raise
        for batch in due:
            self.close(batch)

    @rule(choice=_choices)
    def answer(self, choice: int) -> None:
        if self.under_way:
            request = self.under_way[choice % len(self.under_way)]
            partitions = {part.partition for part in request}
            if len(partitions) > 1 and choice % 2:
                # One partition of the request is answered before the others.
                first = {request[0].partition}
                self.complete([part for part in request if part.partition in first])
                self.accumulator.release("t", first)
                request[:] = [part for part in request if part.partition not in first]
            else:
                self.complete(request)
                self.under_way.remove(request)
                self.accumulator.answered("t", None, partitions)

    @rule()
    def flush(self) -> None:
        closed, self.flushed = self.accumulator.begin_flush()
        for batch in closed:
            self.close(batch)

    @invariant()
    def requests_are_counted_and_bounded(self) -> None:
        assert self.accumulator.in_flight == len(self.under_way) <= _IN_FLIGHT

    @invariant()
    def a_record_is_done_when_its_partition_has_answered(self) -> None:
        assert [delivery for delivery in self.deliveries if delivery.done()] == [
            delivery for delivery in self.deliveries if delivery in self.answered
        ]

    @property
    def busy(self) -> set[int]:
        return {part.partition for request in self.under_way for part in request}

    @property
    def waiting(self) -> set[int]:
        """Partitions with records that could leave if no request were in flight."""
        return {p for p in range(_PARTITIONS) if len(self.lined_up[p]) > len(self.left[p])}

    @property
    def could_leave(self) -> bool:
        """True if a record outside all closed batches could leave, provided that its partition is free."""
        is_open = any(delivery.outcome.count == 0 for delivery in self.deliveries)
        free = len(self.under_way) < _IN_FLIGHT and len(self.busy) < _PARTITIONS
        return is_open and not self.in_order and (not self.waiting or free)

    def close(self, batch: ClosedBatch) -> None:
        self.closed.append(batch)
        self.in_order.append((batch, None))

    def complete(self, parts: list[ProducerBatch]) -> None:
        for part in parts:
            rows = set(part.rows.tolist())
            self.answered += [d for d in self.deliveries if d.outcome is part.outcome and d.row in rows]
            self.accumulator.complete(part.outcome, part.rows, part.partition, 0)

    def teardown(self) -> None:
        self.flush()
        while not all(delivery.done() for delivery in self.deliveries):
            with pytest.raises(RequestTimedOutError):
                self.accumulator.await_flush(self.flushed, 0)
            self.split(0)
            self.drain()
            self.answer(0)
        self.threads.shutdown()
        self.accumulator.await_flush(self.flushed, 0)
        assert self.left == self.sent
        # All memory is free again.
        self.accumulator.append_batch("whole", 1, _BUFFER, RecordList().columns)


TestAccumulatorModel = AccumulatorModel.TestCase
TestAccumulatorModel.settings = settings(deadline=None)
