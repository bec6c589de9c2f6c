"""``Consumer.wakeup`` ends the wait of the consumer's thread from another thread."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any


class Wakeup:
    """The wakeup of one consumer. ``interrupt`` ends a wait for records."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        # It is reentrant because a signal handler may run while its own thread holds the lock.
        self._lock = threading.RLock()
        self._asked: Future[None] = Future()

    def ask(self) -> None:
        """Make the poll that is under way, or else the next one, raise WakeupError. Any thread may call it."""
        with self._lock:
            if not self._asked.done():
                self._asked.set_result(None)
        self._interrupt()

    def taken(self) -> bool:
        """Return True if a wakeup was requested since the last call."""
        with self._lock:
            if not self._asked.done():
                return False
            self._asked = Future()
            return True

    def wait(self, future: "Future[Any]", deadline: float) -> bool:
        """Return True if ``future`` is done by ``deadline`` (monotonic). A wakeup ends the wait."""
        wait((future, self._asked), max(0.0, deadline - time.monotonic()), FIRST_COMPLETED)
        return future.done()
