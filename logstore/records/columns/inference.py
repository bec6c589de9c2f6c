"""Proposes columns for a sample of values. A person decides, because a column never changes its type.

Integers become bigint; double if any number has a fraction, and decimal(38,0) if one has more than 64 bits. Strings
become timestamp or date if all of them are such texts, and otherwise string, also if they are digits in quotes. An
object becomes a struct, unless most of its keys are rare: then its keys are data, and it is a map. A field that is null
in every value, or has values of several kinds, is left out, and the proposal says how many values of each kind it has.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.records.columns.declaration import (
    COLUMNS_MAX,
    FORBIDDEN,
    declaration,
    field_text,
    free_name,
)
from logstore.records.columns.derive import derive
from logstore.records.columns.schema import (
    DECIMAL_DIGITS_MAX,
    LEVELS_MAX,
    VALUE_ERROR,
    Column,
    ColumnSchema,
    Conversion,
    in_backticks,
)
from logstore.records.columns.times import read_date, read_timestamp

#: An object with more keys than this is a map, and so is one whose keys are in less than this part of the objects.
_KEYS_MAX: Final = 100
_COMMON_PART: Final = 0.05
_MAP_SAMPLE_MIN: Final = 100
#: More distinct fields than this are not counted.
_FIELDS_MAX: Final = 10_000
_LONG: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A field without a column, and the reason."""

    field: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The columns proposed for ``sampled`` values. ``fitting`` of them are tombstones or have columns; ``misfits`` are
    the most frequent reasons of the others, with their numbers. Bytes are those of the sample on disk, without and with
    the columns.
    """

    columns: tuple[Column, ...]
    left_out: tuple[LeftOut, ...]
    sampled: int
    fitting: int
    misfits: tuple[tuple[str, int], ...]
    plain_bytes: int
    typed_bytes: int

    @property
    def ddl(self) -> str:
        return ", ".join(map(declaration, self.columns))


def propose(values: pa.Array) -> Proposal:
    """Return the proposal for binary values; null ones are tombstones. The work is bounded by their bytes."""
    root = _Seen()
    for value in values.to_pylist():
        if value is None:
            continue
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            root.see(document)
    columns, left_out = _columns(root)
    plain = _stored_bytes([values], ["value"])
    if not columns:
        return Proposal((), tuple(left_out), len(values), values.null_count, (), plain, plain)
    derived = derive(ColumnSchema(columns), values)
    reasons = Counter(derived.column(VALUE_ERROR).drop_null().to_pylist())
    return Proposal(
        columns,
        tuple(left_out),
        len(values),
        len(values) - reasons.total(),
        tuple(reasons.most_common(3)),
        plain,
        _stored_bytes([values, *derived.columns], ["value", *derived.schema.names]),
    )


class _Seen:
    """The values that a field has in the sample, by kind."""

    __slots__ = ("count", "elements", "fields", "kinds")

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.count = 0
        self.fields: dict[str, _Seen] = {}
        self.elements: _Seen | None = None

    def see(self, value: Any, level: int = 0) -> None:
        self.count += 1
        kind = _kind(value)
        self.kinds[kind] += 1
        if level > LEVELS_MAX:
            return
        if kind == "object":
            for name, inner in value.items():
                if (field := self.fields.get(name)) is None:
                    if len(self.fields) >= _FIELDS_MAX:
                        continue
                    field = self.fields[name] = _Seen()
                field.see(inner, level + 1)
        elif kind == "array":
            self.elements = self.elements or _Seen()
            for inner in value:
                self.elements.see(inner, level + 1)

    def conversion(self, path: tuple[str, ...], left_out: list[LeftOut]) -> str | None:
        """Return the conversion of the field; None if it has none, with the reason in ``left_out``."""
        kinds = self.kinds.keys() - {"null"}
        found, reason = _of_kinds(kinds, self.kinds)
        if found == "object":
            found, reason = self._struct(path, left_out)
        elif found == "array" and (self.elements is None or not self.elements.count):
            found, reason = None, "an array that is empty in every value"
        elif found == "array":
            assert self.elements is not None
            inner = self.elements.conversion(path, left_out)
            return None if inner is None else f"array<{inner}>"
        if reason is not None:
            left_out.append(LeftOut(field_text(path), reason))
        return found

    def _struct(self, path: tuple[str, ...], left_out: list[LeftOut]) -> tuple[str | None, str | None]:
        if (reason := self._map_reason()) is not None:
            return None, reason
        fields = []
        for name, seen in _distinct(self.fields, path, left_out):
            if FORBIDDEN.search(name) or not name:
                left_out.append(LeftOut(field_text((*path, name)), "its name cannot be that of a field in a table"))
            elif (inner := seen.conversion((*path, name), left_out)) is not None:
                fields.append(f"{in_backticks(name)}:{inner}")
        if not fields:
            return None, "an object without a field that has a type"
        return f"struct<{','.join(fields)}>", None

    def _map_reason(self) -> str | None:
        if len(self.fields) > _KEYS_MAX:
            return f"an object with {len(self.fields):,} different keys: a map"
        common = sum(seen.count for seen in self.fields.values()) >= _COMMON_PART * self.count * len(self.fields)
        if self.count >= _MAP_SAMPLE_MIN and not common:
            return f"an object with {len(self.fields):,} keys that are rare: a map"
        return None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        if value in _LONG:
            return "integer"
        return "large integer" if len(str(abs(value))) <= DECIMAL_DIGITS_MAX else "very large integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        if read_date(value) is not None:
            return "date"
        return "timestamp" if read_timestamp(value) is not None else "string"
    return "object" if isinstance(value, dict) else "array"


def _of_kinds(kinds: set[str], counts: Counter[str]) -> tuple[str | None, str | None]:
    """Return the conversion for values of these kinds, or why there is none."""
    if not kinds:
        return None, "null in every value"
    for of, conversion in (
        ({"integer"}, "bigint"),
        ({"integer", "number"}, "double"),
        ({"integer", "large integer"}, f"decimal({DECIMAL_DIGITS_MAX},0)"),
        ({"boolean"}, "boolean"),
        ({"timestamp"}, "timestamp"),
        ({"date"}, "date"),
        ({"string", "timestamp", "date"}, "string"),
        ({"object"}, "object"),
        ({"array"}, "array"),
    ):
        if kinds <= of:
            return conversion, None
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
    return None, f"values of several kinds: {listed}"


def _columns(root: _Seen) -> tuple[tuple[Column, ...], list[LeftOut]]:
    columns: list[Column] = []
    left_out: list[LeftOut] = []
    names: set[str] = set()
    for field, seen in root.fields.items():
        if not field:
            left_out.append(LeftOut("``", "a field without a name"))
            continue
        text = seen.conversion((field,), left_out)
        if text is None:
            continue
        if len(columns) == COLUMNS_MAX:
            left_out.append(LeftOut(field_text((field,)), f"a topic has at most {COLUMNS_MAX:,} columns"))
            continue
        try:
            conversion = Conversion.parse(text)
        except ValueError as error:
            left_out.append(LeftOut(field_text((field,)), str(error)))
            continue
        name = next(one for one in _names(FORBIDDEN.sub("_", free_name(field))) if one.lower() not in names)
        names.add(name.lower())
        columns.append(Column(name, (field,), str(conversion), conversion.type))
    return tuple(columns), left_out


def _names(name: str) -> Iterator[str]:
    yield name
    for number in range(2, COLUMNS_MAX + 2):
        yield f"{name}_{number}"


def _distinct(
    fields: dict[str, "_Seen"], path: tuple[str, ...], left_out: list[LeftOut]
) -> Iterable[tuple[str, "_Seen"]]:
    """Yield the fields of an object; of names that differ in case only, the first one."""
    seen: dict[str, str] = {}
    for name, field in fields.items():
        if (other := seen.setdefault(name.lower(), name)) != name:
            left_out.append(LeftOut(field_text((*path, name)), f"its name differs from {other} in case only"))
        else:
            yield name, field


def _stored_bytes(columns: Sequence[pa.Array], names: Sequence[str]) -> int:
    """Return the bytes that the rows take in Parquet. The bytes of the file itself would mislead in a small sample."""
    table = pa.table(list(columns), names=list(names))
    metadata: list[pq.FileMetaData] = []
    dictionaries = list(names[1:])
    pq.write_table(
        table, pa.BufferOutputStream(), compression="zstd", use_dictionary=dictionaries, metadata_collector=metadata
    )
    (written,) = metadata
    groups = [written.row_group(index) for index in range(written.num_row_groups)]
    return sum(group.column(at).total_compressed_size for group in groups for at in range(group.num_columns))
