"""The role of a partition's leader: it gives out offsets, moves the high watermark and acknowledges appends.

Invariant: an append with acks=all is acknowledged when the high watermark reaches its end offset, one with acks=1 when
the log end does. This leader is its partition's only replica, so that the high watermark follows the log end at once:
durable, log end, high watermark and acknowledgement are one step of the loop.
"""

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import LogStoreError
from logstore.journal.frame import Frame, FrameFlags, FrameHeader, FrameType
from logstore.log.acknowledgements import Acknowledgement, AcknowledgementQueue
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity

if TYPE_CHECKING:
    from logstore.log.partition_log import PartitionLog

ACKS_ALL = -1
# Making it anew for each frame takes as long as the rest of a header.
_NO_FLAGS = FrameFlags(0)


class Leadership:
    __slots__ = ("_durable", "_log", "_replicated", "epoch")

    def __init__(self, log: "PartitionLog", epoch: int) -> None:
        self.epoch = epoch
        self._log = log
        self._replicated = AcknowledgementQueue()
        # Few wait for it.
        self._durable: AcknowledgementQueue | None = None

    def next_frame(
        self,
        batch: pa.RecordBatch,
        payload: pa.Buffer,
        *,
        inflated_bytes: int,
        log_append_time: bool,
        identity: BatchIdentity = NO_IDENTITY,
    ) -> Frame:
        """The journal frame for a batch, with the next offsets. Hand it to the journal and ``PartitionLog.track`` it at
        once.

        Between this call and ``Journal.store`` nothing may await: the order of frames in the journal is the order of
        offsets. Raises what the log was closed with, QuarantinedError.
        """
        log = self._log
        log.require_open()
        log.require_served()
        append_time = log.next_append_time_ms()
        header = FrameHeader(
            type=FrameType.DATA,
            flags=FrameFlags.LOG_APPEND_TIME if log_append_time else _NO_FLAGS,
            topic_id=log.topic_id,
            partition=log.partition,
            base_offset=log.next_offset,
            record_count=batch.num_rows,
            leader_epoch=self.epoch,
            append_time_ms=append_time,
            max_timestamp_ms=append_time if log_append_time else _max_timestamp(batch, append_time),
            inflated_bytes=inflated_bytes,
            identity=identity,
        )
        return Frame(header, payload)

    def acknowledge(self, end_offset: int, acks: int, acknowledgement: Acknowledgement) -> None:
        """Count ``acknowledgement`` down when what is below ``end_offset`` counts for ``acks``, which may be now."""
        queue, reached = self._replicated, self._log.high_watermark
        if acks != ACKS_ALL:
            queue = self._durable = self._durable or AcknowledgementQueue()
            reached = self._log.log_end_offset
        if end_offset <= reached:
            acknowledgement.reached()
        else:
            queue.add(end_offset, acknowledgement)

    def advance(self) -> None:
        """The log end has moved: so does the high watermark."""
        log = self._log
        if self._durable is not None:
            self._durable.reach(log.log_end_offset)
        log.advance_high_watermark(log.log_end_offset)
        self._replicated.reach(log.high_watermark)

    def fail(self, error: LogStoreError) -> None:
        """Whatever waits for more than what is durable fails: it is not stored, or nobody here will know."""
        self._replicated.fail_above(self._log.high_watermark, error)
        if self._durable is not None:
            self._durable.fail_above(self._log.log_end_offset, error)


def _max_timestamp(batch: pa.RecordBatch, append_time_ms: int) -> int:
    timestamps = batch.column(0)
    if timestamps.null_count == len(timestamps):
        return append_time_ms
    latest = pc.max(timestamps.cast(pa.int64())).as_py()
    return int(max(latest, append_time_ms)) if timestamps.null_count else int(latest)
