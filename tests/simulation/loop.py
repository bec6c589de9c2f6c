"""An event loop that simulates the machine's time and threads: a seed decides in which order things happen.

The loop never waits. When nothing is ready, its time jumps to the next timer. Work for threads (``run_in_executor``,
``to_thread``, the disk threads of the journal, and executors that threads use themselves) runs on the loop. Random
delays come before such work and before its result, so that other things happen in between. A piece of such work is not
interrupted.

A task belongs to the process in whose context it was made (``PlayedProcess``).
"""

import asyncio
import asyncio.base_events
import errno
import random
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from logstore.disk_thread import DiskThread
from logstore.threads import Threads
from tests.support.faulty_filesystem import CrashedError

T = TypeVar("T")

#: The process to which the running code belongs; None for the world around it.
PROCESS: ContextVar["PlayedProcess | None"] = ContextVar("process", default=None)
#: Mean seconds until work for a thread begins, and until its result is seen. Rarely a thread stalls for longer.
_BEGINS_S = 0.0002
_SEEN_S = 0.0001
_STALL_S = 0.5
_STALLS = 0.002


class PlayedProcess:
    """One start of a program; it owns the tasks that are made in it.

    When it is killed, its tasks are cancelled. They still end, but nothing that they do reaches the world: its disk
    refuses
    all calls, and work for its threads that has not begun never begins.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        #: How many times slower its threads are than others.
        self.slowness = 1.0
        #: A dict in the order of creation, because the order of a set would differ between runs.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        #: Called when it is killed, before its own tasks notice.
        self.at_death: list[Callable[[PlayedProcess], None]] = []
        self._context = copy_context()
        self._context.run(PROCESS.set, self)

    def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run ``work`` in the process."""
        return self._context.copy().run(work, *args)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Let ``task`` end with the process."""
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if self.is_dead and not task.cancelled():
            task.exception()  # mark the error as seen, because no code of the process is left to handle it

    def kill(self) -> None:
        if not self.is_dead:
            self.is_dead = True
            for told in self.at_death:
                told(self)
        for task in list(self._tasks):
            task.cancel()


class PlayedTask(asyncio.Task[Any]):
    """A task that knows its process."""

    process: PlayedProcess | None = None


def _process_of(future: object) -> PlayedProcess | None:
    """Return the process of a task, or of the tasks that a future of ``asyncio.gather`` waits for."""
    found = (getattr(one, "process", None) for one in (future, *getattr(future, "_children", ())))
    return next((process for process in found if process is not None), None)


class _Selector:
    """The loop's selector: no event ever comes from outside, so it lets time pass."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise AssertionError("nothing is left that could happen: somebody waits for ever")
        self._loop.pass_time(timeout)
        return []


class SimulatedLoop(asyncio.base_events.BaseEventLoop):
    """The event loop. ``rng`` decides all delays. ``time()`` begins at 0."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._rng = rng
        self._selector = _Selector(self)
        #: For each executor with one thread, when the result of its last work is seen.
        self._last: dict[object, float] = {}
        #: Exceptions that no code handled.
        self.errors: list[str] = []
        self.set_exception_handler(self._note)
        self.set_task_factory(self._make_task)

    # ---- time -------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        if seconds > 0:
            self._now += seconds

    # ---- what asyncio asks of a loop --------------------------------------------------------------------------------

    def _process_events(self, events: Iterable[Any]) -> None: ...

    def _write_to_self(self) -> None: ...

    def _make_task(
        self, _: asyncio.AbstractEventLoop, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = PlayedTask(coro, loop=self, name=name, context=context)
        task.process = process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is not None:
            process.own(task)
        return task

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        process = _process_of(context.get("task") or context.get("future"))
        if process is not None and process.is_dead:
            return  # the garbage collector destroys what a dead process has left
        error = context.get("exception")
        where = "" if error is None else "".join(traceback.format_tb(error.__traceback__)[-3:])
        self.errors.append(f"{context['message']}: {error!r}\n{where}")

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        """Let a generator that the garbage collector found end without its ``finally``: a dead process has left it."""

    # ---- sockets ----------------------------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Callable[[], asyncio.BaseProtocol], *, sock: Any, **_: Any) -> Any:  # type: ignore[override]
        """Listen on a socket of the simulated world (``listeners.PlayedSocket``)."""
        return await sock.listen(protocol_factory)

    # ---- threads ----------------------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        in_order = executor if isinstance(executor, PlayedWorkers) and executor.threads == 1 else None
        return self.in_thread(in_order, func, *args)

    def in_thread(self, thread: object, func: Callable[..., Any], *args: Any, takes_s: float = 0.0) -> Any:
        """Return a future of the result of ``func``; work of the same ``thread`` keeps its order unless it is None."""
        future: asyncio.Future[Any] = self.create_future()
        process = PROCESS.get()
        begins = max(self._now, self._last.get(thread, 0.0) if thread is not None else 0.0)
        begins += self._delay(_BEGINS_S, process)
        seen = begins + takes_s + self._delay(_SEEN_S, process)
        if thread is not None:
            self._last[thread] = seen

        def begin() -> None:
            if process is not None and process.is_dead:
                _fail(future)
                return
            result: Any
            try:
                resolve, result = future.set_result, func(*args)
            except Exception as error:  # noqa: BLE001 - the waiter gets it
                resolve, result = future.set_exception, error  # type: ignore[assignment]
            if process is not None and process.is_dead:  # the process died during the work
                _fail(future)
                return
            self.call_at(max(seen, self._now), lambda: None if future.done() else resolve(result))

        self.call_at(begins, begin)
        return future

    def _delay(self, usual_s: float, process: PlayedProcess | None) -> float:
        slowness = 1.0 if process is None else process.slowness
        if self._rng.random() < _STALLS:
            return self._rng.uniform(0, _STALL_S)
        return self._rng.expovariate(1 / usual_s) * slowness


class PlayedWorkers(Executor):
    """An executor for a simulation: it does the work of threads at once."""

    def __init__(self, threads: int | None = None, *_: object, **__: object) -> None:
        self.threads = threads

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - the waiter gets it
            future.set_exception(error)
        return future

    def map(self, fn: Callable[..., T], *iterables: Iterable[Any], **_: Any) -> Iterator[T]:
        return iter([fn(*args) for args in zip(*iterables, strict=False)])


class PlayedDiskThread(DiskThread):
    """A ``DiskThread`` whose work runs on the loop."""

    def run(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> "asyncio.Future[T]":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        return loop.in_thread(self, lambda: work(*args, **kwargs))  # type: ignore[no-any-return]

    def close(self) -> None: ...


class PlayedThreads(Threads):
    """All threads of the stores that are made while this is in use."""

    def pool(self, count: int, name: str, niceness: int = 0) -> PlayedWorkers:
        return PlayedWorkers(count)

    def disk_thread(self, name: str) -> DiskThread:
        return PlayedDiskThread(name)


def _fail(future: asyncio.Future[Any]) -> None:
    """Report to what is left of a dead process that its disk is gone."""
    if not future.done():
        future.set_exception(CrashedError(errno.EIO, "the process is dead"))
        future.exception()  # mark the error as seen, because no code may be left to handle it
