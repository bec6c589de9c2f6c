"""The plan of a read: scans of a topic's table, and fetches from the store. Pure functions; no Spark, no store.

Invariant (rule R8): the scanned part and the fetched part of a range meet at one offset and do not overlap. It is the
sealed offset, or the start if little of the sealed part is requested, because the store can serve that also.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from logstore.limits import MIB
from logstore.spark.offset_ranges import OffsetRange

#: A query plans each Delta scan separately, which takes some tens of milliseconds.
HISTORY_SCANS_MAX = 8
#: Up to this many sealed bytes, as stored, of up to this many partitions are fetched from the store. A scan of the
#: table costs a query a second job of Spark, in which Delta chooses files; a fetch costs the store a row group for each
#: partition.
FETCHED_BYTES_MAX = 8 * MIB
FETCHED_PARTITIONS_MAX = 16


@dataclass(frozen=True, slots=True)
class FileRange:
    """Offsets ``first_offset <= offset <= last_offset`` of one history file of a partition."""

    partition: int
    first_offset: int
    last_offset: int
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HistoryScan:
    """Ranges that one Delta scan reads, at most one per partition; never empty."""

    ranges: tuple[OffsetRange, ...]

    @property
    def start(self) -> int:
        return min(r.start for r in self.ranges)

    @property
    def end(self) -> int:
        return max(r.end for r in self.ranges)

    def condition(self) -> str:
        """Return the filter, in Spark SQL, on the topic's table. Names are quoted: in some sessions they are reserved
        words.

        Delta skips files by conjuncts on the partition column and by conjuncts on columns with statistics. With a
        disjunction that mixes both it skips fully by neither: each partition would open the files of every other one's
        range. So the partitions and the hull of the ranges are separate conjuncts, and the exact bounds of each
        partition, where they differ, are looked up in a constant array: the plan stays small with any number of
        partitions.
        """
        conjuncts = [
            f"`partition` IN ({', '.join(str(r.partition) for r in self.ranges)})",
            f"`offset` >= {self.start}L",
            f"`offset` < {self.end}L",
        ]
        if any((r.start, r.end) != (self.start, self.end) for r in self.ranges):
            size = 1 + max(r.partition for r in self.ranges)
            starts, ends = np.zeros((2, size), np.int64)
            for r in self.ranges:
                starts[r.partition], ends[r.partition] = r.start, r.end
            conjuncts += [
                f"`offset` >= get({_array_literal(starts)}, `partition`)",
                f"`offset` < get({_array_literal(ends)}, `partition`)",
            ]
        return " AND ".join(conjuncts)


def _array_literal(numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> str:
    return f"array({', '.join(f'{n}L' for n in numbers.tolist())})"


def plan_history(
    ranges: Sequence[OffsetRange], files: Iterable[FileRange], scans_max: int = HISTORY_SCANS_MAX
) -> list[HistoryScan]:
    """Divide ``ranges`` (one per partition) into at most ``scans_max`` scans that open few files outside their ranges.

    One scan is enough as long as the hull of its ranges touches no other files: in particular from the beginning up to
    the sealed offsets, however far each partition is. Otherwise the scan that opens most files in vain is cut where
    neighbouring ranges are farthest apart, again and again.
    """
    firsts: dict[int, list[int]] = {}
    lasts: dict[int, list[int]] = {}
    for file in sorted(files, key=lambda f: (f.partition, f.first_offset)):
        firsts.setdefault(file.partition, []).append(file.first_offset)
        lasts.setdefault(file.partition, []).append(file.last_offset)

    def opened(partition: int, start: int, end: int) -> int:
        return bisect_left(firsts.get(partition, ()), end) - bisect_left(lasts.get(partition, ()), start)

    def in_vain(scan: Sequence[OffsetRange]) -> int:
        start, end = min(r.start for r in scan), max(r.end for r in scan)
        return sum(opened(r.partition, start, end) - opened(r.partition, r.start, r.end) for r in scan)

    scans = [sorted(ranges, key=lambda r: (r.start, r.end, r.partition))] if ranges else []
    while len(scans) < scans_max and (worst := max(scans, key=in_vain, default=None)) and in_vain(worst):
        gaps = [b.start - a.start + abs(b.end - a.end) for a, b in pairwise(worst)]
        cut = gaps.index(max(gaps)) + 1
        scans.remove(worst)
        scans += [worst[:cut], worst[cut:]]
    return [HistoryScan(tuple(sorted(scan, key=lambda r: r.partition))) for scan in scans]


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The plan of a read: ranges for scans of the table, and ranges for the store, at most one per partition."""

    history: tuple[HistoryScan, ...]
    fetched: tuple[OffsetRange, ...]


def plan_read(
    ranges: Iterable[OffsetRange], sealed: Mapping[int, int], files: Iterable[FileRange], *, has_store: bool
) -> ReadPlan:
    """Plan to read ``ranges`` (one per partition) from ``files`` below a partition's sealed offset, else from the
    store.

    If there is a store and only little of them is below (``is_little``), all are read from the store.
    """
    ranges, files = [r for r in ranges if r.start < r.end], list(files)
    history, tail = split_at_sealed(ranges, sealed)
    if has_store and is_little(history, files):
        return ReadPlan((), tuple(ranges))
    return ReadPlan(tuple(plan_history(history, files)), tuple(tail))


def is_little(history: Sequence[OffsetRange], files: Iterable[FileRange]) -> bool:
    """Return True if the requested stored bytes and partitions are few enough for a fetch to cost less than a scan."""
    by_partition = {r.partition: r for r in history}
    shares = (
        stored_share(file.stored_bytes, file.first_offset, file.last_offset, r.start, r.end)
        for file in files
        if (r := by_partition.get(file.partition))
    )
    return len(history) <= FETCHED_PARTITIONS_MAX and sum(shares) <= FETCHED_BYTES_MAX


def stored_share(stored_bytes: int, first_offset: int, last_offset: int, start: int, end: int) -> int:
    """Return about how many stored bytes of a file hold its records of [start, end)."""
    offsets = max(0, min(end, last_offset + 1) - max(start, first_offset))
    return stored_bytes * offsets // max(1, last_offset + 1 - first_offset)


def split_at_sealed(
    ranges: Iterable[OffsetRange], sealed: Mapping[int, int]
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return (history, tail): the parts below and from the sealed offset of each partition, without empty parts."""
    history, tail = [], []
    for r in ranges:
        border = min(max(sealed.get(r.partition, 0), r.start), r.end)
        if r.start < border:
            history.append(OffsetRange(r.partition, r.start, border))
        if border < r.end:
            tail.append(OffsetRange(r.partition, border, r.end))
    return history, tail
