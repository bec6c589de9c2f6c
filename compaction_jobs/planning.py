"""Plans of jobs for a partition, made from its facts, its active files, its configuration and the time.

Pure functions; no Spark, no disk. Semantics are Kafka's (``UnifiedLog.deleteOldSegments``, ``LogCleanerManager``), on
segments as the unit, by the ranges that they stand for: a segment without records counts like any other. Invariants:

* a retention plan removes a prefix of the files, and moves the log start forward only, never beyond ``sealed``;
* the last segment of a partition is never removed: its footer has the state at ``sealed``. Its records are;
* a compaction plan covers all files with a part in [log start, clean point), and none that reaches beyond it. The
  segments that it writes cover [log start, clean point) without a gap.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.segments.names import known_segment_name, parse_segment_name
from logstore.topic_config import TopicConfig

T = TypeVar("T")


# ---- retention ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """``expired`` files lie wholly below the new ``log_start``. ``boundary`` has records below it and is rewritten
    without them: the log start is inside it, or it is the last file.
    """

    partition: int
    log_start: int
    expired: tuple[SegmentFile, ...]
    boundary: SegmentFile | None


def plan_retention(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig, now_ms: int
) -> RetentionPlan | None:
    """Retention's plan for a partition with these active ``files`` (by rising offset); None if there is nothing to do.

    By time and by size if ``cleanup.policy`` has ``delete``; by the log start (delete-records) always.
    """
    log_start = state.log_start
    if "delete" in config.cleanup_policy:
        live = [file for file in files if file.end_offset > log_start]
        count = _expired_by_size(live, config.retention_bytes)
        count = max(count, _expired_by_time(live, log_start, config.retention_ms, now_ms))
        # Segments behind a younger one that was removed by size.
        count += _expired_by_time(live[count:], log_start, config.retention_ms, now_ms)
        if count:
            log_start = max(log_start, live[count].base_offset if count < len(live) else state.sealed)
    below = tuple(file for file in files if file.end_offset <= log_start)
    # Another writer's file has no footer.
    expired = below[:-1] if below and below[-1] is files[-1] and known_segment_name(below[-1].path) else below
    first_left = files[len(expired)] if len(expired) < len(files) else None
    has_records = first_left is not None and first_left.num_records and first_left.min_offset < log_start
    boundary = first_left if has_records else None
    return RetentionPlan(partition, log_start, expired, boundary) if expired or boundary else None


def _expired_by_time(files: Sequence[SegmentFile], log_start: int, retention_ms: int, now_ms: int) -> int:
    """How many leading files have no record from ``log_start`` on of the last ``retention_ms``."""
    if retention_ms < 0:
        return 0

    def is_expired(file: SegmentFile) -> bool:
        has_records = file.num_records and file.max_offset >= log_start
        return not has_records or now_ms - file.max_timestamp_ms > retention_ms

    return _count_leading(files, is_expired)


def _expired_by_size(files: Sequence[SegmentFile], retention_bytes: int) -> int:
    """How many leading files can go so that those after them still have ``retention_bytes``."""
    if retention_bytes < 0:
        return 0
    excess = sum(file.size for file in files) - retention_bytes
    return _count_leading(list(accumulate(file.size for file in files)), lambda removed: removed <= excess)


def _count_leading(items: Sequence[T], holds: Callable[[T], bool]) -> int:
    return next((at for at, item in enumerate(items) if not holds(item)), len(items))


# ---- key compaction -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Keep the latest record of each key in [log_start, clean_point), all of which ``files`` have.

    An earlier compaction has been below ``first_dirty``. ``files`` are by rising offset; sizes in bytes.
    """

    partition: int
    log_start: int
    first_dirty: int
    clean_point: int
    files: tuple[SegmentFile, ...]

    @property
    def dirty_bytes(self) -> int:
        return sum(file.size for file in self.files if file.end_offset > self.first_dirty)

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, sum(file.size for file in self.files))


