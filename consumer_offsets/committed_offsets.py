"""The committed offsets of one partition of ``__consumer_offsets``, in about 150 bytes a key instead of a few objects.

A row of one table of numbers is a key (group, topic, partition) with its latest commit. Names and topic ids are
interned. The rows of a group are linked, so that a group is read without a look at other groups. A dict finds every row
but the first of each group, which the group itself points to: most groups have either one row or many. Invariants
(``validate``): of two records of a key the one with the higher offset in the log counts; a name is held as long as a
row names it; rows of deleted keys are used again.

Offsets that a transaction has committed are *pending*, by producer: they count once its marker commits them, and then
at the log offset of their own record.
"""

import struct
from array import array
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar

import numpy as np

from logstore.protocol.members.identity import TopicPartition as TopicPartition  # noqa: PLC0414 (given on)
from logstore.records.offset_record import OffsetCommit, OffsetKey

T = TypeVar("T", bound=Hashable)

#: The producer id of records outside transactions.
NO_PRODUCER_ID: Final = -1

_NONE: Final = -1
# A key is one integer: the index of the group above the index of the topic and partition.
_BITS: Final = 31
# One call packs or unpacks a row; numpy looks at a column of all rows. A free row has no group.
_ROW: Final = struct.Struct("<3q5i")
_COLUMNS: Final = np.dtype(
    [
        ("log_offset", "<i8"),
        ("offset", "<i8"),
        ("commit_timestamp", "<i8"),
        ("leader_epoch", "<i4"),
        ("generation", "<i4"),
        ("group", "<i4"),
        ("place", "<i4"),
        ("topic_id", "<i4"),
    ]
)
_FREE: Final = _ROW.pack(0, 0, 0, 0, 0, _NONE, _NONE, _NONE)


class _Interned(Generic[T]):
    """Values by a small index, which are kept as long as somebody holds them."""

    __slots__ = ("_free", "_holders", "_values", "indexes")

    def __init__(self) -> None:
        #: The index of each value that is held.
        self.indexes: dict[T, int] = {}
        self._values: list[T | None] = []
        self._holders = array("i")
        self._free = array("i")

    def __getitem__(self, index: int) -> T:
        value = self._values[index]
        assert value is not None, index
        return value

    def hold(self, value: T) -> int:
        index = self.indexes.get(value, _NONE)
        if index == _NONE:
            if self._free:
                index = self._free.pop()
                self._values[index] = value
            else:
                index = len(self._values)
                self._values.append(value)
                self._holders.append(0)
            self.indexes[value] = index
        self._holders[index] += 1
        return index

    def release(self, index: int) -> None:
        self._holders[index] -= 1
        if not self._holders[index]:
            del self.indexes[self[index]]
            self._values[index] = None
            self._free.append(index)


