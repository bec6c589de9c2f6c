"""The parts that both forms of the record codec share: the records of a batch, the result of a scan, and faults.

``native`` is the codec in C; ``numpy_codec`` does the same with numpy and pyarrow. Both accept and refuse the same
bytes.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordBatchError, InvalidTimestampError, RefusedRecords
from logstore.limits import HEADERS_PER_RECORD_MAX, TIMESTAMP_MS_MAX

#: Columns have 32-bit offsets.
COLUMN_BYTES_MAX: Final = 2**31 - 1


class BatchRecords(NamedTuple):
    """The records of one batch, inflated. If ``append_time`` is given, it is the timestamp of each, and their own are
    not read. -1 is no timestamp.
    """

    data: pa.Buffer
    record_count: int
    base_timestamp: int
    append_time: int | None


class Found(NamedTuple):
    """The result of scanning the records of one batch. Sizes are those of the columns' data, without offsets and
    validity.
    """

    key_bytes: int
    value_bytes: int
    header_count: int
    header_key_bytes: int
    header_value_bytes: int
    null_keys: int
    first_null_key: int
    """The number of the first record without a key, or -1."""
    null_values: int
    null_header_values: int
    bare: int
    """Records without headers."""
    untimed: int
    """Records without a timestamp."""
    max_timestamp: int
    """-1 if no record has one."""
    last_offset_delta: int
    """-1 without records."""


class DecodedBatches(NamedTuple):
    """Decoded records. ``records`` has WIRE_SCHEMA: a missing timestamp is null, and so are missing headers.
    ``offset_deltas`` is int32, one for each row, counted from the base offset of the row's batch.
    """

    records: pa.RecordBatch
    offset_deltas: np.ndarray


class RecordCodec(Protocol):
    def scan(self, batches: Sequence[BatchRecords], *, contiguous: bool, first_batch: int = 0) -> list[Found]:
        """Check every record and header. With ``contiguous`` record i has the offset delta i, otherwise deltas rise.
        Raises InvalidRecordBatchError and InvalidTimestampError; they count batches from ``first_batch``.
        """
        ...

    def decode(self, batches: Sequence[BatchRecords]) -> DecodedBatches:
        """Decode the records of all batches, in their order; the deltas of each rise. Raises the errors of ``scan``.
        ``batches`` have at most COLUMN_BYTES_MAX bytes together.
        """
        ...

    def encode(self, records: pa.RecordBatch, base_offset: int, base_timestamp: int) -> pa.Buffer:
        """Encode ``records`` (LOG_SCHEMA, at least one) as the records of one batch, after HEADER_BYTES that are free.
        The buffer can be written. Raises ValueError if they have more than COLUMN_BYTES_MAX bytes.
        """
        ...


class Fault(IntEnum):
    """The reason why a record is refused; the numbers are those of ``record_codec.c``."""

    RECORD_LENGTH = 1
    TIMESTAMP_DELTA = 2
    OFFSET_DELTA = 3
    OFFSET_DELTA_VALUE = 4
    KEY_LENGTH = 5
    VALUE_LENGTH = 6
    HEADER_COUNT = 7
    HEADER_KEY_LENGTH = 8
    HEADER_KEY_TEXT = 9
    HEADER_VALUE_LENGTH = 10
    RECORD_REST = 11
    BATCH_REST = 12
    TIMESTAMP_VALUE = 13
    TOO_MANY_HEADERS = 14


_WORDS: Final = {
    Fault.RECORD_LENGTH: "has a length that is cut, not positive, or beyond the end of the batch",
    Fault.TIMESTAMP_DELTA: "has a timestamp delta that is cut or has more than 64 bits",
    Fault.OFFSET_DELTA: "has an offset delta that is cut or has more than 32 bits",
    Fault.OFFSET_DELTA_VALUE: "has an offset delta that does not follow the one before it",
    Fault.KEY_LENGTH: "has a key whose length is cut, below -1, or beyond the end of the record",
    Fault.VALUE_LENGTH: "has a value whose length is cut, below -1, or beyond the end of the record",
    Fault.HEADER_COUNT: "has a number of headers that is cut or negative",
    Fault.HEADER_KEY_LENGTH: "has a header key whose length is cut, negative, or beyond the end of the record",
    Fault.HEADER_KEY_TEXT: "has a header key that is not UTF-8",
    Fault.HEADER_VALUE_LENGTH: "has a header value whose length is cut, below -1, or beyond the end of the record",
    Fault.RECORD_REST: "has bytes behind its last field",
    Fault.BATCH_REST: "is the last one by the batch's count, and more bytes follow it",
    Fault.TIMESTAMP_VALUE: f"has a timestamp outside 0 to {TIMESTAMP_MS_MAX} ms since 1970 (-1 is none)",
    Fault.TOO_MANY_HEADERS: f"has more than {HEADERS_PER_RECORD_MAX} headers",
}


#: After these faults the record can still be read, and so can those after it.
_OF_THE_RECORD_ALONE: Final = {Fault.HEADER_KEY_TEXT, Fault.TIMESTAMP_VALUE, Fault.TOO_MANY_HEADERS}


def fault_error(fault: Fault, batch: int, record: int) -> InvalidRecordBatchError:
    """Return the error of a fault. ``record`` is a number in the batch, ``batch`` one in its request; both count from
    0.
    """
    kind = InvalidTimestampError if fault is Fault.TIMESTAMP_VALUE else InvalidRecordBatchError
    is_alone = fault in _OF_THE_RECORD_ALONE
    refused = RefusedRecords((record,), f"The record {_WORDS[fault]}") if is_alone else None
    return kind(f"Record {record} of record batch {batch} {_WORDS[fault]}", refused)
