"""A disk that fails on command, and a power cut.

``FaultyFileSystem`` works on real files, which are the page cache: what a restarted process sees. Given a root, it also
keeps what a disk would hold of that tree: the bytes and the length of a file at its last successful sync, and the names
of a directory at its last sync. Everything that exists when it is made is durable. Files that others write into the
tree (delta-rs, shutil) are durable once they are synced through here. ``power_cut`` makes the tree one that a machine
could find after losing power.

Faults are ordered by call (``write_at``, or for one kind of file: ``journal.write_at``, ``segment.fdatasync``,
``delta.sync_file``, ``segment.read_into`` ...) or by named point (``journal.written``); ``hits`` counts both, under all
of these names.
"""

import contextlib
import errno
import functools
import itertools
import os
import random
import shutil
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from logstore import lock_file
from logstore.filesystem import Buffer, FileSystem

PAGE = 512
"""Bytes that reach the disk or not as one: a sector, the least that a power cut can tear."""

SHORT = 0
"""Instead of an error: a read gives half of the bytes that it was asked for, as POSIX allows at any time."""

_CHANGES = frozenset(
    {"create", "open_write", "allocate", "write_at", "truncate", "make_directory", "rename", "link", "unlink"}
)


@dataclass(slots=True)
class _Inode:
    """The content of a file on the disk, and the changes since."""

    disk: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)
    # True if the length was changed since the last sync.
    resized: bool = False


@dataclass(slots=True, eq=False)
class _Directory:
    """The names that a directory has on the disk: of files (inode numbers) and of directories."""

    inode: int
    names: "dict[str, int | _Directory]" = field(default_factory=dict)


@dataclass(slots=True)
class _Rename:
    """A rename from one directory to another: both names change on the disk, or neither."""

    source: _Directory
    old: str
    target: _Directory
    new: str
    entry: "int | _Directory"

    def happen(self) -> None:
        if self.source.names.get(self.old) == self.entry:
            del self.source.names[self.old]
        self.target.names[self.new] = self.entry


@dataclass(slots=True)
class _Rule:
    call: str
    path: str
    countdown: int
    error: int
    written: int
    times: int
    dies: bool = False


class CrashedError(OSError):
    """The process is dead: no call reaches the disk any more."""


