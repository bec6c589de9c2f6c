"""Columns of CSV and Parquet files as JSON texts, a column at a time, in the forms that docs/cli.md promises.

Invariants: each text is one JSON value (RFC 8259) and no element is null anywhere (null is the text ``null``). Nothing
is rounded: decimals and nanoseconds keep all their digits, and a column's unit determines the digits of its times.
"""

import uuid
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError

_ESCAPED = r'["\\\x00-\x1f]'
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def json_objects(batch: pa.RecordBatch) -> pa.Array:
    """Return each row as a JSON object of all its columns.

    Raises InvalidRecordError naming a column whose type has no JSON form, or that occurs twice.
    """
    texts = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            texts.append(json_texts(column))
        except InvalidRecordError as error:
            raise InvalidRecordError(f"column {name!r}: {error.message}") from error
    return _objects(batch.schema.names, texts, batch.num_rows)


def json_texts(column: pa.Array) -> pa.Array:
    """Return the JSON text of each value (null: ``null``). Raises InvalidRecordError for a type without JSON."""
    return pc.fill_null(_json(column), "null")


def key_texts(column: pa.Array) -> pa.Array:
    """Return each value as a raw key; null stays null. Raises InvalidRecordError for a type without a JSON form.

    Bytes and texts stay as they are, values that are strings in JSON become their text, others their JSON.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return key_texts(column.dictionary).take(column.indices)
    if pa.types.is_run_end_encoded(kind):
        return key_texts(pc.run_end_decode(column))
    if _is_text(kind) or _is_bytes(kind):
        return column.cast(pa.binary())
    plain = _plain(column)
    return pc.if_else(column.is_valid(), _json(column), None) if plain is None else plain


def _json(column: pa.Array) -> pa.Array:
    """Return the texts of ``json_texts``, but null for null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json(column.dictionary).take(column.indices)
    if pa.types.is_run_end_encoded(kind):
        return _json(pc.run_end_decode(column))
    if _is_text(kind):
        return _strings(column.cast(pa.string()))
    if (plain := _plain(column)) is not None:
        return _joined('"', plain, '"')
    if isinstance(kind, pa.BaseExtensionType):
        return _json(column.storage)
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_struct(kind):
        names = [kind.field(index).name for index in range(kind.num_fields)]
        texts = [json_texts(field) for field in column.flatten()]
        return pc.if_else(column.is_valid(), _objects(names, texts, len(column)), None)
    if pa.types.is_map(kind):
        return _maps(column)
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return _lists(column, json_texts(pc.list_flatten(column)), "[", "]")
    raise InvalidRecordError(f"values of type {kind} have no JSON form")


def _plain(column: pa.Array) -> pa.Array | None:
    """Return the text between the quotes, for types whose JSON is a string without escapes; None for other types."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Times with a zone are instants, shown in UTC.
        local = column.cast(pa.int64()).cast(pa.timestamp(kind.unit))
        text = pc.replace_substring(_in_range(local), pattern=" ", replacement="T", max_replacements=1)
        return text if kind.tz is None else _joined(text, "Z")
    if pa.types.is_date(kind):
        return _in_range(column.cast(pa.date32()))
    if pa.types.is_time(kind):
        return column.cast(pa.string())
    if pa.types.is_duration(kind):
        return _durations(column)
    if _is_bytes(kind):
        return _each(column, lambda data: b64encode(data).decode())
    if isinstance(kind, pa.UuidType):
        return _each(column.storage, lambda data: str(uuid.UUID(bytes=data)))
    return None


def _strings(texts: pa.Array) -> pa.Array:
    texts.validate(full=True)  # a Parquet file may contain anything as text
    quoted = _joined('"', texts, '"')
    escaped = pc.fill_null(pc.match_substring_regex(texts, pattern=_ESCAPED), fill_value=False)
    if not pc.any(escaped).as_py():
        return quoted
    return pc.replace_with_mask(
        quoted, escaped, _each(texts.filter(escaped), lambda text: msgspec.json.encode(text).decode())
    )


def _floats(column: pa.Array) -> pa.Array:
    """Return the shortest digits that give the same number.

    NaN and infinities are strings, as in ProtoJSON and Spark.
    """
    column = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    texts = column.cast(pa.string())
    texts = pc.if_else(pc.match_substring_regex(texts, pattern="^-?[0-9]+$"), _joined(texts, ".0"), texts)
    texts = pc.if_else(pc.is_nan(column), '"NaN"', texts)
    infinite = pc.if_else(pc.greater(column, 0), '"Infinity"', '"-Infinity"')
    return pc.if_else(pc.is_inf(column), infinite, texts)


def _durations(column: pa.Array) -> pa.Array:
    """Return ISO 8601 in seconds, as Java's Duration: ``PT90.500S``, ``PT-1.000S``."""
    digits = _DIGITS[column.type.unit]
    counts = column.cast(pa.int64())
    sizes = pc.abs(counts)
    seconds = pc.divide(sizes, 10**digits)
    rest = pc.subtract(sizes, pc.multiply(seconds, 10**digits)).cast(pa.string())
    fraction = _joined(".", pc.utf8_lpad(rest, digits, "0")) if digits else ""
    return _joined("PT", pc.if_else(pc.less(counts, 0), "-", ""), seconds.cast(pa.string()), fraction, "S")


def _maps(column: pa.Array) -> pa.Array:
    """Return objects. A key that is not a string in JSON becomes the string of its JSON text."""
    kind = column.type
    entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
    lists = column.cast(pa.list_(entry))
    keys, items = pc.list_flatten(lists).flatten()
    keys = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    is_string = _is_text(keys.type) or _plain(keys) is not None
    names = json_texts(keys) if is_string else _strings(json_texts(keys))
    return _lists(lists, _joined(names, ":", json_texts(items)), "{", "}")


def _lists(lists: pa.Array, elements: pa.Array, opening: str, closing: str) -> pa.Array:
    """Return lists. ``elements`` are the texts of the elements of all lists, one after the other."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), elements), ",")
    return pc.if_else(lists.is_valid(), _joined(opening, texts, closing), None)


def _objects(names: Sequence[str], texts: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return objects. ``texts`` are those of each field, without nulls."""
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise InvalidRecordError(f"there are two columns {twice[0]!r}: a JSON object has each name once")
    if not texts:
        return pa.repeat("{}", rows)
    parts: list[pa.Array | str] = []
    for name, text in zip(names, texts, strict=True):
        parts += [("," if parts else "{") + msgspec.json.encode(name).decode() + ":", text]
    return _joined(*parts, "}")


def _in_range(column: pa.Array) -> pa.Array:
    texts = column.cast(pa.string())
    if pc.any(pc.starts_with(texts, pattern="<")).as_py():
        raise InvalidRecordError(f"a value of type {column.type} is too far from now to be written as a time")
    return texts


def _each(column: pa.Array, text_of: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else text_of(value) for value in column.to_pylist()], pa.string())


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
