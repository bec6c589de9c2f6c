"""Records from ``Producer.send`` until they are complete: batches open and closed, and the memory that they take.

``append`` puts a record into the open batch of its topic. A batch is closed when it is full, when its ``linger_ms`` are
over (``wait_for_due``) or for a flush; the thread that closes it has the ``Sender`` split it by partition.
``add_parts`` takes the parts back, ``drain`` makes requests of them, ``answered`` and ``complete`` record the outcomes.

This class owns its lock. Every public method takes it; methods with an underscore, ``TopicQueue`` and
``IncompleteBatches`` are called under it. Nothing slow is done and no foreign code runs under it. Waits for memory, for
a linger or for a flush are on its condition.

Invariants:

- Queued records never take more than ``buffer_memory``: past it, callers wait. A batch takes its memory when opened.
- A batch is incomplete from when it is opened until all of its callbacks have been called.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from logstore.client.cluster_metadata import ANY_BROKER, ClusterMetadata
from logstore.client.metadata import TopicPartitions
from logstore.client.producer.delivery import Delivery, Outcome
from logstore.client.producer.incomplete_batches import IncompleteBatches
from logstore.client.producer.options import ProducerOptions
from logstore.client.producer.producer_batch import ProducerBatch
from logstore.client.producer.record_columns import Extras
from logstore.client.producer.topic_queue import ClosedBatch, ColumnsAndPartitions, OpenBatch, TopicQueue
from logstore.errors import InvalidRequestError, LogStoreError, RequestTooLargeError, ThrottledError

# The thread that fills a larger batch closes it, if it comes back within the time below. numpy releases the GIL in
# operations on more than 500 numbers, and a thread that computes gives it back 5 ms later.
_SMALL_BATCH_RECORDS = 500
_GRACE_SECONDS = 0.002
# While parts wait behind a busy partition, a batch lingers at least this long, because each adds a part to those that
# wait.
_BEHIND_OTHERS_SECONDS = 0.005


class RecordAccumulator:
    """The records of one producer. ``closed`` says why nothing more can be queued; it is empty while it can."""

    def __init__(self, options: ProducerOptions, metadata: ClusterMetadata, *, closed: str = "") -> None:
        self._options = options
        self._metadata = metadata
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self.closed = closed
        self._topics: dict[str, TopicQueue] = {}
        # The queues' open batches by topic, for a quick ``append``.
        self._open: dict[str, OpenBatch] = {}
        self._reserved_bytes = 0
        #: Requests under way by broker; those for any broker are under None.
        self._in_flight: Counter[int | None] = Counter()
        self._incomplete = IncompleteBatches(self._changed)
        self._wake_at = 0.0

    @property
    def in_flight(self) -> int:
        """The number of requests under way."""
        return self._in_flight.total()

    def check_open(self) -> None:
        """Raise InvalidRequestError if it is closed."""
        if self.closed:
            raise InvalidRequestError(self.closed)

    # ---- records to batches ------------------------------------------------------------------------------------------

    def append(
        self, topic: str, value: bytes | None, key: bytes | None, extras: Extras | None, size: int
    ) -> Delivery | None:
        """Add a record of ``size`` bytes to the open batch; return its ``Delivery``, or None if it has no room."""
        with self._lock:
            try:
                batch = self._open[topic]
            except KeyError:
                return None
            room = batch.room - size
            if room < 0:
                return None
            batch.room = room
            flat = batch.flat
            row = len(flat) // 3
            flat += (value, key, extras)
            return Delivery(batch.outcome, row)

    def close_full(self, topic: str, size: int) -> ClosedBatch | None:
        """Close the open batch of ``topic``, if there is one and it has no room for ``size`` bytes."""
        with self._lock:
            queue = self._topic(topic)
            return self._close(queue) if queue.open is not None and queue.open.room < size else None

    def open(self, topic: str, size: int) -> None:
        """Open a batch with room for at least ``size`` bytes, unless there is one by now. Waits for memory.

        Raises ThrottledError after ``max_block_ms``, RequestTooLargeError, InvalidRequestError (closed).
        """
        with self._lock:
            queue = self._topic(topic)
            if queue.open is not None:
                return
            room = max(size, min(self._options.batch_size, self._options.buffer_memory))
            self._take_memory(room)
            if queue.open is not None:
                # Another thread opened one while this one waited.
                self._free_memory(room)
                return
            queue.open = self._open[topic] = OpenBatch(topic, room, time.monotonic())
            self._incomplete.add(queue.open.outcome)
            self._wake_for(queue.open)

    def append_batch(
        self, topic: str, count: int, size: int, columns: Callable[[], ColumnsAndPartitions]
    ) -> list[ClosedBatch]:
        """Queue ``count`` records of ``size`` bytes as a separate batch. Return the batches closed here: it is the
        last, after the open one. Waits and raises as ``open``.
        """
        with self._lock:
            self._take_memory(size)
            queue = self._topic(topic)
            earlier = self._close(queue)
            outcome = Outcome(topic, size)
            self._incomplete.add(outcome)
            outcome.close(count)
            batch = queue.enqueue(outcome, columns, time.monotonic())
        return [earlier, batch] if earlier else [batch]

    def wait_for_due(self) -> list[ClosedBatch] | None:
        """Wait until batches have lingered for ``linger_ms``, and close them; return None at the end."""
        with self._lock:
            while not self.closed:
                now = time.monotonic()
                if due := self._close_due(now):
                    return due
                self._changed.wait(self._wake_at - now)
        return None

    # ---- batches to requests -----------------------------------------------------------------------------------------

    def add_parts(self, batch: ClosedBatch, parts: list[ProducerBatch]) -> bool:
        """Take the parts of a split ``batch``. Returns False if closed: they will not be sent."""
        with self._lock:
            if not self.closed:
                self._topic(batch.outcome.topic).split(batch, parts)
            return not self.closed

    def put_back(self, batch: ClosedBatch) -> bool:
        """Put back a ``batch`` that names unknown partitions, until they are looked up. Returns False if closed."""
        with self._lock:
            batch.claimed = False
            return not self.closed

    def begin_asking(self, topic: str) -> bool:
        """Return True if the caller has to ask for the partitions of ``topic``: they are needed, and no other thread
        asks.

        Asking counts as a request until ``next_unsplit`` returns None.
        """
        with self._lock:
            queue = self._topic(topic)
            if self.closed or queue.asking or not (queue.unsplit or time.monotonic() >= queue.ask_again):
                return False
            queue.asking = True
            self._in_flight[ANY_BROKER] += 1
            return True

    def has_unsplit(self, topic: str) -> bool:
        """Return True if a batch waits for the partitions of ``topic``."""
        with self._lock:
            return self._topic(topic).unsplit is not None

    def next_unsplit(self, topic: str) -> ClosedBatch | None:
        """Return a batch that waits for the partitions of ``topic``, for the caller to split. None ends the asking."""
        with self._lock:
            queue = self._topic(topic)
            batch = queue.unsplit
            if batch is not None:
                batch.claimed = True
            else:
                queue.asking = False
                self._in_flight[ANY_BROKER] -= 1
            return batch

    def set_partitions(self, topic: str, partitions: TopicPartitions | None) -> None:
        """Set the partitions of ``topic``; None means that they must be looked up again."""
        with self._lock:
            queue = self._topic(topic)
            queue.partitions = partitions
            queue.ask_again = time.monotonic() + self._options.metadata_max_age_ms / 1000

    def drain(self) -> list[tuple[str, int | None, list[ProducerBatch]]]:
        """Return requests that may be sent now, as topic, broker and batches. ``answered`` takes each of them back."""
        requests = []
        with self._lock:
            for queue in list(self._topics.values()):
                while self._may_leave:
                    leaders = self._metadata.leaders(queue.name)
                    broker, batches = queue.take_request(self._options.max_request_size, leaders, self._has_room)
                    if not batches:
                        break
                    self._in_flight[broker] += 1
                    requests.append((queue.name, broker, batches))
                    # Put it at the end, so that the others come first next time.
                    self._topics[queue.name] = self._topics.pop(queue.name)
                if queue.open is not None and not self._backed_up(queue):
                    self._wake_for(queue.open)
        return requests

    def release(self, topic: str, partitions: Iterable[int]) -> None:
        """Release partitions of a request that are done while others are not: more for them may leave."""
        with self._lock:
            self._topic(topic).release(partitions)

    def divided(self, broker: int | None) -> None:
        """Count one more request for ``broker``: one was divided because its partitions have several leaders now."""
        with self._lock:
            self._in_flight[broker] += 1

    def answered(self, topic: str, broker: int | None, partitions: Iterable[int]) -> None:
        """Note that a request is done; ``partitions`` are those that were not released before."""
        with self._lock:
            self._in_flight[broker] -= 1
            self._topic(topic).release(partitions)

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def complete(
        self,
        outcome: Outcome,
        rows: np.ndarray,
        partition: int = -1,
        base_offset: int = -1,
        error: LogStoreError | None = None,
    ) -> None:
        """Complete rows as ``Outcome.complete`` does. After the last row and its callbacks the memory is freed."""
        if not len(rows):
            return
        if error is not None:
            with self._lock:
                self._incomplete.failed(error)
        is_last, raised = outcome.complete(rows, partition, base_offset, error)
        if not is_last and raised is None:
            return
        with self._lock:
            self._incomplete.failed(raised)
            if is_last:
                self._incomplete.remove(outcome)
                self._free_memory(outcome.size)

    def begin_flush(self) -> tuple[list[ClosedBatch], int]:
        """Close all open batches; return them with the number for ``await_flush``."""
        with self._lock:
            closed = [batch for queue in self._topics.values() if (batch := self._close(queue))]
            return closed, self._incomplete.last_number

    def await_flush(self, number: int, timeout: float | None) -> None:
        """Wait as ``IncompleteBatches.wait`` does."""
        with self._lock:
            self._incomplete.wait(number, timeout)

    def close(self, why: str) -> tuple[list[ClosedBatch], list[ProducerBatch]]:
        """Queue nothing any more and wake all waiting threads.

        The caller completes the returned batches, which were not sent; those that another thread is splitting are not
        among them.
        """
        with self._lock:
            self.closed = why
            batches: list[ClosedBatch] = []
            parts: list[ProducerBatch] = []
            for queue in self._topics.values():
                if batch := self._close(queue):
                    batch.claimed = False
                unsplit, waiting = queue.drop_all()
                batches += unsplit
                parts += waiting
            self._changed.notify_all()
        return batches, parts

    # ---- under the lock ----------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> TopicQueue:
        queue = self._topics.get(name)
        if queue is None:
            queue = self._topics[name] = TopicQueue(name, self._options.delivery_timeout_ms / 1000)
        return queue

    def _close(self, queue: TopicQueue) -> ClosedBatch | None:
        """Close the open batch, if there is one; the caller has it split."""
        batch = queue.open
        if batch is None:
            return None
        queue.open = None
        del self._open[queue.name]
        if not batch.flat:
            # The batch is still empty: its first record has yet to join.
            self._incomplete.remove(batch.outcome)
            self._free_memory(batch.reserved)
            return None
        self._free_memory(batch.give_back_room())
        batch.outcome.size = batch.reserved
        batch.outcome.close(len(batch), batch.callbacks())
        return queue.enqueue(batch.outcome, batch.columns, batch.since)

    def _close_due(self, now: float) -> list[ClosedBatch]:
        """Close batches that have lingered; set ``_wake_at`` to the time of the next look."""
        due = []
        self._wake_at = now + 3600
        for name, batch in list(self._open.items()):
            queue = self._topics[name]
            end = batch.since + self._options.linger_ms / 1000
            if not batch.flat:
                # It was opened a moment ago, and its first record is about to join.
                end = max(end, now + _GRACE_SECONDS)
            if self._backed_up(queue):
                # It could not leave; `drain` wakes this thread when it can.
                continue
            if queue.has_waiting:
                end = max(end, batch.since + _BEHIND_OTHERS_SECONDS)
            if now >= end and len(batch) > _SMALL_BATCH_RECORDS:
                self._free_memory(batch.give_back_room())
                end += _GRACE_SECONDS
            if now >= end and (closed := self._close(queue)):
                due.append(closed)
            else:
                self._wake_at = min(self._wake_at, end)
        return due

    def _backed_up(self, queue: TopicQueue) -> bool:
        """Return True if a batch closed now would wait behind others, whatever partitions its records are for."""
        return queue.is_unsplit or (queue.has_waiting and not (self._may_leave and queue.has_free_partition))

    def _has_room(self, broker: int | None) -> bool:
        """Return True if ``broker`` may get another request."""
        return self._in_flight[broker] < self._options.max_in_flight_requests_per_connection

    @property
    def _may_leave(self) -> bool:
        """True if a broker may have room for a request."""
        return sum(not self._has_room(broker) for broker in self._in_flight) < self._metadata.destinations

    def _wake_for(self, batch: OpenBatch) -> None:
        """Wake the lingering thread in time to close ``batch``."""
        if batch.since + self._options.linger_ms / 1000 < self._wake_at:
            self._changed.notify_all()

    def _take_memory(self, size: int) -> None:
        """Take ``size`` bytes of the buffer, after waiting for them."""
        limit = self._options.buffer_memory
        if size > limit:
            raise RequestTooLargeError(f"{size} bytes do not fit into buffer_memory = {limit}: raise it, or send less")

        def possible() -> bool:
            return bool(self.closed) or self._reserved_bytes + size <= limit

        if not possible():
            # Batches that are not full hold more than they need.
            for batch in self._open.values():
                self._free_memory(batch.give_back_room())
        if not self._changed.wait_for(possible, self._options.max_block_ms / 1000):
            raise ThrottledError(
                f"buffer_memory = {limit} bytes are full for max_block_ms = {self._options.max_block_ms}: nothing was "
                "queued. Send more slowly, or raise one of them"
            )
        self.check_open()
        self._reserved_bytes += size

    def _free_memory(self, size: int) -> None:
        self._reserved_bytes -= size
        self._changed.notify_all()
