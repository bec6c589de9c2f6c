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
from typing import Final

import httptools
from starlette.responses import Response

from ingest_api.guard import CLIENT_ID, REQUEST_ID, Arrival, Guard, HeaderPairs, sane
from ingest_api.identity_headers import IDENTITY_HEADERS
from ingest_api.parameters import partition_number
from ingest_api.record_responses import BytesResponse, common_error, offsets_of
from ingest_api.request_log import error_answer, log_fields, record_response
from ingest_api.routers.produce import HEADERS_READ, decode_small, held_bytes, read_head
from ingest_api.routes import FoundRoute
from ingest_api.state import ApiState
from ingest_api.topic_ids import TOPIC_ID_HEADER
from logstore.broker.admission import Reservation
from logstore.broker.context import INTERNAL, ConnectionIdentity
from logstore.broker.produce.batcher import SMALL_REQUEST_BYTES_MAX, RecordPlaces, ToColumns
from logstore.errors import LogStoreError
from logstore.observability import LOG_FIELDS
from logstore.topic_config import TopicConfig

_PRODUCE: Final = ("/topics/{topic}", "/topics/{topic}/partitions/{partition}")
_LENGTH: Final = b"content-length"
# A request with one of these headers is left to the application, whatever their values.
_NOT_PLAIN: Final = IDENTITY_HEADERS | {
    TOPIC_ID_HEADER,
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
    to_columns: Callable[[TopicConfig], ToColumns]


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

    def head(self, url: bytes, headers: HeaderPairs) -> ShortHead | None:
        """Return the head of a POST of HTTP/1.1; None if the request is not short."""
        told = []
        size = len(url)
        length = b""
        for header in headers:
            name = header[0]
            if name == _LENGTH:
                length = header[1]
            elif name in _HEADERS_READ:
                told.append(header)
                size += len(header[1])
            elif name == REQUEST_ID:
                told.append(_OWN_REQUEST_ID)
        if size > _HEAD_CACHED_BYTES_MAX or not length.isdigit() or not 0 < int(length[:9]) <= SMALL_REQUEST_BYTES_MAX:
            return None
        return self._read_again(url, tuple(told))

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
            found,
            parsed.path.decode("ascii"),
            partition,
            head.acks,
            head.timeout_ms,
            head.response_type,
            client_id,
            has_request_id,
            head.to_columns,
        )

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
            records = decode_small(topic, head.partition, body)
            if records is None:
                return False
            reservation = state.requests.reserve(held_bytes(body, records))
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
                head.to_columns(topic.config),
                partition=head.partition,
                acks=head.acks,
                num_bytes=len(body),
                timeout_ms=head.timeout_ms,
                told=request.told,
            )
        except Exception as error:  # noqa: BLE001 - the client is told of any error
            asyncio.get_running_loop().call_soon(request.told, None, error)
        return True


@dataclass(slots=True)
class _ShortRequest:
    head: ShortHead
    request_id: str
    reservation: Reservation
    began: float
    answer: Callable[[Response, bytes], None]

    def told(self, places: RecordPlaces | None, error: BaseException | None) -> None:
        head = self.head
        self.reservation.release()
        token = LOG_FIELDS.set(log_fields(self.request_id, head.client_id))
        try:
            response: Response
            if places is not None:
                error = common_error(places)
            if places is not None and error is None:
                response = BytesResponse(offsets_of(*places), head.response_type)
            else:
                assert error is not None
                response = error_answer(error, "POST", head.path, self.request_id)
            self.answer(response, self.request_id.encode())
            seconds = time.perf_counter() - self.began
            size = len(response.body)
            record_response(
                "POST", head.found.route.path, head.path, response.status_code, size, head.client_id, seconds
            )
        finally:
            LOG_FIELDS.reset(token)
