"""A program's records, one by one or as columns, converted to the wire schema.

Partition -1 in a partition column means "not named", as in the protocol.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.client.producer.delivery import OnDelivery
from logstore.errors import InvalidRecordError, InvalidRequestError, SerializationError
from logstore.limits import TIMESTAMP_MS_MAX
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA, null_headers

#: Columns of a batch, or a mapping of column names to values that pyarrow accepts.
Columns: TypeAlias = pa.RecordBatch | pa.Table | Mapping[str, Any]
Pairs: TypeAlias = tuple[tuple[str, bytes | None], ...]
Headers: TypeAlias = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]

_NAMES = (*WIRE_SCHEMA.names, "partition")
_WANTED = {"key": "bytes or text", "value": "bytes or text", "partition": "whole numbers from 0, or -1"}
_PARTITION_MAX = np.iinfo(np.int32).max


class Extras(NamedTuple):
    """The checked fields of a record other than key and value."""

    headers: Pairs | None
    header_bytes: int
    partition: int | None
    timestamp_ms: int | None
    on_delivery: OnDelivery | None


class RecordList:
    """Records of one topic, as a producer collects them: value, key, extras (or None) of each, one after the other.

    It is one flat list, so that a record joins in one step: an exception of a signal handler (Ctrl-C) comes before or
    after.
    """

    __slots__ = ("flat",)

    def __init__(self) -> None:
        self.flat: list[Any] = []

    def __len__(self) -> int:
        return len(self.flat) // 3

    def callbacks(self) -> Iterator[tuple[int, OnDelivery]]:
        """Yield the row and the ``on_delivery`` of each record that has one."""
        extras: list[Extras | None] = self.flat[2::3]
        if any(extras):
            for row, extra in enumerate(extras):
                if extra and extra.on_delivery:
                    yield row, extra.on_delivery

    def columns(self) -> tuple[pa.RecordBatch, np.ndarray | None]:
        """Return a WIRE_SCHEMA batch, and the partitions that records name (-1: none); None if none does."""
        values, keys, extras = self.flat[0::3], self.flat[1::3], self.flat[2::3]
        rows = len(values)
        timestamps, headers, named = pa.nulls(rows, pa.int64()), null_headers(rows), None
        if any(extras):
            given = [extra or _NO_EXTRAS for extra in extras]
            timestamps = pa.array([extra.timestamp_ms for extra in given], pa.int64())
            if any(extra.headers is not None for extra in given):
                headers = pa.array([_pairs(extra.headers) for extra in given], HEADERS_TYPE)
            if any(extra.partition is not None for extra in given):
                named = np.array([-1 if extra.partition is None else extra.partition for extra in given], np.int32)
        arrays = [
            timestamps.cast(WIRE_SCHEMA.field("timestamp").type),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            headers,
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA), named


_NO_EXTRAS = Extras(None, 0, None, None, None)


def _pairs(headers: Pairs | None) -> list[dict[str, Any]] | None:
    return None if headers is None else [{"key": name, "value": value} for name, value in headers]


def to_bytes(value: object, what: str) -> bytes | None:
    """Return text as UTF-8. Raises SerializationError for a value that is neither bytes nor text nor None."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise SerializationError(f"The {what} is text that UTF-8 cannot carry: {error}") from error
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise SerializationError(
        f"A {what} is bytes, text or None, not {type(value).__name__}: serialize it first, or give {what}_serializer"
    )


def check_extras(
    headers: Headers | None, partition: int | None, timestamp_ms: int | None, on_delivery: OnDelivery | None
) -> Extras:
    """Check the optional fields, so that ``send`` raises InvalidRecordError for those that no store accepts."""
    pairs, header_bytes = (None, 0) if headers is None else _check_headers(headers)
    return Extras(
        pairs,
        header_bytes,
        None if partition is None else _check_partition(partition),
        None if timestamp_ms is None else _check_timestamp(timestamp_ms),
        on_delivery,
    )


def _check_partition(partition: object) -> int:
    if not isinstance(partition, int) or not 0 <= partition <= _PARTITION_MAX:
        raise InvalidRecordError(f"Partition {partition!r} is not a whole number from 0")
    return partition


def _check_timestamp(timestamp_ms: object) -> int:
    if not isinstance(timestamp_ms, int) or not 0 <= timestamp_ms <= TIMESTAMP_MS_MAX:
        raise InvalidRecordError(
            f"Timestamp {timestamp_ms!r} is not a whole number of milliseconds since 1970, up to {TIMESTAMP_MS_MAX}: "
            "leave it out for the time of the append"
        )
    return timestamp_ms


def _check_headers(headers: Headers) -> tuple[Pairs, int]:
    """Return the pairs of ``headers``, and their size in bytes."""
    pairs: tuple[Any, ...] = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
    size = 0
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise InvalidRecordError(f"Header {pair!r} is not a pair of a name and a value")
        name, value = pair
        if not (isinstance(name, str) and (value is None or isinstance(value, bytes))):
            raise InvalidRecordError(f"Header {name!r} is not a pair of text and bytes or None")
        try:
            size += len(name.encode()) + len(value or b"")
        except UnicodeEncodeError as error:
            raise InvalidRecordError(f"Header name {name!r} is text that UTF-8 cannot carry") from error
    return pairs, size


def from_columns(columns: Columns) -> tuple[pa.RecordBatch, np.ndarray | None]:
    """Return a WIRE_SCHEMA batch, and the partitions that records name. Only ``value`` is required.

    ``key`` and ``value`` are binary or text, ``timestamp`` int64 (ms) or any timestamp, ``partition`` any integer.
    Raises InvalidRequestError naming the column that is missing, unknown or of another type.
    """
    table = columns if isinstance(columns, pa.Table) else _table(columns)
    if unknown := [name for name in table.column_names if name not in _NAMES]:
        raise InvalidRequestError(f"There is no column {unknown[0]!r} in a record: use {', '.join(_NAMES)}")
    if "value" not in table.column_names:
        raise InvalidRequestError("A column 'value' is needed")
    arrays = []
    for field in WIRE_SCHEMA:
        if field.name in table.column_names:
            arrays.append(_cast(table.column(field.name), field))
        elif field.name == "headers":
            arrays.append(null_headers(table.num_rows))
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
        # A pandas frame has both; converted as a mapping it leaves its index out.
        if hasattr(columns, "__arrow_c_stream__") and not hasattr(columns, "keys"):
            return pa.table(columns)
        given = dict(columns)
        if isinstance(given.get("headers"), list):
            given["headers"] = pa.array(given["headers"], HEADERS_TYPE)
        return pa.table(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRequestError(f"These are not columns of one length that Arrow knows: {error}") from error


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    source, target = column.type, field.type
    try:
        if field.name == "timestamp" and pa.types.is_integer(source):
            column = column.cast(pa.int64())
        elif field.name == "timestamp" and not pa.types.is_timestamp(source):
            raise pa.ArrowTypeError("it takes int64 milliseconds or a timestamp")
        # Timestamps are cut to milliseconds.
        cast = column.cast(target, safe=not pa.types.is_timestamp(source))
    except pa.ArrowException as error:
        wanted = _WANTED.get(field.name, str(target))
        raise InvalidRequestError(f"Column {field.name!r} of type {source} is to be {wanted}: {error}") from error
    combined = cast.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], target)
    return combined


def _named(partitions: np.ndarray) -> np.ndarray | None:
    return partitions if len(partitions) and partitions.max() >= 0 else None
