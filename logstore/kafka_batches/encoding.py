"""Records of the log as Kafka's record batches: journal frames of HTTP producers, and history."""

import pyarrow as pa

from logstore.filesystem import Buffer
from logstore.kafka_batches.codec import CODEC
from logstore.kafka_batches.compression import deflate
from logstore.kafka_batches.header import (
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Compression,
    bytes_of,
    write_header,
)
from logstore.kafka_batches.records import RecordCodec
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity
from logstore.records.log_batches import int64_values

_INT32_MAX = 2**31 - 1


def encode_batch(
    records: pa.RecordBatch,
    *,
    leader_epoch: int,
    base_offset: int | None = None,
    end_offset: int | None = None,
    identity: BatchIdentity = NO_IDENTITY,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
    compression: Compression = Compression.NONE,
    codec: RecordCodec = CODEC,
) -> memoryview:
    """``records`` (LOG_SCHEMA, may be a slice) as one batch, which stands for the offsets [base_offset, end_offset).

    Without these it begins and ends where its records do. A batch over a gap has other ends; one without records needs
    both. Consumers go on behind the end, so an empty batch takes them over offsets that compaction has emptied.

    ``identity`` other than a producer's is not told. With ``log_append_time`` all records have one timestamp.

    ValueError if the records do not fit the arguments: offsets outside of the range, more than 2^31 offsets or bytes,
    different timestamps with ``log_append_time``.
    """
    rows = records.num_rows
    offsets = int64_values(records.column("offset")) if rows else ()
    timestamps = int64_values(records.column("timestamp")) if rows else ()
    if base_offset is None:
        base_offset = int(offsets[0])
    if end_offset is None:
        end_offset = int(offsets[-1]) + 1
    if rows and not base_offset <= offsets[0] <= offsets[-1] < end_offset:
        raise ValueError(f"the records have offsets {offsets[0]} to {offsets[-1]}, outside [{base_offset}, {end_offset})")
    if not 0 < end_offset - base_offset <= _INT32_MAX:
        raise ValueError(f"a record batch cannot stand for the offsets [{base_offset}, {end_offset})")
    max_timestamp = int(timestamps.max()) if rows else NO_TIMESTAMP
    if rows and log_append_time and timestamps.min() != max_timestamp:
        raise ValueError("a record batch with the append time has one timestamp for all of its records")
    base_timestamp = int(timestamps[0]) if rows else NO_TIMESTAMP
    batch: Buffer = bytes_of(codec.encode(records, base_offset, base_timestamp)) if rows else bytearray(HEADER_BYTES)
    if rows and compression is not Compression.NONE:
        batch = bytearray(HEADER_BYTES) + deflate(compression, pa.py_buffer(batch)[HEADER_BYTES:])
    else:
        compression = Compression.NONE
    attributes = compression | LOG_APPEND_TIME * log_append_time | TRANSACTIONAL * transactional | CONTROL * control
    producer_id, epoch, sequence = identity if identity.is_producers else (-1, -1, -1)
    view = memoryview(batch)
    write_header(
        view,
        BatchHeader(
            base_offset,
            0,
            leader_epoch,
            MAGIC,
            0,
            attributes,
            end_offset - base_offset - 1,
            base_timestamp,
            max_timestamp,
            producer_id,
            epoch,
            sequence,
            rows,
        ),
    )
    return view
