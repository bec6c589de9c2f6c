"""Ranges of offsets [start, end): rising, and no two of them touch."""

from bisect import bisect_right
from collections.abc import Iterable

OffsetRanges = tuple[tuple[int, int], ...]


def join_ranges(ranges: Iterable[tuple[int, int]]) -> OffsetRanges:
    """Join the ``ranges`` that touch; they come rising. Raises ValueError if they do not rise."""
    joined: list[tuple[int, int]] = []
    for start, end in ranges:
        if not (joined[-1][1] if joined else 0) <= start < end:
            raise ValueError(f"the range of offsets [{start}, {end}) does not follow {joined[-1:]}")
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]  # noqa: PLW2901
        joined.append((start, end))
    return tuple(joined)


def look_up(offset: int, ranges: OffsetRanges) -> tuple[bool, int | None]:
    """Return whether ``offset`` is in a range, and the first later offset for which the opposite holds; None if there
    is no such offset.
    """
    at = bisect_right(ranges, offset, key=lambda one: one[0])
    if at and offset < ranges[at - 1][1]:
        return True, ranges[at - 1][1]
    return False, ranges[at][0] if at < len(ranges) else None
