"""The transport of a client: HTTP requests, with addresses, time limits, errors and retries.

A request is for any broker, which forwards it if needed, or for one particular broker. The addresses for any broker are
those of ``bootstrap``, then those of the brokers that ``cluster_metadata`` has found.

Invariants:

- A request goes to the next address only if a connection was refused, so that nothing is sent twice. After a lost
  response, or a response from a broker that stops, the next request begins with the next address.
- It is sent again only if that cannot store anything twice: it is idempotent, or the response says that nothing was
  stored (421, 429, 503), or there was no connection. The wait is the server's ``Retry-After``, else grows from 0.1 to 2
  s.
- Each broker has its own connections, one per concurrent request. They end when it is no longer one of the addresses.
- Every other failure is an exception of ``logstore.errors``, found by the ``error_code`` of the response. A 4xx means
  that nothing was stored; after NetworkError and RequestTimedOutError it is unknown.

The retry loop is our own: it obeys the server's ``Retry-After``, and logs nothing into a notebook but one warning if no
store can be reached.
"""

import http.client
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from logstore import errors
from logstore.backoff import backoffs
from logstore.client.addresses import Bootstrap, parse_bootstrap
from logstore.client.client_tls import ClientTls
from logstore.client.connections import (
    NO_OPTIONS,
    Body,
    Connections,
    HostNotFoundError,
    NotConnectedError,
    Read,
    Response,
    TlsRefusedError,
)
from logstore.errors import LogStoreError
from logstore.protocol import error_codes
from logstore.protocol.messages.base import ErrorBody

T = TypeVar("T")

log = logging.getLogger(__name__)

# Only the first words of a proxy's HTML page are of use.
_MESSAGE_CHARS_MAX = 500


#: Seconds of failed connections after which a warning says so. A store that restarts is mostly back by then.
_WARN_S = 5.0
# Kinds of error codes that mean that nothing was stored.
_NOTHING_STORED = (421, 429, 503)
#: The broker that gets the request handles it itself, or names the right one (421).
_NOT_FORWARDED = {"Logstore-Forward": "never"}


