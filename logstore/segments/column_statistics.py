"""The statistics of a segment's declared columns, as add actions have them (Delta protocol, "Per-file Statistics").
They come from the statistics in its Parquet footer.

Only declared columns have statistics there, besides ``offset`` and ``timestamp``. Invariants: no statistic hides a row
(a text is cut to 32 characters, and the largest one is rounded up; times have all digits); what is not known is left
out; every file has a count of nulls of each declared column that it has.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.records.columns.schema import VALUE_ERROR
from logstore.records.schema import SEGMENT_SCHEMA

#: The most columns of a table that have bounds in add actions, which is Delta's own default.
STATISTICS_COLUMNS_MAX = 32
#: Columns that count whatever is declared: ``offset``, ``timestamp`` and ``value_error``.
_ALWAYS = 3
_TEXT_MAX = 32
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)
#: Some readers take the bounds of a decimal for binary numbers, which are exact up to here.
_EXACT_DIGITS = 15

Bound = int | float | str | None


class ColumnStatistics(NamedTuple):
    """The statistics of a column, or of a field in a struct, which ``path`` names. ``low`` and ``high`` are None if
    they are not known, or if the column has none.
    """

    path: tuple[str, ...]
    nulls: int
    low: Bound = None
    high: Bound = None


class _Leaf(NamedTuple):
    """A column of Parquet. ``path`` ends at the array if it is in one."""

    path: tuple[str, ...]
    type: pa.DataType
    is_in_array: bool


def has_bounds(kind: pa.DataType) -> bool:
    """Return whether columns of this type have bounds: the smallest and the largest value."""
    return bool(
        pa.types.is_int64(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or (pa.types.is_decimal(kind) and kind.precision <= _EXACT_DIGITS)
    )


def columns_with_bounds(columns: Iterable[pa.Field]) -> list[str]:
    """Return the names of the declared ``columns`` that have bounds: the first ones of those that can have them."""
    names = [column.name for column in columns if column.name != VALUE_ERROR and has_bounds(column.type)]
    return names[: STATISTICS_COLUMNS_MAX - _ALWAYS]


def column_statistics(
    metadata: pq.FileMetaData, null_arrays: Mapping[str, int] | None = None
) -> tuple[ColumnStatistics, ...]:
    """Return the statistics of the declared columns of a file. ``null_arrays`` are the numbers of nulls of columns with
    arrays, which no footer has: without them these columns have no statistics.
    """
    schema = metadata.schema.to_arrow_schema()
    if len(schema) == len(SEGMENT_SCHEMA) or not metadata.num_row_groups:
        return ()
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    with_bounds = set(columns_with_bounds(field for field in schema if field.name not in SEGMENT_SCHEMA.names))
    found: dict[tuple[str, ...], ColumnStatistics] = {}
    for at, leaf in enumerate(_leaves(schema)):
        name, *inner = leaf.path
        if name in SEGMENT_SCHEMA.names:
            continue
        chunks = [group.column(at).statistics for group in groups]
        if not all(chunk is not None and chunk.has_null_count for chunk in chunks):
            continue
        if leaf.is_in_array:
            if not inner and name in (null_arrays or {}):
                found[leaf.path] = ColumnStatistics(leaf.path, (null_arrays or {})[name])
            continue
        filled = [c for c, group in zip(chunks, groups, strict=True) if c.null_count < group.num_rows]
        bounds = _bounds(leaf.type, filled) if not inner and name in with_bounds else (None, None)
        found[leaf.path] = ColumnStatistics(leaf.path, sum(chunk.null_count for chunk in chunks), *bounds)
    return tuple(found.values())


def _leaves(schema: pa.Schema) -> Iterator[_Leaf]:
    for field in schema:
        yield from _leaves_of((field.name,), field.type)


def _leaves_of(path: tuple[str, ...], kind: pa.DataType, *, is_in_array: bool = False) -> Iterator[_Leaf]:
    if pa.types.is_struct(kind):
        for field in kind:
            inner = path if is_in_array else (*path, field.name)
            yield from _leaves_of(inner, field.type, is_in_array=is_in_array)
    elif pa.types.is_map(kind):
        yield from _leaves_of(path, kind.key_type, is_in_array=True)
        yield from _leaves_of(path, kind.item_type, is_in_array=True)
    elif pa.types.is_list(kind):
        yield from _leaves_of(path, kind.value_type, is_in_array=True)
    else:
        yield _Leaf(path, kind, is_in_array)


def _bounds(kind: pa.DataType, chunks: Iterable[Any]) -> tuple[Bound, Bound]:
    """Return the bounds of all row groups that have a value; None if one of them does not say."""
    chunks = list(chunks)
    if not chunks or not all(chunk.has_min_max for chunk in chunks):
        return None, None
    if pa.types.is_timestamp(kind):
        low, high = min(chunk.min_raw for chunk in chunks), max(chunk.max_raw for chunk in chunks)
        return f"{np.datetime64(low, 'us')}Z", f"{np.datetime64(high, 'us')}Z"
    if pa.types.is_date32(kind):
        low, high = min(chunk.min_raw for chunk in chunks), max(chunk.max_raw for chunk in chunks)
        return str(np.datetime64(low, "D")), str(np.datetime64(high, "D"))
    low, high = min(chunk.min for chunk in chunks), max(chunk.max for chunk in chunks)
    if pa.types.is_string(kind):
        return low[:_TEXT_MAX], _rounded_up(high)
    if pa.types.is_decimal(kind):
        return float(low), float(high)
    if pa.types.is_float64(kind) and not (math.isfinite(low) and math.isfinite(high)):
        return None, None
    return low, high


def _rounded_up(text: str) -> str | None:
    """Return a text of at most 32 characters that no text with this beginning exceeds; None if there is none."""
    if len(text) <= _TEXT_MAX:
        return text
    # Readers compare UTF-8, whose order is that of the characters.
    kept = text[:_TEXT_MAX].rstrip(_LAST_CHARACTER)
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
