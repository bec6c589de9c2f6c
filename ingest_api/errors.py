"""Errors over HTTP: the status is the beginning of the error code (``logstore.protocol.error_codes``).

Owns the shape of every error response, ``{"error_code": int, "message": str}`` as JSON, whether the error comes from a
route, the framework (no such path, method not allowed) or a bug. Invariants: no response holds a traceback; an error
whose outcome is unknown (timeout, storage failure) is a 5xx, so that a 4xx always means that nothing was stored.

Codes follow Confluent's REST Proxy: the HTTP status, or status * 100 + n.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from ingest_api.topic_ids import topic_id_headers
from logstore import errors
from logstore.entropy import random_int
from logstore.errors import LogStoreError
from logstore.protocol.error_codes import ERROR_CODES, kind_of


class ParameterError(errors.InvalidRequestError):
    """A query parameter, or a part of the path, that cannot be read."""


class UnsupportedMediaTypeError(errors.InvalidRequestError):
    """Content-Type or Content-Encoding is missing, malformed or not one that the resource takes."""


class NotAcceptableError(errors.InvalidRequestError):
    """Accept is malformed, or allows no media type of the resource."""


class EmbeddedFormatError(NotAcceptableError):
    """Accept asks for another embedded format than that of the consumer instance."""


class NoSuchResourceError(errors.InvalidRequestError):
    """The path, or a resource that it names below a topic, does not exist."""


class MisdirectedRequestError(errors.InvalidRequestError):
    """``Host`` is not one of the names by which the store may be called."""


class ForeignOriginError(errors.InvalidRequestError):
    """A foreign web page sends a request that may change something."""


class MethodNotAllowedError(errors.InvalidRequestError):
    """The path exists, but not with this method."""

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class SlowRequestError(errors.InvalidRequestError):
    """The client sent a body too slowly, or stopped in the middle."""


class ClientDisconnectedError(Exception):
    """The client went away: nobody reads a response."""


@dataclass(frozen=True, slots=True)
class HttpError:
    """``status`` is that of the response, ``error_code`` is in its body."""

    status: int
    error_code: int


_MESSAGE_LENGTH_MAX = 1_000

EVENT_STREAM: Final = "text/event-stream"
#: Range of the wait before a client of events connects again, so that not all come at once after a restart.
EVENT_RETRY_MS: Final = (1_000, 2_000)

INTERNAL_ERROR = HttpError(500, 500)

_CODES: Mapping[type[LogStoreError], int] = ERROR_CODES | {
    # Only HTTP has these errors.
    ForeignOriginError: 40302,
    MisdirectedRequestError: 42101,
    NoSuchResourceError: 404,
    MethodNotAllowedError: 405,
    NotAcceptableError: 406,
    EmbeddedFormatError: 40601,
    SlowRequestError: 408,
    UnsupportedMediaTypeError: 415,
    ParameterError: 422,
}


def http_error(error: LogStoreError) -> HttpError:
    """Return status and error code of ``error``."""
    code = next(_CODES[cls] for cls in type(error).__mro__ if cls in _CODES)
    return HttpError(kind_of(code), code)


def error_body(error_code: int, message: str, **more: object) -> bytes:
    return msgspec.json.encode({"error_code": error_code, "message": message, **more})


def shown_message(message: str) -> str:
    """Return the message for a response. A message may quote the request, which may be long or not be UTF-8."""
    shown = message if len(message) <= _MESSAGE_LENGTH_MAX else f"{message[:_MESSAGE_LENGTH_MAX]}..."
    return shown.encode("utf-8", "backslashreplace").decode()


def error_response(http: HttpError, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return _error_response(http, error_body(http.error_code, shown_message(message)), headers)


def _error_response(http: HttpError, body: bytes, headers: Mapping[str, str] | None) -> Response:
    return Response(body, http.status, headers, "application/json")


def log_store_error_response(error: LogStoreError, more_headers: Mapping[str, str] | None = None) -> Response:
    """Return the response for ``error``, with the headers of its kind and ``more_headers``."""
    headers = dict(more_headers or {})
    match error:
        case errors.ThrottledError():
            headers["Retry-After"] = str(error.retry_after_s)
        case errors.BrokerNotReadyError() | errors.StorageFullError():
            headers["Retry-After"] = "1"
        case errors.OffsetOutOfRangeError():
            headers["Logstore-Log-Start-Offset"] = str(error.log_start_offset)
            headers["Logstore-High-Watermark"] = str(error.high_watermark)
        case SlowRequestError():
            # The rest of the body may still come; the next request must not begin with it.
            headers["Connection"] = "close"
        case MethodNotAllowedError():
            headers["Allow"] = error.allow
        case errors.WrongBrokerError():
            http = http_error(error)
            body = error_body(http.error_code, shown_message(error.message), broker_id=error.broker_id, url=error.url)
            return _error_response(http, body, headers)
        case _:
            pass
    return error_response(http_error(error), error.message, headers)


def come_back_later(scope: Scope, error: LogStoreError) -> Response | None:
    """Return the response that makes a client of events come again later; None if it does not apply.

    It is for a browser's EventSource, or another client that accepts nothing but Server-Sent Events.
    """
    if http_error(error).status not in (429, 503):
        return None
    if not takes_only_events(scope["method"], scope["path"], scope["headers"]):
        return None
    return later_answer(error.retry_after_s if isinstance(error, errors.ThrottledError) else 0)


def takes_only_events(method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether a request is for Server-Sent Events, and its client accepts nothing else."""
    if method != "GET" or not path.endswith(("/events", "/events/")):
        return False
    return [value for name, value in headers if name == b"accept"] == [EVENT_STREAM.encode()]


def later_answer(retry_after_s: int = 0) -> Response:
    """Return an empty stream.

    An EventSource gives up for ever on any status but 200. After an empty stream it connects again, and keeps its
    position (https://html.spec.whatwg.org/multipage/server-sent-events.html, "fail the connection").
    """
    wait_ms = random_int(*EVENT_RETRY_MS) + 1_000 * retry_after_s
    return Response(f"retry: {wait_ms}\n\n", media_type=EVENT_STREAM)


def error_answer(request: Request, error: LogStoreError) -> Response:
    """Return the response of a route that raised ``error``."""
    later = come_back_later(request.scope, error)
    return later or log_store_error_response(error, topic_id_headers(request.scope))


def add_error_handlers(app: FastAPI) -> None:
    """Give the framework's own errors our shape. Bugs are caught in ``request_log``."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, LogStoreError)
        return error_answer(request, error)

    async def starlettes(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(HttpError(error.status_code, error.status_code), str(error.detail), error.headers)

    app.add_exception_handler(LogStoreError, ours)
    app.add_exception_handler(HTTPException, starlettes)
