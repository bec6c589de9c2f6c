"""The interface to the disk: every call of a running store on its files goes through here, reads and writes.

Tables go through ``logstore.table_files``, which uses this. A test replaces it by
``tests.support.faulty_filesystem.FaultyFileSystem``, in its own process or in a real server's, to tear a write, fail or
shorten a read, fill the disk, fail an fsync, cut the power, or kill the process at a named point.
"""

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

Buffer = bytes | bytearray | memoryview

_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


class FileSystem:
    """POSIX calls with full writes; paths are local. Every method raises OSError like the system call."""

    def reached(self, point: str) -> None:
        """Name a point of a protocol (``journal.written``, ``delta.committed`` ...) where a crash must be harmless."""

    def create(self, path: Path) -> int:
        """Open a new file for reading and writing. Raises FileExistsError if it exists."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open_read(self, path: Path | str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def open_write(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_empty(self, path: Path, mode: int = 0o644) -> int:
        """Open a file for reading and writing; it is created or emptied."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)

    def allocate(self, fd: int, position: int, length: int) -> None:
        """Reserve space, so that a full disk is found before anything is written."""
        os.posix_fallocate(fd, position, length)

    def write_at(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers at ``position``. Return the number of bytes written (always all of them)."""
        views = [memoryview(b).cast("B") for b in buffers if len(b)]
        total = sum(len(v) for v in views)
        done = 0
        while views:
            n = os.pwritev(fd, views[:512], position + done)
            done += n
            while views and n >= len(views[0]):
                n -= len(views.pop(0))
            if n:
                views[0] = views[0][n:]
        return total

    def read_at(self, fd: int, length: int, position: int) -> bytes:
        """Read up to ``length`` bytes at ``position``; fewer only at the end of the file."""
        chunk = os.pread(fd, length, position)
        if len(chunk) == length or not chunk:
            return chunk
        parts = [chunk]
        done = len(chunk)
        while done < length and (chunk := os.pread(fd, length - done, position + done)):
            parts.append(chunk)
            done += len(chunk)
        return b"".join(parts)

    def read_into(self, fd: int, buffer: memoryview, position: int) -> int:
        """Call ``preadv`` once. Return how many bytes of ``buffer`` it filled, 0 at the end of the file."""
        return os.preadv(fd, (buffer,), position)

    def read_file(self, path: Path) -> bytes:
        """Read the content of a small file."""
        fd = self.open_read(path)
        try:
            return self.read_at(fd, self.size(fd), 0)
        finally:
            self.close(fd)

    def stat(self, path: Path | str) -> os.stat_result:
        return os.stat(path)

    def exists(self, path: Path | str) -> bool:
        """Return whether ``path`` leads to something. Raises OSError if that is unknown."""
        try:
            self.stat(path)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise
        return True

    def is_directory(self, path: Path | str) -> bool:
        """Return whether ``path`` leads to a directory, like ``exists``."""
        try:
            return stat.S_ISDIR(self.stat(path).st_mode)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise

    def names(self, path: Path | str) -> list[str]:
        """Return the names in a directory, in no order."""
        return os.listdir(path)

    def is_link(self, path: Path | str) -> bool:
        return os.path.islink(path)

    def real_path(self, path: Path | str) -> Path:
        """Return ``path`` without links."""
        return Path(os.path.realpath(path))

    def now_ns(self, directory: Path) -> int:
        """Return the time of the file system that holds ``directory``, from an unnamed file made in it."""
        with tempfile.TemporaryFile(dir=directory) as file:  # an empty file gets its time even on a full disk
            return os.fstat(file.fileno()).st_mtime_ns

    def free_bytes(self, directory: Path) -> int:
        """Return the bytes that a user may still write to the file system that holds ``directory``."""
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, directory: Path) -> int:
        """Return the size of the file system that holds ``directory``."""
        status = os.statvfs(directory)
        return status.f_blocks * status.f_frsize

    def try_lock(self, path: Path) -> int | None:
        """Return a descriptor that locks ``path``, created if necessary, until it is closed; None if another one holds
        it.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def inode(self, fd: int) -> tuple[int, int]:
        """Return device and inode number of an open file."""
        status = os.fstat(fd)
        return status.st_dev, status.st_ino

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Sync like fdatasync, with all metadata: for use after a cut, or before a file's name is relied on."""
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def sync_file(self, path: Path) -> None:
        """Call fsync on a file that another library wrote (rule R7)."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: Path, fd: int | None = None) -> None:
        """Make names created, renamed or removed in ``path`` durable; without a new descriptor if ``fd`` is open."""
        if fd is None:
            self.sync_file(path)
        else:
            os.fsync(fd)

    def make_directory(self, path: Path, *, parents: bool = True) -> None:
        """Create ``path`` and its parents, each durably. Without ``parents`` raises FileNotFoundError if one is
        missing.
        """
        if path.is_dir():
            return
        if parents:
            self.make_directory(path.parent)
        path.mkdir(exist_ok=True)
        self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name. Raises FileExistsError if ``new`` exists."""
        os.link(old, new)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and everything below it, as far as possible. Nobody waits for it, nor is it durable."""
        shutil.rmtree(path, ignore_errors=True)

    def write_atomically(self, path: Path, content: bytes, *, mode: int = 0o644) -> None:
        """Replace a small file durably: a reader sees the old content or the new, never a mixture. ``mode`` is its
        permissions, before the process's umask.
        """
        temporary = path.with_name(path.name + ".tmp")
        fd = self.open_empty(temporary, mode)
        try:
            self.write_at(fd, [content], 0)
            self.fdatasync(fd)
        finally:
            self.close(fd)
        self.rename(temporary, path)
        self.sync_directory(path.parent)


_local = FileSystem()


def local_filesystem() -> FileSystem:
    """Return the file system of this process."""
    return _local
