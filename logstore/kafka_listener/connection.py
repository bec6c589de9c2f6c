"""One connection of a Kafka client: it reads requests, and sends the responses in the order of the requests.

A connection is ready at once, because only TLS authenticates clients. Requests are begun as they arrive, up to a
bound; each has a task, except the fetch of an idle consumer while it waits (``idle_fetch``). Two kinds take turns:

- Produce requests are appended one after the other; their acknowledgements are awaited together.
- After a Fetch nothing is begun until its response is sent: a client that pipelines fetches without reading holds no
  more than one response.

The bounds keep every client from holding memory or a connection for long. In bytes: a frame; the requests in hand of
all connections (``admission.requests``), whose room is reserved before a long frame arrives. In number: requests in
hand. In time (``look``, called regularly): an idle connection, a request that does not arrive, a response that is not
read. Without room, over a quota, or while the client does not read its responses, nothing is read from the socket.
"""

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import msgspec
import structlog
from prometheus_client import Counter, Histogram

from logstore.broker.admission import InFlightBytes, Reservation
from logstore.broker.context import PLAINTEXT, Forwarding, RequestContext
from logstore.errors import (
    AuthorizationError,
    LogStoreError,
    MalformedMessageError,
    ThrottledError,
    UnsupportedVersionError,
)
from logstore.filesystem import Buffer
from logstore.kafka_listener.dispatch import FETCH, PRODUCE, WAITING, Response, response_to, response_to_idle_fetch
from logstore.kafka_listener.fetch_sessions import Fetching
from logstore.kafka_listener.http_refusal import HTTP_REFUSAL
from logstore.kafka_listener.idle_fetch import IdleFetch
from logstore.kafka_listener.listening import Listener
from logstore.kafka_listener.produce import Turn
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.frame_reader import FrameReader
from logstore.kafka_protocol.requests import Request, read_request
from logstore.limits import CLIENT_BYTES_PER_SECOND_MIN, KIB
from logstore.listening_sockets import bytes_in_kernel
from logstore.observability import KAFKA_REQUEST_SECONDS, KAFKA_REQUESTS, LOG_FIELDS, client_label

log = structlog.stdlib.get_logger(__name__)
_logger = logging.getLogger(__name__)

#: The most requests of a connection that wait for their responses; further ones are not read.
REQUESTS_IN_HAND_MAX: Final = 64
#: The name of the listener in a request's context.
LISTENER: Final = "KAFKA"
# The objects of a decoded message take this many times the bytes of its frame; records stay in the frame.
_OBJECTS_A_BYTE: Final = 8
# In each interval this part of a long frame must arrive: its room is held meanwhile.
_FRAME_PARTS: Final = 8
# A client has this long to read the last responses of a connection that ends.
_LINGER_SECONDS: Final = 10.0
# Two writes cost less than a copy of more bytes.
_JOINED_BYTES_MAX: Final = 16 * KIB
_CLIENT_ID_LENGTH_MAX: Final = 128
_SHORT_BYTES_MAX: Final = 4 * KIB
# Larger requests, without records, are decoded one at a time, so that others get their responses in between.
_AT_ONCE_BYTES_MAX: Final = 64 * KIB


class _InHand:
    """A request in hand, its room among the bytes in flight, and its response once it exists."""

    __slots__ = ("api_key", "began", "ends", "is_decoded", "response", "room", "task")

    def __init__(self, api_key: int, room: Reservation, *, is_decoded: bool) -> None:
        self.began = time.perf_counter()
        self.api_key = api_key
        self.room = room
        self.is_decoded = is_decoded
        self.task: asyncio.Task[None] | None = None
        self.response: Response | None = None
        #: True if the connection ends here, instead of a response.
        self.ends = False

    @property
    def is_done(self) -> bool:
        return self.response is not None or self.ends


