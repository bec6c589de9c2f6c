"""Kept HTTP/1.1 connections to one address, over which ``transport`` sends its requests.

Each request has a connection to itself; between requests the connection waits here. ``http.client`` takes a third of
the time of a full HTTP client, which is most of the time of a producer's small request.

Invariants: an exception never leaves a connection behind on which a response may still come. A connection is idle, busy
or interrupted. Only one thread takes the step from busy, so an interrupted connection is never kept.
"""

import http.client
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from functools import cached_property
from typing import Any, TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from logstore.client.addresses import is_loopback
from logstore.client.client_tls import ClientTls, reason_of

Body: TypeAlias = bytes | memoryview | None
Read: TypeAlias = Callable[[http.client.HTTPResponse], Any]

#: The environment's options.
NO_OPTIONS = ClientTls()
#: Parts of OpenSSL's names of the alerts by which a store refuses a client's certificate.
_CERTIFICATE_ALERTS = (
    "ALERT_CERTIFICATE",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_UNSUPPORTED_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
)
_CONNECT_SECONDS = 5.0
# It is well below connections.max.idle.ms: the server must not close a kept connection just as a request is sent on it.
_KEEPALIVE_SECONDS = 3.0


class NotConnectedError(Exception):
    """Raised when no connection could be made, so nothing was sent. The message is the reason."""


class HostNotFoundError(NotConnectedError):
    """Raised when the name of the host has no address."""


class TlsRefusedError(NotConnectedError):
    """Raised when one side refuses the other's certificate, or does not speak TLS. Another try will not help."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP response with any status; the names of ``headers`` are case-insensitive."""

    status_code: int
    headers: Message
    content: bytes


class Connections:
    """Connections to the base URL ``url``. Safe from several threads.

    Proxies come from the environment (``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY``). Loopback names never use one,
    because they mean another machine to a proxy. ``tls`` is for an address with https.
    """

    def __init__(self, url: str, tls: ClientTls = NO_OPTIONS) -> None:
        self.url = url
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        self._to = urlsplit(url)
        # Both are changed by single operations of list and dict, which are atomic.
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        # Each busy connection has a function that returns True once its request is no longer wanted.
        self._busy: dict[http.client.HTTPConnection, Callable[[], bool]] = {}
        self._closed = False
        self._keeps = True

    def exchange(
        self,
        method: str,
        target: str,
        body: Body,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        read: Read = http.client.HTTPResponse.read,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> Response:
        """Send a request and read its response; ``timeout_s`` bounds each wait for the other side.

        ``read`` takes the content of a response from its connection; ``interrupt`` ends the request once
        ``is_cancelled`` returns True. Raises NotConnectedError, TimeoutError, and OSError or HTTPException if the
        connection breaks; InvalidConfigError for files of TLS.
        """
        connection = self._kept() or self._connect(min(timeout_s, _CONNECT_SECONDS))
        self._busy[connection] = is_cancelled
        try:
            if self._closed or is_cancelled():
                raise ConnectionAbortedError("closed")
            connection.sock.settimeout(timeout_s)
            # A server that refuses a body responds before it has read all of it, and closes. Its response counts.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, self._prefix + target, body, {**self._proxy_headers, **headers})
            response = connection.getresponse()
            found = Response(response.status, response.headers, read(response))
        except ssl.SSLError as error:
            self._busy.pop(connection, None)
            connection.close()
            if not any(word in str(error.reason) for word in _CERTIFICATE_ALERTS):
                raise
            # By TLS 1.3 a store refuses a client's certificate after the handshake, and reads no request.
            self._context = None
            raise TlsRefusedError(reason_of(error, self.url)) from None
        except BaseException:
            self._busy.pop(connection, None)
            connection.close()
            raise
        if not self._take_from_busy(connection):
            connection.close()
        elif connection.sock is not None:
            self._idle.append((connection, time.monotonic()))
            if not self._keeps:
                self._close_idle()
        return found

    def close(self) -> None:
        """Make requests that wait for a response fail, and all later ones."""
        self._closed, self._keeps = True, False
        for connection in list(self._busy.copy()):
            self._interrupt(connection)
        self._close_idle()

    def retire(self) -> None:
        """Keep no connection any more: those of requests under way close after their responses."""
        self._keeps = False
        self._close_idle()

    def interrupt(self) -> None:
        """Make the cancelled requests that wait for a response fail."""
        for connection, is_cancelled in self._busy.copy().items():
            if is_cancelled():
                self._interrupt(connection)

    def _interrupt(self, connection: http.client.HTTPConnection) -> None:
        # The thread that reads from the connection closes it.
        if self._take_from_busy(connection) and (sock := connection.sock) is not None:
            with suppress(OSError):
                # The method of an SSLSocket would take the TLS away from the thread that reads.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _take_from_busy(self, connection: http.client.HTTPConnection) -> bool:
        """Return True if this thread was the first to take it."""
        return self._busy.pop(connection, None) is not None

    def _close_idle(self) -> None:
        while self._idle:
            # Another thread may have taken it first.
            with suppress(IndexError):
                self._idle.pop()[0].close()

    def _kept(self) -> http.client.HTTPConnection | None:
        oldest = time.monotonic() - _KEEPALIVE_SECONDS
        while self._idle:
            with suppress(IndexError):
                connection, since = self._idle.pop()
                if since > oldest:
                    return connection
                connection.close()
        return None

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        to = self._proxy or self._to
        port = to.port or (443 if to.scheme == "https" else 80)
        host = to.hostname or ""
        if self._to.scheme == "https":
            secure = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=self._tls_context())
            connection: http.client.HTTPConnection = secure
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        if self._proxy and self._to.scheme == "https":
            connection.set_tunnel(self._to.hostname or "", self._to.port, headers=_authorization(self._proxy))
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            if isinstance(error, ssl.SSLError):
                self._context = None  # the next try reads the files again: they may have been renewed
                raise TlsRefusedError(reason_of(error, self.url)) from None
            kind = HostNotFoundError if isinstance(error, socket.gaierror) else NotConnectedError
            raise kind(str(error) or type(error).__name__) from None
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        context = self._context
        if context is None:
            context = self._context = self._tls.context()
        return context

    @cached_property
    def _proxy(self) -> SplitResult | None:
        if is_loopback(self.url) or proxy_bypass(self._to.netloc):
            return None
        proxies = getproxies_environment()
        proxy = proxies.get(self._to.scheme) or proxies.get("all")
        return urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else None

    @cached_property
    def _prefix(self) -> str:
        """The text before the target. It is the whole URL if an HTTP proxy forwards the request."""
        return self.url if self._proxy and self._to.scheme == "http" else self._to.path

    @cached_property
    def _proxy_headers(self) -> Mapping[str, str]:
        return _authorization(self._proxy) if self._proxy and self._to.scheme == "http" else {}


def _authorization(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(user.encode()).decode()}"}
