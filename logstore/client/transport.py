"""The transport of a client: HTTP requests, with addresses, time limits, errors and retries.

Invariants:

- A request goes to the next address only when a connection was refused, so that nothing is sent twice.
- It is sent again only if that cannot store anything twice: it is idempotent, or the answer says that nothing was
  stored (429, 503), or there was no connection. The wait is the server's ``Retry-After``, else grows from 0.1 to 2 s.
- Every other failure is an exception of ``logstore.errors``, found by the answer's ``error_code``. A 4xx means that
  nothing was stored; NetworkError and RequestTimedOutError that it is unknown.

The retry loop is our own: it obeys the server's ``Retry-After``, and does not log into a notebook.
"""

import http.client
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import quote, urlencode

import msgspec

from logstore import errors
from logstore.backoff import backoffs
from logstore.client.addresses import Bootstrap, parse_bootstrap
from logstore.client.connections import Answer, Body, Connections, HostNotFoundError, NotConnectedError, Read
from logstore.errors import LogStoreError
from logstore.limits import GROUP_NAME_LENGTH_MAX
from logstore.protocol import error_codes

# Only the first words of a proxy's page of HTML are of use.
_MESSAGE_CHARS_MAX = 500


class _ErrorBody(msgspec.Struct):
    error_code: int
    message: str


_NOTHING_STORED = (
    errors.ThrottledError,
    errors.BrokerNotReadyError,
    errors.StorageFullError,
    errors.CoordinatorLoadInProgressError,
)


