"""Fetches the tail of partitions from the store, in the tasks of a Spark query.

This module is small, because it is sent to the executors by value, with ``worker``. There it imports
``logstore.client``, which talks to the store. Invariants: each range comes whole and in order, from the topic that the
query was made for (each request names its id), or the task fails with the reason. One response is in memory at a time:
``FETCH_BYTES``, or one row group if a roll has overtaken the query. About 1 MiB of a row group is decoded at a time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from logstore.spark.worker import begin_task, one_line_errors

if TYPE_CHECKING:
    from logstore.errors import LogStoreError
    from logstore.protocol.fetch_response import PartitionData

FETCH_BYTES = 8 * 1024 * 1024
FETCH_WAIT_MS = 1_000
REQUEST_SECONDS = 60
#: Seconds that a store that restarts, or is busy, is asked again.
RETRY_SECONDS = 60.0

#: The schema of a task's rows: the columns of a topic's table.
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
TAIL_COLUMNS = tuple(_SCHEMA.names)


class TailReadError(Exception):
    """Raised if the tail of a partition could not be read."""


class OvertakenError(TailReadError):
    """Raised if records of the range were removed; the log now begins at ``log_start_offset``."""

    def __init__(self, message: str, log_start_offset: int) -> None:
        super().__init__(message, log_start_offset)
        self.log_start_offset = log_start_offset

    def __str__(self) -> str:
        return str(self.args[0])


class TopicGoneError(TailReadError):
    """Raised if the topic was deleted, or created again."""


def tail_reader(
    urls: Sequence[str], topic: str, topic_id: str, ranges: Sequence[tuple[int, int, int]], client_id: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for ``mapInArrow`` over indexes of ``ranges`` entries (partition, start, end)."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with one_line_errors():
            begin_task()
            store = Leader(urls, topic, topic_id, client_id)
            try:
                for batch in batches:
                    for index in batch.column(0).to_pylist():
                        yield from store.records(*ranges[index])
            finally:
                store.close()

    return read


class Leader:
    """Fetches of the topic with ``topic_id``, each from the leader of its partition, which any of ``urls`` knows."""

    def __init__(
        self, urls: Sequence[str], topic: str, topic_id: str, client_id: str, retry_seconds: float | None = None
    ) -> None:
        try:
            from logstore.client.cluster_metadata import ClusterMetadata
            from logstore.client.transport import Transport
        except ImportError as error:
            raise TailReadError(
                f"This executor cannot read the tail of a topic ({error}): pip install delta-logstore where executors "
                "run"
            ) from error

        self._topic = topic
        self._topic_id = topic_id
        self._retry_seconds = RETRY_SECONDS if retry_seconds is None else retry_seconds
        self._transport = Transport(urls, client_id=client_id)
        self._metadata = ClusterMetadata(self._transport)

    def close(self) -> None:
        self._transport.close()

    def records(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield records of ``[start, end)`` as batches of the tail's schema. The range is below the high watermark."""
        from logstore.backoff import backoffs
        from logstore.errors import LogStoreError

        offset = start
        # A response ends with the piece, such as a row group, that reaches ``min_bytes``.
        min_bytes = 1
        give_up, waits = time.monotonic() + self._retry_seconds, backoffs()
        while offset < end:
            try:
                response = self._fetch(partition, offset, min_bytes)
            except LogStoreError as error:
                if not error.retriable:
                    raise self._failure(error) from error
                wait = next(waits)
                if time.monotonic() + wait > give_up:
                    raise TailReadError(
                        f"{', '.join(self._transport.urls)} gave no answer in {self._retry_seconds:.0f} s "
                        f"({error.message}). Can this executor reach the store?"
                    ) from error
                time.sleep(wait)
                continue
            if response is not None and response.next_offset > offset:
                rows = num_bytes = 0
                for batch in response.records(offset):
                    rows += batch.num_rows
                    num_bytes += batch.nbytes
                    yield from _rows(batch, partition, end)
                    if batch.column("offset")[-1].as_py() >= end - 1:
                        break  # the rest may be that of a row group
                offset = response.next_offset
                if rows:
                    # Ask for small pieces together: for all that are left, if their records have the same size.
                    min_bytes = max(1, min(FETCH_BYTES, (end - offset) * num_bytes // rows))
                give_up, waits = time.monotonic() + self._retry_seconds, backoffs()
            elif time.monotonic() > give_up:
                raise TailReadError(
                    f"topic {self._topic}, partition {partition} ends at {offset}, before the end of the range {start} "
                    f"to {end}: records that were there when this DataFrame was made are gone"
                )
            else:
                min_bytes = 1

    def _fetch(self, partition: int, offset: int, min_bytes: int) -> "PartitionData | None":
        """Return one response, or None without news. Waits only for the first byte. Raises the partition's error."""
        from logstore.client.fetch import fetch
        from logstore.protocol.messages.records import FetchPartition, FetchRequest

        asked = (FetchPartition(self._topic, partition, offset, self._topic_id),)
        wait_ms = FETCH_WAIT_MS if min_bytes == 1 else 0
        request = FetchRequest(asked, FETCH_BYTES, FETCH_BYTES, min_bytes=min_bytes, max_wait_ms=wait_ms)

        def send(url: str | None) -> "PartitionData | None":
            responses = fetch(self._transport, request, REQUEST_SECONDS, at=url)
            if responses and (error := responses[0].error) is not None:
                raise error
            return responses[0] if responses else None

        self._metadata.keep_fresh([self._topic])
        return self._metadata.ask_leader(self._topic, partition, send, topic_id=self._topic_id)

    def _failure(self, error: "LogStoreError") -> TailReadError:
        from logstore.errors import OffsetOutOfRangeError, UnknownTopicError, UnknownTopicIdError

        if isinstance(error, UnknownTopicIdError):
            # A DataFrame may be evaluated long after it was made.
            why = "the topic was deleted and made again since this DataFrame was made; make the DataFrame again"
            return TopicGoneError(f"{why} ({error.message})")
        if isinstance(error, UnknownTopicError):
            return TopicGoneError(f"topic {self._topic}: {error.message}")
        if isinstance(error, OffsetOutOfRangeError):
            overtaken = "Retention or delete-records overtook this read: take a later starting offset"
            return OvertakenError(f"topic {self._topic}: {error.message} {overtaken}", error.log_start_offset)
        return TailReadError(f"topic {self._topic}: {error.message}")


def _rows(batch: pa.RecordBatch, partition: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows below ``end``, in Spark's schema."""
    offsets = batch.column("offset").to_numpy()
    batch = batch.slice(0, int(offsets.searchsorted(end)))
    if batch.num_rows:
        columns = {"partition": pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)}
        columns |= {name: batch.column(name) for name in _SCHEMA.names[1:]}
        yield pa.RecordBatch.from_arrays([columns[field.name].cast(field.type) for field in _SCHEMA], schema=_SCHEMA)
