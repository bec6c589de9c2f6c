"""One slice of a partition's records at a time, read and decoded in a thread: from a row group, or frames of the tail.

Decoded records that were not all handed out are kept, bounded in bytes, because consumers come back for the next slice
(``_Begun``). Footers of segments are also kept: a segment's name is never used again, so its footer never changes.
One lock guards all state; no disk is read while it is held.
"""

import contextlib
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from logstore.delta.snapshot import SegmentFile
from logstore.errors import CorruptionError
from logstore.filesystem import Buffer
from logstore.journal.frame import FrameLocation
from logstore.journal.journal import Journal
from logstore.limits import MIB, READINGS_BYTES_MAX, RECORD_OVERHEAD_BYTES, ROW_GROUP_BYTES_MAX
from logstore.log.frame_index import IndexedFrame
from logstore.log.frame_records import frame_records, stored_batches
from logstore.log.kafka_records import Epochs, encode_history, filter_frames, frame_batches, wire_bytes
from logstore.log.paged_history import PagedHistory
from logstore.log.slices import Search, Slice, Wanted
from logstore.protocol.record_batch import PARQUET, RecordBatch
from logstore.records.batch import record_sizes
from logstore.records.log_batches import int64_values
from logstore.segments.chunk_memory import ChunkMemory
from logstore.segments.foreign_names import is_file
from logstore.segments.reader import SegmentIndex, read_index, read_paged, read_row_group, row_group_batches
from logstore.segments.row_group import RowGroup
from logstore.segments.row_group_files import (
    RowGroupFile,
    read_row_group_file,
    row_group_files,
    write_kept_rows,
    write_row_group_file,
)
from logstore.segments.value_pages import OtherPageError
from logstore.table_files import TableFiles

T = TypeVar("T")
C = TypeVar("C")
R = TypeVar("R", "_Decoded", PagedHistory)
_FOOTERS_BYTES = 32 * MIB
# Footers take some 700 bytes for each row group of a segment.
_ROW_GROUP_FILES_CACHED = 128
# A page of each column, and a batch of their rows.
_DECODER_BYTES = 4 * MIB
# Each of several readers in step has a reading; a reader that repeats a read adds none.
_READINGS_OF_A_PLACE = 4
# The number of remaining rows that are measured first, to find those that fit into a slice.
_ROWS_LOOKED_AT = 1024
# A row group that is skipped because of its statistics counts as this many searched bytes, as its footer was read.
_STATISTICS_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Place:
    """A row group of the segment ``name``; the next record after it has an offset of at least ``scanned_to``."""

    files: TableFiles
    name: str
    group: RowGroup
    scanned_to: int

    @property
    def key(self) -> object:
        return self.files.where(self.name), self.group.index


class _Begun(NamedTuple):
    """A reading of ``key``, done up to ``next_offset``."""

    key: object
    next_offset: int
    reading: "_Decoded | PagedHistory"

    @property
    def num_bytes(self) -> int:
        return self.reading.num_bytes


class _Decoded:
    """A row group, or a large frame of the tail, decoded as far as it was returned.

    An iteration begins with the batch in which the previous iteration stopped.
    """

    def __init__(self, num_bytes: int, batches: Iterator[pa.RecordBatch]) -> None:
        self._decoder_bytes = num_bytes
        self._batches = batches
        self._left_in: pa.RecordBatch | None = None

    @property
    def num_bytes(self) -> int:
        """The bytes that the reading holds; a batch with larger rows may have more than others."""
        return self._decoder_bytes + (self._left_in.get_total_buffer_size() if self._left_in is not None else 0)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            if self._left_in is None:
                self._left_in = next(self._batches, None)
            if self._left_in is None:
                return
            yield self._left_in
            self._left_in = None


