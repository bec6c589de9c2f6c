"""Write records over HTTP in Arrow: buffered, sent in order by one thread of its own.

Invariants:

- Batches go out one at a time in the order of ``send``, so that records of one topic and partition keep their order.
- A batch is sent again only when it is certain that nothing of it was stored (see ``transport``). When the answer is
  lost its records fail as "unknown", and later ones still go out.
- Waiting records never take more than ``buffer_bytes``: past it ``send`` blocks.
- No failure is silent: ``flush`` and ``close`` raise the first one since the last ``flush``.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

import numpy as np
import pyarrow as pa

from logstore.client.addresses import DEFAULT_URL
from logstore.client.batch_sender import Acks, BatchSender
from logstore.client.delivery import BatchDelivery, Delivery, Outcome
from logstore.client.record_columns import Bytes, Columns, Headers, RecordBuffer, check_record, from_columns, to_bytes
from logstore.client.transport import Transport
from logstore.errors import (
    InvalidRequestError,
    LogStoreError,
    RequestTimedOutError,
    RequestTooLargeError,
    ThrottledError,
)
from logstore.limits import MIB, RECORD_OVERHEAD_BYTES, REQUEST_RECORDS_MAX

_Columns = tuple[pa.RecordBatch, np.ndarray | None]


@dataclass(slots=True)
class _Open:
    """Records of one topic that may still grow."""

    outcome: Outcome
    since: float
    buffer: RecordBuffer = field(default_factory=RecordBuffer)


@dataclass(frozen=True, slots=True)
class _Closed:
    """A batch on its way. ``size``: bytes that it takes of the buffer; ``since``: when its first record came."""

    outcome: Outcome
    columns: Callable[[], _Columns]
    size: int
    since: float


class Producer:
    """Sends records to the store of ``bootstrap`` (``http(s)://host:port`` or ``host:port``, separated by commas).

    A batch leaves when it has ``batch_bytes`` or its first record has waited ``linger_ms``. ``acks``: ``all`` and 1
    answer when the records are durable, 0 before. ``compression`` is Arrow's own (lz4, zstd). ``buffer_bytes`` bounds
    what waits; ``send`` blocks up to ``max_block_s`` for room. ``delivery_timeout_s`` bounds how long a batch is
    tried, from its first record on. May be used by several threads; a context manager, which flushes.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_URL,
        *,
        client_id: str | None = None,
        acks: Acks = "all",
        compression: Literal["lz4", "zstd"] | None = None,
        linger_ms: float = 5,
        batch_bytes: int = MIB,
        buffer_bytes: int = 32 * MIB,
        max_block_s: float = 60.0,
        request_timeout_s: float = 30.0,
        delivery_timeout_s: float = 120.0,
    ) -> None:
        self._transport = Transport(bootstrap, client_id=client_id, request_timeout_s=request_timeout_s)
        self._sender = BatchSender(
            self._transport, acks=acks, compression=compression, request_timeout_s=request_timeout_s
        )
        self._linger_s = linger_ms / 1000
        self._batch_bytes, self._buffer_bytes = batch_bytes, buffer_bytes
        self._max_block_s, self._delivery_timeout_s = max_block_s, delivery_timeout_s
        # All below is guarded by this condition.
        self._changed = threading.Condition()
        self._open: dict[str, _Open] = {}
        self._closed: deque[_Closed] = deque()
        self._waiting_bytes = 0
        self._batches_begun = self._batches_settled = 0
        self._first_failure: LogStoreError | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="logstore-producer", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        value: Bytes,
        key: Bytes = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Delivery:
        """Queue one record; text is stored as UTF-8, ``value`` None is a tombstone.

        Without ``partition`` the key decides (murmur2, as Kafka's default partitioner), without a key each request
        goes to one partition. ``timestamp_ms`` None is the time of the append. Raises InvalidRecordError,
        RequestTooLargeError (more than the buffer), ThrottledError (no room within ``max_block_s``),
        InvalidRequestError (closed).
        """
        value, key = to_bytes(value, "value"), to_bytes(key, "key")
        size = (
            check_record(partition, timestamp_ms, headers) + len(value or b"") + len(key or b"") + RECORD_OVERHEAD_BYTES
        )
        with self._changed:
            self._take_room(size)
            opened = self._open.get(topic)
            if opened is None:
                opened = self._open[topic] = _Open(Outcome(topic), time.monotonic())
                self._batches_begun += 1
                self._changed.notify_all()
            row = len(opened.buffer)
            opened.buffer.append(value, key, -1 if partition is None else partition, timestamp_ms, headers, size)
            if opened.buffer.size >= self._batch_bytes or row + 1 >= REQUEST_RECORDS_MAX:
                self._close_batch(topic)
            return Delivery(opened.outcome, row)

    def send_batch(self, topic: str, columns: Columns) -> BatchDelivery:
        """Queue many records at once, after those already queued for ``topic``.

        ``columns`` is a pyarrow RecordBatch or Table, or a mapping of names to values: ``value`` and optionally
        ``key``, ``timestamp``, ``headers``, ``partition`` (null or -1: not named). Raises as ``send``.
        """
        batch, named = from_columns(columns)
        size = batch.nbytes + RECORD_OVERHEAD_BYTES * batch.num_rows
        outcome = Outcome(topic)
        if not batch.num_rows:
            raise InvalidRequestError("A batch without records: there is nothing to send.")
        with self._changed:
            self._take_room(size)
            if topic in self._open:
                self._close_batch(topic)
            self._batches_begun += 1
            self._closed.append(_Closed(outcome, lambda: (batch, named), size, time.monotonic()))
            self._changed.notify_all()
        return BatchDelivery(outcome)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything queued so far is stored, or has failed: raises the first failure since the last flush.

        RequestTimedOutError when ``timeout_s`` run out first.
        """
        with self._changed:
            for topic in list(self._open):
                self._close_batch(topic)
            target = self._batches_begun
            if not self._changed.wait_for(lambda: self._batches_settled >= target, timeout_s):
                raise RequestTimedOutError(
                    f"{target - self._batches_settled} batches are not delivered after {timeout_s} s."
                )
            failure, self._first_failure = self._first_failure, None
        if failure:
            raise failure

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, then stop. What is not delivered within ``timeout_s`` fails. Raises as ``flush``; twice does
        nothing.
        """
        try:
            self.flush(timeout_s)
        finally:
            with self._changed:
                self._stopping = True
                self._changed.notify_all()
            self._transport.stop_retrying()
            # Past the time it may still wait for an answer; it ends with that.
            self._thread.join(timeout_s)
            if not self._thread.is_alive():
                self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            # After an error of the program's own there is no time to wait for a store that does not answer.
            self.close(None if kind is None else 1.0)
        except LogStoreError:
            # The program's own error is the one to see.
            if kind is None:
                raise

    def _take_room(self, size: int) -> None:
        """Wait for ``size`` bytes of the buffer."""
        if size > self._buffer_bytes:
            raise RequestTooLargeError(
                f"{size} bytes do not fit into a buffer of {self._buffer_bytes}: raise buffer_bytes."
            )

        def possible() -> bool:
            return self._stopping or self._waiting_bytes + size <= self._buffer_bytes

        if not possible():
            for topic in list(self._open):
                self._close_batch(topic)
        if not self._changed.wait_for(possible, self._max_block_s):
            raise ThrottledError(
                f"The buffer of {self._buffer_bytes} bytes is full for {self._max_block_s} s: nothing was queued. "
                "Send less at a time, or raise buffer_bytes."
            )
        if self._stopping:
            raise InvalidRequestError("The producer is closed.")
        self._waiting_bytes += size

    def _close_batch(self, topic: str) -> None:
        opened = self._open.pop(topic)
        self._closed.append(_Closed(opened.outcome, opened.buffer.columns, opened.buffer.size, opened.since))
        self._changed.notify_all()

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            failure = self._deliver(batch)
            with self._changed:
                self._waiting_bytes -= batch.size
                self._batches_settled += 1
                self._first_failure = self._first_failure or failure
                self._changed.notify_all()

    def _next(self) -> _Closed | None:
        """The next batch to send; None when there will be none."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                waits = {topic: opened.since + self._linger_s - now for topic, opened in self._open.items()}
                for topic, wait in waits.items():
                    if wait <= 0 or self._stopping:
                        self._close_batch(topic)
                if self._closed:
                    break
                if self._stopping:
                    return None
                self._changed.wait(min(waits.values(), default=None))
            return self._closed.popleft()

    def _deliver(self, batch: _Closed) -> LogStoreError | None:
        """Settle the batch, whatever happens: who waits for it must not wait for ever."""
        nothing = (np.empty(0, np.int32), np.empty(0, np.int64))
        try:
            if self._stopping:
                raise RequestTimedOutError("The producer was closed before this was sent: it is not stored.")
            columns, named = batch.columns()
            self._sender.send(batch.outcome, columns, named, batch.since + self._delivery_timeout_s)
        except LogStoreError as error:
            batch.outcome.settle(*nothing, [(0, REQUEST_RECORDS_MAX, error)])
        except Exception as error:  # noqa: BLE001 (a bug here must not leave others waiting)
            failed = LogStoreError(f"Sending to topic {batch.outcome.topic!r} failed: {error!r}")
            batch.outcome.settle(*nothing, [(0, REQUEST_RECORDS_MAX, failed)])
        return batch.outcome.failures[0][2] if batch.outcome.failures else None
