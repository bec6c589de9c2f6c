"""The listener for the other brokers of a cluster: it admits peers, and passes requests to their handlers.

A connection is a stranger's until both sides have proved that they know the cluster's secret (``peer_auth``). Until
then its messages have 4 KiB at most and its time is bounded. A flood of strangers ends the oldest of them, so that it
takes neither memory nor a broker's place. Then requests go to the handler of their type as they come, several at a
time, and each response goes out when it is ready: a slow append delays no other. Memory is bounded by the requests in
hand and by one response to FETCH at a time. A response that the peer does not take holds up the others until the peer
is cut off.

A request that cannot be read, of another version or of an unserved type ends its connection, with one line in the log
and one response that gives the reason.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

import structlog

from logstore import __version__
from logstore.errors import (
    BrokerIdNotRegisteredError,
    BrokerNotReadyError,
    InconsistentClusterIdError,
    LogStoreError,
    MalformedMessageError,
    PeerAuthenticationError,
    RequestTooLargeError,
    ThrottledError,
    UnsupportedVersionError,
)
from logstore.filesystem import Buffer
from logstore.observability import FewLines
from logstore.replication.message_stream import MessageStream, pieces_of
from logstore.replication.peer_auth import is_same_proof, new_nonce
from logstore.replication.peer_network import Listening
from logstore.replication.peer_options import LocalBroker, PeerOptions
from logstore.replication.protocol import (
    ANSWER_TYPES,
    MESSAGE_HEADER_BYTES,
    RESERVED,
    Body,
    Header,
    Hello,
    Message,
    MessageType,
    decode_auth,
    decode_hello,
    encode_auth,
    encode_error,
    encode_hello,
)

log = structlog.stdlib.get_logger(__name__)

#: Connections of one broker at once: one for each request that it relays (``peer_http`` bounds them), and a few others.
#: Each broker has its own bound, so that one that relays much keeps no follower out.
CONNECTIONS_PER_BROKER_MAX: Final = 640
#: Connections at once without a proof.
STRANGERS_MAX: Final = 100
#: Requests of one connection that wait for a response; more are not read.
REQUESTS_IN_HAND_MAX: Final = 64
_STOP_SECONDS: Final = 5.0
# A connection is checked this many times within the time that its peer has.
_LOOKS: Final = 4

_OF_THE_HANDSHAKE: Final = (MessageType.HELLO, MessageType.AUTH)
# The header for errors about bytes that were not a request.
_NO_HEADER: Final = Header(0, 0, 0, 0, 0)
#: Errors that end the connection.
_ENDING: Final = (MalformedMessageError, UnsupportedVersionError)


class PeerSession:
    """A connection of another broker, as handlers see it. It lasts as long as the connection, even as HTTP.

    ``broker_epoch`` comes from the handshake: a broker with a new registration connects again. -1: it was not
    registered.
    """

    def __init__(self, hello: Hello, address: str) -> None:
        self.broker_id = hello.broker_id
        self.broker_epoch = hello.broker_epoch
        self.release = hello.release
        self.address = address
        self.is_closed = False
        self._callbacks: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the event loop when the connection ends; call it at once if it has ended."""
        if self.is_closed:
            callback()
        else:
            self._callbacks.append(callback)

    def close(self) -> None:
        """End the session; the listener calls this when the connection has ended."""
        self.is_closed = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


#: Returns the body of the response. Handlers begin in the order of requests, up to their first ``await``. A
#: LogStoreError becomes the response, and MalformedMessageError ends the connection. A handler is not cancelled when
#: the connection ends (an append continues). It has to bound its own time, with ``PeerSession.on_close`` if it waits.
Handler = Callable[[PeerSession, Message], Awaitable[Body]]
#: Makes the protocol that answers HTTP/1.1 on the connection from now on; ``connection_made`` is called afterwards.
HttpFactory = Callable[[PeerSession], asyncio.Protocol]


