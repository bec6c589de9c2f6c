"""Batches whose outcome is open, in the order that they were queued: what a flush waits for, and what it raises.

Used under the lock of ``RecordAccumulator``.
"""

import threading

from logstore.client.producer.delivery import Outcome, last_failure
from logstore.errors import LogStoreError, RequestTimedOutError

# Of a program that never flushes.
_FAILURES_MAX = 1_000


class IncompleteBatches:
    """``changed``: the condition of that lock. ``last_number`` is the number of the batch that was added last."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        # With rising numbers; dicts keep the order of insertion.
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
        """For the next flush to raise, if it is the first that nobody was told of, or the first of all."""
        if error is not None and (len(self._failures) < _FAILURES_MAX or is_told(self._failures[-1])):
            del self._failures[_FAILURES_MAX - 1 :]
            self._failures.append(error)

    def wait(self, number: int, timeout: float | None) -> None:
        """Until none up to ``number`` is left; raises the first failure since the last time, of those that the program
        has not had if there are any.

        RequestTimedOutError after ``timeout`` seconds.
        """

        def are_complete() -> bool:
            return next(iter(self._numbers.values()), number + 1) > number

        if not self._changed.wait_for(are_complete, timeout):
            late = f"{len(self._numbers)} batches are not delivered after {timeout} s"
            raise RequestTimedOutError(late + last_failure(self._numbers))
        failures, self._failures = self._failures, []
        if failures:
            raise next((failure for failure in failures if not is_told(failure)), failures[0])


def is_told(error: Exception) -> bool:
    """Whether the program has had it already; what a callback of its own raised, nobody has."""
    return isinstance(error, LogStoreError) and error.told
