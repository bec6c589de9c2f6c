"""The schemas of records: as produced (wire), as read back (log), as stored (table).

The element name, ``element``, and the order of columns are the same everywhere: Spark, delta-rs, DuckDB and Polars
agree on them.
"""

import functools

import pyarrow as pa

HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
)

#: A batch of a producer. ``timestamp`` null = append time; ``value`` null = tombstone.
WIRE_SCHEMA = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)

#: Records for readers of the log: offsets rise, timestamps are filled in. It is also the Arrow response of the records
#: endpoint.
LOG_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)

_TABLE_HEADERS_TYPE = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)

#: Columns inside a segment file: LOG_SCHEMA with Delta's microseconds (Delta has one timestamp type).
SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", _TABLE_HEADERS_TYPE),
    ]
)

#: Columns of a topic's Delta table: a segment's columns and the Delta partition column.
TABLE_SCHEMA = pa.schema([*SEGMENT_SCHEMA, pa.field("partition", pa.int32())])


_FEW_ROWS = 64
# This is not pa.array, which imports pandas, if installed, and a client would wait half a second for that.
_NO_HEADERS = pa.nulls(0, HEADERS_TYPE.value_type)


def null_headers(rows: int) -> pa.Array:
    """Return a column of headers that are all null. ``pa.nulls`` would add offsets of missing elements, 8 bytes a row,
    in journal, network and memory.
    """
    return _few_null_headers(rows) if rows <= _FEW_ROWS else _null_headers(rows)


def _null_headers(rows: int) -> pa.Array:
    buffers = [pa.py_buffer(bytes((rows + 7) // 8)), pa.py_buffer(bytes(4 * (rows + 1)))]
    return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, null_count=rows, children=[_NO_HEADERS])


# Arrays never change, so one for each number of rows suffices.
_few_null_headers = functools.lru_cache(_FEW_ROWS + 1)(_null_headers)
