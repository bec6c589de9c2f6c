"""One version of a topic's Delta table, and its invariants.

They are checked where they are relied on: every partition below ``logstore.partitions`` has a ``sealed`` transaction;
active files of a partition stand for ranges of offsets that do not overlap and end at ``sealed`` or below. A breach,
for example by a foreign append, is a CorruptionError with the names of the files: no record is served twice.

The name of a file says its range [base, end), with records or without. Names of earlier releases and of other writers
do not say it; the range of such a file is that of its records, as its statistics have them.
"""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.delta.log_entries import LogState
from logstore.delta.plain_entries import AddedFile, PlainTable
from logstore.delta.schema import (
    CLEANED,
    EPOCH,
    FORBIDDEN_PROPERTY,
    PARTITIONS_PROPERTY,
    PROPERTY_PREFIX,
    REWRITE,
    SEALED,
    START,
    TOPIC_PROPERTY,
    app_id,
)
from logstore.errors import CorruptionError
from logstore.segments.names import Flags, NameColumns, Numbers, known_segment_name, parse_segment_names, unknown_name

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The facts of a partition, all offsets but ``leader_epoch`` (of the last roll) and ``rewrite`` (a counter)."""

    sealed: int
    leader_epoch: int
    log_start: int
    rewrite: int
    cleaned: int


class SegmentFile(NamedTuple):
    """An active file as its name and its add action describe it: it stands for [base_offset, end_offset).

    Bounds of its records are inclusive; timestamps are rounded outwards to ms. All four are -1 if it has none. A tuple,
    because a snapshot makes one of every file.
    """

    path: str
    size: int
    num_records: int
    base_offset: int
    end_offset: int
    min_offset: int
    max_offset: int
    min_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Removal:
    """An active file that a commit takes out of the table."""

    path: str
    size: int
    partition: int


@dataclass(frozen=True)
class TopicSnapshot:
    """``config_overrides`` are the ``logstore.*`` properties without the prefix; an empty value means unset."""

    location: str
    version: int
    topic_id: uuid.UUID
    #: The table's property ``logstore.topic``; None if the table has none.
    topic_name: str | None
    num_partitions: int
    config_overrides: dict[str, str]
    partitions: dict[int, PartitionState]
    log: LogState
    properties: dict[str, str]
    protocol: tuple[int, int]
    _added: "_Added"

    def segments(self, partition: int) -> tuple[SegmentFile, ...]:
        """Active files of a partition by rising offset. CorruptionError if the invariants do not hold."""
        known = self._segments.get(partition)
        if known is None:
            known = self._segments[partition] = self._parse(partition)
        return known

    def check(self, partition: int) -> None:
        """CorruptionError if the active files of a partition break the invariants; no file is opened.

        A sound partition is looked at once: every roll asks several times.
        """
        if partition not in self._sound:
            self._check(partition)
            self._sound.add(partition)

    def _check(self, partition: int) -> None:
        columns = self._columns
        rows = columns.rows_of(partition)
        if not len(rows):
            return
        for row in rows[columns.unknown[rows]]:
            raise unknown_name(f"{self.location}: {columns.path(row)}")
        for row in rows[columns.incomplete[rows]]:
            raise CorruptionError(
                f"{self.location}: {columns.path(row)} has no statistics of offset and timestamp: "
                "a foreign write; remove the file from the table (DELETE) to go on"
            )
        for row in rows[columns.misnamed[rows]]:
            raise CorruptionError(
                f"{self.location}: {columns.path(row)} has statistics of offsets that are not in the range of its "
                "name: not what a roll or a job committed. Restore _delta_log from a backup"
            )
        ends = columns.end[rows]
        for at in np.nonzero(columns.base[rows][1:] < ends[:-1])[0]:
            raise CorruptionError(
                f"{self.location}: {columns.path(rows[at + 1])} and {columns.path(rows[at])} overlap in offset: "
                "the records of one of them would be served twice. Remove the foreign one from the table (DELETE)"
            )
        sealed = self.partitions[partition].sealed
        if ends[-1] > sealed:
            raise CorruptionError(
                f"{self.location}: {columns.path(rows[-1])} reaches offset {ends[-1] - 1}, but partition {partition} "
                f"is sealed up to {sealed}: a foreign write. Remove the file from the table (DELETE) to go on"
            )

    @property
    def transactions(self) -> dict[str, int]:
        return self.log.transactions

    @property
    def tombstones(self) -> frozenset[str]:
        """Paths of files that earlier commits removed."""
        return self.log.tombstones

    @cached_property
    def paths(self) -> frozenset[str]:
        """Paths of all active files, relative to the table."""
        return frozenset(self._added.paths.to_pylist())

    def uncovered(self, partition: int, start: int) -> list[tuple[int, int]]:
        """Ranges from ``start`` to ``sealed`` that no active file stands for; they must not overlap (``check``)."""
        columns = self._columns
        rows = columns.rows_of(partition)
        sealed = self.partitions[partition].sealed
        begins = np.append(columns.base[rows], sealed)
        ends = np.maximum(np.append(start, columns.end[rows]), start)
        gaps = np.flatnonzero(begins > ends)
        return list(zip(ends[gaps].tolist(), begins[gaps].tolist(), strict=True))

    def touches_unnamed(self, partition: int, start: int, end: int) -> bool:
        """Whether the name of a file that ends where the gap [start, end) begins, or begins where it ends, does not
        tell its range: compaction of an earlier release may have left the gap.
        """
        columns = self._columns
        rows = columns.rows_of(partition)
        beside = (columns.end[rows] == start) | (columns.base[rows] == end)
        return bool((beside & ~columns.named[rows]).any())

    def ranges(self) -> dict[str, tuple[int, int, int]]:
        """Partition, base offset and end of every active file of a known range, by path."""
        columns = self._columns
        rows = np.flatnonzero(~columns.incomplete)
        paths = columns.paths.take(pa.array(rows)).to_pylist()
        values = (columns.partition[rows], columns.base[rows], columns.end[rows])
        return dict(zip(paths, zip(*(column.tolist() for column in values), strict=True), strict=True))

    def foreign_removals(self) -> tuple[Removal, ...]:
        """Active files that logstore did not write, of a partition that the topic does not have, or with names of ours
        that reach beyond ``sealed``: no roll has committed them. A file that a later release named is none of these.
        """
        columns = self._columns
        not_there = columns.partition >= self.num_partitions
        sealed = np.array([state.sealed for _, state in sorted(self.partitions.items())], dtype=np.int64)
        beyond = columns.end > sealed[np.where(not_there, 0, columns.partition)]
        rows = np.flatnonzero((columns.foreign | not_there | beyond) & ~columns.unknown)
        paths = columns.paths.take(pa.array(rows)).to_pylist()
        return tuple(map(Removal, paths, columns.size[rows].tolist(), columns.partition[rows].tolist()))

    def lost_since(self, earlier: "TopicSnapshot") -> tuple[str, ...]:
        """Files of ours that ``earlier`` shows and this version does not, though no commit removed them.

        A foreign commit overwrote the one that added them (rule R7), or one of a job that did. ``earlier`` must be
        younger than ``TOMBSTONES_KEPT_MS``.
        """
        gone = earlier.paths - self.paths - self.tombstones
        return tuple(sorted(path for path in gone if known_segment_name(path) is not None))

    @cached_property
    def _columns(self) -> "_Columns":
        return _Columns(self._added)

    @cached_property
    def _sound(self) -> set[int]:
        return set()

    @cached_property
    def _segments(self) -> dict[int, tuple[SegmentFile, ...]]:
        return {}

    def _parse(self, partition: int) -> tuple[SegmentFile, ...]:
        self.check(partition)
        columns = self._columns
        rows = columns.rows_of(partition)
        fields = (
            columns.paths.take(pa.array(rows)).to_pylist(),
            *(
                values[rows].tolist()
                for values in (
                    columns.size,
                    columns.num_records,
                    columns.base,
                    columns.end,
                    columns.min_offset,
                    columns.max_offset,
                    columns.min_timestamp_us // 1000,
                    -(-columns.max_timestamp_us // 1000),
                )
            ),
        )
        return tuple(map(SegmentFile._make, zip(*fields, strict=True)))


#: -1 ms.
_NO_TIMESTAMP_US = -1000
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Added:
    """Add actions as columns in any order, with what the names say; -1 and ``_NO_TIMESTAMP_US`` stand for no value."""

    paths: pa.StringArray
    names: NameColumns
    partition: Numbers
    size: Numbers
    num_records: Numbers
    min_offset: Numbers
    max_offset: Numbers
    min_timestamp_us: Numbers
    max_timestamp_us: Numbers
    #: All statistics are there.
    complete: Flags


def _added_of_actions(actions: pa.Table) -> _Added:
    """Of the add actions that delta-rs hands out."""
    paths = actions.column("path").combine_chunks()
    complete = np.ones(len(paths), dtype=bool)
    for name in ("num_records", "min.offset", "max.offset", "min.timestamp", "max.timestamp"):
        complete &= actions.column(name).is_valid().to_numpy() if name in actions.column_names else False
    return _Added(
        paths,
        parse_segment_names(paths),
        _numbers(actions, "partition.partition"),
        _numbers(actions, "size_bytes", 0),
        _numbers(actions, "num_records"),
        _numbers(actions, "min.offset"),
        _numbers(actions, "max.offset"),
        _numbers(actions, "min.timestamp", _NO_TIMESTAMP_US),
        _numbers(actions, "max.timestamp", _NO_TIMESTAMP_US),
        complete,
    )


def _added_of_files(files: Sequence[AddedFile]) -> _Added:
    """Of the files in plain entries: their names are known, and of this release's form."""
    every = np.ones(len(files), dtype=bool)

    def numbers(missing: int, values: Iterable[int | None]) -> Numbers:
        return np.array([missing if value is None else value for value in values], dtype=np.int64)

    return _Added(
        pa.array([file.path for file in files], pa.string()),
        NameColumns(
            ours=every,
            unknown=~every,
            has_range=every,
            base=numbers(-1, (file.base_offset for file in files)),
            end=numbers(-1, (file.end_offset for file in files)),
        ),
        numbers(-1, (file.partition for file in files)),
        numbers(0, (file.size for file in files)),
        numbers(-1, (file.num_records for file in files)),
        numbers(-1, (file.min_offset for file in files)),
        numbers(-1, (file.max_offset for file in files)),
        numbers(_NO_TIMESTAMP_US, (file.min_timestamp_us for file in files)),
        numbers(_NO_TIMESTAMP_US, (file.max_timestamp_us for file in files)),
        np.array([file.min_offset is not None for file in files], dtype=bool),
    )


