"""The plan of a read: scans of a topic's table, and fetches of the tail. Pure functions; no Spark, no store.

Invariant (rule R8): the history part and the tail part of a range meet at the sealed offset and do not overlap.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from logstore.spark.offset_ranges import OffsetRange

#: A query plans each Delta scan by itself, at some tens of milliseconds.
HISTORY_SCANS_MAX = 8


@dataclass(frozen=True, slots=True)
class FileRange:
    """Offsets ``first_offset <= offset <= last_offset`` that one history file of a partition spans."""

    partition: int
    first_offset: int
    last_offset: int


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
        """The filter, in Spark SQL, on the topic's table.

        Delta skips files by conjuncts on the partition column and by conjuncts on columns with statistics. A
        disjunction that mixes both skips by neither of them fully: each partition would open the files of every other
        one's range. So the partitions and the hull of the ranges are conjuncts of their own, and the exact bounds of
        each partition, where they differ, are looked up in a constant array: the plan stays small with any number of
        partitions.
        """
        conjuncts = [
            f"partition IN ({', '.join(str(r.partition) for r in self.ranges)})",
            f"offset >= {self.start}L",
            f"offset < {self.end}L",
        ]
        if any((r.start, r.end) != (self.start, self.end) for r in self.ranges):
            size = 1 + max(r.partition for r in self.ranges)
            starts, ends = np.zeros((2, size), np.int64)
            for r in self.ranges:
                starts[r.partition], ends[r.partition] = r.start, r.end
            conjuncts += [
                f"offset >= get({_array_literal(starts)}, partition)",
                f"offset < get({_array_literal(ends)}, partition)",
            ]
        return " AND ".join(conjuncts)


def _array_literal(numbers: "np.ndarray[Any, np.dtype[np.int64]]") -> str:
    return f"array({', '.join(f'{n}L' for n in numbers.tolist())})"


def plan_history(
    ranges: Sequence[OffsetRange], files: Iterable[FileRange], scans_max: int = HISTORY_SCANS_MAX
) -> list[HistoryScan]:
    """Divide ``ranges`` (one per partition) into at most ``scans_max`` scans that open few files outside their ranges.

    One scan is enough as long as the hull of its ranges touches no file besides theirs: in particular from the
    beginning up to the sealed offsets, however far each partition is. Otherwise the scan that opens most files in vain
    is cut where neighbouring ranges are farthest apart, again and again.
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
    """The plan of a read: scans of the table, and ranges of the tail, at most one per partition."""

    history: tuple[HistoryScan, ...]
    tail: tuple[OffsetRange, ...]


def plan_read(ranges: Iterable[OffsetRange], sealed: Mapping[int, int], files: Iterable[FileRange]) -> ReadPlan:
    """``ranges`` (one per partition): below the sealed offset of a partition they are read from ``files``, above it
    from the store.
    """
    history, tail = split_at_sealed(ranges, sealed)
    return ReadPlan(tuple(plan_history(history, files)), tuple(tail))


def split_at_sealed(
    ranges: Iterable[OffsetRange], sealed: Mapping[int, int]
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """(history, tail): the parts below and from the sealed offset of each partition; empty parts are left out."""
    history, tail = [], []
    for r in ranges:
        border = min(max(sealed.get(r.partition, 0), r.start), r.end)
        if r.start < border:
            history.append(OffsetRange(r.partition, r.start, border))
        if border < r.end:
            tail.append(OffsetRange(r.partition, border, r.end))
    return history, tail
