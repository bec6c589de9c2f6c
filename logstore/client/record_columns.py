"""What a program hands to a producer, brought to the wire schema: records one by one, or columns.

Partition -1 in a partition column means "not named", as in the protocol.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError, InvalidRequestError
from logstore.records.schema import WIRE_SCHEMA

#: Columns of a batch, or a mapping of column names to values that pyarrow takes.
Columns: TypeAlias = pa.RecordBatch | pa.Table | Mapping[str, Any]
Headers = Sequence[tuple[str, bytes | None]]
Bytes = bytes | str | None

_NAMES = (*WIRE_SCHEMA.names, "partition")


class RecordBuffer:
    """Records of one topic that wait to be sent together; ``size`` is their bytes."""

    def __init__(self) -> None:
        self._timestamps: list[int | None] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Headers | None] = []
        self._partitions: list[int] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self._values)

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp_ms: int | None,
        headers: Headers | None,
        size: int,
    ) -> None:
        self._timestamps.append(timestamp_ms)
        self._keys.append(key)
        self._values.append(value)
        self._headers.append(headers)
        self._partitions.append(partition)
        self.size += size

    def columns(self) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """A WIRE_SCHEMA batch, and the partitions that records name; None if none does."""
        headers = [
            None if pairs is None else [{"key": name, "value": value} for name, value in pairs]
            for pairs in self._headers
        ]
        columns = (self._timestamps, self._keys, self._values, headers)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, WIRE_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA), _named(np.array(self._partitions, np.int32))


def to_bytes(value: Bytes, what: str) -> bytes | None:
    """Text as UTF-8; InvalidRecordError for anything but bytes, text and None."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise InvalidRecordError(f"A {what} is bytes, text or None, not {type(value).__name__}: serialize it first.")


def check_record(partition: int | None, timestamp_ms: int | None, headers: Headers | None) -> int:
    """The bytes of the headers. InvalidRecordError for what no store takes, so that it fails at ``send``."""
    if partition is not None and not 0 <= partition < 2**31:
        raise InvalidRecordError(f"Partition {partition} is not a number from 0.")
    if timestamp_ms is not None and timestamp_ms < 0:
        raise InvalidRecordError(f"Timestamp {timestamp_ms} is negative: give milliseconds since 1970, or None.")
    size = 0
    for name, value in headers or ():
        if not all(isinstance(part, kind) for part, kind in ((name, str), (value, bytes | None))):
            raise InvalidRecordError(f"Header {name!r} is not a pair of text and bytes or None.")
        size += len(name) + len(value or b"")
    return size


def from_columns(columns: Columns) -> tuple[pa.RecordBatch, np.ndarray | None]:
    """A WIRE_SCHEMA batch, and the partitions that records name. Only ``value`` must be there.

    ``key`` and ``value`` are binary or text, ``timestamp`` int64 (ms) or any timestamp, ``partition`` any integer.
    InvalidRequestError naming the column that is missing, unknown or of another type.
    """
    table = columns if isinstance(columns, pa.Table) else _table(columns)
    if unknown := [name for name in table.column_names if name not in _NAMES]:
        raise InvalidRequestError(f"There is no column {unknown[0]!r} in a record: use {', '.join(_NAMES)}.")
    if "value" not in table.column_names:
        raise InvalidRequestError("A column 'value' is needed.")
    arrays = []
    for field in WIRE_SCHEMA:
        if field.name in table.column_names:
            arrays.append(_cast(table.column(field.name), field))
        else:
            arrays.append(pa.nulls(table.num_rows, field.type))
    named = None
    if "partition" in table.column_names:
        partitions = _cast(table.column("partition"), pa.field("partition", pa.int32()))
        named = _named(pc.fill_null(partitions, -1).to_numpy(zero_copy_only=False))
    return pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA), named


def _table(columns: pa.RecordBatch | Mapping[str, Any]) -> pa.Table:
    if isinstance(columns, pa.RecordBatch):
        return pa.Table.from_batches([columns])
    try:
        return pa.table(dict(columns))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequestError(f"These are not columns of one length that Arrow knows: {error}") from error


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    source, target = column.type, field.type
    try:
        if field.name == "timestamp" and pa.types.is_integer(source):
            column = column.cast(pa.int64())
        elif field.name == "timestamp" and not pa.types.is_timestamp(source):
            raise pa.ArrowTypeError("it takes int64 milliseconds or a timestamp")
        # Finer timestamps lose what is below a millisecond.
        cast = column.cast(target, safe=not pa.types.is_timestamp(source))
    except pa.ArrowException as error:
        raise InvalidRequestError(f"Column {field.name!r} of type {source} cannot be {target}: {error}") from error
    combined = cast.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], target)
    return combined


def _named(partitions: np.ndarray) -> np.ndarray | None:
    return partitions if len(partitions) and partitions.max() >= 0 else None
