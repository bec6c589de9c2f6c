"""Why a job leaves a partition alone, and until when: the reasons behind an empty plan of ``planning``.

The functions are pure, like the plans. Invariant: if ``due_ms`` is given, the plan of that millisecond is the first
that is not None, as long as nothing is written before.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from compaction_jobs.planning import dirty_files, is_changed, is_young, plan_compaction
from logstore.delta.removed_files import UnnamedFiles
from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.delta.table_features import APPEND_ONLY_PROPERTY
from logstore.log.merge import target_bytes
from logstore.topic_config import LONG_MAX, TopicConfig

#: ``policy`` and ``unlimited``: the configuration keeps everything. ``empty``: there is nothing to work on. ``clean``:
#: nothing is new since the last compaction. ``young``: it is too young for the job. ``ratio``: too little is dirty.
#: ``few``: there are too few small segments to join. ``unnamed``: files that no commit names, or whose removal has no
#: time.
Reason = Literal["policy", "unlimited", "empty", "clean", "young", "ratio", "few", "unnamed", "append-only", "filled"]

#: The year 9999; later times have no date.
_LAST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Waiting:
    """A reason to wait. ``partition`` None means the whole topic. ``segment`` is the file that is the obstacle.
    ``due_ms`` (since 1970) is None if time alone changes nothing. ``unrolled_records`` are not in the table yet; None
    if no store could be asked.
    """

    partition: int | None
    reason: Reason
    message: str
    due_ms: int | None = None
    segment: str | None = None
    unrolled_records: int | None = None


def append_only_waits(partition: int) -> Waiting:
    """Return why no job removes records from the table, whatever the topic's configuration."""
    return Waiting(partition, "append-only", f"the table property {APPEND_ONLY_PROPERTY} is true: no record is removed")


def retention_waits(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig, now_ms: int
) -> Waiting:
    """Return why ``plan_retention`` returns None for the same arguments."""
    if "delete" not in config.cleanup_policy:
        return Waiting(partition, "policy", "cleanup.policy is compact: only what delete-records deleted is removed")
    if config.retention_ms < 0 and config.retention_bytes < 0:
        return Waiting(partition, "unlimited", "retention.ms=-1 and retention.bytes=-1 keep everything")
    live = [file for file in files if file.end_offset > state.log_start]
    if not any(file.num_records for file in live):
        return Waiting(partition, "empty", "it has no segments with records; only what is rolled can be removed")
    first = live[0]
    rules, due_ms = [], None
    if config.retention_ms >= 0:
        due_ms = first.max_timestamp_ms + config.retention_ms + 1
        newest = f"its newest record is of {instant(first.max_timestamp_ms)}"
        rules.append(f"{newest}, so retention.ms={config.retention_ms} keeps it until {instant(due_ms)}")
    if config.retention_bytes >= 0:
        missing = config.retention_bytes + first.size - sum(file.size for file in live)
        rules.append(f"retention.bytes={config.retention_bytes} keeps it until {missing:,} more bytes are rolled")
    message = f"the oldest segment ({_offsets(first)}) stays: {'; '.join(rules)}"
    old = (file for file in live[1:] if file.num_records)
    behind = sum(0 <= config.retention_ms < now_ms - file.max_timestamp_ms for file in old)
    if behind:
        message += f"; {behind:,} older {'segments wait' if behind > 1 else 'segment waits'} behind it"
    return Waiting(partition, "young", message, _dated(due_ms), first.path)


def compaction_waits(
    partition: int, state: PartitionState, files: Sequence[SegmentFile], config: TopicConfig, now_ms: int
) -> Waiting:
    """Return why ``plan_compaction`` returns None for the same arguments, or that the topic is not compacted."""
    if not config.compacted:
        return Waiting(partition, "policy", "cleanup.policy is delete: keys are not compacted")
    first_dirty = state.log_start if is_changed(state, files) else max(state.cleaned, state.log_start)
    live = [file for file in files if file.end_offset > state.log_start]
    dirty = dirty_files(live, first_dirty)
    if not dirty:
        if not any(file.num_records for file in live):
            return Waiting(partition, "empty", "it has no segments with records; only what is rolled can be compacted")
        return Waiting(partition, "clean", f"nothing was rolled since the last compaction, up to offset {first_dirty}")
    # The plan changes only when a segment is no longer young, or a record is overdue; once due, it stays due.
    lag, overdue = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    times = {file.max_timestamp_ms + lag for file in dirty}
    if overdue < LONG_MAX:
        times |= {file.min_timestamp_ms + overdue + 1 for file in dirty}
    candidates = sorted(time for time in times if time > now_ms)
    at = bisect_left(
        candidates, True, key=lambda time: plan_compaction(partition, state, files, config, time) is not None
    )
    due_ms = _dated(candidates[at]) if at < len(candidates) else None
    young = next((file for file in dirty if is_young(file, lag, now_ms)), None)
    until = "" if due_ms is None else f"; due at {instant(due_ms)}"
    if young is dirty[0]:
        newest = f"its newest record is of {instant(young.max_timestamp_ms)}"
        message = f"the first segment to compact ({_offsets(young)}) is younger than min.compaction.lag.ms={lag}"
        return Waiting(partition, "young", f"{message}: {newest}{until}", due_ms, young.path)
    dirty_bytes = sum(file.size for file in dirty[: dirty.index(young) if young else None])
    total = dirty_bytes + sum(file.size for file in live if file.end_offset <= first_dirty)
    message = (
        f"{dirty_bytes:,} of {total:,} bytes were never compacted, a ratio of {dirty_bytes / max(1, total):.3g}; "
        f"more than min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio:g} is needed"
    )
    if young:
        message += f"; from offset {young.min_offset} on records are younger than min.compaction.lag.ms={lag}"
    return Waiting(partition, "ratio", message + until, due_ms, young.path if young else None)


