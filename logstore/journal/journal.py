"""The broker's view of the journal: appends with group commit, reads by location, files freed when their frames are
sealed.

Owns the order of appends and the list of files; the disk work is ``JournalWriter``'s on one thread. Invariants:
- One group is in flight; appends that come meanwhile form the next group. Their callbacks are called after the
  fdatasync, in their order. If the group fails, all fail together in one step of the loop: no append is stored after
  one that failed, and none can build on the offset of a failed one.
- The files are always the last part of the journal, without a gap: the oldest is removed first, and only when no
  partition needs it and a later file durably holds the snapshots of all partitions. So a gap that recovery finds is a
  lost file. It is removed after the file beside the journal says that the journal begins behind it: if the oldest file
  is lost, the next start finds that the journal begins too late.
- All state is changed on the event loop; ``read`` may be called from any thread.
"""

import asyncio
import bisect
import functools
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import structlog

from logstore.clock import Clock
from logstore.crc32c import crc32c
from logstore.errors import BrokerNotReadyError, LogStoreError, StorageError, StorageFullError
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalCorruptionError, JournalRangeFreedError
from logstore.journal.frame import (
    HEADER_BYTES,
    PAYLOAD_BYTES_MAX,
    Frame,
    FrameFlags,
    FrameLocation,
    decode_frame_header,
)
from logstore.journal.identity import FoundJournal, JournalIdentity, JournalRecord
from logstore.journal.journal_file import JournalFile, PartitionKey
from logstore.journal.position_recorder import PositionRecorder
from logstore.journal.recent_frames import RecentFrames
from logstore.journal.scan import JournalScan, RecoveredFrame, Verdict
from logstore.journal.writer import FileSwitchPostponedError, FrameBuffers, JournalWriter
from logstore.limits import JOURNAL_FILE_BYTES, JOURNAL_GROUP_BYTES_MAX, KIB, MIB
from logstore.observability import JOURNAL_RETAINED_BYTES
from logstore.threads import threads

# Locations at most this far apart are read with one call, together with the bytes between them.
_READ_GAP_BYTES: Final = 64 * KIB
_READ_RUN_BYTES: Final = 8 * MIB
#: The position in the file beside the journal is at most this many seconds older than the last append.
RECORDING_S: Final = 1.0

_log = structlog.get_logger(__name__)


class AppendFuture(asyncio.Future[list[FrameLocation]]):
    """The locations of an append's frames.

    It cannot be cancelled, because the frames are being written. Code that may stop waiting uses ``asyncio.wait`` or
    ``asyncio.shield``.
    """

    def cancel(self, msg: object = None) -> bool:  # noqa: ARG002
        return False

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        # The failure is logged. If no client waits (acks=0, or it has given up), no warning about a lost exception is
        # needed.
        self.exception()


Callback = Callable[[Sequence[FrameLocation], LogStoreError | None], None]
"""Called on the loop with the locations of an append's frames, or with none and the reason why they are not stored."""


class _Append:
    __slots__ = ("frames", "length", "on_stored")

    def __init__(self, frames: Sequence[Frame], length: int, on_stored: Callback) -> None:
        self.frames = frames
        self.length = length
        self.on_stored = on_stored


class NeededFile(NamedTuple):
    """A journal file's positions [start, end), and the partitions that need it."""

    start: int
    end: int
    needed_by: tuple[PartitionKey, ...]


