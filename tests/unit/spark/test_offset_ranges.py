"""Which offsets a read covers, checked against a plain model: a set of (partition, offset)."""

import re
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownPartitionError
from logstore.spark.offset_ranges import (
    FileRange,
    HistoryScan,
    LogBounds,
    OffsetRange,
    limited,
    plan_history,
    resolve,
    split_at_sealed,
)
from tests.support.manual_clock import ManualClock

BOUNDS = [LogBounds(0, 5, 20), LogBounds(1, 0, 7), LogBounds(2, 3, 3)]


def test_words_stand_for_the_bounds_of_every_partition():
    assert resolve("t", "earliest", "latest", BOUNDS) == [
        OffsetRange(0, 5, 20),
        OffsetRange(1, 0, 7),
        OffsetRange(2, 3, 3),
    ]
    assert all(r.start == r.end for r in resolve("t", "latest", "latest", BOUNDS))
    assert all(r.start == r.end for r in resolve("t", "earliest", "earliest", BOUNDS))


def test_offsets_per_partition_in_words_numbers_and_kafkas_negative_numbers():
    starts = {0: 10, 1: "earliest", 2: "latest"}
    ends = {2: -1, 1: 4, 0: -2}
    with pytest.raises(InvalidRequestError, match="partition 0: starting offset 10 is above ending offset 5"):
        resolve("t", starts, ends, BOUNDS)
    assert resolve("t", starts, ends | {0: -1}, BOUNDS) == [
        OffsetRange(0, 10, 20),
        OffsetRange(1, 0, 4),
        OffsetRange(2, 3, 3),
    ]


@pytest.mark.parametrize("offset", [5, 20])
def test_both_ends_of_the_log_are_in_range(offset):
    assert resolve("t", {0: offset}, {0: offset}, BOUNDS[:1]) == [OffsetRange(0, offset, offset)]


@pytest.mark.parametrize("offset", [4, 21])
@pytest.mark.parametrize("argument", ["starting_offsets", "ending_offsets"])
def test_outside_the_log_the_error_names_what_is_valid(offset, argument):
    arguments = {"starting_offsets": "earliest", "ending_offsets": "latest"} | {argument: {0: offset}}
    with pytest.raises(OffsetOutOfRangeError, match=rf"{argument}: offset {offset}.*valid are 5 to 20") as caught:
        resolve("t", *arguments.values(), BOUNDS[:1])
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (5, 20)


@pytest.mark.parametrize(
    ("offsets", "error", "message"),
    [
        ({0: 5, 1: 0}, InvalidRequestError, "leaves out partition 2 of topic t"),
        ({0: 5, 1: 0, 2: 3, 3: 0}, UnknownPartitionError, "no partition 3; it has 3"),
        ("newest", InvalidRequestError, "'newest' is not an offset"),
        ({0: "newest", 1: 0, 2: 3}, InvalidRequestError, "partition 0: 'newest'"),
        ({0: -3, 1: 0, 2: 3}, InvalidRequestError, "-3 is not an offset"),
        ("1735689600000", InvalidRequestError, "'1735689600000' is not an offset"),
        ({0: "10", 1: 0, 2: 3}, InvalidRequestError, "'10' is not an offset"),
        ("-1", InvalidRequestError, "'-1' is not an offset"),
        ({0: 5.0, 1: 0, 2: 3}, InvalidRequestError, "5.0 is not an offset"),
        ({0: True, 1: 0, 2: 3}, InvalidRequestError, "True is not an offset"),
        ({"0": 5, 1: 0, 2: 3}, InvalidRequestError, "'0' is not a partition"),
        (10, InvalidRequestError, "=10: give"),
        (None, InvalidRequestError, "=None: give"),
    ],
)
def test_what_is_no_offset_is_refused_by_name(offsets, error, message):
    with pytest.raises(error, match=re.escape(message)):
        resolve("t", offsets, "latest", BOUNDS)


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        ("2024-10-03T12:00:00Z", 1_727_956_800_000),
        ("2024-10-03", 1_727_913_600_000),
        (date(2024, 10, 3), 1_727_913_600_000),
        (datetime(2024, 10, 3, 12), 1_727_956_800_000),  # noqa: DTZ001 - without a zone it is UTC
        (datetime(2024, 10, 3, 12, tzinfo=UTC), 1_727_956_800_000),
        ("-1h", ManualClock().now_ms() - 3_600_000),
    ],
)
def test_a_time_is_the_first_offset_of_it_or_later_inside_the_log(time, milliseconds):
    asked = []

    def offsets_of_times(times):
        asked.append(times)
        return {0: 9, 1: None, 2: 99} | ({0: 2} if len(asked) > 1 else {})

    ends = {0: "latest", 1: time, 2: time}
    assert resolve("t", time, ends, BOUNDS, offsets_of_times, ManualClock()) == [
        OffsetRange(0, 9, 20),
        OffsetRange(1, 7, 7),
        OffsetRange(2, 3, 3),
    ]
    assert asked == [dict.fromkeys((0, 1, 2), milliseconds), dict.fromkeys((1, 2), milliseconds)]
    # Retention was faster: what is below the log start is gone.
    assert resolve("t", {0: time}, "latest", BOUNDS[:1], offsets_of_times, ManualClock()) == [OffsetRange(0, 5, 20)]


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
    """Ranges to read, and files of 10 offsets that cover more than them."""
    ranges, files = [], []
    for partition in draw(st.sets(st.integers(0, 20), min_size=1, max_size=12)):
        start = draw(st.integers(0, 150))
        ranges.append(OffsetRange(partition, start, start + draw(st.integers(1, 60))))
        files += [FileRange(partition, first, first + 9) for first in range(0, draw(st.integers(0, 30)) * 10, 10)]
    return ranges, files


def opened(scan: HistoryScan, files):
    """What Delta opens by the conjuncts that it can skip by."""
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
    assert scan.condition() == "partition IN (0, 3) AND offset >= 5L AND offset < 9L"


def test_a_thousand_partitions_are_planned_by_a_bounded_number_of_conjuncts():
    scan = HistoryScan(tuple(OffsetRange(p, p, 2 * p + 1) for p in range(1000)))
    assert scan.condition().count(" AND ") == 4


@given(st.lists(st.integers(0, 10**6), max_size=20), st.integers(1, 10**6))
def test_a_limit_is_kept_but_for_the_progress_of_every_partition(sizes, limit):
    shares = limited(sizes, limit)
    assert all(min(size, 1) <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) <= limit + len(sizes)
    if sum(sizes) <= limit:
        assert shares == sizes


def test_a_limit_is_divided_in_proportion():
    assert limited([100, 0, 300, 1], 40) == [9, 0, 29, 1]
