"""The journal on a disk of memory: the view is the real one, its thread and its files are modelled.

Work for the disk is done when the schedule says so. A kill leaves what was done, and any first frames of the group that
was on its way.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from logstore.clock import Clock
from logstore.errors import StorageError, StorageFullError
from logstore.filesystem import Buffer
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import HEADER_BYTES, Frame, FrameLocation, FrameType, decode_frame_header
from logstore.journal.journal import Journal, Told
from logstore.journal.journal_file import JournalFile
from logstore.journal.scan import RecoveredFrame
from logstore.journal.writer import FrameBuffers

_FILESYSTEM: Any = SimpleNamespace(reached=lambda _: None)
_KEPT = (FrameType.SNAPSHOT, FrameType.CONTROL)


class StoredFile:
    """The bytes of a journal file. The first ``synced`` are durable: all, unless a planted bug tells too early."""

    __slots__ = ("data", "file_id", "start", "synced")

    def __init__(self, start: int, file_id: int) -> None:
        self.start, self.file_id = start, file_id
        self.data = bytearray(HEADER_BYTES)
        self.synced = HEADER_BYTES


class Disk:
    """A broker's log directory, which outlives its processes."""

    def __init__(self) -> None:
        self.files: list[StoredFile] = []
        self.next_file_id = 1
        #: The payloads that were ever durable here.
        self.ever: set[bytes] = set()

    def wipe(self) -> None:
        self.files.clear()


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

    def begin_file(self, old: MemoryFile | None, start: int, snapshots: Sequence[Frame]) -> MemoryFile:
        del old
        stored = StoredFile(start, self._disk.next_file_id)
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
    """The disk's thread: its work is done one by one, when the schedule says so."""

    #: A planted bug: a group is told before it is durable.
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
        """The group on its way is not stored: for lack of space, or for good."""
        _, _, future = self.pending.popleft()
        future.set_exception(StorageFullError("full") if full else StorageError("the disk is broken"))

    def die(self, chance: random.Random) -> None:
        """The process is killed: any first frames of the group on its way are on the disk."""
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

    def store(self, frames: Sequence[Frame], told: Told) -> None:
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
        self._recovered = True
