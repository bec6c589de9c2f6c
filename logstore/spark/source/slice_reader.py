"""Reads a slice of a partition, in a task of Spark: history from the table's files, the tail from the leader."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from logstore.spark.source.options import ReadOptions


class Slice(InputPartition):
    """A part of an offset range that one task reads."""


def read_slice(part: Slice, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a slice, by rising offset, as ``columns.arrow_schema``."""
    raise NotImplementedError
