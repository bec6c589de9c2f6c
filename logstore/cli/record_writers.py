"""Records of a topic as a file: lines for pipes, CSV for spreadsheets, Parquet for everything else.

Each writer takes the batches of a consumer, in order. Memory is bounded by a batch, with Parquet by a row group.
"""

import base64
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from logstore.cli.command_group import fail

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.client.fetched import FetchedBatch, Record


class Format(StrEnum):
    value = "value"
    key_value = "key-value"
    json = "json"
    base64 = "base64"
    csv = "csv"
    parquet = "parquet"


class RecordWriter(ABC):
    """``complete_at_close``: nobody can read what was written before ``close``."""

    complete_at_close = False

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink

    @abstractmethod
    def write(self, fetched: "FetchedBatch") -> None: ...

    def flush(self) -> None:
        """All that was written is with the reader, or in the file."""
        self._sink.flush()

    def close(self) -> None:
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def record_writer(format: Format, sink: BinaryIO) -> RecordWriter:
    match format:
        case Format.csv:
            return _CsvWriter(sink)
        case Format.parquet:
            return _ParquetWriter(sink)
        case _:
            return _LineWriter(sink, _LINES[format])


class _LineWriter(RecordWriter):
    def __init__(self, sink: BinaryIO, lines: Callable[["FetchedBatch"], bytes]) -> None:
        super().__init__(sink)
        self._lines = lines

    def write(self, fetched: "FetchedBatch") -> None:
        self._sink.write(self._lines(fetched))


class _CsvWriter(RecordWriter):
    """``partition,offset,timestamp,key,value``: text is in quotes and null is not, so that null is no empty text."""

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
    """A column as text; ends the command at what is no UTF-8."""
    import pyarrow as pa

    try:
        return fetched.batch.column(name).cast(pa.string())
    except pa.ArrowInvalid:
        for record in fetched.records():
            _utf8(record, name, getattr(record, name) or b"")
        raise


def _values(fetched: "FetchedBatch") -> bytes:
    values = fetched.batch.column("value").to_pylist()
    return b"".join([(b"null" if value is None else value) + b"\n" for value in values])


def _keys_and_values(fetched: "FetchedBatch") -> bytes:
    columns = (fetched.batch.column(name).to_pylist() for name in ("key", "value"))
    lines = [
        b"%b\t%b\n" % (b"null" if key is None else key, b"null" if value is None else value)
        for key, value in zip(*columns, strict=True)
    ]
    return b"".join(lines)


def _objects(text_of: Callable[["Record", str, bytes], str]) -> Callable[["FetchedBatch"], bytes]:
    def lines(fetched: "FetchedBatch") -> bytes:
        import msgspec

        objects = [
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "key": None if record.key is None else text_of(record, "key", record.key),
                "value": None if record.value is None else text_of(record, "value", record.value),
                "headers": [
                    {"key": key, "value": None if value is None else base64.b64encode(value).decode()}
                    for key, value in record.headers
                ],
            }
            for record in fetched.records()
        ]
        return msgspec.json.Encoder().encode_lines(objects)

    return lines


def _utf8(record: "Record", what: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        where = f"offset {record.offset} of partition {record.partition}"
        fail(f"The {what} at {where} is not UTF-8 text: use --format base64 or parquet")


def _base64(_record: "Record", _what: str, content: bytes) -> str:
    return base64.b64encode(content).decode()


_LINES: dict[Format, Callable[["FetchedBatch"], bytes]] = {
    Format.value: _values,
    Format.key_value: _keys_and_values,
    Format.json: _objects(_utf8),
    Format.base64: _objects(_base64),
}
