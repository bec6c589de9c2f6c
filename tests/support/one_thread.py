"""All work of a store in the thread of its event loop: ``replaced(NoThreads())`` and ``one_thread_loop``."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from logstore.disk_thread import DiskThread
from logstore.threads import Threads


class _AtOnce(Executor):
    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the waiter gets it
            future.set_exception(error)
        return future


class _InTheLoop(DiskThread):
    def run(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> "asyncio.Future[Any]":
        return asyncio.wrap_future(_AtOnce().submit(work, *args, **kwargs))

    def close(self) -> None: ...


class NoThreads(Threads):
    """Workers that work where they are called."""

    def pool(self, count: int, name: str, niceness: int = 0) -> Executor:
        return _AtOnce()

    def disk_thread(self, name: str) -> DiskThread:
        return _InTheLoop(name)


def one_thread_loop() -> asyncio.AbstractEventLoop:
    """An event loop that runs the work of ``run_in_executor`` and ``to_thread`` by itself, at once."""
    loop = asyncio.SelectorEventLoop()
    loop.run_in_executor = lambda _, work, *args: asyncio.wrap_future(_AtOnce().submit(work, *args), loop=loop)
    return loop
