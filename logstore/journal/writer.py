"""Does the disk work of the journal, on its one thread. Every method blocks.

Invariants (rules R1 and R3):
- The place of a frame is used again only if the bytes there were never durable and have been cut off, and the cut is
  synced.
- A file is begun only when the previous file is cut to its durable end and synced, and counts only when it is itself
  synced with its snapshot frames and its name. If that fails for lack of space or descriptors, its name is durably
  removed before the old file continues to grow.
- After the lock on the journal is lost, nothing is acknowledged, begun or removed: the files may belong to another
  process.
- After the open file has lost its name or was cut short, nothing is acknowledged: its bytes are lost when this process
  ends.
- A failed write or sync is final (StorageError): the kernel may have dropped the pages, and a second fsync might
  succeed without them. Lack of space is not final: the file is cut back to its durable end, and the next append tries
  again.
"""

import contextlib
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from logstore.clock import Clock
from logstore.entropy import random_bits
from logstore.errors import JournalFileLostError, LockLostError, StorageError, StorageFullError
from logstore.filesystem import Buffer, FileSystem
from logstore.journal.frame import HEADER_BYTES, FileHeader, Frame, encode_file_header, encode_frame_header, encode_mark
from logstore.journal.identity import JournalIdentity
from logstore.journal.journal_file import JournalFile, file_path
from logstore.journal.scan import Verdict
from logstore.limits import MIB
from logstore.observability import JOURNAL_FSYNC_SECONDS, JOURNAL_GROUP_BYTES

# Bytes reserved after the durable end: a full disk is found before a write, and most writes change no file size.
ALLOCATE_BYTES: Final = 4 * MIB
# Payloads up to this size are copied into one buffer, so that there are fewer buffers to write.
_COPY_BYTES_MAX: Final = 64 * 1024
_REWRITE_BYTES: Final = 4 * MIB

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})


class FileSwitchPostponedError(Exception):
    """No new file could be begun for lack of space or descriptors; the old file is intact and can continue to grow."""


class FrameBuffers:
    """Frames encoded one after another for a place in a file."""

    __slots__ = ("_buffers", "_durable_end", "_file_id", "_small", "end")

    def __init__(self, position: int, durable_end: int, file_id: int) -> None:
        self.end = position
        self._durable_end = durable_end
        self._file_id = file_id
        self._buffers: list[Buffer] = []
        self._small: list[Buffer] = []

    def add(self, frame: Frame) -> int:
        """Encode a frame at ``end``; return its length."""
        payload = frame.payload
        self._small.append(
            encode_frame_header(frame, position=self.end, durable_end=self._durable_end, file_id=self._file_id)
        )
        length = HEADER_BYTES + len(payload)
        if length <= _COPY_BYTES_MAX:
            self._small.append(payload)
        else:
            self._buffers.append(b"".join(self._small))
            self._buffers.append(payload)
            self._small.clear()
        self.end += length
        return length

    def buffers(self) -> list[Buffer]:
        if self._small:
            self._buffers.append(b"".join(self._small))
            self._small.clear()
        return self._buffers


