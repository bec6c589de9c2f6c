"""Rows of CSV and Parquet files as records, a bounded number at a time.

A file with a column ``value`` (or ``--value-field``) contains records: key and value are its bytes, so output of
``logstore consume`` can be produced again unchanged. In any other file each row becomes one JSON object of all its
columns, like a line of NDJSON.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from logstore.cli.json_columns import json_objects, json_texts, key_texts
from logstore.errors import InvalidRecordError

# Rows whose JSON texts are in memory at once.
_ROWS_MAX = 16 * 1024
_TIMES = (
    pa.int64(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.timestamp("ns", "UTC"),
    pa.timestamp("ns"),
)


@dataclass(frozen=True, slots=True)
class Fields:
    """The columns for each part of a record; None means the column of that name in a file of records."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    headers: str | None = None
    partition: str | None = None
    key_json: bool = False

    @property
    def named(self) -> list[str]:
        names = (self.key, self.value, self.timestamp, self.headers, self.partition)
        return [name for name in names if name is not None]


@dataclass(frozen=True, slots=True)
class Rows:
    """``columns`` are for ``Producer.send_batch``, ``numbers`` are the rows in the file from 1, ``size`` is bytes."""

    columns: dict[str, Any]
    numbers: np.ndarray
    size: int


def read_parquet(path: Path, block_bytes: int, fields: Fields) -> Iterator[Rows]:
    """Yield the rows. Raises InvalidRecordError for a file that is not Parquet, or a column that does not exist."""
    try:
        with pa.parquet.ParquetFile(path) as file:
            groups = (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups))
            row_bytes = sum(group.total_byte_size for group in groups) // max(1, file.metadata.num_rows)
            rows = max(1, min(_ROWS_MAX, block_bytes // max(1, row_bytes)))
            yield from rows_of(file.iter_batches(batch_size=rows), file.schema_arrow.names, fields)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(str(error)) from error


def rows_of(batches: Iterable[pa.RecordBatch], names: Sequence[str], fields: Fields) -> Iterator[Rows]:
    """Yield the rows. ``names`` are those of all columns.

    Raises InvalidRecordError naming the row, or a column that is missing or occurs twice.
    """
    if twice := [name for index, name in enumerate(names) if name in names[:index]]:
        raise InvalidRecordError(f"there are two columns {twice[0]!r}: give each its own name")
    for name in fields.named:
        require_column(name, names)
    of_records = fields.value is not None or "value" in names
    first = 1
    for whole in batches:
        for start in range(0, whole.num_rows, _ROWS_MAX):
            batch = whole.slice(start, _ROWS_MAX)
            columns = _record_columns(batch, fields) if of_records else _object_columns(batch, fields)
            if "timestamp" in columns:
                columns["timestamp"] = _parsed(columns["timestamp"], _TIMES, "a time", first)
            if "partition" in columns:
                columns["partition"] = _parsed(columns["partition"], (pa.int32(),), "a partition", first)
            yield Rows(columns, np.arange(first, first + batch.num_rows), batch.nbytes)
            first += batch.num_rows


def require_column(name: str, names: Sequence[str]) -> None:
    """Raise InvalidRecordError if there is no column ``name``."""
    if name not in names:
        raise InvalidRecordError(f"there is no column {name!r}: the file has {', '.join(names)}")


def _record_columns(batch: pa.RecordBatch, fields: Fields) -> dict[str, Any]:
    columns = _further(batch, fields)
    for name, field in (("key", fields.key or "key"), ("value", fields.value or "value")):
        if field in batch.schema.names:
            columns[name] = batch.column(field)
    if "key" in columns:
        columns["key"] = _keys(columns["key"], fields)
    if not _is_bytes_or_text(columns["value"].type):
        columns["value"] = _or_null(json_texts(columns["value"]), columns["value"])
    for name in ("timestamp", "headers"):
        if name not in columns and name in batch.schema.names:
            columns[name] = batch.column(name)
    return columns


def _object_columns(batch: pa.RecordBatch, fields: Fields) -> dict[str, Any]:
    columns = _further(batch, fields)
    columns["value"] = json_objects(batch)
    if fields.key is not None:
        columns["key"] = _keys(batch.column(fields.key), fields)
    return columns


def _further(batch: pa.RecordBatch, fields: Fields) -> dict[str, Any]:
    named = {"timestamp": fields.timestamp, "headers": fields.headers, "partition": fields.partition}
    return {name: batch.column(field) for name, field in named.items() if field is not None}


def _keys(column: pa.Array, fields: Fields) -> pa.Array:
    return _or_null(json_texts(column), column) if fields.key_json else key_texts(column)


def _or_null(texts: pa.Array, column: pa.Array) -> pa.Array:
    return pa.compute.if_else(column.is_valid(), texts, None)


def _is_bytes_or_text(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    return any(of_kind(kind) for of_kind in kinds)


def _parsed(column: pa.Array, kinds: Sequence[pa.DataType], what: str, first: int) -> pa.Array:
    """Convert a text column to the first of ``kinds`` that fits all its values; other columns are unchanged.

    Raises InvalidRecordError with the row of a value that fits none. Times may be mixed, with a zone and without.
    """
    if not pa.types.is_string(column.type):
        return column
    if (whole := _cast(column, kinds)) is not None:
        return whole
    rows = [_cast(column.slice(row, 1), kinds) for row in range(len(column))]
    for row, one in enumerate(rows):
        if one is None:
            raise InvalidRecordError(f"row {first + row}: {column[row].as_py()!r} is not {what}")
    texts = [(row, one) for row, one in enumerate(rows) if one is not None and one.null_count == 0]
    (_, before), *others = texts
    for row, one in others:
        if pa.types.is_integer(one.type) != pa.types.is_integer(before.type):
            here, above = ("number", "text") if pa.types.is_integer(one.type) else ("text", "number")
            text = column[row].as_py()
            raise InvalidRecordError(
                f"row {first + row}: {text!r} is {what} as a {here}, in the rows before it is a {above}"
            )
    # A time without a zone is UTC; digits below a millisecond are cut off, as in the store.
    milliseconds = pa.timestamp("ms", "UTC")
    return pa.concat_arrays([one.cast(milliseconds, safe=False) for one in rows if one is not None])


def _cast(column: pa.Array, kinds: Sequence[pa.DataType]) -> pa.Array | None:
    """Return the values as the first of ``kinds`` that fits all of them; None if none does."""
    for kind in kinds:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None
