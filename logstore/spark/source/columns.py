"""Columns of the source: those of Spark's Kafka source, in its order."""

import pyarrow as pa

from logstore.records.schema import TABLE_SCHEMA

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
)
_HEADERS = "headers array<struct<key: string, value: binary>>"
_ARROW = pa.schema(
    [
        TABLE_SCHEMA.field("key"),
        TABLE_SCHEMA.field("value"),
        ("topic", pa.string()),
        TABLE_SCHEMA.field("partition"),
        TABLE_SCHEMA.field("offset"),
        TABLE_SCHEMA.field("timestamp"),
        ("timestampType", pa.int32()),
    ]
)


def schema(*, include_headers: bool) -> str:
    """The schema, in Spark's DDL."""
    return f"{_COLUMNS}, {_HEADERS}" if include_headers else _COLUMNS


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The schema of the batches of a task: exactly the one that Spark makes of ``schema``."""
    return _ARROW.append(TABLE_SCHEMA.field("headers")) if include_headers else _ARROW
