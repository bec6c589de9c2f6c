"""One read path over a partition: history from segments, the un-sealed tail from the journal, never both.

``sealed_offset`` decides on the event loop which of the two serves an offset; disk work and decoding run in threads. If
a journal range is freed or a segment replaced during a read, that step starts again on the newer state. Decoded records
that were not all handed out are kept, bounded in bytes, because consumers come back for the next slice. Readers that
decode records themselves get them as they are stored.
"""

import asyncio
import dataclasses
import functools
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from logstore.delta.snapshot import SegmentFile
from logstore.errors import CorruptionError, OffsetOutOfRangeError, StorageError
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import FrameFlags
from logstore.journal.journal import Journal
from logstore.limits import MIB, READINGS_BYTES_MAX, RECORD_OVERHEAD_BYTES
from logstore.log.frame_index import IndexedFrame
from logstore.log.frame_records import frame_records
from logstore.log.isolation import Isolation
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.protocol.record_batch import LOG_APPEND_TIME, PARQUET, RecordBatch
from logstore.records.batch import record_sizes
from logstore.records.log_batches import int64_values
from logstore.records.schema import LOG_SCHEMA
from logstore.segments.reader import RowGroup, read_row_group, row_group_batches, row_groups
from logstore.segments.row_group_files import (
    RowGroupFile,
    read_row_group_file,
    row_group_files,
    write_row_group_file,
)
from logstore.table_files import TableFiles

T = TypeVar("T")
C = TypeVar("C")
_ATTEMPTS = 5
_FOOTERS_CACHED = 1024
# Footers take some 700 bytes for each row group of a segment.
_ROW_GROUP_FILES_CACHED = 128
# A page of each column, and a batch of what is in them.
_DECODER_BYTES = 4 * MIB
# Each of several readers in step has one; a reader that repeats a read adds none.
_READINGS_OF_A_PLACE = 4
# So many of the remaining rows are measured first, to find those that fit into a slice.
_ROWS_LOOKED_AT = 1024


@dataclass(frozen=True, slots=True)
class FetchResult(Generic[C]):
    """``records`` by rising offset, and where to go on; ``next_offset`` passes over gaps.

    Records are a table of LOG_SCHEMA, or record batches as they are stored, of which the first may
    begin below the offset that was asked for.
    """

    records: C
    count: int
    num_bytes: int
    next_offset: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class _Slice(Generic[C]):
    """Batches from one place: ``count`` records, which use up ``num_bytes`` of ``max_bytes``."""

    batches: list[C]
    count: int
    num_bytes: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Records of [start, end) up to ``max_bytes``; the first one, whatever its size, unless ``may_be_empty``.

    Nobody may have those below ``log_start``.
    """

    start: int
    end: int
    max_bytes: int
    may_be_empty: bool
    log_start: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A row group of the segment ``name``; the next record after it has an offset of at least ``scanned_to``."""

    files: TableFiles
    name: str
    group: RowGroup
    scanned_to: int


