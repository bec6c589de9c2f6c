"""The records that a repair of a journal really loses: the frames that it takes out are compared with the tables and
the frames that stay.

A record is lost when its offset is not below its table's sealed offset, and no frame that stays has it. Offsets of a
log have no holes, so the frames around an unreadable frame show which offsets it had.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from uuid import UUID

from logstore.inspection.journal import LostRange
from logstore.inspection.table_check import Tails


@dataclass(frozen=True, slots=True)
class Table:
    """A topic's table: its name, and the sealed offset of each partition."""

    topic: str
    sealed: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class TakenOut:
    """Offsets of one partition in the part of a journal that a repair takes out.

    ``sealed_offset`` is None if no table has the topic's id. ``lost`` is the range of offsets (its end is exclusive)
    that no table and no frame before the damage has; None if there is none, and for a topic that was deleted.
    """

    topic: str | None
    topic_id: UUID
    partition: int
    first_offset: int
    end_offset: int
    sealed_offset: int | None
    deleted: bool
    lost: tuple[int, int] | None


def taken_out(
    ranges: Iterable[LostRange], kept: Tails, tables: Mapping[UUID, Table], deleted: AbstractSet[UUID]
) -> list[TakenOut]:
    """Return the offsets that a repair takes out, by topic and partition. ``kept`` are the tails of the frames before
    the damage.
    """
    found = []
    for r in ranges:
        table = tables.get(r.topic_id)
        sealed = None if table is None else table.sealed.get(r.partition, 0)
        is_deleted = table is None and r.topic_id in deleted
        tail = kept.get((r.topic_id, r.partition))
        if sealed is None:
            # Without a table, only the frames that stay show what existed before the damage.
            start = r.first_offset if tail is None else min(r.first_offset, tail.end_offset)
        else:
            start = sealed if tail is None else tail.index.whole_to(sealed)
        lost = (start, r.end_offset) if start < r.end_offset and not is_deleted else None
        found.append(
            TakenOut(
                None if table is None else table.topic,
                r.topic_id,
                r.partition,
                r.first_offset,
                r.end_offset,
                sealed,
                is_deleted,
                lost,
            )
        )
    return sorted(found, key=lambda one: (one.topic or f"~{one.topic_id}", one.partition))
