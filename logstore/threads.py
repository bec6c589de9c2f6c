"""Threads: the server starts all of its threads here, and a simulation replaces them by workers that it runs itself."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

from logstore.disk_thread import DiskThread


class Threads:
    """Makes threads of the operating system."""

    def pool(self, count: int, name: str, niceness: int = 0) -> Executor:
        """Return up to ``count`` threads, which start with the first work; ``niceness`` lowers their priority."""
        return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_step_back, initargs=(niceness,))

    def disk_thread(self, name: str) -> DiskThread:
        return DiskThread(name)


_threads = Threads()


def threads() -> Threads:
    """Return the maker of the threads of this process."""
    return _threads


@contextlib.contextmanager
def replaced(by: Threads) -> Iterator[None]:
    """Start no threads while the block runs, but give their work to ``by``."""
    global _threads  # noqa: PLW0603 - one for the process, as chance is
    before, _threads = _threads, by
    try:
        yield
    finally:
        _threads = before


def _step_back(niceness: int) -> None:
    """Lower the priority of the calling thread, if a thread can have a separate one."""
    if niceness and sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)
