"""Lists the table features of Delta that the store reads, that it honours when it commits, and that it refuses.

A new topic stays at reader 1, writer 2, and the store turns no feature on. Another writer may. If a feature requires
nothing of the store, or only things that the store does anyway, the topic continues to work. Otherwise a feature of
readers prevents the topic from being served, because wrong records would be served, and a feature of writers prevents
commits. Each such error names the feature, the reason, and the command that takes the feature back.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from logstore.delta.actions import Protocol
from logstore.delta.schema import PROTOCOL
from logstore.delta.table_state import TableState
from logstore.errors import UnsupportedTableError
from logstore.segments.layout import new_layout
from logstore.table_files import TableFiles

DELETION_VECTORS, COLUMN_MAPPING, ROW_TRACKING = "deletionVectors", "columnMapping", "rowTracking"
V2_CHECKPOINT, CHECKPOINT_PROTECTION, DOMAIN_METADATA = "v2Checkpoint", "checkpointProtection", "domainMetadata"
IN_COMMIT_TIMESTAMP, APPEND_ONLY = "inCommitTimestamp", "appendOnly"

APPEND_ONLY_PROPERTY = "delta.appendOnly"
MAPPING_PROPERTY = "delta.columnMapping.mode"
ROW_TRACKING_DOMAIN = "delta.rowTracking"
_CLUSTERING_DOMAIN = "delta.clustering"
_PHYSICAL_NAME = "delta.columnMapping.physicalName"

#: Features that every table of writer version 2 has.
BASE = frozenset({APPEND_ONLY, "invariants"})
_OF_READER_VERSION = {2: {COLUMN_MAPPING}}
_OF_WRITER_VERSION = {
    3: {"checkConstraints"},
    4: {"changeDataFeed", "generatedColumns"},
    5: {COLUMN_MAPPING},
    6: {"identityColumns"},
}
_LISTS_FEATURES = 7

Field = Mapping[str, Any]
Judge = Callable[["_Table"], str | None]


@dataclass(frozen=True, slots=True)
class _Table:
    """The schema and properties by which a table is judged. ``columns`` are the fields of its schema, ``ours`` the
    types of the topic's own columns by name.
    """

    columns: list[Field]
    ours: Mapping[str, object]
    properties: Mapping[str, str]

    def is_on(self, name: str) -> bool:
        return self.properties.get(name, "").lower() == "true"

    def with_metadata(self, *keys: str) -> str | None:
        """Return the first column that has one of the keys, or a key with one of these prefixes, in its metadata."""
        return next((str(f["name"]) for f in self.columns if any(_has(m, keys) for m in _metadata(f))), None)


@dataclass(frozen=True, slots=True)
class Feature:
    """A table feature. ``words`` name it in messages. ``reads`` and ``writes`` return why the store cannot read or
    write, or None. To take the feature back, ``properties`` are removed from the table, ``metadata`` from its columns
    (names, or prefixes that end with a dot), and ``domain`` from its log. Columns of ``types`` need the feature.
    ``irremovable`` says why the store cannot take it back.
    """

    words: str
    properties: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    domain: str | None = None
    types: tuple[str, ...] = ()
    reads: Judge = lambda _: None
    writes: Judge = lambda _: None
    irremovable: str | None = None


# ---- reasons to refuse ----------------------------------------------------------------------------------------------


def _topic_columns(table: _Table) -> str | None:
    """Return why the topic's columns differ from those of its segments; None if they do not."""
    mapped = table.properties.get(MAPPING_PROPERTY, "none").lower()
    if mapped == "id":
        return f"{MAPPING_PROPERTY} is id, and segments have no ids of columns"
    there = {str(field["name"]): field for field in table.columns}
    physical = {physical_name(field): name for name, field in there.items()} if mapped == "name" else {}
    for name, kind in table.ours.items():
        if name not in there:
            if name in physical:
                return f"its column {name} was renamed to {physical[name]}"
            return f"its column {name} was dropped"
        if mapped == "name" and physical_name(there[name]) != name:
            return f"its column {name} was dropped and added again"
        if _bare(there[name]["type"], mapped=mapped == "name") != kind:
            return f"its column {name} has another type"
    return None


