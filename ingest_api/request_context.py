"""What is the same for every request: its id, its line in the log, its metrics, HEAD and OPTIONS, and the last net.

The outermost layer of the application. Invariants: every answer carries ``X-Request-Id``; the same id is on every log
line of the request; an exception that nothing below expected becomes a JSON 500 without a traceback and one error in
the log; a client that is gone is no error.
"""

import asyncio
import functools
import logging
import random
import re
import time
from collections.abc import Callable

import structlog
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ingest_api.errors import (
    INTERNAL_ERROR,
    ClientDisconnectedError,
    error_response,
    log_store_error_response,
)
from logstore.errors import RequestTimedOutError
from logstore.observability import LOG_FIELDS, REQUEST_SECONDS, REQUESTS, client_label

log = structlog.stdlib.get_logger(__name__)
_logger = logging.getLogger(__name__)

_SANE = re.compile(rb"[!-~](?:[ -~]{0,126}[!-~])?")
_READ_HEADERS = frozenset((b"x-request-id", b"logstore-client-id", b"expect"))
# What nginx logs for a client that closed the connection; no client ever sees it.
_CLIENT_CLOSED_REQUEST = 499
_NO_ROUTE = "none"


class RequestContextMiddleware:
    """``allowed_methods`` gives the methods that a path has, none if there is no such path."""

    def __init__(self, app: ASGIApp, allowed_methods: Callable[[str], list[str]]) -> None:
        self._app = app
        self._allowed_methods = allowed_methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [header for header in scope["headers"] if header[0] in _READ_HEADERS]
        request_id = _sane(given, b"x-request-id") or f"{random.getrandbits(128):032x}"
        client_id = _sane(given, b"logstore-client-id")
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in given)
        exchange = _Exchange(scope, receive, send, request_id, expects)
        fields = {"request_id": request_id}
        if client_id:
            fields["client_id"] = client_id
        token = LOG_FIELDS.set(fields)
        began = time.perf_counter()
        try:
            await self._answer(exchange)
        finally:
            _record(exchange, client_id, time.perf_counter() - began)
            LOG_FIELDS.reset(token)

    async def _answer(self, exchange: "_Exchange") -> None:
        scope = exchange.scope
        if scope["method"] == "OPTIONS" and (methods := self._allowed_methods(scope["path"])):
            await exchange.send(
                {"type": "http.response.start", "status": 204, "headers": [(b"allow", ", ".join(methods).encode())]}
            )
            await exchange.send({"type": "http.response.body"})
            return
        if scope["method"] == "HEAD" and "GET" in self._allowed_methods(scope["path"]):
            # The server leaves the body out.
            exchange.scope = {**scope, "method": "GET"}
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except ClientDisconnectedError:
            exchange.status = exchange.status or _CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:
            # The server gives up on requests that outlast its shutdown. Not 503, after which nothing was stored.
            if exchange.status == 0:
                error = RequestTimedOutError("The store is stopping; whether the request was carried out is unknown.")
                await log_store_error_response(error)(scope, exchange.receive, exchange.send)
            raise
        except Exception:
            log.exception("http.unexpected_error", method=scope["method"], path=exchange.raw_path)
            if exchange.status != 0:
                raise
            message = f"Internal error. The server's log has it under request id {exchange.request_id!r}."
            await error_response(INTERNAL_ERROR, message)(scope, exchange.receive, exchange.send)


class _Exchange:
    """One request and its answer: what passes between the server and the application."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_id: str, expects: bool) -> None:
        self.scope = scope
        self.request_id = request_id
        self.method: str = scope["method"]
        # As sent, percent-encoded: what a log line may hold whatever the path says.
        self.raw_path: str = scope["raw_path"].decode("latin-1")
        self.status = 0
        self.sent_bytes = 0
        self._receive = receive
        self._send = send
        self._awaits_continue = expects

    async def receive(self) -> Message:
        self._awaits_continue = False
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message["headers"], (b"x-request-id", self.request_id.encode())]
            if self._awaits_continue:
                # The client was never told to go on, so whether its body still comes is unknown: start afresh.
                headers = [*(pair for pair in headers if pair[0] != b"connection"), (b"connection", b"close")]
            message["headers"] = headers
        elif message["type"] == "http.response.body":
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)


def _record(exchange: _Exchange, client_id: str, seconds: float) -> None:
    # FastAPI leaves the matched route in the scope; a path of a client's own making is never a label.
    route = getattr(exchange.scope.get("route"), "path", _NO_ROUTE)
    _requests(exchange.method, route, exchange.status, client_label(client_id)).inc()
    _request_seconds(exchange.method, route).observe(seconds)
    if exchange.status < 400 and not _logger.isEnabledFor(logging.DEBUG):
        return  # structlog would find out only at the end
    write = log.error if exchange.status >= 500 else log.info if exchange.status >= 400 else log.debug
    write(
        "http.answered",
        method=exchange.method,
        path=exchange.raw_path,
        status=exchange.status,
        bytes=exchange.sent_bytes,
        milliseconds=round(seconds * 1000, 3),
    )


@functools.lru_cache(4096)
def _requests(method: str, route: str, status: int, client: str) -> Counter:
    return REQUESTS.labels(method, route, str(status), client)


@functools.lru_cache(1024)
def _request_seconds(method: str, route: str) -> Histogram:
    return REQUEST_SECONDS.labels(method, route)


def _sane(headers: list[tuple[bytes, bytes]], wanted: bytes) -> str:
    """The header's value if it is there once, printable and at most 128 characters; else ""."""
    values = [value for name, value in headers if name == wanted] if headers else ()
    return values[0].decode() if len(values) == 1 and _SANE.fullmatch(values[0]) else ""