class PeerListener:
    """Listens for brokers. ``handlers`` and ``http`` may be set later: until then their requests are answered with
    BROKER_NOT_AVAILABLE (8).
    """

    def __init__(
        self, local: LocalBroker, options: PeerOptions, *, connections_max: int = CONNECTIONS_PER_BROKER_MAX
    ) -> None:
        self.handlers: dict[MessageType, Handler] = {}
        self.http: HttpFactory | None = None
        self._local = local
        self._options = options
        self._connections_max = connections_max
        self._server: Listening | None = None
        self._address = ""
        #: Connections without a proof, in the order in which they came.
        self._strangers: dict[_Connection, None] = {}
        self._peers: dict[_Connection, None] = {}
        self._tasks: dict[asyncio.Task[Sequence[Buffer]], None] = {}
        self._is_stopping = False
        self._all_ended = asyncio.Event()
        self.refusals = FewLines(log.warning, "peer.refused")

    def relay(self, http: HttpFactory) -> None:
        """Serve HTTP to other brokers from now on."""
        self.http = http

    async def start(self, host: str, port: int, advertised_host: str | None = None) -> None:
        """Listen on ``host`` and ``port`` (0 chooses a free one).

        Raises OSError if the port is taken, InvalidConfigError if other machines reach ``host`` and there is no secret.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        bound_host = str(found[0][4][0])
        options = self._options
        options.secret.require_for(host, loopback=ipaddress.ip_address(bound_host).is_loopback)
        self._server, bound_port = await options.network.listen(
            bound_host, port, lambda: _Connection(self).stream, options.accepted_buffers
        )
        name = advertised_host or host
        self._address = f"[{name}]:{bound_port}" if ":" in name else f"{name}:{bound_port}"

    @property
    def address(self) -> str:
        """The host:port for the registration of the broker."""
        return self._address

    @property
    def sessions(self) -> list[PeerSession]:
        """The sessions of the brokers that are connected now."""
        return [one.session for one in self._peers if one.session is not None]

    async def stop(self) -> None:
        """Take no more connections and requests, and end. Requests in hand are answered if they are done soon."""
        if self._server is None:
            return
        self._is_stopping = True
        self._server.close()
        for stranger in list(self._strangers):
            stranger.stream.abort()
        for peer in list(self._peers):
            peer.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._until_all_ended()
                await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        for peer in list(self._peers):
            peer.stream.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._until_all_ended()

    async def _until_all_ended(self) -> None:
        while self._strangers or self._peers:
            self._all_ended.clear()
            await self._all_ended.wait()

    # ---- connections ------------------------------------------------------------------------------------------------

    def arrived(self, connection: "_Connection") -> None:
        self._strangers[connection] = None
        if self._is_stopping:
            connection.stream.abort()
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cut(f"{STRANGERS_MAX} newer connections have not said who they are either")

    def proved(self, connection: "_Connection", broker_id: int) -> None:
        """Admit the broker. Raises ThrottledError if it has too many connections."""
        if sum(session.broker_id == broker_id for session in self.sessions) >= self._connections_max:
            raise ThrottledError(f"broker {broker_id} has {self._connections_max} connections here already")
        self._strangers.pop(connection, None)
        self._peers[connection] = None

    def gone(self, connection: "_Connection") -> None:
        self._strangers.pop(connection, None)
        self._peers.pop(connection, None)
        self._all_ended.set()

    def run(self, work: Coroutine[Any, Any, Sequence[Buffer]]) -> "asyncio.Task[Sequence[Buffer]]":
        task = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    # ---- handshake --------------------------------------------------------------------------------------------------

    @property
    def options(self) -> PeerOptions:
        return self._options

    def greet(self, body: Buffer) -> tuple[Hello, bytes]:
        """Return the HELLO that came and the one that answers it. Raises the reason why the broker may not connect."""
        hello, local = decode_hello(body), self._local
        cluster_id = local.cluster_id
        if not cluster_id:
            raise BrokerNotReadyError(f"broker {local.broker_id} starts, and has not joined its cluster yet")
        if hello.cluster_id != cluster_id:
            raise InconsistentClusterIdError(
                f"broker {hello.broker_id} is of the cluster {hello.cluster_id!r}, and this is one of {cluster_id!r}"
            )
        if hello.peer_id != local.broker_id:
            raise BrokerIdNotRegisteredError(
                f"broker {hello.broker_id} looks for broker {hello.peer_id}, and this is {local.broker_id}"
            )
        if hello.broker_id == local.broker_id or hello.broker_id < 0:
            raise MalformedMessageError(f"broker {hello.broker_id} cannot be at both ends of a connection")
        answer = Hello(cluster_id, local.broker_id, hello.broker_id, local.broker_epoch, new_nonce(), __version__)
        return hello, encode_hello(answer)


class _Pending(NamedTuple):
    header: Header
    #: The body of the response, or its error.
    answer: "asyncio.Future[Sequence[Buffer]]"
    request_bytes: int


class _Connection:
    """The local end of one connection (``StreamOwner``)."""

    def __init__(self, listener: PeerListener) -> None:
        self._listener = listener
        self._options = listener.options
        self._loop = asyncio.get_running_loop()
        self.stream = MessageStream(self)
        self.session: PeerSession | None = None
        # The HELLO of the connecting broker, and both HELLOs as they were sent.
        self._hello: Hello | None = None
        self._hellos: tuple[Buffer, Buffer] = (b"", b"")
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._is_stopping = False
        # The unsent bytes, or else the time when the peer last sent; and the number of checks without a change.
        self._seen: tuple[int, float] = (0, 0.0)
        self._quiet_looks = 0
        self._timer: asyncio.TimerHandle | None = None

    # ---- the stream's -----------------------------------------------------------------------------------------------

    def connected(self) -> None:
        self._timer = self._loop.call_later(self._options.handshake_s, self._handshake_is_late)
        self._listener.arrived(self)

    def message_received(self, message: Message) -> None:
        if self.session is None:
            self._shake(message)
        else:
            self._take(message)

    def message_refused(self, header: Header | None, error: LogStoreError) -> None:
        self._refuse(header or _NO_HEADER, error)

    def writable(self) -> None:
        self._send_answers()

    def ended(self, error: Exception | None) -> None:
        self._stop_timer()
        self._listener.gone(self)
        if self.session is not None:
            log.debug("peer.ended", broker=self.session.broker_id, reason=str(error or "closed"))
            self.session.close()

    # ---- handshake --------------------------------------------------------------------------------------------------

    def _shake(self, message: Message) -> None:
        header, body = message
        try:
            if self._hello is None and header.type == MessageType.HELLO:
                self._hello, answer = self._listener.greet(body)
                self._hellos = body, answer
                self.stream.send(MessageType.HELLO, header.correlation, answer)
            elif self._hello is not None and header.type == MessageType.AUTH:
                self._prove(self._hello, header, decode_auth(body))
            else:
                raise MalformedMessageError(f"a message of type {header.type} came before HELLO and AUTH, or between")
        except LogStoreError as error:
            self._refuse(header, error)

    def _prove(self, hello: Hello, header: Header, proof: bytes) -> None:
        secret = self._options.secret
        if not is_same_proof(proof, secret.proof_of_connecting(*self._hellos)):
            raise PeerAuthenticationError(
                f"broker {hello.broker_id} has another cluster.secret, or none: give all brokers the same"
            )
        self._listener.proved(self, hello.broker_id)
        self.session = PeerSession(hello, self.stream.peer)
        self.stream.allow(self._options.message_bytes_max)
        self.stream.send(MessageType.AUTH, header.correlation, encode_auth(secret.proof_of_asked(*self._hellos)))
        self._look_later()
        log.debug("peer.connected", broker=hello.broker_id, epoch=hello.broker_epoch, release=hello.release)

    def _handshake_is_late(self) -> None:
        self.cut(f"HELLO and AUTH did not come within {self._options.handshake_s:g} s")

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _refuse(self, header: Header, error: LogStoreError) -> None:
        """Answer with the error, after the earlier responses, and take nothing more."""
        self.stream.refuse_rest()
        if self.session is None:
            self._end_with(header, error)
        else:
            self._add_failed(header, error)

    def _end_with(self, header: Header, error: LogStoreError) -> None:
        self._stop_timer()
        self._log_refusal(error.message)
        self._send_error(header, error)
        self.stream.end_after_refusal()

    def cut(self, reason: str) -> None:
        """End at once."""
        self._log_refusal(reason)
        self.stream.abort()

    def _log_refusal(self, reason: str) -> None:
        broker_id = None if self._hello is None else self._hello.broker_id
        self._listener.refusals.add(address=self.stream.peer, broker=broker_id, reason=reason)

    def stop(self) -> None:
        """Take no more requests, and end when those in hand are answered."""
        self._is_stopping = True
        if self.stream.has_successor:
            self.stream.end()
        else:
            self.stream.hold()
            self._send_answers()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        header = message.header
        if (refusal := self._refusal_of(header)) is not None:
            self._refuse(header, refusal)
        elif header.type == MessageType.HTTP:
            self._begin_http(header)
        elif (handler := self._listener.handlers.get(MessageType(header.type))) is None:
            self._add_failed(header, _not_ready(header))
        else:
            self._add(header, self._listener.run(self._answer(handler, message)), len(message.body))
        if not self._has_room:
            self.stream.hold()

    def _refusal_of(self, header: Header) -> LogStoreError | None:
        if header.type in RESERVED:
            return UnsupportedVersionError(
                f"{MessageType(header.type).name} ({header.type}) is reserved: this release does not serve it"
            )
        if header.type not in ANSWER_TYPES:
            return UnsupportedVersionError(f"this release serves no requests of type {header.type}")
        if header.type in _OF_THE_HANDSHAKE:
            return MalformedMessageError(f"{MessageType(header.type).name} came after the handshake")
        if header.type == MessageType.FETCH and any(one.header.type == header.type for one in self._pending):
            return MalformedMessageError("a second FETCH came before the answer to the first")
        return None

    async def _answer(self, handler: Handler, message: Message) -> Sequence[Buffer]:
        assert self.session is not None
        name = MessageType(message.header.type).name
        answer = handler(self.session, message)
        del message  # the handler may be done with it long before it answers
        try:
            pieces = pieces_of(await answer)
        except LogStoreError:
            raise
        except Exception as error:
            log.exception("peer.request_failed", request=name, broker=self.session.broker_id)
            raise LogStoreError(f"{name} failed: {type(error).__name__}: {error}") from error
        if (size := sum(map(len, pieces))) > self._options.message_bytes_max - MESSAGE_HEADER_BYTES:
            raise RequestTooLargeError(f"the answer to {name} would have {size} bytes: ask for less")
        return pieces

    def _begin_http(self, header: Header) -> None:
        """Switch to HTTP after all earlier responses; the peer sends nothing until then."""
        if self._listener.http is None:
            self._add_failed(header, _not_ready(header))
            return
        self.stream.hold()
        answer: asyncio.Future[Sequence[Buffer]] = self._loop.create_future()
        answer.set_result(())
        self._add(header, answer)

    def _add_failed(self, header: Header, error: LogStoreError) -> None:
        answer: asyncio.Future[Sequence[Buffer]] = self._loop.create_future()
        answer.set_exception(error)
        self._add(header, answer)

    def _add(self, header: Header, answer: "asyncio.Future[Sequence[Buffer]]", request_bytes: int = 0) -> None:
        self._pending.append(_Pending(header, answer, request_bytes))
        self._pending_bytes += request_bytes
        answer.add_done_callback(self._answered)

    @property
    def _has_room(self) -> bool:
        """True if another request may be taken."""
        return (
            len(self._pending) < REQUESTS_IN_HAND_MAX
            and self._pending_bytes < self._options.message_bytes_max
            and not (self._pending and self._pending[-1].header.type == MessageType.HTTP)
            and not self._is_stopping
        )

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _answered(self, answer: "asyncio.Future[Sequence[Buffer]]") -> None:
        if not answer.cancelled():
            answer.exception()  # retrieves the error even if the connection ends before it is sent
        self._send_answers()

    def _send_answers(self) -> None:
        """Send all responses that are ready, as long as the peer takes them."""
        while self.stream.can_write and self.stream.is_open and (ready := self._next_ready()) is not None:
            self._pending.remove(ready)
            header, answer, request_bytes = ready
            self._pending_bytes -= request_bytes
            if answer.cancelled():
                self.stream.abort()
                return
            error = answer.exception()
            if isinstance(error, _ENDING):
                self._pending.clear()
                self._end_with(header, error)
                return
            if error is not None:
                assert isinstance(error, LogStoreError)
                self._send_error(header, error)
            else:
                self.stream.send(ANSWER_TYPES[header.type], header.correlation, answer.result())
                if header.type == MessageType.HTTP and not self._is_stopping:
                    self._become_http()
                    return
        if self._is_stopping and not self._pending:
            self.stream.end()
        elif self._has_room:
            self.stream.release()

    def _next_ready(self) -> "_Pending | None":
        """Return the first request whose response is ready. A response that ends the connection, or switches it to
        HTTP, waits for all before it.
        """
        for at, one in enumerate(self._pending):
            if one.answer.done() and (at == 0 or not _is_last(one)):
                return one
        return None

    def _send_error(self, header: Header, error: LogStoreError) -> None:
        response_type = ANSWER_TYPES.get(header.type, header.type)
        self.stream.send(response_type, header.correlation, encode_error(error), error.kafka_code)

    def _become_http(self) -> None:
        assert self.session is not None
        assert self._listener.http is not None
        self._stop_timer()  # HTTP has its own bounds
        self.stream.become(self._listener.http(self.session))

    # ---- peers that do nothing --------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        self._stop_timer()
        self._timer = self._loop.call_later(self._options.timeout_s / _LOOKS, self._look)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Count checks, not time: a process that was stopped must first read what its peers sent in the meantime."""
        unsent = self.stream.unsent_bytes
        seen = unsent, 0.0 if unsent else self.stream.heard_at
        is_its_turn = unsent or not self._pending
        self._quiet_looks = self._quiet_looks + 1 if is_its_turn and seen == self._seen else 0
        self._seen = seen
        if self._quiet_looks < _LOOKS:
            self._look_later()
        elif unsent:
            self.cut(f"it took nothing of an answer for {self._options.timeout_s:g} s")
        else:
            self.stream.end()


def _not_ready(header: Header) -> BrokerNotReadyError:
    return BrokerNotReadyError(f"the broker is starting: it takes no {MessageType(header.type).name} yet")


def _is_last(one: _Pending) -> bool:
    """Return True if no response follows this finished one."""
    if one.header.type == MessageType.HTTP or one.answer.cancelled():
        return True
    return isinstance(one.answer.exception(), _ENDING)