class Journal:
    """Exhaust ``recover()``, ``await start()``, then ``append``, ``read``, ``release``; finally ``await close()``."""

    def __init__(
        self,
        directory: Path,
        *,
        filesystem: FileSystem,
        clock: Clock,
        file_bytes: int = JOURNAL_FILE_BYTES,
        require_lock: Callable[[], None] = lambda: None,
        recent_bytes: int = 0,
    ) -> None:
        """Begin without files. ``require_lock`` raises LockLostError once another process may own the directory; it is
        called in a thread. ``recent_bytes`` is the size of the newest frames that are kept in memory for
        ``recent_frame``.
        """
        self._directory = directory
        self._filesystem = filesystem
        self._file_bytes = file_bytes
        self._clock = clock
        #: The time of the first append to the file being written to, in seconds of the monotonic clock.
        self._data_since: float | None = None
        self._writer = JournalWriter(directory, filesystem, clock, file_bytes, require_lock)
        self._thread = threads().disk_thread("journal")
        self._files: list[JournalFile] = []
        self._files_lock = threading.Lock()
        self._current: JournalFile | None = None
        self._end_position = 0
        self._verdict: Verdict | None = None
        self._sealed: dict[PartitionKey, int] = {}
        self._forgotten: set[UUID] = set()
        self._snapshots: Callable[[], Sequence[Frame]] = tuple
        #: TRUNCATE frames for the first file that this start begins.
        self._truncations: Sequence[Frame] = ()
        self._queue: deque[_Append] = deque()
        self.queued_bytes = 0
        """Bytes of the appends that are not durable yet. They stay in memory even if no caller waits for them."""
        self._wake = asyncio.Event()
        self._committer: asyncio.Task[None] | None = None
        #: Callers of ``rotate``, each waiting for a file that is begun after its call.
        self._rotating: list[asyncio.Future[int]] = []
        self._closing = False
        self._failed: LogStoreError | None = None
        self._failure_listener: Callable[[], None] = lambda: None
        self._room_listener: Callable[[], None] = lambda: None
        self._full = False
        self._reported: asyncio.Future[None] | None = None
        self._require_lock = require_lock
        self._identity: JournalIdentity | None = None
        self._positions: PositionRecorder | None = None
        self._recording: asyncio.TimerHandle | None = None
        #: Files that are freed, and still on the disk until the file beside the journal says that it begins later.
        self._freed: list[JournalFile] = []
        self._recent = RecentFrames(recent_bytes) if recent_bytes else None

    # ---- state --------------------------------------------------------------------------------------------------

    @property
    def failed(self) -> LogStoreError | None:
        """The error with which every append fails until a restart; None while the journal works."""
        return self._failed

    @property
    def refusal(self) -> LogStoreError | None:
        """The error that an append gets at once; None if the append is accepted."""
        refused = self._failed
        if refused is None and (self._committer is None or self._closing):
            return BrokerNotReadyError("the journal takes no appends: the broker is starting or stopping; try again")
        return None if refused is None else type(refused)(str(refused))

    @property
    def file_loss(self) -> str | None:
        """A sentence that names the file being written to, if it was removed, replaced or cut short; None while it is
        whole. It costs one system call.
        """
        file = self._current
        if file is None or (loss := file.loss) is None:
            return None
        return f"{file.path} was {loss}"

    @property
    def end_position(self) -> int:
        """The journal position of the durable end."""
        return self._end_position

    @property
    def retained_bytes(self) -> int:
        """The bytes of the files kept."""
        return sum([file.size for file in self._files])

    @property
    def needed_bytes(self) -> int:
        """The bytes of the files that cannot be freed yet: from the oldest with un-sealed records to the end. The file
        being written to does not count if everything in it is sealed: the next append beyond its bound ends it.
        """
        for at, file in enumerate(self._files):
            if file.needed_by:
                return sum([needed.size for needed in self._files[at:]])
        return 0

    @property
    def data_age_s(self) -> float:
        """Seconds since the first append to the file being written to; 0 without an append."""
        return 0.0 if self._data_since is None else self._clock.monotonic() - self._data_since

    @property
    def files(self) -> list[tuple[int, int]]:
        """(start position, bytes) of the files kept, oldest first."""
        return [(file.start, file.size) for file in self._files]

    # ---- recovery -----------------------------------------------------------------------------------------------

    def recover(self) -> Iterator[RecoveredFrame]:
        """Yield every good frame of the files kept, in journal order; blocking. Exhaust it before ``start``.

        Frames come in the order in which they were written: a relocated one after its successors, and perhaps twice.
        The journal ends before the bytes that a crash left after the durable end (rule R1); ``start`` cuts these. Until
        then no journal file is changed. Raises CorruptionError, StorageError, DataDirectoryError.
        """
        try:
            self._filesystem.make_directory(self._directory)
        except OSError as e:
            raise StorageError(
                f"cannot make the journal directory {self._directory}: {e.strerror}; check the disk"
            ) from e
        scan = JournalScan(self._directory, self._filesystem)
        yield from scan.frames()
        self._verdict = verdict = scan.verdict
        self._files.extend(verdict.files)
        self._end_position = verdict.end

    @property
    def found(self) -> FoundJournal:
        """The journal that ``recover`` has read to its end."""
        if self._verdict is None:
            raise RuntimeError("recover() has not been read to its end")
        return self._verdict.found(self._directory)

    def on_failure(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once, when the journal has failed for good."""
        self._failure_listener = listener

    def on_room(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when the journal may have more room for appends, or has failed."""
        self._room_listener = listener

    async def start(
        self, snapshots: Callable[[], Sequence[Frame]], record: JournalRecord, truncations: Sequence[Frame] = ()
    ) -> None:
        """Cut the bytes that a crash left after the durable end, begin a new file, and accept appends.

        ``snapshots`` returns one snapshot frame per partition, with its durable state at that moment. It is called on
        the loop, now and whenever a file is begun. ``record`` is the file beside the journal. ``truncations`` are
        TRUNCATE frames that this start orders. They are in the new file before its snapshots, so that no later start
        finds the file without them. On a full disk appends are refused until there is space. Raises StorageError.
        """
        await self._thread.run(self.establish_end)
        self._truncations = truncations
        self._snapshots = snapshots
        self._identity = record.identity
        self._positions = self._position_recorder(record)
        await self._begin_file()
        self._committer = asyncio.create_task(self._commit_appends(), name="journal")

    def _position_recorder(self, record: JournalRecord) -> PositionRecorder:
        return PositionRecorder(self._directory, record, self._require_lock)

    def establish_end(self) -> None:
        """Make the end that ``recover`` found the durable end; blocking. Raises StorageError."""
        verdict = self._verdict
        if verdict is None:
            raise RuntimeError("recover() has not been read to its end")
        if verdict.tail_bytes or verdict.unborn:
            _log.warning(
                "journal_tail_cut",
                directory=str(self._directory),
                position=verdict.end,
                bytes=verdict.tail_bytes,
                reason="not yet durable when the last process ended",
            )
        self._writer.establish_end(verdict)

    # ---- appends ------------------------------------------------------------------------------------------------

    def append(self, frames: Sequence[Frame]) -> AppendFuture:
        """Store frames, and return a future of their locations, done when the frames are durable or have failed."""
        future = AppendFuture()

        def on_stored(locations: Sequence[FrameLocation], error: LogStoreError | None) -> None:
            if error is None:
                future.set_result(list(locations))
            else:
                future.set_exception(error)

        self.store(frames, on_stored)
        return future

    def store(self, frames: Sequence[Frame], on_stored: Callback) -> None:
        """Store frames, in this order and with one fdatasync; call ``on_stored`` when they are durable or have failed.

        Callbacks are called in the order of the appends, and after a failure those of all queued appends in one step of
        the loop. The error is StorageFullError (nothing was stored; try again later), StorageError (final; a restart
        shows whether they are stored) or BrokerNotReadyError (not started, or closed). ``on_stored`` must not raise or
        append; it is called before this returns only if there is a ``refusal``.
        """
        if (refused := self.refusal) is not None:
            on_stored((), refused)
            return
        length = 0
        for _, payload in frames:
            if len(payload) > PAYLOAD_BYTES_MAX:
                raise ValueError(f"a journal frame's payload may have {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
            length += HEADER_BYTES + len(payload)
        self.queued_bytes += length
        self._queue.append(_Append(frames, length, on_stored))
        self._wake.set()

    def group_reported(self) -> "asyncio.Future[None] | None":
        """Return a future that is done when the group in flight has been reported to its callbacks.

        None if no group is in flight. The future is shared: do not cancel it.
        """
        if self._reported is None and self.queued_bytes:
            self._reported = asyncio.get_running_loop().create_future()
        return self._reported

    def _end_group(self) -> None:
        if self._reported is not None:
            self._reported.set_result(None)
            self._reported = None
        self._room_listener()

    async def _commit_appends(self) -> None:
        """Commit one group at a time, until the journal closes."""
        group: list[_Append] = []
        while not (self._closing and not self._queue):
            if not self._queue and not self._rotating:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                if self._failed is not None:
                    raise self._failed
                if self._rotating:
                    await self._rotate()
                elif self._current is None or self._is_full(self._current):
                    await self._begin_file()
                group = self._take_group()
                if group:
                    await self._commit(group)
            except LogStoreError as e:
                self._fail(e, group)
            except Exception as e:  # noqa: BLE001
                error = StorageError(f"the journal at {self._directory} stopped on an unexpected error: {e!r}; restart")
                error.__cause__ = e
                self._fail(error, group)
            group = []

    async def rotate(self) -> int:
        """Begin a new file, after all appends that are durable or being written; return its first position.

        If the file being written to has no append, its position is returned instead.

        Raises StorageFullError if there is no space for a file, StorageError, BrokerNotReadyError.
        """
        if (refused := self.refusal) is not None:
            raise refused
        begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._rotating.append(begun)
        self._wake.set()
        return await begun

    async def _rotate(self) -> None:
        waiting, self._rotating = self._rotating, []
        if self._current is None or self._current.data_bytes:
            await self._begin_file()
        file = self._current
        for begun in waiting:
            if begun.done():
                continue  # no caller waits any more
            if file is None or file.data_bytes:
                begun.set_exception(StorageFullError(f"no space for a new journal file in {self._directory}"))
            else:
                begun.set_result(file.start)

    def _is_full(self, file: JournalFile) -> bool:
        if file.size + self._queue[0].length <= self._file_bytes:
            return False
        # A file that has only snapshots is not replaced: a large append exceeds the bound instead.
        return bool(file.data_bytes)

    def _take_group(self) -> list[_Append]:
        if not self._queue:
            return []  # failed meanwhile
        group = [self._queue.popleft()]
        length = group[0].length
        while self._queue and (length := length + self._queue[0].length) <= JOURNAL_GROUP_BYTES_MAX:
            group.append(self._queue.popleft())
        return group

    async def _commit(self, group: list[_Append]) -> None:
        file = self._current
        if file is None:
            raise StorageFullError(
                f"no space for a new journal file in {self._directory}: nothing was stored; "
                "free space on that disk, and appends work again by themselves"
            )
        buffers = FrameBuffers(file.end, file.end, file.file_id or 0)
        begin = file.end
        results: list[list[FrameLocation]] = []
        for append in group:
            locations = []
            for frame in append.frames:
                position = buffers.end
                locations.append(FrameLocation(position, buffers.add(frame)))
            results.append(locations)
        length = buffers.end - begin
        written = buffers.buffers()
        await self._thread.run(self._writer.commit, file, written, length)
        if self._recent is not None:
            self._recent.add(begin, written)
        file.size += length
        file.data_bytes += length
        if self._data_since is None:
            self._data_since = self._clock.monotonic()
        self._end_position = file.end
        for append, locations in zip(group, results, strict=True):
            for frame in append.frames:
                if not self._forgotten or frame.header.topic_id not in self._forgotten:
                    file.add(frame.header, self._sealed)
            self.queued_bytes -= append.length
            append.on_stored(locations, None)
        self._end_group()
        self._full = False
        JOURNAL_RETAINED_BYTES.set(self.retained_bytes)
        if self._recording is None:
            self._recording = asyncio.get_running_loop().call_later(RECORDING_S, self._record_end)

    def _record_end(self) -> None:
        """Record how far the journal is durable: within a second of an append, and not for each append."""
        self._recording = None
        if self._closing or self._failed is not None or self._positions is None:
            return
        # This runs on the thread that frees files, so that a file that is freed meanwhile is not treated as lost.
        self._thread.run(self._writer.check_files, tuple(self._files)).add_done_callback(self._background_done)
        self._write_position()

    def _write_position(self) -> asyncio.Future[bool]:
        """Record in the file beside the journal where the journal begins and ends; then remove the files that were
        freed. The result is true if the record was written.
        """
        assert self._positions is not None
        assert self._current is not None
        freed, self._freed = self._freed, []
        written = self._positions.write(self._end_position, self._current.file_id or 0, self._files[0].start)
        written.add_done_callback(functools.partial(self._position_written, freed))
        return written

    def _position_written(self, freed: list[JournalFile], written: asyncio.Future[bool]) -> None:
        if written.exception() is not None or not written.result():
            self._freed[:0] = freed
            if self._committer is not None:  # else ``start`` fails
                self._background_done(written)
            return
        for file in freed:
            # No caller waits for this write; its failure is final.
            self._thread.run(self._writer.free, file).add_done_callback(self._background_done)

    async def _begin_file(self) -> None:
        old = self._current
        assert self._identity is not None
        assert self._positions is not None
        frames = [*self._truncations, *self._snapshots()]
        try:
            file = await self._thread.run(self._writer.begin_file, old, self._end_position, frames, self._identity)
        except FileSwitchPostponedError as e:
            _log.warning("journal_file_postponed", directory=str(self._directory), reason=str(e.__cause__))
            return
        self._truncations = ()
        with self._files_lock:
            self._files.append(file)
        self._current = file
        self._data_since = None
        self._end_position = file.end
        self._take_freed()
        written = self._write_position()
        self._room_listener()
        if old is None:
            await written  # nothing is acknowledged before the first position is recorded

    def _fail(self, error: LogStoreError, group: list[_Append]) -> None:
        """Fail the group and everything queued after it, in order, in this step of the loop."""
        full = isinstance(error, StorageFullError)
        if not full and self._failed is None:
            self._failed = error
            self._failure_listener()
        if not full or not self._full:
            _log.error("journal_append_failed", message=str(error), final=not full)
        self._full = full
        for begun in self._rotating:
            if not begun.done():
                begun.set_exception(type(error)(str(error)))
        self._rotating.clear()
        pending = [*group, *self._queue]
        self._queue.clear()
        for append in pending:
            self.queued_bytes -= append.length
            failure = type(error)(str(error))
            failure.__cause__ = error.__cause__
            append.on_stored((), failure)
        self._end_group()

    # ---- reads --------------------------------------------------------------------------------------------------

    def read(self, location: FrameLocation) -> Frame:
        """Read the frame at a location that ``append``, ``recover`` or ``relocate`` returned; blocking, any thread.

        Raises JournalRangeFreedError, CorruptionError and StorageError.
        """
        return self.read_many([location])[0]

    def read_many(self, locations: Sequence[FrameLocation]) -> list[Frame]:
        """Read the frames at ``locations``, in that order, neighbours together. Raises the errors of ``read``."""
        return [
            _decode(file, data, begin, location)
            for file, begin, data, found in self._runs(locations)
            for location in found
        ]

    def recent_frame(self, location: FrameLocation) -> list[memoryview] | None:
        """Return the stored bytes of a frame, header and payload, if they are in memory; on the loop."""
        return None if self._recent is None else self._recent.find(location)

    def read_stored(self, locations: Sequence[FrameLocation]) -> list[memoryview]:
        """Read the stored bytes of frames, unchecked; blocking, any thread.

        Raises JournalRangeFreedError and StorageError.
        """
        return [
            memoryview(data)[position - begin : position - begin + length]
            for _, begin, data, found in self._runs(locations)
            for position, length in found
        ]

    def _runs(
        self, locations: Sequence[FrameLocation]
    ) -> Iterator[tuple[JournalFile, int, bytes, Sequence[FrameLocation]]]:
        """Read neighbours among ``locations`` together; yield the file, position and bytes read, and the locations."""
        at = 0
        while at < len(locations):
            file = self._file_at(locations[at].position)
            begin, end = locations[at].position, sum(locations[at])
            stop = at + 1
            while stop < len(locations):
                position, length = locations[stop]
                near = end <= position <= end + _READ_GAP_BYTES and position + length <= min(
                    file.end, begin + _READ_RUN_BYTES
                )
                if not near:
                    break
                end = position + length
                stop += 1
            yield file, begin, file.read(begin, end - begin), locations[at:stop]
            at = stop

    def _file_at(self, position: int) -> JournalFile:
        with self._files_lock:
            index = bisect.bisect_right(self._files, position, key=lambda file: file.start) - 1
            file = self._files[index] if index >= 0 else None
        if file is None:
            raise JournalRangeFreedError(
                f"journal position {position} is freed: what was there is sealed; look it up again"
            )
        return file

    # ---- freeing ------------------------------------------------------------------------------------------------

    def release(self, topic_id: UUID, partition: int, sealed_offset: int) -> None:
        """Note that a partition is safely sealed up to ``sealed_offset`` (rule R7): the journal may free its frames."""
        key = (topic_id, partition)
        if sealed_offset <= self._sealed.get(key, 0):
            return
        self._sealed[key] = sealed_offset
        for file in self._files:
            if file.needed_by.get(key, sealed_offset + 1) <= sealed_offset:
                del file.needed_by[key]
        self._free_files()

    def keep_from_gap(self, topic_id: UUID, partition: int, offset: int) -> None:
        """Keep all files until a partition is sealed beyond ``offset``: frames below it are missing from the journal,
        and the file that has them continues these files if somebody puts it back.
        """
        key = (topic_id, partition)
        for file in self._files:
            file.needed_by[key] = max(file.needed_by.get(key, 0), offset + 1)

    def forget(self, topic_id: UUID) -> None:
        """Note that a topic is deleted: none of its frames is needed any more, even those still being written."""
        self._forgotten.add(topic_id)
        for file in self._files:
            for key in [key for key in file.needed_by if key[0] == topic_id]:
                del file.needed_by[key]
        for key in [key for key in self._sealed if key[0] == topic_id]:
            del self._sealed[key]
        self._free_files()

    def truncate(self, topic_id: UUID, partition: int, log_end_offset: int) -> None:
        """Note that a durable TRUNCATE frame has dropped the frames of a partition from ``log_end_offset`` on."""
        key = (topic_id, partition)
        for file in self._files:
            if file.needed_by.get(key, 0) > log_end_offset:
                file.needed_by[key] = log_end_offset
                if log_end_offset <= self._sealed.get(key, 0):
                    del file.needed_by[key]
        self._free_files()

    @property
    def oldest_needed(self) -> NeededFile | None:
        """The oldest file, and the partitions that need it; None if it is the file being written to."""
        if not self._files or self._files[0] is self._current:
            return None
        oldest = self._files[0]
        return NeededFile(oldest.start, oldest.end, tuple(oldest.needed_by))

    async def relocate(self, frames: Sequence[Frame]) -> list[FrameLocation]:
        """Append copies of frames of an older file, marked as such; return their places. Raises the errors of
        ``append``.
        """
        copies = [
            Frame(header._replace(flags=header.flags | FrameFlags.RELOCATED), payload) for header, payload in frames
        ]
        locations = await self.append(copies)
        self._filesystem.reached("journal.relocated")
        return locations

    def relocated(self, file: NeededFile) -> None:
        """Free the oldest file, from which all needed frames were copied, unless it is the current file."""
        if self._files and self._files[0].start == file.start and self._files[0] is not self._current:
            self._files[0].needed_by.clear()
            self._free_files()

    async def freed(self) -> None:
        """Wait until the files that were freed so far are durably removed. Raises StorageError if that failed."""
        if self._positions is not None:
            await self._positions.written()
        if self._freed:
            raise StorageError(
                f"files of the journal at {self._directory} are not removed, because the file beside it cannot be "
                "written: check its disk"
            )
        await self._thread.run(self._writer.check)

    def _free_files(self) -> None:
        self._room_listener()
        if self._current is None or self._failed is not None:
            return
        if self._take_freed() and not self._closing:
            self._write_position()

    def _take_freed(self) -> bool:
        """Take the oldest files that no partition needs out of ``_files``; return whether there were any."""
        freed = list(itertools.takewhile(lambda file: file is not self._current and not file.needed_by, self._files))
        with self._files_lock:
            del self._files[: len(freed)]
        self._freed += freed
        JOURNAL_RETAINED_BYTES.set(self.retained_bytes)
        return bool(freed)

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _background_done(self, done: asyncio.Future[Any]) -> None:
        if (error := done.exception()) is None:
            return
        # The group in flight gets its result first; then the committer fails the appends that are queued after it.
        failure = error if isinstance(error, StorageError) else StorageError(f"the journal stopped: {error!r}")
        if self._failed is None:
            self._failed = failure
            _log.error("journal_failed", message=str(failure))
            self._failure_listener()
            self._room_listener()

    async def close(self) -> None:
        """Store the queued appends, then close the files. Raises StorageError if the last bytes could not be synced."""
        if self._closing:
            return
        self._closing = True
        if self._recording is not None:
            self._recording.cancel()
        self._wake.set()
        if self._committer is not None:
            await self._committer
        for begun in self._rotating:
            if not begun.done():
                begun.set_exception(BrokerNotReadyError("the journal takes no appends: the broker is stopping"))
        try:
            if self._current is not None and self._positions is not None and self._failed is None:
                finished = await self._thread.run(self._writer.finish, self._current)
                if finished:
                    await self._write_position()
        finally:
            if self._positions is not None:
                self._positions.close()
            self._thread.close()
            self._writer.close()
            self._close_files()

    def abandon(self) -> None:
        """Close the files that ``recover`` and a failed ``start`` have opened. Blocking.

        Does nothing if the journal has started: ``close`` closes them then.
        """
        if self._committer is None:
            if self._positions is not None:
                self._positions.close()
            self._thread.close()
            self._writer.close()
            self._close_files()

    def _close_files(self) -> None:
        with self._files_lock:
            files, self._files, self._freed = [*self._files, *self._freed], [], []
        for file in files:
            file.close()


def _decode(file: JournalFile, data: bytes, begin: int, location: FrameLocation) -> Frame:
    """Decode the frame at ``location`` in ``data``, which was read at journal position ``begin``."""
    position, length = location
    at = position - begin
    stored = decode_frame_header(data, at, position, file.file_id)
    if stored is None or stored.payload_length != length - HEADER_BYTES:
        raise JournalCorruptionError(file.path, position, "no frame of that length is there")
    payload = memoryview(data)[at + HEADER_BYTES : at + length]
    if len(payload) != stored.payload_length or crc32c(payload) != stored.payload_crc:
        raise JournalCorruptionError(file.path, position, "the frame's payload is not what was written")
    return Frame(stored.header, payload)
