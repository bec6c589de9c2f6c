"""An upper bound on the sum of a job's reads and writes, like Kafka's ``log.cleaner.io.max.bytes.per.second``."""

import threading
import time
from collections.abc import Callable

#: Seconds of work that may be done at once before a wait, if there was a rest before.
_BURST_S = 0.25


class Throttle:
    """Called with the number of bytes moved, waits until they fit into ``bytes_per_second``. Safe from any thread."""

    def __init__(
        self,
        bytes_per_second: float,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if bytes_per_second <= 0:
            raise ValueError("a throttle lets something through")
        self.bytes_per_second, self._monotonic, self._sleep = bytes_per_second, monotonic, sleep
        self._lock = threading.Lock()
        self._free_at = monotonic()

    def __call__(self, size: int) -> None:
        with self._lock:
            now = self._monotonic()
            self._free_at = max(self._free_at, now - _BURST_S) + size / self.bytes_per_second
            wait = self._free_at - now
        if wait > 0:
            self._sleep(wait)
