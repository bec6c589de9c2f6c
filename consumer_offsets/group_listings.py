"""Groups as a list shows them, a page at a time, to clients and to other brokers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A GroupDescription in numbers. ``partitions`` are those that the lags count, see ``GroupCoordinator.lag``."""

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
    """A page. ``next`` is the name that the next page comes ``after``; None: this is the last page."""

    groups: list[GroupListing]
    next: str | None
