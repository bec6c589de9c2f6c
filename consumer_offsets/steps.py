"""Long requests in steps: the event loop does other work in between."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

#: Each of them takes some 10 us.
_STEP: Final = 200
#: Not 0: threads, such as the journal's, must get a turn, too.
_PAUSE_S: Final = 0.001


async def in_steps(things: Iterable[T]) -> AsyncIterator[T]:
    """The same things."""
    for number, thing in enumerate(things, start=1):
        yield thing
        if number % _STEP == 0:
            await asyncio.sleep(_PAUSE_S)
