"""Admission of requests: refuses them while the store is not ready, beyond the room in journal and memory, and beyond a
principal's quotas.

Invariant of ``InFlightBytes``: the sum of all reservations is at most ``limit``, except that one request alone is
always admitted (otherwise a body larger than the limit could never be sent). Reservations grow while a body arrives or
is inflated, the latter in a worker thread; hence the lock.
"""

import asyncio
import enum
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

from logstore.broker.context import INTERNAL, Principal, RequestContext
from logstore.broker.due_topics import PRESSURE
from logstore.broker.quotas import QuotaKind, Quotas
from logstore.clock import Clock
from logstore.errors import BrokerNotReadyError, ThrottledError
from logstore.journal.journal import Journal
from logstore.lock_file import LockFile, require_all
from logstore.log.topic import Topic
from logstore.observability import THROTTLED
from logstore.settings import Settings

# This part of the journal, one in 16 bytes, is reserved for the store's own topics.
_INTERNAL_PART = 16
_OVER_QUOTA_MAX = 10_000


class Lacking(enum.StrEnum):
    """A bound of the journal that leaves no room for an append."""

    QUEUE = "in_flight"
    TOPICS_SHARE = "journal_topic"
    JOURNAL = "journal"


class Admission:
    """Admits requests. ``requests`` and ``answers`` have separate bounds, so that slow readers never stop producers.

    ``press`` asks for rolls, because the journal is full.
    """

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        locks: Sequence[LockFile],
        press: Callable[[], None],
        quotas: Quotas,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._journal = journal
        self._locks = locks
        self._press = press
        self._quotas = quotas
        self._clock = clock
        #: By principal and kind of quota, the time when a principal over its quota may continue, in seconds of the
        #: clock.
        self._over_quota: dict[tuple[Principal, QuotaKind], float] = {}
        #: Topics whose records were refused because the journal had no room.
        self._refused: WeakSet[Topic] = WeakSet()
        self._refused_all = False
        #: Appends that wait for room in the journal, in the order of the calls, with their bytes of topics.
        self._waiting: dict[asyncio.Future[bool], Sequence[tuple[Topic, int]]] = {}
        journal.on_room(self._room_changed)
        #: The reason why nothing is admitted; None once the store has started.
        self.not_ready: str | None = "the store is starting"
        limit = settings.queued_max_request_bytes
        self.requests = InFlightBytes(limit, what="request bodies", setting="queued.max.request.bytes")
        self.answers = InFlightBytes(limit, what="answers", setting="queued.max.request.bytes")

    def open(self) -> None:
        """Admit requests from now on: the store has started."""
        self.not_ready = None

    def close(self, reason: str) -> None:
        """Admit no more requests, because of the ``reason``."""
        self.not_ready = reason
        self._room_changed()

    @property
    def not_ready_reason(self) -> str | None:
        """The reason why appends are refused; None while they are admitted."""
        if self.not_ready is not None:
            return self.not_ready
        if self._journal.failed is not None:
            return str(self._journal.failed)
        if (loss := self._journal.file_loss) is not None:
            return f"{loss} while this process wrote to it: stop this process"
        lost = self.lost_lock
        return None if lost is None else f"{lost} was removed or replaced while this process held it: stop this process"

    @property
    def lost_lock(self) -> Path | None:
        """The lock that this process has lost; None while it has all of them."""
        return next((lock.path for lock in self._locks if not lock.held), None)

    def require_locks(self) -> None:
        """Raise LockLostError once another process may be serving the data directory."""
        require_all(self._locks)

    def require_ready(self) -> None:
        """Raise the journal's error if it has failed, or BrokerNotReadyError while the store is not ready."""
        if self._journal.failed is not None:
            raise self._journal.failed
        if self.not_ready is not None:
            raise BrokerNotReadyError(f"Not now: {self.not_ready}. Try again in a few seconds.")

    @property
    def _producers_max(self) -> int:
        """Bytes that the journal may hold before producers have to wait. The last part is for the store's own topics,
        so that consumers can still commit their offsets.
        """
        return self._settings.journal_max_bytes - self._settings.journal_max_bytes // _INTERNAL_PART

    def has_room(self, num_bytes: int) -> bool:
        """Return True if the journal has room for ``num_bytes`` more of any topic: a topic holds no more than all
        do.
        """
        settings, queued = self._settings, self._journal.queued_bytes
        held_max = min(settings.topic_journal_bytes_max, self._producers_max)
        return (
            queued + num_bytes <= settings.queued_max_request_bytes
            and self._journal.needed_bytes + queued + num_bytes <= held_max
        )

    def require_room(self, topic: Topic, num_bytes: int) -> None:
        """Raise ThrottledError unless the journal has room for ``num_bytes`` more of the topic."""
        if self.has_room(num_bytes):
            return
        journal, settings = self._journal, self._settings
        lacking = self._lacking(topic, num_bytes)
        if lacking is not None:
            THROTTLED.labels(lacking).inc()
        if lacking is Lacking.QUEUE:
            raise ThrottledError(
                f"{journal.queued_bytes} bytes wait for the disk; queued.max.request.bytes is "
                f"{settings.queued_max_request_bytes}. Send less, or try again in a moment."
            )
        if lacking is Lacking.TOPICS_SHARE:
            self._refused.add(topic)
            raise ThrottledError(
                f"The journal holds {topic.journal_bytes} bytes of topic {topic.name!r} not yet in Delta; "
                f"journal.topic.max.bytes is {settings.topic_journal_bytes_max}. Send less, or try again after the "
                "topic's next roll."
            )
        if lacking is Lacking.JOURNAL:
            self._press()
            self._refused_all = True
            raise ThrottledError(
                f"The journal holds {journal.needed_bytes + journal.queued_bytes} bytes not yet in Delta; "
                f"journal.max.bytes is {settings.journal_max_bytes}. Send less, or try again after the next roll."
            )

    def _lacking(self, topic: Topic, num_bytes: int, promised: int = 0) -> "Lacking | None":
        """Return the bound that ``num_bytes`` more of the topic would exceed; None if they fit beside the ``promised``
        bytes.
        """
        if self.has_room(promised + num_bytes):
            return None
        journal, settings = self._journal, self._settings
        # The bytes of acks=0 and of timed-out requests no longer count for any request, but are still in memory.
        queued = journal.queued_bytes + promised
        # Any size is admitted when nothing is held; otherwise it would never fit.
        if queued and queued + num_bytes > settings.queued_max_request_bytes:
            return Lacking.QUEUE
        if topic.journal_bytes and topic.journal_bytes + num_bytes > settings.topic_journal_bytes_max:
            return Lacking.TOPICS_SHARE
        held = journal.needed_bytes + queued
        if held and held + num_bytes > (settings.journal_max_bytes if topic.is_internal else self._producers_max):
            return Lacking.JOURNAL
        return None

    def wait_for_room(self, wanted: Sequence[tuple[Topic, int]]) -> "asyncio.Future[bool]":
        """Return a future that becomes true, in the order of the calls, when the journal may have room for these bytes
        of topics; it becomes false if appends are refused. Call ``wait_no_more`` in any case.
        """
        room: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[room] = wanted
        self._room_changed()
        return room

    def wait_no_more(self, room: "asyncio.Future[bool]") -> None:
        """End a wait."""
        del self._waiting[room]
        room.cancel()

    def _room_changed(self) -> None:
        if not self._waiting:
            return
        is_ready = self.not_ready_reason is None
        promised = 0
        full: set[Topic] = set()
        for room, wanted in self._waiting.items():
            if room.done():
                continue
            if not is_ready:
                room.set_result(False)
                continue
            lacking = None
            for topic, num_bytes in wanted:
                lacking = Lacking.TOPICS_SHARE if topic in full else self._lacking(topic, num_bytes, promised)
                if lacking is Lacking.TOPICS_SHARE:
                    full.add(topic)
                if lacking is not None:
                    break
            if lacking is None:
                room.set_result(True)
                promised += sum([num_bytes for _, num_bytes in wanted])
            elif lacking is not Lacking.TOPICS_SHARE:
                return  # later ones wait behind it, unless a topic's share alone is used up

    def require_quota(self, context: RequestContext, kind: QuotaKind) -> None:
        """Raise ThrottledError while the principal has to wait because of earlier charges.

        For a forwarded request, the client's broker checks and charges.
        """
        if not self._over_quota or context.is_forwarded:
            return
        until = self._over_quota.get((context.principal, kind), 0.0)
        if (seconds := until - self._clock.monotonic()) > 0:
            THROTTLED.labels("quota").inc()
            raise ThrottledError(
                f"{context.principal} is over its quota of {kind}: wait.", retry_after_s=math.ceil(seconds)
            )
        self._over_quota.pop((context.principal, kind), None)

    def charge(self, context: RequestContext, kind: QuotaKind, amount: int) -> int:
        """Count bytes after they have passed, as Kafka does. Return how many ms the client should wait before its next
        request.

        Until then ``require_quota`` refuses the client, so a client that does not wait gains nothing.
        """
        if context is INTERNAL or context.is_forwarded:
            return 0
        seconds = self._quotas.charge(context, kind, amount)
        if seconds <= 0:
            return 0
        now = self._clock.monotonic()
        if len(self._over_quota) >= _OVER_QUOTA_MAX:
            self._over_quota = {who: until for who, until in self._over_quota.items() if until > now}
        self._over_quota[context.principal, kind] = now + seconds
        return math.ceil(seconds * 1000)

    def refuses(self, topic: Topic) -> bool:
        """Return True if records of the topic, or of all topics, were refused, and half of that has not been rolled
        since.
        """
        if topic.journal_bytes <= PRESSURE * self._settings.topic_journal_bytes_max:
            self._refused.discard(topic)
        if self._journal.needed_bytes <= PRESSURE * self._settings.journal_max_bytes:
            self._refused_all = False
        return topic in self._refused or self._refused_all


