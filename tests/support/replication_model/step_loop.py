"""An event loop that runs, and whose time passes, only on request.

Each callback belongs to the process in whose context it was made; those of a killed process never run.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any

from logstore.errors import LogStoreError


class Owner:
    """A process; ``run`` calls a function in it."""

    def __init__(self) -> None:
        self.is_dead = False
        self._context = copy_context()
        self._context.run(OWNER.set, self)

    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        return self._context.copy().run(work, *args)


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)


class _Timer:
    __slots__ = ("args", "callback", "cancelled", "context", "time")

    def __init__(self, when: float, callback: Any, args: Any, context: Context) -> None:
        self.time, self.callback, self.args, self.context = when, callback, args, context
        self.cancelled = False

    def when(self) -> float:
        return self.time

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        if not self.cancelled:
            self.callback(*self.args)


class ThreadWork:
    """Work that was given to a thread."""

    __slots__ = ("args", "context", "future", "work")

    def __init__(self, work: Any, args: Any, future: asyncio.Future[Any]) -> None:
        self.work, self.args, self.future = work, args, future
        self.context = copy_context()

    @property
    def is_dead(self) -> bool:
        return _is_dead(self.context)

    def do(self) -> None:
        try:
            result = self.context.copy().run(self.work, *self.args)
        except Exception as error:  # noqa: BLE001 - the waiter gets it
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(result)


class StepLoop(asyncio.AbstractEventLoop):
    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[tuple[Any, Any, Context]] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._count = itertools.count()
        self.threads: list[ThreadWork] = []
        #: Unexpected exceptions.
        self.errors: list[BaseException] = []
        # These references keep waiting tasks: a task that is dropped while it waits would run to its end.
        self._tasks: list[asyncio.Task[Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            self._discard()
            asyncio._set_running_loop(None)

    def _discard(self) -> None:
        """Discard all tasks without a warning about those that still wait."""
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(Exception):
                    task.get_coro().close()  # type: ignore[union-attr]
        self._ready.clear()
        self._timers.clear()

    # ---- asyncio's ----

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        self._ready.append((callback, args, context or copy_context()))

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        timer = _Timer(when, callback, args, context or copy_context())
        heapq.heappush(self._timers, (when, next(self._count), timer))
        return timer

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> Any:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, LogStoreError):
            self.errors.append(error)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        del executor
        future = self.create_future()
        self.threads.append(ThreadWork(func, args, future))
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, LogStoreError):
            self.errors.append(error)

    # ---- steps ----

    def run_ready(self, count: int = 10_000) -> None:
        """Run up to ``count`` callbacks, in order."""
        ready = self._ready
        while ready and count:
            callback, args, context = ready.popleft()
            if _is_dead(context):
                continue
            count -= 1
            context.run(callback, *args)
        if not count and ready and len(ready) > 5_000:
            raise AssertionError("the loop never becomes idle")

    def run_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.create_task(work)

    def advance(self, limit_s: float = 10.0) -> bool:
        """Let time pass up to the next timer; return whether there is one within ``limit_s``."""
        timers = self._timers
        while timers:
            when, _, timer = timers[0]
            if timer.cancelled or _is_dead(timer.context):
                heapq.heappop(timers)
                continue
            if when > self._now + limit_s:
                break
            heapq.heappop(timers)
            self._now = max(self._now, when)
            self._ready.append((timer.fire, (), timer.context))
            return True
        self._now += limit_s if limit_s < 1 else 0.01
        return False


def _is_dead(context: Context) -> bool:
    owner = context.get(OWNER)
    return owner is not None and owner.is_dead
