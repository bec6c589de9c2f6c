"""Records for tests: hypothesis strategies of rows, batches of them, and Arrow streams as a producer writes them."""

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from logstore.limits import TIMESTAMP_MS_MAX
from logstore.records.schema import WIRE_SCHEMA

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Row:
    """One record as plain Python values, to compare columns with."""

    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers | None

    @property
    def size(self) -> int:
        headers = sum(len(key.encode()) + len(value or b"") for key, value in self.headers or ())
        return len(self.key or b"") + len(self.value or b"") + headers


small_bytes = st.binary(max_size=12)
timestamps = st.integers(0, TIMESTAMP_MS_MAX)
headers_lists = st.lists(st.tuples(st.text(max_size=4), st.none() | small_bytes), max_size=3).map(tuple)
rows = st.builds(
    Row,
    timestamp=st.none() | timestamps,
    key=st.none() | small_bytes,
    value=st.none() | small_bytes,
    headers=st.none() | headers_lists,
)


def wire_batch(records: list[Row]) -> pa.RecordBatch:
    columns = [
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [None if record.headers is None else list(record.headers) for record in records],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, WIRE_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=WIRE_SCHEMA)


def wire_rows(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a WIRE_SCHEMA or LOG_SCHEMA batch."""
    columns = (
        batch.column("timestamp").cast(pa.int64()).to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        [
            None if headers is None else tuple((header["key"], header["value"]) for header in headers)
            for headers in batch.column("headers").to_pylist()
        ],
    )
    return [Row(*values) for values in zip(*columns, strict=True)]


def arrow_stream(*batches: pa.RecordBatch, **options: object) -> bytes:
    """Return the batches (at least one, of one schema) as an Arrow IPC stream; ``options`` are IpcWriteOptions."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def compressed_payload(batch: pa.RecordBatch, codec: str) -> pa.Buffer:
    """Return the record batch message that a producer sends with buffers compressed by ``codec`` (lz4, zstd)."""
    # Only streams accept a codec: the record batch is the second message of a stream.
    messages = pa.ipc.MessageReader.open_stream(arrow_stream(batch, compression=codec))
    messages.read_next_message()
    return messages.read_next_message().serialize()
