"""The one thread that does the journal's disk work, in order, and reports to the event loop.

A ThreadPoolExecutor would do the same with two futures, three locks and five callbacks for each piece of work, which
would be most of the cost of a small append.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class DiskThread:
    """The disk thread of one event loop. It starts with the first work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[R]":
        """Run ``work`` after all earlier work, even if the returned future of its result is cancelled."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def do() -> None:
            resolve: Callable[[Any], None] = future.set_result
            result: Any
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - the waiter gets it
                resolve, result = future.set_exception, error
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits any more
                loop.call_soon_threadsafe(_resolve, future, resolve, result)

        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._work.put(do)
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            work = None  # a waiting thread keeps no reference to finished work

    def close(self) -> None:
        """Finish all work, then end the thread. Blocking."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None


def _resolve(future: "asyncio.Future[R]", resolve: Callable[[Any], None], result: Any) -> None:
    if not future.done():
        resolve(result)
