"""Frames in a stream of bytes: four bytes of length, big-endian, and a payload of that many bytes.

Without a socket: ``asyncio.BufferedProtocol`` asks for a buffer, fills some of it, and the whole frames are taken out.
A long frame is received where it stays, without a copy; short ones share a buffer, and are copied out of it, so that a
request keeps no more memory than it has bytes. A connection without bytes under way holds no buffer.
"""

import struct
from typing import Final

import numpy as np

from logstore.errors import MalformedMessageError
from logstore.limits import KIB

_LENGTH: Final = struct.Struct(">i")
_SHARED_BYTES: Final = 64 * KIB
# Frames up to this size are copied. Longer ones keep the shared buffer, which has at most 16 times their size.
_COPIED_MAX: Final = 4 * KIB

# Other protocols begin with these bytes, which as a length are too long for any frame.
_OTHER_PROTOCOLS: Final = {
    b"GET ": "HTTP",
    b"HEAD": "HTTP",
    b"POST": "HTTP",
    b"PUT ": "HTTP",
    b"PATC": "HTTP",
    b"DELE": "HTTP",
    b"OPTI": "HTTP",
    b"PRI ": "HTTP",
    b"\x16\x03": "TLS",
}


class FrameReader:
    """``size_max`` bounds the payload of frames that have not begun yet; it may change at any time.

    A frame's buffer has its full size from the start, but only as addresses: the pages of memory come as they are
    filled.
    """

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        #: The protocol of refused bytes, if it is known.
        self.other_protocol: str | None = None
        # The shared buffer, and the range in it that no frame has taken yet.
        self._shared = memoryview(b"")
        self._start = 0
        self._end = 0
        # The long frame that is being received.
        self._long: memoryview | None = None
        self._long_end = 0

    def buffer(self) -> memoryview:
        """Return the place for the next bytes, never empty. All frames have to be taken out before the next call."""
        if self._long is not None:
            return self._long[self._long_end :]
        if self._start == self._end or self._end == len(self._shared):
            # Frames that were given out may be slices of the old buffer.
            waiting = self._shared[self._start : self._end]
            self._shared = np.empty(_SHARED_BYTES, np.uint8).data
            self._start, self._end = 0, len(waiting)
            self._shared[: self._end] = waiting
        return self._shared[self._end :]

    def received(self, size: int) -> None:
        """Mark ``size`` bytes of the last ``buffer`` as filled."""
        if self._long is not None:
            self._long_end += size
        else:
            self._end += size

    def next_frame(self) -> bytes | memoryview | None:
        """Return the payload of the next frame, or None if more bytes are needed.

        Raises MalformedMessageError if the stream has no frames, or a frame is too long; nothing after it can be read.
        """
        if self._long is not None:
            if self._long_end < len(self._long):
                return None
            frame, self._long = self._long, None
            return frame
        waiting = self._end - self._start
        if waiting < _LENGTH.size:
            if not waiting:
                self._shared = memoryview(b"")
                self._start = self._end = 0
            return None
        (size,) = _LENGTH.unpack_from(self._shared, self._start)
        if not 0 <= size <= self.size_max:
            raise self._refused(size)
        begin = self._start + _LENGTH.size
        if size <= self._end - begin:
            self._start = begin + size
            whole = self._shared[begin : self._start]
            return bytes(whole) if size <= _COPIED_MAX else whole
        if begin + size > len(self._shared):
            self._begin_long(size, begin)
        return None

    @property
    def is_within_frame(self) -> bool:
        """True if a frame has begun to arrive and is not whole, once all frames are taken out."""
        return self._long is not None or self._end > self._start

    @property
    def long_frame_bytes(self) -> int:
        """The size of the long frame that is arriving; 0: none is."""
        return 0 if self._long is None else len(self._long)

    def _begin_long(self, size: int, begin: int) -> None:
        self._long = np.empty(size, np.uint8).data
        self._long_end = self._end - begin
        self._long[: self._long_end] = self._shared[begin : self._end]
        self._shared = memoryview(b"")
        self._start = self._end = 0

    def _refused(self, size: int) -> MalformedMessageError:
        first = bytes(self._shared[self._start : self._start + _LENGTH.size])
        self.other_protocol = other = _OTHER_PROTOCOLS.get(first) or _OTHER_PROTOCOLS.get(first[:2])
        if other is not None:
            return MalformedMessageError(f"The first bytes are those of {other}; this port speaks Kafka's protocol")
        if size < 0:
            return MalformedMessageError(f"A frame says that it has {size} bytes")
        return MalformedMessageError(
            f"A frame of {size} bytes is too long; {self.size_max} are allowed (max.request.size)"
        )
