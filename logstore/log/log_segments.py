"""The segments of one partition in Delta by offset, with their sizes and the reasons why some cannot be read. Records
that other writers rewrote are among them.

Invariant: the ranges of the files rise and do not overlap; there may be a gap between two of them.
"""

from bisect import bisect_right
from collections.abc import Iterator

from logstore.delta.foreign_ranges import RefusedFile
from logstore.delta.snapshot import SegmentFile


class LogSegments:
    __slots__ = ("files", "refused", "unreadable")

    def __init__(self) -> None:
        self.files: tuple[SegmentFile, ...] = ()
        #: The reasons why segments cannot be read, by path, as readers have found them.
        self.unreadable: dict[str, str] = {}
        #: Files of other writers that are in the table and are not served.
        self.refused: tuple[RefusedFile, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[SegmentFile]:
        return iter(self.files)

    def follow(self, files: tuple[SegmentFile, ...], refused: tuple[RefusedFile, ...] = ()) -> None:
        """Take over the files of a newer snapshot."""
        self.files, self.refused = files, refused
        if self.unreadable:
            paths = {segment.path for segment in files}
            self.unreadable = {path: why for path, why in self.unreadable.items() if path in paths}

    @property
    def size_bytes(self) -> int:
        """The bytes of the files."""
        return sum(segment.size for segment in self.files)

    def records_above(self, log_start_offset: int) -> int:
        """Return the number of records from ``log_start_offset`` on. If it lies inside a segment, all records of that
        segment count.
        """
        return sum(segment.num_records for segment in self.files if segment.end_offset > log_start_offset)

    def records_between(self, start: int, end: int) -> tuple[int, SegmentFile | None]:
        """Return the number of records of [start, end), and a segment that is not counted. ``end`` is not inside a
        segment. The segment is left out if ``start`` lies in it and it has gaps.
        """
        count, rest = 0, None
        for segment in self.files[bisect_right(self.files, start, key=lambda s: s.end_offset) :]:
            if segment.base_offset >= end:
                break
            if start <= segment.min_offset:
                count += segment.num_records
            elif segment.max_offset + 1 - segment.min_offset == segment.num_records:
                count += max(0, segment.max_offset + 1 - start)
            elif start <= segment.max_offset:
                rest = segment
        return count, rest

    @property
    def newest_timestamp_ms(self) -> int | None:
        """The largest timestamp of the last segment with a record; None without one."""
        return next((segment.max_timestamp_ms for segment in reversed(self.files) if segment.num_records), None)

    def stored_bytes(self, start: int, end: int) -> int:
        """Return about how many bytes of the files the records of [start, end) take; 0 only if there are none."""
        total = 0
        for segment in self.files[bisect_right(self.files, start, key=lambda s: s.end_offset) :]:
            if segment.base_offset >= end:
                break
            wanted = min(segment.max_offset + 1, end) - max(segment.min_offset, start)
            if segment.num_records and wanted > 0:
                total += max(1, segment.size * wanted // (segment.max_offset + 1 - segment.min_offset))
        return total
