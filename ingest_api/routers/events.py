"""Records of a topic as Server-Sent Events, as they become readable."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingest_api import operations
from ingest_api.content_types import response_media_type
from ingest_api.errors import EVENT_STREAM, ParameterError
from ingest_api.event_chunks import Form, Reading
from ingest_api.event_position import LAST_EVENT_ID, StreamPartition, parse_position
from ingest_api.event_stream import EventStream, EventStreamResponse
from ingest_api.guard import context_of
from ingest_api.parameters import (
    EVENT_FORMAT,
    FROM,
    ISOLATION_LEVEL,
    KEY,
    KEY_FORMAT,
    PARTITION,
    ChoiceParameter,
    partition_number,
    query_texts,
    shown,
)
from ingest_api.routes import declared_router, requires
from ingest_api.state import api_state
from ingest_api.topic_ids import topic_id_headers, topic_to_consume
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.elsewhere.partition_offsets import OffsetsElsewhere, PartitionOffsets
from logstore.broker.topics.ids import topic_id_text
from logstore.errors import InvalidRequestError
from logstore.log.isolation import Isolation
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records import surrogates

router = declared_router(tags=["records"])

# Every event's id names all partitions, and has to fit into a header.
_PARTITIONS_MAX: Final = 256
_JSON_TEXT: Final = msgspec.json.Decoder(msgspec.Raw)
_QUERY: Final = (FROM, PARTITION, KEY, KEY_FORMAT, EVENT_FORMAT, ISOLATION_LEVEL)


@router.get("/topics/{topic}/events", **operations.EVENTS)
@requires(Operation.READ, ResourceType.TOPIC)
async def events(request: Request) -> Response:
    """Send records as they become readable, until the client closes the connection."""
    state = api_state(request)
    query = query_texts(request.scope["query_string"], [parameter.name for parameter in _QUERY])
    form = (Form.JSON, Form.BINARY)[_chosen(EVENT_FORMAT, query)]
    isolation = Isolation(_chosen(ISOLATION_LEVEL, query))
    context = context_of(request)
    response_media_type(request.headers, (EVENT_STREAM,))
    json_key, string_key = _keys(query, form)
    numbers = _numbers(query.get(PARTITION.name))
    topic = await topic_to_consume(context, request, state.broker, max(numbers or [0]))
    key = string_key if topic.config.string_keys else json_key
    selection = TopicSelection(topic, numbers)
    reading = Reading(selection.partitions(), form, isolation)
    elsewhere = await state.broker.elsewhere.offsets([selection.log_of(one) for one in selection.partitions()])
    starts = _starts(request, query.get(FROM.name), selection, isolation, elsewhere)
    offsets = tuple(starts[one] for one in reading.partitions)
    state.events.open()
    keepalive_s = state.settings.event_stream_keepalive_ms / 1000
    stream = EventStream(state.events, context, selection, reading, offsets, key=key, keepalive_s=keepalive_s)
    return EventStreamResponse(request, state.events, stream, topic_id_headers(request.scope))


class TopicSelection:
    """The given partitions of a topic; for None all partitions, also those that are added later."""

    def __init__(self, topic: Topic, numbers: Sequence[int] | None) -> None:
        self._topic = topic
        self._grows = numbers is None
        for number in numbers or ():
            topic.partition(number)
        self._selected = self._of(range(len(topic.partitions)) if numbers is None else numbers)

    def partitions(self) -> tuple[StreamPartition, ...]:
        """Return the partitions. Raises InvalidRequestError if there are too many by now."""
        if self._grows and len(self._topic.partitions) > len(self._selected):
            self._selected = self._of(range(len(self._topic.partitions)))
        return self._selected

    def start(self, partition: StreamPartition) -> int:
        return self.log_of(partition).log_start_offset

    def log_of(self, partition: StreamPartition) -> PartitionLog:
        return self._topic.partition(partition.partition)

    def _of(self, numbers: Sequence[int]) -> tuple[StreamPartition, ...]:
        if len(numbers) > _PARTITIONS_MAX:
            raise InvalidRequestError(
                f"A stream has at most {_PARTITIONS_MAX} partitions, because the id of every event names them all: "
                f"choose with partition=, topic {self._topic.name!r} has {len(self._topic.partitions)}."
            )
        topic_id = topic_id_text(self._topic.topic_id)
        return tuple(StreamPartition(self._topic.name, number, topic_id) for number in numbers)


def _starts(
    request: Request,
    begin: str | None,
    selection: TopicSelection,
    isolation: Isolation,
    elsewhere: OffsetsElsewhere,
) -> Mapping[StreamPartition, int]:
    """Return the first offset of each partition.

    Raises OffsetOutOfRangeError, QuarantinedError, LeaderNotAvailableError.
    """
    partitions = selection.partitions()
    ends: dict[StreamPartition, PartitionOffsets] = {}
    for one in partitions:
        log = selection.log_of(one)
        log.require_served()
        ends[one] = PartitionOffsets.of(log, elsewhere)
        ends[one].require_known(log)
    last_id = request.headers.get(LAST_EVENT_ID)
    if not last_id and begin in (None, "latest"):
        return {one: found.readable_end(isolation) for one, found in ends.items()}
    starts = {one: found.log_start_offset for one, found in ends.items()}
    text = last_id or begin
    if text is not None and (last_id or text != "earliest"):
        named = parse_position(text, partitions, LAST_EVENT_ID if last_id else "Query parameter from")
        for one, offset in named.items():
            ends[one].require_in_range(selection.log_of(one), offset)
        starts |= named
    return starts


def _chosen(parameter: ChoiceParameter, query: Mapping[str, str]) -> int:
    text = query.get(parameter.name)
    value = parameter.default if text is None else parameter.read(text)
    assert value is not None
    return value


def _numbers(text: str | None) -> list[int] | None:
    """Return the partitions that ``text`` names, in order; None for all. Raises UnknownPartitionError."""
    return None if text is None else sorted(set(map(partition_number, text.split(","))))


def _keys(query: Mapping[str, str], form: Form) -> tuple[bytes | None, bytes | None]:
    """Return the stored key whose records are wanted, in a topic whose ``key.format`` is json, and in one where it is
    string. None selects the records of all keys.
    """
    text = query.get(KEY.name)
    key_format = query.get(KEY_FORMAT.name)
    if text is None:
        if key_format is not None:
            raise ParameterError("Query parameter key_format says how key is stored: send key, too.")
        return None, None
    if form is Form.BINARY:
        if key_format is not None:
            raise ParameterError("Query parameter key_format is for JSON: with format=binary, send key as base64.")
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            raise ParameterError(f"Query parameter key cannot be {shown(text)}: send base64.") from None
        return key, key
    keys = _json_key(text), text.encode()
    if key_format is None:
        return keys
    key = keys[KEY_FORMAT.read(key_format)]
    return key, key


def _json_key(text: str) -> bytes:
    try:
        surrogates.decode(_JSON_TEXT, text.encode())
    except msgspec.DecodeError:
        return msgspec.json.encode(text)
    return text.encode()
