"""Spark's types of a topic's columns.

They are built from types and not from Spark's DDL, because settings of a session change the DDL's meaning
(``spark.sql.timestampType``).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def struct_of(columns: Sequence[str]) -> "StructType":
    """Return a schema of ``columns``, those of a topic's table and of the source. Every field may be null."""
    from pyspark.sql import types as T  # noqa: N812 - its usual name

    header = T.StructType([T.StructField("key", T.StringType()), T.StructField("value", T.BinaryType())])
    known = {
        "key": T.BinaryType(),
        "value": T.BinaryType(),
        "topic": T.StringType(),
        "partition": T.IntegerType(),
        "offset": T.LongType(),
        "timestamp": T.TimestampType(),
        "timestampType": T.IntegerType(),
        "headers": T.ArrayType(header),
    }
    return T.StructType([T.StructField(name, known[name]) for name in columns])
