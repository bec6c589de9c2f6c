"""What became of records that a producer was given: one outcome per batch, looked at record by record or as columns."""

import threading
from dataclasses import dataclass

import numpy as np

from logstore.errors import LogStoreError, RequestTimedOutError


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record is. ``offset`` is -1 with ``acks=0``, where the store does not say."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Where the records of a batch are, in the order sent: ``partitions`` int32, ``offsets`` int64 (-1 with
    ``acks=0``).
    """

    topic: str
    partitions: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets)


class Outcome:
    """The one outcome of ``count`` records; set once, by the sender thread.

    A batch whose record is too large is sent in halves, so that some of its records may be stored and others not:
    ``errors`` holds an error per part that failed, with the rows that it is about.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.count = 0
        self._settled = threading.Event()
        self._partitions = np.empty(0, np.int32)
        self._offsets = np.empty(0, np.int64)
        self.failures: list[tuple[int, int, LogStoreError]] = []

    def settle(
        self,
        partitions: np.ndarray,
        offsets: np.ndarray,
        failures: list[tuple[int, int, LogStoreError]],
    ) -> None:
        """``failures``: (first row, end row, error), rows rising."""
        self._partitions, self._offsets, self.failures = partitions, offsets, failures
        self._settled.set()

    def done(self) -> bool:
        return self._settled.is_set()

    def wait(self, timeout_s: float | None) -> None:
        if not self._settled.wait(timeout_s):
            raise RequestTimedOutError(f"Not delivered to topic {self.topic!r} within {timeout_s} s; it may still be.")

    def error_at(self, row: int) -> LogStoreError | None:
        return next((error for first, end, error in self.failures if first <= row < end), None)

    def metadata_at(self, row: int) -> RecordMetadata:
        return RecordMetadata(self.topic, int(self._partitions[row]), int(self._offsets[row]))

    def metadata(self) -> BatchMetadata:
        return BatchMetadata(self.topic, self._partitions, self._offsets)


class Delivery:
    """The delivery of one record: a place in its batch's outcome, no lock of its own."""

    __slots__ = ("_outcome", "_row")

    def __init__(self, outcome: Outcome, row: int) -> None:
        self._outcome, self._row = outcome, row

    def done(self) -> bool:
        return self._outcome.done()

    def exception(self, timeout_s: float | None = None) -> LogStoreError | None:
        """Why the record failed, None if it is stored; waits. RequestTimedOutError after ``timeout_s``."""
        self._outcome.wait(timeout_s)
        return self._outcome.error_at(self._row)

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Where the record is stored; waits. Raises what ``exception`` gives."""
        if error := self.exception(timeout_s):
            raise error
        return self._outcome.metadata_at(self._row)


class BatchDelivery:
    """The delivery of a batch."""

    __slots__ = ("_outcome",)

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def done(self) -> bool:
        return self._outcome.done()

    def failures(self, timeout_s: float | None = None) -> list[tuple[int, int, LogStoreError]]:
        """(first row, end row, error) of what failed; empty if all is stored. Waits."""
        self._outcome.wait(timeout_s)
        return list(self._outcome.failures)

    def places(self, timeout_s: float | None = None) -> BatchMetadata:
        """Where the records are, also when some failed: offset -1 for those. Waits."""
        self._outcome.wait(timeout_s)
        return self._outcome.metadata()

    def result(self, timeout_s: float | None = None) -> BatchMetadata:
        """Where the records are stored; waits. Raises the first failure."""
        if failures := self.failures(timeout_s):
            raise failures[0][2]
        return self._outcome.metadata()
