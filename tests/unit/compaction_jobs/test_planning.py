"""Plans agree with small models that go through the log one segment, or one offset, at a time."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from compaction_jobs.planning import (
    CompactionPlan,
    is_changed,
    plan_compaction,
    plan_retention,
    rewrite_groups,
)
from logstore.delta.clean_files import clean_digest
from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.log.merge import base_offset
from logstore.topic_config import TopicConfig
from tests.support.partition_histories import NOW, configs, histories, segment_file


def kafka_log_start(state: PartitionState, files: tuple[SegmentFile, ...], config: TopicConfig) -> int:
    """Return the log start of UnifiedLog.deleteOldSegments, run to its end: by time, by size, oldest segments first."""

    def has_records(file: SegmentFile) -> bool:
        return any(offset >= state.log_start for offset in offsets(file))

    left = [f for f in files if f.end_offset > state.log_start]
    start, before = state.log_start, None
    while "delete" in config.cleanup_policy and left != before:
        before = list(left)
        if config.retention_ms >= 0:
            while left and (not has_records(left[0]) or NOW - left[0].max_timestamp_ms > config.retention_ms):
                left.pop(0)
        if config.retention_bytes >= 0:
            excess = sum(f.size for f in left) - config.retention_bytes
            while left and excess - left[0].size >= 0:
                excess -= left.pop(0).size
        if left != before:
            start = max(state.log_start, left[0].base_offset if left else state.sealed)
    return start


def offsets(file: SegmentFile) -> range:
    """Return the offsets of which the file may have records."""
    return range(file.min_offset, file.max_offset + 1) if file.num_records else range(0)


@given(histories(), configs)
def test_retention_is_kafkas(history, config):
    state, files = history
    plan = plan_retention(0, state, files, config, NOW)
    start = kafka_log_start(state, files, config)
    below = [f for f in files if f.end_offset <= start]
    # The last file keeps the state at ``sealed``, unless another writer made it: such a file has no state.
    gone = below[:-1] if below and below[-1] is files[-1] and "partition" in below[-1].path else below
    left = files[len(gone) :]
    cut = [f for f in left if offsets(f) and offsets(f)[0] < start]
    if plan is None:
        assert not gone
        assert not cut
        return
    assert plan.log_start == start
    assert state.log_start <= start <= state.sealed
    assert plan.expired == tuple(gone) == files[: len(gone)]
    assert [plan.boundary] == (cut or [None])


@given(histories(), configs)
def test_after_retention_there_is_nothing_to_retain(history, config):
    state, files = history
    plan = plan_retention(0, state, files, config, NOW)
    assume(plan is not None)
    left = list(files[len(plan.expired) :])
    if plan.boundary and plan.boundary.max_offset >= plan.log_start:
        left[0] = left[0]._replace(base_offset=plan.log_start, min_offset=plan.log_start)
    elif plan.boundary:
        left[0] = left[0]._replace(
            num_records=0, min_offset=-1, max_offset=-1, min_timestamp_ms=-1, max_timestamp_ms=-1
        )
    assert plan_retention(0, replace(state, log_start=plan.log_start), left, config, NOW) is None


def test_without_the_policy_only_deleted_records_go():
    files = tuple(segment_file(base) for base in (0, 10, 20))
    config = TopicConfig.parse({"cleanup.policy": "compact", "retention.ms": "1", "retention.bytes": "1"})
    assert plan_retention(0, PartitionState(30, 0, 0, 0, 0), files, config, NOW) is None
    plan = plan_retention(0, PartitionState(30, 0, 15, 0, 0), files, config, NOW)
    assert (plan.log_start, plan.expired, plan.boundary) == (15, files[:1], files[1])


def test_records_below_the_log_start_hold_up_nothing():
    """Set the log start behind all records of a segment, but before its end: no later run finds more to remove."""
    left = (segment_file(0, newest_ms=NOW)._replace(max_offset=4), segment_file(10, newest_ms=NOW))
    config = TopicConfig.parse({"retention.ms": "500"})
    plan = plan_retention(0, PartitionState(20, 0, 7, 0, 0), left, config, NOW)
    assert (plan.log_start, plan.expired, plan.boundary) == (10, left[:1], None)


def test_a_file_with_records_in_several_places_goes_with_the_last_of_them():
    """Expire a file that can only be removed as a whole, and not cut. The segments between its places go."""
    piece = segment_file(0)._replace(path="partition=0/a.parquet\n[0,10)", foreign=True, shared=True)
    other = segment_file(20)._replace(path="partition=0/a.parquet\n[20,30)", foreign=True, shared=True)
    files = (piece, segment_file(10), other, segment_file(30))
    config = TopicConfig.parse({"cleanup.policy": "compact"})
    for log_start, expired, boundary in (
        (10, (), None),
        (20, files[1:2], None),
        (25, files[1:2], None),
        (30, files[:3], None),
        (35, files[:3], files[3]),
    ):
        plan = plan_retention(0, PartitionState(40, 0, log_start, 0, 0), files, config, NOW)
        found = (plan.expired, plan.boundary) if plan else ((), None)
        assert found == (expired, boundary), log_start


def test_a_late_record_holds_up_what_is_behind_it():
    """Remove only a prefix: an old segment behind a younger one stays."""
    ages = (900, 100, 900)
    files = tuple(segment_file(n * 10, newest_ms=NOW - age) for n, age in enumerate(ages))
    config = TopicConfig.parse({"retention.ms": "500"})
    assert plan_retention(0, PartitionState(30, 0, 0, 0, 0), files, config, NOW).expired == files[:1]


@given(histories(), configs)
def test_compaction_stops_at_the_clean_point(history, config):
    state, files = history
    plan = plan_compaction(3, state, files, config, NOW)
    if plan is None:
        return
    assert plan.partition == 3
    assert plan.changed == is_changed(state, files)
    assert max(state.cleaned, state.log_start) == plan.first_dirty <= plan.clean_point <= state.sealed
    assert plan.changed or plan.first_dirty < plan.clean_point
    assert plan.files == tuple(f for f in files if state.log_start < f.end_offset <= plan.clean_point)
    assert not any(f.base_offset < plan.clean_point < f.end_offset for f in files)
    dirty = [f for f in plan.files if f.num_records and (plan.changed or f.end_offset > plan.first_dirty)]
    assert dirty
    if config.min_compaction_lag_ms:
        new = [f for f in dirty if f.end_offset > plan.first_dirty]
        assert all(f.max_timestamp_ms <= NOW - config.min_compaction_lag_ms for f in new)
    old = min(f.min_timestamp_ms for f in dirty) < NOW - config.max_compaction_lag_ms
    clean = 0 if plan.changed else sum(f.size for f in plan.files if f.end_offset <= plan.first_dirty)
    assert old or 1 - clean / plan.size > config.min_cleanable_dirty_ratio - 1e-9
    assert not (plan.changed and plan.clean)


@given(histories(), configs, st.integers(1, 60))
def test_compacted_segments_leave_no_gap(history, config, segment_bytes):
    """Check that the new ranges cover those that they replace, up to the files that stay."""
    state, files = history
    plan = plan_compaction(0, state, files, config, NOW)
    if plan is None:
        return
    groups = rewrite_groups(plan, [True] * len(plan.files), [f.size for f in plan.files], segment_bytes)
    covered = [o for group in groups for o in range(group.base_offset, group.end_offset)]
    assert covered == list(range(plan.log_start, plan.clean_point))
    for group in groups:
        assert group.base_offset < group.end_offset
        kept = [o for f in group.files for o in offsets(f) if o >= plan.log_start]
        assert all(group.base_offset <= o < group.end_offset for o in kept)
    for kept in set(files) - set(plan.files):
        assert kept.end_offset <= plan.log_start or kept.base_offset >= plan.clean_point


@given(histories(), configs)
def test_a_partition_is_compacted_when_it_is_due(history, config):
    """Set the dirty ratio to 0: a partition is then skipped only if its first dirty segment is too young."""
    state, files = history
    config = replace(config, min_cleanable_dirty_ratio=0.0)
    below = state.log_start if is_changed(state, files) else max(state.cleaned, state.log_start)
    dirty = [f for f in files if f.num_records and f.end_offset > below]
    lag = config.min_compaction_lag_ms
    if plan_compaction(0, state, files, config, NOW) is None:
        assert not dirty or (lag and dirty[0].max_timestamp_ms > NOW - lag)
    else:
        assert dirty


@given(histories(), configs)
def test_a_compacted_partition_is_clean(history, config):
    state, files = history
    plan = plan_compaction(0, state, files, config, NOW)
    if plan is None:
        return
    done = replace(state, cleaned=plan.clean_point, clean_digest=clean_digest(files, plan.clean_point))
    again = plan_compaction(0, done, files, config, NOW)
    assert again is None or again.first_dirty == plan.clean_point


def whole(files: tuple[SegmentFile, ...]) -> CompactionPlan:
    """Return a plan of all files."""
    assume(files)
    return CompactionPlan(0, files[0].base_offset, 0, files[-1].end_offset, files)


@given(histories(), st.integers(1, 60), st.data())
def test_files_that_stay_are_in_no_group_and_groups_fit_between_them(history, segment_bytes, data):
    plan = whole(history[1])
    rewritten = [data.draw(st.booleans()) for _ in plan.files]
    groups = rewrite_groups(plan, rewritten, [f.size for f in plan.files], segment_bytes)
    grouped = [f for group in groups for f in group.files]
    stay = [f for f in plan.files if f not in grouped]
    assert {f for f, written in zip(plan.files, rewritten, strict=True) if written} <= set(grouped)
    assert all(
        not f.num_records for f, written in zip(plan.files, rewritten, strict=True) if f in grouped and not written
    )
    ranges = sorted([(f.base_offset, f.end_offset) for f in stay] + [(g.base_offset, g.end_offset) for g in groups])
    assert all(end <= base for (_, end), (base, _) in pairwise(ranges))
    for group in groups:
        assert (
            list(group.files)
            == [f for f in plan.files if f.base_offset >= group.files[0].base_offset][: len(group.files)]
        )
        assert group.base_offset <= group.files[0].base_offset
        assert group.end_offset >= group.files[-1].end_offset
        sizes = [f.size for f in group.files if f.num_records]
        assert len(sizes) <= 1 or sum(sizes) <= segment_bytes
    if not any(rewritten):
        assert groups == []


@given(histories(), st.integers(1, 60), st.data())
def test_files_without_a_remainder_are_rewritten_with_a_neighbour(history, segment_bytes, data):
    plan = whole(history[1])
    left = {f: data.draw(st.sampled_from([0, f.size])) for f in plan.files}
    groups = rewrite_groups(plan, [True] * len(left), list(left.values()), segment_bytes)
    assert [f for group in groups for f in group.files] == list(plan.files)
    assert len(groups) <= 1 or all(any(left[f] for f in group.files) for group in groups)
    for one, other in pairwise(groups):
        first = next(left[f] for f in other.files if left[f])
        assert sum(left[f] for f in one.files) + first > segment_bytes


def test_the_ratio_counts_bytes():
    files = tuple(segment_file(base, size) for base, size in ((0, 30), (10, 10)))
    plan = CompactionPlan(0, 0, 10, 20, files)
    assert (plan.size, plan.dirty_ratio, plan.clean, plan.dirty) == (40, 0.25, files[:1], files[1:])


def test_the_base_offset_is_in_the_name():
    for path, base in (
        (f"partition=0/{7:020d}-2-{'a' * 32}.parquet", 7),
        (f"partition=0/{9:020d}-{14:020d}-2-{'a' * 32}.parquet", 9),
        ("partition=0/part-0001.parquet", 9),
    ):
        assert base_offset(SegmentFile(path, 1, 1, 9, 13, 9, 12, 0, 0)) == base