class JournalWriter:
    """Writes, syncs, cuts, begins and removes journal files. Used from one thread at a time."""

    def __init__(
        self,
        directory: Path,
        filesystem: FileSystem,
        clock: Clock,
        file_bytes: int,
        require_lock: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._require_lock = require_lock
        self._filesystem = filesystem
        self._clock = clock
        self._allocate_bytes = min(ALLOCATE_BYTES, file_bytes)
        self._failed: StorageError | None = None
        # It is held open, so that the journal continues to work in a process without free descriptors.
        self._directory_fd: int | None = None

    # ---- a group -----------------------------------------------------------------------------------------------

    def commit(self, file: JournalFile, buffers: Sequence[Buffer], length: int) -> None:
        """Make ``length`` bytes durable at the file's durable end, and write a mark after them.

        The caller moves the durable end. Raises StorageFullError (none of the bytes is in the file) or StorageError.
        """
        self.check()
        filesystem = self._filesystem
        try:
            self._reserve(file, length)
            filesystem.write_at(file.fd, buffers, file.size)
        except OSError as e:
            if e.errno not in _FULL:
                raise self._final("write", file.path, e) from e
            self._cut_back(file)
            raise StorageFullError(
                f"no space left for {length} bytes in the journal at {self._directory}: nothing was stored; "
                "free space on that disk, and appends work again by themselves"
            ) from e
        filesystem.reached("journal.written")
        begun = self._clock.monotonic()
        try:
            filesystem.fdatasync(file.fd)
        except OSError as e:
            raise self._final("sync", file.path, e) from e
        JOURNAL_FSYNC_SECONDS.observe(self._clock.monotonic() - begun)
        JOURNAL_GROUP_BYTES.observe(length)
        filesystem.reached("journal.synced")
        # The lock is checked after the sync: a process that gets the lock later finds these frames when it recovers.
        self._check_lock()
        self._check_whole(file)
        # The next group would have the same effect, but a separate call would cost more than this write.
        self._mark(file, file.size + length)

    def _mark(self, file: JournalFile, size: int) -> None:
        """Write a mark after the durable end, so that damage before it can be distinguished from a crash's tail.

        The mark is not synced: a power cut soon after may lose it, but the end of the process does not.
        """
        mark = encode_mark(durable_end=file.start + size, file_id=file.file_id or 0)
        try:
            self._filesystem.write_at(file.fd, [mark], size)
        except OSError as e:
            if e.errno not in _FULL:
                raise self._final("write", file.path, e) from e

    def _reserve(self, file: JournalFile, length: int) -> None:
        needed = file.size + length
        if needed + HEADER_BYTES <= file.allocated:
            return
        ahead = needed + self._allocate_bytes
        self._check_whole(file)  # the reservation would hide that the file was cut short
        try:
            self._filesystem.allocate(file.fd, file.size, ahead - file.size)
        except OSError as e:
            if e.errno not in _FULL:
                raise
            # The remaining space may suffice for this group.
            self._filesystem.allocate(file.fd, file.size, length)
            ahead = needed
        file.allocated = ahead

    def _cut_back(self, file: JournalFile) -> None:
        """Cut everything after the durable end, durably."""
        file.allocated = file.size  # before the cut, which is not a loss
        try:
            self._filesystem.truncate(file.fd, file.size)
            self._filesystem.fsync(file.fd)
        except OSError as e:
            raise self._final("cut back", file.path, e) from e

    def _final(self, what: str, path: Path, e: OSError) -> StorageError:
        self._failed = StorageError(
            f"could not {what} journal file {path}: {e.strerror}. Appends are refused from now on, and whether "
            "the pending ones are stored shows after a restart, which reads the journal again; check the disk first"
        )
        return self._failed

    def check(self) -> None:
        """Raise the final failure, if there was one: work that was handed over before it is not done either."""
        if self._failed is not None:
            raise self._failed

    def _check_lock(self) -> None:
        try:
            self._require_lock()
        except StorageError as e:
            self._failed = e
            raise

    def check_files(self, files: Sequence[JournalFile]) -> None:
        """Fail for good, with JournalFileLostError, if one of the files kept has a ``loss``."""
        self.check()
        for file in files:
            self._check_whole(file)

    def _check_whole(self, file: JournalFile) -> None:
        try:
            file.require_whole()
        except StorageError as e:
            self._failed = e
            raise

    # ---- files -------------------------------------------------------------------------------------------------

    def begin_file(
        self, old: JournalFile | None, start: int, snapshots: Sequence[Frame], identity: JournalIdentity
    ) -> JournalFile:
        """Finish ``old`` and begin the file at ``start`` with its snapshot frames; durable when this returns.

        Raises FileSwitchPostponedError (``old`` is as before) or StorageError.
        """
        self.check()
        self._check_lock()
        if old is not None:
            self._check_whole(old)
            self._cut_back(old)
        path = file_path(self._directory, start)
        header = FileHeader(random_bits(64), start, self._clock.now_ms(), identity)
        frames = FrameBuffers(start + HEADER_BYTES, start, header.file_id)
        for snapshot in snapshots:
            frames.add(snapshot)
        try:
            if self._directory_fd is None:
                self._directory_fd = self._filesystem.open_read(self._directory)
            fd = self._filesystem.create(path)
        except OSError as e:
            if e.errno in _FULL | _NO_DESCRIPTORS:
                raise FileSwitchPostponedError from e
            raise self._final("create", path, e) from e
        self._filesystem.reached("journal.file_created")
        file = JournalFile(path, start, header.file_id, fd, self._filesystem)
        length = frames.end - start
        try:
            self._reserve(file, length)
            self._filesystem.write_at(fd, [encode_file_header(header), *frames.buffers()], 0)
        except OSError as e:
            file.close()
            if e.errno in _FULL:
                self.remove(path)
                raise FileSwitchPostponedError from e
            raise self._final("write", path, e) from e
        try:
            self._filesystem.fsync(fd)
            self._filesystem.sync_directory(self._directory, self._directory_fd)
            file.remember_name()
        except OSError as e:
            file.close()
            raise self._final("sync", path, e) from e
        file.size = length
        self._filesystem.reached("journal.snapshotted")
        return file

    def remove(self, path: Path) -> None:
        """Unlink a file durably, before any later file: otherwise a gap could appear. Raises StorageError."""
        self.check()
        self._check_lock()
        try:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.unlink(path)
            self._filesystem.sync_directory(self._directory, self._directory_fd)
        except OSError as e:
            raise self._final("remove", path, e) from e

    def free(self, file: JournalFile) -> None:
        self.remove(file.path)
        file.close()
        self._filesystem.reached("journal.file_freed")

    def finish(self, file: JournalFile) -> bool:
        """Leave only a synced mark after the durable end, at a clean shutdown.

        Return False, and change nothing, if the lock or the file's name is lost: another process may have moved the
        end.
        """
        try:
            self._require_lock()
            file.require_whole()
        except (LockLostError, JournalFileLostError):
            return False
        self._cut_back(file)
        self._mark(file, file.size)
        try:
            self._filesystem.fsync(file.fd)
        except OSError as e:
            raise self._final("sync", file.path, e) from e
        return True

    def close(self) -> None:
        if self._directory_fd is not None:
            self._filesystem.close(self._directory_fd)
            self._directory_fd = None

    # ---- recovery ----------------------------------------------------------------------------------------------

    def establish_end(self, verdict: Verdict) -> None:
        """Make the end that a scan found the durable end. May be interrupted and repeated. Raises StorageError."""
        if verdict.unborn is not None:
            self.remove(verdict.unborn)
        if not verdict.files:
            return
        last = verdict.files[-1]
        if last.allocated == last.size and verdict.attested_end >= verdict.end:
            return
        try:
            fd = self._filesystem.open_write(last.path)
            try:
                self._rewrite(fd, max(0, verdict.attested_end - last.start), last.size)
                self._filesystem.reached("journal.recovery_half")
                self._filesystem.truncate(fd, last.size)
                self._filesystem.fsync(fd)
            finally:
                self._filesystem.close(fd)
        except OSError as e:
            raise self._final("make durable the end of", last.path, e) from e
        last.allocated = last.size

    def _rewrite(self, fd: int, begin: int, end: int) -> None:
        """Write the same bytes again: after a failed sync the kernel treats pages as clean that are not on the disk."""
        while begin < end:
            chunk = self._filesystem.read_at(fd, min(_REWRITE_BYTES, end - begin), begin)
            self._filesystem.write_at(fd, [chunk], begin)
            begin += len(chunk)
