"""Waiting for what is to come, with a bound, in the place of a pause of a fixed length."""

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
    """What ``found`` returns once it is true; AssertionError, saying ``what``, if it is not in time."""
    deadline = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < deadline, what
        time.sleep(every_s)
    return it


async def eventually_async(
    found: Callable[[], T], what: str = "that never happened", *, seconds: float = _SECONDS, every_s: float = _EVERY_S
) -> T:
    """As ``eventually``; the event loop turns meanwhile."""
    deadline = time.monotonic() + seconds
    while not (it := found()):
        assert time.monotonic() < deadline, what
        await asyncio.sleep(every_s)
    return it


async def loop_turns(count: int = 100) -> None:
    """Until all that waits for nothing outside the event loop has come as far as it can.

    For tests that say that something does not happen: work of threads is no part of it, bytes in a socket are.
    """
    for _ in range(count):
        await asyncio.sleep(0)
