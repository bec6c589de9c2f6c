"""Plans of jobs for a partition, made from its facts, its active files, its configuration and the time.

Pure functions; no Spark, no disk. Semantics are Kafka's (``UnifiedLog.deleteOldSegments``, ``LogCleanerManager``), on
segments as the unit. Invariants:

* a retention plan removes a prefix of the files, and moves the log start forward only, never beyond ``sealed``;
* a compaction plan covers all files that hold offsets in [log start, clean point), and none that reaches beyond it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.segments.names import parse_segment_name
from logstore.topic_config import TopicConfig

T = TypeVar("T")


# ---- retention ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """``expired`` files lie wholly below the new ``log_start``; ``boundary`` holds it inside, and is rewritten."""

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
        live = [file for file in files if file.max_offset >= log_start]
        count = _expired_by_size(live, config.retention_bytes)
        count = max(count, _expired_by_time(live, config.retention_ms, now_ms))
        # Segments behind a younger one that was removed by size.
        count += _expired_by_time(live[count:], config.retention_ms, now_ms)
        if count:
            # The first remaining record: the log start is then an existing offset, if there is any.
            log_start = max(log_start, live[count].min_offset if count < len(live) else state.sealed)
    expired = tuple(file for file in files if file.max_offset < log_start)
    first_left = files[len(expired)] if len(expired) < len(files) else None
    boundary = first_left if first_left is not None and first_left.min_offset < log_start else None
    return RetentionPlan(partition, log_start, expired, boundary) if expired or boundary else None


def _expired_by_time(files: Sequence[SegmentFile], retention_ms: int, now_ms: int) -> int:
    """How many leading files have no record of the last ``retention_ms``."""
    if retention_ms < 0:
        return 0
    return _count_leading(files, lambda file: now_ms - file.max_timestamp_ms > retention_ms)


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
    """Keep the latest record of each key in [log_start, clean_point), all of which ``files`` hold.

    An earlier compaction has been below ``first_dirty``. ``files`` are by rising offset; sizes in bytes.
    """

    partition: int
    log_start: int
    first_dirty: int
    clean_point: int
    files: tuple[SegmentFile, ...]

    @property
    def dirty_bytes(self) -> int:
        return sum(file.size for file in self.files if file.max_offset >= self.first_dirty)

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / max(1, sum(file.size for file in self.files))


def plan_compaction(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig, now_ms: int
) -> CompactionPlan | None:
    """Key compaction's plan for a partition with these active ``files`` (by rising offset); None if it is not due.

    The clean point is the end of history, or the first dirty segment with a record younger than
    ``min.compaction.lag.ms``. It is due when the share of dirty bytes is above ``min.cleanable.dirty.ratio``, or a
    dirty record is older than ``max.compaction.lag.ms``. The caller checks the cleanup policy.
    """
    first_dirty = max(state.cleaned, state.log_start)
    live = [file for file in files if file.max_offset >= state.log_start]
    lag = config.min_compaction_lag_ms
    young = (f for f in live if lag > 0 and f.max_offset >= first_dirty and f.max_timestamp_ms > now_ms - lag)
    stop = next(young, None)
    clean_point = state.sealed if stop is None else max(first_dirty, stop.min_offset)
    below = tuple(file for file in live if file.max_offset < clean_point)
    dirty = [file for file in below if file.max_offset >= first_dirty]
    if not dirty:
        return None
    plan = CompactionPlan(partition, state.log_start, first_dirty, clean_point, below)
    overdue = min(file.min_timestamp_ms for file in dirty) < now_ms - config.max_compaction_lag_ms
    return plan if overdue or plan.dirty_ratio > config.min_cleanable_dirty_ratio else None


def group_files(
    files: Sequence[SegmentFile], sizes: Sequence[float], segment_bytes: int
) -> list[tuple[SegmentFile, ...]]:
    """Neighbours that become one segment: as many as fit into ``segment_bytes`` by expected ``sizes``, at least one."""
    groups: list[list[SegmentFile]] = []
    total = 0.0
    for file, size in zip(files, sizes, strict=True):
        if not groups or total + size > segment_bytes:
            groups.append([])
            total = 0.0
        groups[-1].append(file)
        total += size
    return [tuple(group) for group in groups]


def base_offset(file: SegmentFile) -> int:
    """First offset of the range that a file stands for, records or not."""
    name = parse_segment_name(file.path)
    return file.min_offset if name is None else min(name.base_offset, file.min_offset)


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
