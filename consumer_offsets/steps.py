"""Splits long requests into steps, between which the event loop does other work."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

#: Each step takes about 10 us.
_STEP: Final = 200
#: With 0, threads such as the journal's would not get a turn.
_PAUSE_S: Final = 0.001


async def in_steps(things: Iterable[T]) -> AsyncIterator[T]:
    """Yield the same things, with a pause after each step."""
    for number, thing in enumerate(things, start=1):
        yield thing
        if number % _STEP == 0:
            await asyncio.sleep(_PAUSE_S)
