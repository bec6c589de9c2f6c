"""An event loop whose time is virtual: when nothing is ready, it jumps to its next timer, as trio's ``MockClock`` with
``autojump_threshold=0`` does. A test that waits for an hour takes only as long as its work.

It does not jump while a callback or a file descriptor is ready, nor while a thread works for the loop: in an executor,
or as the journal's ``DiskThread``. A turn of the loop takes 10 us of its time, however busy the machine is.

Sockets between tasks of one loop may be used: on loopback the kernel delivers within the call that sends, and the loop
waits for bytes that are not sent yet. It does not wait for another process, nor for other threads. Time hardly passes
while a thread is held, or under a load without a pause: tests with any of these run on real time.
"""

import asyncio
import contextlib
import fcntl
import functools
import heapq
import itertools
import selectors
import struct
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from typing import Any, ParamSpec, TypeVar

from logstore.clock import Clock, SystemClock
from logstore.disk_thread import DiskThread

P = ParamSpec("P")
T = TypeVar("T")

#: Real seconds without any event, after which a loop without timers is stuck.
_WATCHDOG_S = 30.0
#: Virtual seconds of one ``run``.
_LIMIT_S = 7200.0
#: Virtual seconds of a turn of the loop, so that code that polls without a wait reaches its deadline.
_TURN_S = 10e-6
#: Real seconds before a jump of a loop with sockets: a busy kernel may delay a delivery.
_DELIVERY_S = 0.002
#: The same while a socket has unsent bytes: Nagle's algorithm waits for an acknowledgement, and a small window for its
#: probe.
_SENDING_S = 0.25
#: Linux's ioctl for the number of unsent bytes of a socket.
_SIOCOUTQNSD = 0x894B


class StuckError(AssertionError):
    """Nothing can happen any more, or the virtual time of the test is over. The message has the stacks of all tasks."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that raises StuckError instead of jumping beyond ``limit_s`` virtual seconds, and, without a timer, after
    ``watchdog_s`` real seconds without any event.
    """

    def __init__(self, *, limit_s: float = float("inf"), watchdog_s: float = _WATCHDOG_S) -> None:
        self._now = 1_000.0
        self._began = self._now
        self._end = self._now + limit_s
        self._turns = itertools.count()
        self._watchdog_s = watchdog_s
        self._threads_at_work = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch: the machine's time plus the virtual time that has passed. It is
        never behind the times of files, nor of commits by other writers.
        """
        return time.time_ns() // 1_000_000 + round((self._now - self._began) * 1000)

    @property
    def internal_descriptors(self) -> int:
        return self._internal_fds

    def real_wait(self, timeout: float | None) -> float | None:
        """Return the real wait for a selector that found nothing ready; None as in ``select``."""
        if self._threads_at_work:
            return None
        return self._watchdog_s if timeout is None else 0

    def jump(self, timeout: float | None) -> None:
        """Let the time until the next timer pass; None if there is no timer."""
        if timeout is None:
            raise StuckError(f"nothing happened for {self._watchdog_s} s, and no timer is set{self._stacks()}")
        self.pass_time(timeout)

    def pass_time(self, seconds: float) -> None:
        if self._now + seconds > self._end:
            raise StuckError(f"the virtual time of the test is over{self._stacks()}")
        self._now += seconds

    def _stacks(self) -> str:
        stacks = StringIO()
        for task in asyncio.all_tasks(self):
            stacks.write("\n")
            task.print_stack(file=stacks)
        return stacks.getvalue()

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self._check_closed()
        timer = _Timer(when, next(self._turns), callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    # ---- threads ----

    def thread_begins(self) -> None:
        self._threads_at_work += 1

    def thread_ends(self) -> None:
        """Note that a thread has ended. The thread calls this once the loop has the result of its work."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.call_soon_threadsafe(self._thread_ended)

    def _thread_ended(self) -> None:
        self._threads_at_work -= 1

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        self._check_closed()
        if executor is None:
            self._check_default_executor()
            executor = self._default_executor = self._default_executor or ThreadPoolExecutor()
        self.thread_begins()
        try:
            work = executor.submit(func, *args)
        except BaseException:
            self._thread_ended()
            raise
        future = asyncio.wrap_future(work, loop=self)
        work.add_done_callback(lambda _: self.thread_ends())
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        self.thread_begins()
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._thread_ended()


