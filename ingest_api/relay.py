"""Relay: a whole HTTP request goes to the broker that is responsible for it, and its response goes back to the client.

The request is relayed after the guard and before its body is read. Invariants: the client sees what it would see at
that broker, with its own request id; no more of a body is held than the buffers of two sockets; a client that goes away
ends the request there; a relayed request is not relayed again (``Router.other_broker``).

The client learns what happened. If nothing was sent, it gets an error of the kind 503. A read without a response gets
the same, because nothing can have changed. A write without a response gets 504, because the outcome is unknown. If the
response breaks off, the client's breaks off as well.
"""

import asyncio
from typing import Final

import h11
from starlette.types import Message, Receive, Scope, Send

from ingest_api.bodies import CONNECTION
from ingest_api.errors import ClientDisconnectedError, ParameterError
from ingest_api.guard import REQUEST_ID, HeaderPairs
from ingest_api.request_log import STREAM
from ingest_api.routes import FoundRoute
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.forwarding import Router, Target
from logstore.errors import PeerUnavailableError, RequestTimedOutError
from logstore.observability import RELAYED_REQUESTS
from logstore.protocol.headers import RELAYED_CONTEXT
from logstore.replication.peer_http import BrokenConnectionError, HttpConnection, PeerHttp

# Headers of one connection (RFC 9110, 7.6.1), which the next one sets itself.
_OF_A_CONNECTION: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
_NOT_SENT: Final = _OF_A_CONNECTION | {b"http2-settings", REQUEST_ID, RELAYED_CONTEXT}
# The server of the client's broker writes a date and the request id into every response.
_NOT_ANSWERED: Final = _OF_A_CONNECTION | {b"date", REQUEST_ID}
_READING: Final = ("GET", "HEAD")
_EVENT_STREAM: Final = b"text/event-stream"


class Relay:
    """``stopping`` is set when the server begins to stop: requests that wait at other brokers then get a response at
    once.
    """

    def __init__(self, router: Router, peers: PeerHttp, stopping: asyncio.Event) -> None:
        self._router = router
        self._peers = peers
        self._stopping = stopping

    async def until_target_known(self, found: FoundRoute) -> None:
        """Wait as ``Router.until_target_known`` does for the target that the route declares."""
        await self._router.until_target_known(found.route.requirement.target, found.path_parameters)

    def other_broker(self, found: FoundRoute, context: RequestContext) -> int | None:
        """Return what ``Router.other_broker`` returns for the target that the route declares."""
        return self._router.other_broker(found.route.requirement.target, found.path_parameters, context)

    async def pass_on(
        self, broker_id: int, target: Target, context: RequestContext, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Relay the request, and its response.

        Raises LeaderNotAvailableError, CoordinatorNotAvailableError, NotControllerError, RequestTimedOutError,
        ThrottledError, ClientDisconnectedError.
        """
        RELAYED_REQUESTS.inc()
        request = _request(scope, context)
        try:
            async with self._peers.connection(broker_id) as connection:
                exchange = _Exchange(connection, scope, receive, send)
                try:
                    await exchange.run(request, self._stopping)
                except BrokenConnectionError as error:
                    if exchange.has_begun:
                        await _cut(scope)
                        raise ClientDisconnectedError from error
                    if scope["method"] in _READING:
                        raise self._router.unreachable(target, broker_id, "the connection broke") from error
                    raise RequestTimedOutError(
                        f"The connection to broker {broker_id}, which carries the request out, broke before its "
                        "answer: whether it did is unknown."
                    ) from error
        except PeerUnavailableError as error:
            raise self._router.unreachable(target, broker_id, error.message) from error


class _Exchange:
    """One request and its response, on a connection to another broker."""

    def __init__(self, connection: HttpConnection, scope: Scope, receive: Receive, send: Send) -> None:
        self._connection = connection
        self._scope = scope
        self._receive = receive
        self._send = send
        #: True if the client has the head of the response.
        self.has_begun = False
        self._expected = asyncio.Event()
        self._is_sent = False

    async def run(self, request: h11.Request, stopping: asyncio.Event) -> None:
        await self._connection.send(request)
        if not any(name == b"expect" for name, _ in request.headers):
            self._expected.set()
        sending = asyncio.create_task(self._pass_request())
        answering = asyncio.create_task(self._pass_answer())
        ending = asyncio.create_task(self._end_when(stopping))
        tasks = (sending, answering, ending)
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                sending.result()  # This raises an error, because the client has gone.
            await answering
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._connection.end()

    async def _pass_request(self) -> None:
        """Send the body. Then wait for the client to go away, and raise ClientDisconnectedError."""
        await self._expected.wait()
        try:
            more = True
            while more:
                message = await self._receive_message()
                more = bool(message.get("more_body", False))
                if body := message.get("body"):
                    await self._connection.send(h11.Data(body))
            await self._connection.send(h11.EndOfMessage())
            self._is_sent = True
        except BrokenConnectionError:
            pass  # The response has the reason, or breaks off as well.
        connection = self._scope.get(CONNECTION)
        while True:
            await self._receive_message()
            if connection is not None and connection.client_ended:
                # The client still reads: the other broker shall respond with what it has.
                self._connection.end()

    async def _receive_message(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        return message

    async def _pass_answer(self) -> None:
        event = await self._connection.next_event()
        while isinstance(event, h11.InformationalResponse):
            self._expected.set()
            event = await self._connection.next_event()
        if not isinstance(event, h11.Response):
            raise BrokenConnectionError(f"{event} is not the beginning of an answer")
        await self._begin(event)
        while isinstance(event := await self._connection.next_event(), h11.Data):
            await self._send({"type": "http.response.body", "body": bytes(event.data), "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin(self, head: h11.Response) -> None:
        headers = [(name, value) for name, value in head.headers if name not in _NOT_ANSWERED]
        if not self._is_sent and (b"connection", b"close") in head.headers:
            headers.append((b"connection", b"close"))  # The rest of the body is not wanted.
        if any(name == b"content-type" and value.startswith(_EVENT_STREAM) for name, value in headers):
            self._scope[STREAM] = True
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": head.status_code, "headers": headers})


def _request(scope: Scope, context: RequestContext) -> h11.Request:
    """Return the request for the other broker. Raises ParameterError if other servers would not accept it."""
    given: HeaderPairs = scope["headers"]
    not_sent = set(_NOT_SENT)
    for name, value in given:
        if name == b"connection":
            not_sent.update(token.strip().lower() for token in value.split(b","))
    headers = [(name, value) for name, value in given if name not in not_sent]
    if any(name == b"transfer-encoding" for name, _ in given):
        headers.append((b"transfer-encoding", b"chunked"))
    if not any(name == b"host" for name, _ in headers):
        headers.append((b"host", b"localhost"))  # A client of HTTP/1.0 may send no Host.
    headers.append((RELAYED_CONTEXT, context.encode()))
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    try:
        return h11.Request(method=scope["method"], target=target, headers=headers)
    except h11.LocalProtocolError as error:
        raise ParameterError(f"The request cannot go on to the broker that answers it: {error}.") from error


async def _cut(scope: Scope) -> None:
    """Cut the connection, so that the client sees that the response broke off."""
    connection = scope.get(CONNECTION)
    if connection is not None:
        connection.cut()
        await asyncio.sleep(0)  # The server notices the cut in this turn.
