"""The disk as one process sees it: its descriptors end with it, and of a process that was killed nothing reaches it."""

import errno
import functools
import inspect
from collections.abc import Callable
from typing import Any

from logstore.filesystem import FileSystem
from tests.simulation.loop import PlayedProcess
from tests.support.faulty_filesystem import CrashedError

_OPENING = frozenset({"create", "open_read", "open_write", "try_lock"})


class ProcessDisk(FileSystem):
    def __init__(self, disk: FileSystem, process: PlayedProcess) -> None:
        self._disk, self._process = disk, process
        self._open: set[int] = set()

    def release(self) -> None:
        """Close what is open, as the kernel does for a process that has ended."""
        for fd in sorted(self._open):
            self._disk.close(fd)
        self._open.clear()


def _passed_on(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(FileSystem, name))
    def call(self: ProcessDisk, *args: Any, **options: Any) -> Any:
        if self._process.is_dead:
            if name == "close":  # it is closed already
                return None
            raise CrashedError(errno.EIO, "the process is dead")
        found = getattr(self._disk, name)(*args, **options)
        if name in _OPENING and found is not None:
            self._open.add(found)
        elif name == "close":
            self._open.discard(args[0])
        return found

    return call


for _name, _ in inspect.getmembers(FileSystem, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(ProcessDisk, _name, _passed_on(_name))
