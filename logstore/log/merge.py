"""Plans of merges: which small segments of a partition become one. Pure functions; no disk.

A file is *full* when it has ``merge.target.bytes``. The *tier* of any other file is the power of ``FACTOR`` in its
width, the number of offsets that it covers. Two rules say which neighbours are joined:

* **A tier grows.** Neighbours that are not full, of tier t at most, are joined when together they are as wide as a file
  of tier t + 1. The widest such run comes first, and within a run its oldest files. A group ends where its files have
  the target's bytes.
* **Nothing small stays in front of something large.** Files in front of a newer file that is full or of a higher tier
  are joined to it.

Widths add up exactly when files are joined, sizes do not: a file of one record is nearly all footer.

A file of another writer that has no file to join becomes a segment by itself.

Only neighbours are joined, and never across a gap (a file that a foreign commit took out may be put back, rule R7), the
log start, or the clean point of a compacted topic (a file is clean or dirty, never both). The newest files are left
alone. Where retention counts the age of files, or compaction waits for an age, neighbours are joined only within one
window of a tenth of that time. Once a newer window has begun, all files of an older one are joined, whatever their
tiers.

Invariants (tests/unit/log/test_merge.py has them as properties):

* A record is rewritten at most once for each tier between its first file and its last one, once more if small files
  stood in front of its own, and once more when its window ends. A partition whose narrowest roll has one record and
  whose target holds 4^13 (67 million) has 13 tiers.
* When no plan is left there are at most ``FACTOR - 1`` files of each tier below the target, and the newest: with 13
  tiers 43, besides full files and a file for each window.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logstore.delta.columns import layout_of
from logstore.delta.preconditions import RewritePart
from logstore.delta.snapshot import PartitionState, SegmentFile, TopicSnapshot
from logstore.segments.merge import Source, WriteTask
from logstore.segments.names import known_segment_name
from logstore.segments.writer import Segment
from logstore.topic_config import TopicConfig

#: The ``operation`` of merged segments and of their commits.
MERGE = "merge"
FACTOR = 4
#: The last files of a partition stay as they are. A reader of the end opens them next, and another writer may still
#: overwrite their commits.
NEWEST_KEPT = 4
#: The most sources of one segment. Each is opened, and its footer may have megabytes of producers.
GROUP_FILES_MAX = 1_000
#: The files of a group exceed the target by this factor: joined, they lose footers and compress a little better.
_MARGIN = 9 / 8
#: The time for which retention or compaction waits is divided into this many windows; a merged file spans at most one.
_WINDOWS = 10
_FULL = 64


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Neighbouring files that become one segment of [base_offset, end_offset): two or more, or one file of another
    writer. ``size`` is the sum of their sizes.
    """

    partition: int
    files: tuple[SegmentFile, ...]
    base_offset: int

    @property
    def end_offset(self) -> int:
        return self.files[-1].end_offset

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def base_offset(file: SegmentFile) -> int:
    """Return the base of the range that a file covers. It is in the name, even in names of earlier releases."""
    name = known_segment_name(file.path)
    return file.base_offset if name is None else min(name.base_offset, file.base_offset)


