"""One journal file: its name, its descriptor, and the partitions that still need it.

Invariants: ``size`` counts durable bytes only; the descriptor is closed when its last reader has finished;
a file is needed while any partition has an end offset in ``needed_by``.
"""

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from logstore.errors import JournalFileLostError, StorageError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import HEADER_BYTES, FrameHeader, decode_file_header
from logstore.journal.identity import JournalIdentity

PartitionKey = tuple[UUID, int]
"""Topic id, partition."""

_NAME: Final = re.compile(r"(\d{20})\.log")


def file_path(directory: Path, start: int) -> Path:
    """Return the path of the file whose first byte is at journal position ``start``."""
    return directory / f"{start:020d}.log"


def list_files(directory: Path, filesystem: FileSystem) -> list[tuple[int, Path]]:
    """Return (start position, path) of a directory's journal files, in order; other files there are ignored."""
    matches = map(_NAME.fullmatch, filesystem.names(directory))
    return sorted((int(match[1]), directory / match[0]) for match in matches if match)


class JournalFile:
    """An open journal file, shared by the writer and any number of readers."""

    __slots__ = (
        "_closing",
        "_fd",
        "_filesystem",
        "_inode",
        "_lock",
        "_users",
        "allocated",
        "data_bytes",
        "file_id",
        "identity",
        "needed_by",
        "path",
        "size",
        "start",
    )

    def __init__(self, path: Path, start: int, file_id: int | None, fd: int, filesystem: FileSystem) -> None:
        self.path = path
        self.start = start
        # None if the file's header is damaged: no frame in the file counts then.
        self.file_id = file_id
        self.identity: JournalIdentity | None = None
        self.size = 0
        # Bytes of the file on the disk, including the reserved ones.
        self.allocated = 0
        # Bytes appended since this process began the file.
        self.data_bytes = 0
        # The end offset (exclusive) of the frames in this file, for each partition that still needs it.
        self.needed_by: dict[PartitionKey, int] = {}
        self._fd = fd
        # Device and inode number of the file that the name led to; None until ``remember_name``.
        self._inode: tuple[int, int] | None = None
        self._filesystem = filesystem
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False

    @classmethod
    def open(cls, path: Path, start: int, filesystem: FileSystem) -> "JournalFile":
        """Open an existing file for reading. Raises OSError and DataDirectoryError."""
        fd = filesystem.open_read(path)
        try:
            header = decode_file_header(filesystem.read_at(fd, HEADER_BYTES, 0), start)
            file = cls(path, start, header.file_id if header else None, fd, filesystem)
            file.identity = header.identity if header else None
            file.allocated = filesystem.size(fd)
            file.remember_name()
        except BaseException:
            filesystem.close(fd)
            raise
        return file

    def remember_name(self) -> None:
        """Remember the inode to which the name leads now as that of this file. Raises OSError."""
        status = self._filesystem.stat(self.path)
        self._inode = status.st_dev, status.st_ino

    @property
    def loss(self) -> str | None:
        """How the file was lost: its name leads to another file or to none, or it is shorter than its reserved bytes.
        None while it is whole. It costs one system call.
        """
        if self._inode is None:
            return None
        allocated = self.allocated  # before the look, because it only grows after the file
        try:
            status = self._filesystem.stat(self.path)
        except OSError:
            return "removed or replaced"
        if (status.st_dev, status.st_ino) != self._inode:
            return "removed or replaced"
        return "cut short" if status.st_size < allocated else None

    def require_whole(self) -> None:
        """Raise JournalFileLostError if the file has a ``loss``."""
        if (loss := self.loss) is not None:
            raise JournalFileLostError(
                f"journal file {self.path} was {loss} while this process wrote to it. Nothing is "
                "acknowledged from now on. Stop this process: at its stop it puts what it still reads into the tables. "
                "Then put the file system of the journal back, and start again"
            )

    @property
    def fd(self) -> int:
        """The descriptor, for the writer; readers use ``read``."""
        return self._fd

    @property
    def end(self) -> int:
        """The journal position of the durable end."""
        return self.start + self.size

    def add(self, header: FrameHeader, sealed: Mapping[PartitionKey, int]) -> None:
        """Note that a frame is durable; a frame below ``sealed`` is not needed."""
        if not header.takes_offsets:
            return
        key = (header.topic_id, header.partition)
        end = header.end_offset
        if end > self.needed_by.get(key, 0) and not (sealed and end <= sealed.get(key, 0)):
            self.needed_by[key] = end

    def read(self, position: int, length: int) -> bytes:
        """Read up to ``length`` bytes at a journal position, from any thread.

        Raises JournalRangeFreedError once the file is closed, and StorageError.
        """
        with self._lock:
            if self._closing:
                raise JournalRangeFreedError(
                    f"journal position {position} is freed: what was there is sealed, relocated or deleted; "
                    "look it up again"
                )
            self._users += 1
        try:
            return self._filesystem.read_at(self._fd, length, position - self.start)
        except OSError as e:
            raise StorageError(
                f"cannot read journal file {self.path} at journal position {position}: {e.strerror}; check the disk"
            ) from e
        finally:
            with self._lock:
                self._users -= 1
                last = self._closing and not self._users
            if last:
                self._filesystem.close(self._fd)

    def close(self) -> None:
        """Close once no reader is inside; later reads raise JournalRangeFreedError."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            last = not self._users
        if last:
            self._filesystem.close(self._fd)
