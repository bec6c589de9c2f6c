"""What is let in: nothing while the store is not ready, and no more than the journal and the memory have room for.

Invariant of ``InFlightBytes``: the sum of all reservations is at most ``limit``, except that one request alone is
always let in (else a body larger than the limit could never be sent at all). Reservations grow while a body arrives or
is inflated, the latter in a worker thread; hence the lock.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from logstore.errors import BrokerNotReadyError, ThrottledError
from logstore.journal.journal import Journal
from logstore.lock_file import LockFile
from logstore.observability import THROTTLED
from logstore.settings import Settings


class Admission:
    """``requests`` and ``answers`` are bounded apart, so that slow readers never stop producers.

    ``press`` asks for rolls, because the journal is full.
    """

    def __init__(
        self, settings: Settings, journal: Journal, locks: Sequence[LockFile], press: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._locks = locks
        self._press = press
        #: Why nothing is let in; None once the store has started.
        self.not_ready: str | None = "the store is starting"
        limit = settings.queued_max_request_bytes
        self.requests = InFlightBytes(limit, what="request bodies", setting="queued.max.request.bytes")
        self.answers = InFlightBytes(limit, what="answers", setting="queued.max.request.bytes")

    @property
    def not_ready_reason(self) -> str | None:
        """Why appends are refused; None while they are taken."""
        if self.not_ready is not None:
            return self.not_ready
        if self._journal.failed is not None:
            return str(self._journal.failed)
        lost = self.lost_lock
        return None if lost is None else f"{lost} was removed or replaced while this process held it: stop this process"

    @property
    def lost_lock(self) -> Path | None:
        """The lock that was taken away from this process; None while it has all of them."""
        return next((lock.path for lock in self._locks if not lock.held), None)

    def require_ready(self) -> None:
        """Raise BrokerNotReadyError, or what the journal failed with."""
        if self._journal.failed is not None:
            raise self._journal.failed
        if self.not_ready is not None:
            raise BrokerNotReadyError(f"Not now: {self.not_ready}. Try again in a few seconds.")

    def require_room(self, num_bytes: int) -> None:
        """Raise ThrottledError unless the journal has room for ``num_bytes`` more."""
        journal, settings = self._journal, self._settings
        # Bytes of acks=0 and of timed-out requests are in no request's account any more, but still in memory.
        if journal.queued_bytes and journal.queued_bytes + num_bytes > settings.queued_max_request_bytes:
            THROTTLED.labels("in_flight").inc()
            raise ThrottledError(
                f"{journal.queued_bytes} bytes wait for the disk; queued.max.request.bytes is "
                f"{settings.queued_max_request_bytes}. Send less, or try again in a moment."
            )
        # Admit any size when nothing is held; otherwise it never fits.
        held = journal.needed_bytes + journal.queued_bytes
        if held and held + num_bytes > settings.journal_max_bytes:
            self._press()
            THROTTLED.labels("journal").inc()
            raise ThrottledError(
                f"The journal holds {held} bytes not yet in Delta; journal.max.bytes is "
                f"{settings.journal_max_bytes}. Send less, or try again after the next roll."
            )


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
