"""A file system in memory that loses nothing."""

import errno
import itertools
import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from logstore.clock import Clock
from logstore.filesystem import Buffer, FileSystem


@dataclass(eq=False)
class _Node:
    number: int
    changed_ns: int
    content: bytearray = field(default_factory=bytearray)
    #: The nodes of a directory by name; None for a file.
    names: "dict[str, _Node] | None" = None


class MemoryFileSystem(FileSystem):
    """A tree of nodes that replaces everything that ``FileSystem`` does on the disk; ``clock`` gives their times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._numbers = itertools.count(3)
        self._root = self._node(is_directory=True)
        self._open: dict[int, _Node] = {}
        self._locked: dict[int, Path] = {}

    def _node(self, *, is_directory: bool = False) -> _Node:
        return _Node(next(self._numbers), self._clock.now_ms() * 10**6, names={} if is_directory else None)

    def _find(self, path: Path | str) -> _Node:
        node = self._root
        for name in Path(path).parts[1:]:
            if node.names is None or name not in node.names:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            node = node.names[name]
        return node

    def _directory(self, path: Path | str) -> dict[str, _Node]:
        node = self._find(path)
        if node.names is None:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        node.changed_ns = self._clock.now_ms() * 10**6
        return node.names

    def _opened(self, node: _Node) -> int:
        fd = next(self._numbers)
        self._open[fd] = node
        return fd

    def create(self, path: Path) -> int:
        with self._lock:
            names = self._directory(path.parent)
            if path.name in names:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            names[path.name] = self._node()
            return self._opened(names[path.name])

    def open_read(self, path: Path | str) -> int:
        return self._opened(self._find(path))

    open_write = open_read

    def open_empty(self, path: Path, mode: int = 0o644) -> int:
        with self._lock:
            node = self._directory(path.parent).setdefault(path.name, self._node())
            node.content.clear()
            return self._opened(node)

    def allocate(self, fd: int, position: int, length: int) -> None:
        content = self._open[fd].content
        content.extend(bytes(max(0, position + length - len(content))))

    def write_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        data = b"".join(buffers)
        self.allocate(fd, position, len(data))
        self._open[fd].content[position : position + len(data)] = data
        return len(data)

    def read_at(self, fd: int, length: int, position: int) -> bytes:
        return bytes(self._open[fd].content[position : position + length])

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        data = self.read_at(fd, len(buffer), position)
        buffer[: len(data)] = data
        return len(data)

    def stat(self, path: Path | str) -> os.stat_result:
        node = self._find(path)
        mode = stat.S_IFREG if node.names is None else stat.S_IFDIR
        second, changed = node.changed_ns // 10**9, node.changed_ns
        whole = (mode, node.number, 1, 1, 0, 0, len(node.content), second, second, second)
        return os.stat_result(whole, {"st_mtime_ns": changed})

    def names(self, path: Path | str) -> list[str]:
        found = self._find(path).names
        if found is None:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return list(found)

    def is_link(self, path: Path | str) -> bool:
        return False

    def real_path(self, path: Path | str) -> Path:
        return Path(path)

    def now_ns(self, directory: Path) -> int:
        return self._clock.now_ms() * 10**6

    def free_bytes(self, directory: Path) -> int:
        return 10**12

    total_bytes = free_bytes

    def try_lock(self, path: Path) -> int | None:
        with self._lock:
            if path in self._locked.values():
                return None
            fd = self._opened(self._directory(path.parent).setdefault(path.name, self._node()))
            self._locked[fd] = path
            return fd

    def inode(self, fd: int) -> tuple[int, int]:
        return 1, self._open[fd].number

    def size(self, fd: int) -> int:
        return len(self._open[fd].content)

    def truncate(self, fd: int, length: int) -> None:
        content = self._open[fd].content
        del content[length:]
        content.extend(bytes(length - len(content)))

    def fdatasync(self, fd: int) -> None: ...

    fsync = fdatasync

    def close(self, fd: int) -> None:
        with self._lock:
            del self._open[fd]
            self._locked.pop(fd, None)

    def sync_file(self, path: Path) -> None:
        self._find(path)

    def sync_directory(self, path: Path, fd: int | None = None) -> None:
        self._find(path)

    def make_directory(self, path: Path, *, parents: bool = True) -> None:
        with self._lock:
            if self.is_directory(path):
                return
            if parents:
                self.make_directory(path.parent)
            self._directory(path.parent).setdefault(path.name, self._node(is_directory=True))

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            node = self._find(old)
            target = self._directory(new.parent)
            del self._directory(old.parent)[old.name]
            target[new.name] = node

    def link(self, old: Path, new: Path) -> None:
        with self._lock:
            names = self._directory(new.parent)
            if new.name in names:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
            names[new.name] = self._find(old)

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._find(path)
            del self._directory(path.parent)[path.name]

    def remove_tree(self, path: Path) -> None:
        with self._lock:
            if self.exists(path):
                del self._directory(path.parent)[path.name]

    def files(self) -> dict[str, bytes]:
        """Return the content of each file by its path."""
        found = {}
        ways = [("", self._root)]
        for way, node in ways:
            if node.names is None:
                found[way] = bytes(node.content)
            else:
                ways += [(f"{way}/{name}", child) for name, child in node.names.items()]
        return found
