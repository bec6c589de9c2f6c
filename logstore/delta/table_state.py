"""Computes the state of a table from the entries and the checkpoint of its log (Delta protocol, "Action
Reconciliation").

The store replays every log itself, even if another writer has written to it. delta-rs takes 2 ms of CPU time to open
the log of a table, however short, and does not open a log with a table feature that it does not know.

The last protocol and metadata count. A file is active from the commit that adds it to the commit that removes it.
Fields and actions that this release does not know are ignored: a change with a meaning would come with a table feature
(``table_features``). A file whose statistics cannot be read is treated as a file without statistics.
"""

import datetime as dt
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from logstore.delta.actions import Action, Add, DomainMetadata, MetaData, Protocol
from logstore.errors import NewerFormatError
from logstore.records.columns.schema import VALUE_ERROR
from logstore.segments.deletion_vectors import DeletionVector
from logstore.segments.names import parse_segment_name

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_LONG_MAX = 2**63 - 1
#: The largest value of the column "partition".
_INTEGER_MAX = 2**31 - 1


class _Bounds(msgspec.Struct):
    offset: int | None = None
    timestamp: dt.datetime | None = None


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    #: It is decoded only if the table has declared columns.
    null_count: msgspec.Raw = msgspec.Raw()
    min_values: _Bounds = msgspec.field(default_factory=_Bounds)
    max_values: _Bounds = msgspec.field(default_factory=_Bounds)


#: The counts of a segment without declared columns.
_PLAIN_NULLS = b'{"offset":0,"timestamp":0}'
_NULL_COUNTS = msgspec.json.Decoder(dict[str, Any] | None)
_STATS = msgspec.json.Decoder(_Stats)
_NO_STATS = _Stats()


class AddedFile(NamedTuple):
    """An add action: the range in its name, and its statistics.

    ``ours`` says that it has a segment's name, ``unknown`` that the name has a form that only a later release knows.
    Both offsets are None if the name has no range. Fields that the action lacks are None, and the partition is then -1.
    ``num_records`` counts the rows in the file, including those in its ``vector``. ``row_ids`` are ``baseRowId`` and
    ``defaultRowCommitVersion``. ``filled`` names the columns of which a file with declared columns has a count of
    nulls, and ``misfits`` counts its rows with a ``value_error``.
    """

    path: str
    partition: int
    ours: bool
    unknown: bool
    base_offset: int | None
    end_offset: int | None
    size: int
    modified_ms: int
    num_records: int | None
    min_offset: int | None
    max_offset: int | None
    min_timestamp_us: int | None
    max_timestamp_us: int | None
    vector: DeletionVector | None
    row_ids: tuple[int | None, int | None]
    filled: frozenset[str] = frozenset()
    misfits: int = 0


class StateChange(NamedTuple):
    """The contents of an entry, or of a part of a checkpoint, except transactions and removed paths."""

    protocol: Protocol | None
    meta_data: MetaData | None
    added: tuple[AddedFile, ...]
    domains: tuple[DomainMetadata, ...]


class TableState(NamedTuple):
    """The table that a log results in. ``domains`` are the configurations of metadata domains."""

    protocol: Protocol
    meta_data: MetaData
    files: list[AddedFile]
    domains: dict[str, str]

    @property
    def properties(self) -> dict[str, str]:
        configured = self.meta_data.configuration or {}
        return {key: value for key, value in configured.items() if value is not None}


def state_change(actions: Iterable[Action]) -> StateChange:
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    added: list[AddedFile] = []
    domains: list[DomainMetadata] = []
    for action in actions:
        if action.add is not None:
            added.append(_added(action.add))
        elif action.protocol is not None:
            protocol = action.protocol
        elif action.meta_data is not None:
            meta_data = action.meta_data
        elif action.domain_metadata is not None:
            domains.append(action.domain_metadata)
    return StateChange(protocol, meta_data, tuple(added), tuple(domains))


def change_of_rows(
    protocols: Sequence[dict[str, Any]],
    tables: Sequence[dict[str, Any]],
    adds: Sequence[dict[str, Any]],
    domains: Sequence[dict[str, Any]],
) -> StateChange:
    """Return the ``state_change`` of the rows of a checkpoint.

    Raises msgspec.ValidationError if they are not actions.
    """
    found = [msgspec.convert(_without_nulls(row), Protocol) for row in protocols]
    metadata = [msgspec.convert(_without_nulls(row), MetaData) for row in tables]
    files = [_added(msgspec.convert(_without_nulls(row), Add), row.get("stats_parsed")) for row in adds]
    told = [msgspec.convert(_without_nulls(row), DomainMetadata) for row in domains]
    return StateChange(found[-1] if found else None, metadata[-1] if metadata else None, tuple(files), tuple(told))


