"""Turns batches of Spark's into produce requests: the records of a topic in Arrow streams of about ``max_bytes``.

Invariants:

- The requests of a topic depend only on its records and their order, not on the batches in which they came: a task that
  is tried again with the same rows makes the same requests, byte for byte, with the same numbers. A task that writes to
  very many topics at once is the exception: see ``_OPEN_BYTES_MAX``.
- The records of a topic stay in their order.
- Memory holds the open request of each topic, together at most ``_OPEN_BYTES_MAX`` and a batch.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from logstore.limits import MIB, REQUEST_RECORDS_MAX
from logstore.records.schema import WIRE_SCHEMA, null_headers
from logstore.spark.sink.columns import SinkColumns, record_bytes

#: All requests are closed when they have more than this together: with requests of 4 MiB that takes 16 topics.
_OPEN_BYTES_MAX = 64 * MIB


@dataclass(frozen=True, slots=True)
class Request:
    """A body for ``topic``; ``number`` counts the requests of a task for the topic, from 0."""

    topic: str
    number: int
    records: int
    body: memoryview


@dataclass(slots=True)
class _Open:
    """The request of a topic that still grows."""

    number: int = 0
    parts: list[pa.RecordBatch] = field(default_factory=list)
    records: int = 0
    size: int = 0


class Requests:
    """The requests of a task. ``topic`` "" means the column's; ``codec`` compresses the buffers of a stream,
    ``max_bytes`` counts them uncompressed.
    """

    def __init__(self, columns: SinkColumns, topic: str, *, max_bytes: int, codec: str | None) -> None:
        self._columns = columns
        self._topic = topic
        self._max_bytes = max_bytes
        self._codec = codec
        self._open: dict[str, _Open] = {}

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Request]:
        """Yield the requests for ``batches``, each once it is full. Raises InvalidRecordError for an invalid row."""
        for batch in batches:
            for topic, records in self._by_topic(batch):
                yield from self._add(topic, records)
            if sum(each.size for each in self._open.values()) > _OPEN_BYTES_MAX:
                yield from self._close_all()
        yield from self._close_all()

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        records = self._columns.records(batch)
        if self._topic:
            yield self._topic, records
            return
        encoded = self._columns.topics(batch).dictionary_encode()
        names, places = encoded.dictionary.to_pylist(), np.asarray(encoded.indices)
        for place, name in enumerate(names):
            yield name, records if len(names) == 1 else records.filter(pa.array(places == place))

    def _add(self, topic: str, records: pa.RecordBatch) -> Iterator[Request]:
        request = self._open.setdefault(topic, _Open())
        ends = np.cumsum(record_bytes(records))
        first, before = 0, 0
        while first < len(ends):
            # Take the records that still fit; one that never fits goes alone.
            last = int(np.searchsorted(ends, before + self._max_bytes - request.size, side="right"))
            last = min(last, first + REQUEST_RECORDS_MAX - request.records)
            if last == first and not request.records:
                last = first + 1
            if last > first:
                request.parts.append(records.slice(first, last - first))
                request.records += last - first
                request.size += int(ends[last - 1]) - before
                first, before = last, int(ends[last - 1])
            if first < len(ends):
                yield self._close(topic, request)

    def _close_all(self) -> Iterator[Request]:
        for topic, request in self._open.items():
            if request.records:
                yield self._close(topic, request)

    def _close(self, topic: str, request: _Open) -> Request:
        closed = Request(topic, request.number, request.records, self._body(request.parts))
        request.number, request.parts, request.records, request.size = request.number + 1, [], 0, 0
        return closed

    def _body(self, parts: list[pa.RecordBatch]) -> memoryview:
        # Even a single part is copied: a slice may share a byte of its bitmaps with rows that are not in it.
        whole = pa.RecordBatch.from_arrays(
            [pa.concat_arrays([part.column(place) for part in parts]) for place in range(parts[0].num_columns)],
            schema=parts[0].schema,
        )
        schema, arrays = WIRE_SCHEMA, [_column(whole, wanted) for wanted in WIRE_SCHEMA]
        if "partition" in whole.schema.names and whole.column("partition").null_count < whole.num_rows:
            schema = WIRE_SCHEMA.append(whole.schema.field("partition"))
            arrays.append(whole.column("partition"))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=self._codec)) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        return memoryview(sink.getvalue())


def _column(records: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
    column = records.column(wanted.name) if wanted.name in records.schema.names else None
    if column is not None and column.null_count < len(column):
        return column
    return null_headers(records.num_rows) if wanted.name == "headers" else pa.nulls(records.num_rows, wanted.type)
