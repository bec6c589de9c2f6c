"""One read path over a partition: history from segments, the un-sealed tail from the journal, never both.

``sealed_offset`` decides on the event loop which of the two serves an offset; disk work and decoding run in threads.
A journal range that is freed, or a segment that is replaced, while a read is under way makes that step start again on
the newer state. What was decoded is kept in a cache bounded in bytes, because consumers come back for the next slice.
Readers that decode for themselves get the tail as it is stored.
"""

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from logstore.delta.snapshot import SegmentFile
from logstore.errors import CorruptionError, OffsetOutOfRangeError, StorageError
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import FrameFlags
from logstore.journal.journal import Journal
from logstore.limits import RECORD_OVERHEAD_BYTES, ROW_GROUP_CACHE_BYTES
from logstore.log.frame_index import IndexedFrame
from logstore.log.frame_records import frame_records
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.batch import record_sizes
from logstore.records.schema import LOG_SCHEMA
from logstore.records.stored_batch import HAS_OFFSETS, LOG_APPEND_TIME, StoredBatch
from logstore.segments.reader import RowGroup, read_row_group, row_groups

T = TypeVar("T")
_ATTEMPTS = 5
_FOOTERS_CACHED = 1024
_ENTRY_BYTES = 2048  # what a cached batch costs beside its buffers
EMPTY = pa.RecordBatch.from_pylist([], schema=LOG_SCHEMA)


C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class FetchResult(Generic[C]):
    """``records`` by rising offset, and where to go on; ``next_offset`` passes over gaps.

    Records are a batch of LOG_SCHEMA, or stored batches, of which the first may begin below what was asked for.
    """

    records: C
    count: int
    num_bytes: int
    next_offset: int
    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class _Slice(Generic[C]):
    """``records`` out of one place: ``count`` of them, which take ``num_bytes`` of what was asked for."""

    records: C
    count: int
    num_bytes: int
    next_offset: int


