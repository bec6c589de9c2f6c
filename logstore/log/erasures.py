"""Decides from the records of ``__erasures`` which records of a topic were erased.

An erasure covers records that existed when it was requested: below an end offset in each partition, and appended by
leaders up to an epoch. Records that come later have a higher offset, or, after a backup was restored, the same offset
and a higher epoch. They are new records, whatever their keys.

Invariant: whether a record was erased depends only on its partition, offset, leader epoch and key, so that a start, a
repetition and a restored backup give the same result.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.records.erasure_record import ErasedPartition, Erasure, exact_hash, parse_hashes, seed_of
from logstore.records.key_texts import canonical_keys, respelled_rows
from logstore.records.log_batches import int64_values
from logstore.records.murmur2 import murmur2_column
from logstore.records.where.evaluation import Where
from logstore.records.where.expression import And, Comparison, Node, Not, Or, Path, is_plain, text_of

Mask = npt.NDArray[np.bool_]
#: (epoch, start offset), rising: ``SegmentFooter.leader_epochs``.
LeaderEpochs = Sequence[tuple[int, int]]


class Selects(Protocol):
    """Selects the records of a topic that are to be erased."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of LOG_SCHEMA that ``mask`` needs, including ``offset``."""
        ...

    def limit(self, partition: int, epochs: LeaderEpochs) -> int:
        """Return the offset from which on no record is selected, for records with these leader epochs."""
        ...

    def touches(self, partition: int, first: int, last: int) -> bool:
        """Return whether a record with an offset from ``first`` to ``last`` may be selected."""
        ...

    def mask(self, partition: int, batch: pa.RecordBatch, limit: int) -> Mask:
        """Mark the selected rows of a batch with ``columns`` and rising offsets; none from the offset ``limit`` on."""
        ...


class HashedKeys:
    """The keys of an erasure, by their hashes."""

    def __init__(self, salt: str, hashes: Iterable[str]) -> None:
        self._secret, self._seed = bytes.fromhex(salt), seed_of(salt)
        self._quick, self._exact = parse_hashes(hashes)

    def mask(self, keys: pa.BinaryArray) -> Mask:
        """Mark the keys that belong to the erasure; a null key never does.

        A key that is a JSON string belongs to it if the canonical text of this string was hashed.
        """
        found = self._hashed(keys)
        rows = respelled_rows(keys)
        if len(rows):
            found[rows] |= self._hashed(canonical_keys(keys.take(pa.array(rows))))
        return found

    def _hashed(self, keys: pa.BinaryArray) -> Mask:
        quick = murmur2_column(keys, self._seed)
        at = np.searchsorted(self._quick, quick)
        found: Mask = self._quick[np.minimum(at, len(self._quick) - 1)] == quick
        if keys.null_count:
            found &= keys.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(found)
        if len(rows):
            # A key that many records have is hashed once.
            encoded = pc.dictionary_encode(keys.take(pa.array(rows)))
            exact = np.array([exact_hash(key, self._secret) in self._exact for key in encoded.dictionary.to_pylist()])
            found[rows] = exact[encoded.indices.to_numpy()]
        return found


class KnownBounds:
    """The part of each partition that an erasure may cover."""

    def __init__(self, partitions: Iterable[ErasedPartition]) -> None:
        self._partitions = {one.partition: one for one in partitions}

    def end_offset(self, partition: int) -> int:
        """Return the offset from which on the erasure covers no record."""
        found = self._partitions.get(partition)
        return 0 if found is None else found.end_offset

    def limit(self, partition: int, epochs: LeaderEpochs) -> int:
        """Return ``end_offset`` as it is for records with these leader epochs."""
        found = self._partitions.get(partition)
        if found is None:
            return 0
        later = (start for epoch, start in epochs if epoch > found.leader_epoch)
        return min(found.end_offset, next(later, found.end_offset))


class KnownErasure:
    """An erasure as readers of a table use it."""

    def __init__(self, record: Erasure) -> None:
        self.record = record
        self.topic_id = UUID(record.topic_id)
        self.number = record.number
        self._bounds = KnownBounds(record.partitions)
        #: The starts and ends of the offset ranges, by partition.
        self._offsets = {
            one.partition: np.array(one.offsets, dtype=np.int64).reshape(-1, 2).T
            for one in record.partitions
            if one.offsets is not None
        }
        self._keys = HashedKeys(record.salt, record.keys) if record.keys else None

    @property
    def columns(self) -> Sequence[str]:
        return ("offset",) if self._keys is None else ("offset", "key")

    def end_offset(self, partition: int) -> int:
        """Do the same as ``KnownBounds.end_offset``."""
        return self._bounds.end_offset(partition)

    def limit(self, partition: int, epochs: LeaderEpochs) -> int:
        """Do the same as ``Selects.limit``."""
        return self._bounds.limit(partition, epochs)

    def touches(self, partition: int, first: int, last: int) -> bool:
        """Do the same as ``Selects.touches``."""
        if first >= self._bounds.end_offset(partition):
            return False
        if (ranges := self._offsets.get(partition)) is None:
            return True
        starts, ends = ranges
        return bool(np.searchsorted(ends, first, side="right") < np.searchsorted(starts, last, side="right"))

    def mask(self, partition: int, batch: pa.RecordBatch, limit: int) -> Mask:
        """Do the same as ``Selects.mask``."""
        offsets = int64_values(batch.column("offset"))
        count = int(np.searchsorted(offsets, limit))
        found: Mask = np.zeros(len(offsets), dtype=bool)
        if not count:
            return found
        if (ranges := self._offsets.get(partition)) is not None:
            starts, ends = ranges
            at = np.searchsorted(starts, offsets[:count], side="right") - 1
            found[:count] = (at >= 0) & (offsets[:count] < ends[at]) if len(ends) else False
        if self._keys is not None:
            found[:count] |= self._keys.mask(batch.column("key").slice(0, count))
        return found


