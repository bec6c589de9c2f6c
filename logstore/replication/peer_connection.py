"""A connection to another broker: opened, proved, and used for several requests at a time.

Invariants: a request is answered, or fails, within its time. The outcome of a request that has left this broker is
unknown once the connection has ended; the error says whether it had left (``PeerUnavailableError.nothing_sent``).

Responses come when they are ready. The other side bounds the time of each request, so a response that does not come in
time ends the connection: the peer is gone. An idle connection ends here before it would end there, so that no request
meets the end on its way.
"""

import asyncio
from typing import Final, NamedTuple, Self

from logstore import __version__
from logstore.errors import (
    BrokerIdNotRegisteredError,
    IllegalStateError,
    InconsistentClusterIdError,
    LogStoreError,
    MalformedMessageError,
    PeerAuthenticationError,
    PeerUnavailableError,
    RequestTooLargeError,
)
from logstore.filesystem import Buffer
from logstore.replication.message_stream import MessageStream, pieces_of
from logstore.replication.peer_auth import is_same_proof, new_nonce
from logstore.replication.peer_options import LocalBroker, PeerOptions
from logstore.replication.protocol import (
    ANSWER_TYPES,
    MESSAGE_HEADER_BYTES,
    Body,
    Header,
    Hello,
    Message,
    MessageType,
    decode_auth,
    decode_error,
    decode_hello,
    encode_auth,
    encode_hello,
)

# Shares of the time after which the other side ends an idle connection: when it ends here, and how often it is checked.
_IDLE_SHARE: Final = 0.5
_LOOK_SHARE: Final = 0.125
_CORRELATIONS: Final = 1 << 32


class _Request(NamedTuple):
    type: MessageType
    #: Already done when the response comes if no caller waits for it any more.
    answer: "asyncio.Future[Buffer]"


