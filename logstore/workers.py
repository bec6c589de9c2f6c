"""The server's threads: pools for work that blocks, and the threads of the disk work of journals.

All of them are made here, so that a simulation can put threads of its own in their place (``play``). Small pieces of
blocking work go to the event loop's own threads (``asyncio.to_thread``), which a simulation's loop plays as well.
"""

import os
import sys
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import ContextVar

from logstore.disk_thread import DiskThread


class Workers:
    """The threads of the operating system."""

    def pool(self, threads: int, name: str, niceness: int) -> Executor:
        if not niceness:
            return ThreadPoolExecutor(threads, thread_name_prefix=name)
        return ThreadPoolExecutor(threads, thread_name_prefix=name, initializer=_step_back, initargs=(niceness,))

    def disk_thread(self, name: str) -> DiskThread:
        return DiskThread(name)


_OF_THE_SYSTEM = Workers()
_WORKERS: ContextVar[Workers] = ContextVar("workers", default=_OF_THE_SYSTEM)  # noqa: B039 (it has no state)


def worker_pool(threads: int, name: str, *, niceness: int = 0) -> Executor:
    """An executor of up to ``threads`` threads, which give way to those of requests by ``niceness``."""
    return _WORKERS.get().pool(threads, name, niceness)


def disk_thread(name: str) -> DiskThread:
    """A thread that does disk work in the order in which it is given."""
    return _WORKERS.get().disk_thread(name)


def play(workers: Workers) -> None:
    """Have ``workers`` make the threads of all that is started in this context, for a simulation."""
    _WORKERS.set(workers)


def _step_back(niceness: int) -> None:
    """Lower the priority of the calling thread, where a thread has one of its own."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
