"""PySpark: a session with Delta configured, and topics as DataFrames: by offset range, or as a group's unread records.

Importing this package starts no JVM and does not import pyspark; its functions do when they are called.
"""

from logstore.spark.delta_writer import delta_writer
from logstore.spark.group_reader import group_read
from logstore.spark.reads import read_offsets
from logstore.spark.session import session

__all__ = ["delta_writer", "group_read", "read_offsets", "session"]