class SelectedNow:
    """The records that an expression selects, up to the ends of the partitions at the time of the request."""

    def __init__(self, partitions: Sequence[ErasedPartition], where: Where) -> None:
        self._bounds = KnownBounds(partitions)
        self._where = where

    @property
    def columns(self) -> Sequence[str]:
        return ("offset", *(self._where.columns - {"offset"}))

    def limit(self, partition: int, epochs: LeaderEpochs) -> int:
        """Do the same as ``Selects.limit``."""
        return self._bounds.limit(partition, epochs)

    def touches(self, partition: int, first: int, last: int) -> bool:  # noqa: ARG002  of the protocol
        """Do the same as ``Selects.touches``."""
        return first < self._bounds.end_offset(partition)

    def mask(self, partition: int, batch: pa.RecordBatch, limit: int) -> Mask:  # noqa: ARG002
        """Do the same as ``Selects.mask``."""
        count = int(np.searchsorted(int64_values(batch.column("offset")), limit))
        found: Mask = np.zeros(batch.num_rows, dtype=bool)
        if count:
            found[:count] = self._where.mask(batch.slice(0, count)).to_numpy(zero_copy_only=False)
        return found


def hidden_literals(node: Node, salt: str) -> str:
    """Return an expression as text, with a salted hash in place of each value and of each field name in brackets:
    objects may use data as names, as in ``$.users["ada@example.org"]``.
    """
    secret = bytes.fromhex(salt)

    def hidden(value: object) -> str:
        return f"#{exact_hash(repr(value).encode(), secret).hex()}"

    def without_names(part: Node) -> Node:
        match part:
            case Comparison(Path(steps), operator, value):
                shown = (step if is_plain(step) else hidden(step) for step in steps)
                return Comparison(Path(tuple(shown)), operator, value)
            case Not(inner):
                return Not(without_names(inner))
            case And(parts):
                return And(tuple(map(without_names, parts)))
            case Or(parts):
                return Or(tuple(map(without_names, parts)))
        return part

    return text_of(without_names(node), hidden)


def ranges_of(offsets: npt.NDArray[np.int64]) -> tuple[tuple[int, int], ...]:
    """Return ``offsets``, which rise and are unique, as ranges [start, end)."""
    if not len(offsets):
        return ()
    breaks = np.flatnonzero(np.diff(offsets) > 1)
    starts = offsets[np.append(0, breaks + 1)]
    ends = offsets[np.append(breaks, len(offsets) - 1)] + 1
    return tuple(zip(starts.tolist(), ends.tolist(), strict=True))


@dataclass(slots=True)
class TableErasure:
    """The result of an erasure in one table. ``versions`` are the commits that removed ``records`` from the table and
    replaced ``rewritten`` files. ``unserved`` says why a file that may still have some of the records is not served.
    """

    records: int = 0
    rewritten: int = 0
    versions: list[int] = field(default_factory=list)
    unserved: str = ""


@dataclass(frozen=True, slots=True)
class ErasedUpTo:
    """The erasures of one topic that its table must include, by rising number."""

    erasures: tuple[KnownErasure, ...]

    @property
    def number(self) -> int:
        return self.erasures[-1].number

    def end_offset(self, partition: int) -> int:
        return max(erasure.end_offset(partition) for erasure in self.erasures)


class ErasureLog:
    """All erasures by id, with the newest record of each, and by topic.

    Other threads read it, so its contents are replaced as a whole.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, KnownErasure] = {}
        self._committed: Mapping[UUID, ErasedUpTo] = {}
        #: Erasures that were repeated because records had come back, by topic; the code that reports one removes it.
        self.came_back: deque[tuple[UUID, TableErasure]] = deque()

    def take(self, records: Iterable[Erasure]) -> None:
        """Add records in their order."""
        by_id = dict(self.by_id)
        for record in records:
            by_id[record.id] = KnownErasure(record)
        committed: dict[UUID, list[KnownErasure]] = {}
        for erasure in by_id.values():
            if erasure.record.state != "started":
                committed.setdefault(erasure.topic_id, []).append(erasure)
        self.by_id = by_id
        self._committed = {
            topic_id: ErasedUpTo(tuple(sorted(found, key=lambda one: one.number)))
            for topic_id, found in committed.items()
        }

    def committed(self, topic_id: UUID) -> ErasedUpTo | None:
        """Return the erasures that have a commit in the topic's table; None if it has none, like most topics."""
        return self._committed.get(topic_id)

    def of_topic(self, topic_id: UUID) -> list[KnownErasure]:
        """Return all erasures of a topic, by rising number."""
        found = [one for one in self.by_id.values() if one.topic_id == topic_id]
        return sorted(found, key=lambda one: one.number)

    def unfinished(self) -> list[KnownErasure]:
        """Return the erasures that are not ``erased``, by rising number."""
        found = [one for one in self.by_id.values() if one.record.state != "erased"]
        return sorted(found, key=lambda one: one.number)


def bounds_of(ends: Mapping[int, int], epochs: Mapping[int, int]) -> tuple[ErasedPartition, ...]:
    """Return the bounds of an erasure that is requested now."""
    return tuple(ErasedPartition(partition, end, epochs[partition]) for partition, end in sorted(ends.items()))