def _constraints(table: _Table) -> str | None:
    names = [
        name.removeprefix("delta.constraints.") for name in table.properties if name.startswith("delta.constraints.")
    ]
    return f"the store cannot evaluate the constraint {names[0]}" if names else None


def _column_with(*keys: str, why: str) -> Judge:
    def judge(table: _Table) -> str | None:
        column = table.with_metadata(*keys)
        return None if column is None else f"column {column} {why}"

    return judge


def _defaults(table: _Table) -> str | None:
    """Return why a default prevents commits; None if no default does.

    A default on a column of the topic never applies, because records have a value or null in each column.
    """
    column = next(
        (f["name"] for f in table.columns if f["name"] not in table.ours and _has(f["metadata"], ("CURRENT_DEFAULT",))),
        None,
    )
    return None if column is None else f"column {column} has a default that the store cannot evaluate"


def _if_on(name: str, why: str) -> Judge:
    return lambda table: f"{name} is true: {why}" if table.is_on(name) else None


def _always(why: str) -> Judge:
    return lambda _: why


_NOT_IN_FILES = "segments have no partition columns in their files"
_ELSEWHERE = "a catalog has the commits of the table, and the store commits to its log"
_BY_SPARK = "only Spark can, with the catalog: ALTER TABLE ... DROP FEATURE"


def _iceberg(version: int) -> Feature:
    name = f"delta.enableIcebergCompatV{version}"
    properties = (name, "delta.universalFormat.")
    return Feature(f"Iceberg compatibility V{version}", properties, writes=_if_on(name, _NOT_IN_FILES))


_VARIANT = Feature("the type VARIANT", types=("variant",))
_SHREDDING = Feature("shredded variants", ("delta.enableVariantShredding",))
_GEO = Feature("geospatial types", types=("geometry", "geography"))
_WIDENING = Feature("type widening", ("delta.enableTypeWidening",), ("delta.typeChanges",), reads=_topic_columns)
_TIMESTAMPS = tuple(
    f"delta.{name}"
    for name in (
        "enableInCommitTimestamps",
        "inCommitTimestampEnablementVersion",
        "inCommitTimestampEnablementTimestamp",
    )
)

#: All features of Delta 4.4, by their names in ``protocol``.
FEATURES: dict[str, Feature] = {
    DELETION_VECTORS: Feature("deletion vectors", ("delta.enableDeletionVectors",)),
    COLUMN_MAPPING: Feature(
        "column mapping",
        (MAPPING_PROPERTY, "delta.columnMapping.maxColumnId"),
        ("delta.columnMapping.",),
        reads=_topic_columns,
    ),
    "typeWidening": _WIDENING,
    "typeWidening-preview": _WIDENING,
    "timestampNtz": Feature("timestamps without a zone", types=("timestamp_ntz",)),
    "variantType": _VARIANT,
    "variantType-preview": _VARIANT,
    "variantShredding": _SHREDDING,
    "variantShredding-preview": _SHREDDING,
    "geospatial": _GEO,
    "geospatial-dev": _GEO,
    "vacuumProtocolCheck": Feature("the protocol check of VACUUM"),
    V2_CHECKPOINT: Feature("V2 checkpoints", ("delta.checkpointPolicy",)),
    "catalogManaged": Feature(
        "commits of a catalog", reads=_always(_ELSEWHERE), writes=_always(_ELSEWHERE), irremovable=_BY_SPARK
    ),
    "adaptiveMetadata-preview": Feature(
        "adaptive metadata", reads=_always(_ELSEWHERE), writes=_always(_ELSEWHERE), irremovable=_BY_SPARK
    ),
    "coordinatedCommits-preview": Feature(
        "coordinated commits",
        writes=lambda table: (
            _ELSEWHERE
            if any(name.startswith("delta.coordinatedCommits.") and value for name, value in table.properties.items())
            else None
        ),
        irremovable=_BY_SPARK,
    ),
    APPEND_ONLY: Feature("append-only tables", (APPEND_ONLY_PROPERTY,)),
    "invariants": Feature(
        "column invariants",
        metadata=("delta.invariants",),
        writes=_column_with("delta.invariants", why="has an invariant, which the store cannot evaluate"),
    ),
    "checkConstraints": Feature("check constraints", ("delta.constraints.",), writes=_constraints),
    "changeDataFeed": Feature("the change data feed", ("delta.enableChangeDataFeed",)),
    "generatedColumns": Feature(
        "generated columns",
        metadata=("delta.generationExpression",),
        writes=_column_with("delta.generationExpression", why="is generated, which the store cannot do"),
    ),
    "identityColumns": Feature(
        "identity columns",
        metadata=("delta.identity.",),
        writes=_column_with("delta.identity.", why="is an identity column, which the store cannot fill"),
    ),
    "allowColumnDefaults": Feature("defaults of columns", metadata=("CURRENT_DEFAULT",), writes=_defaults),
    DOMAIN_METADATA: Feature("metadata domains"),
    ROW_TRACKING: Feature(
        "row tracking",
        (
            "delta.enableRowTracking",
            "delta.rowTrackingSuspended",
            "delta.rowTracking.materializedRowIdColumnName",
            "delta.rowTracking.materializedRowCommitVersionColumnName",
        ),
        domain=ROW_TRACKING_DOMAIN,
    ),
    "clustering": Feature("clustering", domain=_CLUSTERING_DOMAIN),
    IN_COMMIT_TIMESTAMP: Feature("in-commit timestamps", _TIMESTAMPS),
    "icebergCompatV1": _iceberg(1),
    "icebergCompatV2": _iceberg(2),
    "icebergCompatV3": _iceberg(3),
    "materializePartitionColumns": Feature(
        "partition columns in files",
        ("delta.enableMaterializePartitionColumnsFeature", "delta.writePartitionColumnsToParquet"),
        writes=_always(_NOT_IN_FILES),
    ),
    CHECKPOINT_PROTECTION: Feature("protected checkpoints", ("delta.requireCheckpointProtectionBeforeVersion",)),
}


