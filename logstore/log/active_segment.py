"""The active segment of a partition: its un-sealed records, whose frames lie in the journal.

Owns the index of the frames, the time since which the oldest one waits, and their part of the topic's journal bytes.
Invariant: a frame in the index keeps its place in the journal; a frame that a truncation drops keeps it until the
truncation is durable.
"""

from collections.abc import Callable
from dataclasses import dataclass

from logstore.clock import Clock
from logstore.journal.frame import HEADER_BYTES, Frame, FrameHeader, FrameLocation
from logstore.log.frame_index import FrameIndex, IndexedFrame


@dataclass(slots=True)
class JournalBytes:
    """Bytes of the frames that are not in Delta, those being fsynced included; the partitions of a topic share it."""

    num_bytes: int = 0


class ActiveSegment:
    __slots__ = ("_clock", "_journal_bytes", "_since", "index", "is_truncating")

    def __init__(self, clock: Clock, journal_bytes: JournalBytes) -> None:
        self.index = FrameIndex()
        self._clock = clock
        self._journal_bytes = journal_bytes
        #: The time at which the oldest frame arrived, in seconds of the monotonic clock; None without a frame.
        self._since: float | None = None
        #: True while a truncation is being written.
        self.is_truncating = False

    @property
    def age_ms(self) -> float:
        """The least time that the oldest record has waited here; 0 without a record. It is measured by the monotonic
        clock, because a wall clock that is set back must not hold up rolls.
        """
        return 0.0 if self._since is None else (self._clock.monotonic() - self._since) * 1000

    # ---- appending and truncating -----------------------------------------------------------------------------------

    def begin(self, frame: Frame) -> None:
        """Count a frame that was handed to the journal."""
        self._journal_bytes.num_bytes += HEADER_BYTES + len(frame.payload)

    def stored(self, header: FrameHeader, location: FrameLocation) -> None:
        """Add the oldest frame that began, which is now durable."""
        if self._since is None:
            self._since = self._clock.monotonic()
        self.index.add(header, location)

    def failed(self, frame: Frame) -> None:
        """Take back the bytes of a frame that began, as it is not stored."""
        self._journal_bytes.num_bytes -= HEADER_BYTES + len(frame.payload)

    def begin_truncation(self) -> None:
        """Note that a truncation was handed to the journal."""
        self.is_truncating = True

    def truncation_failed(self) -> None:
        """Note that the truncation that began is not stored."""
        self.is_truncating = False

    def truncate(self, offset: int) -> None:
        """Drop the frames that reach beyond ``offset``, as the truncation is durable."""
        self.is_truncating = False
        self._change_index(lambda: self.index.truncate(offset))
        if not len(self.index):
            self._since = None

    def seal(self, offset: int) -> None:
        """Drop the frames below ``offset``, as Delta has them durably."""
        self._change_index(lambda: self.index.drop_below(offset))
        self._since = self._clock.monotonic() if len(self.index) else None

    def _change_index(self, change: Callable[[], None]) -> None:
        self._journal_bytes.num_bytes -= self.index.num_bytes
        change()
        self._journal_bytes.num_bytes += self.index.num_bytes

    # ---- recovery ---------------------------------------------------------------------------------------------------

    def finish_recovery(self, sealed_offset: int) -> None:
        """Count the recovered frames above ``sealed_offset``. Raises CorruptionError if they have a hole or overlap."""
        self.index.finish_recovery(sealed_offset)
        self._journal_bytes.num_bytes += self.index.num_bytes
        if len(self.index):
            self._since = self._clock.monotonic()

    # ---- relocation (``KeepsFrames``) -------------------------------------------------------------------------------

    def frames_to_keep(self, start: int, end: int) -> list[IndexedFrame]:
        """Return the frames at the journal positions [start, end)."""
        return self.index.located_in(start, end)
