"""The journal on a disk in memory: the view is the real one, its thread and its files are modelled.

Work for the disk is done when the schedule says so. A kill leaves the finished work, and any first frames of the group
that was being written.
"""

import asyncio
import enum
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from logstore.clock import Clock
from logstore.errors import StorageError, StorageFullError
from logstore.filesystem import Buffer
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import HEADER_BYTES, Frame, FrameLocation, FrameType, decode_frame_header
from logstore.journal.identity import ExpectedJournal, FoundJournal, JournalIdentity, JournalRecord
from logstore.journal.journal import Callback, Journal
from logstore.journal.journal_file import JournalFile
from logstore.journal.position_recorder import PositionRecorder
from logstore.journal.scan import RecoveredFrame, Verdict
from logstore.journal.writer import FrameBuffers

_FILESYSTEM: Any = SimpleNamespace(reached=lambda _: None)
_KEPT = (FrameType.SNAPSHOT, FrameType.CONTROL)


class StoredFile:
    """The bytes of a journal file. The first ``synced`` are durable: all, unless a planted bug reports too early."""

    __slots__ = ("data", "file_id", "identity", "start", "synced")

    def __init__(self, start: int, file_id: int, identity: JournalIdentity) -> None:
        self.start, self.file_id, self.identity = start, file_id, identity
        self.data = bytearray(HEADER_BYTES)
        self.synced = HEADER_BYTES

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def copy(self) -> "StoredFile":
        copied = StoredFile(self.start, self.file_id, self.identity)
        copied.data, copied.synced = self.data[:], self.synced
        return copied


class DiskFault(enum.Enum):
    """A fault of a log directory while its process is dead. All but the first two leave the file beside the journal
    unchanged.
    """

    NONE = enum.auto()
    ALL_LOST = enum.auto()
    JOURNAL_LOST = enum.auto()
    JOURNAL_OLDER = enum.auto()
    JOURNAL_CUT = enum.auto()
    JOURNAL_WITHOUT_ITS_OLDEST_FILE = enum.auto()


class Disk:
    """A broker's log directory, which outlives its processes; also the file beside its journal (``JournalRecord``)."""

    def __init__(self) -> None:
        self.files: list[StoredFile] = []
        self.next_file_id = 1
        #: The payloads that were ever durable here.
        self.ever: set[bytes] = set()
        self.directory = ExpectedJournal(uuid4(), None)
        self.starts = 0
        #: True if the start found another journal than the one before (``ExpectedJournal.is_begun_in``).
        self.may_lack_frames = False
        #: A copy of the journal at an earlier moment.
        self.image: list[StoredFile] = []

    # ---- the file beside the journal ----

    @property
    def identity(self) -> JournalIdentity:
        return JournalIdentity(self.directory.directory_id, self.starts)

    def record(self, durable_end: int, file_id: int, begin: int) -> None:
        assert durable_end <= self.files[-1].start + self.files[-1].synced
        assert begin >= self.files[0].start
        self.directory = replace(self.directory, durable_end=durable_end, file_id=file_id, begin=begin)

    def begin(self, *, trusted: bool) -> bool:
        """Return whether a start finds the expected journal; otherwise the journal gets another identity.

        ``trusted``: a planted bug, which relies only on the file beside the journal.
        """
        self.starts += 1
        newest = self.files[-1] if self.files else None
        end, identity = (0, None) if newest is None else (newest.end, newest.identity)
        files = tuple((file.start, file.file_id) for file in self.files)
        found = FoundJournal(Path(), end, identity, is_empty=newest is None, files=files)
        is_known = trusted or self.directory.difference(found) is None
        if not is_known:
            self.directory = ExpectedJournal(uuid4(), None)
        self.may_lack_frames = not trusted and not self.directory.is_begun_in(found)
        return is_known

    # ---- faults ----

    def keep_image(self) -> None:
        self.image = [file.copy() for file in self.files]

    def suffer(self, fault: DiskFault, chance: random.Random) -> None:
        """Apply a fault that can be detected: an image that is less than a second older looks like the journal."""
        recorded = self.directory.durable_end
        match fault:
            case DiskFault.ALL_LOST:
                self.files, self.directory = [], ExpectedJournal(uuid4(), None)
            case DiskFault.JOURNAL_LOST if recorded is not None:
                self.files = []
            case DiskFault.JOURNAL_OLDER if recorded is not None and self.image and self.image[-1].end < recorded:
                self.files = [file.copy() for file in self.image]
            case DiskFault.JOURNAL_WITHOUT_ITS_OLDEST_FILE if recorded is not None and len(self.files) > 1:
                del self.files[0]
            case DiskFault.JOURNAL_CUT if recorded is not None and self.files and self.files[-1].start < recorded:
                self._cut(chance)
            case _:
                pass

    def _cut(self, chance: random.Random) -> None:
        """End the newest file between two frames that were durable when the position was written down."""
        recorded, file = self.directory.durable_end, self.files[-1]
        assert recorded is not None
        at = HEADER_BYTES
        ends = [at] if len(self.files) > 1 else []
        while at < len(file.data):
            found = decode_frame_header(bytes(file.data), at, file.start + at, file.file_id)
            assert found is not None
            at += HEADER_BYTES + found.payload_length
            ends.append(at)
        if ends := [end for end in ends if file.start + end < recorded]:
            del file.data[chance.choice(ends) :]
            file.synced = len(file.data)