def target_bytes(config: TopicConfig) -> int:
    """Return the size from which a file is full. Retention by size removes whole files, so its bytes are split into at
    least ten.
    """
    if "delete" in config.cleanup_policy and config.retention_bytes >= 0:
        return max(1, min(config.merge_target, config.retention_bytes // _WINDOWS))
    return config.merge_target


def count_small(files: Iterable[SegmentFile], config: TopicConfig) -> int:
    """Return how many of the files are not full."""
    target = target_bytes(config)
    return sum(file.size < target for file in files)


def merge_task(
    group: MergeGroup,
    topic: str,
    table: str,
    snapshot: TopicSnapshot,
    config: TopicConfig,
    now_ms: int,
    operation: str = MERGE,
) -> WriteTask:
    """Return the task that joins a group. ``table`` is its files' ``uri``, ``operation`` that of the new segment."""
    state = snapshot.partitions[group.partition]
    return WriteTask(
        topic=topic,
        table=table,
        partition=group.partition,
        sources=tuple(Source(group.partition, file.path, file.num_records, 0) for file in group.files),
        base_offset=group.base_offset,
        end_offset=group.end_offset,
        log_start=state.log_start,
        codec=config.segment_codec,
        operation=operation,
        idempotency_window_ms=config.idempotency_window_ms,
        first_dirty=state.cleaned,
        now_ms=now_ms,
        layout=layout_of(topic, snapshot),
    )


def merge_parts(joined: Sequence[tuple[MergeGroup, Segment]]) -> list[RewritePart]:
    """Return the commit that replaces groups by their segments, one part for each partition."""
    return [
        RewritePart(
            partition,
            tuple(file.path for group, _ in joined if group.partition == partition for file in group.files),
            tuple(segment for group, segment in joined if group.partition == partition),
        )
        for partition in sorted({group.partition for group, _ in joined})
    ]


def plan_merge(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig
) -> list[MergeGroup]:
    """Return the groups to join, by offset, of a partition with these active ``files`` (by rising offset). There are
    none if nothing has to be joined. After they are joined there may be more.
    """
    target = target_bytes(config)
    windows = _windows(files, _span_ms(config))
    bases = [base_offset(file) for file in files]
    groups: list[MergeGroup] = []
    resting = max(0, len(files) - NEWEST_KEPT)
    for piece in _pieces(files[:resting], bases, windows, state):
        if len(piece) < 2 and not any(files[at].foreign for at in piece):
            continue
        chosen = [_File(files[at].size, bases[at], files[at].end_offset) for at in piece]
        window = windows[piece[-1]]
        # This must wait while one of the newest files is in the window: it would be joined one by one.
        is_over = window < windows[-1] and (piece.stop < resting or window < windows[resting])
        tiers = [_FULL if file.size >= target else 0 if is_over else file.tier for file in chosen]
        found = _joined(chosen, tiers, target, any_width=is_over)
        joined = {at for low, high in found for at in range(low, high)}
        found += [(at, at + 1) for at in range(len(piece)) if files[piece[at]].foreign and at not in joined]
        found.sort()
        groups += (
            MergeGroup(partition, tuple(files[piece.start + low : piece.start + high]), bases[piece.start + low])
            for low, high in found
        )
    return groups


def _span_ms(config: TopicConfig) -> int | None:
    """Return the longest time between the expiry of the first and the last file of a group; None if any will do."""
    waits = []
    if "delete" in config.cleanup_policy and config.retention_ms >= 0:
        waits.append(config.retention_ms)
    if config.compacted and config.min_compaction_lag_ms > 0:
        waits.append(config.min_compaction_lag_ms)
    return max(1, min(waits) // _WINDOWS) if waits else None


def _windows(files: Sequence[SegmentFile], span_ms: int | None) -> list[int]:
    """Return the window of each file: that of the newest record in it or before it, for which retention waits."""
    if span_ms is None:
        return [0] * len(files)
    newest = itertools.accumulate((file.max_timestamp_ms for file in files), max)
    return [time_ms // span_ms for time_ms in newest]


def _pieces(
    files: Sequence[SegmentFile], bases: Sequence[int], windows: Sequence[int], state: PartitionState
) -> Iterator[range]:
    """Yield runs of files that may be joined with each other, as indices."""
    first = 0
    for at, file in enumerate(files):
        base = bases[at]
        if at > first and (files[at - 1].end_offset != base or windows[at - 1] != windows[at] or base == state.cleaned):
            yield range(first, at)
            first = at
        # Such a file is left alone: retention cuts or removes it, or an odd commit made it, or it can be replaced only
        # together with others.
        is_odd = base < state.cleaned < file.end_offset or file.shared
        if base < state.log_start or is_odd:
            yield range(first, at)
            first = at + 1
    yield range(first, len(files))


# ---- one piece ------------------------------------------------------------------------------------------------------


class _File(NamedTuple):
    size: int
    base: int
    end: int

    @property
    def tier(self) -> int:
        # A tier has two bits, as FACTOR is 4.
        return ((self.end - self.base).bit_length() - 1) // 2


def _joined(files: Sequence[_File], tiers: Sequence[int], target: int, *, any_width: bool) -> list[tuple[int, int]]:
    """Return the groups [low, high) of a piece. With ``any_width`` a run of two is wide enough."""
    taken = [False] * len(files)
    found: list[tuple[int, int]] = []

    def take(low: int, high: int) -> None:
        taken[low:high] = [True] * (high - low)
        found.append((low, high))

    for tier in sorted({tier for tier in tiers if tier < _FULL}, reverse=True):
        least = 0 if any_width else FACTOR ** (tier + 1)
        for run in _runs(tiers, taken, tier):
            is_in_front = run.stop < len(files) and not taken[run.stop]
            if is_in_front and sum(files[at].size for at in run) < target:
                continue  # The run is joined below to the larger file after it.
            low = run.start
            while low < run.stop:
                high, is_enough = _group(files, low, run.stop, target, least)
                if high - low > 1 and is_enough:
                    take(low, high)
                low = high
    # The largest file comes first: all smaller files in front of it are joined to it at once, not one by one.
    for at in sorted(range(len(tiers)), key=lambda at: -tiers[at]):
        low = at
        while low and not taken[low - 1] and not taken[at] and tiers[low - 1] < tiers[at]:
            low -= 1
        if low < at:
            take(low, at + 1)
    return sorted(found)


def _runs(tiers: Sequence[int], taken: Sequence[bool], tier: int) -> list[range]:
    """Return the longest runs of files of at most ``tier`` that are in no group."""
    runs = []
    first = 0
    for at, (its_tier, is_taken) in enumerate(zip(tiers, taken, strict=True)):
        if its_tier > tier or is_taken:
            if first < at:
                runs.append(range(first, at))
            first = at + 1
    if first < len(tiers):
        runs.append(range(first, len(tiers)))
    return runs


def _group(files: Sequence[_File], low: int, end: int, target: int, least: int) -> tuple[int, bool]:
    """Return the end of the shortest group from ``low`` on that has the target's bytes, or is as long as a group may
    be. Also return whether that is worth it: the group has the bytes, or the width ``least``.
    """
    size = 0
    for at in range(low, end):
        size += files[at].size
        is_wide = files[at].end - files[low].base >= least
        if size >= target * _MARGIN or (is_wide and at + 1 - low >= GROUP_FILES_MAX):
            return at + 1, True
    return end, files[end - 1].end - files[low].base >= least
