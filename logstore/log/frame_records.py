"""Journal frames as records of the log, and as batches for readers that know only Arrow."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

import pyarrow as pa

from logstore.errors import CorruptionError, InvalidRecordBatchError
from logstore.journal.frame import Frame, FrameFlags, FrameType
from logstore.kafka_batches.decoding import decode_batches
from logstore.kafka_batches.records import COLUMN_BYTES_MAX
from logstore.protocol.record_batch import LOG_APPEND_TIME, RecordBatch
from logstore.records.log_batches import GATHERED_BYTES, Origin, with_origins
from logstore.records.payload import decode_payloads, encode_payload
from logstore.records.schema import WIRE_SCHEMA

# These are looked up once, because an enumeration's members are slow to find.
_LOG_APPEND_TIME: Final = FrameFlags.LOG_APPEND_TIME
_DATA: Final = FrameType.DATA
_KAFKA_BATCH: Final = FrameType.KAFKA_BATCH


def frame_records(frames: Iterable[Frame], kafkas_bytes: int = GATHERED_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield batches of LOG_SCHEMA, with small frames joined. Offsets come from the headers; timestamps are filled in as
    the topic's timestamp type was at append time. Frames without records are skipped.

    ``kafkas_bytes``: record batches of Kafka's clients are joined up to this size. Their records are copied in any
    case, so joining them costs nothing.
    """
    gathered: list[Frame] = []
    gathered_bytes = 0
    has_kafkas = False
    for frame in frames:
        header, payload = frame
        if header.type is _KAFKA_BATCH:
            has_kafkas, limit = True, kafkas_bytes
        elif header.type is _DATA:
            limit = GATHERED_BYTES
        else:
            continue
        num_bytes = max(header.inflated_bytes, len(payload))
        if gathered and gathered_bytes + num_bytes > limit:
            yield _records(gathered, has_kafkas=has_kafkas)
            gathered, gathered_bytes = [], 0
        gathered.append(frame)
        gathered_bytes += num_bytes
    if gathered:
        yield _records(gathered, has_kafkas=has_kafkas)


def _records(frames: Sequence[Frame], *, has_kafkas: bool) -> pa.RecordBatch:
    records = _decoded_runs(frames) if has_kafkas else decode_payloads([payload for _, payload in frames])
    origins = [
        Origin(header.record_count, header.base_offset, header.append_time_ms, _LOG_APPEND_TIME in header.flags)
        for header, _ in frames
    ]
    if records.num_rows != (count := sum([origin.record_count for origin in origins])):
        raise CorruptionError(
            f"Journal frames from offset {origins[0].base_offset} on hold {records.num_rows} records, and their "
            f"headers say {count}"
        )
    return with_origins(records, origins)


def _decoded_runs(frames: Sequence[Frame]) -> pa.RecordBatch:
    """Decode the records of all frames (WIRE_SCHEMA). Adjacent frames of one type are decoded by one call."""
    decoded = []
    for is_kafkas, run in groupby(frames, _is_kafkas):
        payloads = [payload for _, payload in run]
        if is_kafkas:
            try:
                records, _ = decode_batches(payloads, inflated_bytes_max=COLUMN_BYTES_MAX)
            except InvalidRecordBatchError as error:
                raise CorruptionError(f"A journal payload is not the record batch that was stored: {error}") from error
            decoded.append(records)
        else:
            decoded.append(decode_payloads(payloads))
    return decoded[0] if len(decoded) == 1 else pa.concat_batches(decoded)


def _is_kafkas(frame: Frame) -> bool:
    return frame.header.type is _KAFKA_BATCH


def stored_batches(frames: Iterable[Frame]) -> list[RecordBatch]:
    """Return the batches of the frames as they lie in the journal. Each frame holds a record. Batches of Kafka's
    clients become Arrow messages, small ones together.
    """
    found: list[RecordBatch] = []
    of_kafka: list[Frame] = []
    for frame in frames:
        header, payload = frame
        if of_kafka and (header.type is not _KAFKA_BATCH or header.base_offset != of_kafka[-1].header.end_offset):
            found += _arrow_messages(of_kafka)
            of_kafka = []
        if header.type is _KAFKA_BATCH:
            of_kafka.append(frame)
            continue
        flags = LOG_APPEND_TIME if _LOG_APPEND_TIME in header.flags else 0
        found.append(RecordBatch(header.base_offset, header.append_time_ms, header.record_count, flags, payload))
    if of_kafka:
        found += _arrow_messages(of_kafka)
    return found


def _arrow_messages(frames: Sequence[Frame]) -> Iterator[RecordBatch]:
    """Yield frames without a gap between them as Arrow messages. Every record has its timestamp."""
    base_offset = frames[0].header.base_offset
    for records in frame_records(frames):
        wire = pa.RecordBatch.from_arrays(records.columns[1:], schema=WIRE_SCHEMA)
        yield RecordBatch(base_offset, frames[-1].header.append_time_ms, wire.num_rows, 0, encode_payload(wire))
        base_offset += wire.num_rows