class PeerConnection:
    """A connection to a broker; ``connect`` opens one."""

    def __init__(self, address: str, peer_id: int, local: LocalBroker, options: PeerOptions) -> None:
        self.peer_id = peer_id
        #: The other broker's registration, and its release.
        self.peer_epoch = -1
        self.peer_release = ""
        #: This broker's registration as the other one knows it (``PeerSession.broker_epoch``). A new registration needs
        #: a new connection.
        self.local_epoch = local.broker_epoch
        self._address = address
        self._local = local
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._stream = MessageStream(self)
        self._writable = asyncio.Event()
        # Requests are sent in the order of their calls, even if they have to wait.
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._next_correlation = 0
        self._pending: dict[int, _Request] = {}
        self._sent_at = 0.0
        #: The reason why the connection has ended; empty while it has not.
        self._reason = ""
        self._idle_timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(cls, address: str, peer_id: int, local: LocalBroker, options: PeerOptions) -> Self:
        """Open a connection to the broker ``peer_id`` of this cluster at ``address`` (host:port), proved on both sides.

        Raises PeerUnavailableError (``nothing_sent``) with the reason if there is none.
        """
        connection = cls(address, peer_id, local, options)
        try:
            async with asyncio.timeout(options.handshake_s):
                await connection._connect()
                await connection._shake()
        except (OSError, LogStoreError) as error:  # TimeoutError is an OSError
            if isinstance(error, TimeoutError):
                reason = f"no handshake within {options.handshake_s:g} s"
            else:
                reason = error.message if isinstance(error, LogStoreError) else error.strerror or str(error)
            connection._end(reason)
            raise connection._unavailable(nothing_sent=True) from error
        except BaseException:
            connection.close()
            raise
        connection._look_later()
        return connection

    @property
    def is_stale(self) -> bool:
        """True if this broker has registered again since."""
        return self.local_epoch != self._local.broker_epoch

    @property
    def is_closed(self) -> bool:
        """True if a request would fail without being sent."""
        return bool(self._reason)

    def close(self) -> None:
        """Close the connection; requests that wait for a response fail."""
        self._end("it was closed here")

    # ---- requests ---------------------------------------------------------------------------------------------------

    async def request(self, message_type: MessageType, body: Body = b"", timeout_s: float | None = None) -> Buffer:
        """Return the body of the response, which belongs to the caller. ``timeout_s`` None is
        ``replica.socket.timeout.ms``.

        Raises the peer's own error, PeerUnavailableError, and RequestTooLargeError for a body that no peer would take.
        """
        size = sum(map(len, pieces_of(body)))
        if size > self._stream.message_bytes_max - MESSAGE_HEADER_BYTES:
            raise RequestTooLargeError(f"{message_type.name} has {size} bytes: more than a message between brokers may")
        timeout_s = self._options.timeout_s if timeout_s is None else timeout_s
        # Every request that waits for this connection fails when it ends.
        timer = self._loop.call_later(timeout_s, self._late, message_type, timeout_s)
        try:
            if self._waiting or not self._stream.can_write:
                return await (await self._send_in_turn(message_type, body))
            return await self._send(message_type, body)
        finally:
            timer.cancel()

    def _late(self, message_type: MessageType, timeout_s: float) -> None:
        self._end(f"{message_type.name} was not answered within {timeout_s:g} s")

    async def _send_in_turn(self, message_type: MessageType, body: Body) -> "asyncio.Future[Buffer]":
        """Call ``_send`` when the peer takes more, after the requests that already wait."""
        self._waiting += 1
        try:
            async with self._turn:
                while not (self._stream.can_write or self._reason):
                    self._writable.clear()
                    await self._writable.wait()
                return self._send(message_type, body)
        finally:
            self._waiting -= 1

    def _send(self, message_type: MessageType, body: Body) -> "asyncio.Future[Buffer]":
        if self._stream.has_successor:
            raise IllegalStateError("the connection speaks HTTP now")
        if self._reason:
            raise self._unavailable(nothing_sent=True)
        correlation = self._next_correlation
        self._next_correlation = (correlation + 1) % _CORRELATIONS
        answer: asyncio.Future[Buffer] = self._loop.create_future()
        self._pending[correlation] = _Request(message_type, answer)
        self._sent_at = self._loop.time()
        self._stream.send(message_type, correlation, body)
        return answer

    async def become_http(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Continue as HTTP/1.1 for good. Return the connection's streams, which the caller has to close.

        No other request may be waiting. Raises the errors of ``request``.
        """
        if self._waits:
            raise IllegalStateError("requests of the connection wait for their answers")
        await self.request(MessageType.HTTP)
        if self._reason:
            raise self._unavailable(nothing_sent=True)
        assert self._stream.transport is not None
        self._stop_timer()
        reader = asyncio.StreamReader(loop=self._loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self._loop)
        self._stream.become(protocol)
        return reader, asyncio.StreamWriter(self._stream.transport, protocol, reader, self._loop)

    @property
    def _waits(self) -> bool:
        return any(not request.answer.done() for request in self._pending.values())

    # ---- the stream's -----------------------------------------------------------------------------------------------

    def connected(self) -> None: ...

    def message_received(self, message: Message) -> None:
        header, body = message
        request = self._pending.pop(header.correlation, None)
        try:
            if request is None:
                # The peer could not read what it was sent, or sends without being asked.
                raise (
                    decode_error(header.error, body) if header.error else MalformedMessageError("an answer to nothing")
                )
            if request.answer.done():
                return
            response_type = ANSWER_TYPES.get(request.type, request.type)
            if header.type != response_type:
                raise MalformedMessageError(f"{request.type.name} was answered by a message of type {header.type}")
            if header.error:
                request.answer.set_exception(decode_error(header.error, body))
            else:
                request.answer.set_result(body)
                if request.type == MessageType.HTTP:
                    self._stream.hold()
        except LogStoreError as error:
            if request is not None:
                self._pending[header.correlation] = request
            self._end(error.message)

    def message_refused(self, header: Header | None, error: LogStoreError) -> None:  # noqa: ARG002 - StreamOwner's
        self._end(error.message)

    def writable(self) -> None:
        self._writable.set()

    def ended(self, error: Exception | None) -> None:
        self._end("the other broker closed the connection" if error is None else str(error))

    # ---- handshake --------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Open the TCP connection. Raises OSError."""
        host, _, port = self._address.rpartition(":")
        options = self._options
        await options.network.connect(host.strip("[]"), port, lambda: self._stream, options.made_buffers)

    async def _shake(self) -> None:
        """Exchange HELLO and AUTH; ``connect`` bounds the time. Raises LogStoreError."""
        local, secret = self._local, self._options.secret
        hello = Hello(local.cluster_id, local.broker_id, self.peer_id, self.local_epoch, new_nonce(), __version__)
        sent = encode_hello(hello)
        received = await self._send(MessageType.HELLO, sent)
        answer = decode_hello(received)
        if answer.cluster_id != hello.cluster_id:
            raise InconsistentClusterIdError(
                f"it is of the cluster {answer.cluster_id!r}, and this broker of {hello.cluster_id!r}"
            )
        if (answer.broker_id, answer.peer_id) != (hello.peer_id, hello.broker_id):
            raise BrokerIdNotRegisteredError(
                f"broker {answer.broker_id} answers there, to broker {answer.peer_id} instead of {hello.broker_id}"
            )
        proof = await self._send(MessageType.AUTH, encode_auth(secret.proof_of_connecting(sent, received)))
        if not is_same_proof(decode_auth(proof), secret.proof_of_asked(sent, received)):
            raise PeerAuthenticationError("it does not know the cluster's secret")
        self.peer_epoch, self.peer_release = answer.broker_epoch, answer.release
        self._stream.allow(self._options.message_bytes_max)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _end(self, reason: str) -> None:
        if self._reason:
            return
        self._reason = reason
        self._stop_timer()
        self._stream.end()
        self._writable.set()
        for request in self._pending.values():
            if not request.answer.done():
                request.answer.set_exception(self._unavailable(nothing_sent=False))
        self._pending.clear()

    def _unavailable(self, *, nothing_sent: bool) -> PeerUnavailableError:
        return PeerUnavailableError(
            f"broker {self.peer_id} at {self._address} is unavailable: {self._reason}", nothing_sent=nothing_sent
        )

    def _look_later(self) -> None:
        self._idle_timer = self._loop.call_later(self._options.timeout_s * _LOOK_SHARE, self._look)

    def _look(self) -> None:
        idle_s = self._loop.time() - max(self._sent_at, self._stream.heard_at)
        if idle_s >= self._options.timeout_s * _IDLE_SHARE and not self._waits:
            self._end("nothing was asked for a while")
        else:
            self._look_later()

    def _stop_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
