"""The places of one partition's un-sealed records in the journal.

Owns six parallel columns with one row per frame: offsets, journal location, largest timestamp, size in memory. A frame
takes 48 bytes here, whatever its size. Invariant: rows rise by ``base_offset`` and touch each other (no hole, no
overlap). A frame that takes an offset and holds no record (CONTROL) has a row with 0 bytes in memory; all others have
more.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from logstore.errors import CorruptionError
from logstore.journal.frame import FrameHeader, FrameLocation
from logstore.limits import RECORD_OVERHEAD_BYTES
from logstore.records.payload import MESSAGE_BYTES

# The overhead of columns for each record.
_COLUMN_BYTES = 20


@dataclass(frozen=True, slots=True)
class IndexedFrame:
    base_offset: int
    end_offset: int
    location: FrameLocation
    max_timestamp_ms: int
    inflated_bytes: int

    @property
    def has_records(self) -> bool:
        return self.inflated_bytes > 0


class FrameIndex:
    def __init__(self) -> None:
        self._base = array("q")
        self._end = array("q")
        self._position = array("q")
        self._length = array("q")
        self._max_timestamp = array("q")
        self._inflated = array("q")
        self.num_bytes = 0  # the journal bytes of all frames in the index

    def __len__(self) -> int:
        return len(self._base)

    @property
    def _columns(self) -> "tuple[array[int], ...]":
        return self._base, self._end, self._position, self._length, self._max_timestamp, self._inflated

    @property
    def base_offset(self) -> int | None:
        return self._base[0] if self._base else None

    @property
    def end_offset(self) -> int | None:
        return self._end[-1] if self._end else None

    @property
    def newest_timestamp_ms(self) -> int | None:
        """The largest timestamp of the last frame."""
        return self._max_timestamp[-1] if self._max_timestamp else None

    @property
    def largest_timestamp_ms(self) -> int | None:
        """The largest timestamp of all frames; it walks over them."""
        return max(self._max_timestamp, default=None)

    def lowest_above(self, offset: int) -> int | None:
        """Return the lowest base offset of the frames that hold anything from ``offset`` on. The frames may be in any
        order.
        """
        return min((b for b, e in zip(self._base, self._end, strict=True) if e > offset), default=None)

    def offsets_from(self, offset: int) -> int:
        """Return the number of offsets from ``offset`` on that the frames hold."""
        return sum(end - max(base, offset) for base, end in zip(self._base, self._end, strict=True) if end > offset)

    def whole_to(self, offset: int) -> int:
        """Return the end of the offsets from ``offset`` on that the frames hold without a hole. The frames are in their
        order.
        """
        for base, end in zip(self._base, self._end, strict=True):
            if base > offset:
                break
            offset = max(offset, end)
        return offset

    def add(self, header: FrameHeader, location: FrameLocation) -> None:
        self._base.append(header.base_offset)
        self._end.append(header.end_offset)
        self._position.append(location.position)
        self._length.append(location.length)
        self._max_timestamp.append(header.max_timestamp_ms)
        self._inflated.append((header.inflated_bytes or 1) if header.has_records else 0)
        self.num_bytes += location.length

    def settle(self, truncations: Sequence[tuple[int, int]] = ()) -> "np.ndarray":
        """Drop truncated frames after a journal scan, which may add frames in any order, and bring the rest into offset
        order. If a frame was copied forward, its last copy stays.

        ``truncations``: (journal position, new log end offset); each drops the frames before it that reach beyond it.
        Returns the rows that stay, as they were added, in their new order.
        """
        if not self._base:  # many partitions have only snapshots in the journal
            return np.empty(0, dtype=np.int64)
        base, end, position = (np.array(column, dtype=np.int64) for column in (self._base, self._end, self._position))
        wanted = np.flatnonzero(end <= _limits(position, truncations)) if truncations else np.arange(len(base))
        order = wanted[np.lexsort((position[wanted], base[wanted]))]
        last_copy = np.ones(len(order), dtype=bool)
        last_copy[:-1] = base[order][1:] != base[order][:-1]
        kept = order[last_copy]
        self._keep(kept)
        return kept

    def finish_recovery(self, from_offset: int) -> None:
        """Drop the frames below ``from_offset``. Raises CorruptionError on frames that overlap or leave a hole,
        including a hole between ``from_offset`` and the first frame.
        """
        if min(self._end, default=from_offset + 1) <= from_offset:
            self._keep(np.flatnonzero(np.array(self._end, dtype=np.int64) > from_offset))
        expected = min(from_offset, self._base[0]) if self._base else from_offset
        for at in range(len(self)):
            if self._base[at] != expected:
                raise CorruptionError(
                    f"the journal does not hold offsets {expected} to {self._base[at]} "
                    f"(the next frame is at journal position {self._position[at]})"
                )
            expected = self._end[at]

    def _keep(self, rows: "np.ndarray") -> None:
        """Bring ``rows`` into this order, and drop the others."""
        for column in self._columns:
            column[:] = array("q", np.array(column, dtype=np.int64)[rows].tolist())
        self.num_bytes = sum(self._length)

    def spans(self) -> "np.ndarray":
        """Return (base offset, end offset) of each frame, in the order of the index."""
        return np.stack((np.array(self._base, dtype=np.int64), np.array(self._end, dtype=np.int64)), axis=1)

    def boundary(self, offset: int) -> int | None:
        """Return the base offset of the frame that holds ``offset``; None if no frame holds it."""
        at = bisect_right(self._end, offset)
        return self._base[at] if at < len(self) and self._base[at] <= offset else None

    def truncate(self, offset: int) -> None:
        """Forget frames that reach beyond ``offset``."""
        count = bisect_right(self._end, offset)
        self.num_bytes -= sum(self._length[count:])
        for column in self._columns:
            del column[count:]

    def located_in(self, start: int, end: int) -> list[IndexedFrame]:
        """Return the frames at the journal positions [start, end), rising by offset."""
        position = np.array(self._position, dtype=np.int64)
        return [self._frame(at) for at in np.flatnonzero((position >= start) & (position < end)).tolist()]

    def holds(self, frame: IndexedFrame) -> bool:
        """Return whether the index still has this frame for its offsets, at this place."""
        at = bisect_right(self._base, frame.base_offset) - 1
        return at >= 0 and self._base[at] == frame.base_offset and self._position[at] == frame.location.position

    def move(self, frame: IndexedFrame, location: FrameLocation) -> None:
        """Note that a frame was copied forward in the journal. A frame that was dropped meanwhile is ignored, even if
        another frame has its offsets by now.
        """
        if self.holds(frame):
            at = bisect_right(self._base, frame.base_offset) - 1
            self._position[at], self._length[at] = location.position, location.length

    def drop_below(self, offset: int) -> None:
        """Forget frames that lie wholly below ``offset``."""
        count = bisect_right(self._end, offset)
        self.num_bytes -= sum(self._length[:count])
        for column in self._columns:
            del column[:count]

    def frames(self, start: int, end: int) -> Iterator[IndexedFrame]:
        """Yield the frames that hold any offset of [start, end), rising."""
        for at in range(bisect_right(self._end, start), len(self)):
            if self._base[at] >= end:
                return
            yield self._frame(at)

    def __iter__(self) -> Iterator[IndexedFrame]:
        return map(self._frame, range(len(self)))

    def bytes_from(self, offset: int) -> int:
        """Return the bytes of the journal from the frame that holds ``offset`` to the last one. Frames of other
        partitions between them count.
        """
        at = bisect_right(self._end, offset)
        return self._position[-1] + self._length[-1] - self._position[at] if at < len(self) else 0

    def part(self, start: int, end: int) -> "FrameIndex":
        """Return a copy of the frames that hold any offset of [start, end), for another thread."""
        first, last = bisect_right(self._end, start), bisect_left(self._base, end)
        part = FrameIndex()
        for copy, column in zip(part._columns, self._columns, strict=True):
            copy.extend(column[first:last])
        part.num_bytes = sum(part._length)
        return part

    def inflated_bytes(self, start: int, end: int) -> int:
        """Return the bytes in memory of the frames that hold any offset of [start, end)."""
        return sum(self._inflated[bisect_right(self._end, start) : bisect_left(self._base, end)]) if start < end else 0

    def record_bytes(self, start: int, end: int) -> int:
        """Return about the size that readers count for the frames that hold any offset of [start, end): keys, values
        and headers, and RECORD_OVERHEAD_BYTES for each record.
        """
        first, last = bisect_right(self._end, start), bisect_left(self._base, end)
        if first >= last:
            return 0
        records = self._end[last - 1] - self._base[first]
        overhead = records * RECORD_OVERHEAD_BYTES
        inflated = sum(self._inflated[first:last]) - (last - first) * MESSAGE_BYTES
        return max(overhead, inflated + records * (RECORD_OVERHEAD_BYTES - _COLUMN_BYTES))

    def frames_by_bytes(self, start: int, end: int, max_bytes: int) -> list[IndexedFrame]:
        """Return the first frames of [start, end) that inflate to ``max_bytes`` or more, at least one if any exists."""
        taken: list[IndexedFrame] = []
        total = 0
        for frame in self.frames(start, end):
            taken.append(frame)
            total += frame.inflated_bytes or frame.location.length
            if total >= max_bytes:
                break
        return taken

    def locations_by_length(self, start: int, end: int, max_bytes: int) -> list[FrameLocation]:
        """Return the first frames of [start, end) that have up to ``max_bytes`` in the journal together; at least one
        if there is any.
        """
        first, last = bisect_right(self._end, start), bisect_left(self._base, end)
        taken: list[FrameLocation] = []
        left = max_bytes
        for at in range(first, last):
            length = self._length[at]
            left -= length
            if left < 0 and taken:
                break
            taken.append(FrameLocation(self._position[at], length))
        return taken

    def frames_since(self, start: int, end: int, timestamp_ms: int) -> Iterator[IndexedFrame]:
        """Return the frames of [start, end) that may hold a record with a timestamp of at least ``timestamp_ms``."""
        return (f for f in self.frames(start, end) if f.has_records and f.max_timestamp_ms >= timestamp_ms)

    def offset_after_bytes(self, start: int, end: int, max_bytes: int) -> int:
        """Return the end offset of a segment that begins at ``start`` and holds about ``max_bytes``; it is a frame
        boundary.
        """
        first, last = bisect_right(self._end, start), bisect_left(self._end, end)
        totals = np.cumsum(np.array(self._length[first:last], dtype=np.int64))
        at = first + int(np.searchsorted(totals, max_bytes))
        return self._end[at] if at < last else end

    def _frame(self, at: int) -> IndexedFrame:
        return IndexedFrame(
            self._base[at],
            self._end[at],
            FrameLocation(self._position[at], self._length[at]),
            self._max_timestamp[at],
            self._inflated[at],
        )


def _limits(position: "np.ndarray", truncations: Sequence[tuple[int, int]]) -> "np.ndarray":
    """Return for each journal position the lowest log end offset that a later truncation ordered."""
    places, ends = np.array(sorted(truncations), dtype=np.int64).T
    lowest_from = np.append(np.minimum.accumulate(ends[::-1])[::-1], np.iinfo(np.int64).max)
    limits: np.ndarray = lowest_from[np.searchsorted(places, position, side="right")]
    return limits
