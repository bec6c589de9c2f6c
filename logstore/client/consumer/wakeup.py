"""``Consumer.wakeup``: ends the wait of the consumer's thread, from another one."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any


class Wakeup:
    """``interrupt`` ends a wait for records."""

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        # A handler of signals may come while its own thread holds the lock.
        self._lock = threading.RLock()
        self._asked: Future[None] = Future()

    def ask(self) -> None:
        """Have the poll that is under way, or else the next one, raise WakeupError. For any thread."""
        with self._lock:
            if not self._asked.done():
                self._asked.set_result(None)
        self._interrupt()

    def taken(self) -> bool:
        """Whether it was asked for since the last call."""
        with self._lock:
            if not self._asked.done():
                return False
            self._asked = Future()
            return True

    def wait(self, future: "Future[Any]", deadline: float) -> bool:
        """Whether ``future`` is done by ``deadline`` (monotonic); waits no longer once a wakeup is asked for."""
        wait((future, self._asked), max(0.0, deadline - time.monotonic()), FIRST_COMPLETED)
        return future.done()
