"""Kafka's purgatory of produce requests: appends that wait for an end of a partition log (log end, high watermark)."""

import asyncio
from bisect import insort
from typing import Protocol

from logstore.errors import LogStoreError


class Acknowledgement:
    """The wait of one request for all of its appends: a countdown, whatever the number of partitions.

    ``future`` is done when all are reached, or fails with the first error. It may be cancelled; the appends continue.
    """

    __slots__ = ("_left", "future")

    def __init__(self, count: int) -> None:
        self._left = count
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def reached(self) -> None:
        """Count one more finished append."""
        self._left -= 1
        if not self._left and not self.future.done():
            self.future.set_result(None)

    def fail(self, error: LogStoreError) -> None:
        """Fail the request, because one of its appends has failed."""
        if not self.future.done():
            self.future.set_exception(error)
            # A client that does not wait (acks=0), or has stopped waiting, needs no warning about a lost exception.
            self.future.exception()


class Waiting(Protocol):
    """A wait for an append, of a whole request or of a part of one."""

    def reached(self) -> None: ...

    def fail(self, error: LogStoreError) -> None: ...


class PartAcknowledgement:
    """The wait of one part of a request, whose failure does not end the waits of the other parts. ``whole`` counts the
    parts down; ``error`` is the reason why this one has failed.
    """

    __slots__ = ("_is_over", "_whole", "error")

    def __init__(self, whole: Acknowledgement) -> None:
        self._whole = whole
        self._is_over = False
        self.error: LogStoreError | None = None

    def reached(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._whole.reached()

    def fail(self, error: LogStoreError) -> None:
        if not self._is_over:
            self.error = error
            self.reached()


class AcknowledgementQueue:
    """Acknowledgements by the end offset that each waits for, rising.

    Every partition has one, and few of them wait for long: a list, because an empty deque takes ten times its memory.
    """

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Waiting]] = []

    def add(self, end_offset: int, acknowledgement: Waiting) -> None:
        """Let ``acknowledgement`` wait for ``end_offset``, which is usually the highest one."""
        if not self._waiting or self._waiting[-1][0] <= end_offset:
            self._waiting.append((end_offset, acknowledgement))
        else:
            insort(self._waiting, (end_offset, acknowledgement), key=lambda waiting: waiting[0])

    def reach(self, offset: int) -> None:
        """Acknowledge the appends that end at or below ``offset``."""
        waiting = self._waiting
        count = 0
        for end_offset, acknowledgement in waiting:
            if end_offset > offset:
                break
            acknowledgement.reached()
            count += 1
        del waiting[:count]

    def fail_above(self, offset: int, error: LogStoreError) -> None:
        """Fail the appends that end above ``offset``, because nothing from there on is stored."""
        while self._waiting and self._waiting[-1][0] > offset:
            self._waiting.pop()[1].fail(error)
