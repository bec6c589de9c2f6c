"""One batch to the store: chooses partitions as Kafka's producer does, and finds out where every record went.

Partitions are chosen here, not by the store, so that the answer's ranges tell the offset of each record; a batch for
one partition goes out in exactly the wire schema, which the store journals as it was sent.
"""

import random
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from logstore.client.delivery import Outcome
from logstore.client.metadata import TopicDescription, decode
from logstore.client.transport import Transport, topic_path
from logstore.errors import (
    LogStoreError,
    RecordTooLargeError,
    RequestTooLargeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.limits import MIB, REQUEST_RECORDS_MAX
from logstore.records.batch import DecodedRecords
from logstore.records.partitioner import choose_partitions

ARROW_STREAM = "application/vnd.apache.arrow.stream"
# As Kafka's metadata.max.age.ms: how long new partitions of a topic may go unnoticed.
_METADATA_SECONDS = 300.0
# A request is held in memory here and there: a larger batch goes out in parts.
_REQUEST_BYTES_MAX = 16 * MIB
# What an answer may take beyond the time that the store was given.
_ANSWER_SECONDS = 5.0

Partitions = np.ndarray
Acks = Literal["all", 1, 0]


@dataclass(frozen=True, slots=True)
class _Range:
    partition: int
    base_offset: int
    count: int


@dataclass(frozen=True, slots=True)
class _Produced:
    ranges: tuple[_Range, ...]


class BatchSender:
    """Used by one thread. ``compression`` is Arrow's own, of the buffers inside the batch; kept in the journal as
    sent.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        acks: Acks,
        compression: Literal["lz4", "zstd"] | None,
        request_timeout_s: float,
    ) -> None:
        self._transport = transport
        self._params: dict[str, str | int] = {"acks": acks, "timeout_ms": max(1, int(1000 * request_timeout_s))}
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        # topic: (partitions, when to ask again)
        self._partition_counts: dict[str, tuple[int, float]] = {}

    def send(self, outcome: Outcome, batch: pa.RecordBatch, named: Partitions | None, give_up: float) -> None:
        """Send ``batch`` (WIRE_SCHEMA) and settle ``outcome``. ``give_up``: monotonic time after which nothing is tried
        again. ``named``: the partition that each record names, -1 where none; None when no record does.
        """
        rows = batch.num_rows
        partitions = np.full(rows, -1, np.int32)
        offsets = np.full(rows, -1, np.int64)
        failures: list[tuple[int, int, LogStoreError]] = []
        parts = [(0, rows)]
        while parts:
            first, end = parts.pop()
            part = batch.slice(first, end - first)
            try:
                if end - first > 1 and (part.nbytes > _REQUEST_BYTES_MAX or end - first > REQUEST_RECORDS_MAX):
                    raise RequestTooLargeError("more than one request takes")
                part_named = None if named is None else named[first:end]
                partitions[first:end], offsets[first:end] = self._send_part(outcome.topic, part, part_named, give_up)
            except (RecordTooLargeError, RequestTooLargeError) as error:
                # Nothing of it was stored. As Kafka's producer: only the record that is too large shall fail.
                if end - first > 1:
                    middle = (first + end) // 2
                    parts += [(middle, end), (first, middle)]
                else:
                    failures.append((first, end, error))
            except LogStoreError as error:
                failures.append((first, end, error))
        outcome.settle(partitions, offsets, failures)

    def _send_part(
        self, topic: str, batch: pa.RecordBatch, named: Partitions | None, give_up: float
    ) -> tuple[Partitions, np.ndarray]:
        try:
            count = self._partition_count(topic, give_up)
        except UnknownTopicError:
            # The store may create it on the first record; only then is it known how many partitions there are.
            partition, offset = self._create_by_producing(topic, batch.slice(0, 1), named, give_up)
            rest = batch.num_rows - 1
            if not rest:
                return np.array([partition], np.int32), np.array([offset], np.int64)
            after = self._send_part(topic, batch.slice(1), None if named is None else named[1:], give_up)
            return np.append(np.int32(partition), after[0]), np.append(np.int64(offset), after[1])
        chosen = choose_partitions(DecodedRecords(batch, named), count, random.randrange(count))  # noqa: S311 (no secret)
        try:
            ranges = self._post(topic, batch, chosen, give_up)
        except (UnknownPartitionError, UnknownTopicError):
            # Deleted, or made anew with fewer partitions: the next batch asks again.
            self._partition_counts.pop(topic, None)
            raise
        return chosen, _offsets(chosen, ranges)

    def _partition_count(self, topic: str, give_up: float) -> int:
        count, ask_again = self._partition_counts.get(topic, (0, 0.0))
        if time.monotonic() >= ask_again:
            answer = self._transport.request("GET", topic_path(topic), retry_timeout_s=_remaining(give_up))
            count = len(decode(answer.content, TopicDescription).partitions)
            self._partition_counts[topic] = (count, time.monotonic() + _METADATA_SECONDS)
        return count

    def _create_by_producing(
        self, topic: str, record: pa.RecordBatch, named: Partitions | None, give_up: float
    ) -> tuple[int, int]:
        """Partition and offset of one record that the store chooses the partition for."""
        only = None if named is None or named[0] < 0 else named[:1]
        ranges = self._post(topic, record, only, give_up)
        return (ranges[0].partition, ranges[0].base_offset) if ranges else (-1, -1)

    def _post(
        self, topic: str, batch: pa.RecordBatch, partitions: Partitions | None, give_up: float
    ) -> tuple[_Range, ...]:
        path = topic_path(topic)
        if partitions is not None and (partitions == partitions[0]).all():
            path = topic_path(topic, f"/partitions/{partitions[0]}")
        elif partitions is not None:
            batch = batch.append_column("partition", pa.array(partitions))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=self._options) as writer:
            writer.write_batch(batch)
        answer = self._transport.request(
            "POST",
            path,
            content=sink.getvalue().to_pybytes(),
            headers={"Content-Type": ARROW_STREAM},
            params=self._params,
            timeout_s=_ANSWER_SECONDS,
            retry_timeout_s=_remaining(give_up),
        )
        return decode(answer.content, _Produced).ranges


def _offsets(partitions: Partitions, ranges: tuple[_Range, ...]) -> np.ndarray:
    """Within one partition the records of a request keep their order and get consecutive offsets."""
    offsets = np.full(len(partitions), -1, np.int64)
    for found in ranges:
        rows = np.flatnonzero(partitions == found.partition)
        if len(rows) != found.count:
            raise LogStoreError(
                f"The store answered {found.count} records in partition {found.partition}, {len(rows)} were sent there"
            )
        offsets[rows] = found.base_offset + np.arange(found.count)
    return offsets


def _remaining(give_up: float) -> float:
    return max(0.0, give_up - time.monotonic())
