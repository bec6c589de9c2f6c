"""PySpark: a session with Delta configured, and topics as DataFrames, streams and SQL tables.

Importing this package starts no JVM and does not import pyspark; calling its functions does. Readers are imported on
first use: each Python worker of Spark imports this module, and may lack packages that only a driver needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# It is imported at once because its module has the same name, which Python would put in its place.
from logstore.spark.session import session

if TYPE_CHECKING:
    from logstore.spark.foreach_batch import delta_writer
    from logstore.spark.group_reader import group_read
    from logstore.spark.json_values import parse_json
    from logstore.spark.lag import records_behind
    from logstore.spark.reads import read_offsets
    from logstore.spark.registration import register

__all__ = ["delta_writer", "group_read", "parse_json", "read_offsets", "records_behind", "register", "session"]

_MODULES = {
    "delta_writer": "foreach_batch",
    "group_read": "group_reader",
    "parse_json": "json_values",
    "read_offsets": "reads",
    "records_behind": "lag",
    "register": "registration",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
