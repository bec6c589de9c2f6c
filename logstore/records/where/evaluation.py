"""Applies an expression to a batch of records, to find those that it selects.

A batch has the columns of LOG_SCHEMA that the expression reads. Keys and timestamps are compared a column at a time.
JSON is parsed only for values that may be selected: the bytes of the other values already show that the field or the
text is missing in them. Invariant: this search of the bytes leaves out no record that the expression selects.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.records.batch import binary_offsets
from logstore.records.key_texts import canonical_keys, respelled_rows
from logstore.records.where.expression import (
    And,
    Comparison,
    Key,
    Literal,
    Node,
    Not,
    Operator,
    Or,
    Path,
    Timestamp,
    comparisons,
    json_key,
    key_forms,
    paths,
    timestamps,
)
from logstore.records.where.json_paths import FieldReader, json_scalar

_VECTOR: Final[Mapping[Operator, Callable[[Any, Any], pa.Array]]] = {
    Operator.equal: pc.equal,
    Operator.not_equal: pc.not_equal,
    Operator.less: pc.less,
    Operator.less_equal: pc.less_equal,
    Operator.greater: pc.greater,
    Operator.greater_equal: pc.greater_equal,
}
_ORDER: Final[Mapping[Operator, Callable[[Any, Any], bool]]] = {
    Operator.less: operator.lt,
    Operator.less_equal: operator.le,
    Operator.greater: operator.gt,
    Operator.greater_equal: operator.ge,
}
#: The value for keys that are not a string, number or boolean in JSON.
_NO_SCALAR: Final = object()
_QUOTE, _BACKSLASH = b'"', ord("\\")
#: The number of values that are parsed at a time.
_ROWS: Final = 1024

_Columns = Mapping[Path, Sequence[Any]]


class Where:
    """An expression that is ready to be applied.

    ``columns`` are the columns of LOG_SCHEMA that it reads. ``timestamps`` is the result of the function with this
    name.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.paths = paths(node)
        self.timestamps = timestamps(node)
        names = {_column_of(comparison) for comparison in comparisons(node)}
        self.columns = frozenset(names)
        self._reader = FieldReader(self.paths)

    def possible(self, batch: pa.RecordBatch) -> pa.Array:
        """Return booleans without nulls: False if the key and timestamp alone show that a record is not selected.

        ``batch`` needs no column of values.
        """
        return _possible(self.node, batch, wanted=True, with_values=False)

    def mask(self, batch: pa.RecordBatch) -> pa.Array:
        """Return booleans without nulls: whether each record is selected."""
        if not self.paths:
            return pc.fill_null(_exact(self.node, batch, {}), fill_value=False)
        possible = _possible(self.node, batch, wanted=True, with_values=True)
        rows = np.flatnonzero(possible.to_numpy(zero_copy_only=False))
        selected = np.zeros(batch.num_rows, np.bool_)
        for start in range(0, len(rows), _ROWS):
            taken = rows[start : start + _ROWS]
            selected[taken] = self._parsed(batch.take(pa.array(taken))).to_numpy(zero_copy_only=False)
        return pa.array(selected)

    def _parsed(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column("value").to_pylist()
        fields = zip(*map(self._reader.read, values), strict=True)
        found = dict(zip(self.paths, fields, strict=True))
        return pc.fill_null(_exact(self.node, batch, found), fill_value=False)


def _column_of(comparison: Comparison) -> str:
    match comparison.operand:
        case Path():
            return "value"
        case named:
            return str(named)


# ---- without parsing values -----------------------------------------------------------------------------------------


def _possible(node: Node, batch: pa.RecordBatch, *, wanted: bool, with_values: bool) -> pa.Array:
    """Return booleans that are False only if ``node`` cannot be ``wanted``."""
    match node:
        case Not(part):
            return _possible(part, batch, wanted=not wanted, with_values=with_values)
        case And(parts) | Or(parts):
            found = [_possible(part, batch, wanted=wanted, with_values=with_values) for part in parts]
            return reduce(pc.and_ if isinstance(node, And) == wanted else pc.or_, found)
        case Comparison(Path(), _, _):
            if with_values:
                return _possible_field(node, batch.column("value"), wanted=wanted)
            return _every(batch.num_rows)
        case Comparison():
            known = _exact(node, batch, {})
            return pc.fill_null(known if wanted else pc.invert(known), fill_value=False)


def _possible_field(node: Comparison, values: pa.Array, *, wanted: bool) -> pa.Array:
    path, literal = node.operand, node.literal
    assert isinstance(path, Path)
    is_equal = node.operator is Operator.equal if wanted else node.operator is Operator.not_equal
    if literal is None:
        if is_equal:
            return _every(len(values))
    elif is_equal and isinstance(literal, str) and (text := _plain_string(literal)) is not None:
        return _contains(values, text)
    # Any other comparison is true or false, and not unknown, only if the value has the field.
    names = [text for step in path.steps if isinstance(step, str) and (text := _plain_string(step)) is not None]
    return _contains(values, max(names, key=len)) if names else values.is_valid()


def _plain_string(text: str) -> bytes | None:
    """Return the JSON string of ``text``, or None if a character in it has to be escaped."""
    try:
        encoded = msgspec.json.encode(text)
    except UnicodeEncodeError:
        return None
    return None if b"\\" in encoded else encoded


def _contains(values: pa.Array, text: bytes) -> pa.Array:
    """Return whether each value contains ``text``, or an escape, which may be another way to write it."""
    found = pc.match_substring(values, pattern=text)
    data = values.buffers()[2]
    if data is not None:
        offsets = binary_offsets(values)
        taken = np.frombuffer(data, np.uint8, int(offsets[-1]))[offsets[0] :]
        if (taken == _BACKSLASH).any():
            found = pc.or_(found, pc.match_substring(values, pattern="\\"))
    return pc.fill_null(found, fill_value=False)


def _every(rows: int) -> pa.Array:
    return pa.array(np.ones(rows, np.bool_))


# ---- SQL's three values ---------------------------------------------------------------------------------------------


def _exact(node: Node, batch: pa.RecordBatch, fields: _Columns) -> pa.Array:
    """Return true, false or null (unknown) for each record. ``fields`` has the fields of the values."""
    match node:
        case Not(part):
            return pc.invert(_exact(part, batch, fields))
        case And(parts):
            return reduce(pc.and_kleene, [_exact(part, batch, fields) for part in parts])
        case Or(parts):
            return reduce(pc.or_kleene, [_exact(part, batch, fields) for part in parts])
        case Comparison(Timestamp(), operator, int(at)):
            return _VECTOR[operator](batch.column("timestamp").view(pa.int64()), at)
        case Comparison(Key(), operator, literal):
            return _compare_keys(batch.column("key"), operator, literal)
        case Comparison(Path() as path, operator, literal):
            return _compare(fields[path], operator, literal)
        case _:
            raise TypeError(f"{node} is no expression")


def _compare_keys(keys: pa.Array, operator: Operator, literal: Literal) -> pa.Array:
    match literal:
        case None:
            return keys.is_null() if operator is Operator.equal else keys.is_valid()
        case bytes():
            return _VECTOR[operator](keys, pa.scalar(literal, keys.type))
        case str() if operator.is_order:
            return _VECTOR[operator](_key_texts(keys), pa.scalar(literal.encode(errors="surrogatepass"), keys.type))
        case str():
            named = pc.is_in(keys, value_set=pa.array(sorted(key_forms(literal)), keys.type))
            rows = respelled_rows(keys)
            if len(rows):
                same = pc.equal(canonical_keys(keys.take(pa.array(rows))), pa.scalar(json_key(literal), keys.type))
                mask = named.to_numpy(zero_copy_only=False).copy()
                mask[rows] |= same.to_numpy(zero_copy_only=False)
                named = pa.array(mask)
            known = pc.if_else(keys.is_valid(), named, None)
            return known if operator is Operator.equal else pc.invert(known)
        case _:
            # A key that is not such a JSON value is known to be different.
            texts = keys.to_pylist()
            return _compare([None if text is None else _json_key(text) for text in texts], operator, literal)


def _key_texts(keys: pa.Array) -> pa.Array:
    quoted = pc.fill_null(pc.starts_with(keys, pattern=_QUOTE), fill_value=False)
    if not pc.any(quoted).as_py():
        return keys
    texts = []
    for key in keys.filter(quoted).to_pylist():
        text = json_scalar(key)
        texts.append(text.encode(errors="surrogatepass") if isinstance(text, str) else key)
    return pc.replace_with_mask(keys, quoted, pa.array(texts, keys.type))


def _json_key(key: bytes) -> Any:
    found = json_scalar(key)
    return _NO_SCALAR if found is None else found


def _compare(found: Sequence[Any], operator: Operator, literal: Literal) -> pa.Array:
    """Compare each of ``found``, as ``FieldReader`` returns them, with the literal."""
    if literal is None:
        missing = pa.array([value is None for value in found], pa.bool_())
        return missing if operator is Operator.equal else pc.invert(missing)
    same_types = (bool,) if isinstance(literal, bool) else (str,) if isinstance(literal, str) else (int, Decimal)
    if operator.is_order:
        order = _ORDER[operator]
        known = [order(value, literal) if type(value) in same_types else None for value in found]
        return pa.array(known, pa.bool_())
    known = [None if value is None else value == literal and type(value) in same_types for value in found]
    equal = pa.array(known, pa.bool_())
    return equal if operator is Operator.equal else pc.invert(equal)
