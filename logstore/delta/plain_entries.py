"""Log entries that need no Delta reader: written by this store, and holding nothing but what this release writes.

delta-rs takes 2 ms of a processor to open the log of a table, however short. A store with a thousand topics opens a
thousand of them at its start. From plain entries the table follows by plain rules: the last metadata counts, and a file
is active from the commit that adds it to the one that removes it. A checkpoint that has a checksum of ours stands for
the entries before it: it was compared with them.

Invariant: an entry is plain only if it carries our digest (and matches it, which is checked where it is parsed), its
protocol is ours, and every action and every field of it is known here. Whatever else is in an entry makes delta-rs read
the log: another writer's commit or checkpoint, a newer protocol, deletion vectors, names and statistics of another
form.
"""

import datetime as dt
from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from logstore.delta.actions import Action, Add, MetaData, Protocol, Remove, Txn, stored_digest
from logstore.delta.schema import PARTITION_COLUMNS, PROTOCOL
from logstore.segments.names import known_segment_name

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
#: Of the column "partition".
_INTEGER_MAX = 2**31 - 1


# ---- actions with every field that they may have ---------------------------------------------------------------------


class _PlainTxn(Txn, forbid_unknown_fields=True):
    last_updated: None = None


class _PlainAdd(Add, forbid_unknown_fields=True):
    tags: None = None
    deletion_vector: None = None
    base_row_id: None = None
    default_row_commit_version: None = None
    clustering_provider: None = None


class _PlainRemove(Remove, forbid_unknown_fields=True):
    extended_file_metadata: bool | None = None
    tags: None = None
    deletion_vector: None = None
    base_row_id: None = None
    default_row_commit_version: None = None


class _PlainMetaData(MetaData, forbid_unknown_fields=True):
    pass


class _PlainProtocol(Protocol, forbid_unknown_fields=True):
    reader_features: None = None
    writer_features: None = None


class _PlainAction(Action, forbid_unknown_fields=True):
    protocol: _PlainProtocol | None = None
    meta_data: _PlainMetaData | None = None
    add: _PlainAdd | None = None
    remove: _PlainRemove | None = None
    txn: _PlainTxn | None = None


_DECODER = msgspec.json.Decoder(_PlainAction)

_Long = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Bounds(msgspec.Struct):
    offset: _Long
    timestamp: Annotated[dt.datetime, msgspec.Meta(tz=True)]


class _Stats(msgspec.Struct, rename="camel"):
    num_records: _Long
    min_values: _Bounds | None = None
    max_values: _Bounds | None = None


_STATS = msgspec.json.Decoder(_Stats)


# ---- what they say ---------------------------------------------------------------------------------------------------


class AddedFile(NamedTuple):
    """An add action: the range of its name, and its statistics; the last four are None if it has none."""

    path: str
    partition: int
    base_offset: int
    end_offset: int
    size: int
    num_records: int
    min_offset: int | None
    max_offset: int | None
    min_timestamp_us: int | None
    max_timestamp_us: int | None


class PlainEntry(NamedTuple):
    """The actions of an entry but transactions and removed paths; None for what it does not say."""

    protocol: tuple[int, int] | None
    table_id: str | None
    properties: dict[str, str] | None
    added: tuple[AddedFile, ...]


def plain_entry(raw: bytes, actions: Sequence[Action]) -> PlainEntry | None:
    """What the entry ``raw``, which ``actions`` are of, says; None if that is for a Delta reader to tell."""
    if stored_digest(actions) is None or any(_parts(action) != 1 for action in actions):
        return None
    try:
        _DECODER.decode_lines(raw)
    except msgspec.MsgspecError:
        return None
    protocols = [action.protocol for action in actions if action.protocol is not None]
    tables = [_table(action.meta_data) for action in actions if action.meta_data is not None]
    files = [_added(action.add) for action in actions if action.add is not None]
    removed = {action.remove.path for action in actions if action.remove is not None}
    if len(protocols) > 1 or any((p.min_reader_version, p.min_writer_version) != PROTOCOL for p in protocols):
        return None
    if len(tables) > 1 or None in tables or any(known_segment_name(path) is None for path in removed):
        return None
    added = tuple(file for file in files if file is not None)
    if len(removed | {file.path for file in added}) < len(removed) + len(files):
        return None  # one of them is not known, or a path is named twice
    table_id, properties = (tables and tables[0]) or (None, None)
    return PlainEntry(PROTOCOL if protocols else None, table_id, properties, added)