class _Columns:
    """Add actions as numpy columns, ordered by partition and base offset: rows of a partition are adjacent."""

    def __init__(self, added: _Added) -> None:
        names, first, last = added.names, added.min_offset, added.max_offset
        base = np.where(names.has_range, names.base, first)
        order = np.lexsort((base, added.partition))
        self.partition = added.partition[order]
        self.paths = added.paths.take(pa.array(order))
        self.size = added.size[order]
        self.num_records = added.num_records[order]
        self.base = base[order]
        # Behind the largest int64 there is none.
        self.end = np.where(names.has_range, names.end, np.minimum(last, _OFFSET_MAX - 1) + 1)[order]
        self.min_offset, self.max_offset = first[order], last[order]
        self.min_timestamp_us = added.min_timestamp_us[order]
        self.max_timestamp_us = added.max_timestamp_us[order]
        empty = names.has_range & (added.num_records == 0)
        self.unknown = names.unknown[order]
        #: The name tells the range.
        self.named = names.has_range[order]
        self.foreign = ~names.ours[order]
        #: Neither known records nor an empty range.
        self.incomplete = ~(added.complete | empty)[order]
        #: Records outside the file's range.
        self.misnamed = (names.has_range & ~empty & ((first < names.base) | (last >= names.end)))[order]

    def rows_of(self, partition: int) -> Numbers:
        low, high = np.searchsorted(self.partition, [partition, partition + 1])
        return np.arange(low, high)

    def path(self, row: int) -> str:
        return str(self.paths[int(row)].as_py())


