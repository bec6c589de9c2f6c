"""The outermost layer of every request: its id, its line in the log, its metrics, and the last handler of errors.

The guard comes next. Invariants: every response carries ``X-Request-Id``; the same id is on every log line of the
request; an exception that nothing below expected becomes a JSON 500 without a traceback and one error in the log; a
client that is gone is not an error.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ingest_api.bodies import CONNECTION
from ingest_api.errors import (
    INTERNAL_ERROR,
    ClientDisconnectedError,
    come_back_later,
    error_response,
    log_store_error_response,
)
from ingest_api.guard import CLIENT_ID, REQUEST_ID, Arrival, HeaderPairs, relayed_context, sane
from logstore.broker.context import PLAINTEXT
from logstore.errors import LogStoreError, RequestTimedOutError
from logstore.observability import LOG_FIELDS, REQUESTS, client_label

log = structlog.stdlib.get_logger(__name__)
_logger = logging.getLogger(__name__)

_READ_HEADERS = frozenset((REQUEST_ID, CLIENT_ID, b"expect"))
# The status that nginx logs for a client that closed the connection; no client ever sees it.
_CLIENT_CLOSED_REQUEST = 499
#: Key in the scope of a request whose response is a stream without an end.
STREAM = "logstore.stream"
_NO_ROUTE = "none"
_READING_ROUTES = ("/fetch",)


class RequestLog:
    """Wraps ``app(arrival, scope, receive, send)``, which responds to a request or raises its error.

    ``request_id_of`` returns the id of a request with such headers.
    """

    def __init__(
        self,
        app: Callable[[Arrival, Scope, Receive, Send], Awaitable[None]],
        request_id_of: Callable[[HeaderPairs], str],
    ) -> None:
        self._app = app
        self._request_id_of = request_id_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [header for header in scope["headers"] if header[0] in _READ_HEADERS]
        arrival = self._arrival(scope, given)
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in given)
        exchange = _Exchange(scope, receive, send, arrival, expects)
        token = LOG_FIELDS.set(log_fields(arrival.request_id, arrival.client_id))
        began = time.perf_counter()
        try:
            await self._answer(exchange)
        finally:
            # The route is the label of metrics, never a path that a client made up.
            route = getattr(scope.get("route"), "path", _NO_ROUTE)
            ended = time.perf_counter()
            # A stream lasts as long as its client likes, so the time to its beginning is measured.
            answered = exchange.began_answer or ended if STREAM in scope else ended
            record_response(
                arrival.method,
                route,
                exchange.raw_path,
                exchange.status,
                exchange.sent_bytes,
                arrival.request_id,
                arrival.client_id,
                answered - began,
            )
            LOG_FIELDS.reset(token)

    def _arrival(self, scope: Scope, given: HeaderPairs) -> Arrival:
        """Return the request for the guard. ``given`` are the headers that are read here."""
        connection = scope.get(CONNECTION)
        if connection is not None and connection.relaying_broker is not None:
            context = relayed_context(scope["headers"])
            if context is not None:
                return Arrival(
                    scope["method"], context.request_id, context.client_id, context.peer, scope["headers"], context
                )
        peer = scope.get("client")
        return Arrival(
            scope["method"],
            self._request_id_of(given),
            sane(given, CLIENT_ID),
            peer[0] if peer else "",
            scope["headers"],
            identity=PLAINTEXT if connection is None else connection.identity,
        )

    async def _answer(self, exchange: "_Exchange") -> None:
        try:
            await self._app(exchange.arrival, exchange.scope, exchange.receive, exchange.send)
        except ClientDisconnectedError:
            exchange.status = exchange.status or _CLIENT_CLOSED_REQUEST
        except (asyncio.CancelledError, Exception) as error:
            later = come_back_later(exchange.scope, error) if isinstance(error, LogStoreError) else None
            answer = later or error_answer(
                error,
                exchange.arrival.method,
                exchange.raw_path,
                exchange.arrival.request_id,
                exchange.arrival.client_id,
            )
            begun = exchange.status != 0
            if not begun:
                await answer(exchange.scope, exchange.receive, exchange.send)
            if begun or isinstance(error, asyncio.CancelledError):
                raise


class _Exchange:
    """One request and its response: the messages between the server and the application."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, arrival: Arrival, expects: bool) -> None:
        self.scope = scope
        self.arrival = arrival
        # The path stays percent-encoded, so that any path is safe in a log line.
        self.raw_path: str = scope["raw_path"].decode("latin-1")
        self.status = 0
        self.sent_bytes = 0
        self.began_answer = 0.0
        self._receive = receive
        self._send = send
        self._awaits_continue = expects

    async def receive(self) -> Message:
        self._awaits_continue = False
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.began_answer = time.perf_counter()
            headers = [*message["headers"], (b"x-request-id", self.arrival.request_id.encode())]
            if self._awaits_continue:
                # The client waits for "100 Continue", so its body may or may not come: close the connection.
                headers = [*(pair for pair in headers if pair[0] != b"connection"), (b"connection", b"close")]
            message["headers"] = headers
        elif message["type"] == "http.response.body":
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)


def log_fields(request_id: str, client_id: str) -> dict[str, str]:
    """Return the fields of every log line of a request."""
    return {"request_id": request_id, "client_id": client_id} if client_id else {"request_id": request_id}


def error_answer(error: BaseException, method: str, raw_path: str, request_id: str, client_id: str) -> Response:
    """Return the response for the error of a request. An error that nothing below expected is logged."""
    if isinstance(error, LogStoreError):
        return log_store_error_response(error)
    if isinstance(error, asyncio.CancelledError):
        # The server cuts requests that outlast its shutdown. 503 would be wrong, because it says that nothing was
        # stored.
        return log_store_error_response(
            RequestTimedOutError("The store is stopping; whether the request was carried out is unknown.")
        )
    fields = log_fields(request_id, client_id)
    log.error("http.unexpected_error", method=method, path=raw_path, exc_info=error, **fields)
    return error_response(INTERNAL_ERROR, f"Internal error. The server's log has it under request id {request_id!r}.")


def record_response(
    method: str,
    route: str,
    raw_path: str,
    status: int,
    sent_bytes: int,
    request_id: str,
    client_id: str,
    seconds: float,
) -> None:
    """Record the response in the metrics and in the log."""
    REQUESTS.answered(method, route, str(status), client_label(client_id) if client_id else "", seconds)
    # When a client stops reading, as every consumer does in the middle of a long poll, no outcome is unknown.
    stopped_reading = status == _CLIENT_CLOSED_REQUEST and (method == "GET" or route in _READING_ROUTES)
    quiet = status < 400 or stopped_reading
    if quiet and not _logger.isEnabledFor(logging.DEBUG):
        return  # structlog would drop the line only at the end.
    write = log.error if status >= 500 else log.debug if quiet else log.info
    write(
        "http.answered",
        method=method,
        path=raw_path,
        status=status,
        bytes=sent_bytes,
        milliseconds=round(seconds * 1000, 3),
        **log_fields(request_id, client_id),
    )
