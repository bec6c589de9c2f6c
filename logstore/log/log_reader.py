"""One read path over a partition: history from segments, the un-sealed tail from the journal, never both.

``sealed_offset`` decides on the event loop which of the two serves an offset; disk work and decoding run in threads.
A journal range that is freed, or a segment that is replaced, while a read is under way makes that step start again on
the newer state. What was decoded is kept in a cache bounded in bytes, because consumers come back for the next slice.
"""

import asyncio
import threading
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from logstore.delta.snapshot import SegmentFile
from logstore.errors import CorruptionError, OffsetOutOfRangeError, StorageError
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.journal import Journal
from logstore.limits import RECORD_OVERHEAD_BYTES, ROW_GROUP_CACHE_BYTES
from logstore.log.frame_index import IndexedFrame
from logstore.log.frame_records import frame_records
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.batch import record_sizes
from logstore.records.schema import LOG_SCHEMA
from logstore.segments.reader import RowGroup, read_row_group, row_groups

T = TypeVar("T")
_ATTEMPTS = 5
_FOOTERS_CACHED = 1024
_ENTRY_BYTES = 2048  # what a cached batch costs beside its buffers
EMPTY = pa.RecordBatch.from_pylist([], schema=LOG_SCHEMA)


@dataclass(frozen=True, slots=True)
class FetchResult:
    """``records`` (LOG_SCHEMA, offsets rising) and where to go on; ``next_offset`` passes over gaps."""

    records: pa.RecordBatch
    next_offset: int
    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class _Slice:
    records: pa.RecordBatch
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
    ) -> FetchResult:
        """Records from ``offset`` on: at least one if there is any, else up to ``max_bytes`` of them.

        Waits up to ``max_wait_s`` for ``min_bytes``. Raises OffsetOutOfRangeError outside [log start, high watermark],
        UnknownPartitionError, UnknownTopicError if the topic is deleted while waiting.
        """
        log = topic.partition(partition)
        _check_range(log, offset)
        deadline = asyncio.get_running_loop().time() + max_wait_s
        taken: list[pa.RecordBatch] = []
        num_bytes = 0
        at = offset
        while True:
            piece = await self._next_slice(topic, log, at, max_bytes - num_bytes, may_be_empty=bool(taken))
            if piece.records.num_rows:
                taken.append(piece.records)
                num_bytes += int(_sizes(piece.records).sum())
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
        return FetchResult(_combine(taken), at, log.log_start_offset, log.high_watermark)

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
    ) -> _Slice:
        """Records from ``offset`` out of one place: a row group, or frames of the tail."""

        async def read() -> _Slice:
            if offset < log.log_start_offset:
                _check_range(log, offset)
            sealed, end = log.sealed_offset, log.last_stable_offset
            if offset >= end:
                return _Slice(EMPTY, offset)
            if offset >= sealed:
                frames = log.index.frames_by_bytes(offset, end, max_bytes)
                batch = await self._in_thread(lambda: self._read_frames(frames))
                return _cut(batch, offset, end, max_bytes, frames[-1].end_offset, may_be_empty=may_be_empty)
            segments = log.segments
            at = bisect_left(segments, offset, key=lambda s: s.max_offset)
            if at == len(segments) or segments[at].min_offset >= sealed:
                return _Slice(EMPTY, sealed)  # compaction left nothing between offset and the tail
            segment = segments[at]
            following = min(sealed, segments[at + 1].min_offset) if at + 1 < len(segments) else sealed
            batch, scanned_to = await self._in_thread(lambda: self._read_history(topic, segment, offset, following))
            return _cut(batch, offset, min(sealed, end), max_bytes, scanned_to, may_be_empty=may_be_empty)

        return await self._again_if_moved(topic, read)

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


def _sizes(batch: pa.RecordBatch) -> np.ndarray:
    return record_sizes(batch) + RECORD_OVERHEAD_BYTES


def _cut(batch: pa.RecordBatch, start: int, end: int, max_bytes: int, scanned_to: int, *, may_be_empty: bool) -> _Slice:
    """Rows of [start, end) that fit ``max_bytes``; ``scanned_to`` is the offset up to which ``batch`` is complete."""
    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, (start, end))
    rows = batch.slice(first, last - first)
    if not rows.num_rows:
        return _Slice(EMPTY, max(start, min(scanned_to, end)))
    fitting = int(np.searchsorted(np.cumsum(_sizes(rows)), max_bytes, side="right"))
    if fitting == 0 and may_be_empty:
        return _Slice(EMPTY, start)
    fitting = max(1, fitting)
    if fitting < rows.num_rows:
        return _Slice(rows.slice(0, fitting), int(offsets[first + fitting]))
    return _Slice(rows, min(scanned_to, end))


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
