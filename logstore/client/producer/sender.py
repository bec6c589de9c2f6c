"""The threads of a producer: they split closed batches by partition, look up partitions, send requests, and complete
outcomes.

The thread that closes a batch also splits it. That is often the program's own: another would have to take the GIL from
it for every step. The producer's threads close batches that have lingered (``logstore-producer``), and send requests
and wait for responses (``logstore-producer-1`` and on, as many as are busy at once).

The queued records and their lock belong to the ``RecordAccumulator``; nothing here runs under that lock. The sender's
own lock is taken before that one, and held from when work is taken out of the accumulator until a thread has it, so
that a stop comes before or after.

Invariant: every record that is taken out of the accumulator is completed, whatever happens to it.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pyarrow as pa

from logstore.client.cluster_metadata import ClusterMetadata
from logstore.client.metadata import TopicPartitions
from logstore.client.producer.delivery import Outcome
from logstore.client.producer.options import ProducerOptions
from logstore.client.producer.partitioner import Partitioner
from logstore.client.producer.produce_request import ProduceRequest
from logstore.client.producer.produce_requests import ProduceRequests, as_log_store_error
from logstore.client.producer.producer_batch import ProducerBatch, split
from logstore.client.producer.record_accumulator import RecordAccumulator
from logstore.client.producer.retries import Retries
from logstore.client.producer.topic_queue import ClosedBatch
from logstore.client.transport import Transport, quote_name
from logstore.errors import (
    LeaderNotAvailableError,
    LogStoreError,
    RequestTimedOutError,
    UnknownPartitionError,
    UnknownTopicError,
)

# Seconds that the threads may take to notice that they have to end.
_END_SECONDS = 10.0


class Sender:
    """Sends the records in ``accumulator`` over ``transport``, to the brokers that ``metadata`` names."""

    def __init__(
        self,
        accumulator: RecordAccumulator,
        transport: Transport,
        metadata: ClusterMetadata,
        options: ProducerOptions,
    ) -> None:
        self._accumulator = accumulator
        self._transport = transport
        self._metadata = metadata
        self._options = options
        self._retries = Retries(options)
        self._requests = ProduceRequests(
            transport, metadata, options, self._retries, self._complete, self.find_partitions
        )
        self._partitioner = Partitioner(options.partitioner)
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._linger_thread: threading.Thread | None = None
        self._request_threads: list[threading.Thread] = []

    @property
    def threads(self) -> list[threading.Thread]:
        """The threads that were started."""
        return self._request_threads + ([self._linger_thread] if self._linger_thread else [])

    def start(self) -> None:
        """Begin to close batches that have lingered. May be called again. Raises InvalidRequestError after ``stop``."""
        self._accumulator.check_open()
        if self._linger_thread is None:
            with self._lock:
                if self._linger_thread is None:
                    self._linger_thread = _start(self._close_in_time, "logstore-producer")

    def split(self, batch: ClosedBatch) -> None:
        """Split ``batch`` by partition, and send the requests that may be sent; look up unknown partitions."""
        if batch.partitions:
            parts = self._parts(batch, batch.partitions)
            if parts is not None:
                self._add_parts(batch, parts)
            elif not self._accumulator.put_back(batch):
                self._fail(batch.outcome, np.arange(batch.outcome.count), _closed_before())
        with self._lock:
            if self._accumulator.begin_asking(batch.outcome.topic):
                self._run(partial(self._ask_for_partitions, batch.outcome.topic))

    def find_partitions(
        self, topic: str, give_up: float, outcomes: Iterable[Outcome] = (), *, was_made: bool = False
    ) -> TopicPartitions:
        """Look up the partitions of ``topic`` until ``give_up`` (monotonic). ``outcomes`` are those of ``Retries.ask``.

        ``was_made`` is set if the topic exists, though other brokers may not know it yet.
        """

        def once(timeout_s: float) -> TopicPartitions:
            quote_name(topic)
            found = self._metadata.find([topic], timeout_s=timeout_s)[topic]
            if isinstance(found, TopicPartitions):
                return found
            if isinstance(found, UnknownTopicError) and was_made and self._metadata.is_cluster:
                raise LeaderNotAvailableError(found.message)
            raise found

        found = self._retries.ask(once, give_up, outcomes)
        self._accumulator.set_partitions(topic, found)
        return found

    def stop(self, why: str) -> None:
        """Close the accumulator, and end the threads and their waits. Records that were not sent fail."""
        batches, parts = self._accumulator.close(why)
        self._retries.stop()
        for part in parts:
            self._complete(part, -1, _closed_before())
        for batch in batches:
            self._fail(batch.outcome, np.arange(batch.outcome.count), _closed_before())
        self._transport.close()
        with self._lock:
            for _ in self._request_threads:
                self._jobs.put(None)
        give_up = time.monotonic() + _END_SECONDS
        for thread in self.threads:
            thread.join(max(0.0, give_up - time.monotonic()))

    # ---- by partition ------------------------------------------------------------------------------------------------

    def _parts(
        self, batch: ClosedBatch, among: TopicPartitions, *, sent: int = 0, certain: bool = False
    ) -> list[ProducerBatch] | None:
        """Return ``batch`` split by partition, without the first ``sent`` records.

        Returns None if a record names a partition that is not known, unless ``certain``.
        """
        outcome, count = batch.outcome, among.count
        rows = np.arange(sent, outcome.count)
        try:
            columns, named = batch.columns()
            if sent:
                columns, named = columns.slice(sent), None if named is None else named[sent:]
            if named is not None and (unknown := named >= count).any():
                if not certain:
                    return None
                error = UnknownPartitionError(
                    f"Partition {named[unknown][0]} not found: topic {outcome.topic!r} has {count}, from 0"
                )
                self._fail(outcome, rows[unknown], error)
                known = np.flatnonzero(~unknown)
                rows, columns, named = rows[known], columns.take(pa.array(known)), named[known]
            if not len(rows):
                return []
            return split(
                outcome,
                columns,
                self._partitioner.partition(outcome.topic, columns, named, count),
                rows,
                chosen_among=among,
                deadline=batch.deadline,
                codec=self._options.codec,
                max_bytes=self._options.max_request_size,
            )
        except Exception as failed:  # noqa: BLE001 (a bug here must not leave others waiting)
            self._fail(outcome, rows, as_log_store_error(outcome.topic, failed))
            return []

    def _add_parts(self, batch: ClosedBatch, parts: list[ProducerBatch]) -> None:
        if self._accumulator.add_parts(batch, parts):
            self._send_requests()
        else:
            for part in parts:
                self._complete(part, -1, _closed_before())

    # ---- the threads -------------------------------------------------------------------------------------------------

    def _close_in_time(self) -> None:
        while (due := self._accumulator.wait_for_due()) is not None:
            for batch in due:
                self.split(batch)

    def _send_requests(self) -> None:
        """Send requests as long as there are any."""
        with self._lock:
            for topic, broker, batches in self._accumulator.drain():
                self._run(partial(self._deliver, topic, broker, ProduceRequest.of(topic, batches)))

    def _deliver(self, topic: str, broker: int | None, requests: list[ProduceRequest]) -> None:
        """Send ``requests`` and report their results. They are counted as requests for ``broker``."""
        unanswered = {partition for request in requests for partition in request.partitions}

        def release(partitions: set[int]) -> None:
            """Release partitions that are done, because others may take long."""
            if released := partitions & unanswered:
                unanswered.difference_update(released)
                self._accumulator.release(topic, released)
                self._send_requests()

        def elsewhere(part: ProduceRequest) -> bool:
            with self._lock:
                if self._accumulator.closed:
                    return False  # the threads are ending, so this one does it
                unanswered.difference_update(part.partitions)
                self._accumulator.divided(broker)
                self._run(partial(self._deliver, topic, broker, [part]))
            return True

        self._requests.send(requests, release, elsewhere)
        self._accumulator.answered(topic, broker, unanswered)
        self._send_requests()

    def _ask_for_partitions(self, topic: str) -> None:
        """Look up the partitions, and split the batches that wait for them."""
        if not self._accumulator.has_unsplit(topic):
            # The known partitions may still be right: requests will show it.
            with contextlib.suppress(LogStoreError):
                self.find_partitions(topic, time.monotonic() + self._options.request_timeout_ms / 1000)
        while (batch := self._accumulator.next_unsplit(topic)) is not None:
            self._add_parts(batch, self._asked_parts(batch))
        self._send_requests()

    def _asked_parts(self, batch: ClosedBatch) -> list[ProducerBatch]:
        outcome = batch.outcome
        sent = 0
        try:
            found: TopicPartitions | None
            try:
                found = self.find_partitions(outcome.topic, batch.deadline, [outcome])
            except UnknownTopicError:
                if callable(self._options.partitioner):
                    # Without any known partitions the batches cannot be split.
                    raise
                found = None
            # This is outside the except clause, so that an error here is raised by itself.
            if found is None:
                columns, named = batch.columns()
                partition = None if named is None or named[0] < 0 else int(named[0])
                first = columns.slice(0, 1)
                place = self._requests.send_first(outcome, first, partition, batch.deadline)
                sent = 1
                self._accumulator.complete(outcome, np.arange(1), *place)
                found = self.find_partitions(outcome.topic, batch.deadline, [outcome], was_made=True)
        except LogStoreError as error:
            self._fail(outcome, np.arange(sent, outcome.count), error)
            return []
        return self._parts(batch, found, sent=sent, certain=True) or []

    def _run(self, job: Callable[[], None]) -> None:
        """Run ``job`` in an idle thread, or in a new one. The caller holds the lock."""
        started = len(self._request_threads)
        most = self._metadata.destinations * self._options.max_in_flight_requests_per_connection
        if started < min(self._accumulator.in_flight, most):
            self._request_threads.append(_start(self._work, f"logstore-producer-{started + 1}"))
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    # ---- outcomes ----------------------------------------------------------------------------------------------------

    def _complete(self, batch: ProducerBatch, base_offset: int, error: LogStoreError | None) -> None:
        for each in batch.batches:
            if error is None:
                self._accumulator.complete(each.outcome, each.rows, each.partition, base_offset)
            else:
                self._fail(each.outcome, each.rows, error, each.partition)
            if base_offset >= 0:
                base_offset += len(each.rows)

    def _fail(self, outcome: Outcome, rows: np.ndarray, error: LogStoreError, partition: int = -1) -> None:
        if isinstance(error, (UnknownPartitionError, UnknownTopicError)):
            # The topic was deleted, or created again: the next batch looks its partitions up.
            self._accumulator.set_partitions(outcome.topic, None)
        self._accumulator.complete(outcome, rows, partition, error=error)


def _start(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _closed_before() -> RequestTimedOutError:
    return RequestTimedOutError("The producer was closed before this was sent: it is not stored")
