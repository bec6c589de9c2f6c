"""Incomplete batches, in the order in which they were queued. A flush waits for them, and raises their first failure.

The lock of ``RecordAccumulator`` must be held.
"""

import threading

from logstore.client.producer.delivery import Outcome, last_failure
from logstore.errors import LogStoreError, RequestTimedOutError

# It bounds the memory of a program that never flushes.
_FAILURES_MAX = 1_000


class IncompleteBatches:
    """The batches of one producer. ``changed`` is the condition of that lock, ``last_number`` the number added last."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        # The numbers rise, because dicts keep the order of insertion.
        self._numbers: dict[Outcome, int] = {}
        self._failures: list[Exception] = []
        self.last_number = 0

    def add(self, outcome: Outcome) -> None:
        self.last_number += 1
        self._numbers[outcome] = self.last_number

    def remove(self, outcome: Outcome) -> None:
        del self._numbers[outcome]
        self._changed.notify_all()

    def failed(self, error: Exception | None) -> None:
        """Keep ``error`` for the next flush, if it is the first, or the first that the program has not had."""
        if error is not None and (len(self._failures) < _FAILURES_MAX or was_raised(self._failures[-1])):
            del self._failures[_FAILURES_MAX - 1 :]
            self._failures.append(error)

    def wait(self, number: int, timeout: float | None) -> None:
        """Wait until no batch up to ``number`` is left.

        Raises the first failure since the last call, preferably one that the program has not had. Raises
        RequestTimedOutError after ``timeout`` seconds.
        """

        def are_complete() -> bool:
            return next(iter(self._numbers.values()), number + 1) > number

        if not self._changed.wait_for(are_complete, timeout):
            late = f"{len(self._numbers)} batches are not delivered after {timeout} s"
            raise RequestTimedOutError(late + last_failure(self._numbers))
        failures, self._failures = self._failures, []
        if failures:
            raise next((failure for failure in failures if not was_raised(failure)), failures[0])


def was_raised(error: Exception) -> bool:
    """Return True if the program has had the error already; False for an exception of a callback."""
    return isinstance(error, LogStoreError) and error.was_raised
