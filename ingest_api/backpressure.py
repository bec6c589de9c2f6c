"""The bound on bytes in flight: what requests and answers may hold in memory together.

Invariant: the sum of all reservations is at most ``limit``, except that one request alone is always let in (else a body
larger than the limit could never be sent at all). Reservations grow while a body arrives or is inflated, the latter in
a worker thread; hence the lock.
"""

import threading
from types import TracebackType
from typing import Self

from logstore.errors import ThrottledError
from logstore.observability import THROTTLED


class InFlightBytes:
    """``what`` names the bytes in the message of a refusal; ``setting`` the bound that a user may raise."""

    def __init__(self, limit: int, *, what: str, setting: str) -> None:
        self.limit = limit
        self._what = what
        self._setting = setting
        self._reserved = 0
        self._lock = threading.Lock()

    @property
    def reserved(self) -> int:
        """Bytes reserved now."""
        return self._reserved

    def reserve(self, size: int = 0) -> "Reservation":
        """Reserve ``size`` bytes until the reservation is released; ThrottledError if they do not fit."""
        reservation = Reservation(self)
        reservation.grow(size)
        return reservation

    def _take(self, size: int, held: int, *, only_ask: bool = False) -> None:
        with self._lock:
            if self._reserved > held and self._reserved + size > self.limit:
                THROTTLED.labels("in_flight").inc()
                raise ThrottledError(
                    f"The bytes of {self._what} in flight are at their bound ({self._setting} = {self.limit}); "
                    "send again after the time in Retry-After, or raise the bound."
                )
            if not only_ask:
                self._reserved += size

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._reserved -= size


class Reservation:
    """A share of the bytes in flight; a context manager that gives it back."""

    def __init__(self, in_flight: InFlightBytes) -> None:
        self._in_flight = in_flight
        self.size = 0

    def grow(self, size: int) -> None:
        """Take ``size`` bytes more; ThrottledError if they do not fit (what was held stays held)."""
        if size > 0:
            self._in_flight._take(size, self.size)  # noqa: SLF001 - two halves of one thing
            self.size += size

    def require(self, size: int) -> None:
        """ThrottledError if ``size`` bytes more would not fit now; takes none."""
        self._in_flight._take(size, self.size, only_ask=True)  # noqa: SLF001

    def release(self) -> None:
        self._in_flight._give_back(self.size)  # noqa: SLF001
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
