"""POST records to a topic or to one of its partitions: the hot path.

A body is read as bytes, decoded to columns (in a worker thread when large) and handed to the broker; responses are also
made from columns.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from ingest_api import operations
from ingest_api.bodies import inflate, receive_body
from ingest_api.content_types import (
    ARROW_STREAM,
    JSON,
    KAFKA_BINARY_V2,
    KAFKA_JSON_V2,
    METADATA_TYPES,
    NDJSON,
    request_coding,
    request_media_type,
    response_media_type,
)
from ingest_api.errors import ParameterError
from ingest_api.guard import context_of
from ingest_api.identity_headers import REPLAYED, Identity, identity_of
from ingest_api.parameters import ACKS, KEY_FORMAT, TIMEOUT_MS, parse_query, partition_in_path, required
from ingest_api.record_responses import BytesResponse, common_error, offsets_of, produced_offsets, produced_ranges
from ingest_api.routes import declared_router, requires
from ingest_api.state import WORKER_THREAD_BYTES_MIN, ApiState, api_state
from ingest_api.topic_ids import topic_ids_of
from logstore.broker.admission import Reservation
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import Forwarding
from logstore.broker.produce.batcher import SMALL_REQUEST_RECORDS_MAX, ToColumns, may_join
from logstore.broker.produce.result import ProduceResult
from logstore.broker.topics.ids import require_topic_id
from logstore.errors import IdempotencyKeyReusedError
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords, Records
from logstore.records.batch_identity import IdempotencyKey
from logstore.records.byte_order_mark import without_byte_order_mark
from logstore.records.decode import ArrowRequest, decode_binary, decode_json, decode_ndjson
from logstore.records.json_decoder import PlainRecords, decode_plain, plain_columns
from logstore.records.native import Spans
from logstore.records.scanned import SmallBody, scan_small, small_columns
from logstore.topic_config import TopicConfig

router = declared_router(tags=["records"])

# An offset per record takes about this many bytes of a response.
_ANSWER_BYTES_PER_RECORD = 64


@dataclass(frozen=True, slots=True)
class _Format:
    """``open(body, max_message_bytes, max_request_size)`` returns the bytes that decoding takes, and the function that
    decodes; ``encode`` makes the response.
    """

    open: Callable[[bytes, int, int], tuple[int, Callable[[], Records]]]
    encode: Callable[[ProduceResult], bytes]
    is_json: bool = False


def _text(decode: Callable[..., DecodedRecords]) -> Callable[[bytes, int, int], tuple[int, Callable[[], Records]]]:
    return lambda body, max_message_bytes, _: (
        len(body),
        functools.partial(decode, without_byte_order_mark(body), max_message_bytes=max_message_bytes),
    )


def _arrow(body: bytes, max_message_bytes: int, max_request_size: int) -> tuple[int, Callable[[], Records]]:
    # Buffers may be compressed: a small body may need much memory.
    request = ArrowRequest(body, max_request_size)
    return request.inflated_bytes, functools.partial(request.decode, max_message_bytes)


_JSON_KEYS = _Format(_text(decode_json), produced_offsets, is_json=True)
_STRING_KEYS = _Format(_text(functools.partial(decode_json, string_keys=True)), produced_offsets, is_json=True)
_FORMATS = {
    KAFKA_JSON_V2: _JSON_KEYS,
    KAFKA_BINARY_V2: _Format(_text(decode_binary), produced_offsets),
    JSON: _JSON_KEYS,
    NDJSON: _Format(_text(decode_ndjson), produced_ranges),
    ARROW_STREAM: _Format(_arrow, produced_ranges),
}


@dataclass(frozen=True, slots=True)
class ProduceHead:
    """The query and headers of a produce request, which determine how to read its body and how to respond."""

    acks: int
    timeout_ms: int
    form: _Format
    coding: str | None
    response_type: str
    media_type: str
    #: The key format that the request asks for; None: the topic's.
    key_format: int | None

    def string_keys(self, config: TopicConfig) -> bool:
        """Return whether JSON strings that are keys are stored as their texts, in a topic with ``config``."""
        return config.string_keys if self.key_format is None else bool(self.key_format)

    @property
    def body_form(self) -> str:
        """The form in which the body is read; part of the identity of an idempotency key."""
        return self.media_type if self.key_format is None else f"{self.media_type} {self.key_format}"

    @property
    def may_join(self) -> bool:
        """True if the request may be appended together with others."""
        return self.form.is_json and self.coding is None and self.acks != 0


# The functions that make columns of small requests, without and with keys as texts. The batcher keeps a queue for each
# object.
_OF_SCANNED: tuple[ToColumns, ToColumns] = (
    functools.partial(small_columns, string_keys=False),
    functools.partial(small_columns, string_keys=True),
)
_OF_PLAIN: tuple[ToColumns, ToColumns] = (plain_columns, functools.partial(plain_columns, string_keys=True))

HEADERS_READ = frozenset((b"content-type", b"content-encoding", b"accept"))
_HEAD_CACHED_BYTES_MAX = 512


def read_head(query_string: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> ProduceHead:
    """Read the query and the headers of HEADERS_READ.

    Raises ParameterError, UnsupportedMediaTypeError, NotAcceptableError.
    """
    query = parse_query(query_string, (ACKS, TIMEOUT_MS, KEY_FORMAT))
    given = Headers(raw=list(headers))
    media_type = request_media_type(given, tuple(_FORMATS))
    form = _FORMATS[media_type]
    response_type = response_media_type(given, METADATA_TYPES)
    coding, key_format = request_coding(given), query[KEY_FORMAT.name]
    if key_format is not None and not form.is_json:
        raise ParameterError("Query parameter key_format is for keys in JSON: leave it out with other formats.")
    return ProduceHead(
        required(query[ACKS.name]),
        required(query[TIMEOUT_MS.name]),
        form,
        coding,
        response_type,
        media_type,
        key_format,
    )


#: The records of a small JSON body, the function that makes columns of them and others, and the most bytes of memory
#: that they hold while they wait for others.
SmallRequest: TypeAlias = tuple[SmallBody | PlainRecords, ToColumns, int]


def decode_small(topic: Topic, partition: int | None, body: bytes, *, string_keys: bool) -> SmallRequest | None:
    """Return a JSON body that may join others, with the ``partition`` of the path. Return None for one that must be
    appended by itself, also for one with any mistake.
    """
    size = len(body)
    if not may_join(topic, size, partition):
        return None
    partitions = (0, len(topic.partitions)) if partition is None else (partition, partition + 1)
    scanned = scan_small(body, _SMALL_SPANS, string_keys=string_keys, partitions=partitions)
    if scanned is not None:
        return scanned, _OF_SCANNED[string_keys], 2 * size
    # Each record has a brace, so a body with too many is recognized without decoding it.
    if body.count(b"{") > SMALL_REQUEST_RECORDS_MAX:
        return None
    plain = decode_plain(body)
    return None if plain is None else (plain, _OF_PLAIN[string_keys], 2 * size + plain.held_bytes)


# Small requests are scanned on the event loop, one at a time, so that they share the memory.
_SMALL_SPANS = Spans(SMALL_REQUEST_RECORDS_MAX, SMALL_REQUEST_RECORDS_MAX)


# Producers send the same heads again and again.
_read_head_again = functools.lru_cache(256)(read_head)


def _head_of(request: Request) -> ProduceHead:
    query_string = request.scope["query_string"]
    headers = tuple([header for header in request.scope["headers"] if header[0] in HEADERS_READ])
    size = len(query_string) + sum(len(value) for _, value in headers)
    return (_read_head_again if size <= _HEAD_CACHED_BYTES_MAX else read_head)(query_string, headers)


@router.post("/topics/{topic}", **operations.PRODUCE)
@requires(Operation.WRITE, ResourceType.TOPIC)
async def produce(request: Request) -> Response:
    """Append records, each to the partition that it names or its key hashes to, else to one for the whole request."""
    return await _produce(request, None)


@router.post("/topics/{topic}/partitions/{partition}", **operations.PRODUCE_TO_PARTITION)
@requires(Operation.WRITE, ResourceType.TOPIC)
async def produce_to_partition(request: Request) -> Response:
    """Append records to one partition."""
    return await _produce(request, partition_in_path(request))


async def _produce(request: Request, partition: int | None) -> Response:
    state, context = api_state(request), context_of(request)
    head = _head_of(request)
    form, coding, acks, timeout_ms = head.form, head.coding, head.acks, head.timeout_ms
    # Refuse before the body is read, where that is possible, so that nothing is sent or held in vain.
    topic = _existing_topic(request)
    if topic is not None and partition is not None:
        topic.partition(partition)
    identify = identity_of(request.scope["headers"], state.broker.idempotency_secret, head.body_form)
    config = topic.config if topic else TopicConfig.parse({}, state.settings.topic_defaults)
    with state.requests.reserve() as reservation:
        body = await receive_body(request, reservation, max_bytes=state.settings.max_request_size)
        # Requests that join may be forwarded. One that may not joins no others, unless this broker leads its partition.
        may_forward = partition is not None or context.forwarding is Forwarding.ALLOWED
        may_be_small = head.may_join and identify is None and may_forward
        string_keys = head.string_keys(config)
        small = decode_small(topic, partition, body, string_keys=string_keys) if may_be_small and topic else None
        if topic is not None and small is not None:
            small_records, to_columns, held_bytes = small
            reservation.resize(held_bytes)
            places = await state.broker.produce.batcher.produce(
                context,
                topic,
                small_records,
                to_columns,
                partition=partition,
                acks=acks,
                num_bytes=len(body),
                timeout_ms=timeout_ms,
            )
            if (error := common_error(places)) is not None:
                raise error
            offsets = offsets_of(places.partitions, places.offsets, places.errors)
            return BytesResponse(offsets, head.response_type)
        if form.is_json and string_keys:
            form = _STRING_KEYS
        # A repeated record may be larger than today's max.message.bytes; only the broker knows whether it is a
        # repetition.
        max_message_bytes = config.max_message_bytes if identify is None else state.settings.max_request_size
        decode = functools.partial(_decode, state, body, reservation, coding)
        records, identity = await decode(form, max_message_bytes, identify)
        may_differ = isinstance(identity, IdempotencyKey) and form.is_json and head.key_format is None
        # The body is not needed during the wait for the disk, unless it may have to be decoded in another form.
        del body
        decode_again = decode if may_differ else None
        del decode
        if topic is None:
            # Create the topic only now, so that a request that is refused leaves none behind.
            topic = await state.broker.topics.changes.find_or_create(
                context, request.path_params["topic"], Operation.WRITE
            )
        produced = state.broker.produce.records.produce(
            context, topic, records, partition=partition, acks=acks, timeout_ms=timeout_ms, identity=identity
        )
        del records  # The broker releases the records as soon as it can.
        try:
            result = await produced
        except IdempotencyKeyReusedError:
            if decode_again is None:
                raise
            # The topic's key.format may have changed since the first try. The key is remembered, so nothing new can be
            # stored.
            other = _JSON_KEYS if form is _STRING_KEYS else _STRING_KEYS
            records, identity = await decode_again(other, max_message_bytes, identify)
            result = await state.broker.produce.records.produce(
                context, topic, records, partition=partition, acks=acks, timeout_ms=timeout_ms, identity=identity
            )
    result.raise_common_error()
    headers = REPLAYED if result.replayed else None
    if acks == 0:
        return Response(form.encode(ProduceResult((), 0)), 202, headers, head.response_type)
    answer = await state.work(result.count * _ANSWER_BYTES_PER_RECORD, lambda: form.encode(result))
    return Response(answer, 200, headers, head.response_type)


async def _decode(
    state: ApiState,
    body: bytes,
    reservation: Reservation,
    coding: str | None,
    form: _Format,
    max_message_bytes: int,
    identify: Callable[[bytes], Identity] | None,
) -> tuple[Records, Identity | None]:
    max_bytes = state.settings.max_request_size

    def open_body() -> tuple[bytes, int, Callable[[], Records]]:
        plain = inflate(body, coding, reservation, max_bytes=max_bytes)
        size, decode = form.open(plain, max_message_bytes, max_bytes)
        reservation.grow(size - len(plain))
        return plain, size, decode

    plain, size, decode = await state.work(len(body) if coding is None else WORKER_THREAD_BYTES_MIN, open_body)
    return await state.work(size, lambda: (decode(), None if identify is None else identify(plain)))


def _existing_topic(request: Request) -> Topic | None:
    """Return the topic; None if it does not exist and has to be created. Raises UnknownTopicError,
    UnknownTopicIdError.
    """
    broker, context, name = api_state(request).broker, context_of(request), request.path_params["topic"]
    topic_ids = topic_ids_of(request)
    if not topic_ids:
        return broker.topics.changes.find(context, name, Operation.WRITE)
    # A request that names a topic id wants that topic and no new one.
    topic = broker.topics.served.topic(context, name, Operation.WRITE)
    for topic_id in topic_ids:
        require_topic_id(topic, topic_id)
    return topic