def _numbers(actions: pa.Table, name: str, missing: int = -1) -> Numbers:
    if name not in actions.column_names:
        return np.full(actions.num_rows, missing, dtype=np.int64)
    column = actions.column(name)
    # With few files each of these steps takes longer than plain numbers, even with nothing to do.
    if pa.types.is_timestamp(column.type) and column.type.unit != "us":
        column = column.cast(pa.timestamp("us", "UTC"))
    if column.type != pa.int64():
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(missing)
    values: Numbers = column.to_numpy()
    return values


def read_snapshot(table: "DeltaTable", log: LogState, location: str) -> TopicSnapshot:
    """The snapshot of a freshly opened handle; ``log`` is the log up to its version, ``location`` the table's for
    messages. CorruptionError if an invariant is broken.
    """
    metadata = table.metadata()
    protocol = table.protocol()
    return _snapshot(
        location,
        table.version(),
        str(metadata.id),
        dict(metadata.configuration),
        (protocol.min_reader_version, protocol.min_writer_version),
        log,
        _added_of_actions(pa.table(table.get_add_actions(flatten=True))),
    )


def plain_snapshot(table: PlainTable, log: LogState, location: str) -> TopicSnapshot:
    """As ``read_snapshot``, of a log of plain entries."""
    added = _added_of_files(table.files)
    return _snapshot(location, log.version, table.table_id, table.properties, table.protocol, log, added)


