"""Filters narrow a batch to no fewer than the matching rows, and filters that Spark no longer applies are exact."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from logstore.spark.source.pushed_filters import PushedFilters, from_times
from logstore.spark.source.slices import TopicRange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RANGES = [TopicRange(t, "id", p, 10 * p, 10 * p + 20) for t in ("ab", "cb") for p in range(3)]
ROWS = [(r.topic, r.partition, o) for r in RANGES for o in range(r.start, r.end)]
COLUMNS = ("topic", "partition", "offset")

COMPARISONS = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    In: lambda a, b: a in b,
    StringStartsWith: lambda a, b: a.startswith(b),
    StringEndsWith: lambda a, b: a.endswith(b),
    StringContains: lambda a, b: b in a,
}
TEXTS = (StringStartsWith, StringEndsWith, StringContains)
VALUES = {"topic": st.sampled_from(["a", "ab", "b", "cb", "x"]), "partition": st.integers(-1, 3)}
VALUES["offset"] = st.integers(-2, 45)


@st.composite
def filters(draw):
    """Draw a filter and its meaning, which is a function of a row."""
    column = draw(st.sampled_from(COLUMNS))
    kind = draw(st.sampled_from([k for k in COMPARISONS if column == "topic" or k not in TEXTS]))
    value = draw(st.lists(VALUES[column], min_size=1, max_size=3).map(tuple) if kind is In else VALUES[column])
    one, index = kind((column,), value), COLUMNS.index(column)
    if draw(st.booleans()):
        return Not(one), lambda row: not COMPARISONS[kind](row[index], value)
    return one, lambda row: COMPARISONS[kind](row[index], value)


@given(st.lists(filters(), max_size=4))
def test_ranges_and_the_filters_left_give_the_rows_that_match(given_filters):
    pushed = PushedFilters()
    left = pushed.push([one for one, _ in given_filters])
    narrowed = pickle.loads(pickle.dumps(pushed)).narrow(RANGES)
    assert all(r.start < r.end for r in narrowed)
    read = [(r.topic, r.partition, o) for r in narrowed for o in range(r.start, r.end)]
    still = [holds for one, holds in given_filters if any(one is other for other in left)]
    assert [row for row in read if all(holds(row) for holds in still)] == [
        row for row in ROWS if all(holds(row) for _, holds in given_filters)
    ]
    if not left:
        assert pushed.times is None


@pytest.mark.parametrize("kind", [k for k in COMPARISONS if k not in (In, *TEXTS)])
@pytest.mark.parametrize("value", [-1, 0, 15, 39, 40])
def test_bounds_on_offsets_are_exact_and_taken_off_spark(kind, value):
    pushed = PushedFilters()
    assert pushed.push([kind(("offset",), value)]) == []
    read = [(r.partition, o) for r in pushed.narrow(RANGES[:3]) for o in range(r.start, r.end)]
    assert read == [(p, o) for _, p, o in ROWS[:60] if COMPARISONS[kind](o, value)]


@pytest.mark.parametrize(
    "one",
    [
        EqualTo(("partition",), None),
        EqualNullSafe(("partition",), None),
        In(("partition",), (0, None)),
        EqualTo(("offset",), None),
        IsNull(("partition",)),
        Not(IsNotNull(("topic",))),
        Not(EqualTo(("offset",), 3)),
        EqualTo(("key",), b"k"),
        IsNotNull(("value",)),
        EqualTo(("headers", "key"), "k"),
        EqualTo(("partition", "x"), 1),
        LessThan(("timestamp",), "2026"),
        LessThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone on purpose
        Not(LessThan(("timestamp",), EPOCH)),
    ],
)
def test_unknown_filters_narrow_nothing_and_are_left_to_spark(one):
    pushed = PushedFilters()
    assert pushed.push([one]) == [one]
    assert pushed.narrow(RANGES) == RANGES
    assert pushed.times is None


def test_rows_always_have_a_topic_a_partition_and_an_offset():
    assert PushedFilters().push([IsNotNull((column,)) for column in (*COLUMNS, "key")]) == [IsNotNull(("key",))]


def test_times_are_bounds_in_ms_and_stay_with_spark():
    at = EPOCH + timedelta(seconds=1)
    pushed = PushedFilters()
    given_filters = [
        GreaterThan(("timestamp",), at + timedelta(microseconds=1500)),
        GreaterThanOrEqual(("timestamp",), at),
        LessThan(("timestamp",), at + timedelta(seconds=8)),
        In(("timestamp",), (at + timedelta(seconds=7, microseconds=999), at + timedelta(seconds=2))),
    ]
    assert pushed.push(given_filters[:1]) == given_filters[:1]
    assert (pushed.times.first_ms, pushed.times.last_ms) == (1001, None)
    assert pushed.push(given_filters) == given_filters
    assert (pushed.times.first_ms, pushed.times.last_ms) == (3000, 8000)
    before = PushedFilters()
    before.push([EqualTo(("timestamp",), EPOCH - timedelta(microseconds=1))])
    assert (before.times.first_ms, before.times.last_ms) == (-1, -1)


def test_ranges_begin_at_the_first_offset_of_a_time():
    ranges = [TopicRange("t", "id", p, 10, 20) for p in range(4)]
    first = {("t", 0): 5, ("t", 1): 15, ("t", 2): 20, ("t", 3): None}
    assert [(r.partition, r.start) for r in from_times(ranges, first)] == [(0, 10), (1, 15)]
