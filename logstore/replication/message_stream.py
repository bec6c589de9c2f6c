"""Messages on one TCP connection between brokers: framing and flow control, for both ends.

Invariants: a message is bounded before a byte of its body is kept (``message_bytes_max``). Memory is touched for bytes
that have come, not for bytes that are promised. After the first message that cannot be read nothing more is read. A
small message is copied out of the connection's buffer; a large one is received in place. ``become`` hands the
connection to another protocol for the rest of its life.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol, cast

import numpy as np

from logstore.errors import MalformedMessageError, UnsupportedVersionError
from logstore.filesystem import Buffer
from logstore.limits import KIB
from logstore.replication.protocol import (
    HANDSHAKE_BYTES_MAX,
    MESSAGE_HEADER_BYTES,
    VERSION,
    Body,
    Header,
    Message,
    MessageType,
    decode_header,
    encode_header,
)

_BUFFER_BYTES: Final = 64 * KIB
# Up to this size, and for pieces that are small on average, one copy costs less than a gathering system call.
_JOINED_BYTES_MAX: Final = 64 * KIB
_PIECE_BYTES_MIN: Final = 4 * KIB
#: A refused peer has this long to read the reason before the connection ends.
_LINGER_SECONDS: Final = 1.0


class StreamOwner(Protocol):
    """The user of a stream. Its methods are called on the event loop."""

    def connected(self) -> None:
        """Note that the stream has its transport."""

    def message_received(self, message: Message) -> None:
        """Take the next message. Its body belongs to the owner."""

    def message_refused(self, header: Header | None, error: MalformedMessageError | UnsupportedVersionError) -> None:
        """Note that the received bytes are not a message, or not a supported one; nothing more is taken. ``header`` is
        None if there is none.
        """

    def writable(self) -> None:
        """Note that the peer has taken enough for more to be sent."""

    def ended(self, error: Exception | None) -> None:
        """Note that the connection has ended."""


class MessageStream(asyncio.BufferedProtocol):
    def __init__(self, owner: StreamOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.message_bytes_max = HANDSHAKE_BYTES_MAX
        #: The time at which bytes last came, by the loop's clock.
        self.heard_at = self._loop.time()
        self.can_write = True
        self._buffer = memoryview(bytearray(HANDSHAKE_BYTES_MAX))
        self._end = 0
        # The parts of a message that is larger than the buffer.
        self._header: Header | None = None
        self._body = memoryview(b"")
        self._filled = 0
        self._is_held = False
        self._is_reading = False
        self._takes = True
        self._successor: asyncio.Protocol | None = None

    # ---- the owner's ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def has_successor(self) -> bool:
        return self._successor is not None

    def allow(self, message_bytes_max: int) -> None:
        """Take messages of up to this length from now on, because the peer has proved its identity."""
        self.message_bytes_max = message_bytes_max
        grown = memoryview(bytearray(_BUFFER_BYTES))
        grown[: self._end] = self._buffer[: self._end]
        self._buffer = grown

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait here until the peer reads."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def peer(self) -> str:
        """The other end as host:port."""
        name = None if self.transport is None else self.transport.get_extra_info("peername")
        return f"{name[0]}:{name[1]}" if name else "unknown"

    def send(self, message_type: MessageType | int, correlation: int, body: Body = b"", error: int = 0) -> None:
        """Send a message; nothing is sent on a connection that is ending. What is sent while ``can_write`` is false is
        kept here.
        """
        if self.transport is None or self.transport.is_closing():
            return
        pieces = pieces_of(body)
        size = sum(map(len, pieces))
        header = encode_header(message_type, correlation, size, error)
        if size <= _JOINED_BYTES_MAX or size < len(pieces) * _PIECE_BYTES_MIN:
            self.transport.write(b"".join((header, *pieces)))
        else:
            self.transport.writelines((header, *pieces))

    def hold(self) -> None:
        """Take nothing more from the peer until ``release``."""
        if not self._is_held:
            self._is_held = True
            if self.transport is not None and self.is_open:
                self.transport.pause_reading()

    def release(self) -> None:
        if self._is_held:
            self._is_held = False
            if not self._is_reading and self._successor is None:
                self._read_buffer()
            if not self._is_held and self.transport is not None and self.is_open:
                self.transport.resume_reading()

    def refuse_rest(self) -> None:
        """Drop all bytes that come from now on."""
        self._takes = False
        self._end = 0
        self._header = None

    def end(self) -> None:
        """Close once the peer has taken what was sent, or has had time to take it."""
        if self.transport is not None and self.is_open:
            self.refuse_rest()
            self.transport.close()
            self._loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def end_after_refusal(self) -> None:
        """End as ``end`` does, for a peer that may still be sending: a close with unread bytes would become a reset,
        which may overtake the message.
        """
        if self.transport is not None and self.is_open:
            self.refuse_rest()
            self.release()
            if self.transport.can_write_eof():  # TLS has no half-closed connections.
                self.transport.write_eof()
            self._loop.call_later(_LINGER_SECONDS, self.transport.abort)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def become(self, successor: asyncio.Protocol) -> None:
        """Hand the connection to ``successor``; afterwards the owner only gets ``ended``. Must not be called from a
        callback with a message.
        """
        assert self.transport is not None
        if self._end:
            self.abort()  # the peer has not waited for the response, so its bytes may be anything
        self._successor = successor
        successor.connection_made(self.transport)
        if not self.can_write:
            successor.pause_writing()
        self.release()

    # ---- the loop's -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport has no class of asyncio
        self._owner.connected()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._buffer[self._end :] if self._header is None else self._body[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._loop.time()
        if self._successor is not None:
            self._successor.data_received(bytes(self._buffer[:nbytes]))
        elif not self._takes:
            pass
        elif self._header is None:
            self._end += nbytes
            self._read_buffer()
        else:
            self._filled += nbytes
            if self._filled == len(self._body):
                message = Message(self._header, self._body)
                self._header, self._body = None, memoryview(b"")
                self._owner.message_received(message)

    def eof_received(self) -> bool | None:
        return None if self._successor is None else self._successor.eof_received()

    def pause_writing(self) -> None:
        self.can_write = False
        if self._successor is not None:
            self._successor.pause_writing()

    def resume_writing(self) -> None:
        self.can_write = True
        if self._successor is not None:
            self._successor.resume_writing()
        else:
            self._owner.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._takes = False
        if self._successor is not None:
            self._successor.connection_lost(exc)
        self._owner.ended(exc)

    # ---- messages ---------------------------------------------------------------------------------------------------

    def _read_buffer(self) -> None:
        """Pass all messages in the buffer to the owner, until it calls ``hold``."""
        self._is_reading = True
        try:
            self._read_messages()
        finally:
            self._is_reading = False

    def _read_messages(self) -> None:
        at = 0
        while self._takes and not self._is_held and self._end - at >= MESSAGE_HEADER_BYTES:
            header = self._read_header(at)
            if header is None:
                return
            begin = at + MESSAGE_HEADER_BYTES
            if begin + header.body_bytes <= self._end:
                at = begin + header.body_bytes
                self._owner.message_received(Message(header, bytes(self._buffer[begin:at])))
            elif MESSAGE_HEADER_BYTES + header.body_bytes > len(self._buffer):
                self._begin_large(header, begin)
                at = self._end
            else:
                break
        if at and self._takes:
            rest = bytes(self._buffer[at : self._end])
            self._buffer[: len(rest)] = rest
            self._end = len(rest)

    def _read_header(self, at: int) -> Header | None:
        """Return the header; None if it was refused."""
        data = self._buffer[at : at + MESSAGE_HEADER_BYTES]
        header = None
        try:
            header = decode_header(data)
            length = MESSAGE_HEADER_BYTES + header.body_bytes
            if length > self.message_bytes_max:
                raise MalformedMessageError(
                    f"a message of {length} bytes is over {self.message_bytes_max}; it begins with {bytes(data)!r}"
                )
            if header.version != VERSION:
                raise UnsupportedVersionError(
                    f"messages of type {header.type} have version {VERSION} in this release, not {header.version}"
                )
        except (MalformedMessageError, UnsupportedVersionError) as error:
            self.refuse_rest()
            self._owner.message_refused(header, error)
            return None
        return header

    def _begin_large(self, header: Header, begin: int) -> None:
        # Untouched pages take no memory.
        self._body = np.empty(header.body_bytes, np.uint8).data
        self._filled = self._end - begin
        self._body[: self._filled] = self._buffer[begin : self._end]
        self._header = header


def pieces_of(body: Body) -> Sequence[Buffer]:
    return (body,) if isinstance(body, (bytes, bytearray, memoryview)) else body
