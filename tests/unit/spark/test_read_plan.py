"""The plan of a read, checked against a plain model: a set of (partition, offset)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.spark.offset_ranges import OffsetRange
from logstore.spark.read_plan import (
    FETCHED_BYTES_MAX,
    FETCHED_PARTITIONS_MAX,
    FileRange,
    HistoryScan,
    plan_history,
    plan_read,
    split_at_sealed,
)


def offsets_of(ranges):
    return [(r.partition, offset) for r in ranges for offset in range(r.start, r.end)]


partition_logs = st.lists(st.tuples(*[st.integers(0, 30)] * 4).map(sorted), min_size=1, max_size=6)


@given(partition_logs, st.dictionaries(st.integers(0, 5), st.integers(0, 40)))
def test_history_and_tail_are_every_offset_once_and_meet_at_sealed(logs, sealed):
    ranges = [OffsetRange(p, start, end) for p, (_, start, end, _) in enumerate(logs)]
    history, tail = split_at_sealed(ranges, sealed)
    assert sorted(offsets_of(history) + offsets_of(tail)) == offsets_of(ranges)
    assert all(offset < sealed.get(p, 0) for p, offset in offsets_of(history))
    assert all(offset >= sealed.get(p, 0) for p, offset in offsets_of(tail))
    assert all(r.start < r.end for r in history + tail)


@st.composite
def histories(draw):
    """Draw ranges to read, and files of 10 offsets that cover more than the ranges."""
    ranges, files = [], []
    for partition in draw(st.sets(st.integers(0, 20), min_size=1, max_size=12)):
        start = draw(st.integers(0, 150))
        ranges.append(OffsetRange(partition, start, start + draw(st.integers(1, 60))))
        files += [FileRange(partition, first, first + 9) for first in range(0, draw(st.integers(0, 30)) * 10, 10)]
    return ranges, files


def opened(scan: HistoryScan, files):
    """Return the files that Delta opens after skipping by its conjuncts."""
    partitions = {r.partition for r in scan.ranges}
    return [f for f in files if f.partition in partitions and f.first_offset < scan.end and f.last_offset >= scan.start]


def needed(ranges, files):
    by_partition = {r.partition: r for r in ranges}
    return [
        f for f in files if (r := by_partition.get(f.partition)) and f.first_offset < r.end and f.last_offset >= r.start
    ]


@given(histories(), st.integers(1, 8))
def test_scans_cover_every_range_once_and_stay_few(history, scans_max):
    ranges, files = history
    scans = plan_history(ranges, files, scans_max)
    assert sorted((r for scan in scans for r in scan.ranges), key=lambda r: r.partition) == sorted(
        ranges, key=lambda r: r.partition
    )
    assert len(scans) <= scans_max


@given(histories())
def test_with_a_scan_per_partition_allowed_only_needed_files_are_opened(history):
    ranges, files = history
    scans = plan_history(ranges, files, len(ranges))
    assert sum(len(opened(scan, files)) for scan in scans) == len(needed(ranges, files))


def test_from_the_beginning_to_what_is_sealed_is_one_scan():
    files = [FileRange(p, first, first + 99) for p in range(100) for first in range(0, 1000 + 100 * p, 100)]
    ranges = [OffsetRange(p, 0, 1000 + 100 * p) for p in range(100)]
    assert len(plan_history(ranges, files)) == 1


def test_partitions_read_at_far_apart_offsets_get_scans_of_their_own():
    files = [FileRange(p, first, first + 99) for p in range(4) for first in range(0, 100_000, 100)]
    ranges = [
        OffsetRange(0, 0, 50),
        OffsetRange(1, 90_000, 90_100),
        OffsetRange(2, 0, 80),
        OffsetRange(3, 90_000, 90_050),
    ]
    scans = plan_history(ranges, files)
    assert sorted(sorted(r.partition for r in scan.ranges) for scan in scans) == [[0, 2], [1, 3]]
    assert sum(len(opened(scan, files)) for scan in scans) == 4


def test_equal_bounds_keep_the_condition_simple():
    scan = HistoryScan((OffsetRange(0, 5, 9), OffsetRange(3, 5, 9)))
    assert scan.condition() == "`partition` IN (0, 3) AND `offset` >= 5L AND `offset` < 9L"


def test_a_thousand_partitions_are_planned_by_a_bounded_number_of_conjuncts():
    scan = HistoryScan(tuple(OffsetRange(p, p, 2 * p + 1) for p in range(1000)))
    assert scan.condition().count(" AND ") == 4


def test_a_plan_scans_the_table_below_the_sealed_offset_and_fetches_the_rest():
    ranges = [OffsetRange(0, 0, 250), OffsetRange(1, 5, 9), OffsetRange(2, 3, 3), OffsetRange(3, 40, 60)]
    files = [FileRange(0, first, first + 99) for first in (0, 100)] + [FileRange(3, 0, 99)]
    plan = plan_read(ranges, {0: 200, 1: 0, 2: 9, 3: 100}, files, has_store=False)
    assert sorted((r.partition, r.start, r.end) for scan in plan.history for r in scan.ranges) == [
        (0, 0, 200),
        (3, 40, 60),
    ]
    assert plan.fetched == (OffsetRange(0, 200, 250), OffsetRange(1, 5, 9))


def test_little_history_is_fetched_with_the_tail():
    ranges = [OffsetRange(0, 150, 250), OffsetRange(1, 5, 9), OffsetRange(2, 3, 3)]
    files = [FileRange(0, first, first + 99, 10 * FETCHED_BYTES_MAX) for first in (0, 100)]
    sealed = {0: 200, 1: 0, 2: 9}
    much = plan_read(ranges, sealed, files, has_store=True)
    assert ([scan.ranges for scan in much.history], much.fetched) == (
        [(OffsetRange(0, 150, 200),)],
        (OffsetRange(0, 200, 250), OffsetRange(1, 5, 9)),
    )
    # The range has a tenth of the last file.
    ranges[0] = OffsetRange(0, 190, 250)
    little = plan_read(ranges, sealed, files, has_store=True)
    assert (little.history, little.fetched) == ((), (OffsetRange(0, 190, 250), OffsetRange(1, 5, 9)))
    # Without a store it is read from the file.
    assert [scan.ranges for scan in plan_read(ranges, sealed, files, has_store=False).history] == [
        (OffsetRange(0, 190, 200),)
    ]


@pytest.mark.parametrize(
    ("partitions", "fetched"), [(FETCHED_PARTITIONS_MAX, True), (FETCHED_PARTITIONS_MAX + 1, False)]
)
def test_many_partitions_are_read_from_the_table_and_not_fetched(partitions, fetched):
    """Plan many partitions, each of which costs the store a row group."""
    history = [OffsetRange(p, 0, 10) for p in range(partitions)]
    tail = [OffsetRange(p, 0, 10) for p in range(partitions, 1000)]
    plan = plan_read([*history, *tail], dict.fromkeys(range(partitions), 10), [], has_store=True)
    assert bool(plan.history) != fetched
    assert list(plan.fetched) == ([*history, *tail] if fetched else tail)


def test_nothing_to_read_is_a_plan_without_parts():
    plan = plan_read([OffsetRange(0, 7, 7)], {0: 7}, [], has_store=True)
    assert (plan.history, plan.fetched) == ((), ())