def joined_changes(changes: Sequence[StateChange]) -> StateChange:
    """Join the changes of all parts of a checkpoint."""
    return StateChange(
        next((change.protocol for change in changes if change.protocol is not None), None),
        next((change.meta_data for change in changes if change.meta_data is not None), None),
        tuple(file for change in changes for file in change.added),
        tuple(domain for change in changes for domain in change.domains),
    )


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in row.items() if value is not None and value != []}


def _added(add: Add, parsed: Mapping[str, Any] | None = None) -> AddedFile:
    try:
        name, unknown = parse_segment_name(add.path), False
    except NewerFormatError:
        name, unknown = None, True
    stats = _stats_of_row(parsed) if add.stats is None and parsed is not None else _stats(add.stats)
    base, end = (None, None) if name is None or name.end_offset is None else (name.base_offset, name.end_offset)
    low, high = stats.min_values, stats.max_values
    return AddedFile(
        add.path,
        _partition(add),
        name is not None or unknown,
        unknown,
        base,
        end,
        max(0, add.size or 0),
        add.modification_time or 0,
        stats.num_records,
        low.offset,
        high.offset,
        None if low.timestamp is None else (low.timestamp - _EPOCH) // _MICROSECOND,
        None if high.timestamp is None else (high.timestamp - _EPOCH) // _MICROSECOND,
        add.deletion_vector,
        (add.base_row_id, add.default_row_commit_version),
        *_counts(stats),
    )


def _counts(stats: _Stats) -> tuple[frozenset[str], int]:
    """Return ``filled`` and ``misfits``."""
    raw = memoryview(stats.null_count)
    if len(raw) <= len(_PLAIN_NULLS) and bytes(raw) in {b"", _PLAIN_NULLS}:
        return frozenset(), 0
    try:
        nulls = _NULL_COUNTS.decode(raw) or {}
    except msgspec.MsgspecError:
        return frozenset(), 0
    known = nulls.get(VALUE_ERROR)
    misfits = max(0, (stats.num_records or 0) - known) if isinstance(known, int) else 0
    return _same(frozenset(name for name, count in nulls.items() if count is not None)), misfits


@functools.lru_cache(maxsize=1024)
def _same(names: frozenset[str]) -> frozenset[str]:
    """Return one set for all files with these columns."""
    return names


def _partition(add: Add) -> int:
    text = (add.partition_values or {}).get("partition") or ""
    return int(text) if text.isdecimal() and int(text) <= _INTEGER_MAX else -1


def _stats(text: str | None) -> _Stats:
    if not text:
        return _NO_STATS
    try:
        return _sound(_STATS.decode(text))
    except msgspec.MsgspecError:
        return _NO_STATS


def _stats_of_row(row: Mapping[str, Any]) -> _Stats:
    """Return the statistics from a checkpoint that has them as columns."""
    try:
        columns = _without_nulls(dict(row))
        nulls = columns.pop("nullCount", None)
        stats = _sound(msgspec.convert(columns, _Stats))
        stats.null_count = msgspec.Raw(msgspec.json.encode(nulls)) if nulls else msgspec.Raw()
        return stats
    except msgspec.MsgspecError:
        return _NO_STATS


def _sound(stats: _Stats) -> _Stats:
    numbers = (stats.num_records, stats.min_values.offset, stats.max_values.offset)
    if any(number is not None and not 0 <= number <= _LONG_MAX for number in numbers):
        return _NO_STATS
    for bounds in (stats.min_values, stats.max_values):
        if bounds.timestamp is not None and bounds.timestamp.tzinfo is None:
            # Delta's statistics of a timestamp without a zone are UTC.
            bounds.timestamp = bounds.timestamp.replace(tzinfo=dt.UTC)
    return stats


def table_state(entries: Sequence[tuple[StateChange, Collection[str]]]) -> TableState | None:
    """Return the table that results from entries, each with the paths that it removed.

    The result is None if the entries lack protocol or metadata.
    """
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    files: dict[str, AddedFile] = {}
    domains: dict[str, str] = {}
    for change, removed in entries:
        protocol = change.protocol or protocol
        meta_data = change.meta_data or meta_data
        if files:  # the removals of a checkpoint come first
            for path in removed:
                files.pop(path, None)
        files.update((file.path, file) for file in change.added)
        for domain in change.domains:
            if domain.removed:
                domains.pop(domain.domain, None)
            else:
                domains[domain.domain] = domain.configuration
    if protocol is None or meta_data is None:
        return None
    return TableState(protocol, meta_data, list(files.values()), domains)
