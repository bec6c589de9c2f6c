"""An exclusive lock of a directory: a file in it that one process holds with ``flock(2)``.

The lock is on the file, not on its name: if the name is removed or leads to another file, a second process can get a
lock. ``held`` therefore compares the name's inode with the one that is locked. Two such looks that agree prove that no
other process held the lock between them: the inode of an open file is not reused.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from logstore.errors import DataDirectoryError, LockLostError

NAME = "lock"


class LockFile:
    """Make one with ``acquire``; it is held until ``release``, or until the process ends."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd: int | None = fd
        status = os.fstat(fd)
        self._inode = status.st_dev, status.st_ino

    @classmethod
    def acquire(cls, directory: Path) -> "LockFile":
        """Lock ``directory``. DataDirectoryError, naming the holder, if another process has it; OSError."""
        path = directory / NAME
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(fd)
                os.close(fd)
                raise DataDirectoryError(
                    f"Another process is serving {directory}{holder}: stop it, or give another directory with --data."
                ) from None
            except BaseException:
                os.close(fd)
                raise
            lock = cls(path, fd)
            if lock.held:
                lock._sign()
                return lock
            lock.release()  # the name was taken away between open and flock

    @property
    def held(self) -> bool:
        """Whether the name still leads to the file that is locked here."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - called for every group commit
        except OSError:
            return False
        return self._fd is not None and (status.st_dev, status.st_ino) == self._inode

    def require(self) -> None:
        """LockLostError unless the lock is ``held``."""
        if not self.held:
            raise LockLostError(
                f"{self.path} was removed or replaced while this process held it: another process may be serving "
                f"{self.path.parent} by now. Nothing is acknowledged from now on: stop this process"
            )

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.release()

    def _sign(self) -> None:
        """The holder, for people. Only the error message to the next process reads it."""
        assert self._fd is not None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)


def require_all(locks: Iterable[LockFile]) -> None:
    """LockLostError unless all of them are ``held``."""
    for lock in locks:
        lock.require()


def _holder(fd: int) -> str:
    try:
        content = json.loads(os.pread(fd, 1024, 0))
        return f" (pid {int(content['pid'])} on {str(content['host'])[:255]})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
