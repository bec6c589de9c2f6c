"""``df.writeStream.format("logstore")``, as Spark calls it: one writer for every micro-batch, and another for its
commit. ``overwrite`` is the output mode ``complete``, whose batches are appended whole, as in Spark's Kafka sink.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from logstore.spark.sink.write import SinkWrite


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a micro-batch. Raises InvalidRequestError naming the wrong option or column."""

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:  # noqa: ARG002
        self._write = SinkWrite.begin_stream(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.records(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._write.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._write.abort(messages, batchId)