class FaultyFileSystem(FileSystem):
    """A FileSystem with faults to order, and with a disk to lose power if it is given the ``root`` of a tree."""

    def __init__(self, root: Path | None = None, machine: str = "") -> None:
        """Begin without faults; ``machine`` names one of several that share the tree in one process."""
        self.root = root
        self._below = f"{root}/"
        # It has links to all files ever seen, so that their bytes stay and their inode numbers are not reused.
        self._attic = root.with_name(f"{root.name}.attic-{machine}-{os.getpid()}") if root else None
        # It has the inode numbers of files that another process with such a disk has synced.
        self._ledger = root.with_name(f"{root.name}.synced") if root else None
        self._lock = threading.RLock()
        self._forced: dict[tuple[_Directory, str], int | _Directory | None] = {}
        self._inodes: dict[int, _Inode] = {}
        self._original: set[int] = set()
        #: Inode numbers of the files in the attic.
        self._kept: set[int] = set()
        self._directories: dict[Path, _Directory] = {}
        self._renames: list[_Rename] = []
        self._paths: dict[int, Path] = {}
        self._rules: list[_Rule] = []
        self._points: list[tuple[str, list[int], Callable[[str], None]]] = []
        self._slow: dict[str, float] = {}
        #: By path, the position of a byte that reads find changed, and how.
        self._flips: dict[Path, tuple[int, int]] = {}
        self._quota: int | None = None
        self._readonly = False
        self._ordered = False
        #: A spare descriptor for work that only this disk does, so that a process without descriptors does not notice
        #: it.
        self.spare_fd: int | None = None
        #: Directories below the root that are on the disks of other machines, if they share the rest of it.
        self.of_others: Callable[[Path], bool] | None = None
        #: Inode numbers of directories that this process has made, and of files that it has unlinked.
        self._touched: set[int] = set()
        self.crashed = False
        self.hits: Counter[str] = Counter()
        #: Every fault that happened: the order, and the call that it hit.
        self.injected: list[str] = []
        if root:
            self._begin(root)

    # ---- orders ------------------------------------------------------------------------------------------------

    def fail(
        self,
        call: str,
        error: int = errno.EIO,
        *,
        nth: int = 1,
        written: int = 0,
        times: int = 1,
        path: str = "",
        dies: bool = False,
    ) -> None:
        """Let the ``nth`` next ``call`` raise, ``times`` in a row; a write first writes ``written`` bytes.

        ``dies``: instead of raising, the real process is killed.

        ``call`` may be restricted to one kind of file (``journal.write_at``); ``path`` has to occur in the file's path.
        """
        with self._lock:
            self._ordered = True
            self._rules.append(_Rule(call, path, nth, error, written, times, dies))

    def at(self, point: str, action: Callable[[str], None], *, nth: int = 1) -> None:
        """Run an action when ``point`` is reached, or that call is made, for the ``nth`` next time."""
        with self._lock:
            self._points.append((point, [nth], action))

    def crash_at(self, point: str, count: int = 1) -> None:
        """Crash this object, as kill -9 does, when the ``count``-th next call reaches ``point``."""
        self.at(point, lambda _: self.crash(), nth=count)

    def slow(self, call: str, seconds: float) -> None:
        """Let each ``call`` take this much longer."""
        self._ordered = True
        self._slow[call] = seconds

    def flip(self, path: Path, position: int, bits: int) -> None:
        """Let reads of a file find other ``bits`` in the byte at ``position``."""
        self._ordered = True
        self._flips[path] = (position, bits)

    def readonly(self) -> None:
        """Let every change of the disk fail with EROFS."""
        self._ordered = self._readonly = True

    def fill(self, free_bytes: int = 0) -> None:
        """Let the disk have this many free bytes: more is ENOSPC, and a write is cut short there."""
        self._ordered = True
        self._quota = free_bytes

    @property
    def faulty(self) -> bool:
        """True if a fault was ordered since the start or ``heal``."""
        return self._ordered

    def heal(self, *, points: bool = True) -> None:
        """Forget all orders, but keep those ``at`` points unless ``points``; the disk has space again."""
        with self._lock:
            self._rules.clear()
            if points:
                self._points.clear()
            self._slow.clear()
            self._flips.clear()
            self._quota = None
            self._ordered = self._readonly = False

    def crash(self) -> None:
        """Let no call have an effect from now on, as after kill -9."""
        self.crashed = True

    def restart(self) -> None:
        """Begin a new process on the same machine, which still has the page cache."""
        self.heal()
        self.crashed = False

    def holding(self) -> contextlib.AbstractContextManager[object]:
        """Let no call of another thread begin in this block."""
        return self._lock

    def close_all(self) -> None:
        """Close all descriptors, as the kernel does for an ended process."""
        for fd in list(self._paths):
            self.close(fd)

    # ---- faults ------------------------------------------------------------------------------------------------

    def _called(self, call: str, path: Path | None) -> _Rule | None:
        """Return the fault of this call, if there is one that the caller has to carry out."""
        if self.crashed:
            raise CrashedError(errno.EIO, "the process is dead")
        names = _names(call, f"{path}") if path else (call,)
        for name in names:
            self.hits[name] += 1
        self._strike(names)
        if self._readonly and call in _CHANGES:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        for rule in self._rules:
            if rule.call in names and rule.path in str(path or ""):
                rule.countdown -= 1
                if rule.countdown <= 0:
                    rule.times -= 1
                    if rule.times <= 0:
                        self._rules.remove(rule)
                    self.injected.append(f"{rule.call} {errno.errorcode.get(rule.error, 'SHORT')} {path or ''}")
                    return rule
        return None

    def _delay(self, call: str, path: Path | None) -> None:
        if not self._slow:
            return
        for name in (call, f"{kind_of(path)}.{call}" if path else ""):
            if name in self._slow:
                time.sleep(self._slow[name])

    def _strike(self, names: Collection[str]) -> None:
        for order in list(self._points):
            point, countdown, action = order
            if point in names:
                countdown[0] -= 1
                if countdown[0] == 0:
                    self._points.remove(order)
                    self.injected.append(point)
                    action(point)

    @staticmethod
    def _raise(rule: _Rule | None) -> None:
        if rule and rule.dies:
            kill(rule.call)
        if rule and rule.error != SHORT:
            raise OSError(rule.error, os.strerror(rule.error))

    def reached(self, point: str) -> None:
        with self._lock:
            self.hits[point] += 1
            self._strike((point,))
            if self.crashed:
                raise CrashedError(errno.EIO, f"the process died at {point}")

    # ---- calls -------------------------------------------------------------------------------------------------

    def create(self, path: Path) -> int:
        with self._lock:
            self._raise(self._called("create", path))
            fd = super().create(path)
            self._inodes[self._seen(path)] = _Inode()
            self._paths[fd] = path
            return fd

    def open_read(self, path: Path | str) -> int:
        path = Path(path)
        with self._lock:
            self._raise(self._called("open_read", path))
            fd = super().open_read(path)
            self._paths[fd] = path
            return fd

    def open_write(self, path: Path) -> int:
        with self._lock:
            self._raise(self._called("open_write", path))
            fd = super().open_write(path)
            self._paths[fd] = path
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._paths.pop(fd, None)
            super().close(fd)

    def allocate(self, fd: int, position: int, length: int) -> None:
        with self._lock:
            rule = self._called("allocate", self._paths.get(fd))
            grown = max(0, position + length - os.fstat(fd).st_size)
            if rule is None and self._quota is not None:
                if grown > self._quota:
                    rule = self._full("allocate", 0)
                else:
                    self._quota -= grown
            self._raise(rule)
            self._changed(fd, position, 0)
            # A sparse length reads the same, and needs no space on the machine that tests.
            os.ftruncate(fd, max(os.fstat(fd).st_size, position + length))

    def write_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        self._delay("write_at", self._paths.get(fd))
        with self._lock:
            rule = self._called("write_at", self._paths.get(fd))
            data = b"".join(buffers)
            if rule is None and self._quota is not None:
                grown = position + len(data) - os.fstat(fd).st_size
                if grown > self._quota:
                    rule = self._full("write_at", max(0, len(data) - grown + self._quota))
                elif grown > 0:
                    self._quota -= grown
            if rule:
                data = data[: rule.written]
            self._changed(fd, position, len(data))
            super().write_at(fd, [data], position)
            self._raise(rule)
            return len(data)

    def _full(self, call: str, written: int) -> _Rule:
        self.injected.append(f"{call} ENOSPC (full)")
        return _Rule(call, "", 0, errno.ENOSPC, written, 1)

    def read_at(self, fd: int, length: int, position: int) -> bytes:
        with self._lock:
            self._raise(self._called("read_at", self._paths.get(fd)))
        found = super().read_at(fd, length, position)
        if self._flips:
            changed = bytearray(found)
            self._damage(fd, memoryview(changed), position)
            return bytes(changed)
        return found

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        self._delay("read_into", self._paths.get(fd))
        with self._lock:
            rule = self._called("read_into", self._paths.get(fd))
        if rule and rule.error == SHORT:
            return super().read_into(fd, buffer[: (len(buffer) + 1) // 2], position)
        self._raise(rule)
        count = super().read_into(fd, buffer, position)
        if self._flips:
            self._damage(fd, buffer[:count], position)
        return count

    def _damage(self, fd: int, buffer: memoryview, position: int) -> None:
        path = self._paths.get(fd)
        if path is not None and path in self._flips:
            at, bits = self._flips[path]
            if position <= at < position + len(buffer):
                buffer[at - position] ^= bits
                self.injected.append(f"flip {path}")

    def stat(self, path: Path | str) -> os.stat_result:
        with self._lock:
            self._raise(self._called("stat", Path(path)))
        return super().stat(path)

    def names(self, path: Path | str) -> list[str]:
        with self._lock:
            self._raise(self._called("names", Path(path)))
        return super().names(path)

    def truncate(self, fd: int, length: int) -> None:
        with self._lock:
            self._raise(self._called("truncate", self._paths.get(fd)))
            size = os.fstat(fd).st_size
            if self._quota is not None:
                self._quota += max(0, size - length)
            self._changed(fd, min(size, length), abs(size - length))
            super().truncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        self._sync(fd, "fdatasync", self._paths.get(fd))

    def fsync(self, fd: int) -> None:
        self._sync(fd, "fsync", self._paths.get(fd))

    def sync_file(self, path: Path) -> None:
        if path.is_dir():
            self.sync_directory(path)
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            self._sync(fd, "sync_file", path)
        finally:
            os.close(fd)

    def _sync(self, fd: int, call: str, path: Path | None) -> None:
        self._delay(call, path)
        with self._lock:
            rule = self._called(call, path)
            inode = self._inode(fd)
            if rule is None and self.root:
                self._make_durable(fd, inode)
            # This is what Linux does: after a failed sync the pages count as clean, and no later sync writes them.
            inode.dirty.clear()
            self._raise(rule)

    def _make_durable(self, fd: int, inode: _Inode) -> None:
        status = os.fstat(fd)
        size = status.st_size
        del inode.disk[size:]
        inode.disk.extend(bytes(size - len(inode.disk)))
        for first, end in _runs(inode.dirty):
            data = os.pread(fd, (end - first) * PAGE, first * PAGE)
            inode.disk[first * PAGE : first * PAGE + len(data)] = data
        inode.resized = False
        os.write(self._ledger_fd, b"%d\n" % status.st_ino)

    def sync_directory(self, path: Path, fd: int | None = None) -> None:
        with self._lock:
            self._raise(self._called("sync_directory", path))
            if self._covers(path):
                directory = self._directory(path)
                for rename in [r for r in self._renames if directory in (r.source, r.target)]:
                    rename.happen()
                    self._renames.remove(rename)
                directory.names = self._listing(path)

    def make_directory(self, path: Path, *, parents: bool = True) -> None:
        with self._lock:
            missing = list(itertools.takewhile(lambda one: not one.is_dir(), (path, *path.parents)))
            if missing:
                self._raise(self._called("make_directory", path))
            super().make_directory(path, parents=parents)
            self._touched.update(one.stat().st_ino for one in missing)

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            self._raise(self._called("rename", new))
            if self._covers(new) and old.parent != new.parent:
                entry = self._directory(old) if old.is_dir() else self._seen(old)
                source, target = self._directory(old.parent), self._directory(new.parent)
                self._renames.append(_Rename(source, old.name, target, new.name, entry))
            if self._covers(new) and old.is_dir():
                self._touched.add(old.stat().st_ino)
            super().rename(old, new)
            for path in [path for path in self._directories if path == old or old in path.parents]:
                self._directories[new / path.relative_to(old)] = self._directories.pop(path)

    def link(self, old: Path, new: Path) -> None:
        with self._lock:
            self._raise(self._called("link", new))
            super().link(old, new)

    def remove_tree(self, path: Path) -> None:
        with self._lock:
            if not self.crashed:
                if self._covers(path) and path.exists():
                    self._touched.add(path.stat().st_ino)
                super().remove_tree(path)

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._raise(self._called("unlink", path))
            if self._covers(path):
                self._touched.add(self._seen(path))
            if self._quota is not None:
                self._quota += path.stat().st_size
            super().unlink(path)

    # ---- the disk ----------------------------------------------------------------------------------------------

    def _begin(self, root: Path) -> None:
        assert self._attic
        assert self._ledger
        for attic in root.parent.glob(f"{root.name}.attic-*"):
            if not Path(f"/proc/{attic.name.rpartition('-')[2]}").exists() or attic == self._attic:
                shutil.rmtree(attic, ignore_errors=True)
        self._attic.mkdir(parents=True)
        # It is opened once, so that a sync needs no descriptor when none is left.
        self._ledger_fd = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        weakref.finalize(self, os.close, self._ledger_fd)
        self._seen_synced = self._ledger.stat().st_size
        if root.is_dir():
            self._take_over(root)

    def _take_over(self, directory: Path) -> None:
        names = self._listing(directory)
        self._directory(directory).names = names
        self._original.update(entry for entry in names.values() if isinstance(entry, int))
        for name, entry in names.items():
            if isinstance(entry, _Directory):
                self._take_over(directory / name)

    def _covers(self, path: Path) -> bool:
        return self.root is not None and f"{path}/".startswith(self._below)

    def _directory(self, path: Path) -> _Directory:
        inode = path.stat().st_ino
        known = self._directories.get(path)
        if known is None or known.inode != inode:
            known = self._directories[path] = _Directory(inode)
        return known

    def _entries(self, directory: Path) -> list[os.DirEntry[str]]:
        spare, self.spare_fd = self.spare_fd, None
        if spare is None:
            with os.scandir(directory) as entries:
                return list(entries)
        os.close(spare)
        try:
            with os.scandir(directory) as entries:
                return list(entries)
        finally:
            with contextlib.suppress(OSError):
                self.spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _listing(self, directory: Path) -> "dict[str, int | _Directory]":
        names: dict[str, int | _Directory] = {}
        for entry in self._entries(directory):
            if entry.is_symlink():
                continue  # the store makes none
            try:
                if entry.is_dir():
                    names[entry.name] = self._directory(directory / entry.name)
                else:
                    names[entry.name] = self._keep(entry.path, entry.inode())
            except FileNotFoundError:
                continue  # another library's temporary file
        return names

    def _seen(self, path: Path) -> int:
        return self._keep(path, path.stat().st_ino)

    def _keep(self, path: Path | str, number: int) -> int:
        if self._attic and number not in self._kept:
            kept = self._attic / str(number)
            with contextlib.suppress(FileExistsError):
                os.link(path, kept)
            if kept.stat().st_ino != number:  # another file has got this name meanwhile
                kept.unlink()
                return self._seen(path)
            self._kept.add(number)
        return number

    def _inode(self, fd: int) -> _Inode:
        status = os.fstat(fd)
        inode = self._inodes.get(status.st_ino)
        if inode is None:
            inode = self._inodes[status.st_ino] = _Inode()
            if status.st_ino in self._original:
                inode.disk = bytearray(os.pread(fd, status.st_size, 0))
            else:
                inode.dirty.update(range((status.st_size + PAGE - 1) // PAGE))
                inode.resized = True
        return inode

    def _changed(self, fd: int, position: int, length: int) -> None:
        inode = self._inode(fd)
        inode.dirty.update(range(position // PAGE, (position + length + PAGE - 1) // PAGE))
        inode.resized = True

    def power_cut(self, rng: random.Random, *, strict: bool = False) -> None:
        """Make the tree one that a start after a loss of power may find. This object then belongs to a dead process.

        Each name and each page that was changed since its last sync has, independently, the old or the new value;
        ``strict``: always the old one.
        """
        assert self.root
        assert self._ledger
        with self._lock:
            self.crashed = True
            with self._ledger.open("rb") as ledger:
                ledger.seek(self._seen_synced)
                mine = self._inodes.keys()
                self._original.update(number for number in map(int, ledger) if number not in mine)
            forced = self._forced
            for rename in self._renames:
                if strict or rng.random() < 0.5:
                    forced[rename.source, rename.old] = rename.source.names.get(rename.old)
                    forced[rename.target, rename.new] = rename.target.names.get(rename.new)
                else:
                    rename.happen()
                    forced[rename.source, rename.old] = None
                    forced[rename.target, rename.new] = rename.entry
            self._cut(self.root, self._directory(self.root), rng, strict=strict)

    def _cut(self, path: Path, directory: _Directory, rng: random.Random, *, strict: bool) -> None:
        now = self._listing(path) if path.is_dir() else {}
        path.mkdir(exist_ok=True)
        for name in sorted({*now, *directory.names}):
            old, new = directory.names.get(name), now.get(name)
            is_gone = new is None and (directory, name) not in self._forced
            if is_gone and isinstance(old, _Directory) and not self._is_own(old):
                continue  # another process has taken it away
            if self.of_others is not None and self.of_others(path / name):
                continue
            if old != new and isinstance(new, int) and self._is_durable_elsewhere(path / name, new):
                old = new
            if self.of_others is not None and not self._is_own(new if old is None else old):
                old = new  # another machine has made or removed it
            chosen = old if strict else rng.choice([old, new])
            chosen = self._forced.get((directory, name), chosen)
            if chosen != new and new is not None:
                _remove(path / name)
            if isinstance(chosen, _Directory):
                self._cut(path / name, chosen, rng, strict=strict)
            elif chosen is not None:
                self._restore(path / name, chosen, rng, strict=strict)

    def _is_own(self, entry: "int | _Directory | None") -> bool:
        """Return whether this process has made, renamed or removed the directory, or changed or unlinked the file."""
        if isinstance(entry, _Directory):
            return entry.inode in self._touched
        return entry in self._inodes or entry in self._touched

    def _is_durable_elsewhere(self, path: Path, number: int) -> bool:
        """Return whether another process wrote and synced the file: it is in the ledger, or a Spark task's segment."""
        return number in self._original or (number not in self._inodes and path.suffix == ".parquet")

    def _restore(self, path: Path, number: int, rng: random.Random, *, strict: bool) -> None:
        assert self._attic
        seen = (self._attic / str(number)).read_bytes()
        content = seen
        if self._inodes.get(number) or not self._is_durable_elsewhere(path, number):
            inode = self._inodes.get(number) or _Inode(
                dirty=set(range((len(seen) + PAGE - 1) // PAGE)), resized=bool(seen)
            )
            content = bytes(inode.disk) if strict else _after_cut(seen, inode, rng)
        if content != seen or not path.exists():
            # The file is replaced in one step, because readers on other machines may have it open, or open it now.
            restored = self._attic / "restored"
            restored.write_bytes(content)
            restored.replace(path)


def _after_cut(seen: bytes, inode: _Inode, rng: random.Random) -> bytes:
    size = rng.choice([len(inode.disk), len(seen)]) if inode.resized else len(inode.disk)
    content = bytearray(size)
    content[: len(inode.disk)] = inode.disk[:size]
    # Mostly each page is decided alone; sometimes all or none are kept, as on quick disks.
    odds = rng.choice([0.0, 0.5, 0.5, 0.9, 1.0])
    for page in inode.dirty:
        if rng.random() < odds:
            begin, end = page * PAGE, min((page + 1) * PAGE, size)
            data = seen[begin:end]
            content[begin : begin + len(data)] = data
    return bytes(content)


def _runs(pages: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the first page and the end of each run of neighbours."""
    first = end = -1
    for page in sorted(pages):
        if page == end:
            end += 1
            continue
        if first >= 0:
            yield first, end
        first, end = page, page + 1
    if first >= 0:
        yield first, end


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def kill(_: str) -> None:
    """Kill the real process; an action for ``FaultyFileSystem.at``."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(_: str) -> None:
    """Stop the real process until SIGCONT; an action for ``FaultyFileSystem.at``."""
    os.kill(os.getpid(), signal.SIGSTOP)


def raising(error: int) -> Callable[[str], None]:
    """Return an action for ``FaultyFileSystem.at`` that lets the point fail as a call would."""

    def action(point: str) -> None:
        raise OSError(error, os.strerror(error), point)

    return action


@functools.lru_cache(8192)
def _names(call: str, path: str) -> tuple[str, str]:
    """Return the names under which faults of a call are ordered."""
    return call, f"{kind_of(Path(path))}.{call}"


@functools.lru_cache(1024)
def kind_of(path: Path) -> str:
    """Return the kind of a file of a data directory: lock, delta, segment, journal, broker or catalog."""
    parts = path.parts
    if path.name == lock_file.NAME:
        return "lock"
    if "_delta_log" in parts:
        return "delta"
    if any(part.startswith("partition=") for part in parts):
        return "segment"
    return next((name for part, name in _KINDS if part in parts), "catalog")


_KINDS = (("journal", "journal"), ("brokers", "broker"))