class _Timer(asyncio.TimerHandle):
    """A timer; timers of the same time are due in the order in which they were set, since on real time they would
    differ.
    """

    __slots__ = ("_turn",)

    def __init__(self, when: float, turn: int, callback: Any, args: Any, loop: VirtualTimeLoop, context: Any) -> None:
        super().__init__(when, callback, args, loop, context)
        self._turn = turn

    def __lt__(self, other: "_Timer") -> bool:  # type: ignore[override]
        return (self._when, self._turn) < (other._when, other._turn)


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop
        #: Bytes by socket that stayed unsent in spite of a wait, because the peer does not read.
        self._held: dict[int, int] = {}

    def select(self, timeout: float | None = None) -> list[Any]:
        self._loop.pass_time(_TURN_S)
        events = super().select(0)
        if events or timeout == 0:
            return events
        if (wait_s := self._loop.real_wait(timeout)) == 0:
            wait_s = self._delivery_s()
        if events := super().select(wait_s):
            return events
        self._held = self._unsent()
        self._loop.jump(timeout)
        return []

    def _delivery_s(self) -> float:
        if len(self.get_map()) <= self._loop.internal_descriptors:
            return 0
        return _DELIVERY_S if self._unsent() == self._held else _SENDING_S

    def _unsent(self) -> dict[int, int]:
        found = {}
        for descriptor in self.get_map():
            with contextlib.suppress(OSError):  # it is not a connection
                (unsent,) = struct.unpack("i", fcntl.ioctl(descriptor, _SIOCOUTQNSD, bytes(4)))
                if unsent:
                    found[descriptor] = unsent
        return found


class LoopClock:
    """A ``logstore.clock.Clock`` that follows a loop. While a thread sleeps, the loop's time stands still and only its
    monotonic clock continues: the wall clock must not be ahead of the times of files.
    """

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._slept_s = 0.0

    def now_ms(self) -> int:
        return self._loop.wall_ms()

    def monotonic(self) -> float:
        return self._loop.time() + self._slept_s

    def sleep(self, seconds: float) -> None:
        self._slept_s += seconds


def clock_of_loop() -> Clock:
    """Return the clock for a store in the running loop."""
    loop = asyncio.get_running_loop()
    return LoopClock(loop) if isinstance(loop, VirtualTimeLoop) else SystemClock()


def run(work: Coroutine[Any, Any, T], *, limit_s: float = _LIMIT_S) -> T:
    """Run as ``asyncio.run`` does, on virtual time. Raises StuckError after ``limit_s`` of it."""
    with asyncio.Runner(loop_factory=functools.partial(VirtualTimeLoop, limit_s=limit_s)) as runner:
        return runner.run(work)


#: The value that a fixture ``anyio_backend`` returns for tests on virtual time.
ON_VIRTUAL_TIME = ("asyncio", {"loop_factory": VirtualTimeLoop})


def _counted(start: Callable[P, T]) -> Callable[P, T]:
    """Count the work of a ``DiskThread`` for a loop that runs on virtual time."""

    @functools.wraps(start)
    def counted(*args: P.args, **kwargs: P.kwargs) -> T:
        future = start(*args, **kwargs)
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            thread = args[0]
            assert isinstance(thread, DiskThread)
            loop.thread_begins()
            thread._work.put(loop.thread_ends)  # it runs after the work
        return future

    return counted


DiskThread.run = _counted(DiskThread.run)  # type: ignore[method-assign]
