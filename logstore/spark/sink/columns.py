"""Columns of the sink: those of Spark's Kafka sink, checked when a write is planned, and converted to records of the
store.

``key`` and ``value`` are string or binary, ``topic`` is a string, ``partition`` an int, ``timestamp`` a timestamp
(SPARK-50160) and ``headers`` ``array<struct<key: string, value: binary>>``. Only ``value`` is required, and ``topic``
without the option. Other columns are left out, so that a frame that was read from a topic can be written as it is.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from logstore.errors import InvalidRecordError, InvalidRequestError
from logstore.limits import RECORD_OVERHEAD_BYTES
from logstore.records.schema import HEADERS_TYPE, WIRE_SCHEMA

_TEXT_OR_BYTES = (StringType, BinaryType)
_HEADERS = "array<struct<key:string,value:binary>>"
#: The types that a column may have, and their names.
_TYPES: dict[str, tuple[tuple[type[DataType], ...], str]] = {
    "topic": ((StringType,), "string"),
    "key": (_TEXT_OR_BYTES, "string or binary"),
    "value": (_TEXT_OR_BYTES, "string or binary"),
    "partition": ((IntegerType,), "int"),
    "timestamp": ((TimestampType,), "timestamp"),
    "headers": ((ArrayType,), _HEADERS),
}


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The index of each known column in a batch of Spark's, by name; without ``topic`` if the option gives it."""

    places: dict[str, int]

    @classmethod
    def of(cls, schema: StructType, topic: str) -> "SinkColumns":
        """Find the known columns. Raises InvalidRequestError naming the column and its allowed types."""
        places: dict[str, int] = {}
        for place, field in enumerate(schema.fields):
            name = field.name.lower()
            if name not in _TYPES or (name == "topic" and topic):
                continue
            if name in places:
                raise InvalidRequestError(f"Two columns are named '{name}': give one")
            _check_type(name, field.dataType)
            places[name] = place
        if "value" not in places:
            raise InvalidRequestError(
                f"Required attribute 'value' not found among {', '.join(schema.names) or 'no columns'}: it is a string "
                "or binary column"
            )
        if "topic" not in places and not topic:
            raise InvalidRequestError(
                "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic"
            )
        return cls(places)

    def topics(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the column of topics. Raises InvalidRecordError if one is null."""
        topics = batch.column(self.places["topic"])
        if topics.null_count:
            raise InvalidRecordError(
                "null topic present in the data. Use the topic option for setting a topic, or filter these rows"
            )
        return topics

    def records(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the known columns except ``topic``, in the types of the store, in one order.

        Raises InvalidRecordError for a header that is null, or has no key.
        """
        fields = [field for field in _FIELDS if field.name in self.places]
        arrays = [_cast(batch.column(self.places[field.name]), field) for field in fields]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


_FIELDS = (*WIRE_SCHEMA, pa.field("partition", pa.int32()))


def record_bytes(records: pa.RecordBatch) -> np.ndarray:
    """Return the counted size of each record, int64: key, value and headers, and a fixed number for the rest."""
    sizes = np.full(records.num_rows, RECORD_OVERHEAD_BYTES, np.int64)
    for name in ("key", "value"):
        if name in records.schema.names:
            sizes += np.asarray(pc.fill_null(pc.binary_length(records.column(name)), 0))
    if "headers" in records.schema.names:
        headers = records.column("headers")
        elements = [np.asarray(pc.fill_null(pc.binary_length(part), 0)) for part in headers.values.flatten()]
        ends = np.concatenate([[0], np.cumsum(elements[0].astype(np.int64) + elements[1])])
        offsets = np.asarray(headers.offsets)
        sizes += ends[offsets[1:]] - ends[offsets[:-1]]
    return sizes


def _check_type(name: str, kind: DataType) -> None:
    kinds, wanted = _TYPES[name]
    if not isinstance(kind, kinds) or (name == "headers" and kind.simpleString() != _HEADERS):
        raise InvalidRequestError(f"{name} attribute unsupported type {kind.simpleString()}: it must be {wanted}")


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if field.name == "headers":
        return _headers(column)
    # Timestamps are cut to milliseconds.
    return column.cast(field.type, safe=not pa.types.is_timestamp(field.type))


def _headers(column: pa.Array) -> pa.Array:
    elements = column.values
    keys = elements.field("key")
    if elements.null_count or keys.null_count:
        raise InvalidRecordError("A header or its key is null: only the value of a header may be null")
    plain = pa.StructArray.from_arrays(
        [keys.cast(pa.string()), elements.field("value").cast(pa.binary())], fields=list(HEADERS_TYPE.value_type)
    )
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(column.offsets.cast(pa.int32()), plain, type=HEADERS_TYPE, mask=mask)
