"""The declared columns of a topic, which are fields of its table's schema, and the changes to them.

A declared column has the metadata ``logstore.field``, the path of the field in the value, and ``logstore.conversion``;
``value_error`` has ``logstore.conversion`` alone. A column that was retired also has ``logstore.retired``: it is not
derived any more, and its name and type stay. All are part of the format, see ``docs/table-format.md``. Columns without
this metadata belong to others, and so does a column whose metadata says something impossible; a retired column is
treated like those.

Invariants: there is no other record of the columns, so nothing can disagree with the table; a column never changes its
type; the protocol of the table stays; a change is one metadata commit, which also says of which columns add actions
have statistics, because readers skip files only by columns of ``delta.dataSkippingStatsColumns``.
"""

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from logstore.delta.actions import MetaData
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.table_features import COLUMN_MAPPING, MAPPING_PROPERTY, fields_of, physical_name
from logstore.delta.table_state import AddedFile
from logstore.errors import InvalidConfigError
from logstore.records.columns.declaration import (
    COLUMNS_MAX,
    checked,
    declaration,
    field_text,
    free_name,
    parse_field,
)
from logstore.records.columns.schema import VALUE_ERROR, Column, ColumnSchema, Conversion
from logstore.segments.column_statistics import columns_with_bounds
from logstore.segments.layout import TableLayout, declared_layout, new_layout

FIELD_KEY, CONVERSION_KEY, RETIRED_KEY = "logstore.field", "logstore.conversion", "logstore.retired"
#: The ``logstore.conversion`` of ``value_error``.
_REASON = "reason"
MODE_KEY = "table.columns.mode"
STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
_STATISTICS_ALWAYS = ("offset", "timestamp")

_PRIMITIVES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DELTA_NAMES = {kind: name for name, kind in _PRIMITIVES.items()}
_DECIMAL = re.compile(r"decimal\((\d+), ?(\d+)\)")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table that are not the log's, with the names that they have in files. ``columns`` are derived
    while ``table.columns.mode`` is ``declared``. ``has_error`` is True if the table has ``value_error``. ``others`` are
    carried by rewrites; ``problems`` say what of the schema cannot be followed.
    """

    columns: tuple[Column, ...] = ()
    retired: tuple[Column, ...] = ()
    has_error: bool = False
    others: pa.Schema = pa.schema([])  # noqa: RUF009  it is not changed
    problems: tuple[str, ...] = ()

    @property
    def schema(self) -> ColumnSchema:
        return ColumnSchema(self.columns)


def is_deriving(config_overrides: Mapping[str, str]) -> bool:
    """Return whether the table derives its declared columns."""
    return config_overrides.get(MODE_KEY) == "declared"


def layout_of(topic: str, snapshot: TopicSnapshot) -> TableLayout:
    """Return the layout of new files of a topic's table."""
    meta_data = snapshot.table.meta_data
    properties = _properties(meta_data)
    declared = is_deriving({MODE_KEY: properties.get(f"logstore.{MODE_KEY}", "")})
    return _layout(topic, meta_data.schema_string or "", _is_mapped(properties), declared)


def table_columns(topic: str, meta_data: MetaData) -> TableColumns:
    """Return the columns of the table of a topic with this metadata."""
    return _table_columns(topic, meta_data.schema_string or "", _is_mapped(_properties(meta_data)))


def _properties(meta_data: MetaData) -> dict[str, str]:
    """Return the properties of a table; one without a value is empty."""
    return {key: value or "" for key, value in (meta_data.configuration or {}).items()}


def _is_mapped(properties: Mapping[str, str]) -> bool:
    return properties.get(MAPPING_PROPERTY, "none").lower() == "name"


# A table is read again after every commit, and its schema rarely changes.
@functools.lru_cache(maxsize=1024)
def _layout(topic: str, schema_string: str, is_mapped: bool, is_deriving: bool) -> TableLayout:
    of_topic = new_layout(topic)
    found = _table_columns(topic, schema_string, is_mapped)
    if not found.columns or not is_deriving:
        kept = pa.schema([*(pa.field(c.name, c.type) for c in found.columns), *found.others])
        if found.has_error:
            kept = kept.append(pa.field(VALUE_ERROR, pa.string()))
        return replace(of_topic, others=kept) if len(kept) else of_topic
    return declared_layout(found.schema, found.others)


