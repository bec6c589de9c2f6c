"""HTTP/1.1 on one connection: uvicorn's httptools protocol, with bounds and honest answers to broken framing.

What is added: the head of a request is bounded in bytes and in time; a request that cannot be parsed is answered with
our JSON error; such an answer never overtakes the answer to an earlier request on the same connection (a client that
sent too long a body must not read 400 for records that are being stored); an offer to upgrade (to HTTP/2, as Java's
client makes with its first request) is ignored without losing the body; bytes after an early answer are read and
dropped only up to a bound.
"""

import asyncio
import uuid
from collections import deque
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ingest_api.errors import HttpError, error_body
from logstore.limits import KIB, MIB

HEAD_BYTES_MAX = 64 * KIB
HEAD_SECONDS = 30.0
# A client that got its answer early may still be sending: reading on lets it see the answer instead of a reset.
DROPPED_BYTES_MAX = 256 * MIB

_MALFORMED = HttpError(400, 400)
_NO_TUNNELS = HttpError(405, 405)
_HEAD_TOO_LARGE = HttpError(431, 431)
_HEAD_TOO_SLOW = HttpError(408, 408)
_UPGRADE_HEADERS = {b"upgrade", b"http2-settings"}


class HttpProtocol(HttpToolsProtocol):
    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._head_begun = False
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._unanswered: deque[Any] = deque()
        self._dropped_bytes = 0
        self._refusal: tuple[HttpError, str] | None = None

    # ---- bounds of the head -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_timed_out)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        if self._head_begun:
            self._refuse(_HEAD_TOO_SLOW, f"The request line and headers did not come within {HEAD_SECONDS:.0f} s.")
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(
                _MALFORMED, "Malformed HTTP: the request line, the headers or the framing of the body is broken."
            )
        if self._head_begun:
            # By what arrives: the parser does not report a header before its end, and holds it until then.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_large_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_begun = True
        self._head_bytes = self._dropped_bytes = 0
        if self._head_timer is None:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        self._head_begun = False
        self._stop_head_timer()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_BYTES_MAX:
            self._refuse_large_head()
            raise ValueError("head too large")  # makes the parser stop
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self._unanswered.append(self.cycle)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its offer: the parser stops at the end of such a head, whatever follows."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(_NO_TUNNELS, "CONNECT is not allowed: this is no proxy.")
            return
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join(token for token in tokens if token.lower() not in _UPGRADE_HEADERS)  # noqa: PLW2901
            if name not in _UPGRADE_HEADERS:
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    def _refuse_large_head(self) -> None:
        self._refuse(_HEAD_TOO_LARGE, f"The request line and headers are over {HEAD_BYTES_MAX} bytes.")

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self.transport.close()

    # ---- broken framing ---------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        if self._unanswered:
            self._unanswered.popleft()
        super().on_response_complete()
        if self._refusal is not None and not self._unanswered:
            self._send_refusal()

    def _refuse(self, http: HttpError, message: str) -> None:
        """Take nothing more from this connection, and say why once everything before it is answered."""
        if self._refusal is not None:
            return
        self._refusal = (http, message)
        if self._unanswered and self._unanswered[-1].more_body:
            self._abandon(self._unanswered.pop())
        if not self._unanswered:
            self._send_refusal()

    def _abandon(self, cycle: Any) -> None:
        """The request whose body broke off: the application hears that its client is gone."""
        self.pipeline = deque(waiting for waiting in self.pipeline if waiting[0] is not cycle)
        cycle.disconnected = True
        cycle.message_event.set()

    def _send_refusal(self) -> None:
        assert self._refusal is not None
        if self.transport.is_closing():
            return
        http, message = self._refusal
        body = error_body(http.error_code, message)
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\nconnection: close\r\n\r\n"
            % (len(body), uuid.uuid4().hex.encode())
        )
        self.transport.write(STATUS_LINE[http.status] + head + body)
        self.transport.close()
