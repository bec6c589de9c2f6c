"""The offsets of a read, checked against a plain model: a set of (partition, offset)."""

import re
from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownPartitionError
from logstore.spark.offset_ranges import (
    LogBounds,
    OffsetRange,
    limited,
    resolve,
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
    with pytest.raises(
        OffsetOutOfRangeError, match=rf"{argument}: offset {offset}.*valid are 5 to 19, and 20 is the end"
    ) as caught:
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
def test_a_value_that_is_no_offset_is_refused_by_name(offsets, error, message):
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
    # Retention was faster, so records below the log start are gone.
    assert resolve("t", {0: time}, "latest", BOUNDS[:1], offsets_of_times, ManualClock()) == [OffsetRange(0, 5, 20)]


@given(st.lists(st.integers(0, 10**6), max_size=20), st.integers(1, 10**6))
def test_a_limit_is_kept_but_for_the_progress_of_every_partition(sizes, limit):
    shares = limited(sizes, limit)
    assert all(min(size, 1) <= share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) <= limit + len(sizes)
    if sum(sizes) <= limit:
        assert shares == sizes


def test_a_limit_is_divided_in_proportion():
    assert limited([100, 0, 300, 1], 40) == [9, 0, 29, 1]
