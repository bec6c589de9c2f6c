"""A partition's history according to its files: records that are missing, and files that the Delta log no longer names
(R7). A segment's footer has everything needed to commit the file again. So the same files repair a commit of ours that
a foreign writer has overwritten.
"""

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from logstore.delta.file_history import Removal, removals_since
from logstore.delta.restore_command import restore_command
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError, MissingRecordsError
from logstore.segments.footer import ROLL
from logstore.segments.names import known_segment_name
from logstore.segments.reader import find_segments, read_footer, verify_segment
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles


class MissingSegmentsError(CorruptionError):
    """No segment files on disk hold a range."""


def history_gaps(snapshot: TopicSnapshot, partition: int) -> list[tuple[int, int]]:
    """Return the offset ranges from the log start to ``sealed`` that no file covers.

    Rolls and jobs leave no gap: a file covers its range whether it has records of it or not. Compaction of earlier
    releases left gaps below the clean point, and a DELETE may leave them anywhere.
    """
    return snapshot.uncovered(partition, snapshot.partitions[partition].log_start)


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Sealed offsets [start, end) that another writer took out of the table. ``cause`` reads like
    ``RESTORE in version 12``. ``version`` is that of the commit, None if it is not known.
    """

    start: int
    end: int
    cause: str
    version: int | None = None

    def within(self, gaps: Sequence[tuple[int, int]]) -> "list[MissingRange]":
        """Return the parts of the range that lie in ``gaps``."""
        cut = ((max(self.start, start), min(self.end, end)) for start, end in gaps)
        return [MissingRange(start, end, self.cause, self.version) for start, end in cut if start < end]

    def told(self, topic: str, partition: int) -> str:
        return f"{topic}-{partition}: offsets {self.start} to {self.end - 1} are missing: {self.cause}"

    def explained(self, topic: str, partition: int, location: str) -> tuple[str, str]:
        """Return the missing records in words, and a remedy: commands to paste into a shell. ``location`` is the
        table's.
        """
        give_up = f"logstore topic delete-records {topic} --partition {partition} --before-offset {self.end}"
        # The version is unknown if the log no longer has the commit that removed the records.
        before = "VERSION" if self.version is None else self.version - 1
        remedy = (
            f"Restore the table to the version before that commit: {restore_command(location, before)}; or give "
            f"up these records and all before them: {give_up}"
        )
        offsets = f"Offsets {self.start} to {self.end - 1} of {topic}-{partition}"
        return f"{offsets} are missing: {self.cause}", remedy


def new_gaps(gaps: Sequence[tuple[int, int]], known: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ``gaps`` without the parts that lie in ``known`` ones; both rise."""
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


@dataclass(frozen=True, slots=True)
class RemovedRange:
    """Offsets [start, end) of a file, and the commit that took it out of the table."""

    start: int
    end: int
    removal: Removal


def removed_ranges(
    removals: Mapping[str, Removal], before: TopicSnapshot | None, files: TableFiles
) -> dict[int, list[RemovedRange]]:
    """Return the ranges of removed files by partition, from ``before``, the log or their own footers. A file of unknown
    range is left out. Raises CorruptionError and OSError.
    """
    known = before.ranges() if before is not None else {}
    found: dict[int, list[RemovedRange]] = {}
    for path, removal in removals.items():
        bounds = known.get(path) or segment_bounds(files, path, removal)
        if bounds is None:
            continue
        partition, start, end = bounds
        if max(start, removal.since) < end:
            found.setdefault(partition, []).append(RemovedRange(max(start, removal.since), end, removal))
    return found


def segment_bounds(files: TableFiles, path: str, removal: Removal) -> tuple[int, int, int] | None:
    """Return partition, base offset and end of a removed file: from the log, its name, or its footer if the name has no
    end. None for another writer's file whose range the log no longer has.
    """
    if removal.bounds is not None:
        return removal.bounds
    name = known_segment_name(path)
    if name is None:
        return None
    if name.end_offset is not None:
        return name.partition, name.base_offset, name.end_offset
    with contextlib.suppress(FileNotFoundError, CorruptionError):
        return name.partition, name.base_offset, read_footer(files, path).end_offset
    return name.partition, name.base_offset, name.base_offset + 1