class Transport:
    """Requests to the first address that responds, or to one broker. Safe from several threads.

    ``request_timeout_s`` bounds the wait for one response, ``retry_timeout_s`` the retries of a request that is safe to
    repeat (0: none). ``client_id`` names this client in the store's metrics and logs, and ``tls`` is for addresses with
    https.
    """

    def __init__(
        self,
        bootstrap: Bootstrap,
        *,
        client_id: str | None = None,
        tls: ClientTls = NO_OPTIONS,
        request_timeout_s: float = 30.0,
        retry_timeout_s: float = 10.0,
    ) -> None:
        self.urls = parse_bootstrap(bootstrap)
        self.request_timeout_s = request_timeout_s
        self._retry_timeout_s = retry_timeout_s
        self._stopped = threading.Event()
        self._headers = {"Logstore-Client-Id": client_id} if client_id else {}
        # This lock guards changes of the following two, which are replaced as a whole.
        self._lock = threading.Lock()
        self._tls = tls
        self._connections = {url: Connections(url, tls) for url in self.urls}
        # The addresses in the order in which they are tried: the first is the one that responded last.
        self._addresses = tuple(self._connections)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of ``bootstrap``, then those of other known brokers."""
        return tuple(self._connections)

    def set_brokers(self, urls: Iterable[str]) -> None:
        """Set the addresses besides those of ``bootstrap``. Connections to others end."""
        known = dict.fromkeys((*self.urls, *urls))
        with self._lock:
            if known.keys() == self._connections.keys() or self._stopped.is_set():
                return
            left = [found for url, found in self._connections.items() if url not in known]
            self._connections = {url: self._connections.get(url) or Connections(url, self._tls) for url in known}
            self._addresses = tuple(
                sorted(known, key=lambda url: self._addresses.index(url) if url in self._addresses else len(known))
            )
        for connections in left:
            connections.retire()

    def close(self) -> None:
        """Free the connections; a request under way, or waiting for a retry, fails at once."""
        with self._lock:
            self._stopped.set()
        for connections in self._connections.values():
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
        send: Callable[[Callable[[str | None], Response]], Response] | None = None,
    ) -> Response:
        """Send a request; return its 2xx response.

        ``idempotent`` defaults to whether ``method`` is; ``timeout_s`` adds to the wait for the response (a long poll's
        own wait); ``bad_request`` is that of ``error_codes.error_of``. ``send`` chooses the broker for each try: it
        calls the function that it receives with a URL, or with None for any broker.

        Raises the error of ``logstore.errors`` that the response names; StoreUnreachableError, NetworkError,
        RequestTimedOutError, SslAuthenticationError.
        """
        if json is not None:
            content = msgspec.json.encode(json)
            headers = {"Content-Type": "application/json", **(headers or {})}
        again = method in ("GET", "PUT", "DELETE") if idempotent is None else idempotent
        give_up = time.monotonic() + (self._retry_timeout_s if retry_timeout_s is None else retry_timeout_s)
        wait_s = self.request_timeout_s + (timeout_s or 0)

        def once(at: str | None = None) -> Response:
            return self.request_once(
                method, path, content, headers=headers, params=params, timeout_s=wait_s, bad_request=bad_request, at=at
            )

        return self._with_retries(once if send is None else partial(send, once), again=again, give_up=give_up)

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
        at: str | None = None,
    ) -> Response:
        """Send a request as ``request`` does, but once. ``read`` and ``is_cancelled`` are those of
        ``Connections.exchange``.

        ``at`` is the URL, one of ``set_brokers``, of the broker that must handle the request itself; None: any.
        """
        target = f"{path}{'&' if '?' in path else '?'}{urlencode(params)}" if params else path
        own = self._headers if at is None else {**self._headers, **_NOT_FORWARDED}
        exchange = partial(
            Connections.exchange,
            method=method,
            target=target,
            body=content,
            headers={**own, **(headers or {})},
            timeout_s=timeout_s,
            read=read,
            is_cancelled=is_cancelled,
        )
        addresses = self._addresses if at is None else (at,)
        url, response = self._send(exchange, _what(method, target), timeout_s, addresses)
        if at is None and url != self._addresses[0]:
            self._begin_with(url)
        if 200 <= response.status_code < 300:
            return response
        error = error_of(response, bad_request)
        if stores_nothing(error) and not isinstance(error, errors.ThrottledError):
            self._begin_behind(url)
        raise error

    def prefer_another(self) -> None:
        """Let the next request for any broker begin with another address."""
        self._begin_behind(self._addresses[0])

    def ask_around(
        self,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        timeout_s: float | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Response:
        """Send a GET to one address after the other; return the first 2xx response. Raises the last error of
        ``request_once``.

        ``timeout_s`` bounds the wait for each address; None means ``request_timeout_s`` divided among them.
        """
        if timeout_s is None:
            timeout_s = self.request_timeout_s / len(self._addresses)
        failed: LogStoreError | None = None
        for _ in range(len(self._addresses)):
            try:
                return self.request_once("GET", path, params=params, timeout_s=timeout_s, is_cancelled=is_cancelled)
            except LogStoreError as error:
                ended = self._stopped.is_set() or is_cancelled()
                if ended or not error.retriable or isinstance(error, errors.StoreUnreachableError):
                    raise
                # If this one is lost, hangs, or stops, others may respond. They come first now.
                failed = error
        raise failed or errors.StoreUnreachableError("There is no address to ask.")

    def keep_trying(self, once: Callable[[], T]) -> T:
        """Return the result of ``once``, which has no side effects, with the retries of ``request``."""
        return self._with_retries(once, again=True, give_up=time.monotonic() + self._retry_timeout_s)

    def _with_retries(self, once: Callable[[], T], *, again: bool, give_up: float) -> T:
        warn_at = time.monotonic() + _WARN_S
        for backoff in backoffs():
            try:
                return once()
            except LogStoreError as error:
                unknown = (errors.NetworkError, errors.RequestTimedOutError, errors.NotEnoughReplicasAfterAppendError)
                safe = (again and isinstance(error, unknown)) or isinstance(error, errors.StoreUnreachableError)
                if not (safe or stores_nothing(error)):
                    raise
                wait = error.retry_after_s if isinstance(error, errors.ThrottledError) else backoff
                if time.monotonic() + wait > give_up or self._stopped.wait(wait):
                    raise
                if isinstance(error, errors.StoreUnreachableError) and time.monotonic() > warn_at:
                    log.warning("%s: trying for another %.0f s.", error, give_up - time.monotonic())
                    warn_at = give_up
        raise AssertionError

    def interrupt(self) -> None:
        """Make the cancelled requests that wait for a response fail with NetworkError."""
        for connections in self._connections.values():
            connections.interrupt()

    def _send(
        self, exchange: Callable[[Connections], Response], what: str, timeout_s: float, addresses: tuple[str, ...]
    ) -> tuple[str, Response]:
        """Send to the first of ``addresses``, and to the others in turn while no connection can be made."""
        refused: list[NotConnectedError] = []
        for url in addresses:
            # It is None if the broker has left the cluster since the address was looked up.
            if (connections := self._connections.get(url)) is None:
                refused.append(NotConnectedError("it is no broker any more"))
                continue
            try:
                return url, exchange(connections)
            except NotConnectedError as error:
                refused.append(error)
            except TimeoutError:
                self._begin_behind(url)
                unknown = "" if what.startswith("GET ") else ": whether it took effect is unknown"
                raise errors.RequestTimedOutError(
                    f"{url} did not answer {what} in {timeout_s:.0f} s{unknown}"
                ) from None
            except (OSError, http.client.HTTPException) as error:
                self._begin_behind(url)
                raise errors.NetworkError(_broken(url, what, error)) from None
        if all(isinstance(error, HostNotFoundError) for error in refused):
            raise errors.UnknownHostError(f"There is no such host: {', '.join(addresses)} ({refused[-1]})") from None
        if all(isinstance(error, TlsRefusedError) for error in refused):
            raise errors.SslAuthenticationError(f"No TLS with {', '.join(addresses)}: {refused[-1]}") from None
        raise errors.StoreUnreachableError(f"No store answers at {', '.join(addresses)} ({refused[-1]})") from None

    def _begin_with(self, url: str) -> None:
        """Try ``url`` first from now on."""
        with self._lock:
            if url in self._addresses:
                self._addresses = (url, *(other for other in self._addresses if other != url))

    def _begin_behind(self, url: str) -> None:
        """Try ``url`` last from now on."""
        with self._lock:
            if url in self._addresses:
                self._addresses = (*(other for other in self._addresses if other != url), url)


def stores_nothing(error: LogStoreError) -> bool:
    """Return True if the store has refused a request for now, and has stored nothing of it."""
    return error.retriable and error_codes.kind_of(error_codes.code_of(error)) in _NOTHING_STORED


def topic_path(topic: str, rest: str = "") -> str:
    """Return ``/topics/<topic>`` followed by ``rest``. Raises InvalidTopicError for a name that no path can hold."""
    return f"/topics/{quote_name(topic)}{rest}"


def group_path(group: str, rest: str = "") -> str:
    """Return ``/groups/<group>`` followed by ``rest``. Raises InvalidGroupError if the name is not text.

    A name that intermediate servers could change in a path goes into the query: ``/groups/-/offsets?group=..``.
    """
    try:
        if group in ("", ".", "..") or "/" in group:
            return f"/groups/-{rest}?{urlencode({'group': group})}"
        return f"/groups/{quote(group, safe='')}{rest}"
    except UnicodeEncodeError:
        raise errors.InvalidGroupError(f"Group name {group!r} is no UTF-8: it has half of a surrogate pair") from None


def quote_name(topic: str) -> str:
    if topic in ("", ".", ".."):
        raise errors.InvalidTopicError(
            f"{topic!r} cannot be a topic's name: 1 to 249 of A-Z a-z 0-9 . _ -, not . or .."
        )
    return quote(topic, safe="")


def error_of(response: Response, bad_request: type[LogStoreError] = errors.InvalidRequestError) -> LogStoreError:
    """Return the exception for a response other than 2xx."""
    try:
        body = msgspec.json.decode(response.content, type=ErrorBody)
        code, message = body.error_code, body.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        # The response is not the store's: it comes from a proxy, or from another program on that port.
        code, message = response.status_code, f"{response.status_code} {_text(response)}".strip()
    if error_codes.kind_of(code) != response.status_code:
        code = response.status_code
    start, end = (int(response.headers.get(f"Logstore-{name}", -1)) for name in ("Log-Start-Offset", "High-Watermark"))
    error = error_codes.error_of(code, message, log_start_offset=start, high_watermark=end, bad_request=bad_request)
    if isinstance(error, errors.ThrottledError):
        error.retry_after_s = _retry_after(response)
    return error


def _retry_after(response: Response) -> int:
    text = response.headers.get("Retry-After", "1")
    return int(text) if text.isdecimal() else 1


def _text(response: Response) -> str:
    return response.content.decode("utf-8", "replace")[:_MESSAGE_CHARS_MAX]


def _broken(url: str, what: str, error: Exception) -> str:
    """Return the message for a connection that broke before the response; a read takes no effect."""
    told = f"({str(error) or type(error).__name__})"
    if not what.startswith("GET "):
        return f"The connection to {url} broke during {what} {told}: whether it took effect is unknown"
    if isinstance(error, http.client.HTTPException) and not isinstance(error, http.client.RemoteDisconnected):
        return f"No store answers at {url}: the answer to {what} is not HTTP {told}"
    # A store ends a handshake without a word if it wants a certificate and gets none.
    refused = ", or it wants a certificate (ssl_certfile)" if url.startswith("https:") else ""
    return (
        f"The connection to {url} broke during {what} {told}: no store answers there, or it is being stopped{refused}"
    )


def _what(method: str, target: str) -> str:
    return f"{method} {target.partition('?')[0]}"
