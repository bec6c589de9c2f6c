"""Producing in REST v3 shapes: records as JSON objects with typed keys and values, each with its own report.

``.../records`` takes one object or many, one after another in one body, which may continue for as long as the client
likes: reports stream back in order. Memory is bounded by one record and the records of one piece of the body; the next
piece is read when the reports of the last one are sent. ``.../records:batch`` takes entries with ids in one object.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ingest_api import operations
from ingest_api.bodies import inflate, receive_body
from ingest_api.content_types import JSON, request_coding, request_media_type, response_media_type
from ingest_api.errors import (
    ClientDisconnectedError,
    SlowRequestError,
    UnsupportedMediaTypeError,
    http_error,
    shown_message,
)
from ingest_api.guard import context_of
from ingest_api.parameters import parse_query, shown
from ingest_api.routes import declared_router, requires
from ingest_api.state import ApiState, api_state
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.produce.result import NO_OFFSET
from logstore.errors import (
    BrokerNotReadyError,
    InvalidRequestError,
    LogStoreError,
    NoRecordsError,
    RecordTooLargeError,
    UnknownClusterError,
)
from logstore.limits import CLIENT_BYTES_PER_SECOND_MIN, KIB
from logstore.log.topic import Topic
from logstore.protocol.messages.records import ENTRIES_MAX
from logstore.records.typed_json import (
    ObjectSplitter,
    TypedRecord,
    read_entries,
    read_entry,
    read_record,
    typed_columns,
)

router = declared_router(tags=["records"])

#: At most this many records of a stream are appended together; each is a few objects, and a report.
_APPENDED_MAX = 500
#: This many bytes are searched for records at a time.
_PIECE_BYTES = 64 * KIB
_TIMEOUT_MS = 30_000


class _Datum(msgspec.Struct, gc=False):
    type: str
    size: int


class _Report(msgspec.Struct, gc=False, omit_defaults=True):
    """The place of a record. ``timestamp`` is None if the store sets it when it appends: readers of the record see
    it.
    """

    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str | None
    key: _Datum | None
    value: _Datum | None
    error_code: int = 0
    id: str = ""


class _Failure(msgspec.Struct, gc=False, omit_defaults=True):
    error_code: int
    message: str
    id: str = ""


@dataclass(slots=True)
class _Appender:
    """Appends records of a request to its topic; ``topic`` is None while it does not exist."""

    state: ApiState
    context: RequestContext
    name: str
    topic: Topic | None

    @classmethod
    def of(cls, request: Request) -> "_Appender":
        """Return the appender of a request. Raises UnknownClusterError, UnknownTopicError."""
        state, context = api_state(request), context_of(request)
        cluster_id, name = request.path_params["cluster_id"], request.path_params["topic"]
        if cluster_id != state.broker.cluster_id:
            raise UnknownClusterError(
                f"Cluster {shown(cluster_id)} not found: this is {state.broker.cluster_id!r}, as GET /v3/clusters says."
            )
        return cls(state, context, name, state.broker.topics.changes.find(context, name, Operation.WRITE))

    @property
    def string_keys(self) -> bool:
        return self.topic is not None and self.topic.config.string_keys

    async def append(self, records: Sequence[TypedRecord | LogStoreError]) -> list[_Report | _Failure]:
        """Append records, and return a report for each, in order. Records that could not be read are errors."""
        outcomes: list[_Report | LogStoreError] = []
        good: list[TypedRecord] = [record for record in records if isinstance(record, TypedRecord)]
        stored = iter(await self._append(good) if good else ())
        outcomes += [record if isinstance(record, LogStoreError) else next(stored) for record in records]
        return [_failure(outcome) if isinstance(outcome, LogStoreError) else outcome for outcome in outcomes]

    async def _append(self, records: Sequence[TypedRecord]) -> list[_Report | LogStoreError]:
        """Append records. One that cannot be stored does not keep the others from being stored."""
        try:
            if self.topic is None:
                # The topic is created only now, so that a request without a good record leaves no topic behind.
                self.topic = await self.state.broker.topics.changes.find_or_create(
                    self.context, self.name, Operation.WRITE
                )
            topic = self.topic
            largest = topic.config.max_message_bytes
            if any(record.num_bytes > largest for record in records):
                if len(records) > 1:
                    raise RecordTooLargeError("")
                raise RecordTooLargeError(
                    f"The record has {records[0].num_bytes} bytes (key, value and headers), max.message.bytes allows "
                    f"{largest}: send smaller records or raise the topic's max.message.bytes"
                )
            if not topic.config.log_append_time:
                now = self.state.broker.clock.now_ms()
                records = [r if r.timestamp_ms is not None else r._replace(timestamp_ms=now) for r in records]
            result = await self.state.broker.produce.records.produce(
                self.context, topic, typed_columns(records), timeout_ms=_TIMEOUT_MS
            )
        except (InvalidRequestError, RecordTooLargeError) as error:
            if len(records) == 1:
                return [error]
            # Nothing was stored, so each record is appended by itself, in order.
            return [outcome for record in records for outcome in await self._append([record])]
        except LogStoreError as error:
            return [error] * len(records)
        errors, places = result.errors(), result.places()
        return [
            self._report(topic, record, partition, offset) if offset != NO_OFFSET else errors[partition]
            for record, partition, offset in zip(
                records, places.partitions.tolist(), places.offsets.tolist(), strict=True
            )
        ]

    def _report(self, topic: Topic, record: TypedRecord, partition: int, offset: int) -> _Report:
        time_ms = None if topic.config.log_append_time else record.timestamp_ms
        timestamp = None if time_ms is None else f"{np.datetime64(time_ms, 'ms')}Z"
        key, value = _datum(record.key, record.key_type), _datum(record.value, record.value_type)
        return _Report(self.state.broker.cluster_id, topic.name, partition, offset, timestamp, key, value)


def _datum(data: bytes | None, named: str | None) -> _Datum | None:
    return None if named is None else _Datum(named, len(data or b""))


def _failure(error: LogStoreError) -> _Failure:
    return _Failure(http_error(error).error_code, shown_message(error.message))


def _read(
    read: Callable[..., TypedRecord], texts: Sequence[bytes], *, string_keys: bool
) -> list[TypedRecord | LogStoreError]:
    found: list[TypedRecord | LogStoreError] = []
    for text in texts:
        try:
            found.append(read(text, string_keys=string_keys))
        except LogStoreError as error:
            found.append(error)
    return found


# ---- a stream of records --------------------------------------------------------------------------------------------


@router.post("/v3/clusters/{cluster_id}/topics/{topic}/records", **operations.PRODUCE_RECORDS)
@requires(Operation.WRITE, ResourceType.TOPIC)
async def produce_records(request: Request) -> Response:
    """Append records, one JSON object each, one after another in the body. A report of each comes back, in order, as
    soon as the record is durable: with 200 and `error_code` 200, or with the error of this record.
    """
    parse_query(request.scope["query_string"], ())
    request_media_type(request.headers, (JSON,))
    response_media_type(request.headers, (JSON,))
    if request_coding(request.headers) is not None:
        raise UnsupportedMediaTypeError("A stream of records is not compressed: send it as it is, or a records:batch.")
    reports = _reports(request, _Appender.of(request))
    # An error before the first report is the response.
    first = await anext(reports, None)
    if first is None:
        raise NoRecordsError('The body has no record: send {"value": {"type": "JSON", "data": ...}}.')
    return _Reports(first, reports)


class _Reports(Response):
    """The reports as they come. After an error of the stream itself, which is the last report, the rest of the body is
    not read.
    """

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.raw_headers = [(b"content-type", JSON.encode())]
        self._first, self._rest = first, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for reports in self._rest:
                await send({"type": "http.response.body", "body": reports, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._rest.aclose()


async def _reports(request: Request, appender: _Appender) -> AsyncGenerator[bytes]:
    """Yield the reports of the records in each piece of the body, one JSON object a line. Raises an error before the
    first.
    """
    state = appender.state
    splitter = ObjectSplitter(state.settings.max_request_size)
    reported = False
    with state.requests.reserve() as reservation:
        try:
            async for piece in _pieces(request, state):
                texts = splitter.feed(piece)
                # A record is in memory as text, in parts, and in columns.
                reservation.resize(splitter.held_bytes + 3 * sum(map(len, texts)))
                for begin in range(0, len(texts), _APPENDED_MAX):
                    records = _read(read_record, texts[begin : begin + _APPENDED_MAX], string_keys=appender.string_keys)
                    yield _lines(await appender.append(records))
                    reported = True
                if splitter.error is not None:
                    raise splitter.error
            splitter.finish()
            if splitter.error is not None:
                raise splitter.error
        except LogStoreError as error:
            if not reported:
                raise
            yield _lines([_failure(error)])


def _lines(reports: Sequence[_Report | _Failure]) -> bytes:
    for report in reports:
        if isinstance(report, _Report):
            report.error_code = 200
    return b"".join(msgspec.json.encode(report) + b"\n" for report in reports)


async def _pieces(request: Request, state: ApiState) -> AsyncIterator[bytes]:
    """Yield the body as it comes, in pieces of at most ``_PIECE_BYTES``.

    Raises SlowRequestError for a client that sends nothing for ``request.body.timeout.ms``, or less than
    CLIENT_BYTES_PER_SECOND_MIN over that time within one record; BrokerNotReadyError when the server begins to stop;
    ClientDisconnectedError.
    """
    window = state.settings.request_body_timeout_ms / 1000
    stopping = asyncio.create_task(state.stopping.wait())
    receiving: asyncio.Task[dict[str, object]] | None = None
    try:
        loop = asyncio.get_running_loop()
        began, received = loop.time(), 0
        while True:
            receiving = asyncio.create_task(request.receive())  # type: ignore[arg-type]
            await asyncio.wait(
                (receiving, stopping), timeout=began + window - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            if not receiving.done():
                if stopping.done():
                    raise BrokerNotReadyError("The server is shutting down: send the rest again.")
                raise SlowRequestError(
                    f"Nothing, or too little, came for {window:g} s: end the body, or send a record more often."
                )
            message = receiving.result()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk = message.get("body", b"")
            assert isinstance(chunk, bytes)
            received += len(chunk)
            before = loop.time()
            for begin in range(0, len(chunk), _PIECE_BYTES):
                yield chunk[begin : begin + _PIECE_BYTES]
            if not message.get("more_body", False):
                return
            # The time in which the records were appended does not count against the client.
            began += loop.time() - before
            if received >= CLIENT_BYTES_PER_SECOND_MIN * window or b"}" in chunk:
                began, received = loop.time(), 0
    finally:
        for task in (stopping, receiving):
            if task is not None:
                task.cancel()


# ---- a batch --------------------------------------------------------------------------------------------------------


@router.post(
    "/v3/clusters/{cluster_id}/topics/{topic}/records:batch", status_code=207, **operations.PRODUCE_RECORDS_BATCH
)
@requires(Operation.WRITE, ResourceType.TOPIC)
async def produce_records_batch(request: Request) -> Response:
    """Append the records of a list of entries. The response has the places of those that are stored, and the errors of
    all others, by the ids of the entries.
    """
    parse_query(request.scope["query_string"], ())
    request_media_type(request.headers, (JSON,))
    response_media_type(request.headers, (JSON,))
    coding = request_coding(request.headers)
    appender = _Appender.of(request)
    state = appender.state
    largest = state.settings.max_request_size
    with state.requests.reserve() as reservation:
        body = await receive_body(request, reservation, max_bytes=largest)
        body = inflate(body, coding, reservation, max_bytes=largest)
        reservation.resize(3 * len(body))
        entries = read_entries(body)
        if not 1 <= len(entries) <= ENTRIES_MAX:
            raise InvalidRequestError(f"A batch has 1 to {ENTRIES_MAX} entries, this one has {len(entries)}.")
        texts = [text for _, text in entries]
        outcomes = await appender.append(_read(read_entry, texts, string_keys=appender.string_keys))
    for (entry_id, _), outcome in zip(entries, outcomes, strict=True):
        outcome.id = entry_id
    answer = {
        "successes": [outcome for outcome in outcomes if isinstance(outcome, _Report)],
        "failures": [outcome for outcome in outcomes if isinstance(outcome, _Failure)],
    }
    return Response(msgspec.json.encode(answer), 207, media_type=JSON)