class InFlightBytes:
    """Bounds the bytes in flight. ``what`` names the bytes in a refusal's message; ``setting`` is the bound that a user
    may raise.
    """

    def __init__(self, limit: int, *, what: str, setting: str) -> None:
        self.limit = limit
        self._what = what
        self._setting = setting
        self._reserved = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, asyncio.Future[bool]]] = deque()

    @property
    def reserved(self) -> int:
        """The bytes that are reserved now."""
        return self._reserved

    def reserve(self, size: int = 0) -> "Reservation":
        """Reserve ``size`` bytes until the reservation is released. Raises ThrottledError if they do not fit."""
        if size:
            self._take(size, 0)
        return Reservation(self, size)

    def has_room(self, size: int) -> bool:
        """Return True if ``size`` bytes fit now."""
        return not self._reserved or self._reserved + size <= self.limit

    def wait_for_room(self, size: int) -> "asyncio.Future[bool]":
        """Return a future that becomes true, in the order of the calls, when ``size`` bytes may fit. Reserve them then;
        call ``wait_no_more`` in any case.
        """
        room: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, room))
        return room

    def wait_no_more(self, room: "asyncio.Future[bool]") -> None:
        """End a wait. Room that was offered to it and not taken goes to the next one."""
        room.cancel()
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        told = 0
        while self._waiting:
            size, room = self._waiting[0]
            if not room.done():
                if not self.has_room(told + size):
                    return
                room.set_result(True)
                told += size
            self._waiting.popleft()

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
        if self._waiting:
            self._tell_of_room()


class Reservation:
    """A share of the bytes in flight; a context manager that gives it back."""

    def __init__(self, in_flight: InFlightBytes, size: int) -> None:
        self._in_flight = in_flight
        self.size = size

    def grow(self, size: int) -> None:
        """Take ``size`` bytes more. Raises ThrottledError if they do not fit; the bytes held before stay held."""
        if size > 0:
            self._in_flight._take(size, self.size)  # noqa: SLF001 - two halves of one thing
            self.size += size

    def require(self, size: int) -> None:
        """Raise ThrottledError if ``size`` bytes more would not fit now; take none."""
        self._in_flight._take(size, self.size, only_ask=True)  # noqa: SLF001

    def resize(self, size: int) -> None:
        """Take more, as ``grow`` does, or give back the bytes over ``size``."""
        self.grow(size - self.size)
        if size < self.size:
            self._in_flight._give_back(self.size - size)  # noqa: SLF001
            self.size = size

    def release(self) -> None:
        """Give everything back. Call it on the event loop, as others may wait for the room."""
        self._in_flight._give_back(self.size)  # noqa: SLF001
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
