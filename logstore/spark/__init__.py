"""PySpark: a session with Delta configured, and topics as DataFrames by offset range.

Importing this package starts no JVM and does not import pyspark; its functions do when they are called.
"""

from logstore.spark.reads import read_offsets
from logstore.spark.session import session

__all__ = ["read_offsets", "session"]
