"""Filters of a query that narrow a batch.

Those on topic, partition and offset narrow it exactly, those on timestamp as far as files and offsets allow.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from logstore.spark.source.options import TopicPartition
from logstore.spark.source.slices import TimeRange, TopicRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = {"topic": str, "partition": int}
_NEVER_NULL = ("topic", "partition", "offset")
_COMPARED = (
    EqualTo,
    EqualNullSafe,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
    StringEndsWith,
    StringContains,
)
_LONG_MAX = 2**63 - 1


class PushedFilters:
    """The filters of one query, all of which must hold. It can be pickled."""

    def __init__(self) -> None:
        self._of_partitions: list[tuple[str, Filter]] = []
        self._first_offset, self._end_offset = 0, _LONG_MAX
        self._first_ms: int | None = None
        self._last_ms: int | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take filters, and return those that Spark still has to apply to the rows."""
        return [one for one in filters if not self._takes(one)]

    @property
    def times(self) -> TimeRange | None:
        """The times that rows may have; None means any."""
        if self._first_ms is None and self._last_ms is None:
            return None
        return TimeRange(self._first_ms, self._last_ms)

    def narrow(self, ranges: Iterable[TopicRange]) -> list[TopicRange]:
        """Narrow ``ranges`` by the filters on topic, partition and offset."""
        narrowed = (
            replace(r, start=max(r.start, self._first_offset), end=min(r.end, self._end_offset))
            for r in ranges
            if all(_holds(one, r.topic if column == "topic" else r.partition) for column, one in self._of_partitions)
        )
        return [r for r in narrowed if r.start < r.end]

    def _takes(self, one: Filter) -> bool:
        """Return True if ranges and partitions express the whole filter."""
        asked = one.child if isinstance(one, Not) else one
        column = ".".join(getattr(asked, "attribute", ()))
        if isinstance(one, IsNotNull):
            return column in _NEVER_NULL
        if column in _EXACT:
            if not _is_decidable(asked, _EXACT[column]):
                return False
            self._of_partitions.append((column, one))
            return True
        if column == "offset":
            return self._takes_offset(one)
        if column == "timestamp":
            self._look_at_time(one)
        return False

    def _takes_offset(self, one: Filter) -> bool:
        match one:
            case In(_, values) if values and all(type(value) is int for value in values):
                # Spark looks for the numbers between.
                self._bound_offsets(min(values), max(values) + 1)
                return False
            case EqualTo(_, int(value)) | EqualNullSafe(_, int(value)):
                self._bound_offsets(value, value + 1)
            case GreaterThan(_, int(value)):
                self._bound_offsets(value + 1)
            case GreaterThanOrEqual(_, int(value)):
                self._bound_offsets(value)
            case LessThan(_, int(value)):
                self._bound_offsets(0, value)
            case LessThanOrEqual(_, int(value)):
                self._bound_offsets(0, value + 1)
            case _:
                return False
        return True

    def _bound_offsets(self, first: int, end: int = _LONG_MAX) -> None:
        self._first_offset, self._end_offset = max(self._first_offset, first), min(self._end_offset, end)

    def _look_at_time(self, one: Filter) -> None:
        match one:
            case In(_, values) if values and all(_is_moment(value) for value in values):
                self._bound_times(min(values), max(values))
            case EqualTo(_, value) | EqualNullSafe(_, value) if _is_moment(value):
                self._bound_times(value, value)
            case GreaterThan(_, value) | GreaterThanOrEqual(_, value) if _is_moment(value):
                self._bound_times(value, None)
            case LessThan(_, value) | LessThanOrEqual(_, value) if _is_moment(value):
                self._bound_times(None, value)

    def _bound_times(self, first: datetime | None, last: datetime | None) -> None:
        """Bound the times, rounded down to ms like the times of records that they are compared with."""
        if first is not None:
            self._first_ms = max(_ms(first), _ms(first) if self._first_ms is None else self._first_ms)
        if last is not None:
            self._last_ms = min(_ms(last), _ms(last) if self._last_ms is None else self._last_ms)


def from_times(ranges: Iterable[TopicRange], first: Mapping[TopicPartition, int | None]) -> list[TopicRange]:
    """Return ``ranges`` from the ``first`` offset at or after a time on, without those that have none."""
    offsets = ((r, first[r.topic, r.partition]) for r in ranges)
    return [replace(r, start=max(r.start, at)) for r, at in offsets if at is not None and at < r.end]


def _is_moment(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _is_decidable(one: Filter, kind: type) -> bool:
    if isinstance(one, In):
        return all(type(value) is kind for value in one.value)
    return isinstance(one, _COMPARED) and type(one.value) is kind


def _holds(one: Filter, here: Any) -> bool:
    match one:
        case Not(child):
            return not _holds(child, here)
        case In(_, values):
            return here in values
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return bool(here == value)
        case GreaterThan(_, value):
            return bool(here > value)
        case GreaterThanOrEqual(_, value):
            return bool(here >= value)
        case LessThan(_, value):
            return bool(here < value)
        case LessThanOrEqual(_, value):
            return bool(here <= value)
        case StringStartsWith(_, value):
            return bool(here.startswith(value))
        case StringEndsWith(_, value):
            return bool(here.endswith(value))
        case StringContains(_, value):
            return value in here
    raise AssertionError(one)