def plain_checkpoint(
    protocols: Sequence[dict[str, Any]], tables: Sequence[dict[str, Any]], adds: Sequence[dict[str, Any]]
) -> PlainEntry | None:
    """The plain entry that a checkpoint of ours (or a part of one) stands for, from its actions as full rows.
    None if a Delta reader has to read it.
    """
    try:
        known = [msgspec.convert(_without_nulls(row), _PlainProtocol) for row in protocols]
        metadata = [_table(msgspec.convert(_without_nulls(row), _PlainMetaData)) for row in tables]
        files = [_added(msgspec.convert(_without_nulls(row), _PlainAdd)) for row in adds]
    except msgspec.ValidationError:
        return None
    if len(known) > 1 or any((p.min_reader_version, p.min_writer_version) != PROTOCOL for p in known):
        return None
    if len(metadata) > 1 or None in metadata:
        return None
    added = tuple(file for file in files if file is not None)
    if len({file.path for file in added}) < len(files):
        return None
    table_id, properties = (metadata and metadata[0]) or (None, None)
    return PlainEntry(PROTOCOL if known else None, table_id, properties, added)


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in row.items() if value is not None and value != []}


def _parts(action: Action) -> int:
    parts = (action.commit_info, action.protocol, action.meta_data, action.add, action.remove, action.txn)
    return sum(part is not None for part in parts)


def _table(meta_data: MetaData) -> tuple[str, dict[str, str]] | None:
    configuration = meta_data.configuration
    if configuration is None or meta_data.partition_columns != PARTITION_COLUMNS or not meta_data.schema_string:
        return None
    properties = {key: value for key, value in configuration.items() if value is not None}
    return (meta_data.id, properties) if len(properties) == len(configuration) else None


def _added(add: Add) -> AddedFile | None:
    name = known_segment_name(add.path)
    if name is None or name.end_offset is None or name.partition > _INTEGER_MAX:
        return None
    if add.size is None or add.size < 0 or add.partition_values != {"partition": str(name.partition)}:
        return None
    try:
        stats = _STATS.decode(add.stats or "")
    except msgspec.MsgspecError:
        return None
    low, high = stats.min_values, stats.max_values
    if (low is None) != (high is None):
        return None
    file = name.partition, name.base_offset, name.end_offset, add.size, stats.num_records
    if low is None or high is None:
        return AddedFile(add.path, *file, None, None, None, None)
    times = ((bounds.timestamp - _EPOCH) // _MICROSECOND for bounds in (low, high))
    return AddedFile(add.path, *file, low.offset, high.offset, *times)


class PlainTable(NamedTuple):
    """A table that plain entries make, from the first one on."""

    protocol: tuple[int, int]
    table_id: str
    properties: dict[str, str]
    files: list[AddedFile]


def plain_table(entries: Sequence[tuple[PlainEntry | None, Collection[str]]]) -> PlainTable | None:
    """The table that entries make, with the paths that each removed; None if one of them is not plain."""
    protocol: tuple[int, int] | None = None
    table_id: str | None = None
    properties: dict[str, str] | None = None
    files: dict[str, AddedFile] = {}
    for entry, removed in entries:
        if entry is None:
            return None
        protocol = entry.protocol or protocol
        if entry.table_id is not None:
            table_id, properties = entry.table_id, entry.properties
        if files:  # the removals of a checkpoint come first
            for path in removed:
                files.pop(path, None)
        files.update((file.path, file) for file in entry.added)
    if protocol is None or table_id is None or properties is None:
        return None
    return PlainTable(protocol, table_id, properties, list(files.values()))