class Connection(asyncio.BufferedProtocol):
    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._store = listener.store
        self._limits = listener.limits
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._name = listener.new_name()
        self.peer = ""
        self._identity = PLAINTEXT
        self._reader = FrameReader(self._limits.request_bytes_max)
        self._in_hand: deque[_InHand] = deque()
        self._turn = Turn()
        # The fetch that waits without a task.
        self._idle_fetch: IdleFetch | None = None
        self._waiting: tuple[_InHand, Request, RequestContext] | None = None
        # A whole frame that cannot be begun yet.
        self._next_frame: Buffer | None = None
        # The room of the frame that arrives or waits, and the wait for this room.
        self._room: Reservation | None = None
        self._wait_for_room: asyncio.Future[bool] | None = None
        # The timer for the end of a pause.
        self._throttle: asyncio.TimerHandle | None = None
        self._is_reading = True
        self._can_write = True
        # Callbacks that release what responses hold which the client has not read yet.
        self._releases: list[Callable[[], None]] = []
        # If true, no more requests are begun, and the connection closes after those in hand.
        self._is_ending = False
        self._closed_at: float | None = None
        # These fields are for ``look``.
        self._active_at = self._loop.time()
        self._received = 0
        self._frames = 0
        self._arriving: tuple[float, int, int] | None = None
        self._untaken: list[tuple[float, int]] = []

    @property
    def _bytes_in_flight(self) -> InFlightBytes:
        return self._store.broker.admission.requests

    # ---- the loop's -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a class of asyncio.
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if peer else ""
        is_welcome = self._listener.arrived(self)
        try:
            self._identity = self._listener.identify(transport)
        except AuthorizationError:
            is_welcome = False
        if not is_welcome:
            self._is_ending = True
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._received += nbytes
        self._active_at = self._loop.time()
        self._reader.received(nbytes)
        if not self._is_ending:
            self._begin_requests()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._untaken.clear()
        self._release_taken()
        self._send_responses()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Cancel the handlers, except those that append: their records may be on disk."""
        self._is_ending = True
        self._end_wait()
        self._idle_fetch = None
        for one in self._in_hand:
            if one.response is not None and one.response.release is not None:
                one.response.release()
            elif one.task is not None and one.api_key != PRODUCE:
                one.task.cancel()
        self._in_hand.clear()
        self._release_taken()
        if self._wait_for_room is not None:
            wait, self._wait_for_room = self._wait_for_room, None
            self._bytes_in_flight.wait_no_more(wait)
        self._give_room_back()
        self._listener.gone(self)

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _begin_requests(self) -> None:
        """Begin the requests that have arrived, as far as the bounds allow."""
        while not self._is_ending:
            frame = self._next_frame
            if frame is None:
                try:
                    frame = self._reader.next_frame()
                except MalformedMessageError as error:
                    if self._reader.other_protocol == "HTTP" and not self._frames:
                        assert self._transport is not None
                        self._transport.write(HTTP_REFUSAL)
                    self._end(error.message)
                    break
                if frame is None:
                    if size := self._reader.long_frame_bytes:
                        self._has_room(size)
                    break
                self._frames += 1
            if not self._may_begin or not self._has_room(_held_bytes(frame)):
                self._next_frame = frame
                break
            self._next_frame = None
            self._begin(frame)
        self._read_or_not()

    @property
    def _may_begin(self) -> bool:
        in_hand = self._in_hand
        return (
            self._can_write
            and self._throttle is None
            and len(in_hand) < REQUESTS_IN_HAND_MAX
            and not (in_hand and (in_hand[-1].api_key == FETCH or not in_hand[-1].is_decoded))
        )

    def _read_or_not(self) -> None:
        reads = (
            self._next_frame is None and self._wait_for_room is None and self._throttle is None and not self._is_ending
        )
        if reads == self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = reads
        if reads:
            self._arriving = None
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _has_room(self, size: int) -> bool:
        """Return whether the frame that arrives, or waits, has room for ``size`` bytes; if not, wait for it."""
        if self._wait_for_room is not None:
            return False
        if self._room is None:
            self._room = self._bytes_in_flight.reserve()
        missing = size - self._room.size
        try:
            self._room.grow(missing)
        except ThrottledError:
            self._wait_for_room = wait = self._bytes_in_flight.wait_for_room(missing)
            wait.add_done_callback(self._room_came)
            return False
        return True

    def _room_came(self, wait: "asyncio.Future[bool]") -> None:
        if self._wait_for_room is not wait:
            return
        self._wait_for_room = None
        self._begin_requests()
        self._bytes_in_flight.wait_no_more(wait)

    def _give_room_back(self) -> None:
        if self._room is not None:
            self._room.release()
            self._room = None

    def _begin(self, frame: Buffer) -> None:
        room, self._room = self._room, None
        assert room is not None
        if len(frame) > _AT_ONCE_BYTES_MAX and not _is_produce(frame):
            one = _InHand(int.from_bytes(frame[:2], "big"), room, is_decoded=False)
            self._in_hand.append(one)
            self._run(one, self._answer_long(frame, one))
            return
        try:
            request = read_request(frame)
        except (MalformedMessageError, UnsupportedVersionError) as error:
            room.release()
            self._end(error.message)
            return
        one = _InHand(request.api_key, room, is_decoded=True)
        self._in_hand.append(one)
        context = self._context_of(request)
        if request.api_key != FETCH or not self._waits(one, request, context):
            self._run(one, self._answer(request, one, context))

    def _waits(self, one: _InHand, request: Request, context: RequestContext) -> bool:
        """Return whether the fetch waits for something new, without a task."""
        if self._idle_fetch is None:
            self._idle_fetch = IdleFetch(self._store, self._wait_ended)
        if not self._idle_fetch.begin(request.message, request.api_version, context):
            return False
        self._waiting = one, request, context
        return True

    def _wait_ended(self, fetching: Fetching, has_news: bool) -> None:
        assert self._idle_fetch is not None
        assert self._waiting is not None
        (one, request, context), self._waiting = self._waiting, None
        if has_news:
            left = msgspec.structs.replace(request.message, max_wait_ms=self._idle_fetch.ms_left)
            self._run(one, self._answer(msgspec.structs.replace(request, message=left), one, context, fetching))
            return
        LOG_FIELDS.set(_log_fields(context))
        try:
            one.response = response_to_idle_fetch(self._store, context, request, fetching)
        except Exception as error:
            log.error("kafka.unexpected_error", api=APIS[FETCH].name, exc_info=error)
        finally:
            self._ended(one)
        self._count(request, one, context.client_id)

    def _end_wait(self) -> None:
        """End a wait for something new; the fetch gets no response."""
        if self._waiting is not None:
            assert self._idle_fetch is not None
            self._idle_fetch.cancel()
            (one, _, _), self._waiting = self._waiting, None
            one.room.release()
            one.ends = True

    def _run(self, one: _InHand, work: Coroutine[Any, Any, None]) -> None:
        one.task = self._listener.run(work)
        one.task.add_done_callback(functools.partial(self._task_ended, one))

    def _task_ended(self, one: _InHand, _: "asyncio.Task[None]") -> None:
        if not one.is_done:  # The task was cancelled before its first step.
            self._ended(one)

    async def _answer_long(self, frame: Buffer, one: _InHand) -> None:
        """Read a long request and respond. Nothing is begun after it before it is known to be readable."""
        try:
            async with self._store.long_requests:
                request = read_request(frame)
        except (MalformedMessageError, UnsupportedVersionError) as error:
            self._end(error.message)
            return
        one.is_decoded = True
        self._begin_requests()
        await self._answer(request, one, self._context_of(request))

    def _context_of(self, request: Request) -> RequestContext:
        return RequestContext(
            f"{self._name}-{request.correlation_id}",
            _fit_for_a_log(request.client_id),
            LISTENER,
            self.peer,
            self._identity.tls,
            self._identity.principal,
            Forwarding.REFUSED,
        )

    async def _answer(
        self, request: Request, one: _InHand, context: RequestContext, fetching: Fetching | None = None
    ) -> None:
        LOG_FIELDS.set(_log_fields(context))
        try:
            one.response = await response_to(self._store, context, request, self._turn, fetching)
        except LogStoreError as error:
            self._log_end(error.message, request)
        except Exception as error:
            log.error("kafka.unexpected_error", api=APIS[request.api_key].name, exc_info=error)
        finally:
            self._ended(one)
        self._count(request, one, context.client_id)

    @staticmethod
    def _count(request: Request, one: _InHand, client_id: str) -> None:
        seconds = time.perf_counter() - one.began
        api = APIS[request.api_key].name
        _requests(api, client_label(client_id)).inc()
        _request_seconds(api).observe(seconds)
        if _logger.isEnabledFor(logging.DEBUG):
            log.debug("kafka.answered", api=api, version=request.api_version, milliseconds=round(seconds * 1000, 3))

    # ---- responses --------------------------------------------------------------------------------------------------

    def _ended(self, one: _InHand) -> None:
        one.room.release()
        if one.response is None:  # The request was refused, failed or cancelled.
            one.ends = True
        self._answered(one)

    def _answered(self, one: _InHand) -> None:
        if self._transport is None or self._transport.is_closing():
            if one.response is not None and one.response.release is not None:
                one.response.release()
                one.response = None
            return
        if one.response is not None and one.response.throttle_ms > 0:
            self._pause(one.response.throttle_ms)
        self._send_responses()

    def _send_responses(self) -> None:
        """Send the responses that are due, in the order of the requests; then begin the requests that waited for
        them.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        in_hand = self._in_hand
        while in_hand and self._can_write and in_hand[0].is_done:
            one = in_hand.popleft()
            if one.response is None:
                self._close()
                return
            if one.response.release is not None:
                self._releases.append(one.response.release)
            if buffers := one.response.buffers:
                self._active_at = self._loop.time()
                if len(buffers) == 1:
                    transport.write(buffers[0])
                elif sum(map(len, buffers)) <= _JOINED_BYTES_MAX:
                    transport.write(b"".join(buffers))
                else:
                    transport.writelines(buffers)
        if self._can_write:
            self._release_taken()
        if not self._is_ending:
            self._begin_requests()
        elif not in_hand:
            self._close()

    def _release_taken(self) -> None:
        releases, self._releases = self._releases, []
        for release in releases:
            release()

    def _pause(self, milliseconds: int) -> None:
        """Read nothing for this time: a client that does not wait gains nothing (KIP-219)."""
        until = self._loop.time() + milliseconds / 1000
        if self._throttle is not None:
            if self._throttle.when() >= until:
                return
            self._throttle.cancel()
        self._throttle = self._loop.call_at(until, self._end_throttle)

    def _end_throttle(self) -> None:
        self._throttle = None
        if self._transport is not None and not self._is_ending:
            self._begin_requests()

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _log_end(self, reason: str, request: Request | None = None) -> None:
        api = (
            {}
            if request is None
            else {"api": APIS[request.api_key].name, "client_id": _fit_for_a_log(request.client_id)}
        )
        self._listener.ended.add(peer=self.peer, reason=reason, **api)

    def _end(self, reason: str) -> None:
        """Read nothing more, log the reason, and close after the responses to earlier requests."""
        self._log_end(reason)
        self._stop_taking()

    def _stop_taking(self) -> None:
        self._is_ending = True
        self._next_frame = None
        self._give_room_back()
        self._read_or_not()
        if not self._in_hand:
            self._close()

    def _close(self) -> None:
        assert self._transport is not None
        self._is_ending = True
        if self._closed_at is None:
            self._closed_at = self._loop.time()
            self._transport.close()

    def stop(self) -> None:
        """Take no more requests, end long waits, and close after the responses to the others."""
        if not self._is_ending:
            self._stop_taking()
        for one in self._in_hand:
            if one.api_key in WAITING and one.task is not None:
                one.task.cancel()
        if self._waiting is not None:
            self._end_wait()
            self._send_responses()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- bounds in time ---------------------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Cut the connection if its client is too slow."""
        if self._closed_at is not None:
            if now - self._closed_at > _LINGER_SECONDS:
                self.abort()
        elif not self._can_write:
            self._look_at_response(now)
        elif self._in_hand or not self._is_reading:
            self._arriving = None
        elif self._reader.is_within_frame:
            self._look_at_request(now)
        elif now - self._active_at > self._limits.idle_seconds:
            self._stop_taking()

    def _look_at_request(self, now: float) -> None:
        """End the connection unless each interval brings 1 KiB a second, and for a long request at least its part, or
        the end.
        """
        if self._arriving is None or self._arriving[2] != self._frames:
            self._arriving = (now, self._received, self._frames)
            return
        began, received, _ = self._arriving
        seconds = self._limits.request_seconds
        if now - began < seconds:
            return
        expected = max(CLIENT_BYTES_PER_SECOND_MIN * seconds, self._reader.long_frame_bytes / _FRAME_PARTS)
        if self._received - received < expected:
            self._end(f"A request did not arrive: {self._received - received} bytes of it in {now - began:.0f} s")
        else:
            self._arriving = (now, self._received, self._frames)

    def _look_at_response(self, now: float) -> None:
        """Cut the connection if the client has not read the bytes of one interval within two, as over HTTP: its kernel
        acknowledges in steps.
        """
        seconds = self._limits.answer_seconds
        if self._untaken and now - self._untaken[-1][0] < seconds:
            return
        assert self._transport is not None
        size = self._transport.get_write_buffer_size() + bytes_in_kernel(self._transport.get_extra_info("socket"))
        self._untaken.append((now, size))
        if len(self._untaken) > 2:
            (_, before), *_ = self._untaken
            if before - size < CLIENT_BYTES_PER_SECOND_MIN * seconds:
                self._log_end(f"The client does not read its response: {size} bytes wait")
                self.abort()
            del self._untaken[0]


def _held_bytes(frame: Buffer) -> int:
    """Return the memory of a request: records stay in its frame, and everything else is decoded. Short requests without
    records need no room, because heartbeats of groups must not wait for producers.
    """
    size = len(frame)
    if _is_produce(frame):
        return size
    return size * _OBJECTS_A_BYTE if size > _SHORT_BYTES_MAX else 0


def _is_produce(frame: Buffer) -> bool:
    return len(frame) >= 2 and frame[0] == 0 and frame[1] == PRODUCE


@functools.lru_cache(4096)
def _requests(api: str, client: str) -> Counter:
    return KAFKA_REQUESTS.labels(api, client)


@functools.cache
def _request_seconds(api: str) -> Histogram:
    return KAFKA_REQUEST_SECONDS.labels(api)


def _log_fields(context: RequestContext) -> dict[str, str]:
    return {"request_id": context.request_id, "client_id": context.client_id, "peer": context.peer}


def _fit_for_a_log(client_id: str | None) -> str:
    if client_id is None or len(client_id) > _CLIENT_ID_LENGTH_MAX or not client_id.isprintable():
        return ""
    return client_id
