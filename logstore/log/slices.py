"""Slices of a partition's records, and what is wanted of them: between the log reader and the places that it reads."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from logstore.records.where.evaluation import Where

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Slice(Generic[C]):
    """Batches from one place: ``count`` records, which use up ``num_bytes`` of ``max_bytes``.

    Reading continues at ``next_offset``. ``is_full``: the next record or frame was left out because it did not fit.
    ``searched_bytes``: with ``Wanted.search``, the bytes of the records that were searched.
    """

    batches: list[C]
    count: int
    num_bytes: int
    next_offset: int
    is_full: bool = False
    searched_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the records that ``where`` selects. It looks at records of at most ``max_bytes``, and one batch
    more.
    """

    where: Where
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted records of [start, end), up to ``max_bytes``; the first one, whatever its size, unless
    ``may_be_empty``.

    No reader may get the records below ``log_start``. With a ``search`` there may be no records.
    """

    start: int
    end: int
    max_bytes: int
    may_be_empty: bool
    log_start: int
    search: Search | None = None