class LogReader:
    def __init__(self, journal: Journal, executor: Executor, refresh: Callable[[Topic], Awaitable[None]]) -> None:
        self._journal = journal
        self._executor = executor
        self._refresh = refresh
        self._cache: LRUCache[tuple[object, ...], pa.RecordBatch] = LRUCache(
            ROW_GROUP_CACHE_BYTES, getsizeof=lambda batch: batch.nbytes + _ENTRY_BYTES
        )
        self._row_groups: LRUCache[Path, tuple[RowGroup, ...]] = LRUCache(_FOOTERS_CACHED)
        self._cache_lock = threading.Lock()

    async def fetch(
        self, topic: Topic, partition: int, offset: int, *, max_bytes: int, min_bytes: int, max_wait_s: float
    ) -> FetchResult[pa.RecordBatch]:
        """Records from ``offset`` on: at least one if there is any, else up to ``max_bytes`` of them.

        Waits up to ``max_wait_s`` for ``min_bytes``. Raises OffsetOutOfRangeError outside [log start, high watermark],
        UnknownPartitionError, UnknownTopicError if the topic is deleted while waiting.
        """
        log = topic.partition(partition)

        async def decoded(at: int, max_bytes: int, *, may_be_empty: bool) -> _Slice[pa.RecordBatch]:
            return await self._next_slice(topic, log, at, max_bytes, may_be_empty=may_be_empty)

        return await self._fetch(log, offset, decoded, _combine, max_bytes, min_bytes, max_wait_s)

    async def fetch_stored(
        self, topic: Topic, partition: int, offset: int, *, max_bytes: int, min_bytes: int, max_wait_s: float
    ) -> FetchResult[list[StoredBatch]]:
        """As ``fetch``; batches of the tail as they lie in the journal, whole, at least one if there is any."""
        log = topic.partition(partition)

        async def stored(at: int, max_bytes: int, *, may_be_empty: bool) -> _Slice[list[StoredBatch]]:
            return await self._next_stored(topic, log, at, max_bytes, may_be_empty=may_be_empty)

        def combine(pieces: list[list[StoredBatch]]) -> list[StoredBatch]:
            return list(chain.from_iterable(pieces))

        return await self._fetch(log, offset, stored, combine, max_bytes, min_bytes, max_wait_s)

    async def _fetch(
        self,
        log: PartitionLog,
        offset: int,
        next_slice: Callable[..., Awaitable[_Slice[C]]],
        combine: Callable[[list[C]], C],
        max_bytes: int,
        min_bytes: int,
        max_wait_s: float,
    ) -> FetchResult[C]:
        _check_range(log, offset)
        deadline = asyncio.get_running_loop().time() + max_wait_s
        taken: list[C] = []
        count = num_bytes = 0
        at = offset
        while True:
            piece = await next_slice(at, max_bytes - num_bytes, may_be_empty=bool(taken))
            if piece.count:
                taken.append(piece.records)
                count += piece.count
                num_bytes += piece.num_bytes
            elif piece.next_offset == at and at < log.last_stable_offset:
                if taken:
                    break  # the next record does not fit
                raise CorruptionError(f"Nothing is found at offset {at} of {log}: neither a record nor where to go on.")
            at = piece.next_offset
            if at < log.last_stable_offset:
                if num_bytes >= max(1, min_bytes) or num_bytes >= max_bytes:
                    break
                continue
            left = deadline - asyncio.get_running_loop().time()
            if num_bytes >= max(min_bytes, 1) or left <= 0 or not await log.wait_beyond(at, left):
                break
        return FetchResult(combine(taken), count, num_bytes, at, log.log_start_offset, log.high_watermark)

    async def offset_for_timestamp(self, topic: Topic, partition: int, timestamp_ms: int) -> tuple[int, int] | None:
        """The smallest offset whose record has a timestamp of at least ``timestamp_ms``, and that timestamp."""
        log = topic.partition(partition)

        async def find() -> tuple[int, int] | None:
            start, sealed, end = log.log_start_offset, log.sealed_offset, log.last_stable_offset
            segments = [s for s in log.segments if s.max_offset >= start and s.max_timestamp_ms >= timestamp_ms]
            tail = list(log.index.frames_since(max(start, sealed), end, timestamp_ms))
            return await self._in_thread(
                lambda: self._find_timestamp(topic, segments, tail, start, sealed, timestamp_ms)
            )

        return await self._again_if_moved(topic, find)

    # ---- on the event loop ------------------------------------------------------------------------------------------

    async def _next_slice(
        self, topic: Topic, log: PartitionLog, offset: int, max_bytes: int, *, may_be_empty: bool
    ) -> _Slice[pa.RecordBatch]:
        """Records from ``offset`` out of one place: a row group, or frames of the tail."""

        async def read() -> _Slice[pa.RecordBatch]:
            end = _readable_end(log, offset)
            if not log.sealed_offset <= offset < end:
                return await self._history_slice(topic, log, offset, end, max_bytes, may_be_empty=may_be_empty)
            frames = log.index.frames_by_bytes(offset, end, max_bytes)
            batch = await self._in_thread(lambda: self._read_frames(frames))
            return _cut(batch, offset, end, max_bytes, frames[-1].end_offset, may_be_empty=may_be_empty)

        return await self._again_if_moved(topic, read)

    async def _next_stored(
        self, topic: Topic, log: PartitionLog, offset: int, max_bytes: int, *, may_be_empty: bool
    ) -> _Slice[list[StoredBatch]]:
        """As ``_next_slice``, frames as they are stored."""

        async def read() -> _Slice[list[StoredBatch]]:
            end = _readable_end(log, offset)
            if not log.sealed_offset <= offset < end:
                rows = await self._history_slice(topic, log, offset, end, max_bytes, may_be_empty=may_be_empty)
                batches = [await self._in_thread(lambda: _to_stored(rows.records))] if rows.count else []
                return _Slice(batches, rows.count, rows.num_bytes, rows.next_offset)
            frames = log.index.frames_by_bytes(offset, end, max_bytes)
            num_bytes = sum(frame.inflated_bytes for frame in frames)
            if num_bytes > max_bytes and (may_be_empty or len(frames) > 1):
                num_bytes -= frames.pop().inflated_bytes
            if not frames:
                return _Slice([], 0, 0, offset)
            batches = await self._in_thread(lambda: self._read_stored(frames))
            count = frames[-1].end_offset - max(offset, frames[0].base_offset)
            return _Slice(batches, count, num_bytes, frames[-1].end_offset)

        return await self._again_if_moved(topic, read)

    async def _history_slice(
        self, topic: Topic, log: PartitionLog, offset: int, end: int, max_bytes: int, *, may_be_empty: bool
    ) -> _Slice[pa.RecordBatch]:
        """Records from ``offset`` out of one row group; none from the end of the history on."""
        if offset >= end:
            return _Slice(EMPTY, 0, 0, offset)
        sealed = log.sealed_offset
        segments = log.segments
        at = bisect_left(segments, offset, key=lambda s: s.max_offset)
        if at == len(segments) or segments[at].min_offset >= sealed:
            return _Slice(EMPTY, 0, 0, sealed)  # compaction left nothing between offset and the tail
        segment = segments[at]
        following = min(sealed, segments[at + 1].min_offset) if at + 1 < len(segments) else sealed
        batch, scanned_to = await self._in_thread(lambda: self._read_history(topic, segment, offset, following))
        return _cut(batch, offset, min(sealed, end), max_bytes, scanned_to, may_be_empty=may_be_empty)

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

    def _read_frames(self, frames: Sequence[IndexedFrame]) -> pa.RecordBatch:
        batches = {f.base_offset: self._cached(("frame", f.location.position)) for f in frames}
        missing = [frame for frame in frames if batches[frame.base_offset] is None]
        for frame, stored in zip(missing, self._journal.read_many([f.location for f in missing]), strict=True):
            batch = frame_records(stored)
            self._remember(("frame", frame.location.position), batch)
            batches[frame.base_offset] = batch
        return _combine([batch for batch in batches.values() if batch is not None])

    def _read_stored(self, frames: Sequence[IndexedFrame]) -> list[StoredBatch]:
        return [
            StoredBatch(
                header.base_offset,
                header.append_time_ms,
                header.record_count,
                LOG_APPEND_TIME if FrameFlags.LOG_APPEND_TIME in header.flags else 0,
                payload,
            )
            for header, payload in self._journal.read_many([frame.location for frame in frames])
        ]

    def _read_history(
        self, topic: Topic, segment: SegmentFile, offset: int, following: int
    ) -> tuple[pa.RecordBatch, int]:
        """The row group that holds ``offset`` or the next record after it, and the offset up to which it speaks."""
        path = topic.table.path / segment.path
        groups = self._groups(path, segment)
        for at, group in enumerate(groups):
            if group.last_offset >= offset:
                scanned_to = groups[at + 1].first_offset if at + 1 < len(groups) else following
                return self._row_group(path, group.index), scanned_to
        return EMPTY, following

    def _find_timestamp(
        self,
        topic: Topic,
        segments: Sequence[SegmentFile],
        tail: Sequence[IndexedFrame],
        start: int,
        sealed: int,
        timestamp_ms: int,
    ) -> tuple[int, int] | None:
        for segment in segments:
            path = topic.table.path / segment.path
            for group in self._groups(path, segment):
                if group.last_offset >= start and group.max_timestamp_ms >= timestamp_ms:
                    found = _first_at(self._row_group(path, group.index), start, sealed, timestamp_ms)
                    if found:
                        return found
        for frame in tail:
            batch = frame_records(self._journal.read(frame.location))
            found = _first_at(batch, max(start, sealed), frame.end_offset, timestamp_ms)
            if found:
                return found
        return None

    def _groups(self, path: Path, segment: SegmentFile) -> tuple[RowGroup, ...]:
        # A segment's name is never used again, so what its footer says holds for ever.
        with self._cache_lock:
            groups = self._row_groups.get(path)
        if groups is None:
            groups = row_groups(path)
            _check_against_log(path, groups, segment)
            with self._cache_lock:
                self._row_groups[path] = groups
        return groups

    def _row_group(self, path: Path, index: int) -> pa.RecordBatch:
        key = ("row group", path, index)
        batch = self._cached(key)
        if batch is None:
            batch = read_row_group(path, index)
            self._remember(key, batch)
        return batch

    def _cached(self, key: tuple[object, ...]) -> pa.RecordBatch | None:
        with self._cache_lock:
            return self._cache.get(key)

    def _remember(self, key: tuple[object, ...], batch: pa.RecordBatch) -> None:
        with self._cache_lock:
            if batch.nbytes + _ENTRY_BYTES <= self._cache.maxsize:
                self._cache[key] = batch


