"""Time, passed in so that a test can stop it."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since the Unix epoch. May step backwards."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary origin; never steps backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread, which is not the event loop's."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
