"""The disk as one process sees it: its descriptors end with it, and of a process that was killed nothing reaches it."""

import errno
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logstore.filesystem import FileSystem
from logstore.segments import foreign_file
from tests.simulation.loop import PlayedProcess
from tests.support.faulty_filesystem import CrashedError

_NOTED = frozenset(
    {
        "create",
        "open_read",
        "write_at",
        "truncate",
        "fdatasync",
        "fsync",
        "sync_file",
        "sync_directory",
        "rename",
        "link",
    }
    | {"unlink", "write_atomically", "reached"}
)
_OPENING = frozenset({"create", "open_read", "open_write", "try_lock"})


class ProcessDisk(FileSystem):
    """``note`` is told of each call that changes or syncs something, with its path below ``root``."""

    def __init__(self, disk: FileSystem, process: PlayedProcess, root: Path, note: Callable[..., None]) -> None:
        self._disk, self._process, self._root, self._note = disk, process, f"{root}", note
        self._open: dict[int, str] = {}

    def _where(self, place: object) -> str:
        if isinstance(place, int):
            return self._open.get(place, "")
        return str(place).removeprefix(self._root)

    def release(self) -> None:
        """Close what is open, as the kernel does for a process that has ended; it forgets what it has read."""
        foreign_file._opened.clear()
        for fd in self._open:
            self._disk.close(fd)
        self._open.clear()


def _passed_on(name: str) -> Callable[..., Any]:
    @functools.wraps(getattr(FileSystem, name))
    def call(self: ProcessDisk, *args: Any, **options: Any) -> Any:
        if self._process.is_dead:
            if name == "close":  # it is closed already
                return None
            raise CrashedError(errno.EIO, "the process is dead")
        if name in _NOTED:
            self._note(name, *map(self._where, args[:1] if name != "rename" else args))
        found = getattr(self._disk, name)(*args, **options)
        if name in _OPENING and found is not None:
            self._open[found] = self._where(args[0])
        elif name == "close":
            self._open.pop(args[0], None)
        return found

    return call


for _name, _ in inspect.getmembers(FileSystem, inspect.isfunction):
    if not _name.startswith("_"):
        setattr(ProcessDisk, _name, _passed_on(_name))
