"""A partition's history as its files tell it: what is missing of it, and files that the Delta log has forgotten (R7).

A segment's footer says all that is needed to commit it again, so that a commit of ours that a foreign writer has
overwritten is repaired with the very same files.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from logstore.delta.log_entries import Removal
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError
from logstore.segments.footer import ROLL
from logstore.segments.names import parse_segment_name
from logstore.segments.reader import find_segments, verify_segment
from logstore.segments.writer import Segment


class MissingSegmentsError(CorruptionError):
    """No segment files on disk hold a range."""


def history_gaps(snapshot: TopicSnapshot, partition: int) -> list[tuple[int, int]]:
    """Offset ranges below ``sealed`` that no file holds, from the log start and the clean point on.

    Rolls leave no gaps; compaction does, below the clean point.
    """
    return snapshot.uncovered(partition, history_start(snapshot, partition))


def history_start(snapshot: TopicSnapshot, partition: int) -> int:
    """From here on every sealed offset is in a file, unless somebody else took it away."""
    state = snapshot.partitions[partition]
    return max(state.log_start, state.cleaned)


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Sealed offsets [start, end) that somebody took out of the table, by ``cause``, as ``RESTORE in version 12``."""

    start: int
    end: int
    cause: str


def new_gaps(gaps: Sequence[tuple[int, int]], known: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """``gaps`` without the parts of them that lie in ``known`` ones; both rise."""
    found = []
    for start, end in gaps:
        at = start
        for known_start, known_end in known:
            if at < known_start < end:
                found.append((at, known_start))
            if known_start < end and known_end > at:
                at = known_end
        if at < end:
            found.append((at, end))
    return found


def missing_ranges(
    gaps: Sequence[tuple[int, int]],
    partition: int,
    removals: Mapping[str, Removal],
    *,
    history_start: int,
    unexplained: str | None,
) -> tuple[MissingRange, ...]:
    """Of ``gaps`` in a partition's history what neither a DELETE nor a job of ours took away, by offset.

    ``removals`` by path. A gap that none of them explains has the cause ``unexplained``; None: it is left out.
    """
    by_base = sorted(
        (
            (name.base_offset, removal)
            for path, removal in removals.items()
            if (name := parse_segment_name(path)) is not None and name.partition == partition
        ),
        key=lambda entry: (entry[0], entry[1].version),
    )
    missing: list[MissingRange] = []
    for start, end in gaps:
        # A file may begin before the gap only where the history begins within the file.
        if start == history_start:
            first = max(0, bisect_right(by_base, start, key=lambda entry: entry[0]) - 1)
        else:
            first = bisect_left(by_base, start, key=lambda entry: entry[0])
        inside = [entry for entry in by_base[first:] if entry[0] < end]
        if not inside:
            if unexplained is not None:
                missing.append(MissingRange(start, end, unexplained))
            continue
        ends = [*(base for base, _ in inside[1:]), end]
        for (base, removal), until in zip(inside, ends, strict=True):
            low, high = max(base, start), min(until, end)
            if low >= high or removal.ours or removal.operation == "DELETE":
                continue
            cause = f"{removal.operation} in version {removal.version}"
            if missing and missing[-1].end == low and missing[-1].cause == cause:
                low = missing.pop().start
            missing.append(MissingRange(low, high, cause))
    return tuple(missing)


def sealed_segments_on_disk(
    table_path: Path, partition: int, start: int, end: int, *, wanted: Callable[[str], bool] = lambda _: True
) -> tuple[Segment, ...]:
    """Files that together hold exactly [start, end) of a partition, by offset; of rivals the highest leader epoch.

    Only what rolls wrote, and of that what is ``wanted`` by its path: a job that was not committed leaves files that
    hold less than their range.

    Raises MissingSegmentsError if there are none: records that were sealed are neither in the table nor on disk;
    CorruptionError if one of them is damaged.
    """
    by_base: dict[int, list[Segment]] = {}
    found = find_segments(table_path, partition, start)
    for segment in found.segments:
        if segment.operation == ROLL and wanted(segment.path):
            by_base.setdefault(segment.base_offset, []).append(segment)
    chain = _chain(by_base, start, end)
    if chain is None:
        unreadable = f" (unreadable: {', '.join(found.unreadable)})" if found.unreadable else ""
        raise MissingSegmentsError(
            f"{table_path}: partition {partition} had sealed offsets {start} to {end}, but the Delta log no longer "
            f"names them and no segment files on disk hold exactly them{unreadable}. Restore the table directory from "
            "a backup."
        )
    for segment in chain:
        verify_segment(table_path / segment.path)
    return chain


def _chain(by_base: dict[int, list[Segment]], start: int, end: int) -> tuple[Segment, ...] | None:
    """A gapless run of segments from ``start`` to ``end``; highest epoch first, longest first, with backtracking."""
    dead: set[int] = set()
    chain: list[Segment] = []
    choices: list[list[Segment]] = [_best_last(by_base.get(start, []))]
    while True:
        at = chain[-1].end_offset if chain else start
        if at == end:
            return tuple(chain)
        while choices[-1] and (choices[-1][-1].end_offset > end or choices[-1][-1].end_offset in dead):
            choices[-1].pop()
        if choices[-1]:
            segment = choices[-1].pop()
            chain.append(segment)
            choices.append(_best_last(by_base.get(segment.end_offset, [])))
        elif chain:
            dead.add(at)
            chain.pop()
            choices.pop()
        else:
            return None


def _best_last(segments: list[Segment]) -> list[Segment]:
    return sorted(segments, key=lambda s: (s.leader_epoch, s.end_offset, s.path))
