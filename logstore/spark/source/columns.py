"""Columns of the source: those of Spark's Kafka source, in its order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from logstore.errors import InvalidRequestError
from logstore.records.schema import TABLE_SCHEMA
from logstore.spark.column_types import struct_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS = "headers"
#: The columns without headers, as in Spark's Kafka source.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
ALL_COLUMNS = (*COLUMNS, HEADERS)
_ARROW = {name: TABLE_SCHEMA.field(name) for name in ALL_COLUMNS if name in TABLE_SCHEMA.names} | {
    "topic": pa.field("topic", pa.string()),
    "timestampType": pa.field("timestampType", pa.int32()),
}


def is_schema(given: "StructType", columns: Sequence[str]) -> bool:
    """Return True if ``given`` is the schema of ``columns``, in names and types."""
    return given.simpleString() == struct_of(columns).simpleString()


def arrow_schema(columns: Sequence[str] = COLUMNS) -> pa.Schema:
    """Return the schema of the batches of a task: exactly the one that Spark derives from ``struct_of``."""
    return pa.schema([_ARROW[name] for name in columns])


def read_columns(text: str) -> tuple[str, ...]:
    """Parse the option ``columns``: case-insensitive names between commas, each once. Raises InvalidRequestError."""
    known = {name.lower(): name for name in ALL_COLUMNS}
    names = [name.strip() for name in text.split(",")]
    found = [known.get(name.lower(), "") for name in names]
    if not all(found) or len(set(found)) < len(found):
        wrong = next(name for name, column in zip(names, found, strict=True) if not column or found.count(column) > 1)
        raise InvalidRequestError(
            f"columns: '{wrong}' is {'there twice' if wrong.lower() in known else 'no column of the source'}; "
            f"give some of {', '.join(ALL_COLUMNS)}, each once, separated by commas"
        )
    return tuple(found)
