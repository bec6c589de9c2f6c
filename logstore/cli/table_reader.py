"""Rows of CSV and Parquet files as records, a bounded number at a time.

A file with a column ``value`` (or ``--value-field``) holds records: key and value are its bytes, and what ``logstore
consume`` writes comes back as it was. In any other file each row is one JSON object of all its columns, as a line of
NDJSON would be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from logstore.errors import InvalidRecordError

# Rows that are Python objects for a moment, when each becomes a JSON object.
_ROWS_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Fields:
    """Which columns hold what; None: those of these names in a file of records, else none."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    headers: str | None = None
    partition: str | None = None
    key_raw: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """``columns`` for ``Producer.send_batch``; ``numbers``: which rows of the file, from 1; ``size``: bytes."""

    columns: dict[str, Any]
    numbers: np.ndarray
    size: int


def read_csv(stream: BinaryIO, block_bytes: int, fields: Fields) -> Iterator[Rows]:
    """InvalidRecordError naming the row, or the column that there is not.

    What is in quotes is text, and what is not and empty is null; columns of objects have the types of their first rows.
    """
    # Before the types are known it must be known which columns are taken as they are.
    texts = {name: pa.string() for name in (fields.key, fields.value, "key", "value") if name is not None}
    try:
        reader = pa.csv.open_csv(
            pa.PythonFile(stream, "r"),
            pa.csv.ReadOptions(block_size=block_bytes),
            pa.csv.ParseOptions(newlines_in_values=True),
            pa.csv.ConvertOptions(column_types=texts, strings_can_be_null=True, quoted_strings_can_be_null=False),
        )
        yield from _rows(reader, reader.schema, fields)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" not in str(error):
            raise InvalidRecordError(str(error)) from error


def read_parquet(path: Path, block_bytes: int, fields: Fields) -> Iterator[Rows]:
    """InvalidRecordError for what is no Parquet file, or a column that there is not."""
    try:
        with pa.parquet.ParquetFile(path) as file:
            groups = (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups))
            row_bytes = sum(group.total_byte_size for group in groups) // max(1, file.metadata.num_rows)
            rows = max(1, min(_ROWS_MAX, block_bytes // max(1, row_bytes)))
            yield from _rows(file.iter_batches(batch_size=rows), file.schema_arrow, fields)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(str(error)) from error


def _rows(batches: Any, schema: pa.Schema, fields: Fields) -> Iterator[Rows]:
    for name in (fields.key, fields.value, fields.timestamp, fields.headers, fields.partition):
        if name is not None and name not in schema.names:
            raise InvalidRecordError(f"there is no column {name!r}: the file has {', '.join(schema.names)}")
    of_records = fields.value is not None or "value" in schema.names
    first = 1
    for whole in batches:
        for start in range(0, whole.num_rows, _ROWS_MAX):
            batch = whole.slice(start, _ROWS_MAX)
            columns = _record_columns(batch, fields) if of_records else _object_columns(batch, fields)
            yield Rows(columns, np.arange(first, first + batch.num_rows), batch.nbytes)
            first += batch.num_rows


def _record_columns(batch: pa.RecordBatch, fields: Fields) -> dict[str, Any]:
    columns = _further(batch, fields)
    for name, field in (("key", fields.key or "key"), ("value", fields.value or "value")):
        if field in batch.schema.names:
            columns[name] = _as_bytes(batch.column(field))
    for name in ("timestamp", "headers"):
        if name not in columns and name in batch.schema.names:
            columns[name] = batch.column(name)
    return columns


def _object_columns(batch: pa.RecordBatch, fields: Fields) -> dict[str, Any]:
    rows = batch.to_pylist()
    columns = _further(batch, fields)
    columns["value"] = pa.array([msgspec.json.encode(row) for row in rows], pa.binary())
    if fields.key is not None:
        columns["key"] = pa.array([_key(row[fields.key], raw=fields.key_raw) for row in rows], pa.binary())
    return columns


def _further(batch: pa.RecordBatch, fields: Fields) -> dict[str, Any]:
    named = {"timestamp": fields.timestamp, "headers": fields.headers, "partition": fields.partition}
    return {name: batch.column(field) for name, field in named.items() if field is not None}


def _as_bytes(column: pa.Array) -> pa.Array:
    """Bytes and texts as they are; of anything else its JSON text."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)
    if any(of_kind(column.type) for of_kind in kinds):
        return column
    texts = [None if value is None else msgspec.json.encode(value) for value in column.to_pylist()]
    return pa.array(texts, pa.binary())


def _key(value: Any, *, raw: bool) -> bytes | None:
    """The JSON text, as of a field of NDJSON; with ``raw`` bytes and texts as they are."""
    if value is None:
        return None
    if raw and isinstance(value, (str, bytes)):
        return value.encode() if isinstance(value, str) else value
    return msgspec.json.encode(value)
