"""Offset ranges of a read. Pure functions; no Spark, no store.

Times are UTC unless they have a zone. The caller finds the offset for a time.

Invariants: ranges are half open, ``[start, end)``; for every partition ``log_start_offset <= start <= end <= end of the
log``.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from logstore.clock import Clock, SystemClock
from logstore.errors import InvalidRequestError, OffsetOutOfRangeError, UnknownPartitionError
from logstore.quantities import datetime_ms, timestamp_ms

#: As in Spark's Kafka source, -2 is the earliest offset and -1 the latest.
EARLIEST, LATEST = -2, -1
#: "earliest", "latest" or a time (a datetime, a date, or text as ``logstore.quantities`` reads it) for every partition,
#: or a mapping from each partition to one of them or to an offset.
OffsetSpec = str | date | Mapping[int, "int | str | date"]
#: Maps each partition's time (ms) to its first offset at or after that time, None if there is none.
OffsetsOfTimes = Callable[[Mapping[int, int]], Mapping[int, int | None]]

_CLOCK = SystemClock()
_NAMES = {"earliest": EARLIEST, "latest": LATEST}


@dataclass(frozen=True, slots=True)
class LogBounds:
    """The offsets of one partition: from ``log_start_offset`` up to but without ``end_offset``."""

    partition: int
    log_start_offset: int
    end_offset: int

    @property
    def text(self) -> str:
        """The offsets in words, for messages."""
        return offsets_text(self.log_start_offset, self.end_offset)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A time in ms in place of an offset."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets ``start <= offset < end`` of one partition."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GroupRange:
    """Offsets ``start <= offset < end`` of a partition; ``committed`` is the committed offset when the batch began."""

    topic: str
    partition: int
    start: int
    end: int
    committed: int | None


def _no_times(times: Mapping[int, int]) -> Mapping[int, int | None]:
    raise AssertionError(times)


def resolve(
    topic: str,
    starting: OffsetSpec,
    ending: OffsetSpec,
    bounds: Sequence[LogBounds],
    offsets_of_times: OffsetsOfTimes = _no_times,
    clock: Clock = _CLOCK,
    *,
    names: tuple[str, str] = ("starting_offsets", "ending_offsets"),
) -> list[OffsetRange]:
    """Return the range to read of every partition, in the order of ``bounds``. Errors call the arguments by ``names``.

    A time means the first offset at or after it, or the end of the log if there is none. As in Spark's Kafka source, a
    mapping names every partition. Raises InvalidRequestError (not an offset; a partition left out; start above end),
    UnknownPartitionError and OffsetOutOfRangeError.
    """
    starts = _offsets(names[0], topic, starting, bounds, offsets_of_times, clock)
    ends = _offsets(names[1], topic, ending, bounds, offsets_of_times, clock)
    ranges = [OffsetRange(b.partition, starts[b.partition], ends[b.partition]) for b in bounds]
    for r in ranges:
        if r.start > r.end:
            raise InvalidRequestError(
                f"topic {topic}, partition {r.partition}: starting offset {r.start} is above ending offset {r.end}"
            )
    return ranges


def _offsets(
    argument: str,
    topic: str,
    spec: OffsetSpec,
    bounds: Sequence[LogBounds],
    offsets_of_times: OffsetsOfTimes,
    clock: Clock,
) -> dict[int, int]:
    wanted = check_offsets(argument, spec, clock)
    known = {b.partition for b in bounds}
    if not isinstance(wanted, dict):
        wanted = dict.fromkeys(known, wanted)
    if unknown := sorted(wanted.keys() - known):
        raise UnknownPartitionError(
            f"{argument}: topic {topic} has no partition {_listed(unknown)}; it has {len(known)} partitions, from 0"
        )
    if missing := sorted(known - wanted.keys()):
        raise InvalidRequestError(
            f"{argument} leaves out partition {_listed(missing)} of topic {topic}; name every partition "
            '("earliest" and "latest" are allowed), or give one word for all'
        )
    times = {partition: time.milliseconds for partition, time in wanted.items() if isinstance(time, Timestamp)}
    found = offsets_of_times(times) if times else {}
    offsets: dict[int, int] = {}
    for b in bounds:
        offset = wanted[b.partition]
        if isinstance(offset, Timestamp):
            at = found[b.partition]
            # The log may have moved since its bounds were read.
            offsets[b.partition] = b.end_offset if at is None else min(max(at, b.log_start_offset), b.end_offset)
        else:
            offsets[b.partition] = _within(argument, topic, offset, b)
    return offsets


def check_offsets(
    argument: str, spec: OffsetSpec, clock: Clock = _CLOCK
) -> int | Timestamp | dict[int, int | Timestamp]:
    """Return ``spec`` as numbers and times: one for every partition, or one per partition; words as EARLIEST and
    LATEST.

    Raises InvalidRequestError for anything that is not an offset specification.
    """
    if isinstance(spec, (str, date)):
        return _number(argument, spec, clock)
    if not isinstance(spec, Mapping):
        raise InvalidRequestError(
            f'{argument}={spec!r}: give "earliest", "latest", a time, or a mapping such as {{0: 10, 1: "earliest"}}'
        )
    numbers: dict[int, int | Timestamp] = {}
    for partition, offset in spec.items():
        if isinstance(partition, bool) or not hasattr(partition, "__index__") or operator.index(partition) < 0:
            raise InvalidRequestError(f"{argument}: {partition!r} is not a partition number")
        numbers[operator.index(partition)] = _number(f"{argument}, partition {partition}", offset, clock)
    return numbers


def _number(where: str, offset: object, clock: Clock) -> int | Timestamp:
    if isinstance(offset, str) and offset in _NAMES:
        return _NAMES[offset]
    wrong = InvalidRequestError(
        f'{where}: {offset!r} is not an offset; give a number >= 0, "earliest", "latest", '
        'a datetime, or a time as text ("2026-11-21T08:00:00Z", "2026-11-21", "yesterday", "-1h")'
    )
    try:
        if isinstance(offset, date):
            return Timestamp(datetime_ms(offset))
        # Digits could mean an offset as well as a time.
        if isinstance(offset, str) and not offset.isdecimal():
            return Timestamp(timestamp_ms(offset, clock.now_ms()))
    except ValueError:
        raise wrong from None
    if isinstance(offset, bool) or not hasattr(offset, "__index__") or (number := operator.index(offset)) < EARLIEST:
        raise wrong
    return number


def _within(argument: str, topic: str, offset: int, bounds: LogBounds) -> int:
    if offset == EARLIEST:
        return bounds.log_start_offset
    if offset == LATEST:
        return bounds.end_offset
    if not bounds.log_start_offset <= offset <= bounds.end_offset:
        raise OffsetOutOfRangeError(
            f"{argument}: offset {offset} of topic {topic}, partition {bounds.partition} is out of range; "
            f"valid are {bounds.text}",
            log_start_offset=bounds.log_start_offset,
            high_watermark=bounds.end_offset,
        )
    return offset


def offsets_text(start: int, end: int) -> str:
    """Return the offsets from ``start`` up to ``end``, the end of a log, as text; a read may also start at the end."""
    return (
        f"{start} to {end - 1}, and {end} is the end" if start < end else f"{end}, which is the end, without a record"
    )


def _listed(partitions: Sequence[int]) -> str:
    text = ", ".join(map(str, partitions[:10]))
    return f"{text} and {len(partitions) - 10} more" if len(partitions) > 10 else text


def limited(sizes: Sequence[int], limit: int) -> list[int]:
    """Return ``sizes``, reduced in proportion if their sum exceeds ``limit``.

    As with ``maxOffsetsPerTrigger`` of Spark's Kafka source, a partition that is not empty keeps at least 1, so that no
    partition is left behind for ever; this may exceed ``limit``.
    """
    total = sum(sizes)
    return [min(size, max(1, limit * size // total)) for size in sizes] if total > limit else list(sizes)
