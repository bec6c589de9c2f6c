"""HTTP/1.1 to other brokers: connections between brokers that have switched to HTTP, as h11 implements it.

Bounds: each broker has at most ``REQUESTS_MAX`` requests under way and a few idle connections, which are closed before
the other side would close them. Bytes stream both ways: no more of a body is held than a socket's buffers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import h11

from logstore.errors import PeerUnavailableError, ThrottledError
from logstore.limits import KIB, PEER_HTTP_IDLE_S
from logstore.protocol.headers import RELAYED_CONTEXT

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
#: Opens a new connection to a broker, which speaks HTTP from then on. Raises PeerUnavailableError.
Connect = Callable[[int], Awaitable[Streams]]
Event = h11.Event | type[h11.PAUSED]

#: Requests under way to one broker. A long poll or a stream of events holds its connection as long as it lasts.
REQUESTS_MAX: Final = 500
_IDLE_MAX: Final = 32
# The listener of the other broker closes it much later.
_IDLE_S: Final = PEER_HTTP_IDLE_S / 3
_READ_BYTES: Final = 64 * KIB
_HEAD_BYTES_MAX: Final = 64 * KIB


class BrokenConnectionError(Exception):
    """The other broker has closed the connection, or does not speak HTTP."""


class HttpConnection:
    """A connection with one request at a time. The response is read while the body is sent."""

    def __init__(self, streams: Streams) -> None:
        self._reader, self._writer = streams
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
        self._ended = False
        #: The time when it was given back, by the loop's clock.
        self.idle_since = 0.0

    async def send(self, event: h11.Event) -> None:
        """Send an event. Raises BrokenConnectionError if the other side takes nothing more; a response may exist
        anyway.
        """
        try:
            data = self._http.send(event)
            if data:
                self._writer.write(data)
                await self._writer.drain()
        except (OSError, h11.LocalProtocolError) as error:
            raise BrokenConnectionError(str(error)) from error

    def end(self) -> None:
        """Send nothing more: the other side answers with what there is."""
        if not self._ended and self._writer.can_write_eof():
            self._ended = True
            with contextlib.suppress(OSError):
                self._writer.write_eof()

    async def next_event(self) -> h11.Event:
        """Return the next part of the response. Raises BrokenConnectionError if there is none."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_READ_BYTES))
        except (OSError, h11.RemoteProtocolError) as error:
            raise BrokenConnectionError(str(error)) from error
        if isinstance(event, h11.ConnectionClosed) or not isinstance(event, h11.Event):
            raise BrokenConnectionError("the connection was closed")
        return event

    @property
    def is_usable(self) -> bool:
        """True if another request may be sent."""
        return not (self._ended or self._reader.at_eof() or self._writer.is_closing())

    def begin_again(self) -> bool:
        """Prepare for another request. Return False if the last one is not complete on both sides."""
        if not self.is_usable or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        self._writer.close()


class Response(NamedTuple):
    """``body`` has the pieces as they came."""

    status: int
    body: Sequence[bytes]


class PeerHttp:
    """Holds the HTTP connections of this broker to others."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        # The newest is last, so the oldest expire when fewer are needed.
        self._idle: dict[int, list[HttpConnection]] = {}
        self._under_way: dict[int, int] = {}
        self._is_closed = False

    @contextlib.asynccontextmanager
    async def connection(self, broker_id: int) -> AsyncIterator[HttpConnection]:
        """Yield a connection for one request. It is kept for the next one if the request completes.

        Raises PeerUnavailableError, with nothing sent, and ThrottledError.
        """
        if self._is_closed:
            raise PeerUnavailableError("this broker is stopping", nothing_sent=True)
        under_way = self._under_way.get(broker_id, 0)
        if under_way >= REQUESTS_MAX:
            raise ThrottledError(f"{under_way} requests wait for broker {broker_id}: try again in a moment.")
        self._under_way[broker_id] = under_way + 1
        try:
            connection = self._take(broker_id) or HttpConnection(await self._connect(broker_id))
            try:
                yield connection
            finally:
                self._give_back(broker_id, connection)
        finally:
            self._under_way[broker_id] -= 1

    async def ask(
        self,
        broker_id: int,
        method: str,
        target: str,
        context: bytes,
        *,
        body: bytes = b"",
        accept: str = "application/json",
        reserve: Callable[[int], None] = lambda _: None,
    ) -> Response:
        """Return the whole response to this broker's own request, with a body of JSON.

        ``reserve`` is called with the number of bytes of the response before they are read, and may raise. Raises
        PeerUnavailableError and ThrottledError.
        """
        headers = [(b"host", b"localhost"), (RELAYED_CONTEXT, context), (b"accept", accept.encode())]
        if body:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        async with self.connection(broker_id) as connection:
            try:
                await connection.send(h11.Request(method=method, target=target, headers=headers))
                if body:
                    await connection.send(h11.Data(body))
                await connection.send(h11.EndOfMessage())
                head = await connection.next_event()
                if not isinstance(head, h11.Response):
                    raise BrokenConnectionError(f"{head} is not the beginning of an answer")
                reserve(next((int(value) for name, value in head.headers if name == b"content-length"), 0))
                pieces = []
                while isinstance(event := await connection.next_event(), h11.Data):
                    pieces.append(bytes(event.data))
            except BrokenConnectionError as error:
                raise PeerUnavailableError(f"broker {broker_id} did not answer: {error}") from error
        return Response(head.status_code, pieces)

    def _take(self, broker_id: int) -> HttpConnection | None:
        idle = self._idle.get(broker_id, [])
        self._close_old(idle)
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            connection.close()
        return None

    def _give_back(self, broker_id: int, connection: HttpConnection) -> None:
        idle = self._idle.setdefault(broker_id, [])
        self._close_old(idle)
        if self._is_closed or len(idle) >= _IDLE_MAX or not connection.begin_again():
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        idle.append(connection)

    @staticmethod
    def _close_old(idle: list[HttpConnection]) -> None:
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while idle and idle[0].idle_since < oldest:
            idle.pop(0).close()

    def close(self) -> None:
        """Close idle connections; the others close when their requests end."""
        self._is_closed = True
        for idle in self._idle.values():
            for connection in idle:
                connection.close()
        self._idle.clear()
