"""A request's records as columns, and the requirements that hold for every input format.

Sizes, limits and the split by partition are computed over whole columns: nothing here makes an object per record.
Column arrays may be slices, so positions are always read through ``ListArray.offsets``, never from raw buffers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import (
    InvalidRecordError,
    NoRecordsError,
    RecordTooLargeError,
    RequestTooLargeError,
)
from logstore.filesystem import Buffer
from logstore.limits import HEADERS_PER_RECORD_MAX, REQUEST_RECORDS_MAX
from logstore.records.partition_split import split_by_partition


class DecodedRecords:
    """The records of one request, in request order, validated.

    ``verbatim`` is the encapsulated Arrow IPC record batch message that the producer sent, if that message alone is
    ``batch`` and may be stored as it is.
    """

    def __init__(self, batch: pa.RecordBatch, partitions: np.ndarray | None, verbatim: pa.Buffer | None = None) -> None:
        self._batch = batch
        self._partitions = partitions
        self.verbatim = verbatim

    @property
    def batch(self) -> pa.RecordBatch:
        """The records as columns: WIRE_SCHEMA, at least one row."""
        return self._batch

    @property
    def partitions(self) -> np.ndarray | None:
        """The partition that each record names, int32, -1 = none; None if no record names one."""
        return self._partitions

    @property
    def num_rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def nbytes(self) -> int:
        return int(self.batch.get_total_buffer_size())

    @property
    def null_keys(self) -> int:
        """The number of records without a key."""
        return int(self.batch.column("key").null_count)


class EncodedBatch(NamedTuple):
    """The known facts about records that another broker has encoded, in place of their columns. ``untimed_count`` of
    them have no timestamp, ``max_timestamp_ms`` is the latest of the others; ``nbytes`` is their size before
    compression.
    """

    num_rows: int
    nbytes: int
    untimed_count: int
    max_timestamp_ms: int

    @classmethod
    def of(cls, batch: pa.RecordBatch, nbytes: int) -> Self:
        timestamps = batch.column("timestamp")
        untimed: int = timestamps.null_count
        latest = -1 if untimed == len(timestamps) else pc.max(timestamps.cast(pa.int64())).as_py()
        return cls(batch.num_rows, nbytes, untimed, latest)

    def newest_timestamp_ms(self, append_time_ms: int) -> int:
        """Return the newest timestamp of all records: those without a timestamp get the append time."""
        return _newest_timestamp_ms(self, append_time_ms)


class KafkaBatch(NamedTuple):
    """The known facts about a checked Kafka record batch, in place of its columns.

    The first four fields are those of ``EncodedBatch``; ``nbytes`` is the size of the data frame that it would be.
    ``null_keys`` are the numbers of records without a key: for a compacted topic the first RECORD_ERRORS_MAX of them,
    for others the first one. With ``log_append_time`` its timestamps were not checked: the append time is written over
    them.
    """

    num_rows: int
    nbytes: int
    untimed_count: int
    max_timestamp_ms: int
    null_keys: Sequence[int]
    log_append_time: bool

    def newest_timestamp_ms(self, append_time_ms: int) -> int:
        """Return the newest timestamp of all records: those without a timestamp get the append time."""
        return append_time_ms if self.log_append_time else _newest_timestamp_ms(self, append_time_ms)


def _newest_timestamp_ms(batch: EncodedBatch | KafkaBatch, append_time_ms: int) -> int:
    if not batch.untimed_count:
        return batch.max_timestamp_ms
    timed = batch.untimed_count < batch.num_rows
    return max(batch.max_timestamp_ms, append_time_ms) if timed else append_time_ms


class PartitionBatch(NamedTuple):
    """The records of a request that go to one partition, in request order.

    ``rows`` are their positions in the request, rising; None = all of the request. For an EncodedBatch or a KafkaBatch,
    ``verbatim`` is the payload.
    """

    partition: int
    batch: pa.RecordBatch | EncodedBatch | KafkaBatch
    rows: np.ndarray | None
    verbatim: Buffer | pa.Buffer | None


@dataclass(frozen=True, slots=True)
class SplitRecords:
    """The validated records of a request whose producer has put them into batches of one partition each. Several of
    ``parts`` may be for one partition, then in their order.
    """

    parts: tuple[PartitionBatch, ...]

    @property
    def num_rows(self) -> int:
        return sum(part.batch.num_rows for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.batch.nbytes for part in self.parts)


Records = DecodedRecords | SplitRecords


def record_sizes(batch: pa.RecordBatch) -> np.ndarray:
    """Return the bytes of key, value and headers (their keys and values) of each record: int64, one per row."""
    sizes: np.ndarray = _lengths(batch.column("key")) + _lengths(batch.column("value"))
    headers = batch.column("headers")
    if headers.null_count < len(headers):
        # These are prefix sums over the elements of these rows: a record's headers are one range of them.
        offsets = headers.offsets.to_numpy()
        elements = headers.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets = offsets - offsets[0]
        ends = np.concatenate(([0], np.cumsum(_lengths(elements.field("key")) + _lengths(elements.field("value")))))
        sizes += np.where(_valid(headers), ends[offsets[1:]] - ends[offsets[:-1]], 0)
    return sizes


def check_record_sizes(batch: pa.RecordBatch, max_message_bytes: int, rows: np.ndarray | range) -> None:
    """Raise RecordTooLargeError naming the first record over ``max_message_bytes``. ``rows`` are the positions in the
    request of the batch's records.
    """
    _, keys, values, headers = batch.columns
    if headers.null_count == len(headers) and _data_bytes(keys) + _data_bytes(values) <= max_message_bytes:
        return  # all records together are no larger than a single one may be
    sizes = record_sizes(batch)
    if sizes.max() > max_message_bytes:
        row = int(np.argmax(sizes > max_message_bytes))
        raise RecordTooLargeError(
            f"Record {rows[row]} of the request has {sizes[row]} bytes (key, value and headers), "
            f"max.message.bytes allows {max_message_bytes}: send smaller records or raise the topic's max.message.bytes"
        )


def check_records(batch: pa.RecordBatch, max_message_bytes: int, first_row: int = 0) -> None:
    """Check the limits of every request: 1 to REQUEST_RECORDS_MAX records, each within its own limits.

    ``first_row`` is the position in the request of the batch's first record. Raises InvalidRequestError,
    RequestTooLargeError, InvalidRecordError, RecordTooLargeError.
    """
    if not batch.num_rows:
        raise NoRecordsError("records may not be empty: send at least one record")
    check_record_count(batch.num_rows)
    check_record_sizes(batch, max_message_bytes, range(first_row, first_row + batch.num_rows))
    headers = batch.column("headers")
    if headers.null_count == len(headers):
        return
    counts = pc.fill_null(pc.list_value_length(headers), 0).to_numpy()
    if counts.max() > HEADERS_PER_RECORD_MAX:
        row = int(np.argmax(counts > HEADERS_PER_RECORD_MAX))
        raise InvalidRecordError(
            f"Record {first_row + row} of the request has {counts[row]} headers, "
            f"at most {HEADERS_PER_RECORD_MAX} are allowed"
        )


def check_record_count(count: int) -> None:
    """Raise RequestTooLargeError if a request has more than REQUEST_RECORDS_MAX records."""
    if count > REQUEST_RECORDS_MAX:
        raise RequestTooLargeError(
            f"The request has more than {REQUEST_RECORDS_MAX} records: send them in several requests"
        )


def partition_batches(records: DecodedRecords, partitions: np.ndarray) -> list[PartitionBatch]:
    """Return the records by rising partition, in request order inside each. ``partitions`` is int32 per record."""
    split = split_by_partition(records.batch, partitions)
    order = split.order
    if order is None:
        ((partition, _, _),) = split.ranges
        return [PartitionBatch(partition, records.batch, None, records.verbatim)]
    return [
        PartitionBatch(partition, split.batch.slice(start, end - start), order[start:end], None)
        for partition, start, end in split.ranges
    ]


def binary_offsets(column: pa.Array) -> np.ndarray:
    """Return the starts of a binary or text column's values in its data buffer, and the last one's end: int32, rows +
    1.
    """
    if not len(column):
        return np.zeros(1, np.int32)
    # A count is given, because the buffer may end in the middle of a number.
    return np.frombuffer(column.buffers()[1], np.int32, column.offset + len(column) + 1)[column.offset :]


def _data_bytes(column: pa.Array) -> int:
    """Return at least the bytes of all values; bytes below nulls also count."""
    offsets = binary_offsets(column)
    return int(offsets[-1]) - int(offsets[0])


def _lengths(column: pa.Array) -> np.ndarray:
    if column.null_count == len(column):
        return np.zeros(len(column), np.int64)
    lengths = np.diff(binary_offsets(column)).astype(np.int64)
    if column.null_count:
        lengths[~_valid(column)] = 0
    return lengths


def _valid(column: pa.Array) -> np.ndarray:
    return np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
