"""Groups in lists, a page at a time."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupListing:
    """As GroupDescription, in numbers. ``partitions`` are those that the lags count, see ``GroupCoordinator.lag``."""

    group: str
    kind: str
    state: str
    protocol_type: str | None
    protocol: str | None
    generation: int
    members: int
    partitions: int
    total_lag: int
    max_lag: int


@dataclass(frozen=True, slots=True)
class GroupListings:
    """A page. ``next`` is the name that the next page comes ``after``; None: there are no more."""

    groups: list[GroupListing]
    next: str | None


def merged(pages: Sequence[GroupListings], limit: int) -> GroupListings:
    """Pages that begin behind the same name, as one: as far as all of them go, and at most ``limit`` groups."""
    ends = [page.next for page in pages if page.next is not None]
    end = min(ends, default=None)
    groups = sorted((one for page in pages for one in page.groups), key=lambda one: one.group)
    reached = [one for one in groups if end is None or one.group <= end]
    if len(reached) <= limit:
        return GroupListings(reached, end)
    return GroupListings(reached[:limit], reached[limit - 1].group)