class MemoryFile(JournalFile):
    """A process's view of a file."""

    __slots__ = ("stored",)

    def __init__(self, stored: StoredFile) -> None:
        super().__init__(Path(f"{stored.start}.log"), stored.start, stored.file_id, -1, _FILESYSTEM)
        self.stored = stored

    def read(self, position: int, length: int) -> bytes:
        if self._closing:
            raise JournalRangeFreedError("freed")
        at = position - self.start
        return bytes(self.stored.data[at : at + length])

    def close(self) -> None:
        self._closing = True


class _Writer:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def commit(self, file: MemoryFile, buffers: Sequence[Buffer], length: int) -> None:
        for buffer in buffers:
            file.stored.data += buffer
        file.stored.synced = len(file.stored.data)

    def check_files(self, files: Sequence[JournalFile]) -> None:
        """Check nothing, because nobody removes files of a running process."""

    def establish_end(self, verdict: Verdict) -> None:
        """Do nothing, because a kill leaves whole frames."""

    def begin_file(
        self, old: MemoryFile | None, start: int, snapshots: Sequence[Frame], identity: JournalIdentity
    ) -> MemoryFile:
        del old
        stored = StoredFile(start, self._disk.next_file_id, identity)
        self._disk.next_file_id += 1
        frames = FrameBuffers(start + HEADER_BYTES, start, stored.file_id)
        for snapshot in snapshots:
            frames.add(snapshot)
        for buffer in frames.buffers():
            stored.data += buffer
        stored.synced = len(stored.data)
        self._disk.files.append(stored)
        file = MemoryFile(stored)
        file.size = file.allocated = len(stored.data)
        return file

    def free(self, file: MemoryFile) -> None:
        self._disk.files.remove(file.stored)
        file.close()


class DiskWork:
    """The disk's thread: its work is done item by item, when the schedule says so."""

    #: A planted bug: a group is reported as stored before it is durable.
    tells_early = False

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.pending: deque[tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]] = deque()

    def run(self, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.tells_early and work.__name__ == "commit":
            file = args[0]
            synced = file.stored.synced
            work(*args)
            file.stored.synced = synced
            future.set_result(None)

            def sync() -> None:
                file.stored.synced = len(file.stored.data)

            self.pending.append((sync, (), asyncio.get_running_loop().create_future()))
            return future
        self.pending.append((work, args, future))
        return future

    @property
    def is_committing(self) -> bool:
        return bool(self.pending) and self.pending[0][0].__name__ == "commit"

    def do(self) -> None:
        work, args, future = self.pending.popleft()
        future.set_result(work(*args))

    def fail(self, *, full: bool) -> None:
        """Fail to store the group being written: for lack of space, or for good."""
        _, _, future = self.pending.popleft()
        future.set_exception(StorageFullError("full") if full else StorageError("the disk is broken"))

    def die(self, chance: random.Random) -> None:
        """Kill the process: the disk has any first frames of the group being written."""
        if self.is_committing:
            _, (file, buffers, _), _ = self.pending[0]
            data = b"".join(buffers)
            ends = [0]
            while ends[-1] < len(data):
                stored = decode_frame_header(data, ends[-1], None, None)
                assert stored is not None
                ends.append(ends[-1] + HEADER_BYTES + stored.payload_length)
            file.stored.data += data[: chance.choice(ends)]
            file.stored.synced = len(file.stored.data)
        self.pending.clear()
        for stored in self._disk.files:
            del stored.data[stored.synced :]

    def close(self) -> None: ...


class MemoryJournal(Journal):
    def __init__(self, disk: Disk, clock: Clock, file_bytes: int, recent_bytes: int) -> None:
        super().__init__(
            Path("journal"), filesystem=_FILESYSTEM, clock=clock, file_bytes=file_bytes, recent_bytes=recent_bytes
        )
        self.disk = disk
        self.work = DiskWork(disk)
        self._writer = _Writer(disk)  # type: ignore[assignment]
        self._thread = self.work  # type: ignore[assignment]

    def _position_recorder(self, record: JournalRecord) -> PositionRecorder:
        recorder = super()._position_recorder(record)
        recorder._thread = self.work  # type: ignore[assignment]
        return recorder

    def store(self, frames: Sequence[Frame], told: Callback) -> None:
        def durable(locations: Sequence[FrameLocation], error: Any) -> None:
            if error is None:
                self.disk.ever.update(bytes(frame.payload) for frame in frames if frame.header.has_records)
            told(locations, error)

        super().store(frames, durable)

    def recover(self) -> Iterator[RecoveredFrame]:
        for stored in self.disk.files:
            file = MemoryFile(stored)
            at, data = HEADER_BYTES, bytes(stored.data)
            while at < len(data):
                found = decode_frame_header(data, at, stored.start + at, stored.file_id)
                assert found is not None, "a hole in the journal"
                end = at + HEADER_BYTES + found.payload_length
                file.add(found.header, {})
                payload = data[at + HEADER_BYTES : end] if found.header.type in _KEPT else None
                if found.header.has_records:
                    self.disk.ever.add(data[at + HEADER_BYTES : end])
                yield RecoveredFrame(found.header, FrameLocation(stored.start + at, end - at), payload)
                at = end
            file.size = file.allocated = len(data)
            self._files.append(file)
            self._end_position = file.end
        self._verdict = Verdict(tuple(self._files), self._end_position, self._end_position, None, 0)