class _Reading:
    """A row group, or a large frame of the tail, decoded as far as it was handed out: to ``next_offset``.

    Iterating begins with the batch in which the iteration before was left.
    """

    def __init__(self, key: object, num_bytes: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.key = key
        self.next_offset = -1
        self._decoder_bytes = num_bytes
        self._batches = batches
        self._left_in: pa.RecordBatch | None = None

    @property
    def place(self) -> tuple[object, int]:
        return self.key, self.next_offset

    @property
    def num_bytes(self) -> int:
        """Bytes that the reading holds; a batch with larger rows may have more than others."""
        return self._decoder_bytes + (self._left_in.get_total_buffer_size() if self._left_in is not None else 0)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            if self._left_in is None:
                self._left_in = next(self._batches, None)
            if self._left_in is None:
                return
            yield self._left_in
            self._left_in = None


class LogReader:
    def __init__(self, journal: Journal, executor: Executor, refresh: Callable[[Topic], Awaitable[None]]) -> None:
        self._journal = journal
        self._executor = executor
        self._refresh = refresh
        #: The one that was used last comes last.
        self._begun: list[_Reading] = []
        self._row_groups: LRUCache[str, tuple[RowGroup, ...]] = LRUCache(_FOOTERS_CACHED)
        self._row_group_files: LRUCache[str, tuple[RowGroupFile, ...]] = LRUCache(_ROW_GROUP_FILES_CACHED)
        self._lock = threading.Lock()

    async def read(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> FetchResult[pa.Table]:
        """Records from ``offset`` on, up to ``max_bytes``, and at least one if there is any.

        Ends with the piece (a row group, a run of the tail) that brings ``min_bytes``. Raises OffsetOutOfRangeError
        outside [log start, high watermark].
        """

        async def decoded(at: int, max_bytes: int, *, may_be_empty: bool) -> _Slice[pa.RecordBatch]:
            wanted = _Wanted(at, _read_end(log, at, isolation), max_bytes, may_be_empty, log.log_start_offset)
            if not log.sealed_offset <= at < wanted.end:
                return await self._history_slice(topic, log, wanted, self._read_history)
            frames = log.index.frames_by_bytes(at, wanted.end, max_bytes)
            return await self._in_thread(lambda: self._read_frames(frames, wanted))

        result = await self._read(topic, log, offset, decoded, max_bytes, min_bytes, isolation)
        return dataclasses.replace(result, records=pa.Table.from_batches(result.records, LOG_SCHEMA))

    async def read_stored(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ) -> FetchResult[list[RecordBatch]]:
        """As ``read``; batches of the tail as they lie in the journal and row groups of the history, whole, at least
        one if there is any.
        """

        async def stored(at: int, max_bytes: int, *, may_be_empty: bool) -> _Slice[RecordBatch]:
            wanted = _Wanted(at, _read_end(log, at, isolation), max_bytes, may_be_empty, log.log_start_offset)
            if not log.sealed_offset <= at < wanted.end:
                return await self._history_slice(topic, log, wanted, self._read_stored_history)
            frames = log.index.frames_by_bytes(at, wanted.end, max_bytes)
            num_bytes = sum(frame.inflated_bytes for frame in frames)
            if num_bytes > max_bytes and (may_be_empty or len(frames) > 1):
                num_bytes -= frames.pop().inflated_bytes
            if not frames:
                return _Slice([], 0, 0, at)
            batches = await self._in_thread(lambda: self._read_stored(frames))
            count = sum(frame.end_offset - max(at, frame.base_offset) for frame in frames if frame.has_records)
            return _Slice(batches, count, num_bytes, frames[-1].end_offset)

        return await self._read(topic, log, offset, stored, max_bytes, min_bytes, isolation)

    async def _read(
        self,
        topic: Topic,
        log: PartitionLog,
        offset: int,
        next_slice: Callable[..., Awaitable[_Slice[C]]],
        max_bytes: int,
        min_bytes: int,
        isolation: Isolation,
    ) -> FetchResult[list[C]]:
        require_in_range(log, offset)
        taken: list[C] = []
        count = num_bytes = 0
        at = offset
        while True:
            if taken and log.is_missing(at):
                break  # the next fetch reports the error
            piece = await self._again_if_moved(
                topic, functools.partial(next_slice, at, max_bytes - num_bytes, may_be_empty=bool(taken))
            )
            if piece.count:
                taken += piece.batches
                count += piece.count
                num_bytes += piece.num_bytes
            elif piece.next_offset == at and at < log.readable_end(isolation):
                if taken:
                    break  # the next record does not fit
                raise CorruptionError(f"Neither a record nor the next segment is found at offset {at} of {log}.")
            at = piece.next_offset
            if at >= log.readable_end(isolation) or num_bytes >= min(max(1, min_bytes), max_bytes):
                break
        return FetchResult(
            taken, count, num_bytes, at, log.log_start_offset, log.high_watermark, log.last_stable_offset
        )

    async def offset_for_timestamp(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """The smallest offset whose record has a timestamp of at least ``timestamp_ms``, and that timestamp."""
        log = topic.partition(partition)
        isolation = Isolation.READ_UNCOMMITTED

        async def find() -> tuple[int, int] | None:
            log.require_served()
            start, sealed, end = log.log_start_offset, log.sealed_offset, log.readable_end(isolation)
            segments = [
                s for s in log.segments if s.num_records and s.end_offset > start and s.max_timestamp_ms >= timestamp_ms
            ]
            tail = list(log.index.frames_since(max(start, sealed), end, timestamp_ms))
            found = await self._in_thread(
                lambda: self._find_timestamp(topic, segments, tail, start, sealed, timestamp_ms)
            )
            # A record of that time may be among the missing ones before it.
            if log.missing and (found is None or found[0] >= log.missing[0].start):
                log.read_end(log.missing[0].start, isolation)
            return found

        return await self._again_if_moved(topic, find)

    # ---- on the event loop ------------------------------------------------------------------------------------------

    async def _history_slice(
        self, topic: Topic, log: PartitionLog, wanted: _Wanted, read: Callable[[_Place, _Wanted], _Slice[C]]
    ) -> _Slice[C]:
        """The slice that ``read`` takes from one row group; an empty one at the end of the history."""
        if wanted.start >= wanted.end:
            return _Slice([], 0, 0, wanted.start)
        sealed = log.sealed_offset
        segments = log.segments
        at = bisect_right(segments, wanted.start, key=lambda s: s.end_offset)
        while at < len(segments) and not segments[at].num_records:
            at += 1
        if at == len(segments) or segments[at].base_offset >= min(sealed, wanted.end):
            # No record is left up to there.
            return _Slice([], 0, 0, min(sealed, wanted.end))
        segment = segments[at]
        following = min(sealed, segments[at + 1].base_offset) if at + 1 < len(segments) else sealed
        wanted = dataclasses.replace(wanted, end=min(sealed, wanted.end))
        files = topic.table.files

        def read_row_group() -> _Slice[C]:
            """Read the row group with the first offset wanted, or with the next record after it."""
            groups = self._groups(files, segment)
            at = bisect_left(groups, wanted.start, key=lambda group: group.last_offset)
            if at == len(groups):
                return _Slice([], 0, 0, max(wanted.start, min(following, wanted.end)))
            scanned_to = groups[at + 1].first_offset if at + 1 < len(groups) else following
            return read(_Place(files, segment.path, groups[at], scanned_to), wanted)

        try:
            found = await self._in_thread(read_row_group)
        except CorruptionError as error:
            log.unreadable[segment.path] = str(error)
            raise
        log.unreadable.pop(segment.path, None)
        return found

    async def _again_if_moved(self, topic: Topic, read: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(_ATTEMPTS):
            try:
                return await read()
            except JournalRangeFreedError:
                if attempt == _ATTEMPTS - 1:
                    raise
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS - 1:
                    raise CorruptionError(
                        f"Topic {topic.name!r}: the Delta log names {error.filename}, which is not on disk."
                    ) from error
                await self._refresh(topic)
            except OSError as error:
                raise StorageError(f"Cannot read topic {topic.name!r}: {error}. Check the disk; try again.") from error
        raise AssertionError("unreachable")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    # ---- in threads -------------------------------------------------------------------------------------------------

    def _read_frames(self, frames: Sequence[IndexedFrame], wanted: _Wanted) -> _Slice[pa.RecordBatch]:
        end = frames[-1].end_offset
        if len(frames) > 1:
            locations = [frame.location for frame in frames if frame.has_records]
            batches = list(frame_records(self._journal.read_many(locations)))
            return _cut(batches, wanted, end)
        location = frames[0].location
        num_bytes = location.length + frames[0].inflated_bytes
        return self._read_on(
            location.position, num_bytes, lambda: frame_records([self._journal.read(location)]), wanted, end
        )

    def _read_stored(self, frames: Sequence[IndexedFrame]) -> list[RecordBatch]:
        return [
            RecordBatch(
                header.base_offset,
                header.append_time_ms,
                header.record_count,
                LOG_APPEND_TIME if FrameFlags.LOG_APPEND_TIME in header.flags else 0,
                payload,
            )
            for header, payload in self._journal.read_many([frame.location for frame in frames if frame.has_records])
        ]

    def _read_history(self, place: _Place, wanted: _Wanted) -> _Slice[pa.RecordBatch]:
        files, name, group = place.files, place.name, place.group
        num_bytes = group.stored_bytes + _DECODER_BYTES
        return self._read_on(
            (files.where(name), group.index),
            num_bytes,
            lambda: row_group_batches(files, name, group),
            wanted,
            place.scanned_to,
        )

    def _read_stored_history(self, place: _Place, wanted: _Wanted) -> _Slice[RecordBatch]:
        """The row group as it is, whose reader leaves out what is below ``wanted.start``. Only rows of it if others are
        deleted, or if it cannot be checked as it is.
        """
        group = place.group
        if wanted.log_start <= group.first_offset and group.last_offset < wanted.end:
            in_file = self._cached(self._row_group_files, place.files, place.name, row_group_files)
            if in_file:
                file = in_file[group.index]
                if wanted.may_be_empty and file.decoded_bytes > wanted.max_bytes:
                    return _Slice([], 0, 0, wanted.start)
                payload = read_row_group_file(place.files, place.name, file)
                batch = RecordBatch(group.first_offset, 0, group.num_rows, PARQUET, payload)
                count = min(group.num_rows, group.last_offset + 1 - wanted.start)
                return _Slice([batch], count, file.decoded_bytes, min(place.scanned_to, wanted.end))
        rows = self._read_history(place, wanted)
        if not rows.batches:
            return _Slice([], 0, 0, rows.next_offset)
        first_offset = int(int64_values(rows.batches[0].column("offset"))[0])
        batch = RecordBatch(first_offset, 0, rows.count, PARQUET, write_row_group_file(rows.batches))
        return _Slice([batch], rows.count, rows.num_bytes, rows.next_offset)

    def _read_on(
        self,
        key: object,
        num_bytes: int,
        begin: Callable[[], Iterator[pa.RecordBatch]],
        wanted: _Wanted,
        scanned_to: int,
    ) -> _Slice[pa.RecordBatch]:
        """As ``_cut`` of the batches from ``begin``, continued where the last slice ended."""
        reading = self._take_begun(key, wanted.start) or _Reading(key, num_bytes, begin())
        found = _cut(reading, wanted, scanned_to)
        if found.next_offset < scanned_to:
            reading.next_offset = found.next_offset
            with self._lock:
                same = [other for other in self._begun if other.place == reading.place]
                if len(same) == _READINGS_OF_A_PLACE:
                    self._begun.remove(same[0])
                self._begun.append(reading)
                while sum(begun.num_bytes for begun in self._begun) > READINGS_BYTES_MAX:
                    del self._begun[0]
        return found

    def _take_begun(self, key: object, offset: int) -> "_Reading | None":
        with self._lock:
            for at, reading in enumerate(self._begun):
                if reading.place == (key, offset):
                    return self._begun.pop(at)
        return None

    def _find_timestamp(
        self,
        topic: Topic,
        segments: Sequence[SegmentFile],
        tail: Sequence[IndexedFrame],
        start: int,
        sealed: int,
        timestamp_ms: int,
    ) -> tuple[int, int] | None:
        files = topic.table.files
        for segment in segments:
            for group in self._groups(files, segment):
                if group.last_offset >= start and group.max_timestamp_ms >= timestamp_ms:
                    times = read_row_group(files, segment.path, group.index, ("offset", "timestamp"))
                    found = _first_at(times, start, sealed, timestamp_ms)
                    if found:
                        return found
        for frame in tail:
            (batch,) = frame_records([self._journal.read(frame.location)])
            found = _first_at(batch, max(start, sealed), frame.end_offset, timestamp_ms)
            if found:
                return found
        return None

    def _groups(self, files: TableFiles, segment: SegmentFile) -> tuple[RowGroup, ...]:
        def checked(files: TableFiles, name: str) -> tuple[RowGroup, ...]:
            groups = row_groups(files, name)
            _check_against_log(files.where(name), groups, segment)
            return groups

        return self._cached(self._row_groups, files, segment.path, checked)

    def _cached(self, cache: LRUCache[str, T], files: TableFiles, name: str, read: Callable[[TableFiles, str], T]) -> T:
        # A segment's name is never used again, so its footer never changes.
        place = files.where(name)
        with self._lock:
            found = cache.get(place)
        if found is None:
            found = read(files, name)
            with self._lock:
                cache[place] = found
        return found


def _read_end(log: PartitionLog, offset: int, isolation: Isolation) -> int:
    """The offset at which readers stop. OffsetOutOfRangeError if ``offset`` has been deleted meanwhile."""
    if offset < log.log_start_offset:
        require_in_range(log, offset)
    return log.read_end(offset, isolation)


def require_in_range(log: PartitionLog, offset: int) -> None:
    """Raise OffsetOutOfRangeError unless ``offset`` is one that readers may ask for.

    QuarantinedError comes first: the ends of a log in quarantine need not be known, and a consumer that is told that it
    is out of range goes to one of them.
    """
    log.require_served()
    if not log.log_start_offset <= offset <= log.high_watermark:
        raise OffsetOutOfRangeError(
            f"Offset {offset} of {log.topic}-{log.partition} is out of range: "
            f"offsets {log.log_start_offset} to {log.high_watermark} can be read.",
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )


def _check_against_log(place: str, groups: Sequence[RowGroup], segment: SegmentFile) -> None:
    bounds = (groups[0].first_offset, groups[-1].last_offset) if groups else (-1, -1)
    found = (sum(group.num_rows for group in groups), *bounds)
    if found != (segment.num_records, segment.min_offset, segment.max_offset):
        raise CorruptionError(
            f"{place} holds {found[0]} records of offsets {found[1]} to {found[2]}, the Delta log says "
            f"{segment.num_records} of {segment.min_offset} to {segment.max_offset}. Restore the file from a backup."
        )


def _cut(batches: Iterable[pa.RecordBatch], wanted: _Wanted, scanned_to: int) -> _Slice[pa.RecordBatch]:
    """The slice that is wanted of ``batches``, which are complete up to the offset ``scanned_to``."""
    taken: list[pa.RecordBatch] = []
    count = num_bytes = 0
    for batch in batches:
        offsets = int64_values(batch.column("offset"))
        first, last = np.searchsorted(offsets, (wanted.start, wanted.end)).tolist()
        rows = batch.slice(first, last - first)
        fitting, size = _fitting(rows, wanted.max_bytes - num_bytes, at_least=0 if taken or wanted.may_be_empty else 1)
        if fitting:
            taken.append(rows.slice(0, fitting))
            count += fitting
            num_bytes += size
        if fitting < rows.num_rows:
            return _Slice(taken, count, num_bytes, int(offsets[first + fitting]))
    return _Slice(taken, count, num_bytes, max(wanted.start, min(scanned_to, wanted.end)))


def _fitting(rows: pa.RecordBatch, max_bytes: int, *, at_least: int) -> tuple[int, int]:
    """How many of the first rows fit ``max_bytes``, and their bytes. Not many more are looked at."""
    count = num_bytes = 0
    looked_at = _ROWS_LOOKED_AT
    while count < rows.num_rows:
        ends = num_bytes + np.cumsum(record_sizes(rows.slice(count, looked_at)) + RECORD_OVERHEAD_BYTES)
        fitting = max(int(np.searchsorted(ends, max_bytes, side="right")), at_least - count)
        if fitting > 0:
            num_bytes = int(ends[fitting - 1])
            count += fitting
        if fitting < len(ends):
            break
        looked_at *= 2
    return count, num_bytes


def _first_at(batch: pa.RecordBatch, start: int, end: int, timestamp_ms: int) -> tuple[int, int] | None:
    offsets, timestamps = int64_values(batch.column("offset")), int64_values(batch.column("timestamp"))
    rows = np.flatnonzero((offsets >= start) & (offsets < end) & (timestamps >= timestamp_ms))
    return (int(offsets[rows[0]]), int(timestamps[rows[0]])) if len(rows) else None
