"""One version of a topic's Delta table, and its invariants.

They are checked where they are relied on: every partition below ``logstore.partitions`` has a ``sealed`` transaction;
segments of a partition cover ranges of offsets that do not overlap and end at ``sealed`` or below. A breach is a
CorruptionError with the names of the files. Files of other writers, and segments from which another writer's deletion
vector removes rows, are placed among the segments, or refused (``foreign_ranges``): no record is served twice.

Partitions are only ever added. If the property is smaller than the number of partitions with transactions, the
transactions are right. The name of a segment contains its range [base, end), with or without records. Names of earlier
releases and of other writers do not; the range of such a file is that of its records, according to its statistics.
"""

import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from logstore.delta.added_files import FileColumns
from logstore.delta.clean_files import digest_of_fact
from logstore.delta.foreign_ranges import Arrangement, RefusedFile, arrange, is_elsewhere
from logstore.delta.log_entries import LogState
from logstore.delta.schema import (
    CLEAN_FILES,
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
from logstore.delta.table_features import APPEND_ONLY_PROPERTY, features_of
from logstore.delta.table_state import TableState
from logstore.errors import CorruptionError, UnsupportedTableError
from logstore.segments.deletion_vectors import DeletionVector
from logstore.segments.foreign_file import OffsetRuns
from logstore.segments.foreign_names import foreign_records
from logstore.segments.names import Flags, Numbers, known_segment_name, unknown_name

ReadRuns = Callable[[str], OffsetRuns]


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The facts of a partition. All are offsets except ``leader_epoch`` (of the last roll), ``rewrite`` (a counter) and
    ``clean_digest`` (of files below ``cleaned``, see ``clean_files``).
    """

    sealed: int
    leader_epoch: int
    log_start: int
    rewrite: int
    cleaned: int
    clean_digest: int = 0


class SegmentFile(NamedTuple):
    """An active file as its name and its add action describe it: it covers [base_offset, end_offset).

    The bounds of its records are inclusive; timestamps are rounded outwards to ms. All four are -1 if it has no record.
    It is a tuple, because a snapshot makes one for every file.

    ``foreign``: records that other writers wrote or left. Then ``path`` is the name by which they are read, perhaps of
    several files (``paths``) and of their deletion vectors. ``shared``: one of these files also has records in another
    range, so it can be replaced only together with that.
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
    foreign: bool = False
    shared: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """The files in the table that hold the records."""
        return foreign_records(self.path).paths if self.foreign else (self.path,)

    @property
    def masked_paths(self) -> tuple[str, ...]:
        """The files with a deletion vector: it hides rows whose bytes still exist."""
        if not self.foreign:
            return ()
        records = foreign_records(self.path)
        return tuple(path for path, vector in zip(records.paths, records.vectors, strict=True) if vector is not None)


def sharing(files: Iterable[SegmentFile], paths: Collection[str]) -> list[SegmentFile]:
    """Return the records of other writers in the files at ``paths``, and all that share a file with these: they can
    only be replaced together.
    """
    foreign, reached = [file for file in files if file.foreign], set(paths)
    while True:
        chosen = [file for file in foreign if not reached.isdisjoint(file.paths)]
        together = {path for file in chosen if file.shared for path in file.paths}
        if together <= reached:
            return chosen
        reached |= together


@dataclass(frozen=True, slots=True)
class Removal:
    """An active file that a commit takes out of the table. ``row_ids`` are as in ``AddedFile``."""

    path: str
    size: int
    partition: int
    vector: DeletionVector | None = None
    row_ids: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True)
