"""The common parts of requests for several topics or resources: one response for each, and a time limit."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from logstore.errors import RequestTimedOutError

#: The number of topics of a request that are changed at once.
_AT_ONCE: Final = 16

Asked = TypeVar("Asked")
Result = TypeVar("Result")


async def answers(asked: Sequence[Asked], answer: Callable[[Asked], Awaitable[Result]]) -> list[Result]:
    """Return the response for each, in the order of ``asked``; some are worked on at once."""
    found: list[Result] = []
    for begin in range(0, len(asked), _AT_ONCE):
        found += await asyncio.gather(*map(answer, asked[begin : begin + _AT_ONCE]))
    return found


def once(asked: Sequence[Asked], name: Callable[[Asked], Hashable]) -> tuple[list[Asked], list[Asked]]:
    """Split into requests whose name occurs once, and the first request of each repeated name."""
    counts = Counter(map(name, asked))
    first = {name(one): one for one in reversed(asked)}
    return (
        [one for one in asked if counts[name(one)] == 1],
        [one for key, one in first.items() if counts[key] > 1],
    )


class Deadline:
    """The time limit of a request, from now on; 0 or less means no limit.

    In Kafka a limit of 0 means to begin, and not to wait. Changes take a few ms here, so the response has their
    outcome.
    """

    def __init__(self, timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._when = self._loop.time() + timeout_ms / 1000 if timeout_ms > 0 else None

    @asynccontextmanager
    async def wait(self, doing: str) -> AsyncIterator[None]:
        """Wait for a change, which continues to its end by itself. Raises RequestTimedOutError; none is begun too
        late.
        """
        if self._when is not None and self._loop.time() >= self._when:
            raise RequestTimedOutError(f"{doing} was not begun: the request has taken longer than it allows.")
        try:
            async with asyncio.timeout_at(self._when):
                yield
        except TimeoutError:
            raise RequestTimedOutError(f"{doing} has taken longer than the request allows, and goes on.") from None
