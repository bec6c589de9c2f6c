"""Bounded waits for an expected event, instead of a pause of a fixed length."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_SECONDS = 60.0
_EVERY_S = 0.01


def eventually(
    found: Callable[[], T], what: str = "that never happened", *, seconds: float = _SECONDS, every_s: float = _EVERY_S
) -> T:
    """Return the value of ``found()`` once it is true. Raises AssertionError, naming ``what``, if it is not in time."""
    deadline = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < deadline, what
        time.sleep(every_s)
    return it


async def eventually_async(
    found: Callable[[], T], what: str = "that never happened", *, seconds: float = _SECONDS, every_s: float = _EVERY_S
) -> T:
    """Wait as ``eventually`` does, by the time of the event loop, which runs meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not (it := found()):
        assert loop.time() < deadline, what
        await asyncio.sleep(every_s)
    return it


async def loop_turns(count: int = 100) -> None:
    """Wait until all tasks that need nothing outside the event loop have come as far as they can.

    This is for tests that something does not happen. Bytes in a socket are read as well; it does not wait for threads.
    """
    for _ in range(count):
        await asyncio.sleep(0)