class SliceReader:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        #: The reading that was used last comes last.
        self._begun: list[_Begun] = []
        self._indices: LRUCache[str, SegmentIndex] = LRUCache(_FOOTERS_BYTES, getsizeof=_footer_bytes)
        self._row_group_files: LRUCache[str, tuple[RowGroupFile, ...]] = LRUCache(_ROW_GROUP_FILES_CACHED)
        self._memory = ChunkMemory()
        self._lock = threading.Lock()

    def read_frames(self, frames: Sequence[IndexedFrame], wanted: Wanted) -> Slice[pa.RecordBatch]:
        """Read records of the frames, at least one of which must be given. Raises the errors of ``Journal.read``."""
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

    def read_stored_frames(self, frames: Sequence[IndexedFrame]) -> list[RecordBatch]:
        """Read the batches of the frames, as ``stored_batches`` does. Raises the errors of ``Journal.read_many``."""
        return stored_batches(self._journal.read_many([frame.location for frame in frames if frame.has_records]))

    def read_frame_batches(self, locations: Sequence[FrameLocation], wanted: Wanted) -> Slice[Buffer]:
        """Read the frames that fit as Kafka's record batches; at least one frame must be given. Batches are whole, so
        the first one may begin below ``wanted.start``. Raises the errors of ``Journal.read_many``.
        """
        found = self._journal.read_many(locations)
        taken = len(found)
        left = wanted.max_bytes
        for at, frame in enumerate(found):
            left -= wire_bytes(frame)
            if left < 0 and (at or wanted.may_be_empty):
                taken = at
                break
        if not taken:
            return Slice([], 0, 0, wanted.start)
        frames = filter_frames(found[:taken])
        batches = frame_batches(frames)
        count = sum(frame.header.end_offset - max(wanted.start, frame.header.base_offset) for frame in frames)
        end = found[taken - 1].header.end_offset
        return Slice(batches, count, sum(map(len, batches)), end, is_full=taken < len(found))

    def read_segment_batches(
        self, files: TableFiles, segment: SegmentFile, following: int, wanted: Wanted, epochs: Epochs
    ) -> Slice[Buffer]:
        """Read like ``read_segment``, but return the rows as Kafka's record batches, beginning at ``wanted.start``."""
        place = self._place(files, segment, following, wanted)
        if place is None:
            return _nothing_until(following, wanted)
        index = self._index(files, segment)
        with contextlib.suppress(OtherPageError):
            paged = self._paged(place, index, wanted.start)
            if paged is not None:
                found = paged.read(wanted, place.scanned_to, epochs, index.log_append_times)
                self._keep(place.key, found.next_offset, paged, place.scanned_to)
                return found
        rows = self._rows(place, wanted)
        batches = encode_history(rows.batches, rows.next_offset, epochs, index.log_append_times)
        return Slice(batches, rows.count, sum(map(len, batches)), rows.next_offset, rows.is_full)

    def read_segment(
        self, files: TableFiles, segment: SegmentFile, following: int, wanted: Wanted
    ) -> Slice[pa.RecordBatch]:
        """Read rows of the row group that has the first wanted offset, or the next record after it.

        ``following`` is the base offset of the next segment, or the sealed offset after the last one. Raises
        CorruptionError, FileNotFoundError and OSError.
        """
        place = self._place(files, segment, following, wanted)
        if place is None:
            return _nothing_until(following, wanted)
        return (wanted.search and _passed_over(place, wanted, wanted.search)) or self._rows(place, wanted)

    def read_stored_segment(
        self, files: TableFiles, segment: SegmentFile, following: int, wanted: Wanted
    ) -> Slice[RecordBatch]:
        """Read like ``read_segment``, but return the whole row group as it is stored."""
        place = self._place(files, segment, following, wanted)
        return (
            _nothing_until(following, wanted)
            if place is None
            else self._stored_row_group(place, self._index(files, segment), wanted)
        )

    def _place(self, files: TableFiles, segment: SegmentFile, following: int, wanted: Wanted) -> _Place | None:
        groups = self._groups(files, segment)
        at = bisect_left(groups, wanted.start, key=lambda group: group.last_offset)
        if at == len(groups):
            return None
        scanned_to = groups[at + 1].first_offset if at + 1 < len(groups) else following
        return _Place(files, segment.path, groups[at], scanned_to)

    def _rows(self, place: _Place, wanted: Wanted) -> Slice[pa.RecordBatch]:
        files, name, group = place.files, place.name, place.group
        num_bytes = group.stored_bytes + _DECODER_BYTES
        return self._read_on(
            place.key,
            num_bytes,
            lambda: row_group_batches(files, name, group),
            wanted,
            place.scanned_to,
        )

    def _stored_row_group(self, place: _Place, index: SegmentIndex, wanted: Wanted) -> Slice[RecordBatch]:
        """Return the row group as it is; its reader leaves out the records below ``wanted.start``. Only some of its
        rows are returned if others are deleted, or if it cannot be checked as it is.
        """
        group = place.group
        in_file: tuple[RowGroupFile, ...] = ()
        if wanted.log_start <= group.first_offset and group.last_offset < wanted.end:
            in_file = self._cached(self._row_group_files, place.files, place.name, row_group_files)
        if in_file:
            file = in_file[group.index]
            # The response has batches already: this row group may be too large, or begin with records that they
            # contain, because a merge or a roll has just made it.
            if wanted.may_be_empty and (file.decoded_bytes > wanted.max_bytes or group.first_offset < wanted.start):
                return Slice([], 0, 0, wanted.start)
            found = self._whole_row_group(place, file, index, wanted.start)
            if found is not None:
                count = min(found.record_count, group.last_offset + 1 - wanted.start)
                return Slice([found], count, file.decoded_bytes, min(place.scanned_to, wanted.end))
            # The rows that are left come at once, as a whole row group does: a reader that gets them in many small
            # parts sends many requests.
            wanted = replace(wanted, max_bytes=max(wanted.max_bytes, ROW_GROUP_BYTES_MAX))
        rows = self._rows(place, wanted)
        if not rows.batches:
            return Slice([], 0, 0, rows.next_offset)
        first_offset = int(int64_values(rows.batches[0].column("offset"))[0])
        batch = RecordBatch(first_offset, 0, rows.count, PARQUET, write_row_group_file(rows.batches))
        return Slice([batch], rows.count, rows.num_bytes, rows.next_offset, rows.is_full)

    def _whole_row_group(
        self, place: _Place, file: RowGroupFile, index: SegmentIndex, start: int
    ) -> RecordBatch | None:
        """Return a row group as it is stored, or the rows from the offset ``start`` on that are left of it; None if the
        pages of these cannot be copied.
        """
        group = place.group
        if not file.has_deleted:
            payload = read_row_group_file(place.files, place.name, file)
            return RecordBatch(group.first_offset, 0, group.num_rows, PARQUET, payload)
        with contextlib.suppress(OtherPageError):
            paged = read_paged(place.files, place.name, index, group, self._memory)
            if paged is not None:
                kept = write_kept_rows(paged, start)
                self._memory.give_back(paged.values.chunk)
                return RecordBatch(kept.first_offset, 0, kept.num_rows, PARQUET, kept.payload)
        return None

    def _read_on(
        self,
        key: object,
        num_bytes: int,
        begin: Callable[[], Iterator[pa.RecordBatch]],
        wanted: Wanted,
        scanned_to: int,
    ) -> Slice[pa.RecordBatch]:
        """Cut the batches from ``begin``, as ``_cut`` does, continuing where the last slice ended."""
        reading = self._take_begun(key, wanted.start, _Decoded) or _Decoded(num_bytes, begin())
        found = _cut(reading, wanted, scanned_to)
        self._keep(key, found.next_offset, reading, scanned_to)
        return found

    def _paged(self, place: _Place, index: SegmentIndex, start: int) -> PagedHistory | None:
        """Return the reading of a row group whose values stay in pages; None if they cannot."""
        if begun := self._take_begun(place.key, start, PagedHistory):
            return begun
        group = read_paged(place.files, place.name, index, place.group, self._memory)
        return None if group is None else PagedHistory(group)

    def _keep(self, key: object, next_offset: int, reading: _Decoded | PagedHistory, scanned_to: int) -> None:
        """Keep a reading for the next slice, if there is any before ``scanned_to``. The memory of readings that are not
        kept is used again.
        """
        dropped: list[_Decoded | PagedHistory] = []
        if next_offset >= scanned_to:
            dropped.append(reading)
        else:
            with self._lock:
                same = [at for at, begun in enumerate(self._begun) if begun[:2] == (key, next_offset)]
                if len(same) == _READINGS_OF_A_PLACE:
                    dropped.append(self._begun.pop(same[0]).reading)
                self._begun.append(_Begun(key, next_offset, reading))
                while sum(begun.num_bytes for begun in self._begun) > READINGS_BYTES_MAX:
                    dropped.append(self._begun.pop(0).reading)
        for one in dropped:
            if isinstance(one, PagedHistory):
                self._memory.give_back(one.chunk)

    def _take_begun(self, key: object, offset: int, kind: type[R]) -> R | None:
        with self._lock:
            for at, begun in enumerate(self._begun):
                if begun[:2] == (key, offset) and isinstance(begun.reading, kind):
                    del self._begun[at]
                    return begun.reading
        return None

    def count_from(self, files: TableFiles, segment: SegmentFile, start: int) -> int:
        """Return the number of a segment's records with offsets of at least ``start``. Raises the errors of
        ``read_segment``.
        """
        count = 0
        for group in self._groups(files, segment):
            if group.first_offset >= start:
                count += group.num_rows
            elif group.last_offset >= start:
                rows = read_row_group(files, segment.path, group.index, ("offset",))
                count += int((int64_values(rows.column("offset")) >= start).sum())
        return count

    def find_timestamp(
        self,
        files: TableFiles,
        segments: Sequence[SegmentFile],
        tail: Sequence[IndexedFrame],
        start: int,
        sealed: int,
        timestamp_ms: int,
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with a timestamp of at least ``timestamp_ms``. The records of
        [start, sealed) in the segments are searched first, and then the frames of the tail.
        """
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

    def max_timestamp(
        self,
        files: TableFiles,
        segments: Sequence[SegmentFile],
        tail: Sequence[IndexedFrame],
        start: int,
        sealed: int,
    ) -> int | None:
        """Return the largest timestamp of the records of [start, sealed) in the segments, and of the later ones in the
        frames of the tail. Only segments and frames that begin below ``start`` are read.
        """
        found: list[int] = []
        for segment in segments:
            if segment.min_offset >= start:
                found.append(segment.max_timestamp_ms)
                continue
            for group in self._groups(files, segment):
                if group.first_offset >= start:
                    found.append(group.max_timestamp_ms)
                elif group.last_offset >= start:
                    times = read_row_group(files, segment.path, group.index, ("offset", "timestamp"))
                    found += _timestamps_from(times, start)
        first = max(start, sealed)
        for frame in tail:
            if frame.base_offset >= first:
                found.append(frame.max_timestamp_ms)
            else:
                (batch,) = frame_records([self._journal.read(frame.location)])
                found += _timestamps_from(batch, first)
        return max(found, default=None)

    def _groups(self, files: TableFiles, segment: SegmentFile) -> tuple[RowGroup, ...]:
        return self._index(files, segment).groups

    def _index(self, files: TableFiles, segment: SegmentFile) -> SegmentIndex:
        def checked(files: TableFiles, name: str) -> SegmentIndex:
            index = read_index(files, name)
            if is_file(name):
                _check_against_log(files.where(name), index.groups, segment)
            return index

        return self._cached(self._indices, files, segment.path, checked)

    def _cached(self, cache: LRUCache[str, T], files: TableFiles, name: str, read: Callable[[TableFiles, str], T]) -> T:
        place = files.where(name)
        with self._lock:
            found = cache.get(place)
        if found is None:
            found = read(files, name)
            with self._lock:
                cache[place] = found
        return found


def _footer_bytes(index: SegmentIndex) -> int:
    # The cache takes nothing that is larger than the whole.
    return min(index.num_bytes, _FOOTERS_BYTES)


def _nothing_until(following: int, wanted: Wanted) -> Slice[C]:
    """Return an empty slice, because no record of the segment is left: reading continues at ``following``."""
    return Slice([], 0, 0, max(wanted.start, min(following, wanted.end)))


def _check_against_log(place: str, groups: Sequence[RowGroup], segment: SegmentFile) -> None:
    bounds = (groups[0].first_offset, groups[-1].last_offset) if groups else (-1, -1)
    found = (sum(group.num_rows for group in groups), *bounds)
    if found != (segment.num_records, segment.min_offset, segment.max_offset):
        raise CorruptionError(
            f"{place} holds {found[0]} records of offsets {found[1]} to {found[2]}, the Delta log says "
            f"{segment.num_records} of {segment.min_offset} to {segment.max_offset}. Restore the file from a backup."
        )


def _cut(batches: Iterable[pa.RecordBatch], wanted: Wanted, scanned_to: int) -> Slice[pa.RecordBatch]:
    """Return the wanted part of ``batches``, which are complete up to the offset ``scanned_to``."""
    taken: list[pa.RecordBatch] = []
    count = num_bytes = searched_bytes = 0
    for batch in batches:
        offsets = int64_values(batch.column("offset"))
        first, last = np.searchsorted(offsets, (wanted.start, wanted.end)).tolist()
        rows = batch.slice(first, last - first)
        if wanted.search is not None and rows.num_rows:
            searched_bytes += rows.nbytes
            rows = rows.filter(wanted.search.where.mask(rows))
        fitting, size = _fitting(rows, wanted.max_bytes - num_bytes, at_least=0 if taken or wanted.may_be_empty else 1)
        if fitting:
            taken.append(rows.slice(0, fitting))
            count += fitting
            num_bytes += size
        if fitting < rows.num_rows:
            next_offset = int64_values(rows.column("offset"))[fitting]
            return Slice(taken, count, num_bytes, int(next_offset), True, searched_bytes)
        if wanted.search is not None and searched_bytes >= wanted.search.max_bytes:
            return Slice(taken, count, num_bytes, int(offsets[last - 1]) + 1, False, searched_bytes)
    next_offset = max(wanted.start, min(scanned_to, wanted.end))
    return Slice(taken, count, num_bytes, next_offset, False, searched_bytes)


def _passed_over(place: _Place, wanted: Wanted, search: Search) -> Slice[pa.RecordBatch] | None:
    """Return an empty slice in place of a row group if its times or keys alone show that no record is selected."""
    group = place.group
    if search.where.timestamps.overlaps(group.min_timestamp_ms, group.max_timestamp_ms):
        columns = search.where.columns - {"value"}
        if not columns or wanted.start > group.first_offset:
            return None
        rows = read_row_group(place.files, place.name, group.index, ("offset", *columns))
        if search.where.possible(rows).true_count:
            return None
        searched_bytes = rows.nbytes
    else:
        searched_bytes = _STATISTICS_BYTES
    return Slice([], 0, 0, max(wanted.start, min(place.scanned_to, wanted.end)), False, searched_bytes)


def _fitting(rows: pa.RecordBatch, max_bytes: int, *, at_least: int) -> tuple[int, int]:
    """Return how many of the first rows fit ``max_bytes``, and their bytes. Not many more rows are measured."""
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


def _timestamps_from(batch: pa.RecordBatch, start: int) -> list[int]:
    """Return the largest timestamp from the offset ``start`` on, if there is any."""
    timestamps = int64_values(batch.column("timestamp"))[int64_values(batch.column("offset")) >= start]
    return [int(timestamps.max())] if len(timestamps) else []
