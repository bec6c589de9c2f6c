"""A clock that moves only when a test moves it."""

import time
from dataclasses import dataclass


@dataclass(slots=True)
class ManualClock:
    """A ``logstore.clock.Clock`` whose wall clock and monotonic clock move together, except for ``step_wall``."""

    wall_ms: int = 1_700_000_000_000
    monotonic_s: float = 1_000.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.monotonic_s

    def sleep(self, seconds: float) -> None:
        """Let other threads run; the clock stands still."""
        time.sleep(seconds)

    def advance(self, milliseconds: float) -> None:
        """Let time pass."""
        self.wall_ms += round(milliseconds)
        self.monotonic_s += milliseconds / 1000

    def step_wall(self, milliseconds: int) -> None:
        """Set the wall clock forward or (negative) back, as an operator or NTP may."""
        self.wall_ms += milliseconds
