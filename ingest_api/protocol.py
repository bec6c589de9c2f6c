"""HTTP/1.1 on one connection: uvicorn's httptools protocol, with bounds and honest responses to broken framing.

Added to uvicorn's: a request that cannot be parsed gets our JSON error; such a response never overtakes or cuts the
response to an earlier request on the connection (a client that sent too long a body must not read 400 for records that
are being stored); an offer to upgrade (to HTTP/2, as Java's client makes with its first request) is ignored without
losing the body.

The bounds keep every client from holding memory, a file descriptor or the event loop for long. In bytes: a head; the
framing of a body (sizes and extensions of chunks, trailers); requests that wait for their responses; a body that nobody
reads because its response was early. In time (``ConnectionLimits``): at every moment either the application works on a
request (which bounds itself; ``bodies`` bounds the body), or a timer runs here for the client's next step: begin a
request, end its head, end a body that is dropped, hang up. A second timer runs while a response waits for the client to
read it. In number: connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import httptools
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from ingest_api.bodies import CONNECTION
from ingest_api.errors import HttpError, error_body, http_error, later_answer, takes_only_events
from ingest_api.guard import HeaderPairs
from ingest_api.short_requests import WHOLE_BYTES_MAX, ShortHead, ShortRequests
from logstore.broker.context import PLAINTEXT
from logstore.broker.tls_identity import Identify, no_tls
from logstore.entropy import new_uuid
from logstore.errors import AuthorizationError, BrokerNotReadyError, ThrottledError
from logstore.limits import CLIENT_BYTES_PER_SECOND_MIN, KIB, MIB
from logstore.listening_sockets import bytes_in_kernel
from logstore.settings import Settings

HEAD_BYTES_MAX = 64 * KIB
# The framing of a body may have this many bytes more than the body: chunks of less than five bytes, long extensions and
# trailers are work without records. (Go's net/http counts likewise: CVE-2023-39326.)
FRAMING_BYTES_MAX = 64 * KIB
# A read brings up to 256 KiB, which may be 14,000 requests, if all were accepted before the first one is answered.
PIPELINED_REQUESTS_MAX = 100
# A client that got its response early may still be sending. Reading on lets it see the response instead of a reset.
DROPPED_BYTES_MAX = 256 * MIB
_LINGER_SECONDS = 2.0
# A timer this late means that the server stood still, not the client: bytes that came meanwhile are still to be read.
_LATE_SECONDS = 0.5
_READ_FIRST_SECONDS = 0.1

_MALFORMED = HttpError(400, 400)
_NO_TUNNELS = HttpError(405, 405)
_FORBIDDEN = http_error(AuthorizationError(""))
_TOO_SLOW = HttpError(408, 408)
_TOO_MANY_REQUESTS = http_error(ThrottledError(""))
_HEAD_TOO_LARGE = HttpError(431, 431)
_TOO_MANY_CONNECTIONS = http_error(BrokerNotReadyError(""))
# Number, seconds and bytes of connections beyond the bound whose requests are read before they are refused, so that an
# EventSource gets a response that does not make it give up.
_SURPLUS_MAX = 64
_SURPLUS_SECONDS = 0.5
_SURPLUS_BYTES_MAX = 8 * KIB
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# Two writes cost less than a copy of more bytes.
_JOINED_BYTES_MAX = 16 * KIB
_UPGRADE_HEADERS = {b"upgrade", b"http2-settings"}


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """``docs/configuration.md`` has the settings of these names; here times are in seconds. ``other_connections``
    returns the number on other listeners, which ``max_connections`` also counts.
    """

    max_connections: int = 10_000
    idle_seconds: float = 60.0
    head_seconds: float = 30.0
    body_seconds: float = 30.0
    answer_seconds: float = 60.0
    other_connections: Callable[[], int] = lambda: 0

    @classmethod
    def of(cls, settings: Settings, *, max_connections: int, other_connections: Callable[[], int] = lambda: 0) -> Self:
        return cls(
            max_connections,
            settings.connections_max_idle_ms / 1000,
            settings.request_head_timeout_ms / 1000,
            settings.request_body_timeout_ms / 1000,
            settings.response_timeout_ms / 1000,
            other_connections,
        )


def http_protocol(
    limits: ConnectionLimits,
    short_requests: ShortRequests | None = None,
    identify: Identify = no_tls,
) -> type["HttpProtocol"]:
    """Return the protocol with ``limits``: uvicorn makes the instances, and cannot pass arguments of ours."""
    members = {"limits": limits, "short_requests": short_requests, "identify": staticmethod(identify)}
    return type("HttpProtocol", (HttpProtocol,), members)


class HttpProtocol(HttpToolsProtocol):
    limits: ClassVar[ConnectionLimits] = ConnectionLimits()
    short_requests: ClassVar[ShortRequests | None] = None
    identify = staticmethod(no_tls)

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        #: The broker at the other end, on a connection between brokers: it relays requests of its clients.
        self.relaying_broker: int | None = None
        #: What the TLS handshake has shown of the client.
        self.identity = PLAINTEXT
        #: True if the client sends nothing more; a response may still reach it.
        self.client_ended = False
        #: True if the connection was cut because the client did not read its response.
        self.was_cut = False
        # The request that arrives has a number, its head or its body is under way, and its bytes so far are counted.
        self._request_number = 0
        self._in_head = False
        self._in_body = False
        self._hosts = 0
        self._head_bytes = 0
        self._head_bytes_at_most = 0
        self._framing_bytes = 0
        self._body_bytes_read = 0
        self._dropped_bytes = 0
        self._unanswered: deque[Any] = deque()
        self._refusal: tuple[HttpError, str] | None = None
        # The bytes of the request on a connection beyond the bound; None on others.
        self._surplus: bytes | None = None
        # The head of a short request, and its body so far. They are given to the application if the body is not whole.
        self._short_head: ShortHead | None = None
        self._short_body = b""
        # While the parser reads them: the bytes that arrived when no request was under way.
        self._received_at_rest = b""
        # The time when the client's next step is due, and the call if it does not come. The timer may ring before.
        self._due: float | None = None
        self._otherwise: Callable[[], None] = self._close
        self._client_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    # ---- bounds in time and number ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self.identity = self.identify(transport)
        except AuthorizationError as error:
            # No answer: the client has not asked anything yet. The log has the reason.
            self._refusal = _FORBIDDEN, error.message
            self.transport.abort()
            return
        surplus = len(self.connections) + self.limits.other_connections() - self.limits.max_connections
        if surplus <= 0 or self.relaying_broker is not None:
            self._expect_within(self.limits.idle_seconds, self._close)
            return
        self._surplus = b""
        if surplus > _SURPLUS_MAX:
            self._refuse_surplus()
        else:
            self._expect_within(_SURPLUS_SECONDS, self._refuse_surplus)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        if self._client_timer is not None:
            self._client_timer.cancel()
        self._stop_answer_timer()
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def _expect_within(self, seconds: float, otherwise: Callable[[], None]) -> None:
        """Wait for the client's next step."""
        self._due = due = self.loop.time() + seconds
        self._otherwise = otherwise
        # A new timer for each request would be work. Instead, a timer that rings too early is set again for the rest of
        # the time.
        if self._client_timer is None or self._client_timer.when() > due:
            self._set_client_timer(due)

    def _set_client_timer(self, due: float) -> None:
        if self._client_timer is not None:
            self._client_timer.cancel()
        self._client_timer = self.loop.call_at(due, self._look_whether_time_is_up)

    def _look_whether_time_is_up(self) -> None:
        self._client_timer = None
        if self._due is None:
            return
        late = self.loop.time() - self._due
        if late < 0:
            self._set_client_timer(self._due)
        elif late > _LATE_SECONDS:
            self._expect_within(_READ_FIRST_SECONDS, self._otherwise)
        else:
            self._due = None
            self._otherwise()

    def _expect_nothing(self) -> None:
        self._due = None

    def _head_timed_out(self) -> None:
        seconds = self.limits.head_seconds
        self._refuse(_TOO_SLOW, f"The request line and headers did not come within {seconds:g} s: send them at once.")

    def _close(self) -> None:
        self.transport.close()
        self._watch_answer()

    # ---- a client that does not take its answer ---------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_answer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_answer_timer()

    def _watch_answer(self) -> None:
        """Cut the connection once the client reads too little of the response."""
        self._stop_answer_timer()
        # A TLS transport does not count the bytes in the transport below it; then the kernel has some of them.
        if not_taken := self._bytes_not_taken():
            self._check_answer_later(None, not_taken)

    def _check_answer_later(self, before: int | None, now: int) -> None:
        self._answer_timer = self.loop.call_later(self.limits.answer_seconds, self._check_answer, before, now)

    def _check_answer(self, two_ago: int | None, one_ago: int) -> None:
        """Cut the connection if the client has not read the bytes of one interval within two.

        Its kernel acknowledges in steps (64 KiB and more), however steadily the client reads.
        """
        now = self._bytes_not_taken()
        if two_ago is not None and two_ago - now < CLIENT_BYTES_PER_SECOND_MIN * self.limits.answer_seconds:
            self.cut()
        else:
            self._check_answer_later(one_ago, now)

    def cut(self) -> None:
        """Close the connection at once, even if part of the response is not read yet."""
        self.was_cut = True
        self.transport.abort()

    def _bytes_not_taken(self) -> int:
        """Return the number of bytes that the client's side has not acknowledged.

        Bytes in the transport alone would not be enough: the kernel accepts more of them only when a third of its
        buffer, megabytes, is free again.
        """
        return self.transport.get_write_buffer_size() + bytes_in_kernel(self.transport.get_extra_info("socket"))

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    # ---- a request arrives ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self._surplus is not None:
            self._surplus += data
            if b"\r\n\r\n" in self._surplus or len(self._surplus) > _SURPLUS_BYTES_MAX:
                self._refuse_surplus()
            return
        at_rest = not (self._in_head or self._in_body or self._unanswered) and len(data) <= WHOLE_BYTES_MAX
        if at_rest and self._begin_known(data):
            return
        self._received_at_rest = data if at_rest else b""
        number = self._request_number
        self._body_bytes_read = 0
        self._head_bytes_at_most = self._head_bytes_at_most + len(data) if self._in_head else len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(
                _MALFORMED, "Malformed HTTP: the request line, the headers or the framing of the body is broken."
            )
        self._received_at_rest = b""
        if self._short_head is not None and self._refusal is None:
            self._begin_application()
        if self._in_head and self._due is None and self._refusal is None:
            self._expect_within(self.limits.head_seconds, self._head_timed_out)
        if number == self._request_number:  # Otherwise most of these bytes may belong to the previous request.
            self._bound_framing(len(data))

    def _bound_framing(self, size: int) -> None:
        """Count ``size`` more bytes of one request."""
        if self._in_head:
            # Count bytes as they arrive: the parser does not report a header before its end, and holds it until then.
            self._head_bytes += size
            if self._head_bytes > HEAD_BYTES_MAX:
                self._refuse_large_head()
        elif self._in_body:
            # Count likewise. Bytes of body make up for framing before them, not for framing to come.
            self._framing_bytes = max(0, self._framing_bytes + size - 2 * self._body_bytes_read)
            if self._framing_bytes > FRAMING_BYTES_MAX:
                self._refuse(
                    _MALFORMED, "Chunk sizes, chunk extensions and trailers are more than the body: send larger chunks."
                )

    def on_message_begin(self) -> None:
        # This does what uvicorn does, except that the scope is made only when an application needs it.
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._request_number += 1
        self._in_head = True
        self._hosts = self._head_bytes = self._framing_bytes = self._dropped_bytes = 0
        self._expect_nothing()

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailers come here as well, after the end of the head. They mean nothing to us, and must not become headers.
        if self._in_head:
            name = name.lower()
            if name == b"host":
                self._hosts += 1
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._expect_nothing()
        if self._head_bytes_at_most > HEAD_BYTES_MAX and self._sum_of_head() > HEAD_BYTES_MAX:
            self._refuse_large_head()
        elif len(self._unanswered) >= PIPELINED_REQUESTS_MAX:
            self._refuse(
                _TOO_MANY_REQUESTS,
                f"{PIPELINED_REQUESTS_MAX} requests of this connection wait for their answers; read those first. "
                "Nothing was stored for this one.",
            )
        elif self._hosts != 1 and self.parser.get_http_version() == "1.1":
            self._refuse(_MALFORMED, "A request of HTTP/1.1 has exactly one Host header.")
        if self._refusal is not None:
            raise ValueError  # The error makes the parser stop.
        if self.parser.should_upgrade():
            return
        self._in_body = True
        self._short_head = self._find_short_head()
        if self._short_head is None:
            self._begin_application()

    def _sum_of_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _begin_application(self) -> None:
        """Leave the request to the application, with the body so far."""
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # The call makes the scope.
        self.url, self.expect_100_continue = url, expects
        self.headers.extend(headers)
        super().on_headers_complete()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]  # an entry of our own
        if self.scope["method"] != "HEAD":  # The response to HEAD has only a head.
            self.cycle.transport = _ResponseWriter(self.transport)  # type: ignore[assignment]  # has all that is used
        self._unanswered.append(self.cycle)
        if self._short_head is not None:
            body, self._short_head, self._short_body = self._short_body, None, b""
            super().on_body(body)

    def on_body(self, body: bytes) -> None:
        if self._short_head is not None:
            self._short_body += body
            self._body_bytes_read += len(body)
            return
        super().on_body(body)
        self._body_bytes_read += len(body)
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > DROPPED_BYTES_MAX:
                self._close()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body = False
        if self._short_head is not None and self._begin_short():
            return
        super().on_message_complete()
        if not self._unanswered:
            self._expect_within(self.limits.idle_seconds, self._close)

    # ---- nothing more arrives ---------------------------------------------------------------------------------------

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle a client that has closed its side: it may have gone, or still wait for its responses.

        Only a response would show which. So requests that were sent whole get one, long polls at once
        (``bodies.client_left``), and the connection is closed after the last response, or at once if there is none.
        """
        self.client_ended = True
        self._expect_nothing()
        if self._refusal is None and self._unanswered and self._in_body and not self._unanswered[-1].response_started:
            self._abandon(self._unanswered.pop())
        for cycle in self._unanswered:
            cycle.message_event.set()
        if self._refusal is None and self._unanswered:
            self._unanswered[-1].keep_alive = False
        # Over TLS the connection ends with either side of it.
        return bool(self._unanswered) and self.transport.can_write_eof()

    # ---- a short one ------------------------------------------------------------------------------------------------

    def _find_short_head(self) -> ShortHead | None:
        if (
            self.short_requests is None
            or self._unanswered
            or self.flow.write_paused
            or self.parser.get_method() != b"POST"
            or self.parser.get_http_version() != "1.1"
            or not self.parser.should_keep_alive()
        ):
            return None
        return self.short_requests.head(self.url, self.headers)

    def _begin_short(self) -> bool:
        """Begin a request that has arrived whole as a short one. Return False if it is left to the application."""
        assert self.short_requests is not None
        assert self._short_head is not None
        if not self._carry_out(self._short_head, self.headers, self._short_body):
            self._begin_application()
            return False
        if self._received_at_rest:
            self.short_requests.remember(self._short_head, self.headers, self._received_at_rest, self._short_body)
        self._short_head, self._short_body = None, b""
        return True

    def _begin_known(self, data: bytes) -> bool:
        """Begin a whole request whose head was parsed before. Return False if nothing was done.

        The parser does not see it, and awaits the next request as before: it would read the same from the same bytes.
        """
        if self.short_requests is None or self.flow.write_paused:
            return False
        found = self.short_requests.known(data)
        if found is None or not self._carry_out(found[0].head, found[0].headers, found[1]):
            return False
        self._due = None
        return True

    def _carry_out(self, head: ShortHead, headers: HeaderPairs, body: bytes) -> bool:
        """Begin a short request, and wait for its answer. Return False if nothing was done."""
        assert self.short_requests is not None
        cycle = _ShortCycle(self)
        peer = self.client[0] if self.client else ""
        if not self.short_requests.begin(head, headers, body, peer, self.identity, cycle.answer):
            return False
        self.cycle = cycle  # type: ignore[assignment]  # has all that is asked of one that is not started
        self._unanswered.append(cycle)
        return True

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
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # uvicorn does the same.
        self.data_received(b"\r\n".join([*lines, b"", rest]))

    # ---- it is answered ---------------------------------------------------------------------------------------------

    def on_response_complete(self) -> None:
        """Do what uvicorn does, but without its timer, because this class has its own timers."""
        if self._unanswered:
            self._unanswered.popleft()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            self._watch_answer()
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self._unanswered:
            pass
        elif self._refusal is not None:
            self._send_refusal()
        elif self._in_body:
            self._expect_within(self.limits.body_seconds, self._close)
        elif not self._in_head:
            self._expect_within(self.limits.idle_seconds, self._close)

    # ---- or refused -------------------------------------------------------------------------------------------------

    def _refuse_large_head(self) -> None:
        self._refuse(_HEAD_TOO_LARGE, f"The request line and headers are over {HEAD_BYTES_MAX} bytes.")

    def _refuse(self, http: HttpError, message: str) -> None:
        """Accept nothing more from this connection, and send the reason once all earlier requests have their
        responses.
        """
        if self._refusal is not None:
            return
        self._refusal = (http, message)
        self._expect_nothing()
        if self._unanswered and self._in_body and not self._unanswered[-1].response_started:
            self._abandon(self._unanswered.pop())
        if not self._unanswered:
            self._send_refusal()

    def _refuse_surplus(self) -> None:
        """Refuse a connection beyond the bound. It does not linger, because it must not hold the file descriptor that
        the bound saves.
        """
        bound = self.limits.max_connections
        self._refusal = _TOO_MANY_CONNECTIONS, f"All {bound} connections are taken (max.connections): try later."
        self._expect_nothing()
        if _wants_nothing_but_events(self._surplus or b""):
            later = later_answer()
            lines = [b"%b: %b\r\n" % header for header in later.raw_headers]
            head = b"".join([STATUS_LINE[later.status_code], *lines, b"connection: close\r\n\r\n"])
            self.transport.write(head + bytes(later.body))
        else:
            self._write_refusal()
        self._close()

    def _abandon(self, cycle: Any) -> None:
        """Notify the application that the client is gone, for a request whose body broke off."""
        self.pipeline = deque(waiting for waiting in self.pipeline if waiting[0] is not cycle)
        cycle.disconnected = True
        cycle.message_event.set()

    def _send_refusal(self) -> None:
        if self.transport.is_closing():
            return
        self._write_refusal()
        # After a close the kernel answers bytes of the client with a reset, which may overtake the refusal. So the
        # connection is closed later.
        if self.transport.can_write_eof():  # TLS has no half-closed connections.
            self.transport.write_eof()
        self._expect_within(_LINGER_SECONDS, self.transport.abort)

    def _write_refusal(self) -> None:
        assert self._refusal is not None
        http, message = self._refusal
        body = error_body(http.error_code, message)
        retry = b"retry-after: 1\r\n" if http.status in (429, 503) else b""
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n%bconnection: close\r\n\r\n"
            % (len(body), new_uuid().hex.encode(), retry)
        )
        self.transport.write(STATUS_LINE[http.status] + head + body)


class _ShortCycle:
    """A replacement for uvicorn's cycle of request and response while a short request is carried out."""

    __slots__ = ("_connection", "disconnected", "keep_alive", "response_complete")

    message_event = asyncio.Event()  # Nobody waits for more of the request.
    response_started = True  # Nothing may replace the response.

    def __init__(self, connection: HttpProtocol) -> None:
        self._connection = connection
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False

    def answer(self, response: Response, request_id: bytes) -> None:
        """Write the response as the application would."""
        connection, transport = self._connection, self._connection.transport
        self.response_complete = True
        if self.disconnected or transport.is_closing():
            return
        lines = [STATUS_LINE[response.status_code]]
        for name, value in (*connection.server_state.default_headers, *response.raw_headers):
            lines += (name, b": ", value, b"\r\n")
        lines += (b"x-request-id: ", request_id, b"\r\n")
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines += (b"\r\n", bytes(response.body))
        transport.write(b"".join(lines))
        if not self.keep_alive:
            transport.close()
        connection.on_response_complete()


class _ResponseWriter:
    """The transport for one response: sends the head, which uvicorn writes separately, together with the first bytes of
    the body.

    Two small writes are two system calls, and two packets that each wake the client.
    """

    __slots__ = ("_head", "_transport", "close", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        # None before uvicorn writes the head, empty once it was sent.
        self._head: bytes | None = None
        self.close = transport.close
        self.is_closing = transport.is_closing

    def write(self, data: Any) -> None:
        if self._head is None and data != _CONTINUE:
            self._head = data
            return
        if self._head:
            if len(data) <= _JOINED_BYTES_MAX:
                data = b"".join((self._head, data))
            else:
                self._transport.write(self._head)
            self._head = b""
        self._transport.write(data)


def _wants_nothing_but_events(received: bytes) -> bool:
    """Return whether the beginning of a request is that of an EventSource."""
    head, end, _ = received.partition(b"\r\n\r\n")
    request, *lines = head.split(b"\r\n")
    method, _, target = request.partition(b" ")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    path = target.partition(b" ")[0].partition(b"?")[0]
    return bool(end) and takes_only_events(method.decode("latin-1"), path.decode("latin-1"), headers)
