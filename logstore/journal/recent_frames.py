"""Keeps the newest bytes of the journal in memory for followers, which mostly fetch the frames that were just written.

Owns the last ``max_bytes`` of durable frames as they were written, by journal position. Invariants: positions rise;
bytes that are not here are in the files.
"""

from bisect import bisect_right
from collections.abc import Sequence

from logstore.filesystem import Buffer
from logstore.journal.frame import FrameLocation

# The number of dropped buffers that stay in the lists before these are trimmed.
_TRIM_AT = 1024


class RecentFrames:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        #: The position of each buffer, and the buffer; those before ``_first`` are dropped.
        self._positions: list[int] = []
        self._buffers: list[Buffer] = []
        self._first = 0

    def add(self, position: int, buffers: Sequence[Buffer]) -> None:
        """Add a group that is durable at ``position``."""
        for buffer in buffers:
            self._positions.append(position)
            self._buffers.append(buffer)
            length = len(buffer)
            position += length
            self._num_bytes += length
        first = self._first
        while self._num_bytes > self._max_bytes:
            self._num_bytes -= len(self._buffers[first])
            self._buffers[first] = b""
            first += 1
        if first > _TRIM_AT:
            del self._positions[:first], self._buffers[:first]
            first = 0
        self._first = first

    def find(self, location: FrameLocation) -> list[memoryview] | None:
        """Return the bytes of a frame, header and payload, in one or two pieces; None if they are not here."""
        position, length = location
        at = bisect_right(self._positions, position, lo=self._first) - 1
        if at < self._first:
            return None
        pieces: list[memoryview] = []
        while length:
            if at == len(self._buffers):
                return None
            begin = position - self._positions[at]
            piece = memoryview(self._buffers[at])[begin : begin + length]
            if not piece:
                return None
            pieces.append(piece)
            position += len(piece)
            length -= len(piece)
            at += 1
        return pieces
