"""Write records over HTTP in Arrow: collected by ``send``, sent by threads of the producer's own.

The thread that fills a batch also cuts it into partitions: another would have to take the interpreter from it for every
step. The producer's own threads send requests and wait for answers (``logstore-producer-1`` and on), and one closes
batches whose ``linger_ms`` are over (``logstore-producer``).

Invariants:

- Records of one topic and partition are stored in the order of ``send``: of each partition one request at a time is on
  its way, and it is settled before the next one leaves (``topic_queue``).
- What waits never takes more than ``buffer_memory``: past it ``send`` blocks. A batch takes room when it is opened.
- No failure is silent: ``flush`` and ``close`` raise the first one since the last ``flush``.
"""

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from logstore.client.addresses import DEFAULT_URL
from logstore.client.delivery import BatchDelivery, Delivery, OnDelivery, Outcome
from logstore.client.metadata import TopicDescription, decode
from logstore.client.partition_choice import PartitionChoice
from logstore.client.producer_options import (
    DEFAULT_BATCH_SIZE,
    DEFAULT_BUFFER_MEMORY,
    DEFAULT_MAX_REQUEST_SIZE,
    RETRIES_MAX,
    Acks,
    Compression,
    Partitioner,
    ProducerOptions,
    Serializer,
)
from logstore.client.record_columns import (
    Columns,
    Headers,
    check_extras,
    from_columns,
    to_bytes,
)
from logstore.client.record_messages import Piece, cut
from logstore.client.request_sender import RequestSender, as_log_store_error
from logstore.client.topic_queue import ClosedBatch, ColumnsAndPartitions, OpenBatch, TopicQueue
from logstore.client.transport import Transport, topic_path
from logstore.errors import (
    InvalidRequestError,
    LogStoreError,
    RecordTooLargeError,
    RequestTimedOutError,
    RequestTooLargeError,
    SerializationError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.limits import RECORD_OVERHEAD_BYTES

# A batch of more records is closed by the thread that fills it, if that comes back within the time below. numpy gives
# the interpreter away in operations on more than 500 numbers, and who computes gives it back 5 ms later.
_SMALL_BATCH_RECORDS = 500
_GRACE_SECONDS = 0.002
# How long the threads may take to see that they are to end.
_END_SECONDS = 10.0

_CLOSED_BEFORE = "The producer was closed before this was sent: it is not stored"

_producers: "weakref.WeakSet[Producer]" = weakref.WeakSet()


class Producer:
    """Sends records to the store of ``bootstrap`` (``http(s)://host:port`` or ``host:port``, separated by commas).

    The options are those of Kafka's producer, by its names; ``docs/python-client.md`` has a table of them. May be used
    by several threads, not across a fork. A context manager, which flushes. Raises InvalidConfigError naming the
    option that is wrong, InvalidRequestError for ``bootstrap``.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_URL,
        *,
        client_id: str | None = None,
        acks: Acks = "all",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        linger_ms: float = 5,
        batch_size: int = DEFAULT_BATCH_SIZE,
        buffer_memory: int = DEFAULT_BUFFER_MEMORY,
        max_block_ms: float = 60_000,
        compression_type: Compression | None = None,
        retries: int = RETRIES_MAX,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 1_000,
        delivery_timeout_ms: float = 120_000,
        max_in_flight_requests_per_connection: int = 5,
        request_timeout_ms: float = 30_000,
        max_request_size: int = DEFAULT_MAX_REQUEST_SIZE,
        metadata_max_age_ms: float = 300_000,
        partitioner: Partitioner = "murmur2",
        enable_idempotence: bool | None = None,
    ) -> None:
        self._options = ProducerOptions(
            client_id=client_id,
            acks=acks,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            linger_ms=linger_ms,
            batch_size=batch_size,
            buffer_memory=buffer_memory,
            max_block_ms=max_block_ms,
            compression_type=compression_type,
            retries=retries,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            max_in_flight_requests_per_connection=max_in_flight_requests_per_connection,
            request_timeout_ms=request_timeout_ms,
            max_request_size=max_request_size,
            metadata_max_age_ms=metadata_max_age_ms,
            partitioner=partitioner,
            enable_idempotence=enable_idempotence,
        )
        self._serializes = key_serializer is not None or value_serializer is not None
        self._transport = Transport(bootstrap, client_id=client_id, request_timeout_s=request_timeout_ms / 1000)
        self._sender = RequestSender(self._transport, self._options, self._settle)
        self._threads: list[threading.Thread] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unusable = ""
        self._begin()
        _producers.add(self)

    def _begin(self) -> None:
        # All below is guarded by the lock; who waits for a change of it waits for the condition.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._topics: dict[str, TopicQueue] = {}
        # The fast way of `send` to the open batch of a topic.
        self._open: dict[str, OpenBatch] = {}
        self._on_their_way = 0
        self._reserved_bytes = 0
        # By rising number: what is not settled, or whose callbacks have not all been called.
        self._unsettled: dict[Outcome, int] = {}
        self._outcomes = 0
        self._wake_at = 0.0
        self._first_failure: Exception | None = None

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Queue one record: a future of where it is stored.

        ``value`` and ``key`` go through their serializers, if there are any, then are bytes or text (stored as UTF-8);
        ``value`` None is a tombstone. ``headers`` are pairs or a mapping of text to bytes. Without ``partition`` the
        ``partitioner`` decides. ``timestamp_ms`` None is the time of the append. ``on_delivery(error, metadata)`` is
        called from a thread of the producer, one of the two None.

        Raises SerializationError, InvalidRecordError, RecordTooLargeError (over ``max_request_size``), ThrottledError
        (no room within ``max_block_ms``), InvalidRequestError (closed); then nothing is queued.
        """
        if self._serializes:
            value = _serialize(self._options.value_serializer, value, "value", topic)
            key = _serialize(self._options.key_serializer, key, "key", topic)
        size = RECORD_OVERHEAD_BYTES
        if type(value) is not bytes:
            value = to_bytes(value, "value")
        if value is not None:
            size += len(value)
        if key is not None:
            if type(key) is not bytes:
                key = to_bytes(key, "key")
            size += len(key)
        extras = None
        if headers is not None or partition is not None or timestamp_ms is not None or on_delivery is not None:
            extras = check_extras(headers, partition, timestamp_ms, on_delivery)
            size += extras.header_bytes
        while True:
            with self._lock:
                batch = self._open.get(topic)
                if batch is not None and (room := batch.room - size) >= 0:
                    batch.room = room
                    flat = batch.flat
                    row = len(flat) // 3
                    flat += (value, key, extras)
                    return Delivery(batch.outcome, row)
            self._open_batch(topic, size)

    def send_batch(self, topic: str, columns: Columns) -> BatchDelivery:
        """Queue many records at once, after those already queued for ``topic``; a future of where they are stored.

        ``columns`` is a pyarrow RecordBatch or Table, or a mapping of names to values: ``value`` and optionally
        ``key``, ``timestamp``, ``headers``, ``partition`` (null or -1: not named). No serializer is applied. Raises
        InvalidRequestError, RequestTooLargeError (more than ``buffer_memory``), ThrottledError.
        """
        topic_path(topic)
        batch, named = from_columns(columns)
        if not batch.num_rows:
            raise InvalidRequestError("A batch without records: there is nothing to send")
        size = batch.nbytes + RECORD_OVERHEAD_BYTES * batch.num_rows
        earlier = None
        with self._lock:
            self._take_room(size)
            found = self._topic(topic)
            earlier = self._close_batch(found)
            outcome = Outcome(topic)
            outcome.size = size
            self._track(outcome)
            outcome.close(batch.num_rows)
            closed = self._enqueue(found, outcome, lambda: (batch, named), time.monotonic())
        if earlier:
            self._cut(found, earlier)
        self._cut(found, closed)
        return BatchDelivery(outcome)

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of ``topic``. Waits up to ``max_block_ms``; UnknownTopicError."""
        give_up = time.monotonic() + self._options.max_block_ms / 1000
        self._check_usable()
        count = self._ask_count(topic, give_up)
        with self._lock:
            self._know(self._topic(topic), count)
        return set(range(count))

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything queued so far is stored, or has failed, and all callbacks are called: raises the first
        failure since the last flush, or what a callback raised.

        RequestTimedOutError when ``timeout`` seconds run out first.
        """
        if threading.current_thread() in self._threads:
            raise InvalidRequestError("flush() and close() wait for callbacks, so that none of them may call it")
        with self._lock:
            closed = [(topic, batch) for topic in self._topics.values() if (batch := self._close_batch(topic))]
            last = self._outcomes
        for topic, batch in closed:
            self._cut(topic, batch)

        def all_settled() -> bool:
            # Dicts keep the order of insertion.
            return next(iter(self._unsettled.values()), last + 1) > last

        with self._changed:
            if not self._changed.wait_for(all_settled, timeout):
                raise RequestTimedOutError(f"{len(self._unsettled)} batches are not delivered after {timeout} s")
            failure, self._first_failure = self._first_failure, None
        if failure:
            raise failure

    def close(self, timeout: float | None = None) -> None:
        """Flush, then stop. What is not delivered within ``timeout`` seconds fails. Raises as ``flush``; twice does
        nothing.
        """
        if self._unusable:
            return
        try:
            self.flush(timeout)
        finally:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            # After an error of the program's own there is no time to wait for a store that does not answer.
            self.close(None if kind is None else 1.0)
        except Exception:
            # The program's own error is the one to see.
            if kind is None:
                raise

    # ---- from records to batches, under the lock unless said otherwise -----------------------------------------------

    def _open_batch(self, topic: str, size: int) -> None:
        """See to it that there is an open batch with room for ``size`` bytes, now at least. Not under the lock."""
        topic_path(topic)
        if size > self._options.max_request_size:
            raise RecordTooLargeError(
                f"A record of {size} bytes is over max_request_size = {self._options.max_request_size}"
            )
        full = None
        with self._lock:
            found = self._topic(topic)
            if found.open is not None:
                if found.open.room >= size:
                    return
                full = self._close_batch(found)
        if full:
            self._cut(found, full)
        with self._lock:
            if found.open is not None:
                return
            room = max(size, min(self._options.batch_size, self._options.buffer_memory))
            self._take_room(room)
            if found.open is not None:
                # Another thread was faster while this one waited.
                self._free(room)
                return
            found.open = self._open[topic] = OpenBatch(topic, room, time.monotonic())
            self._track(found.open.outcome)
            self._wake_for(found.open)

    def _close_batch(self, topic: TopicQueue) -> ClosedBatch | None:
        """No record joins the open batch any more, if there is one. The caller owes ``_cut``, without the lock."""
        batch = topic.open
        if batch is None:
            return None
        topic.open = None
        del self._open[topic.name]
        if not batch.flat:
            # It was opened for a record that has yet to join.
            del self._unsettled[batch.outcome]
            self._free(batch.reserved)
            return None
        batch.outcome.close(len(batch), batch.callbacks())
        batch.outcome.size = batch.reserved - batch.room
        self._free(batch.room)
        return self._enqueue(topic, batch.outcome, batch.columns, batch.since)

    def _enqueue(
        self, topic: TopicQueue, outcome: Outcome, columns: Callable[[], ColumnsAndPartitions], since: float
    ) -> ClosedBatch:
        deadline = since + self._options.delivery_timeout_ms / 1000
        batch = ClosedBatch(outcome, columns, deadline, topic.partition_count)
        topic.closed.append(batch)
        return batch

    def _take_room(self, size: int) -> None:
        """Wait for ``size`` bytes of the buffer."""
        limit = self._options.buffer_memory
        if size > limit:
            raise RequestTooLargeError(f"{size} bytes do not fit into buffer_memory = {limit}: raise it, or send less")

        def possible() -> bool:
            return bool(self._unusable) or self._reserved_bytes + size <= limit

        if not possible():
            # Batches that are not full hold more than they need.
            for batch in self._open.values():
                self._no_more(batch)
        if not self._changed.wait_for(possible, self._options.max_block_ms / 1000):
            raise ThrottledError(
                f"buffer_memory = {limit} bytes are full for max_block_ms = {self._options.max_block_ms}: nothing was "
                "queued. Send more slowly, or raise one of them"
            )
        self._check_usable()
        self._reserved_bytes += size
        if not self._threads:
            self._start(self._close_in_time, "logstore-producer")

    def _wake_for(self, batch: OpenBatch) -> None:
        """See to it that ``batch`` is closed in time."""
        if batch.since + self._options.linger_ms / 1000 < self._wake_at:
            self._changed.notify_all()

    def _no_more(self, batch: OpenBatch) -> None:
        """The next record finds no room: its thread closes the batch."""
        self._free(batch.room)
        batch.reserved -= batch.room
        batch.room = 0

    def _free(self, size: int) -> None:
        self._reserved_bytes -= size
        self._changed.notify_all()

    def _track(self, outcome: Outcome) -> None:
        self._outcomes += 1
        self._unsettled[outcome] = self._outcomes

    def _topic(self, name: str) -> TopicQueue:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = TopicQueue(name, PartitionChoice(self._options.partitioner))
        return found

    def _check_usable(self) -> None:
        if self._unusable:
            raise InvalidRequestError(self._unusable)

    # ---- from batches to requests, without the lock ------------------------------------------------------------------

    def _cut(self, topic: TopicQueue, batch: ClosedBatch) -> None:
        """Cut ``batch`` into partitions if it is known how many there are; else have somebody find out."""
        if batch.partition_count:
            pieces = self._pieces(topic, batch, batch.partition_count)
            if pieces is not None:
                self._hand_over(topic, batch, pieces)
                if time.monotonic() < topic.ask_again:
                    return
        with self._lock:
            if batch.partition_count and batch.pieces is None:
                batch.claimed = False
            if not topic.asking:
                topic.asking = True
                self._on_their_way += 1
                self._put(partial(self._find_out, topic))

    def _pieces(
        self, topic: TopicQueue, batch: ClosedBatch, count: int, *, sent: int = 0, certain: bool = False
    ) -> list[Piece] | None:
        """``batch`` by partition, without the first ``sent`` records; None when a record names a partition that there
        was not, unless ``certain``.
        """
        outcome = batch.outcome
        rows = np.arange(sent, outcome.count)
        try:
            columns, named = batch.columns()
            if sent:
                columns, named = columns.slice(sent), None if named is None else named[sent:]
            if named is not None and (unknown := named >= count).any():
                if not certain:
                    return None
                error = UnknownPartitionError(
                    f"Partition {named[unknown][0]} not found: topic {topic.name!r} has {count}, from 0"
                )
                self._settle_rows(outcome, rows[unknown], -1, -1, error)
                known = np.flatnonzero(~unknown)
                rows, columns, named = rows[known], columns.take(pa.array(known)), named[known]
            if not len(rows):
                return []
            return cut(
                outcome,
                columns,
                topic.choice.choose(columns, named, count),
                rows,
                deadline=batch.deadline,
                codec=self._options.codec,
                max_bytes=self._options.max_request_size,
            )
        except Exception as failed:  # noqa: BLE001 (a bug here must not leave others waiting)
            self._settle_rows(outcome, rows, -1, -1, as_log_store_error(topic.name, failed))
            return []

    def _hand_over(self, topic: TopicQueue, batch: ClosedBatch, pieces: list[Piece]) -> None:
        with self._lock:
            if not self._unusable:
                topic.cut(batch, pieces)
                self._dispatch()
                return
        self._fail(pieces)

    def _dispatch(self) -> None:
        """Give out requests while there are threads for them. Under the lock."""
        for topic in list(self._topics.values()):
            while self._on_their_way < self._options.max_in_flight_requests_per_connection:
                pieces = topic.take_request(self._options.max_request_size)
                if not pieces:
                    break
                self._on_their_way += 1
                self._put(partial(self._deliver, topic, pieces))
                # The others first, next time.
                self._topics[topic.name] = self._topics.pop(topic.name)
            if topic.open is not None and not topic.backed_up:
                self._wake_for(topic.open)

    def _put(self, job: Callable[[], None]) -> None:
        # One thread closes batches.
        if len(self._threads) <= min(self._on_their_way, self._options.max_in_flight_requests_per_connection):
            self._start(self._work, f"logstore-producer-{len(self._threads)}")
        self._jobs.put(job)

    def _start(self, run: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # ---- what the producer's threads do ------------------------------------------------------------------------------

    def _close_in_time(self) -> None:
        """Close batches whose linger is over."""
        linger_s = self._options.linger_ms / 1000
        while True:
            due: list[tuple[TopicQueue, ClosedBatch]] = []
            with self._changed:
                if self._unusable:
                    return
                now = time.monotonic()
                self._wake_at = now + 3600
                for name, batch in list(self._open.items()):
                    topic = self._topics[name]
                    end = batch.since + linger_s
                    if not batch.flat:
                        # Opened a moment ago: its first record is about to join.
                        end = max(end, now + _GRACE_SECONDS)
                    if topic.backed_up:
                        # It could not leave; `_deliver` wakes us when it can.
                        continue
                    if now >= end and len(batch) > _SMALL_BATCH_RECORDS:
                        self._no_more(batch)
                        end += _GRACE_SECONDS
                    if now >= end and (closed := self._close_batch(topic)):
                        due.append((topic, closed))
                        continue
                    self._wake_at = min(self._wake_at, end)
                if not due:
                    self._changed.wait(self._wake_at - now)
            for topic, closed in due:
                self._cut(topic, closed)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _deliver(self, topic: TopicQueue, pieces: list[Piece]) -> None:
        self._sender.send(topic.name, pieces)
        with self._lock:
            self._on_their_way -= 1
            topic.answered(pieces)
            self._dispatch()

    def _find_out(self, topic: TopicQueue) -> None:
        """Ask how many partitions there are, and cut the batches that wait for it."""
        asked = False
        while True:
            with self._lock:
                batch = next((b for b in topic.closed if not b.claimed), None)
                if batch is None and (asked or time.monotonic() < topic.ask_again):
                    topic.asking = False
                    self._on_their_way -= 1
                    self._dispatch()
                    return
                if batch is not None:
                    batch.claimed = True
            asked = True
            if batch is not None:
                self._hand_over(topic, batch, self._find_out_for(topic, batch))
                continue
            try:
                count = self._ask_count(topic.name, time.monotonic() + self._options.request_timeout_ms / 1000)
            except LogStoreError:
                # What is known may well be true still; requests will tell.
                continue
            with self._lock:
                self._know(topic, count)

    def _find_out_for(self, topic: TopicQueue, batch: ClosedBatch) -> list[Piece]:
        sent = 0
        try:
            try:
                count = self._ask_count(topic.name, batch.deadline)
            except UnknownTopicError:
                if callable(self._options.partitioner):
                    # What is not known it cannot be asked.
                    raise
                columns, named = batch.columns()
                partition = None if named is None or named[0] < 0 else int(named[0])
                place = self._sender.send_first(topic.name, columns.slice(0, 1), partition, batch.deadline)
                sent = 1
                self._settle_rows(batch.outcome, np.arange(1), *place, None)
                count = self._ask_count(topic.name, batch.deadline)
        except LogStoreError as error:
            self._settle_rows(batch.outcome, np.arange(sent, batch.outcome.count), -1, -1, error)
            return []
        with self._lock:
            self._know(topic, count)
        return self._pieces(topic, batch, count, sent=sent, certain=True) or []

    def _ask_count(self, topic: str, give_up: float) -> int:
        answer = self._sender.ask(
            lambda timeout_s: self._transport.request_once("GET", topic_path(topic), timeout_s=timeout_s), give_up
        )
        return len(decode(answer.content, TopicDescription).partitions)

    def _know(self, topic: TopicQueue, count: int) -> None:
        topic.partition_count = count
        topic.ask_again = time.monotonic() + self._options.metadata_max_age_ms / 1000

    # ---- what became of it -------------------------------------------------------------------------------------------

    def _settle(self, piece: Piece, base_offset: int, error: LogStoreError | None) -> None:
        self._settle_rows(piece.outcome, piece.rows, piece.partition, base_offset, error)

    def _settle_all(self, outcome: Outcome, error: LogStoreError) -> None:
        self._settle_rows(outcome, np.arange(outcome.count), -1, -1, error)

    def _settle_rows(
        self, outcome: Outcome, rows: np.ndarray, partition: int, base_offset: int, error: LogStoreError | None
    ) -> bool:
        """Whether the batch is done with it."""
        if not len(rows):
            return False
        if error is not None:
            with self._lock:
                self._first_failure = self._first_failure or error
                if isinstance(error, (UnknownPartitionError, UnknownTopicError)) and outcome.topic in self._topics:
                    # Deleted, or made anew with fewer partitions: the next batch asks again.
                    self._topics[outcome.topic].partition_count = 0
        if not outcome.settle(rows, partition, base_offset, error):
            return False
        raised = outcome.call_back()
        with self._lock:
            self._first_failure = self._first_failure or raised
            del self._unsettled[outcome]
            self._free(outcome.size)
        return True

    def _fail(self, pieces: list[Piece]) -> None:
        """Not sent, and there is nobody any more to send it."""
        for piece in pieces:
            self._settle(piece, -1, RequestTimedOutError(_CLOSED_BEFORE))

    def _stop(self) -> None:
        """End the threads, and what they wait for. What has not left fails."""
        with self._lock:
            self._unusable = "The producer is closed: make a new one"
            for topic in self._topics.values():
                if batch := self._close_batch(topic):
                    batch.claimed = False
            left = [topic.drop_all() for topic in self._topics.values()]
            self._changed.notify_all()
        self._sender.stop()
        for batches, pieces in left:
            self._fail(pieces)
            for batch in batches:
                self._settle_all(batch.outcome, RequestTimedOutError(_CLOSED_BEFORE))
        self._transport.close()
        for _ in self._threads:
            self._jobs.put(None)
        give_up = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, give_up - time.monotonic()))

    def _forked(self) -> None:
        """In a new process there are none of the threads, and nobody holds the lock."""
        if self._threads:
            self._unusable = "This producer was made before a fork: make one in each process"
        self._begin()


def _serialize(serializer: Serializer | None, given: Any, what: str, topic: str) -> Any:
    if serializer is None or given is None:
        return given
    try:
        return serializer(given)
    except Exception as error:
        raise SerializationError(
            f"{what}_serializer failed on a {what} for topic {topic!r}, nothing was queued: {error!r}"
        ) from error


def _after_fork() -> None:
    for producer in list(_producers):
        producer._forked()  # noqa: SLF001 (of this module)


os.register_at_fork(after_in_child=_after_fork)
