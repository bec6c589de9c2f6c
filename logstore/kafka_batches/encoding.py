"""Encodes records of the log as Kafka's record batches: journal frames of HTTP producers, and history."""

import pyarrow as pa

from logstore.filesystem import Buffer
from logstore.kafka_batches.codec import CODEC
from logstore.kafka_batches.compression import deflate
from logstore.kafka_batches.header import (
    CONTROL,
    HEADER_BYTES,
    LENGTH_END,
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

# The last offset delta has 32 bits.
_OFFSETS_MAX = 2**31


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
    """Encode ``records`` (LOG_SCHEMA, may be a slice) as one batch, which covers the offsets [base_offset, end_offset).

    Without these it begins and ends where its records do. A batch over a gap has other ends; one without records needs
    both. Consumers continue after the end, so an empty batch takes them over offsets that compaction has emptied. An
    ``identity`` other than a producer's is left out. With ``log_append_time`` all records have one timestamp.

    Raises ValueError if the records do not fit the arguments: offsets outside of the range, more than 2^31 offsets or
    bytes, different timestamps with ``log_append_time``.
    """
    rows = records.num_rows
    if rows:
        offsets, timestamps = int64_values(records.column("offset")), int64_values(records.column("timestamp"))
        first, last = int(offsets[0]), int(offsets[-1])
        base_offset = first if base_offset is None else base_offset
        end_offset = last + 1 if end_offset is None else end_offset
        if not base_offset <= first <= last < end_offset:
            raise ValueError(f"records with offsets {first} to {last} are outside of [{base_offset}, {end_offset})")
        base_timestamp, max_timestamp = int(timestamps[0]), int(timestamps.max())
        if log_append_time and timestamps.min() != max_timestamp:
            raise ValueError("a record batch with the append time has one timestamp for all of its records")
    else:
        if base_offset is None or end_offset is None:
            raise ValueError("a record batch without records needs the offsets that it stands for")
        base_timestamp = max_timestamp = NO_TIMESTAMP
        compression = Compression.NONE
    if not 0 < end_offset - base_offset <= _OFFSETS_MAX:
        raise ValueError(f"a record batch cannot stand for the offsets [{base_offset}, {end_offset})")
    batch: Buffer = bytes_of(codec.encode(records, base_offset, base_timestamp)) if rows else bytearray(HEADER_BYTES)
    if compression is not Compression.NONE:
        batch = bytearray(HEADER_BYTES) + deflate(compression, pa.py_buffer(batch)[HEADER_BYTES:])
    view = memoryview(batch)
    complete_batch(
        view,
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epoch=leader_epoch,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=rows,
        attributes=compression | LOG_APPEND_TIME * log_append_time | TRANSACTIONAL * transactional | CONTROL * control,
        identity=identity,
    )
    return view


def complete_batch(
    batch: memoryview,
    *,
    base_offset: int,
    end_offset: int,
    leader_epoch: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    attributes: int,
    identity: BatchIdentity = NO_IDENTITY,
) -> None:
    """Write the header before the records in ``batch``, which follow HEADER_BYTES; the arguments are those of
    ``encode_batch``.
    """
    producer_id, producer_epoch, base_sequence = identity if identity.is_producers else (-1, -1, -1)
    header = BatchHeader(
        base_offset=base_offset,
        length=len(batch) - LENGTH_END,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=end_offset - base_offset - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    write_header(batch, header)