def _readable_end(log: PartitionLog, offset: int) -> int:
    """Where readers stop. OffsetOutOfRangeError if ``offset`` has meanwhile been deleted."""
    if offset < log.log_start_offset:
        _check_range(log, offset)
    return log.last_stable_offset


def _check_range(log: PartitionLog, offset: int) -> None:
    if not log.log_start_offset <= offset <= log.high_watermark:
        raise OffsetOutOfRangeError(
            f"Offset {offset} of {log.topic}-{log.partition} is out of range: "
            f"offsets {log.log_start_offset} to {log.high_watermark} can be read.",
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )


def _check_against_log(path: Path, groups: Sequence[RowGroup], segment: SegmentFile) -> None:
    bounds = (groups[0].first_offset, groups[-1].last_offset) if groups else (-1, -1)
    found = (sum(group.num_rows for group in groups), *bounds)
    if found != (segment.num_records, segment.min_offset, segment.max_offset):
        raise CorruptionError(
            f"{path} holds {found[0]} records of offsets {found[1]} to {found[2]}, the Delta log says "
            f"{segment.num_records} of {segment.min_offset} to {segment.max_offset}. Restore the file from a backup."
        )


def _cut(
    batch: pa.RecordBatch, start: int, end: int, max_bytes: int, scanned_to: int, *, may_be_empty: bool
) -> _Slice[pa.RecordBatch]:
    """Rows of [start, end) that fit ``max_bytes``; ``scanned_to`` is the offset up to which ``batch`` is complete."""
    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, (start, end))
    rows = batch.slice(first, last - first)
    if not rows.num_rows:
        return _Slice(EMPTY, 0, 0, max(start, min(scanned_to, end)))
    ends = np.cumsum(record_sizes(rows) + RECORD_OVERHEAD_BYTES)
    fitting = int(np.searchsorted(ends, max_bytes, side="right"))
    if fitting == 0 and may_be_empty:
        return _Slice(EMPTY, 0, 0, start)
    fitting = max(1, fitting)
    num_bytes = int(ends[fitting - 1])
    if fitting < rows.num_rows:
        return _Slice(rows.slice(0, fitting), fitting, num_bytes, int(offsets[first + fitting]))
    return _Slice(rows, fitting, num_bytes, min(scanned_to, end))


def _to_stored(rows: pa.RecordBatch) -> StoredBatch:
    return StoredBatch(rows.column("offset")[0].as_py(), 0, rows.num_rows, HAS_OFFSETS, rows.serialize())


def _first_at(batch: pa.RecordBatch, start: int, end: int, timestamp_ms: int) -> tuple[int, int] | None:
    offsets = batch.column("offset").to_numpy()
    timestamps = batch.column("timestamp").cast(pa.int64()).to_numpy()
    rows = np.flatnonzero((offsets >= start) & (offsets < end) & (timestamps >= timestamp_ms))
    return (int(offsets[rows[0]]), int(timestamps[rows[0]])) if len(rows) else None


def _combine(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if not batches:
        return EMPTY
    if len(batches) == 1:
        return batches[0]
    return pa.concat_batches(batches)
