"""Fetches the tail of partitions from the store over HTTP, in the tasks of a Spark query.

It is sent to the executors by value, so it imports nothing but the standard library and pyarrow, which every executor
that runs Arrow functions has. Invariants: each range comes whole and in order, and of the topic that the query was made
for (each request names it), or the task fails with the reason; one answer of ``FETCH_BYTES`` at a time is in memory.
"""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

FETCH_BYTES = 8 * 1024 * 1024
REQUEST_SECONDS = 60
#: How long a store that restarts, or is busy, is asked again.
RETRY_SECONDS = 60.0
_BACKOFF_SECONDS_MAX = 2.0
_UNKNOWN_TOPIC_ID = 40406

#: What a task hands to Spark: the columns of a topic's table, in Spark's order of ``TAIL_COLUMNS``.
TAIL_COLUMNS = (
    "partition int, offset bigint, timestamp timestamp, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
    ]
)


class TailReadError(Exception):
    """The tail of a partition could not be read."""


class _TryAgainError(Exception):
    pass


def tail_reader(
    urls: Sequence[str], topic: str, topic_id: str, ranges: Sequence[tuple[int, int, int]], client_id: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for ``mapInArrow`` over ids: each id stands for its ``ranges`` entry (partition, start, end)."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = _Store(urls, topic_id, client_id)
        try:
            for batch in batches:
                for index in batch.column(0).to_pylist():
                    yield from store.records(topic, *ranges[index])
        finally:
            store.close()

    return read


class _Store:
    """Requests about the topic with ``topic_id`` to the first of ``urls`` that answers, on one kept connection."""

    def __init__(self, urls: Sequence[str], topic_id: str, client_id: str) -> None:
        self._urls = list(urls)
        self._headers = {"Logstore-Client-Id": client_id, "Logstore-Topic-Id": topic_id}
        self._connection: http.client.HTTPConnection | None = None

    def records(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Records of ``[start, end)`` as batches of the tail's schema. The range is below the high watermark."""
        query = f"max_bytes={FETCH_BYTES}&min_bytes=1&max_wait_ms=1000"
        give_up = time.monotonic() + RETRY_SECONDS
        offset = start
        while offset < end:
            answer, body = self._get(
                f"/topics/{topic}/partitions/{partition}/records?offset={offset}&{query}",
                "application/vnd.apache.arrow.stream",
            )
            next_offset = int(answer["Logstore-Next-Offset"])
            if next_offset > offset:
                offset = next_offset
                give_up = time.monotonic() + RETRY_SECONDS
                for batch in pa.ipc.open_stream(body):
                    yield from _rows(batch, partition, end)
            elif time.monotonic() > give_up:
                raise TailReadError(
                    f"topic {topic}, partition {partition} ends at {answer['Logstore-High-Watermark']}, before the end "
                    f"of the range {start} to {end}: records that were there when this DataFrame was made are gone"
                )

    def _get(self, path: str, accept: str) -> tuple[Any, bytes]:
        """Headers and body of a 200. TailReadError for an answer that will not change, or when time is up."""
        give_up, wait = time.monotonic() + RETRY_SECONDS, 0.1
        while True:
            try:
                return self._get_once(path, accept)
            except (OSError, http.client.HTTPException, _TryAgainError) as error:
                self.close()
                # The next address, if there are several.
                self._urls.append(self._urls.pop(0))
                if time.monotonic() + wait > give_up:
                    raise TailReadError(
                        f"{', '.join(self._urls)} gave no answer in {RETRY_SECONDS:.0f} s ({type(error).__name__}: "
                        f"{error}). Can this executor reach the store?"
                    ) from error
            time.sleep(wait)
            wait = min(2 * wait, _BACKOFF_SECONDS_MAX)

    def _get_once(self, path: str, accept: str) -> tuple[Any, bytes]:
        url = urlsplit(self._urls[0])
        if self._connection is None:
            self._connection = (
                http.client.HTTPSConnection(url.netloc, timeout=REQUEST_SECONDS, context=ssl.create_default_context())
                if url.scheme == "https"
                else http.client.HTTPConnection(url.netloc, timeout=REQUEST_SECONDS)
            )
        self._connection.request("GET", url.path + path, headers={**self._headers, "Accept": accept})
        response = self._connection.getresponse()
        body = response.read()
        if response.status == 200:
            return response.headers, body
        reason = _reason(response.status, body)
        if response.status == 416:
            reason = f"{reason}. Retention or delete-records overtook this read: take a later starting offset"
        if response.status in (429, 500, 502, 503, 504):
            raise _TryAgainError(reason)
        raise TailReadError(f"GET {path}: {reason}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _rows(batch: pa.RecordBatch, partition: int, end: int) -> Iterator[pa.RecordBatch]:
    offsets = batch.column("offset").to_numpy()
    batch = batch.slice(0, int(offsets.searchsorted(end)))
    if batch.num_rows:
        columns = {"partition": pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)}
        columns |= {name: batch.column(name) for name in _SCHEMA.names[1:]}
        yield pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in _SCHEMA], schema=_SCHEMA)


def _reason(status: int, body: bytes) -> str:
    try:
        error = json.loads(body)
        if error["error_code"] == _UNKNOWN_TOPIC_ID:
            # A DataFrame may be evaluated long after it was made.
            why = "the topic was deleted and created anew since this DataFrame was made; make it again"
            return f"{why} ({error['message']})"
        return f"{status} {error['message']}"
    except (ValueError, KeyError, TypeError):
        return f"{status} {body[:300]!r}"
