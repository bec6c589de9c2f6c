"""Chunks of events: records of any number of partitions, read and encoded for a stream of Server-Sent Events.

Invariants: a chunk ends at a position, and the id of each event is the position behind it, so a stream that continues
from either has every record once; records of a partition are in the order of their offsets; a read holds no more than
its reservation among the responses in flight.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingest_api.errors import http_error, shown_message
from ingest_api.event_position import Offsets, Partitions, position_around
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.errors import LogStoreError, ThrottledError
from logstore.limits import KIB
from logstore.log.isolation import Isolation
from logstore.records.encode import binary_rows, readable_rows, runs

# A larger read would keep a slow client's bytes reserved for long.
_READ_BYTES: Final = 256 * KIB
# The records of a run; with their ids and field names they take up to three times as many bytes.
_RUN_BYTES: Final = 64 * KIB
_CHUNK_BYTES: Final = 64 * KIB
# The factor counts the records, and the events of one run at a time.
_COPIES: Final = 2
_LINE_END: Final = re.compile(rb"\r\n|\r|\n")


class Form(StrEnum):
    """The embedded format of keys and values."""

    JSON = "json"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class Reading:
    """The partitions of a stream, and how they are read."""

    partitions: Partitions
    form: Form
    isolation: Isolation


class Chunk:
    """``data`` has the events of ``count`` records; ``offsets`` is the position behind them.

    A chunk without events skips a gap in the offsets, or records that a filter left out.
    """

    __slots__ = ("_by_key", "_ends", "_keys", "count", "data", "offsets")

    def __init__(self, events: Sequence[bytes], keys: Sequence[bytes | None], offsets: Offsets) -> None:
        self.data = b"".join(events)
        self.count = len(events)
        self.offsets = offsets
        self._keys = keys
        self._ends = np.cumsum([0, *map(len, events)])
        self._by_key: dict[bytes | None, list[int]] | None = None

    def events_of(self, key: bytes) -> tuple[bytes, int]:
        """Return the events of the records with ``key``, and their number."""
        if self._by_key is None:
            self._by_key = {}
            for row, found in enumerate(self._keys):
                self._by_key.setdefault(found, []).append(row)
        rows = self._by_key.get(key, ())
        return b"".join(self.data[self._ends[row] : self._ends[row + 1]] for row in rows), len(rows)


async def read_chunks(
    broker: Broker,
    context: RequestContext,
    reading: Reading,
    offsets: Offsets,
    *,
    until: Offsets | None = None,
    key: bytes | None = None,
    max_wait_ms: int,
    turn: int = 0,
) -> AsyncGenerator[Chunk, None]:
    """Yield the records from ``offsets`` on, as far as one fetch reads them; nothing if none come within the wait.

    Records from ``until`` on, and records with other keys than ``key``, are left out. Each ``turn`` begins with another
    partition, so that a busy one does not block the others. A caller that may leave early closes it (``aclosing``).
    Raises the errors of the partitions, after the records of the others.
    """
    behind = [index for index, offset in enumerate(offsets) if until is None or offset < until[index]]
    first = turn % len(behind) if behind else 0
    behind = behind[first:] + behind[:first]
    named = [(reading.partitions[index], offsets[index]) for index in behind]
    wanted = [FetchPartition(one.topic, one.partition, offset, one.topic_id) for one, offset in named]
    limits = FetchLimits(_READ_BYTES, _READ_BYTES, 1, max_wait_ms, fill=False, isolation=reading.isolation)
    try:
        fetched = await broker.fetch.records(context, wanted, limits, copies=_COPIES)
    # There is no room for the response, or a quota is exceeded: the client waits, and the stream continues.
    except ThrottledError as error:
        await asyncio.sleep(min(error.retry_after_s, 1))
        return
    at = list(offsets)
    packed = _Packed()
    failure: LogStoreError | None = None
    with fetched.reservation:
        for place, answer in fetched.answers.items():
            index = behind[place]
            if isinstance(answer, LogStoreError):
                failure = failure or answer
                continue
            end = answer.next_offset if until is None else min(answer.next_offset, until[index])
            records = _wanted_records(answer.records, end, key)
            around = position_around(reading.partitions, at, index)
            for run in runs(records, _RUN_BYTES):
                packed.add(_events(broker, run, reading, index, around), run.column("key").to_pylist())
                at[index] = run.column("offset")[-1].as_py() + 1
                if packed.size >= _CHUNK_BYTES:
                    yield packed.take(tuple(at))
            at[index] = end
        if packed.size or tuple(at) != offsets:
            yield packed.take(tuple(at))
    if failure is not None:
        raise failure
    if fetched.throttle_ms:
        await asyncio.sleep(fetched.throttle_ms / 1000)


def id_event(position: bytes) -> bytes:
    """Return an event with the position and no record: a browser dispatches nothing."""
    return b"id: %b\n\n" % position


def error_event(error: LogStoreError) -> bytes:
    """Return the last event of a stream that has failed; its data is the body of an error response."""
    body = msgspec.json.encode({"error_code": http_error(error).error_code, "message": shown_message(error.message)})
    return b"event: error\ndata: %b\n\n" % body


def comment(text: str) -> bytes:
    """Return a line that clients ignore."""
    return b": %b\n\n" % text.encode()


def encode_events(rows: Iterable[bytes], next_offsets: Iterable[int], around: tuple[bytes, bytes]) -> list[bytes]:
    """Return an event for each of the JSON objects ``rows``; its id is ``around`` the record's next offset."""
    event = b"id: %b%%d%b\ndata: %%b\n\n" % around
    # A stored JSON text may have line ends between its tokens: each line is a line of data, and the client joins them.
    lines = (_LINE_END.sub(b"\ndata: ", row) if b"\n" in row or b"\r" in row else row for row in rows)
    return list(map(event.__mod__, zip(next_offsets, lines, strict=True)))


def _events(
    broker: Broker, run: pa.RecordBatch, reading: Reading, index: int, around: tuple[bytes, bytes]
) -> list[bytes]:
    topic, partition, _ = reading.partitions[index]
    if reading.form is Form.BINARY:
        rows = binary_rows(run, topic, partition)
    else:
        string_keys = broker.topics.served.topic(INTERNAL, topic).config.string_keys
        rows = readable_rows(run, topic, partition, string_keys=string_keys)
    return encode_events(rows, [offset + 1 for offset in run.column("offset").to_pylist()], around)


def _wanted_records(records: pa.Table, end: int, key: bytes | None) -> pa.Table:
    offsets = records.column("offset").to_numpy()
    if len(offsets) and offsets[-1] >= end:
        records = records.slice(0, int(np.searchsorted(offsets, end)))
    return records if key is None else records.filter(pc.equal(records.column("key"), pa.scalar(key, pa.binary())))


class _Packed:
    """Events that become one chunk, so that small runs of many partitions are one write to each client."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._events: list[bytes] = []
        self._keys: list[bytes | None] = []
        self.size = 0

    def add(self, events: Sequence[bytes], keys: Sequence[bytes | None]) -> None:
        self._events += events
        self._keys += keys
        self.size += sum(map(len, events))

    def take(self, offsets: Offsets) -> Chunk:
        chunk = Chunk(self._events, self._keys, offsets)
        self._begin()
        return chunk