def missing_ranges(
    gaps: Sequence[tuple[int, int]], removed: Sequence[RemovedRange], *, unexplained: str | None
) -> tuple[MissingRange, ...]:
    """Return the parts of ``gaps`` in a partition's history that nobody meant to remove (``Removal.meant``), by offset.
    If several commits removed an offset, the last one counts. A part that no commit removed has the cause
    ``unexplained``; if that is None, the part is left out.
    """
    missing: list[MissingRange] = []
    for start, end in gaps:
        bounds = {bound for r in removed for bound in (r.start, r.end) if start < bound < end}
        for low, high in itertools.pairwise(sorted({start, end} | bounds)):
            removals = [r.removal for r in removed if r.start <= low and high <= r.end]
            last = max(removals, key=lambda removal: removal.version, default=None)
            if last is None:
                cause = unexplained
            elif last.meant:
                cause = None
            else:
                cause = f"{last.operation} in version {last.version}"
            if cause is None:
                continue
            if missing and (missing[-1].end, missing[-1].cause) == (low, cause):
                low = missing.pop().start  # noqa: PLW2901
            missing.append(MissingRange(low, high, cause, None if last is None else last.version))
    return tuple(missing)


def missing_records(
    files: TableFiles, snapshot: TopicSnapshot, ranges: Mapping[int, tuple[int, int]]
) -> dict[int, list[MissingRange]]:
    """Return the parts of ``ranges``, offsets [start, end) by partition, that are missing, so that a reader of the
    files skips them. Partitions without such a part are left out.

    The entries of the log are read only if some offset of the ranges is in no file. Raises CorruptionError and OSError.
    """
    gaps = {
        partition: found
        for partition, (start, end) in ranges.items()
        if (found := [(low, high) for low, high in history_gaps(snapshot, partition) if low < end and start < high])
    }
    if not gaps:
        return {}
    removed = removed_ranges(removals_since(files, -1), None, files)
    missing = {}
    for partition, found in gaps.items():
        told = missing_ranges(found, removed.get(partition, []), unexplained=None)
        if parts := [part for gap in told for part in gap.within([ranges[partition]])]:
            missing[partition] = parts
    return missing


def require_whole(
    topic: str, files: TableFiles, snapshot: TopicSnapshot, ranges: Mapping[int, tuple[int, int]], remedy: str
) -> None:
    """Raise MissingRecordsError, with the cause and ``remedy``, if ``ranges`` have ``missing_records``. Also raises the
    errors of ``missing_records``.
    """
    for partition, missing in missing_records(files, snapshot, ranges).items():
        raise MissingRecordsError(f"{missing[0].told(topic, partition)}. {remedy}")


def sealed_segments_on_disk(
    files: TableFiles,
    partition: int,
    start: int,
    end: int,
    *,
    limit: int | None = None,
    wanted: Callable[[str], bool] = lambda _: True,
) -> tuple[Segment, ...]:
    """Return files that together hold [start, end) of a partition and nothing beyond, by offset; among rivals, the one
    of the highest leader epoch. With a ``limit`` the last file may reach up to there. Only files of rolls count, and
    only if their path is ``wanted``: a job that was not committed leaves files that hold less than their range.

    Raises MissingSegmentsError if there are none, so that sealed records are neither in the table nor on disk, and
    CorruptionError if one of the files is damaged.
    """
    limit = end if limit is None else limit
    by_base: dict[int, list[Segment]] = {}
    found = find_segments(files, partition, start, limit)
    for segment in found.segments:
        if segment.operation == ROLL and wanted(segment.path):
            by_base.setdefault(segment.base_offset, []).append(segment)
    chain = _chain(by_base, start, end, limit)
    if chain is None:
        unreadable = f" (unreadable: {', '.join(found.unreadable)})" if found.unreadable else ""
        raise MissingSegmentsError(
            f"{files}: partition {partition} had sealed offsets {start} to {end}, but the Delta log no longer "
            f"names them and no segment files on disk hold exactly them{unreadable}. If a file of the journal is "
            "missing, put it back and restart the store; otherwise restore the table directory from a backup."
        )
    for segment in chain:
        verify_segment(files, segment.path)
    return chain


def _chain(by_base: dict[int, list[Segment]], start: int, end: int, limit: int) -> tuple[Segment, ...] | None:
    """Return a gapless run of segments from ``start`` to an offset in [end, limit]. It tries the highest epoch first,
    then the longest segment, and backtracks.
    """
    dead: set[int] = set()
    chain: list[Segment] = []
    choices: list[list[Segment]] = [_best_last(by_base.get(start, []))]
    while True:
        at = chain[-1].end_offset if chain else start
        if at >= end:
            return tuple(chain)
        while choices[-1] and (choices[-1][-1].end_offset > limit or choices[-1][-1].end_offset in dead):
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