@functools.lru_cache(maxsize=1024)
def _table_columns(topic: str, schema_string: str, is_mapped: bool) -> TableColumns:
    own = {name.lower() for name in new_layout(topic).table_schema.names}
    columns: list[Column] = []
    retired: list[Column] = []
    others: list[pa.Field] = []
    problems: list[str] = []
    has_error = False
    for field in fields_of(schema_string):
        name = physical_name(field) if is_mapped else str(field["name"])
        if name.lower() in own:
            continue
        metadata = field.get("metadata") or {}
        try:
            if not name or "." in name:
                raise ValueError("a name without characters, or with a dot, is ambiguous in Parquet")
            kind = arrow_type(field["type"], is_mapped=is_mapped)
        except ValueError as error:
            problems.append(f"column {name!r}: {error}; a merge or a compaction drops what it has")
            continue
        if name == VALUE_ERROR and metadata.get(CONVERSION_KEY) == _REASON and kind == pa.string():
            has_error = True
            continue
        column = None
        if CONVERSION_KEY in metadata or FIELD_KEY in metadata:
            try:
                column = _column(name, kind, metadata)
            except ValueError as error:
                problems.append(f"column {name} is not derived, because its metadata was changed: {error}")
        if column is None or RETIRED_KEY in metadata:
            others.append(pa.field(name, kind))
        if column is not None:
            (retired if RETIRED_KEY in metadata else columns).append(column)
    columns, clashes = _without_clashes(columns)
    others += (pa.field(column.name, column.type) for column, _ in clashes)
    problems += (f"column {column.name} is not derived: {why}" for column, why in clashes)
    if columns and not has_error:
        problems.append(f"the table has no column {VALUE_ERROR}, which says why a row has no columns")
    return TableColumns(tuple(columns), tuple(retired), has_error, pa.schema(others), tuple(problems))


def _column(name: str, kind: pa.DataType, metadata: Mapping[str, Any]) -> Column:
    """Return the declared column of a field. Raises ValueError if its metadata says something impossible."""
    for key in (FIELD_KEY, CONVERSION_KEY):
        if not isinstance(metadata.get(key), str):
            raise ValueError(f"it has no {key}")  # noqa: TRY004  callers expect one error
    column = Column(name, parse_field(metadata[FIELD_KEY]), metadata[CONVERSION_KEY], kind)
    ColumnSchema((column,))
    return column


def _without_clashes(columns: Sequence[Column]) -> tuple[list[Column], list[tuple[Column, str]]]:
    """Return the columns that can be derived together, and the others with the reason."""
    try:
        ColumnSchema(tuple(columns))
    except ValueError:
        pass
    else:
        return list(columns), []
    kept: list[Column] = []
    left: list[tuple[Column, str]] = []
    for column in columns:
        try:
            ColumnSchema((*kept, column))
            kept.append(column)
        except ValueError as error:
            left.append((column, str(error)))
    return kept, left


# ---- rows without columns -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnFill:
    """How far the declared columns of a table are filled, according to its log: ``misfits`` are rows that have a
    ``value_error``; an unfilled file is from before a column was declared, or from another writer.
    """

    misfits: int = 0
    unfilled: tuple[AddedFile, ...] = ()

    @property
    def unfilled_records(self) -> int:
        return sum(file.num_records or 0 for file in self.unfilled)


def column_fill(topic: str, snapshot: TopicSnapshot) -> ColumnFill:
    """Return how far the columns are filled. No file is opened."""
    layout = layout_of(topic, snapshot)
    if layout.fingerprint is None:
        return ColumnFill(snapshot.misfits)
    wanted = frozenset(layout.extra.names)
    files = snapshot.table.files
    unfilled = (file for file in files if file.num_records != 0 and not (file.ours and file.filled >= wanted))
    return ColumnFill(snapshot.misfits, tuple(unfilled))


# ---- types ----------------------------------------------------------------------------------------------------------


