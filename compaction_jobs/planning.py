"""Plans of jobs for a partition, from its state, its active files, its configuration and the time.

Pure functions; no Spark, no disk. Semantics are Kafka's (``UnifiedLog.deleteOldSegments``, ``LogCleanerManager``), with
segments as the unit, by the ranges that they cover: a segment without records counts like any other. Invariants:

* a retention plan removes a prefix of the files, and moves the log start offset only forward, never beyond ``sealed``;
  a foreign file with records in several places goes when the last of them is below the log start offset;
* the last segment of a partition is never removed, because its footer has the state at ``sealed``. Its records are;
* a compaction plan covers all files with a part in [log start, clean point), and none that reaches beyond it. The
  segments that it writes take the place of the files that they replace, and cover it without a gap.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from logstore.delta.clean_files import clean_digest
from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.log.merge import base_offset
from logstore.segments.names import known_segment_name
from logstore.topic_config import TopicConfig

T = TypeVar("T")


# ---- retention ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """``expired`` files are wholly below the new ``log_start``. ``boundary`` has records below it and is rewritten
    without them: the log start offset is inside it, or it is the last file.
    """

    partition: int
    log_start: int
    expired: tuple[SegmentFile, ...]
    boundary: SegmentFile | None


def plan_retention(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig, now_ms: int
) -> RetentionPlan | None:
    """Plan retention for a partition with these active ``files`` (by rising offset); None if there is nothing to do.

    Files expire by time and size only if ``cleanup.policy`` has ``delete``, and always by the log start offset
    (delete-records).
    """
    log_start = state.log_start
    if "delete" in config.cleanup_policy:
        live = [file for file in files if file.end_offset > log_start]
        count = _expired_by_size(live, config.retention_bytes)
        count = max(count, _expired_by_time(live, log_start, config.retention_ms, now_ms))
        # These are expired segments behind a younger one that was removed by size.
        count += _expired_by_time(live[count:], log_start, config.retention_ms, now_ms)
        if count:
            log_start = max(log_start, live[count].base_offset if count < len(live) else state.sealed)
    below = tuple(file for file in files if file.end_offset <= log_start)
    # A foreign file has no footer.
    ends_with_segment = below and below[-1] is files[-1] and any(map(known_segment_name, below[-1].paths))
    expired = below[:-1] if ends_with_segment else below
    first_left = files[len(expired)] if len(expired) < len(files) else None
    has_records = first_left is not None and first_left.num_records and first_left.min_offset < log_start
    boundary = first_left if has_records and first_left is not None and not first_left.shared else None
    expired = _removable(expired, files[len(expired) :])
    return RetentionPlan(partition, log_start, expired, boundary) if expired or boundary else None


def _removable(expired: Sequence[SegmentFile], left: Iterable[SegmentFile]) -> tuple[SegmentFile, ...]:
    """Return ``expired`` without those parts of foreign files that also have records in ``left``.

    Such records go with the file's last ones.
    """
    removable = tuple(expired)
    needed = {path for file in left if file.shared for path in file.paths}
    while held := [file for file in removable if file.shared and not needed.isdisjoint(file.paths)]:
        needed.update(path for file in held for path in file.paths)
        removable = tuple(file for file in removable if file not in held)
    return removable


def _expired_by_time(files: Sequence[SegmentFile], log_start: int, retention_ms: int, now_ms: int) -> int:
    """Return how many leading files have no record from ``log_start`` on of the last ``retention_ms``."""
    if retention_ms < 0:
        return 0

    def is_expired(file: SegmentFile) -> bool:
        has_records = file.num_records and file.max_offset >= log_start
        return not has_records or now_ms - file.max_timestamp_ms > retention_ms

    return _count_leading(files, is_expired)


def _expired_by_size(files: Sequence[SegmentFile], retention_bytes: int) -> int:
    """Return how many leading files can go so that those after them still have ``retention_bytes``."""
    if retention_bytes < 0:
        return 0
    excess = sum(file.size for file in files) - retention_bytes
    return _count_leading(list(accumulate(file.size for file in files)), lambda removed: removed <= excess)


def _count_leading(items: Sequence[T], holds: Callable[[T], bool]) -> int:
    return next((at for at, item in enumerate(items) if not holds(item)), len(items))


# ---- key compaction -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """A plan to keep the latest record of each key in [log_start, clean_point), which ``files`` cover completely.

    An earlier compaction reached ``first_dirty``. ``files`` are by rising offset; sizes in bytes. ``changed`` is set if
    other files have come there since (``clean_files``), so that none is clean.
    """

    partition: int
    log_start: int
    first_dirty: int
    clean_point: int
    files: tuple[SegmentFile, ...]
    changed: bool = False

    @property
    def clean(self) -> tuple[SegmentFile, ...]:
        """The leading files that an earlier compaction left, with no key twice and no foreign file."""
        if self.changed:
            return ()
        return self.files[: _count_leading(self.files, lambda f: f.end_offset <= self.first_dirty and not f.foreign)]

    @property
    def dirty(self) -> tuple[SegmentFile, ...]:
        """The files after the clean ones."""
        return self.files[len(self.clean) :]

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(file.size for file in self.files)

    @property
    def dirty_ratio(self) -> float:
        dirty = sum(file.size for file in self.files if self.changed or file.end_offset > self.first_dirty)
        return dirty / max(1, self.size)


def plan_compaction(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig, now_ms: int
) -> CompactionPlan | None:
    """Plan key compaction for a partition with these active ``files`` (by rising offset); None if it is not due.

    The clean point is the end of history, or the base of the first dirty segment with a record younger than
    ``min.compaction.lag.ms``. It is due when the share of dirty bytes is above ``min.cleanable.dirty.ratio``, or a
    dirty record is older than ``max.compaction.lag.ms``. All are dirty if files below the last clean point are not
    those that a compaction left. The caller checks the cleanup policy.
    """
    first_dirty = max(state.cleaned, state.log_start)
    changed = is_changed(state, files)
    live = [file for file in files if file.end_offset > state.log_start]
    lag = config.min_compaction_lag_ms
    young = (f for f in live if is_young(f, lag, now_ms) and f.end_offset > first_dirty)
    stop = next(young, None)
    clean_point = state.sealed if stop is None else max(first_dirty, base_offset(stop))
    below = tuple(file for file in live if file.end_offset <= clean_point)
    dirty = dirty_files(below, state.log_start if changed else first_dirty)
    if not dirty:
        return None
    plan = CompactionPlan(partition, state.log_start, first_dirty, clean_point, below, changed)
    overdue = min(file.min_timestamp_ms for file in dirty) < now_ms - config.max_compaction_lag_ms
    return plan if overdue or plan.dirty_ratio > config.min_cleanable_dirty_ratio else None


def is_changed(state: PartitionState, files: Sequence[SegmentFile]) -> bool:
    """Return True if the files below the clean point are not those that a compaction left there."""
    return clean_digest(files, state.cleaned) != state.clean_digest


def dirty_files(files: Iterable[SegmentFile], first_dirty: int) -> list[SegmentFile]:
    """Return the files with records that were never compacted."""
    return [file for file in files if file.num_records and file.end_offset > first_dirty]


def is_young(file: SegmentFile, lag_ms: int, now_ms: int) -> bool:
    """Return True if ``min.compaction.lag.ms`` keeps a record of the file from being compacted."""
    return bool(lag_ms > 0 and file.num_records and file.max_timestamp_ms > now_ms - lag_ms)


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Adjacent files that become one segment of [base_offset, end_offset)."""

    files: tuple[SegmentFile, ...]
    base_offset: int
    end_offset: int