# ---- requirements of a table ----------------------------------------------------------------------------------------


def features_of(protocol: Protocol) -> frozenset[str]:
    """Return the features of a protocol of any form (Delta protocol, "Table Features for New and Existing Tables")."""
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    if writer < _LISTS_FEATURES:
        listed |= BASE if writer >= PROTOCOL[1] else set()
        listed |= {name for version, names in _OF_WRITER_VERSION.items() if version <= writer for name in names}
    if reader in _OF_READER_VERSION:
        listed |= _OF_READER_VERSION[reader]
    return frozenset(listed)


def of_readers(protocol: Protocol) -> set[str]:
    """Return the features that readers also have to know."""
    return set(protocol.reader_features or ()) | _OF_READER_VERSION.get(protocol.min_reader_version, set())


def columns_in_the_way(name: str, state: TableState) -> str | None:
    """Return why the table's columns need a feature, and the remedy; None if they do not need it."""
    fields = [(field, inner) for field in fields_of(state.meta_data.schema_string) for inner in _with_inner(field)]
    types = FEATURES[name].types
    for field, inner in fields:
        why = None
        if isinstance(kind := inner.get("type"), str) and kind.split("(")[0] in types:
            why = f"is of type {kind}"
        elif name == COLUMN_MAPPING and physical_name(inner) != inner["name"]:
            why = "has another name in the files"
        elif "delta.typeChanges" in FEATURES[name].metadata and _has(
            inner.get("metadata") or {}, ("delta.typeChanges",)
        ):
            why = "has an older type in some files"
        if why is not None:
            helps = "Drop the column in Spark (which takes column mapping); or leave the feature as it is"
            return f"column {field['name']} {why}. {helps}"
    return None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reasons why the store does not read a table, or does not commit to it; None if it does."""

    reading: UnsupportedTableError | None = None
    writing: UnsupportedTableError | None = None


def judge(files: TableFiles, state: TableState) -> Verdict:
    """Decide whether the store reads a table with these features, and whether it commits to it."""
    protocol = state.protocol
    features = features_of(protocol)
    if features <= BASE and '"delta.invariants"' not in (state.meta_data.schema_string or ""):
        return Verdict()
    table = _table(files, state)
    reading: dict[str, str] = {}
    writing: dict[str, str] = {}
    for name in sorted(features):
        known = FEATURES.get(name)
        if known is None:
            (reading if name in of_readers(protocol) else writing)[name] = "this release does not know it"
            continue
        if (why := known.reads(table)) is not None:
            reading[name] = why
        if (why := known.writes(table)) is not None:
            writing[name] = why
    for field in table.columns:
        if field["name"] not in table.ours and field.get("nullable") is False:
            writing.setdefault("invariants", f"column {field['name']} may not be null, and the store does not fill it")
    if protocol.min_reader_version > 3 or protocol.min_writer_version > _LISTS_FEATURES:
        reading.setdefault("protocol", f"version {protocol.min_reader_version} of readers is unknown")
    return Verdict(
        _refusal(files, reading, "is not served") if reading else None,
        _refusal(files, reading | writing, "takes no commits") if reading or writing else None,
    )


def take_back_command(topic: str) -> str:
    return f"logstore topic take-feature-back {topic}"


def remedy_of_unknown(names: Collection[str]) -> str:
    """Return what to do about features that this release does not know; it takes none of them back."""
    return f"Upgrade logstore, or let the writer that turned it on take {', '.join(names)} back"


def words_of(name: str) -> str:
    known = FEATURES.get(name)
    return name if known is None else known.words


def _refusal(files: TableFiles, reasons: Mapping[str, str], what: str) -> UnsupportedTableError:
    listed = "; ".join(f"{words_of(name)} ({why})" for name, why in reasons.items())
    unknown = [name for name in reasons if name not in FEATURES]
    if unknown:
        remedy = remedy_of_unknown(unknown)
    elif set(reasons) <= {COLUMN_MAPPING, "typeWidening", "typeWidening-preview"}:
        before = f"RESTORE TABLE delta.`{files}` to the version before"
        remedy = f"Undo that in Spark: rename the column back, or {before}"
    elif irremovable := next((f for name in reasons if (f := FEATURES.get(name)) and f.irremovable), None):
        remedy = f"Take it back: {irremovable.irremovable}"
    else:
        remedy = f"Take it back: {take_back_command(files.name)}"
    return UnsupportedTableError(f"{files} {what}: another writer has turned on {listed}", remedy)


def _table(files: TableFiles, state: TableState) -> _Table:
    return _Table(fields_of(state.meta_data.schema_string), _types_of_topic(files.name), state.properties)


def fields_of(schema_string: str | None) -> list[Field]:
    fields: list[Field] = json.loads(schema_string or "{}").get("fields", [])
    return fields


def _types_of_topic(topic: str) -> dict[str, object]:
    from deltalake import Schema

    schema = json.loads(Schema.from_arrow(new_layout(topic).table_schema).to_json())
    return {field["name"]: _bare(field["type"], mapped=False) for field in schema["fields"]}


def physical_name(field: Field) -> str:
    return str((field.get("metadata") or {}).get(_PHYSICAL_NAME, field["name"]))


def _bare(kind: Any, *, mapped: bool) -> object:
    """Return a type without metadata and nullability; if it is ``mapped``, with the names that files have."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        names = [physical_name(field) if mapped else field["name"] for field in kind["fields"]]
        return tuple(
            (name, _bare(field["type"], mapped=mapped)) for name, field in zip(names, kind["fields"], strict=True)
        )
    parts = sorted(key for key in kind if key.endswith("Type"))
    return (kind["type"], *(_bare(kind[part], mapped=mapped) for part in parts))


def _metadata(field: Field) -> Iterator[Field]:
    """Yield the metadata of a field and of the fields within it."""
    for inner in _with_inner(field):
        yield inner.get("metadata") or {}


def _with_inner(field: Field) -> Iterator[Field]:
    """Yield a field and the fields within it."""
    yield field
    for inner in _fields_within(field.get("type")):
        yield from _with_inner(inner)


def _fields_within(kind: Any) -> Iterator[Field]:
    if isinstance(kind, dict):
        yield from kind.get("fields", ())
        for key, part in kind.items():
            if key.endswith("Type"):
                yield from _fields_within(part)


def _has(metadata: Field, keys: Iterable[str]) -> bool:
    return any(matches(name, key) for name in metadata for key in keys)


def matches(name: str, key: str) -> bool:
    """Return whether a property or a metadata key equals ``key``, or starts with it if ``key`` ends with a dot."""
    return name.startswith(key) if key.endswith(".") else name == key
