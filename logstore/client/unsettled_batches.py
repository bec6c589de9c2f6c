"""Batches whose outcome is open, in the order that they were queued: what a flush waits for, and what it raises.

Used under the lock of ``RecordAccumulator``.
"""

import threading

from logstore.client.delivery import Outcome, last_failure
from logstore.errors import RequestTimedOutError


class UnsettledBatches:
    """``changed``: the condition of that lock. ``last_number`` is the number of the batch that was added last."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        # With rising numbers; dicts keep the order of insertion.
        self._numbers: dict[Outcome, int] = {}
        self._first_failure: Exception | None = None
        self.last_number = 0

    def add(self, outcome: Outcome) -> None:
        self.last_number += 1
        self._numbers[outcome] = self.last_number

    def remove(self, outcome: Outcome) -> None:
        del self._numbers[outcome]
        self._changed.notify_all()

    def failed(self, error: Exception | None) -> None:
        """For the next flush to raise, if it is the first."""
        self._first_failure = self._first_failure or error

    def wait(self, number: int, timeout: float | None) -> None:
        """Until none up to ``number`` is left; raises the first failure since the last time.

        RequestTimedOutError after ``timeout`` seconds.
        """

        def are_settled() -> bool:
            return next(iter(self._numbers.values()), number + 1) > number

        if not self._changed.wait_for(are_settled, timeout):
            late = f"{len(self._numbers)} batches are not delivered after {timeout} s"
            raise RequestTimedOutError(late + last_failure(self._numbers))
        failure, self._first_failure = self._first_failure, None
        if failure:
            raise failure
