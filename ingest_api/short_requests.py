"""Small produce requests without an application around them.

The work around any request (a task, a scope, messages to and fro, a response) takes several times as long as to append
one record together with others. A request is short if it is a POST of a few plain JSON records to a topic, or to a
partition that this broker leads, and has arrived as a whole when its head is read. Invariants: its response is that of
the application, to the byte; a request that is not plain (by its head or body, or because a bound is reached) is left
to the application, which then finds it untouched.
"""

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import httptools
import msgspec
from starlette.responses import Response

from ingest_api.guard import CLIENT_ID, FORWARD, REQUEST_ID, Arrival, Guard, HeaderPairs, sane
from ingest_api.identity_headers import IDENTITY_HEADERS
from ingest_api.parameters import partition_number
from ingest_api.record_responses import BytesResponse, common_error, offsets_of
from ingest_api.request_log import error_answer, record_response
from ingest_api.routers.produce import HEADERS_READ, decode_small, read_head
from ingest_api.routes import FoundRoute
from ingest_api.state import ApiState
from ingest_api.topic_ids import TOPIC_ID_HEADER
from logstore.broker.admission import Reservation
from logstore.broker.context import INTERNAL, ConnectionIdentity
from logstore.broker.produce.batcher import SMALL_REQUEST_BYTES_MAX, RecordPlaces
from logstore.errors import LogStoreError
from logstore.topic_config import TopicConfig

_PRODUCE: Final = ("/topics/{topic}", "/topics/{topic}/partitions/{partition}")
_LENGTH: Final = b"content-length"
_HEAD_END: Final = b"\r\n\r\n"
# A request with one of these headers is left to the application, whatever their values.
_NOT_PLAIN: Final = IDENTITY_HEADERS | {
    TOPIC_ID_HEADER,
    FORWARD,
    b"transfer-encoding",
    b"content-encoding",
    b"expect",
    b"upgrade",
}
_HEADERS_READ: Final = HEADERS_READ | _NOT_PLAIN | {CLIENT_ID}
#: The mark of a client's own request id among the headers that were read: its value differs with each request.
_OWN_REQUEST_ID: Final = (REQUEST_ID, b"")
_HEADS_CACHED: Final = 256
_HEAD_CACHED_BYTES_MAX: Final = 512
_KNOWN_HEAD_BYTES_MAX: Final = 1024
#: A longer request is not looked up by the bytes of its head.
WHOLE_BYTES_MAX: Final = _KNOWN_HEAD_BYTES_MAX + len(_HEAD_END) + SMALL_REQUEST_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ShortHead:
    """The head of a short request, which many requests share."""

    found: FoundRoute
    path: str
    #: The partition in the path.
    partition: int | None
    acks: int
    timeout_ms: int
    response_type: str
    client_id: str
    has_request_id: bool
    string_keys: Callable[[TopicConfig], bool]


class KnownHead(NamedTuple):
    """A head as the parser has read it: all that the guard is given. ``length`` is that of the body."""

    head: ShortHead
    headers: HeaderPairs
    length: int


