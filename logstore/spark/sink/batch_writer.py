"""``df.write.format("logstore").mode("append").save()``, as Spark calls it.

Spark itself refuses the modes ``errorifexists``, which is its default, and ``ignore`` for every Python data source.
"""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from logstore.errors import InvalidRequestError
from logstore.spark.sink.write import SinkWrite


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch.

    Raises InvalidRequestError naming the wrong option, column or mode, and StoreUnreachableError.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str], *, overwrite: bool) -> None:
        if overwrite:
            raise InvalidRequestError(
                "Save mode Overwrite not allowed for logstore: a topic is only appended to. Use mode('append')"
            )
        self._write = SinkWrite.begin_batch(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._write.records(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._write.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._write.abort(messages)
