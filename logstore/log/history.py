"""Segment files that lie on disk, whether the Delta log names them or not (rule R7).

A segment's footer says all that is needed to commit it again, so that a commit of ours that a foreign writer has
overwritten is repaired with the very same files.
"""

from collections.abc import Callable
from pathlib import Path

from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError
from logstore.segments.footer import ROLL
from logstore.segments.reader import find_segments, verify_segment
from logstore.segments.writer import Segment


class MissingSegmentsError(CorruptionError):
    """No segment files on disk hold a range."""


def history_gaps(snapshot: TopicSnapshot, partition: int) -> list[tuple[int, int]]:
    """Offset ranges below ``sealed`` that no file holds, from the log start and the clean point on.

    Rolls leave no gaps; compaction does, below the clean point.
    """
    state = snapshot.partitions[partition]
    gaps = []
    expected = max(state.log_start, state.cleaned)
    for segment in snapshot.segments(partition):
        if segment.min_offset > expected:
            gaps.append((expected, segment.min_offset))
        expected = max(expected, segment.max_offset + 1)
    if expected < state.sealed:
        gaps.append((expected, state.sealed))
    return gaps


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
