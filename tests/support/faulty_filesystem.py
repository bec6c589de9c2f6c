"""A disk that fails on command, and a power cut.

``FaultyFileSystem`` works on real files (they are the page cache: what a restarted process sees) and keeps beside them
what a disk would hold: per file the bytes and length of the last successful sync, per directory the names of the last
directory sync. ``power_cut`` makes the real files what a machine could find after losing power: every page and every
name changed since is, each on its own, the old or the new one.
"""

import errno
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from logstore.filesystem import Buffer, FileSystem

PAGE = 512
"""Bytes that reach the disk or not as one: a sector, the least that a power cut can tear."""


@dataclass(slots=True)
class _Inode:
    """What the disk holds of a file, and what was changed since."""

    disk: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    # Set when a length was changed since the last sync.
    resized: bool = False


@dataclass(slots=True)
class _Rule:
    call: str
    countdown: int
    error: int
    written: int
    times: int


class CrashedError(OSError):
    """The process is dead: no call reaches the disk any more."""


class FaultyFileSystem(FileSystem):
    """A FileSystem over real files below one directory, with faults to order."""

    def __init__(self) -> None:
        super().__init__()
        self._crash_at = ""
        self._crash_countdown = 0
        self._lock = threading.RLock()
        self._inodes: dict[int, _Inode] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._rules: list[_Rule] = []
        self._quota: int | None = None
        self._ordered = False
        self.crashed = False
        self.calls: list[str] = []
        self.points: list[str] = []
        self._open: set[int] = set()

    # ---- orders ------------------------------------------------------------------------------------------------

    def fail(self, call: str, error: int = errno.EIO, *, nth: int = 1, written: int = 0, times: int = 1) -> None:
        """Let the ``nth`` next ``call`` raise, ``times`` in a row; a write first writes ``written`` bytes."""
        self._ordered = True
        self._rules.append(_Rule(call, nth, error, written, times))

    @property
    def faulty(self) -> bool:
        """Whether any order was given since the start or ``heal``."""
        return self._ordered

    def heal(self) -> None:
        """Forget all orders; the disk has space."""
        self._rules.clear()
        self._quota = None
        self._ordered = False

    def fill(self, free_bytes: int = 0) -> None:
        """Let the disk have this many bytes left: more is ENOSPC, and a write is cut short there."""
        self._ordered = True
        self._quota = free_bytes

    def crash(self) -> None:
        """kill -9: from now on no call has an effect."""
        self.crashed = True

    def restart(self) -> None:
        """A new process on the same machine: the page cache is still there."""
        self.heal()
        self.crashed = False
        self._crash_at = ""

    def crash_at(self, point: str, count: int = 1) -> None:
        """kill -9 when the ``count``-th next call reaches ``point``."""
        self._crash_at, self._crash_countdown = point, count

    def _called(self, call: str) -> _Rule | None:
        if self.crashed:
            raise CrashedError(errno.EIO, "the process is dead")
        self.calls.append(call)
        for rule in self._rules:
            if rule.call == call:
                rule.countdown -= 1
                if rule.countdown <= 0:
                    rule.times -= 1
                    if rule.times <= 0:
                        self._rules.remove(rule)
                    return rule
        return None

    @staticmethod
    def _raise(rule: _Rule | None) -> None:
        if rule:
            raise OSError(rule.error, os.strerror(rule.error))

    def reached(self, point: str) -> None:
        self.points.append(point)
        if point == self._crash_at:
            self._crash_countdown -= 1
            if self._crash_countdown == 0:
                self.crash()
        if self.crashed:
            raise CrashedError(errno.EIO, f"the process died at {point}")

    # ---- calls -------------------------------------------------------------------------------------------------

    def create(self, path: Path) -> int:
        with self._lock:
            self._names_of(path.parent)
            self._raise(self._called("create"))
            fd = super().create(path)
            self._inodes[os.fstat(fd).st_ino] = _Inode()
            self._open.add(fd)
            return fd

    def open_read(self, path: Path) -> int:
        with self._lock:
            self._names_of(path.parent)
            self._raise(self._called("open_read"))
            fd = self._known(super().open_read(path))
            self._open.add(fd)
            return fd

    def open_write(self, path: Path) -> int:
        with self._lock:
            self._names_of(path.parent)
            self._raise(self._called("open_write"))
            fd = self._known(super().open_write(path))
            self._open.add(fd)
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._open.discard(fd)
            super().close(fd)

    def close_all(self) -> None:
        """What the kernel does for a process that ended: nothing may use its descriptors any more."""
        for fd in list(self._open):
            self.close(fd)

    def allocate(self, fd: int, position: int, length: int) -> None:
        with self._lock:
            rule = self._called("allocate")
            grown = max(0, position + length - os.fstat(fd).st_size)
            if rule is None and self._quota is not None:
                if grown > self._quota:
                    rule = _Rule("allocate", 0, errno.ENOSPC, 0, 1)
                else:
                    self._quota -= grown
            self._raise(rule)
            self._changed(fd, position, 0)
            # A sparse length reads the same, and does not take space from the machine that tests.
            os.ftruncate(fd, max(os.fstat(fd).st_size, position + length))

    def write_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        with self._lock:
            rule = self._called("write_at")
            data = b"".join(buffers)
            if rule is None and self._quota is not None:
                grown = position + len(data) - os.fstat(fd).st_size
                if grown > self._quota:
                    rule = _Rule("write_at", 0, errno.ENOSPC, max(0, len(data) - grown + self._quota), 1)
                elif grown > 0:
                    self._quota -= grown
            if rule:
                data = data[: rule.written]
            self._changed(fd, position, len(data))
            super().write_at(fd, [data], position)
            self._raise(rule)
            return len(data)

    def read_at(self, fd: int, length: int, position: int) -> bytes:
        with self._lock:
            self._raise(self._called("read_at"))
        return super().read_at(fd, length, position)

    def truncate(self, fd: int, length: int) -> None:
        with self._lock:
            self._raise(self._called("truncate"))
            size = os.fstat(fd).st_size
            if self._quota is not None:
                self._quota += max(0, size - length)
            self._changed(fd, min(size, length), abs(size - length))
            super().truncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, "fdatasync")

    def fsync(self, fd: int) -> None:
        self._sync(fd, "fsync")

    def sync_file(self, path: Path) -> None:
        if path.is_dir():
            self.sync_directory(path)
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            self._sync(self._known(fd), "sync_file")
        finally:
            os.close(fd)

    def _sync(self, fd: int, call: str) -> None:
        with self._lock:
            rule = self._called(call)
            inode = self._inodes[os.fstat(fd).st_ino]
            if rule is None:
                size = os.fstat(fd).st_size
                del inode.disk[size:]
                inode.disk.extend(bytes(size - len(inode.disk)))
                for page in inode.dirty:
                    data = os.pread(fd, PAGE, page * PAGE)
                    inode.disk[page * PAGE : page * PAGE + len(data)] = data
                inode.resized = False
            # As Linux does: after a failed sync the pages count as clean, and no later sync writes them.
            inode.dirty.clear()
            self._raise(rule)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._names_of(path)
            self._raise(self._called("sync_directory"))
            self._names[path] = _listing(path)

    def make_directory(self, path: Path) -> None:
        with self._lock:
            if self.crashed:
                raise CrashedError(errno.EIO, "the process is dead")
            path.mkdir(parents=True, exist_ok=True)
            self._names_of(path)

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            self._names_of(new.parent)
            self._raise(self._called("rename"))
            super().rename(old, new)

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._names_of(path.parent)
            self._raise(self._called("unlink"))
            # The bytes stay for a name that comes back.
            fd = os.open(path, os.O_RDONLY)
            self._known(fd)
            os.close(fd)
            if self._quota is not None:
                self._quota += path.stat().st_size
            path.rename(_attic(path.parent) / str(path.stat().st_ino))

    # ---- the disk ----------------------------------------------------------------------------------------------

    def _known(self, fd: int) -> int:
        """A file that was there before is durable as it is."""
        stat = os.fstat(fd)
        if stat.st_ino not in self._inodes:
            self._inodes[stat.st_ino] = _Inode(bytearray(os.pread(fd, stat.st_size, 0)))
        return fd

    def _names_of(self, directory: Path) -> None:
        if directory not in self._names:
            self._names[directory] = _listing(directory)

    def _changed(self, fd: int, position: int, length: int) -> None:
        self._known(fd)
        inode = self._inodes[os.fstat(fd).st_ino]
        inode.dirty.update(range(position // PAGE, (position + length + PAGE - 1) // PAGE))
        inode.resized = True

    def power_cut(self, rng: random.Random) -> None:
        """Make the files what a start after a loss of power may find. This object is then a dead process's."""
        with self._lock:
            self.crashed = True
            for directory, durable in self._names.items():
                self._cut_directory(directory, durable, rng)

    def _cut_directory(self, directory: Path, durable: dict[str, int], rng: random.Random) -> None:
        attic = _attic(directory)
        now = _listing(directory)
        contents: dict[str, bytes] = {}
        for name in sorted({*now, *durable}):
            inode_number = rng.choice([durable.get(name), now.get(name)])
            if inode_number is None:
                continue
            path = directory / name if now.get(name) == inode_number else attic / str(inode_number)
            contents[name] = self._after_cut(path, inode_number, rng)
        for name in now:
            (directory / name).unlink()
        for name, content in contents.items():
            (directory / name).write_bytes(content)
        for path in attic.iterdir():
            path.unlink()

    def _after_cut(self, path: Path, inode_number: int, rng: random.Random) -> bytes:
        seen = path.read_bytes()
        inode = self._inodes.get(inode_number)
        if inode is None:
            return seen
        size = rng.choice([len(inode.disk), len(seen)]) if inode.resized else len(inode.disk)
        content = bytearray(size)
        content[: len(inode.disk)] = inode.disk[:size]
        # Mostly pages go one by one; sometimes all or none of them, which is what quick disks do.
        odds = rng.choice([0.0, 0.5, 0.5, 0.9, 1.0])
        for page in inode.dirty:
            if rng.random() < odds:
                begin, end = page * PAGE, min((page + 1) * PAGE, size)
                data = seen[begin:end]
                content[begin : begin + len(data)] = data
        return bytes(content)


def _attic(directory: Path) -> Path:
    """Where unlinked files wait for the directory to be synced or the power to be cut."""
    attic = directory.with_name(directory.name + ".unlinked")
    attic.mkdir(exist_ok=True)
    return attic


def _listing(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in directory.iterdir() if path.is_file()}
