"""Records of a topic as a file: lines for pipes, CSV for spreadsheets, Parquet for everything else.

Each writer takes the batches of a consumer, in order. Memory is bounded by a batch, with Parquet by a row group.
"""

from abc import ABC, abstractmethod
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from logstore.cli.record_lines import (
    LineEncoder,
    base64_lines,
    json_lines,
    key_value_lines,
    pretty_lines,
    record_lines,
    template_lines,
    value_lines,
)
from logstore.command_line.command_group import fail

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.client.consumer.records import FetchedBatch


class Format(StrEnum):
    value = "value"
    key_value = "key-value"
    json = "json"
    record = "record"
    pretty = "pretty"
    base64 = "base64"
    csv = "csv"
    parquet = "parquet"


def parse_format(text: str) -> Format | LineEncoder:
    """Return a format by its name, or a template. Raises ValueError with the reason."""
    if text in [*Format]:
        return Format(text)
    if "%" not in text:
        raise ValueError(f"{text!r} is not one of {', '.join(Format)}, and has no % as '%k %s' has")
    return template_lines(text)


class RecordWriter(ABC):
    """A writer for one format. With ``complete_at_close`` records can be read only after ``close``."""

    complete_at_close = False

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink

    @abstractmethod
    def write(self, fetched: "FetchedBatch") -> None: ...

    def flush(self) -> None:
        """Pass all written records to the reader or the file."""
        self._sink.flush()

    def close(self) -> None:
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_LINES: dict[Format, LineEncoder] = {
    Format.value: value_lines,
    Format.key_value: key_value_lines,
    Format.base64: base64_lines,
}


def record_writer(format: Format | LineEncoder, sink: BinaryIO, *, string_keys: bool = False) -> RecordWriter:
    """Return a writer. ``string_keys`` is set if keys are not JSON, by the topic's ``key.format``."""
    match format:
        case Format.csv:
            return _CsvWriter(sink)
        case Format.parquet:
            return _ParquetWriter(sink)
        case Format.json:
            return _LineWriter(sink, partial(json_lines, string_keys=string_keys))
        case Format.record:
            return _LineWriter(sink, partial(record_lines, string_keys=string_keys))
        case Format.pretty:
            return _LineWriter(sink, partial(pretty_lines, string_keys=string_keys))
        case Format():
            return _LineWriter(sink, _LINES[format])
        case _:
            return _LineWriter(sink, format)


class _LineWriter(RecordWriter):
    def __init__(self, sink: BinaryIO, lines: LineEncoder) -> None:
        super().__init__(sink)
        self._lines = lines

    def write(self, fetched: "FetchedBatch") -> None:
        self._sink.write(self._lines(fetched))


class _CsvWriter(RecordWriter):
    """``partition,offset,timestamp,key,value``: text is in quotes and null is not, so that they differ."""

    def __init__(self, sink: BinaryIO) -> None:
        super().__init__(sink)
        self._writer: Any = None

    def write(self, fetched: "FetchedBatch") -> None:
        import pyarrow as pa
        import pyarrow.csv

        names = ("key", "value")
        texts = [_texts(fetched, name) for name in names]
        columns = [
            pa.repeat(pa.scalar(fetched.partition, pa.int32()), len(fetched)),
            fetched.batch.column("offset"),
            fetched.batch.column("timestamp").view(pa.int64()),
            *texts,
        ]
        batch = pa.RecordBatch.from_arrays(columns, ["partition", "offset", "timestamp", *names])
        if self._writer is None:
            self._writer = pyarrow.csv.CSVWriter(self._sink, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        if self._writer is None:
            self._sink.write(b'"partition","offset","timestamp","key","value"\n')
        else:
            self._writer.close()
        self.flush()


class _ParquetWriter(RecordWriter):
    """The columns of a topic's table: ``partition, offset, timestamp, key, value, headers``."""

    complete_at_close = True

    def __init__(self, sink: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        from logstore.records.schema import LOG_SCHEMA

        super().__init__(sink)
        self._schema = pa.schema([pa.field("partition", pa.int32(), nullable=False), *LOG_SCHEMA])
        self._writer = pyarrow.parquet.ParquetWriter(sink, self._schema, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, fetched: "FetchedBatch") -> None:
        import pyarrow as pa

        from logstore.limits import ROW_GROUP_BYTES_MAX, ROW_GROUP_ROWS_MAX

        partition = pa.repeat(pa.scalar(fetched.partition, pa.int32()), len(fetched))
        self._waiting.append(pa.RecordBatch.from_arrays([partition, *fetched.batch.columns], schema=self._schema))
        self._rows += len(fetched)
        self._bytes += fetched.batch.nbytes
        if self._rows >= ROW_GROUP_ROWS_MAX or self._bytes >= ROW_GROUP_BYTES_MAX:
            self._write_row_group()

    def close(self) -> None:
        self._write_row_group()
        self._writer.close()
        self.flush()

    def _write_row_group(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=self._rows)
            self._waiting, self._rows, self._bytes = [], 0, 0


def _texts(fetched: "FetchedBatch", name: str) -> "pa.Array":
    """Return a column as text; bytes that are not UTF-8 end the command."""
    import pyarrow as pa

    try:
        return fetched.batch.column(name).cast(pa.string())
    except pa.ArrowInvalid:
        for record in fetched.records():
            content = getattr(record, name) or b""
            if not _is_utf8(content):
                where = f"offset {record.offset} of partition {record.partition}"
                fail(f"The {name} at {where} is not UTF-8 text: use --format base64 or parquet")
        raise


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
