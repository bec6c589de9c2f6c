"""The data source of the format "logstore", as Spark registers it."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from logstore.spark.source import columns
from logstore.spark.source.options import parse_read_options
from logstore.spark.worker import one_line_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


class LogStoreSource(DataSource):
    """Reads and writes topics: ``spark.read.format("logstore").option("subscribe", "flights")``."""

    @classmethod
    def name(cls) -> str:
        return "logstore"

    @one_line_errors()
    def schema(self) -> str:
        return columns.schema(include_headers=parse_read_options(self.options).include_headers)

    @one_line_errors()
    def reader(self, schema: "StructType") -> DataSourceReader:  # noqa: ARG002 - it is fixed
        from logstore.spark.source.batch_reader import BatchReader, FilteredBatchReader

        options = parse_read_options(self.options)
        return FilteredBatchReader(options) if options.push_filters else BatchReader(options)

    @one_line_errors()
    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: ARG002, N802
        from logstore.spark.source.stream_reader import StreamReader

        return StreamReader(parse_read_options(self.options))

    @one_line_errors()
    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceArrowWriter":
        from logstore.spark.sink.batch_writer import BatchWriter

        return BatchWriter(schema, self.options, overwrite=overwrite)

    @one_line_errors()
    def streamWriter(  # noqa: N802
        self,
        schema: "StructType",
        overwrite: bool,
    ) -> "DataSourceStreamArrowWriter":
        from logstore.spark.sink.stream_writer import StreamWriter

        return StreamWriter(schema, self.options, overwrite=overwrite)