def plan_compaction(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig, now_ms: int
) -> CompactionPlan | None:
    """Key compaction's plan for a partition with these active ``files`` (by rising offset); None if it is not due.

    The clean point is the end of history, or the base of the first dirty segment with a record younger than
    ``min.compaction.lag.ms``. It is due when the share of dirty bytes is above ``min.cleanable.dirty.ratio``, or a
    dirty record is older than ``max.compaction.lag.ms``. The caller checks the cleanup policy.
    """
    first_dirty = max(state.cleaned, state.log_start)
    live = [file for file in files if file.end_offset > state.log_start]
    lag = config.min_compaction_lag_ms
    young = (f for f in live if is_young(f, lag, now_ms) and f.end_offset > first_dirty)
    stop = next(young, None)
    clean_point = state.sealed if stop is None else max(first_dirty, base_offset(stop))
    below = tuple(file for file in live if file.end_offset <= clean_point)
    dirty = dirty_files(below, first_dirty)
    if not dirty:
        return None
    plan = CompactionPlan(partition, state.log_start, first_dirty, clean_point, below)
    overdue = min(file.min_timestamp_ms for file in dirty) < now_ms - config.max_compaction_lag_ms
    return plan if overdue or plan.dirty_ratio > config.min_cleanable_dirty_ratio else None


def dirty_files(files: Iterable[SegmentFile], first_dirty: int) -> list[SegmentFile]:
    """Those with records that were never compacted."""
    return [file for file in files if file.num_records and file.end_offset > first_dirty]


def is_young(file: SegmentFile, lag_ms: int, now_ms: int) -> bool:
    """Whether it has a record that ``min.compaction.lag.ms`` keeps from being compacted."""
    return bool(lag_ms > 0 and file.num_records and file.max_timestamp_ms > now_ms - lag_ms)


def group_files(
    files: Sequence[SegmentFile], sizes: Sequence[float], segment_bytes: int
) -> list[tuple[SegmentFile, ...]]:
    """Neighbours that become one segment: as many as fit into ``segment_bytes`` by expected ``sizes``, at least one.
    Files of which nothing is left go with a neighbour.
    """
    groups: list[list[SegmentFile]] = []
    total = 0.0
    for file, size in zip(files, sizes, strict=True):
        if not groups or (total and size and total + size > segment_bytes):
            groups.append([])
            total = 0.0
        groups[-1].append(file)
        total += size
    return [tuple(group) for group in groups]


def base_offset(file: SegmentFile) -> int:
    """Base of the range that a file stands for, by its name; names of earlier releases tell it, too."""
    name = parse_segment_name(file.path)
    return file.base_offset if name is None else min(name.base_offset, file.base_offset)


def group_ranges(plan: CompactionPlan, groups: Sequence[Sequence[SegmentFile]]) -> list[tuple[int, int]]:
    """[base, end) of the segments that ``groups`` become. They touch, from the log start to the clean point: a gap that
    compaction of an earlier release or a DELETE left becomes part of a range.
    """
    bases = [plan.log_start, *(base_offset(group[0]) for group in groups[1:])]
    return list(zip(bases, [*bases[1:], plan.clean_point], strict=True))


# ---- when tombstones were first compacted ---------------------------------------------------------------------------

#: Rising (end offset, time in ms): offsets from the previous end up to this one were first compacted at that time.
Cleanings = tuple[tuple[int, int], ...]


def join_cleanings(parts: Iterable[tuple[Cleanings, int]], first_dirty: int, end_offset: int, now_ms: int) -> Cleanings:
    """The cleanings of a segment made of several, each with its end offset, in order; it ends at ``end_offset``.

    From ``first_dirty`` on, the first time is now. The same holds for offsets without an entry (after a rewrite that
    kept no account): a tombstone then stays longer, never shorter.
    """
    entries: list[tuple[int, int]] = []
    for cleanings, part_end in parts:
        limit = min(part_end, first_dirty)
        entries += [(min(end, limit), time_ms) for end, time_ms in cleanings]
        entries.append((limit, now_ms))
    joined: list[tuple[int, int]] = []
    for end, time_ms in [*entries, (end_offset, now_ms)]:
        if joined and end <= joined[-1][0]:
            continue
        if joined and joined[-1][1] == time_ms:
            joined.pop()
        joined.append((end, time_ms))
    return tuple(joined)
