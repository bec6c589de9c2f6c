"""Deliveries of a producer's records: one outcome per batch, given record by record or as columns.

An outcome is completed part by part, as the responses for the partitions of its batch arrive. A record is done with its
part, even while other partitions wait; the batch is done when no record is left. Offsets are computed only on request.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from logstore.errors import LogStoreError, RequestTimedOutError


class RecordMetadata(NamedTuple):
    """The place of a record. ``offset`` is -1 if the store does not report it: with ``acks=0``, and for a repeated
    record that was stored so long ago that the store does not remember its offset.
    """

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """The places of a batch's records, in the order sent: ``partitions`` int32, ``offsets`` int64 (-1: unknown)."""

    topic: str
    partitions: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)


_NO_ROWS = np.empty(0, np.int32)
# Used in place of a row: the whole batch.
_ALL = -1

#: Called with (error, None) or (None, the record's place) from a thread of the producer.
OnDelivery: TypeAlias = Callable[[LogStoreError | None, RecordMetadata | None], object]


class _Part(NamedTuple):
    """Rows of an outcome in one partition: rising, and with consecutive offsets from ``base_offset`` (-1: unknown).
    ``partition`` is -1 if none was chosen.
    """

    rows: np.ndarray
    partition: int
    base_offset: int
    error: LogStoreError | None


class Outcome:
    """The outcome of the records of one batch. The thread that completes records also calls their callbacks."""

    def __init__(self, topic: str, size: int = 0) -> None:
        self.topic = topic
        #: Bytes of the buffer that the batch occupies.
        self.size = size
        self.count = 0
        #: The error because of which the records are sent again. It is the reason given if a wait ends first.
        self.last_error: LogStoreError | None = None
        self._changed = threading.Condition(threading.Lock())
        self._left = 0
        self._done = False
        self._parts: list[_Part] = []
        # The index in `_parts` for each row, -1 while it has none.
        self._part_of = _NO_ROWS
        # Callbacks by row.
        self._callbacks: dict[int, list[Callable[[], object]]] = {}
        self._calling = 0

    def close(self, count: int, callbacks: Iterable[tuple[int, OnDelivery]] = ()) -> None:
        """Let no more records join. ``callbacks`` has (row, callback) pairs."""
        with self._changed:
            self.count = self._left = count
            self._part_of = np.full(count, -1, np.int32)
            for row, on_delivery in callbacks:
                self._callbacks.setdefault(row, []).insert(0, partial(self._call_back, row, on_delivery))

    def complete(
        self, rows: np.ndarray, partition: int, base_offset: int = -1, error: LogStoreError | None = None
    ) -> tuple[bool, Exception | None]:
        """Complete ``rows``, and call all their callbacks, even if one raises.

        Returns True if nothing is left of the batch, neither a record nor a callback, and the first exception of a
        callback.
        """
        due: list[Callable[[], object]] = []
        with self._changed:
            self._parts.append(_Part(rows, partition, base_offset, error))
            self._part_of[rows] = len(self._parts) - 1
            self._left -= len(rows)
            self._done = not self._left
            if self._callbacks:
                due += (callback for row in rows.tolist() for callback in self._callbacks.pop(row, ()))
                if self._done:
                    due += self._callbacks.pop(_ALL, ())
            self._calling += 1
            self._changed.notify_all()
        raised: Exception | None = None
        for callback in due:
            try:
                callback()
            except Exception as failed:  # noqa: BLE001 (the program's own, for flush() to raise)
                raised = raised or failed
        with self._changed:
            self._calling -= 1
            return self._done and not self._calling, raised

    def add_callback(self, callback: Callable[[], object], row: int = _ALL) -> None:
        """Call ``callback`` when ``row``, or the whole batch, is complete; at once if it is."""
        with self._changed:
            if not self.done(row):
                self._callbacks.setdefault(row, []).append(callback)
                return
        callback()

    def done(self, row: int = _ALL) -> bool:
        """Return True if ``row``, or the whole batch, is complete."""
        return self._done or (0 <= row < len(self._part_of) and bool(self._part_of[row] >= 0))

    def wait(self, timeout: float | None, row: int = _ALL) -> None:
        """Wait until ``row``, or all rows, are complete. Raises RequestTimedOutError after ``timeout`` seconds."""
        if self.done(row):
            return
        with self._changed:
            if not self._changed.wait_for(lambda: self.done(row), timeout):
                raise RequestTimedOutError(
                    f"Not delivered to topic {self.topic!r} within {timeout} s; it may still be{last_failure([self])}"
                )

    def error_at(self, row: int) -> LogStoreError | None:
        """Return the error of a complete row, or None."""
        error: LogStoreError | None = self._parts[self._part_of[row]].error
        if error is not None:
            error.was_raised = True
        return error

    def metadata_at(self, row: int) -> RecordMetadata:
        """Return the place of a complete row."""
        if self._done:
            return RecordMetadata(self.topic, int(self.metadata.partitions[row]), int(self.metadata.offsets[row]))
        part = self._parts[self._part_of[row]]
        offset = -1 if part.base_offset < 0 else part.base_offset + int(np.searchsorted(part.rows, row))
        return RecordMetadata(self.topic, part.partition, offset)

    # The following need a complete outcome. They are computed once, on first use.

    @cached_property
    def failures(self) -> list[tuple[np.ndarray, LogStoreError]]:
        """(rows, error) of the records that failed, by first row."""
        failed = [(part.rows, part.error) for part in self._parts if part.error is not None]
        return sorted(failed, key=lambda failure: int(failure[0][0]))

    @cached_property
    def metadata(self) -> BatchMetadata:
        partitions = np.full(self.count, -1, np.int32)
        offsets = np.full(self.count, -1, np.int64)
        for part in self._parts:
            partitions[part.rows] = part.partition
            if part.base_offset >= 0:
                offsets[part.rows] = np.arange(part.base_offset, part.base_offset + len(part.rows))
        return BatchMetadata(self.topic, partitions, offsets)

    def _call_back(self, row: int, on_delivery: OnDelivery) -> None:
        if error := self.error_at(row):
            on_delivery(error, None)
        else:
            on_delivery(None, self.metadata_at(row))