class Transport:
    """Requests to the first of ``bootstrap``'s addresses that answers. Safe from several threads.

    ``request_timeout_s`` bounds the wait for one answer; ``retry_timeout_s`` how long a request is sent again where
    that is safe (0: once). ``client_id`` names this client in the store's metrics and logs.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        client_id: str | None = None,
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 10.0,
    ) -> None:
        self.urls = parse_bootstrap(bootstrap)
        self._request_timeout_s = request_timeout_s
        self._retry_timeout_s = retry_timeout_s
        self._current = 0
        self._stopped = threading.Event()
        self._headers = {"Logstore-Client-Id": client_id} if client_id else {}
        self._connections = [Connections(url) for url in self.urls]

    def close(self) -> None:
        """Free the connections; a request that is on its way fails, and one that waits to be sent again, at once."""
        self._stopped.set()
        for connections in self._connections:
            connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: Body = None,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | int] | None = None,
        idempotent: bool | None = None,
        timeout_s: float | None = None,
        retry_timeout_s: float | None = None,
        bad_request: type[LogStoreError] = errors.InvalidRequestError,
    ) -> Answer:
        """A 2xx answer. ``idempotent`` defaults to whether ``method`` is; ``timeout_s`` adds to the wait for the answer
        (a long poll's own wait); ``bad_request`` is as of ``error_codes.error_of``.

        Raises the answer's error of ``logstore.errors``; StoreUnreachableError, NetworkError, RequestTimedOutError.
        """
        if json is not None:
            content = msgspec.json.encode(json)
            headers = {"Content-Type": "application/json", **(headers or {})}
        again = method in ("GET", "PUT", "DELETE") if idempotent is None else idempotent
        give_up = time.monotonic() + (self._retry_timeout_s if retry_timeout_s is None else retry_timeout_s)
        wait_s = self._request_timeout_s + (timeout_s or 0)

        def once() -> Answer:
            return self.request_once(
                method, path, content, headers=headers, params=params, timeout_s=wait_s, bad_request=bad_request
            )

        return self._with_retries(once, again=again, give_up=give_up)

    def request_once(
        self,
        method: str,
        path: str,
        content: Body = None,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | int] | None = None,
        timeout_s: float,
        bad_request: type[LogStoreError] = errors.InvalidRequestError,
        read: Read = http.client.HTTPResponse.read,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Answer:
        """As ``request``, never sent again; ``read`` and ``is_cancelled`` as of ``Connections.exchange``."""
        target = f"{path}?{urlencode(params)}" if params else path
        exchange = partial(
            Connections.exchange,
            method=method,
            target=target,
            body=content,
            headers={**self._headers, **(headers or {})},
            timeout_s=timeout_s,
            read=read,
            is_cancelled=is_cancelled,
        )
        answer = self._send(exchange, _what(method, target), timeout_s)
        if not 200 <= answer.status_code < 300:
            raise error_of(answer, bad_request)
        return answer

    def _with_retries(self, once: Callable[[], Answer], *, again: bool, give_up: float) -> Answer:
        for backoff in backoffs():
            try:
                return once()
            except LogStoreError as error:
                safe = again and isinstance(error, (errors.NetworkError, errors.RequestTimedOutError))
                if not (safe or isinstance(error, (*_NOTHING_STORED, errors.StoreUnreachableError))):
                    raise
                wait = error.retry_after_s if isinstance(error, errors.ThrottledError) else backoff
                if time.monotonic() + wait > give_up or self._stopped.wait(wait):
                    raise
        raise AssertionError

    def interrupt(self) -> None:
        """Requests that wait for an answer fail with NetworkError."""
        for connections in self._connections:
            connections.interrupt()

    def _send(self, exchange: Callable[[Connections], Answer], what: str, timeout_s: float) -> Answer:
        """Send to the current address; to the others in turn while no connection can be made."""
        refused: list[NotConnectedError] = []
        for turn in range(len(self.urls)):
            index = (self._current + turn) % len(self.urls)
            try:
                answer = exchange(self._connections[index])
            except NotConnectedError as error:
                refused.append(error)
                continue
            except TimeoutError:
                unknown = "" if what.startswith("GET ") else ": whether it took effect is unknown"
                raise errors.RequestTimedOutError(
                    f"{self.urls[index]} did not answer {what} in {timeout_s:.0f} s{unknown}"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                raise errors.NetworkError(_broken(self.urls[index], what, error)) from None
            self._current = index
            return answer
        if all(isinstance(error, HostNotFoundError) for error in refused):
            raise errors.UnknownHostError(f"There is no such host: {', '.join(self.urls)} ({refused[-1]})") from None
        raise errors.StoreUnreachableError(f"No store answers at {', '.join(self.urls)} ({refused[-1]})") from None


def topic_path(topic: str, rest: str = "") -> str:
    """``/topics/<topic>`` with ``rest`` after it; InvalidTopicError for a name that cannot stand in a path."""
    return f"/topics/{quote_name(topic)}{rest}"


def group_path(group: str, rest: str = "") -> str:
    """``/groups/<group>`` with ``rest`` after it; InvalidGroupError for a name that cannot stand in a path."""
    if group in ("", ".", "..") or "/" in group:
        raise errors.InvalidGroupError(
            f"{group!r} cannot be a group's name: 1 to {GROUP_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -, not . or .."
        )
    return f"/groups/{quote(group, safe='')}{rest}"


def quote_name(topic: str) -> str:
    if topic in ("", ".", ".."):
        raise errors.InvalidTopicError(
            f"{topic!r} cannot be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ -, not . or .."
        )
    return quote(topic, safe="")


def error_of(response: Answer, bad_request: type[LogStoreError] = errors.InvalidRequestError) -> LogStoreError:
    """The exception that an answer other than 2xx stands for."""
    try:
        body = msgspec.json.decode(response.content, type=_ErrorBody)
        code, message = body.error_code, body.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The answer is not the store's own: it is a proxy's, or of another program on that port.
        code, message = response.status_code, f"{response.status_code} {_text(response)}".strip()
    if error_codes.kind_of(code) != response.status_code:
        code = response.status_code
    start, end = (int(response.headers.get(f"Logstore-{name}", -1)) for name in ("Log-Start-Offset", "High-Watermark"))
    error = error_codes.error_of(code, message, log_start_offset=start, high_watermark=end, bad_request=bad_request)
    if isinstance(error, errors.ThrottledError):
        error.retry_after_s = _retry_after(response)
    return error


def _retry_after(response: Answer) -> int:
    text = response.headers.get("Retry-After", "1")
    return int(text) if text.isdecimal() else 1


def _text(answer: Answer) -> str:
    return answer.content.decode("utf-8", "replace")[:_MESSAGE_CHARS_MAX]


def _broken(url: str, what: str, error: Exception) -> str:
    """A connection that was made and broke before the answer; a read takes no effect."""
    told = f"({str(error) or type(error).__name__})"
    if not what.startswith("GET "):
        return f"The connection to {url} broke during {what} {told}: whether it took effect is unknown"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
        return f"No store answers at {url}: the answer to {what} is not HTTP {told}"
    return f"The connection to {url} broke during {what} {told}: no store answers there, or it is being stopped"


def _what(method: str, target: str) -> str:
    return f"{method} {target.partition('?')[0]}"
