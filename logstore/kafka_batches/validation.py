"""Checks record batches of producers in full before they are appended: a batch that is accepted here can be rolled, and
read by Kafka's clients.
"""

from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidRecordBatchError, InvalidTimestampError
from logstore.filesystem import Buffer
from logstore.kafka_batches.codec import CODEC
from logstore.kafka_batches.compression import inflate
from logstore.kafka_batches.header import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, bytes_of, check_crc
from logstore.kafka_batches.records import COLUMN_BYTES_MAX, BatchRecords, Found, RecordCodec
from logstore.limits import TIMESTAMP_MS_MAX

# A row has a timestamp, the ends of key and value, and with headers the end of its list. A header has the ends of key
# and value.
_ROW_BYTES: Final = 8 + 4 + 4
_LIST_BYTES: Final = 4
_HEADER_ROW_BYTES: Final = 4 + 4


class ValidBatch(NamedTuple):
    """A batch at [start, end) of the buffer, which has at least one record. Its record i has the offset delta i.

    ``max_timestamp`` is the largest of its records', -1 if none has one; the header may have another. ``untimed_count``
    of them have no timestamp. ``null_key_count`` have no key, the first of these is record ``first_null_key`` (-1).
    ``inflated_bytes`` is the size of the columns that the batch becomes.
    """

    start: int
    end: int
    header: BatchHeader
    max_timestamp: int
    untimed_count: int
    null_key_count: int
    first_null_key: int
    inflated_bytes: int


def validate(
    data: Buffer | pa.Buffer, *, inflated_bytes_max: int, log_append_time: bool = False, codec: RecordCodec = CODEC
) -> list[ValidBatch]:
    """Return the batches in ``data``, in their order; none if it is empty.

    It checks length, magic, CRC, compression, counts, each field of each record and header, and that all batches
    together inflate to at most ``inflated_bytes_max`` bytes. Control batches and transactional ones are accepted, and
    the header shows them. With ``log_append_time`` the timestamps will be written over, and may be anything. Raises
    InvalidRecordBatchError and these subclasses: CorruptRecordBatchError, UnsupportedCompressionTypeError,
    RecordBatchTooLargeError, InvalidTimestampError.
    """
    view = bytes_of(data)
    found: list[ValidBatch] = []
    left = min(inflated_bytes_max, COLUMN_BYTES_MAX)
    start, size = 0, len(view)
    while start < size:
        header = BatchHeader.read(view, start)
        end = start + header.size
        check_crc(view, header, start)
        _check_header(header, start)
        inflated = inflate(header.compression, view[start + HEADER_BYTES : end], left)
        left -= len(inflated)
        records = batch_records(header, inflated, ignore_timestamps=log_append_time)
        (batch,) = codec.scan([records], contiguous=True, first_batch=len(found))
        found.append(_valid(start, end, header, batch))
        start = end
    return found


def find_null_keys(
    data: Buffer | pa.Buffer, batch: ValidBatch, count_max: int, codec: RecordCodec = CODEC
) -> list[int]:
    """Return the numbers of the first ``count_max`` records without a key, of a batch that ``validate`` found in
    ``data``.
    """
    records = bytes_of(data)[batch.start + HEADER_BYTES : batch.end]
    inflated = inflate(batch.header.compression, records, COLUMN_BYTES_MAX)
    keys = codec.decode([batch_records(batch.header, inflated, ignore_timestamps=True)]).records["key"]
    numbers: list[int] = np.flatnonzero(keys.is_null())[:count_max].tolist()
    return numbers


def batch_records(header: BatchHeader, inflated: Buffer, *, ignore_timestamps: bool = False) -> BatchRecords:
    """Return the records for a codec. Raises InvalidTimestampError if the batch has one time for all records that no
    record may have.
    """
    append_time = NO_TIMESTAMP if ignore_timestamps else None
    if header.is_log_append_time and not ignore_timestamps:
        append_time = header.max_timestamp
        if not NO_TIMESTAMP <= append_time <= TIMESTAMP_MS_MAX:
            raise InvalidTimestampError(
                f"The record batch has append time {append_time}, outside 0 to {TIMESTAMP_MS_MAX} ms since 1970"
            )
    return BatchRecords(pa.py_buffer(inflated), header.record_count, header.base_timestamp, append_time)


def _check_header(header: BatchHeader, start: int) -> None:
    """Check the numbers of a producer's batch."""
    if header.record_count < 1:
        raise InvalidRecordBatchError(
            f"The record batch at byte {start} has {header.record_count} records: send one at least"
        )
    if header.last_offset_delta != header.record_count - 1:
        raise InvalidRecordBatchError(
            f"The record batch at byte {start} has {header.record_count} records by its count, and "
            f"{header.last_offset_delta + 1} by its last offset delta"
        )
    if header.producer_id != -1 and min(header.producer_id, header.producer_epoch, header.base_sequence) < 0:
        raise InvalidRecordBatchError(
            f"The record batch at byte {start} has producer id {header.producer_id}, epoch {header.producer_epoch} and "
            f"base sequence {header.base_sequence}: with an id none of them is negative"
        )


def _valid(start: int, end: int, header: BatchHeader, found: Found) -> ValidBatch:
    inflated_bytes = header.record_count * _ROW_BYTES + found.key_bytes + found.value_bytes
    if found.header_count:
        inflated_bytes += header.record_count * _LIST_BYTES + found.header_count * _HEADER_ROW_BYTES
        inflated_bytes += found.header_key_bytes + found.header_value_bytes
    return ValidBatch(
        start,
        end,
        header,
        found.max_timestamp,
        found.untimed,
        found.null_keys,
        found.first_null_key,
        inflated_bytes,
    )