def merge_waits(
    partition: int,
    state: PartitionState,  # noqa: ARG001  of all reasons
    files: Sequence[SegmentFile],
    config: TopicConfig,
    now_ms: int,  # noqa: ARG001
) -> Waiting:
    """Return why ``plan_merge`` returns nothing for the same arguments."""
    if not config.merge_target:
        return Waiting(partition, "policy", "merge.target.bytes=0 joins no segments")
    if not files:
        return Waiting(partition, "empty", "it has no segments; only what is rolled can be joined")
    # The message has no numbers, so that partitions with the same reason share one line.
    message = (
        f"segments of less than {target_bytes(config)} bytes (merge.target.bytes) are too few in one partition to be "
        "joined, too different in size, or apart"
    )
    return Waiting(partition, "few", message)


def columns_waits(
    partition: int,
    state: PartitionState,  # noqa: ARG001  of all reasons
    files: Sequence[SegmentFile],  # noqa: ARG001
    config: TopicConfig,
    now_ms: int,  # noqa: ARG001
) -> Waiting:
    """Return why no file of a partition gets columns."""
    if config.table_columns_mode == "none":
        return Waiting(partition, "policy", "table.columns.mode is none: no columns are derived")
    message = "every file has all declared columns, or is cut by retention or joined by a merge first"
    return Waiting(partition, "filled", message)


def vacuum_waits(
    removed: Mapping[str, tuple[int, int | None]],
    unnamed: UnnamedFiles,
    delay_ms: int,
    age_ms: int,
    *,
    full: bool,
) -> list[Waiting]:
    """Return why files that are not active are still on disk after a vacuum.

    ``removed`` has by name the bytes of files that a commit removed from the table, and the time; files that no commit
    names go once they are ``age_ms`` old.
    """
    waits = []
    dated = {name: removed_ms + delay_ms for name, (_, removed_ms) in removed.items() if removed_ms is not None}
    if dated:
        first, last = min(dated.values()), max(dated.values())
        range_ = f"at {instant(first)}" if first == last else f"from {instant(first)} to {instant(last)}"
        what = _count([removed[name][0] for name in dated])
        message = f"{what} left the table; file.delete.delay.ms={delay_ms} lets them go {range_}"
        waits.append(Waiting(None, "young", message, _dated(first), min(dated, key=lambda name: dated[name])))
    undated = [name for name in removed if name not in dated]
    if undated:
        what = _count([removed[name][0] for name in undated])
        waits.append(Waiting(None, "unnamed", f"{what} left the table at a time that the log does not say"))
    for group, goes in ((unnamed.superseded, True), (unnamed.others, full)):
        if group:
            oldest = min(group.values(), key=lambda entry: entry.modified_ms)
            first = oldest.modified_ms + age_ms
            how = "" if goes else " by a vacuum with --full"
            what = _count([entry.size for entry in group.values()])
            message = f"{what} named by no commit can go from {instant(first)} on{how}"
            waits.append(Waiting(None, "unnamed", message, _dated(first) if goes else None, oldest.name))
    if unnamed.needed:
        what = _count([entry.size for entry in unnamed.needed.values()])
        message = f"{what} named by no commit have offsets that the table lacks, and stay"
        waits.append(Waiting(None, "unnamed", message, None, min(unnamed.needed)))
    return waits or [Waiting(None, "empty", "every file on disk is in the table")]


def instant(ms: int) -> str:
    """Return the time as ``2026-11-21T08:00:00Z``, or the number as text for a time without a date."""
    if not 0 <= ms <= _LAST_MS:
        return f"{ms} ms"
    # It is rounded up to the next second, so that the time has come then. The very last second has no next one.
    return datetime.fromtimestamp(min(-(-ms // 1000), _LAST_MS // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _dated(ms: int | None) -> int | None:
    return ms if ms is not None and ms <= _LAST_MS else None


def _offsets(file: SegmentFile) -> str:
    return f"offsets {file.base_offset} to {file.end_offset - 1}"


def _count(sizes: Sequence[int]) -> str:
    noun = "file" if len(sizes) == 1 else "files"
    return f"{len(sizes):,} {noun} of {sum(sizes):,} bytes"
