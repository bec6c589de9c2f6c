"""The role of a partition's leader: it moves the high watermark and acknowledges appends.

Invariant: an append with acks=all is acknowledged when the high watermark reaches its end offset, one with acks=1 when
the log end does. This leader is its partition's only replica, so that the high watermark follows the log end at once:
durable, log end, high watermark and acknowledgement are one step of the loop.
"""

from logstore.errors import LogStoreError
from logstore.log.acknowledgements import Acknowledgement, AcknowledgementQueue
from logstore.log.high_watermark import HighWatermark

ACKS_ALL = -1


class Leadership:
    __slots__ = ("_durable", "_high_watermark", "_log_end_offset", "epoch")

    def __init__(self, epoch: int, high_watermark: HighWatermark, log_end_offset: int) -> None:
        self.epoch = epoch
        self._high_watermark = high_watermark
        self._log_end_offset = log_end_offset
        # Few appends wait for the log end: the queue is made for the first of them.
        self._durable: AcknowledgementQueue | None = None

    def acknowledge(self, end_offset: int, acks: int, acknowledgement: Acknowledgement) -> None:
        """Count ``acknowledgement`` down when what is below ``end_offset`` counts for ``acks``, which may be now."""
        queue, reached = self._high_watermark.appends, self._high_watermark.offset
        if acks != ACKS_ALL:
            queue = self._durable = self._durable or AcknowledgementQueue()
            reached = self._log_end_offset
        if end_offset <= reached:
            acknowledgement.reached()
        else:
            queue.add(end_offset, acknowledgement)

    def advance(self, log_end_offset: int) -> None:
        """The log end has moved: so does the high watermark."""
        self._log_end_offset = log_end_offset
        if self._durable is not None:
            self._durable.reach(log_end_offset)
        self._high_watermark.advance(log_end_offset)

    def fail(self, error: LogStoreError) -> None:
        """Fail all waiting appends: they are not stored, or nobody here will learn whether they are."""
        self._high_watermark.appends.fail_above(self._high_watermark.offset, error)
        if self._durable is not None:
            self._durable.fail_above(self._log_end_offset, error)
