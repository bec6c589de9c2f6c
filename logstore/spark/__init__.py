"""PySpark: a session with Delta configured, and topics as DataFrames, streams and tables of SQL.

Importing this package starts no JVM and does not import pyspark; its functions do when they are called. Readers are
imported when they are asked for: each Python worker of Spark comes by here, and may lack what only a driver needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# At once: its name is also that of its module, which Python would put in its place.
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