def _snapshot(
    location: str,
    version: int,
    table_id: str,
    properties: dict[str, str],
    protocol: tuple[int, int],
    log: LogState,
    added: _Added,
) -> TopicSnapshot:
    count = properties.get(PARTITIONS_PROPERTY, "")
    in_log = _partitions_in(log)
    try:
        num_partitions = int(count)
        topic_id = uuid.UUID(table_id)
    except ValueError:
        num_partitions, topic_id = -1, uuid.UUID(int=0)
    if num_partitions < 1 or num_partitions < (in_log or 0):
        raise CorruptionError(
            f"{location}: its table property {PARTITIONS_PROPERTY} is '{count}', the log has "
            f"{in_log or 'no'} partitions.{_set_partitions(location, in_log) if in_log else ' It is not a topic'}"
        )
    partitions = {}
    for partition in range(num_partitions):
        sealed = log.transactions.get(app_id(partition, SEALED))
        if sealed is None:
            raise CorruptionError(
                f"{location}: version {version} has no transaction {app_id(partition, SEALED)!r}; was "
                f"{FORBIDDEN_PROPERTY} set on it? Then restore _delta_log from a backup. Or is {PARTITIONS_PROPERTY} "
                f"too high, with '{count}'?{_set_partitions(location, in_log) if in_log else ''}"
            )
        epoch, start, rewrite, cleaned = (
            log.transactions.get(app_id(partition, fact), 0) for fact in (EPOCH, START, REWRITE, CLEANED)
        )
        partitions[partition] = PartitionState(sealed, epoch, start, rewrite, cleaned)
    overrides = {
        key.removeprefix(PROPERTY_PREFIX): value
        for key, value in properties.items()
        if key.startswith(PROPERTY_PREFIX) and key not in {PARTITIONS_PROPERTY, TOPIC_PROPERTY}
    }
    return TopicSnapshot(
        location=location,
        version=version,
        topic_id=topic_id,
        topic_name=properties.get(TOPIC_PROPERTY) or None,
        num_partitions=num_partitions,
        config_overrides=overrides,
        partitions=partitions,
        log=log,
        properties=properties,
        protocol=protocol,
        _added=added,
    )


def _partitions_in(log: LogState) -> int | None:
    """The number of partitions that the transactions name; None if they name none."""
    sealed = {app for app in log.transactions if app.endswith(f"/{SEALED}")}
    count = len(sealed)
    return count if count and sealed == {app_id(partition, SEALED) for partition in range(count)} else None


def _set_partitions(location: str, count: int) -> str:
    return f" Run in Spark: ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('{PARTITIONS_PROPERTY}' = '{count}')"
