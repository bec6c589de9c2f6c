"""Time, which is passed in so that a test can stop it."""

import time
from typing import Final, Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock in milliseconds since the Unix epoch. It may step backwards."""
        ...

    def monotonic(self) -> float:
        """Return seconds from an arbitrary origin. They never step backwards."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread, which must not be the event loop's."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK: Final[Clock] = SystemClock()
