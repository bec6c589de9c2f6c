"""The records of a partition by each way of reading them, to be compared record by record."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.log.topic import Topic
from logstore.protocol.record_batch import encode_batches, read_records
from tests.support.records import Row, wire_rows

#: Rows by offset.
Rows = dict[int, Row]


async def decoded(broker: Broker, topic: Topic, partition: int = 0, *, max_bytes: int = 1 << 20) -> Rows:
    """Return the rows as JSON readers get them."""
    log = topic.partition(partition)
    found: Rows = {}
    at = log.log_start_offset
    while at < log.high_watermark:
        fetched = await broker.fetch.partition(
            INTERNAL, topic, partition, at, max_bytes=max_bytes, min_bytes=1, max_wait_ms=0
        )
        for batch in fetched.records.to_batches():
            _add(found, batch)
        at = fetched.next_offset
    return found


async def stored(broker: Broker, topic: Topic, partition: int = 0, *, max_bytes: int = 1 << 20) -> Rows:
    """Return the rows as the store's client and Spark get them: the stored batches, decoded by the reader."""
    log = topic.partition(partition)
    found: Rows = {}
    at = log.log_start_offset
    while at < log.high_watermark:
        wanted = [FetchPartition(topic.name, partition, at)]
        fetched = await broker.fetch.stored(INTERNAL, wanted, FetchLimits(max_bytes, max_bytes, 1, 0))
        (answer,) = fetched.answers.values()
        assert not isinstance(answer, Exception), answer
        content = b"".join(bytes(piece) for piece in encode_batches(answer.records))
        if fetched.reservation is not None:
            fetched.reservation.release()
        for batch in read_records(pa.py_buffer(content), at):
            _add(found, batch)
        at = answer.next_offset
    return found


def in_table(data: Path, topic: str, partition: int = 0) -> Rows:
    """Return the rows as readers of the Delta table get them."""
    found: Rows = {}
    columns = ["offset", "timestamp", "key", "value", "headers", "partition"]
    table = DeltaTable(data / "topics" / topic).to_pyarrow_dataset().to_table(columns=columns)
    table = table.set_column(1, "timestamp", table["timestamp"].cast(pa.timestamp("ms", "UTC")))
    for batch in table.filter(pa.compute.equal(table["partition"], partition)).sort_by("offset").to_batches():
        _add(found, batch)
    return found


def _add(found: Rows, batch: pa.RecordBatch) -> None:
    offsets = batch.column("offset").to_pylist()
    assert not found or offsets[0] > max(found), "offsets rise"
    found |= zip(offsets, wire_rows(batch), strict=True)
