"""An exclusive lock of a directory: a file in it that one process holds with ``flock(2)``.

The lock is on the file, not on its name: if the name is removed or leads to another file, a second process can get a
lock. So ``held`` compares the name's inode with the locked one. If two such checks agree, no other process held the
lock between them, because the inode of an open file is not reused.
"""

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from logstore.errors import DataDirectoryError, LockLostError
from logstore.filesystem import FileSystem

NAME = "lock"


class LockFile:
    """A held lock. Make one with ``acquire``; it is held until ``release``, or until the process ends."""

    def __init__(self, path: Path, fd: int, filesystem: FileSystem) -> None:
        self.path = path
        self._filesystem = filesystem
        self._fd: int | None = fd
        self._inode = filesystem.inode(fd)

    @classmethod
    def acquire(cls, directory: Path, filesystem: FileSystem) -> "LockFile":
        """Lock ``directory``. Raises DataDirectoryError, naming the holder, if another process has it, and OSError."""
        path = directory / NAME
        while True:
            fd = filesystem.try_lock(path)
            if fd is None:
                raise DataDirectoryError(
                    f"Another process is serving {directory}{_holder(path, filesystem)}: stop it, or give another "
                    "directory with --data."
                )
            lock = cls(path, fd, filesystem)
            if lock.held:
                lock._sign()
                return lock
            lock.release()  # the name was removed between open and flock

    @property
    def held(self) -> bool:
        """True if the name still leads to the file that is locked here."""
        try:
            status = self._filesystem.stat(self.path)
        except OSError:
            return False
        return self._fd is not None and (status.st_dev, status.st_ino) == self._inode

    def require(self) -> None:
        """Raise LockLostError unless the lock is ``held``."""
        if not self.held:
            raise LockLostError(
                f"{self.path} was removed or replaced while this process held it: another process may be serving "
                f"{self.path.parent} by now. Nothing is acknowledged from now on: stop this process"
            )

    def release(self) -> None:
        if self._fd is not None:
            self._filesystem.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.release()

    def _sign(self) -> None:
        """Write the holder into the file, for people. Only the error message to the next process reads it."""
        assert self._fd is not None
        self._filesystem.truncate(self._fd, 0)
        holder = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        self._filesystem.write_at(self._fd, [holder.encode()], 0)


def require_all(locks: Iterable[LockFile]) -> None:
    """Raise LockLostError unless all of them are ``held``."""
    for lock in locks:
        lock.require()


def _holder(path: Path, filesystem: FileSystem) -> str:
    try:
        content = json.loads(filesystem.read_file(path))
        return f" (pid {int(content['pid'])} on {str(content['host'])[:255]})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
