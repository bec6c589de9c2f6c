"""Time, passed in so that a test can stop it."""

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch. May step backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never steps backwards."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