def last_failure(outcomes: Iterable[Outcome]) -> str:
    """Return the end of a message about ``outcomes`` that are not complete."""
    error = next((outcome.last_error for outcome in outcomes if outcome.last_error), None)
    return f". The last try failed: {error.message}" if error else ""


# Creating a msgspec struct costs a third of creating a Python object: ``send`` creates one per record.
class Delivery(msgspec.Struct, eq=False, gc=False):
    """The delivery of one record, as a future. ``await delivery`` works in any event loop.

    It is done together with all records that left in the same request for the same partition.
    """

    outcome: Outcome
    row: int

    def done(self) -> bool:
        return self.outcome.done(self.row)

    def exception(self, timeout: float | None = None) -> LogStoreError | None:
        """Return why the record failed, None if it is stored. Waits; RequestTimedOutError after ``timeout`` seconds."""
        self.outcome.wait(timeout, self.row)
        return self.outcome.error_at(self.row)

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return the place of the record. Waits; raises the error that ``exception`` returns."""
        if error := self.exception(timeout):
            raise error
        return self.outcome.metadata_at(self.row)

    def add_done_callback(self, callback: Callable[["Delivery"], object]) -> None:
        """Call ``callback(self)`` from a thread of the producer when done; at once if it is.

        ``flush`` raises an exception of the callback.
        """
        self.outcome.add_callback(lambda: callback(self), self.row)

    def __await__(self) -> Generator[None, None, RecordMetadata]:
        yield from _until_done(self.outcome, self.row)
        return self.result()

    def __repr__(self) -> str:
        return f"<Delivery to {self.outcome.topic!r}, {'done' if self.done() else 'on its way'}>"


class BatchDelivery(msgspec.Struct, eq=False, gc=False):
    """The delivery of a batch, as a future like ``Delivery``."""

    outcome: Outcome

    def done(self) -> bool:
        return self.outcome.done()

    def failures(self, timeout: float | None = None) -> list[tuple[np.ndarray, LogStoreError]]:
        """Return (rows, error) of the records that failed, rows rising; empty if all are stored. Waits."""
        self.outcome.wait(timeout)
        for _, error in self.outcome.failures:
            error.was_raised = True
        return list(self.outcome.failures)

    def places(self, timeout: float | None = None) -> BatchMetadata:
        """Return the places of the records even if some failed: the offsets of these are -1. Waits."""
        self.outcome.wait(timeout)
        return self.outcome.metadata

    def exception(self, timeout: float | None = None) -> LogStoreError | None:
        """Return the first failure by row, None if all records are stored. Waits."""
        failures = self.failures(timeout)
        return failures[0][1] if failures else None

    def result(self, timeout: float | None = None) -> BatchMetadata:
        """Return the places of the records. Waits; raises the error that ``exception`` returns."""
        if error := self.exception(timeout):
            raise error
        return self.outcome.metadata

    def add_done_callback(self, callback: Callable[["BatchDelivery"], object]) -> None:
        """Call ``callback(self)`` as ``Delivery.add_done_callback`` does."""
        self.outcome.add_callback(lambda: callback(self))

    def __await__(self) -> Generator[None, None, BatchMetadata]:
        yield from _until_done(self.outcome)
        return self.result()


def _until_done(outcome: Outcome, row: int = _ALL) -> Generator[None, None, None]:
    """Wait in the running event loop."""
    if outcome.done(row):
        return
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not waiting.cancelled():
            waiting.set_result(None)

    def wake() -> None:
        # The loop may have ended: then no coroutine waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)

    outcome.add_callback(wake, row)
    yield from waiting