class CommittedOffsets:
    def __init__(self) -> None:
        self._groups: _Interned[str] = _Interned()
        self._places: _Interned[TopicPartition] = _Interned()
        self._topic_ids: _Interned[str] = _Interned()
        #: The row of each key, without the first row of each group.
        self._rows: dict[int, int] = {}
        self._table = bytearray()
        self._free = array("i")
        #: The metadata of a row: few commits have any.
        self._metadata: dict[int, str] = {}
        # The rows of a group are a list with links to both sides, which begins at the group's index in ``_first``.
        self._first, self._next, self._previous = array("i"), array("i"), array("i")
        self._pending: dict[int, dict[OffsetKey, tuple[int, OffsetCommit | None]]] = {}

    def __len__(self) -> int:
        """Return the number of committed offsets."""
        return len(self._next) - len(self._free)

    # ---- reading ----------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the groups with a committed offset."""
        return list(self._groups.indexes)

    def commits(self, group: str) -> dict[TopicPartition, OffsetCommit]:
        """Return the commits of the group, without the pending ones."""
        found: dict[TopicPartition, OffsetCommit] = {}
        for row in self._rows_of(group):
            _, offset, timestamp, epoch, generation, _, place, topic_id = self._row(row)
            found[self._places[place]] = OffsetCommit(
                offset, epoch, self._metadata.get(row, ""), generation, self._topic_ids[topic_id], timestamp
            )
        return found

    def keys(self, group: str) -> list[TopicPartition]:
        """Return the keys of ``commits``."""
        return [self._places[self._row(row)[6]] for row in self._rows_of(group)]

    def pending(self, group: str) -> set[TopicPartition]:
        """Return the partitions for which an open transaction has committed an offset."""
        return {
            TopicPartition(key.topic, key.partition)
            for keys in self._pending.values()
            for key in keys
            if key.group == group
        }

    def expired(self, before_ms: int) -> list[str]:
        """Return the groups with a commit that is older than ``before_ms``."""
        columns = self._columns()
        return self._groups_of(columns, columns["commit_timestamp"] < before_ms)

    def of_topic(self, topic: str) -> list[str]:
        """Return the groups with a commit to the topic, whatever its id was."""
        columns = self._columns()
        places = [index for place, index in self._places.indexes.items() if place.topic == topic]
        return self._groups_of(columns, np.isin(columns["place"], places))

    def current(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Return the groups with a commit to one of the topics, by name, while it had that id."""
        columns = self._columns()
        return self._groups_of(columns, self._are_current(columns, topic_ids))

    def stale(self, topic_ids: Mapping[str, str]) -> list[str]:
        """Return the groups with a commit to any other topic, or to one of the topics while it had another id."""
        columns = self._columns()
        return self._groups_of(columns, ~self._are_current(columns, topic_ids))

    def _columns(self) -> Any:
        return np.frombuffer(self._table, _COLUMNS)

    def _are_current(self, columns: Any, topic_ids: Mapping[str, str]) -> Any:
        wanted = np.full(max(self._places.indexes.values(), default=_NONE) + 1, _NONE, np.int32)
        for place, index in self._places.indexes.items():
            topic_id = topic_ids.get(place.topic)
            if topic_id is not None:
                wanted[index] = self._topic_ids.indexes.get(topic_id, _NONE)
        used = columns["group"] != _NONE
        # The place of a free row is -1, which indexes the last place; so its group is checked.
        return used & (wanted[columns["place"]] == columns["topic_id"]) if len(wanted) else used

    def _groups_of(self, columns: Any, rows: Any) -> list[str]:
        groups = columns["group"][rows & (columns["group"] != _NONE)]
        return [self._groups[index] for index in np.unique(groups).tolist()]

    def _row(self, row: int) -> tuple[int, ...]:
        """Return the values of the row, in the order of _COLUMNS."""
        return _ROW.unpack_from(self._table, row * _ROW.size)

    def _rows_of(self, group: str) -> Iterator[int]:
        index = self._groups.indexes.get(group, _NONE)
        row = _NONE if index == _NONE else self._first[index]
        while row != _NONE:
            yield row
            row = self._next[row]

    # ---- following the log, in its order ----------------------------------------------------------------------------

    def replay(
        self, log_offset: int, key: OffsetKey, commit: OffsetCommit | None, producer_id: int = NO_PRODUCER_ID
    ) -> None:
        """Apply a record of the log at ``log_offset``: a commit, or a deletion (None). With a producer id it is
        pending.
        """
        if producer_id != NO_PRODUCER_ID:
            self._pending.setdefault(producer_id, {})[key] = log_offset, commit
            return
        self._store(log_offset, key, commit)

    def replay_marker(self, producer_id: int, *, committed: bool) -> None:
        """End the producer's transaction: its offsets count from now on, or are forgotten."""
        ended = self._pending.pop(producer_id, {})
        if committed:
            for key, (log_offset, commit) in ended.items():
                self._store(log_offset, key, commit)

    def _store(self, log_offset: int, key: OffsetKey, commit: OffsetCommit | None) -> None:
        named = TopicPartition(key.topic, key.partition)
        group, place = self._groups.indexes.get(key.group, _NONE), self._places.indexes.get(named, _NONE)
        row = _NONE if _NONE in (group, place) else self._find(group, place)
        before = None if row == _NONE else self._row(row)
        if before is not None and before[0] > log_offset:
            return
        if commit is None:
            # Earlier commits of open transactions are deleted as well: no row is left whose log offset would outrank
            # them.
            for keys in self._pending.values():
                if key in keys and keys[key][0] < log_offset:
                    del keys[key]
            if before is not None:
                self._remove(row, before)
            return
        topic_id = self._topic_ids.hold(commit.topic_id)
        if before is None:
            group, place = self._groups.hold(key.group), self._places.hold(named)
            row = self._add(group, place)
        else:
            # The id is released after the hold, because it is mostly the same topic.
            self._topic_ids.release(before[7])
        _ROW.pack_into(
            self._table,
            row * _ROW.size,
            log_offset,
            commit.offset,
            commit.commit_timestamp,
            commit.leader_epoch,
            commit.generation,
            group,
            place,
            topic_id,
        )
        if commit.metadata:
            self._metadata[row] = commit.metadata
        elif before is not None:
            self._metadata.pop(row, None)

    def _find(self, group: int, place: int) -> int:
        first = self._first[group]
        return first if self._row(first)[6] == place else self._rows.get(group << _BITS | place, _NONE)

    def _add(self, group: int, place: int) -> int:
        """Return a row for the key, linked behind the first row of its group."""
        if self._free:
            row = self._free.pop()
        else:
            row = len(self._next)
            self._table += _FREE
            self._next.append(_NONE)
            self._previous.append(_NONE)
        if group == len(self._first):
            self._first.append(_NONE)
        first = self._first[group]
        if first == _NONE:
            self._first[group] = row
            self._previous[row] = self._next[row] = _NONE
            return row
        following = self._next[first]
        self._previous[row], self._next[row] = first, following
        if following != _NONE:
            self._previous[following] = row
        self._next[first] = row
        self._rows[group << _BITS | place] = row
        return row

    def _remove(self, row: int, values: tuple[int, ...]) -> None:
        *_, group, place, topic_id = values
        previous, following = self._previous[row], self._next[row]
        if following != _NONE:
            self._previous[following] = previous
        if previous != _NONE:
            self._next[previous] = following
            del self._rows[group << _BITS | place]
        else:
            self._first[group] = following
            if following != _NONE:
                del self._rows[group << _BITS | self._row(following)[6]]
        self._groups.release(group)
        self._places.release(place)
        self._topic_ids.release(topic_id)
        self._table[row * _ROW.size : (row + 1) * _ROW.size] = _FREE
        self._metadata.pop(row, None)
        self._free.append(row)

    def validate(self) -> None:
        """Assert the invariants. Only tests call it, because it looks at every row."""
        assert len(self._table) == _ROW.size * len(self._next)
        linked = [(group, row, self._row(row)) for group in self.groups() for row in self._rows_of(group)]
        used = {row for _, row, _ in linked}
        assert len(self._next) == len(self._previous) == len(linked) + len(self._free)
        assert len(used) == len(linked) == len(self)
        assert used.isdisjoint(self._free)
        assert set(self._metadata) <= used
        assert set(self._rows.values()) == used - set(self._first)
        assert len(self._rows) == len(linked) - len(self.groups())
        for group, row, (*_, index, place, _) in linked:
            assert self._groups[index] == group
            assert self._find(index, place) == row
        assert len(self._places.indexes) == len({values[6] for *_, values in linked})
        assert len(self._topic_ids.indexes) == len({values[7] for *_, values in linked})
