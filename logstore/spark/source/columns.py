"""Columns of the source: those of Spark's Kafka source, in its order."""

import pyarrow as pa

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = "headers array<struct<key: string, value: binary>>"
_ARROW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
    ]
)
_ARROW_HEADERS = pa.field(
    "headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
)


def schema(*, include_headers: bool) -> str:
    """The schema, in Spark's DDL."""
    return f"{_COLUMNS}, {_HEADERS}" if include_headers else _COLUMNS


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The schema of the batches of a task: exactly the one that Spark makes of ``schema``."""
    return _ARROW.append(_ARROW_HEADERS) if include_headers else _ARROW
