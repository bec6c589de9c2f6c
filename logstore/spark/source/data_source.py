"""The data source of the format "logstore", as Spark registers it."""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from logstore.errors import InvalidRequestError
from logstore.spark.column_types import struct_of
from logstore.spark.source import columns
from logstore.spark.source.options import ReadOptions, parse_read_options
from logstore.spark.worker import begin_task, one_line_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType


class LogStoreSource(DataSource):
    """Reads and writes topics: ``spark.read.format("logstore").option("subscribe", "flights")``."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Each worker of a query first receives the source, before the input of its task.
        self.__dict__.update(state)
        begin_task()

    @classmethod
    def name(cls) -> str:
        return "logstore"

    @one_line_errors()
    def schema(self) -> "StructType":
        begin_task()
        return struct_of(parse_read_options(self.options).columns)

    @one_line_errors()
    def reader(self, schema: "StructType") -> DataSourceReader:
        from logstore.spark.source.batch_reader import BatchReader, FilteredBatchReader

        options = self._read_options(schema)
        return FilteredBatchReader(options) if options.push_filters else BatchReader(options)

    @one_line_errors()
    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802
        from logstore.spark.source.stream_reader import StreamReader

        return StreamReader(self._read_options(schema))

    def _read_options(self, schema: "StructType") -> ReadOptions:
        """Return the options. Raises InvalidRequestError for a user's own schema, which Spark passes on unchecked."""
        options = parse_read_options(self.options)
        if not columns.is_schema(schema, options.columns):
            raise InvalidRequestError(
                "The source has a fixed schema and cannot be set with a custom one: leave the schema out; the option "
                f"columns chooses among its columns ({', '.join(columns.ALL_COLUMNS)})"
            )
        return options

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
