"""Producer batches: one Arrow record batch message for each partition, which the store keeps as it was sent.

A request's body is the schema's message, the messages of one or several batches, and an end mark. Messages are written
once: a request that is sent again, or together with others, sends the same bytes. Only if many small batches have piled
up for one partition are they rewritten as one before they leave.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa

from logstore.client.metadata import TopicPartitions
from logstore.client.producer.delivery import Outcome
from logstore.limits import REQUEST_RECORDS_MAX
from logstore.records.partition_split import split_by_partition
from logstore.records.schema import WIRE_SCHEMA

# The store remembers the last five batches of a producer in each partition (KIP-98). If a request with more were sent
# again, it could not recognise them.
BATCHES_PER_PARTITION_MAX = 5
_SCHEMA_MESSAGE = WIRE_SCHEMA.serialize()
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """Records of one partition: ``rows`` of ``outcome``, as one encapsulated message. ``deadline`` is monotonic.

    The partition was chosen among ``chosen_among``. ``joined`` has the batches from which this one was joined, if it
    was: its records are theirs, one batch after the other, and it has no outcome itself.
    """

    outcome: Outcome
    partition: int
    rows: np.ndarray
    message: pa.Buffer
    deadline: float
    chosen_among: TopicPartitions
    joined: "tuple[ProducerBatch, ...]" = ()

    @property
    def batches(self) -> "tuple[ProducerBatch, ...]":
        """The batches that this one was joined from; itself if it was not."""
        return self.joined or (self,)

    def halves(self, codec: str | None) -> "tuple[ProducerBatch, ProducerBatch]":
        if self.joined:
            half = len(self.joined) // 2
            return _join(self.joined[:half], codec), _join(self.joined[half:], codec)
        batch = pa.ipc.read_record_batch(self.message, WIRE_SCHEMA)
        middle = batch.num_rows // 2
        parts = (batch.slice(0, middle), self.rows[:middle]), (batch.slice(middle), self.rows[middle:])
        messages = write_messages(((self.partition, part) for part, _ in parts), codec)
        first, second = (
            replace(self, rows=rows, message=message) for (_, rows), message in zip(parts, messages, strict=True)
        )
        return first, second


def join_many(batches: list[ProducerBatch], codec: str | None) -> list[ProducerBatch]:
    """Join small batches, so that no partition has more than the store can recognise when they are sent again.

    Batches of one partition are adjacent and chosen among the same partitions. Joining costs a copy.
    """
    if len(batches) <= BATCHES_PER_PARTITION_MAX:
        return batches
    by_partition = (tuple(group) for _, group in groupby(batches, lambda batch: batch.partition))
    return [
        batch
        for group in by_partition
        for batch in (group if len(group) <= BATCHES_PER_PARTITION_MAX else (_join(group, codec),))
    ]


def _join(batches: tuple[ProducerBatch, ...], codec: str | None) -> ProducerBatch:
    first = batches[0]
    if len(batches) == 1:
        return first
    records = pa.Table.from_batches([pa.ipc.read_record_batch(batch.message, WIRE_SCHEMA) for batch in batches])
    (whole,) = records.combine_chunks().to_batches()
    (message,) = write_messages([(first.partition, whole)], codec)
    deadline = max(batch.deadline for batch in batches)
    return replace(first, rows=np.arange(whole.num_rows), message=message, deadline=deadline, joined=batches)


def body(batches: Iterable[ProducerBatch]) -> bytes:
    """Return the Arrow stream of ``batches``."""
    return b"".join([_SCHEMA_MESSAGE, *(batch.message for batch in batches), _END])


def split(
    outcome: Outcome,
    batch: pa.RecordBatch,
    partitions: np.ndarray,
    rows: np.ndarray,
    *,
    chosen_among: TopicPartitions,
    deadline: float,
    codec: str | None,
    max_bytes: int,
) -> list[ProducerBatch]:
    """Return a batch per partition, in order of partitions; several for one that has more than ``max_bytes``.

    ``partitions`` and ``rows`` (indexes in the outcome, rising) have one item per row of ``batch``. The partitions were
    chosen among ``chosen_among``.
    """
    by_partition = split_by_partition(batch, partitions)
    grouped, ranges = by_partition.batch, by_partition.ranges
    places = rows if by_partition.order is None else rows[by_partition.order]
    # Compute the sizes of parts only if the whole is too large, because each computation costs.
    if grouped.nbytes > max_bytes or len(rows) > REQUEST_RECORDS_MAX:
        ranges = [(p, *part) for p, start, end in ranges for part in _within(grouped, start, end, max_bytes)]
    messages = write_messages(((partition, grouped.slice(a, b - a)) for partition, a, b in ranges), codec)
    return [
        ProducerBatch(outcome, partition, places[first:end], message, deadline, chosen_among)
        for (partition, first, end), message in zip(ranges, messages, strict=True)
    ]


def write_messages(parts: Iterable[tuple[int, pa.RecordBatch]], codec: str | None) -> list[pa.Buffer]:
    """Return each batch (WIRE_SCHEMA, may be a slice) as one message that names its partition."""
    sink = pa.BufferOutputStream()
    ends = [len(_SCHEMA_MESSAGE)]
    with pa.ipc.new_stream(sink, WIRE_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for partition, batch in parts:
            writer.write_batch(batch, custom_metadata={"partition": str(partition)})
            ends.append(sink.tell())
    stream = sink.getvalue()
    return [stream.slice(start, end - start) for start, end in pairwise(ends)]


def _within(batch: pa.RecordBatch, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) until each part has at most ``max_bytes``, or is one record."""
    if stop - start > 1 and (batch.slice(start, stop - start).nbytes > max_bytes or stop - start > REQUEST_RECORDS_MAX):
        middle = (start + stop) // 2
        yield from _within(batch, start, middle, max_bytes)
        yield from _within(batch, middle, stop, max_bytes)
    else:
        yield start, stop