class ShortRequests:
    """``find_route(method, raw_path)`` is that of the application."""

    def __init__(
        self,
        find_route: Callable[[str, bytes], FoundRoute | None],
        guard: Guard,
    ) -> None:
        #: None while the store starts.
        self.state: ApiState | None = None
        self._find_route = find_route
        self._guard = guard
        self._read_again = functools.lru_cache(_HEADS_CACHED)(self._read)
        # By the bytes of a head, the oldest first.
        self._known: dict[bytes, KnownHead] = {}

    def head(self, url: bytes, headers: HeaderPairs) -> ShortHead | None:
        """Return the head of a POST of HTTP/1.1; None if the request is not short."""
        read = []
        size = len(url)
        length = b""
        for header in headers:
            name = header[0]
            if name == _LENGTH:
                length = header[1]
            elif name in _HEADERS_READ:
                read.append(header)
                size += len(header[1])
            elif name == REQUEST_ID:
                read.append(_OWN_REQUEST_ID)
        if size > _HEAD_CACHED_BYTES_MAX or not length.isdigit() or not 0 < int(length[:9]) <= SMALL_REQUEST_BYTES_MAX:
            return None
        return self._read_again(url, tuple(read))

    def _read(self, url: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> ShortHead | None:
        if any(name in _NOT_PLAIN for name, _ in headers):
            return None
        parsed = httptools.parse_url(url)
        found = self._find_route("POST", parsed.path)
        if found is None or found.route.path not in _PRODUCE:
            return None
        number = found.path_parameters.get("partition")
        try:
            partition = None if number is None else partition_number(number)
            head = read_head(parsed.query or b"", tuple(header for header in headers if header[0] in HEADERS_READ))
        except LogStoreError:
            return None
        if not head.may_join:
            return None
        client_id = sane(headers, CLIENT_ID)
        has_request_id = _OWN_REQUEST_ID in headers
        return ShortHead(
            # The batcher asks for the permission to write the topic, in the same step as the guard.
            found._replace(names=()),
            parsed.path.decode("ascii"),
            partition,
            head.acks,
            head.timeout_ms,
            head.response_type,
            client_id,
            has_request_id,
            head.string_keys,
        )

    def known(self, data: bytes) -> tuple[KnownHead, bytes] | None:
        """Return the head and the body of a whole request whose head was remembered; else None."""
        head, _, body = data.partition(_HEAD_END)
        known = self._known.get(head)
        return (known, body) if known is not None and len(body) == known.length else None

    def remember(self, head: ShortHead, headers: HeaderPairs, data: bytes, body: bytes) -> None:
        """Remember a head, so that a request that begins with the same bytes is not parsed.

        ``data`` was received while the parser awaited a request, and it was one request with this head and ``body``.
        Producers send the same heads again and again, unless a head has an id of its own.
        """
        sent, _, rest = data.partition(_HEAD_END)
        if head.has_request_id or rest != body or len(sent) > _KNOWN_HEAD_BYTES_MAX:
            return
        if len(self._known) == _HEADS_CACHED:
            del self._known[next(iter(self._known))]
        self._known[sent] = KnownHead(head, tuple(headers), len(body))

    def begin(
        self,
        head: ShortHead,
        headers: HeaderPairs,
        body: bytes,
        peer: str,
        identity: ConnectionIdentity,
        answer: Callable[[Response, bytes], None],
    ) -> bool:
        """Begin the request. Return True if ``answer`` will be called, with a response and the request's id; False if
        nothing was done.

        ``peer`` is the address that the request came from, ``identity`` that of its connection.
        """
        state = self.state
        if state is None:
            return False
        try:
            # INTERNAL is enough, because the client learns nothing here: its permission is checked below.
            topic = state.broker.topics.served.topic(INTERNAL, head.found.path_parameters["topic"])
            small = decode_small(topic, head.partition, body, string_keys=head.string_keys(topic.config))
            if small is None:
                return False
            records, to_columns, held_bytes = small
            reservation = state.requests.reserve(held_bytes)
        except LogStoreError:
            return False
        request_id = self._guard.request_id_of(headers) if head.has_request_id else self._guard.new_request_id()
        arrival = Arrival("POST", request_id, head.client_id, peer, headers, identity=identity)
        request = _ShortRequest(head, arrival.request_id, reservation, time.perf_counter(), answer)
        try:
            # The guard comes last, so that a request that is left to the application is checked and counted only there.
            context = self._guard.admit(arrival, head.found)
            state.broker.produce.batcher.begin(
                context,
                topic,
                records,
                to_columns,
                partition=head.partition,
                acks=head.acks,
                num_bytes=len(body),
                timeout_ms=head.timeout_ms,
                callback=request.on_produced,
            )
        except Exception as error:  # noqa: BLE001 - the client is told of any error
            asyncio.get_running_loop().call_soon(request.on_produced, None, error)
        return True


class _ShortRequest(msgspec.Struct):
    head: ShortHead
    request_id: str
    reservation: Reservation
    began: float
    answer: Callable[[Response, bytes], None]

    def on_produced(self, places: RecordPlaces | None, error: BaseException | None) -> None:
        head = self.head
        self.reservation.release()
        response: Response
        if places is not None and (not places.errors or (error := common_error(places)) is None):
            offsets = offsets_of(places.partitions, places.offsets, places.errors)
            response = BytesResponse(offsets, head.response_type)
        else:
            assert error is not None
            response = error_answer(error, "POST", head.path, self.request_id, head.client_id)
        self.answer(response, self.request_id.encode())
        record_response(
            "POST",
            head.found.route.path,
            head.path,
            response.status_code,
            len(response.body),
            self.request_id,
            head.client_id,
            time.perf_counter() - self.began,
        )
