"""The journal frames of one partition: records with their append time, truncations and snapshots.

Owns the append time. Invariant: the append times of a partition's frames never fall, whatever the wall clock does.
"""

from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from logstore.clock import Clock
from logstore.filesystem import Buffer
from logstore.journal.frame import Frame, FrameFlags, FrameHeader, FrameType
from logstore.kafka_batches.header import with_max_timestamp
from logstore.records.batch import EncodedBatch, KafkaBatch
from logstore.records.batch_identity import BatchIdentity

# These are made and looked up once: both take as long as the rest of a header.
_NO_FLAGS: Final = FrameFlags(0)
_DATA: Final = FrameType.DATA
_KAFKA_BATCH: Final = FrameType.KAFKA_BATCH


class PartitionFrames:
    __slots__ = ("_clock", "_last_append_time_ms", "partition", "topic_id")

    def __init__(self, topic_id: UUID, partition: int, clock: Clock) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self._clock = clock
        self._last_append_time_ms = 0

    def now_ms(self) -> int:
        """Return the append time that a batch would get now."""
        return max(self._clock.now_ms(), self._last_append_time_ms)

    def next_append_time_ms(self) -> int:
        """Return the append time of a frame that is made now."""
        self._last_append_time_ms = now_ms = self.now_ms()
        return now_ms

    def recover_append_time(self, append_time_ms: int) -> None:
        """Note that a record was appended then: later records are not appended earlier, whatever the clock says now."""
        self._last_append_time_ms = max(self._last_append_time_ms, append_time_ms)

    def data(
        self,
        batch: pa.RecordBatch | EncodedBatch,
        payload: pa.Buffer,
        *,
        base_offset: int,
        leader_epoch: int,
        inflated_bytes: int,
        log_append_time: bool,
        identity: BatchIdentity,
    ) -> Frame:
        """Return the frame of a batch of WIRE_SCHEMA, which ``payload`` encodes."""
        append_time = self.next_append_time_ms()
        header = FrameHeader(
            type=_DATA,
            flags=FrameFlags.LOG_APPEND_TIME if log_append_time else _NO_FLAGS,
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=base_offset,
            record_count=batch.num_rows,
            leader_epoch=leader_epoch,
            append_time_ms=append_time,
            max_timestamp_ms=append_time if log_append_time else _max_timestamp(batch, append_time),
            inflated_bytes=inflated_bytes,
            identity=identity,
        )
        return Frame(header, payload)

    def kafka_batch(
        self, batch: KafkaBatch, payload: Buffer, *, base_offset: int, leader_epoch: int, identity: BatchIdentity
    ) -> Frame:
        """Return the frame of a Kafka client's record batch: ``payload`` stays as it is, except for the append time."""
        append_time = self.next_append_time_ms()
        if batch.log_append_time:
            payload = with_max_timestamp(payload, append_time, log_append_time=True)
        # The arguments are positional: a header with named fields takes twice as long to make.
        header = FrameHeader(
            _KAFKA_BATCH,
            FrameFlags.LOG_APPEND_TIME if batch.log_append_time else _NO_FLAGS,
            self.topic_id,
            self.partition,
            base_offset,
            batch.num_rows,
            leader_epoch,
            append_time,
            batch.newest_timestamp_ms(append_time),
            batch.nbytes,
            identity,
        )
        return Frame(header, payload)

    def truncation(self, end_offset: int, leader_epoch: int) -> Frame:
        """Return the frame that drops everything from ``end_offset`` on."""
        return self._without_offsets(FrameType.TRUNCATE, end_offset, leader_epoch, b"")

    def snapshot(self, sealed_offset: int, leader_epoch: int, payload: bytes) -> Frame:
        """Return the frame of an encoded ``PartitionSnapshot``."""
        return self._without_offsets(FrameType.SNAPSHOT, sealed_offset, leader_epoch, payload)

    def _without_offsets(self, frame_type: FrameType, base_offset: int, leader_epoch: int, payload: bytes) -> Frame:
        """Return a frame that takes no offset. It has the append time of the last record."""
        header = FrameHeader(
            type=frame_type,
            flags=_NO_FLAGS,
            topic_id=self.topic_id,
            partition=self.partition,
            base_offset=base_offset,
            record_count=0,
            leader_epoch=leader_epoch,
            append_time_ms=self._last_append_time_ms,
            max_timestamp_ms=self._last_append_time_ms,
            inflated_bytes=0,
        )
        return Frame(header, payload)


def _max_timestamp(batch: pa.RecordBatch | EncodedBatch, append_time_ms: int) -> int:
    if isinstance(batch, EncodedBatch):
        return batch.newest_timestamp_ms(append_time_ms)
    timestamps = batch.column(0)
    if timestamps.null_count == len(timestamps):
        return append_time_ms
    latest = pc.max(timestamps.cast(pa.int64())).as_py()
    return int(max(latest, append_time_ms)) if timestamps.null_count else int(latest)
