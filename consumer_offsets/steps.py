"""Long requests in steps: the event loop does other work in between."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

#: Each of them takes some 10 us.
_STEP: Final = 500


async def in_steps(things: Iterable[T]) -> AsyncIterator[T]:
    """The same things."""
    for number, thing in enumerate(things, start=1):
        yield thing
        if number % _STEP == 0:
            await asyncio.sleep(0)
