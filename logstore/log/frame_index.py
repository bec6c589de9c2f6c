"""The places of one partition's un-sealed records in the journal.

Owns six parallel columns, one row a frame: offsets, journal location, largest timestamp, size in memory. 48 bytes a
frame, whatever its size. Invariant: rows rise by ``base_offset`` and touch each other (no hole, no overlap). A frame
that takes an offset and holds no record (CONTROL) has a row, with 0 bytes in memory; all others have more.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from logstore.errors import CorruptionError
from logstore.journal.frame import FrameHeader, FrameLocation
from logstore.limits import RECORD_OVERHEAD_BYTES

# The overhead of a record batch message, and of its columns for each record.
_MESSAGE_BYTES = 532
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
        self.num_bytes = 0  # journal bytes of all frames in the index

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

    def lowest_above(self, offset: int) -> int | None:
        """The lowest base offset of the frames that hold anything from ``offset`` on, in whatever order they are."""
        return min((b for b, e in zip(self._base, self._end, strict=True) if e > offset), default=None)

    def add(self, header: FrameHeader, location: FrameLocation) -> None:
        self._base.append(header.base_offset)
        self._end.append(header.end_offset)
        self._position.append(location.position)
        self._length.append(location.length)
        self._max_timestamp.append(header.max_timestamp_ms)
        self._inflated.append((header.inflated_bytes or 1) if header.has_records else 0)
        self.num_bytes += location.length

    def finish_recovery(self, from_offset: int) -> None:
        """After a journal scan: drop what is below ``from_offset`` and bring the rest into offset order.

        If a frame was copied forward, its later copy stays. Raises CorruptionError on frames that overlap or leave
        a hole, also between ``from_offset`` and the first.
        """
        base, end, position = (np.array(column, dtype=np.int64) for column in (self._base, self._end, self._position))
        wanted = np.flatnonzero(end > from_offset)
        order = wanted[np.lexsort((position[wanted], base[wanted]))]
        last_copy = np.ones(len(order), dtype=bool)
        last_copy[:-1] = base[order][1:] != base[order][:-1]
        kept = order[last_copy]
        for column in self._columns:
            column[:] = array("q", np.array(column, dtype=np.int64)[kept].tolist())
        self.num_bytes = sum(self._length)
        expected = min(from_offset, self._base[0]) if self._base else from_offset
        for at in range(len(self)):
            if self._base[at] != expected:
                raise CorruptionError(
                    f"the journal does not hold offsets {expected} to {self._base[at]} "
                    f"(the next frame is at journal position {self._position[at]})"
                )
            expected = self._end[at]

    def move(self, base_offset: int, location: FrameLocation) -> None:
        """A frame was copied forward in the journal; one that was dropped meanwhile is ignored."""
        at = bisect_right(self._base, base_offset) - 1
        if at >= 0 and self._base[at] == base_offset:
            self._position[at], self._length[at] = location.position, location.length

    def drop_below(self, offset: int) -> None:
        """Forget frames that lie wholly below ``offset``."""
        count = bisect_right(self._end, offset)
        self.num_bytes -= sum(self._length[:count])
        for column in self._columns:
            del column[:count]

    def frames(self, start: int, end: int) -> Iterator[IndexedFrame]:
        """Frames that hold any offset of [start, end), rising."""
        for at in range(bisect_right(self._end, start), len(self)):
            if self._base[at] >= end:
                return
            yield self._frame(at)

    def inflated_bytes(self, start: int, end: int) -> int:
        """The frames that hold any offset of [start, end)."""
        return sum(self._inflated[bisect_right(self._end, start) : bisect_left(self._base, end)]) if start < end else 0

    def record_bytes(self, start: int, end: int) -> int:
        """About what readers count of the frames that hold any offset of [start, end): keys, values and headers, and
        RECORD_OVERHEAD_BYTES a record.
        """
        first, last = bisect_right(self._end, start), bisect_left(self._base, end)
        if first >= last:
            return 0
        records = self._end[last - 1] - self._base[first]
        overhead = records * RECORD_OVERHEAD_BYTES
        inflated = sum(self._inflated[first:last]) - (last - first) * _MESSAGE_BYTES
        return max(overhead, inflated + records * (RECORD_OVERHEAD_BYTES - _COLUMN_BYTES))

    def frames_by_bytes(self, start: int, end: int, max_bytes: int) -> list[IndexedFrame]:
        """The first frames of [start, end) that inflate to ``max_bytes`` or more; at least one if there is any."""
        taken: list[IndexedFrame] = []
        total = 0
        for frame in self.frames(start, end):
            taken.append(frame)
            total += frame.inflated_bytes or frame.location.length
            if total >= max_bytes:
                break
        return taken

    def frames_since(self, start: int, end: int, timestamp_ms: int) -> Iterator[IndexedFrame]:
        """Frames of [start, end) that may hold a record with a timestamp of at least ``timestamp_ms``."""
        return (f for f in self.frames(start, end) if f.has_records and f.max_timestamp_ms >= timestamp_ms)

    def offset_after_bytes(self, start: int, end: int, max_bytes: int) -> int:
        """The end offset of a segment that begins at ``start`` and holds about ``max_bytes``; a frame boundary."""
        first = bisect_right(self._end, start)
        for at, total in enumerate(accumulate(self._length[first:]), start=first):
            if self._end[at] >= end or total >= max_bytes:
                return min(self._end[at], end)
        return end

    def _frame(self, at: int) -> IndexedFrame:
        return IndexedFrame(
            self._base[at],
            self._end[at],
            FrameLocation(self._position[at], self._length[at]),
            self._max_timestamp[at],
            self._inflated[at],
        )