def rewrite_groups(
    plan: CompactionPlan, rewritten: Sequence[bool], sizes: Sequence[float], segment_bytes: int
) -> list[RewriteGroup]:
    """Group the ``rewritten`` ones of the plan's files into new segments; the others stay as they are.

    Neighbours become one segment, as many as fit into ``segment_bytes`` by their expected ``sizes``. Files without
    records join a neighbour that is rewritten, and so do gaps that an earlier release or a DELETE left.
    """
    files = plan.files
    bounds: list[tuple[int, int]] = []
    total = 0.0
    for at, (file, size) in enumerate(zip(files, sizes, strict=True)):
        low, high = bounds[-1] if bounds else (0, 0)
        follows = bool(bounds) and high == at
        if rewritten[at] and follows and not (total and size and total + size > segment_bytes):
            bounds[-1], total = (low, at + 1), total + size
        elif rewritten[at]:
            begin = at
            while begin > high and not files[begin - 1].num_records:
                begin -= 1
            bounds.append((begin, at + 1))
            total = size
        elif follows and not file.num_records:
            bounds[-1] = low, at + 1
    groups: list[RewriteGroup] = []
    for low, high in bounds:
        if groups and groups[-1].files[-1] is files[low - 1]:
            base = groups[-1].end_offset
        else:
            base = files[low - 1].end_offset if low else plan.log_start
        end = base_offset(files[high]) if high < len(files) else plan.clean_point
        groups.append(RewriteGroup(files[low:high], base, end))
    return groups