def arrow_type(kind: Any, *, is_mapped: bool = False) -> pa.DataType:
    """Return the type of a column with this type in the schema of a table. Raises ValueError for one that Parquet files
    of the store cannot have.
    """
    if isinstance(kind, str):
        if (known := _PRIMITIVES.get(kind)) is not None:
            return known
        if found := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(found[1]), int(found[2]))
        raise ValueError(f"the store does not write the type {kind}")
    if kind["type"] == "struct":
        names = (physical_name(field) if is_mapped else field["name"] for field in kind["fields"])
        types = (arrow_type(field["type"], is_mapped=is_mapped) for field in kind["fields"])
        return pa.struct([pa.field(name, inner) for name, inner in zip(names, types, strict=True)])
    if kind["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(kind["elementType"], is_mapped=is_mapped)))
    if kind["type"] == "map":
        return pa.map_(
            arrow_type(kind["keyType"], is_mapped=is_mapped), arrow_type(kind["valueType"], is_mapped=is_mapped)
        )
    raise ValueError(f"the store does not write the type {kind['type']}")


def _delta_type(kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [_delta_field(field.name, field.type, {}) for field in kind]}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _delta_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        key, value = _delta_type(kind.key_type), _delta_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_timestamp(kind) and kind.tz is None:
        raise ValueError("the type timestamp_ntz needs a table feature")
    return _DELTA_NAMES[kind]


def _delta_field(name: str, kind: pa.DataType, metadata: Mapping[str, str]) -> dict[str, Any]:
    return {"name": name, "type": _delta_type(kind), "nullable": True, "metadata": dict(metadata)}


def joined_schema(fields: Sequence[Mapping[str, Any]]) -> str:
    """Return the schema of a table with these fields, as its metadata has it."""
    return json.dumps({"type": "struct", "fields": fields}, separators=(",", ":"), ensure_ascii=False)


def columns_beside(topic: str, meta_data: MetaData) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the fields beside the topic's own for a table without table features, and what has to be left out."""
    is_mapped = _is_mapped(_properties(meta_data))
    own = {name.lower() for name in new_layout(topic).table_schema.names}
    kept: list[dict[str, Any]] = []
    left_out: list[str] = []
    for field in fields_of(meta_data.schema_string):
        name = physical_name(field) if is_mapped else str(field["name"])
        if name.lower() in own:
            continue
        metadata = {
            key: value
            for key, value in (field.get("metadata") or {}).items()
            if key.startswith("logstore.") or key == "comment"
        }
        try:
            kept.append(_delta_field(name, arrow_type(field["type"], is_mapped=is_mapped), metadata))
        except (ValueError, KeyError):
            left_out.append(f"column {name} has the type {field['type']}, which needs a table feature")
    return kept, left_out


# ---- changes --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A change of the declared columns: ``declared`` are added; ``retired`` are names of columns, or ``is_whole`` says
    that all columns that are not declared are retired.
    """

    declared: tuple[Column, ...] = ()
    retired: tuple[str, ...] = ()
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class ChangedColumns:
    """The metadata of a table after a change, and the declared columns that the change added and retired."""

    meta_data: MetaData
    added: tuple[Column, ...]
    retired: tuple[Column, ...]


def changed_columns(topic: str, meta_data: MetaData, change: ColumnChange) -> ChangedColumns | None:
    """Return the metadata of a table after a change; None if nothing changes. Columns that are declared are derived
    from then on. Raises InvalidConfigError, which says what to declare instead.
    """
    try:
        return _changed(topic, meta_data, change)
    except ValueError as error:
        raise InvalidConfigError(f"topic {topic!r}: {error}") from error


def _changed(topic: str, meta_data: MetaData, change: ColumnChange) -> ChangedColumns | None:
    configuration = _properties(meta_data)
    if configuration.get(MAPPING_PROPERTY, "none").lower() != "none":
        raise ValueError(
            f"its table has column mapping, with which columns are not declared. Take it back: logstore topic "
            f"take-feature-back {topic} {COLUMN_MAPPING}"
        )
    before = table_columns(topic, meta_data)
    fields = [dict(field) for field in fields_of(meta_data.schema_string)]
    by_name = {str(field["name"]).lower(): field for field in fields}
    active = {column.name: column for column in before.columns}
    resting = {column.name: column for column in before.retired}
    retired = _retired(change, active, resting)
    added: list[Column] = []
    for column in change.declared:
        if (known := active.get(column.name)) is not None:
            _require_same(known, column)
            continue
        if (known := resting.get(column.name)) is not None:
            _require_same(known, column)
            del by_name[column.name.lower()]["metadata"][RETIRED_KEY]
        elif (there := by_name.get(column.name.lower())) is not None:
            name = str(there["name"])
            whose = "differs from it in case only" if name != column.name else "is not a declared one"
            free = _free_name(column.name, by_name)
            raise ValueError(
                f"the table has a column {name}, which {whose}: declare {declaration(replace(column, name=free))}"
            )
        else:
            metadata = {FIELD_KEY: field_text(column.path), CONVERSION_KEY: _normal(column)}
            field = by_name[column.name.lower()] = _delta_field(column.name, column.type, metadata)
            fields.append(field)
        added.append(column)
    for column in retired:
        by_name[column.name.lower()]["metadata"][RETIRED_KEY] = "true"
    is_declared = bool(checked([*(c for c in before.columns if c not in retired), *added]))
    if len(before.retired) + len(before.columns) + len(added) > COLUMNS_MAX:
        raise ValueError(f"a topic has at most {COLUMNS_MAX:,} columns, retired ones included")
    if is_declared and not before.has_error:
        if (there := by_name.get(VALUE_ERROR)) is not None and CONVERSION_KEY not in (there.get("metadata") or {}):
            raise ValueError(
                f"the table has a column {there['name']} of another writer, and the log needs that name: rename it in "
                "Spark, or make the topic again"
            )
        if there is None:
            fields.append(_delta_field(VALUE_ERROR, pa.string(), {CONVERSION_KEY: _REASON}))
        else:
            there["metadata"][CONVERSION_KEY] = _REASON
    schema_string = joined_schema(fields)
    changed = msgspec.structs.replace(meta_data, schema_string=schema_string)
    properties = {STATISTICS_PROPERTY: ",".join(_statistics(before, table_columns(topic, changed), configuration))}
    if change.declared:
        properties[f"logstore.{MODE_KEY}"] = "declared"
    if not added and not retired and properties.items() <= configuration.items():
        return None
    changed = msgspec.structs.replace(changed, configuration={**(meta_data.configuration or {}), **properties})
    return ChangedColumns(changed, tuple(added), tuple(retired))


def _retired(change: ColumnChange, active: Mapping[str, Column], resting: Collection[str]) -> list[Column]:
    declared = {column.name for column in change.declared}
    if change.is_whole:
        return [column for name, column in active.items() if name not in declared]
    for name in change.retired:
        if name not in active and name not in resting:
            known = ", ".join(active) or "none"
            raise ValueError(f"{name!r} is not a declared column that can be retired: those are {known}")
    return [active[name] for name in dict.fromkeys(change.retired) if name in active]


def _require_same(known: Column, column: Column) -> None:
    """Raise ValueError if a column would get another type or field than it has: older files have the old one."""
    if known.path != column.path or known.type != column.type or _normal(known) != _normal(column):
        other = replace(column, name=f"{column.name}_2")
        raise ValueError(
            f"column {known.name} is {declaration(known)}, and that never changes. Declare a new column instead: "
            f"{declaration(other)}"
        )


def _normal(column: Column) -> str:
    return str(Conversion.parse(column.conversion))


def _free_name(name: str, there: Collection[str]) -> str:
    candidates = (free_name(name), f"value_{name}", *(f"{name}_{number}" for number in range(2, COLUMNS_MAX + 3)))
    return next(candidate for candidate in candidates if candidate.lower() not in there)


def _statistics(before: TableColumns, now: TableColumns, configuration: Mapping[str, str]) -> list[str]:
    """Return the columns of which add actions have statistics: declared ones, and those that others have asked for."""
    ours = {column.name for column in (*before.columns, *before.retired, *now.columns)}
    bounded = columns_with_bounds(pa.field(column.name, column.type) for column in now.columns)
    asked = [name.strip() for name in configuration.get(STATISTICS_PROPERTY, "").split(",")]
    listed = [*_STATISTICS_ALWAYS, *bounded, *([VALUE_ERROR] if now.columns else ())]
    return [*listed, *(name for name in asked if name and name not in {*listed, *ours, VALUE_ERROR})]