class TopicSnapshot:
    """One version of a topic's table. ``config_overrides`` are the ``logstore.*`` properties without the prefix; an
    empty value means unset.
    """

    location: str
    version: int
    topic_id: uuid.UUID
    #: The table's property ``logstore.topic``; None if the table has none.
    topic_name: str | None
    num_partitions: int
    #: The table's property ``logstore.partitions``; it is less than ``num_partitions`` after a ``RESTORE`` took it
    #: back.
    stated_partitions: int
    config_overrides: dict[str, str]
    partitions: dict[int, PartitionState]
    log: LogState
    table: TableState
    properties: dict[str, str]
    #: The features of the protocol, whatever its form.
    features: frozenset[str]
    #: Reads the offsets of another writer's file; called once for each, if the statistics do not suffice.
    _read_runs: ReadRuns

    def is_on(self, name: str) -> bool:
        """Return whether a boolean property of Delta is true."""
        return self.properties.get(name, "").lower() == "true"

    @property
    def is_append_only(self) -> bool:
        """True if the table's owner forbids removing records from it (Delta protocol, "Append-only Tables")."""
        return self.is_on(APPEND_ONLY_PROPERTY)

    def segments(self, partition: int) -> tuple[SegmentFile, ...]:
        """Return the active files of a partition by rising offset. Raises CorruptionError if the invariants do not
        hold.
        """
        known = self._segments.get(partition)
        if known is None:
            known = self._segments[partition] = self._parse(partition)
        return known

    def check(self, partition: int) -> None:
        """Raise CorruptionError if the active files of a partition break the invariants; no file is opened. A sound
        partition is checked once, because every roll asks several times.
        """
        if partition not in self._sound:
            self._check(partition)
            self._sound.add(partition)

    def _check(self, partition: int) -> None:
        columns = self._columns
        rows = columns.rows_of(partition)
        foreign = rows[columns.foreign[rows]]
        if len(foreign):
            rows = rows[~columns.foreign[rows]]
        if len(rows):
            self._check_segments(partition, rows)
        if len(foreign):
            ranges = list(zip(columns.base[rows].tolist(), columns.end[rows].tolist(), strict=True))
            sealed = self.partitions[partition].sealed
            self._arrangements[partition] = arrange(columns.foreign_adds(foreign), ranges, sealed, self._read_runs)

    def _check_segments(self, partition: int, rows: Numbers) -> None:
        columns = self._columns
        for row in rows[columns.unknown[rows]]:
            raise unknown_name(f"{self.location}: {columns.paths[row]}")
        for row in rows[columns.incomplete[rows]]:
            raise CorruptionError(
                f"{self.location}: {columns.paths[row]} has no statistics of offset and timestamp: not what a roll or "
                "a job committed. Restore _delta_log from a backup"
            )
        for row in rows[columns.misnamed[rows]]:
            raise CorruptionError(
                f"{self.location}: {columns.paths[row]} has statistics of offsets that are not in the range of its "
                "name: not what a roll or a job committed. Restore _delta_log from a backup"
            )
        ends = columns.end[rows]
        for at in np.nonzero(columns.base[rows][1:] < ends[:-1])[0]:
            raise CorruptionError(
                f"{self.location}: {columns.paths[rows[at + 1]]} and {columns.paths[rows[at]]} overlap in offset: "
                "the records of one of them would be served twice. Restore the table to the version before"
            )
        sealed = self.partitions[partition].sealed
        if ends[-1] > sealed:
            raise CorruptionError(
                f"{self.location}: {columns.paths[rows[-1]]} reaches offset {ends[-1] - 1}, but partition {partition} "
                f"is sealed up to {sealed}: no roll has committed it. Remove the file from the table (DELETE) to go on"
            )

    def refused(self, partition: int) -> tuple[RefusedFile, ...]:
        """Return other writers' files that are in the table and are not served. Raises CorruptionError like
        ``segments``.
        """
        self.check(partition)
        arranged = self._arrangements.get(partition)
        return () if arranged is None else arranged.refused

    @property
    def homeless(self) -> tuple[RefusedFile, ...]:
        """Files of other writers in partitions that the topic does not have."""
        columns = self._columns
        rows = np.flatnonzero(columns.foreign & self._not_there)
        return tuple(
            RefusedFile(columns.paths[row], f"the topic has {self.num_partitions} partitions, and this is another")
            for row in rows.tolist()
        )

    @property
    def unserved(self) -> tuple[RefusedFile, ...]:
        """All files of other writers that are in the table and are not served. Raises CorruptionError like
        ``segments``.
        """
        return (*self.homeless, *(file for partition in self.partitions for file in self.refused(partition)))

    @property
    def has_foreign_files(self) -> bool:
        return bool(self._columns.foreign.any())

    @property
    def _not_there(self) -> Flags:
        partition = self._columns.partition
        return (partition < 0) | (partition >= self.num_partitions)

    @property
    def transactions(self) -> dict[str, int]:
        return self.log.transactions

    @cached_property
    def paths(self) -> frozenset[str]:
        """Paths of all active files, relative to the table."""
        return frozenset(file.path for file in self.table.files)

    @cached_property
    def misfits(self) -> int:
        """The number of records that have a ``value_error`` in place of columns."""
        return sum(file.misfits for file in self.table.files)

    @property
    def vectors(self) -> tuple[DeletionVector, ...]:
        """The deletion vectors of the active files."""
        return tuple(file.vector for file in self.table.files if file.vector is not None)

    def uncovered(self, partition: int, start: int) -> list[tuple[int, int]]:
        """Return the ranges from ``start`` to ``sealed`` that no served file covers. Raises CorruptionError like
        ``segments``.
        """
        self.check(partition)
        sealed = self.partitions[partition].sealed
        if partition in self._arrangements:
            segments = self.segments(partition)
            bases = np.array([segment.base_offset for segment in segments], dtype=np.int64)
            reach = np.array([segment.end_offset for segment in segments], dtype=np.int64)
        else:
            columns = self._columns
            rows = columns.rows_of(partition)
            bases, reach = columns.base[rows], columns.end[rows]
        begins = np.append(bases, sealed)
        ends = np.maximum(np.append(start, reach), start)
        gaps = np.flatnonzero(begins > ends)
        return list(zip(ends[gaps].tolist(), begins[gaps].tolist(), strict=True))

    def touches_unnamed(self, partition: int, start: int, end: int) -> bool:
        """Return whether a file that ends where the gap [start, end) begins, or begins where it ends, has no range in
        its name. Then compaction of an earlier release may have left the gap.
        """
        columns = self._columns
        rows = columns.rows_of(partition)
        beside = (columns.end[rows] == start) | (columns.base[rows] == end)
        return bool((beside & ~columns.named[rows]).any())

    def ranges(self) -> dict[str, tuple[int, int, int]]:
        """Return partition, base offset and end of every active file of a known range, by path."""
        columns = self._columns
        rows = np.flatnonzero(~columns.incomplete)
        paths = [columns.paths[row] for row in rows.tolist()]
        values = (columns.partition[rows], columns.base[rows], columns.end[rows])
        return dict(zip(paths, zip(*(column.tolist() for column in values), strict=True), strict=True))

    def foreign_removals(self) -> tuple[Removal, ...]:
        """Return the active files that are not served: refused files of other writers, files of a partition that the
        topic does not have, and files with names of ours that reach beyond ``sealed``, because no roll has committed
        them. A file that a later release named is not among them.
        """
        columns = self._columns
        not_there = self._not_there
        sealed = np.array([state.sealed for _, state in sorted(self.partitions.items())], dtype=np.int64)
        beyond = ~columns.foreign & (columns.end > sealed[np.where(not_there, 0, columns.partition)])
        refused = np.zeros(len(columns.partition), dtype=bool)
        for partition in np.unique(columns.partition[columns.foreign & ~not_there]).tolist():
            rows = columns.rows_of(partition)
            paths = {file.path for file in self._arrange_alone(partition).refused}
            refused[rows] = [columns.paths[row] in paths for row in rows.tolist()]
        rows = np.flatnonzero((refused | not_there | beyond) & ~columns.unknown)
        return tuple(map(self._removal, rows.tolist()))

    def removals_of(self, paths: Iterable[str]) -> tuple[Removal, ...]:
        """Return the removals of active files, each once."""
        columns = self._columns
        wanted = set(paths)
        return tuple(self._removal(row) for row, path in enumerate(columns.paths) if path in wanted)

    def _removal(self, row: int) -> Removal:
        columns = self._columns
        return Removal(
            columns.paths[row],
            int(columns.size[row]),
            int(columns.partition[row]),
            columns.vectors.get(row),
            columns.row_ids.get(row, (None, None)),
        )

    def lost_since(self, earlier: "TopicSnapshot") -> tuple[str, ...]:
        """Return files of ours that ``earlier`` shows and this version does not, though no commit removed them. Another
        writer's commit overwrote the one that added them (rule R7), or that of a job. ``earlier`` must be younger than
        ``TOMBSTONES_KEPT_MS``.
        """
        gone = earlier.paths - self.paths
        return tuple(
            sorted(path for path in gone if known_segment_name(path) is not None and not self.log.was_removed(path))
        )

    def _arrange_alone(self, partition: int) -> Arrangement:
        """Place other writers' files among the segments up to ``sealed``, even if these are not sound."""
        columns = self._columns
        rows = columns.rows_of(partition)
        foreign = rows[columns.foreign[rows]]
        sealed = self.partitions[partition].sealed
        reach = -1
        ranges: list[tuple[int, int]] = []
        for row in rows[~columns.foreign[rows]]:
            base, end = max(int(columns.base[row]), reach), int(columns.end[row])
            if base < end <= sealed:
                ranges.append((base, end))
                reach = end
        return arrange(columns.foreign_adds(foreign), ranges, sealed, self._read_runs)

    @cached_property
    def _arrangements(self) -> dict[int, Arrangement]:
        return {}

    @cached_property
    def _columns(self) -> "FileColumns":
        return FileColumns(self.table.files)

    @cached_property
    def _sound(self) -> set[int]:
        return set()

    @cached_property
    def _segments(self) -> dict[int, tuple[SegmentFile, ...]]:
        return {}

    def _parse(self, partition: int) -> tuple[SegmentFile, ...]:
        self.check(partition)
        columns = self._columns
        arranged = self._arrangements.get(partition)
        rows = columns.rows_of(partition)
        if arranged is not None:
            rows = rows[~columns.foreign[rows]]
        fields = (
            [columns.paths[row] for row in rows.tolist()],
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
        no = [False] * len(rows)
        segments = tuple(map(SegmentFile._make, zip(*fields, no, no, strict=True)))
        if arranged is None:
            return segments
        foreign = (
            SegmentFile(
                file.name,
                file.size,
                file.num_records,
                file.min_offset,
                file.max_offset + 1,
                file.min_offset,
                file.max_offset,
                *file.timestamps_ms,
                foreign=True,
                shared=file.shared,
            )
            for file in arranged.ranges
        )
        return tuple(sorted((*segments, *foreign), key=lambda segment: segment.base_offset))


def read_snapshot(log: LogState, location: str, read_runs: ReadRuns | None = None) -> TopicSnapshot:
    """Return the snapshot of a log. ``location`` is the table's, for messages; ``read_runs`` is as for ``arrange``.
    Raises CorruptionError if an invariant is broken.
    """
    table, version = log.table, log.version
    if table is None:
        raise CorruptionError(f"{location}: its Delta log has no protocol or no metadata. Restore it from a backup")
    properties = table.properties
    count = properties.get(PARTITIONS_PROPERTY, "")
    in_log = _partitions_in(log)
    try:
        stated_partitions = int(count)
        topic_id = uuid.UUID(table.meta_data.id)
    except ValueError:
        stated_partitions, topic_id = -1, uuid.UUID(int=0)
    if stated_partitions < 1:
        raise CorruptionError(
            f"{location}: its table property {PARTITIONS_PROPERTY} is '{count}', the log has "
            f"{in_log or 'no'} partitions.{_set_partitions(location, in_log) if in_log else ' It is not a topic'}"
        )
    # A RESTORE to a version before partitions were added takes the property back, but no transaction.
    num_partitions = max(stated_partitions, in_log or 0)
    partitions = {}
    for partition in range(num_partitions):
        sealed = log.transactions.get(app_id(partition, SEALED))
        if sealed is None:
            if any(is_elsewhere(file.path) for file in table.files):
                raise UnsupportedTableError(
                    f"{location} is a shallow clone: its files are those of another table, and it has no offsets",
                    "It is no topic: read it as a Delta table, and move its directory out of topics/",
                )
            raise CorruptionError(
                f"{location}: version {version} has no transaction {app_id(partition, SEALED)!r}; was "
                f"{FORBIDDEN_PROPERTY} set on it? Then restore _delta_log from a backup. Or is {PARTITIONS_PROPERTY} "
                f"too high, with '{count}'?{_set_partitions(location, in_log) if in_log else ''}"
            )
        epoch, start, rewrite, cleaned, clean_files = (
            log.transactions.get(app_id(partition, fact), 0) for fact in (EPOCH, START, REWRITE, CLEANED, CLEAN_FILES)
        )
        partitions[partition] = PartitionState(sealed, epoch, start, rewrite, cleaned, digest_of_fact(clean_files))
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
        stated_partitions=stated_partitions,
        config_overrides=overrides,
        partitions=partitions,
        log=log,
        table=table,
        properties=properties,
        features=features_of(table.protocol),
        _read_runs=read_runs or _no_runs,
    )


def _no_runs(path: str) -> OffsetRuns:
    raise AssertionError(f"{path} cannot be read here")


def _partitions_in(log: LogState) -> int | None:
    """Return the number of partitions that the transactions name; None if they name none."""
    sealed = {app for app in log.transactions if app.endswith(f"/{SEALED}")}
    count = len(sealed)
    return count if count and sealed == {app_id(partition, SEALED) for partition in range(count)} else None


def _set_partitions(location: str, count: int) -> str:
    return f" Run in Spark: ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('{PARTITIONS_PROPERTY}' = '{count}')"
