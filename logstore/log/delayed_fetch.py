"""Kafka's delayed fetch: the wait of a fetch for news, whether a consumer or a follower sent it."""

import asyncio
import math
from collections.abc import Sequence
from typing import Final, Protocol

#: Waits end at ticks. A tick is at most this part of the wait, and an eighth of a second.
_TICKS: Final = 32
_TICK_MAX_S: Final = 0.125


class Source(Protocol):
    """A partition, or the permissions of a principal: it has news for a fetch that waits."""

    def add_reader(self, woken: "asyncio.Future[bool]") -> None: ...

    def remove_reader(self, woken: "asyncio.Future[bool]") -> None: ...


def end_of_wait(now: float, end: float) -> float:
    """Return the end of a wait from ``now`` to ``end``, in seconds of the loop's clock. Waits that take about the same
    time end together, because each turn of the loop has a cost.
    """
    tick_s = min(_TICK_MAX_S, 2.0 ** math.floor(math.log2((end - now) / _TICKS)))
    return math.ceil(end / tick_s) * tick_s


class DelayedFetch:
    """Waits until ``end``, in seconds of the loop's clock. ``news`` becomes true when one of the ``sources`` has some,
    and false when the time is over. Call ``cancel`` in any case.
    """

    __slots__ = ("_sources", "_timer", "news")

    def __init__(self, sources: Sequence[Source], end: float, news: "asyncio.Future[bool] | None" = None) -> None:
        loop = asyncio.get_running_loop()
        self.news: asyncio.Future[bool] = loop.create_future() if news is None else news
        self._sources = sources
        for source in sources:
            source.add_reader(self.news)
        self._timer = loop.call_at(end, self.expire)

    def wake(self) -> None:
        """Report news."""
        if not self.news.done():
            self.news.set_result(True)

    def expire(self, _: object = None) -> None:
        """End the wait without news."""
        if not self.news.done():
            self.news.set_result(False)

    def cancel(self) -> None:
        """Wait no longer."""
        self._timer.cancel()
        for source in self._sources:
            source.remove_reader(self.news)
