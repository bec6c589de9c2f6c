"""Records as Kafka's clients read them: by ``broker.fetch.batches``, decoded by aiokafka."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import FetchLimits, WantedPartition
from logstore.kafka_batches.header import BatchHeader, check_crc
from logstore.kafka_listener.dispatch import response_to
from logstore.kafka_listener.produce import Turn
from logstore.kafka_protocol.requests import read_request, write_request
from logstore.kafka_protocol.responses import read_response
from logstore.log.log_reader import FetchResult
from logstore.log.topic import Topic
from tests.support.kafka_handlers import KAFKA_CLIENT, Handlers
from tests.support.records import Row, wire_rows

MIB = 1 << 20


class ReadBatch(NamedTuple):
    """A batch with ``rows`` by offset; a record without headers has None there, as in columns."""

    header: BatchHeader
    rows: dict[int, Row]


def read_batches(buffers: Iterable[Any]) -> list[ReadBatch]:
    """Return the batches in the bytes of a response, each with a valid CRC; aiokafka's decoder judges the records."""
    content = memoryview(b"".join(bytes(memoryview(one)) for one in buffers))
    found = []
    at = 0
    while at < len(content):
        header = BatchHeader.read(content, at)
        check_crc(content, header, at)
        found.append(ReadBatch(header, _rows(bytes(content[at : at + header.size]))))
        at += header.size
    return found


def _rows(batch: bytes) -> dict[int, Row]:
    decoded = MemoryRecords(batch).next_batch()
    return {
        record.offset: Row(
            timestamp=record.timestamp,
            key=_bytes(record.key),
            value=_bytes(record.value),
            headers=tuple((name, _bytes(value)) for name, value in record.headers) or None,
        )
        for record in decoded
    }


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


async def fetch_one(
    broker: Broker, topic: Topic, offset: int, partition: int = 0, *, max_bytes: int = MIB, max_wait_ms: int = 0
) -> FetchResult[list[Any]]:
    """Fetch one partition and return its result. Raises its error."""
    wanted = [WantedPartition(topic, topic.partition(partition), offset)]
    fetched = await broker.fetch.batches(INTERNAL, wanted, FetchLimits(max_bytes, max_bytes, 1, max_wait_ms))
    fetched.reservation.release()
    (answer,) = fetched.answers.values()
    if isinstance(answer, Exception):
        raise answer
    return answer


async def consume(
    broker: Broker, topic: Topic, offset: int, partition: int = 0, *, max_bytes: int = MIB
) -> list[ReadBatch]:
    """Return all batches from ``offset`` to the high watermark, as a consumer reads them: it continues after the last
    offset of the last batch, and knows nothing else.
    """
    end = topic.partition(partition).high_watermark
    found: list[ReadBatch] = []
    while offset < end:
        answer = await fetch_one(broker, topic, offset, partition, max_bytes=max_bytes)
        batches = read_batches(answer.records)
        assert batches, f"nothing at {offset} of {end}"
        assert batches[-1].header.last_offset + 1 > offset
        offset = batches[-1].header.last_offset + 1
        found += batches
    assert offset == end
    return found


def rows_from(batches: Iterable[ReadBatch], offset: int) -> dict[int, Row]:
    """Return the records that a consumer delivers if it begins at ``offset``."""
    found: dict[int, Row] = {}
    for batch in batches:
        assert not found or not batch.rows or min(batch.rows) > max(found), "offsets rise"
        found |= {at: row for at, row in batch.rows.items() if at >= offset}
    return found


def log_rows(records: pa.Table) -> dict[int, Row]:
    """Return the rows of LOG_SCHEMA by offset, with headers as in Kafka: None and an empty list are the same."""
    return {
        offset: replace(row, headers=row.headers or None)
        for batch in records.to_batches()
        for offset, row in zip(batch.column("offset").to_pylist(), wire_rows(batch), strict=True)
    }


async def http_rows(broker: Broker, topic: Topic, partition: int = 0) -> dict[int, Row]:
    """Return all records of the partition, as HTTP responses have them."""
    log = topic.partition(partition)
    found: dict[int, Row] = {}
    at = log.log_start_offset
    while at < log.high_watermark:
        fetched = await broker.fetch.partition(
            INTERNAL, topic, partition, at, max_bytes=MIB, min_bytes=1, max_wait_ms=0
        )
        found |= log_rows(fetched.records)
        at = fetched.next_offset
    return found


async def ask(handlers: Handlers, api_key: int, version: int, message: Any) -> Any:
    """Return the listener's response, as a client decodes it, and release what it holds."""
    request = read_request(_frame(write_request(api_key, version, 7, "test", message)))
    answer = await response_to(handlers.store, KAFKA_CLIENT, request, Turn())
    if answer.release is not None:
        answer.release()
    _, found = read_response(api_key, version, _frame(answer.buffers))
    return found


def _frame(buffers: Iterable[Any]) -> bytes:
    """Join the buffers without the leading length."""
    return b"".join(bytes(buffer) for buffer in buffers)[4:]
