"""Records of consumer instances: polled, or pushed as Server-Sent Events."""

import asyncio
import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from consumer_offsets.instances.consumer_instance import ConsumerInstance
from consumer_offsets.instances.instance_group import AUTO_COMMIT_S
from consumer_offsets.instances.instance_home import Polled, PolledPartition
from ingest_api import operations
from ingest_api.bodies import CONNECTION, answer_wanted
from ingest_api.content_types import KAFKA_BINARY_V2, KAFKA_JSON_V2, METADATA_TYPES, response_media_type
from ingest_api.errors import EVENT_STREAM, EmbeddedFormatError, NotAcceptableError
from ingest_api.event_chunks import Form, Reading
from ingest_api.event_hub import EventHub
from ingest_api.event_position import LAST_EVENT_ID, Partitions, StreamPartition, parse_position
from ingest_api.event_stream import HEAD_ONLY, EventStream, EventStreamResponse
from ingest_api.guard import context_of
from ingest_api.parameters import POLL_MAX_BYTES, POLL_TIMEOUT, read_query, required
from ingest_api.record_responses import RecordsResponse
from ingest_api.routers.records import gather
from ingest_api.routes import declared_router, requires
from ingest_api.state import api_state
from logstore.broker.admission import Reservation
from logstore.broker.authorizer import Operation, ResourceType
from logstore.errors import IllegalStateError, LogStoreError
from logstore.filesystem import Buffer
from logstore.limits import FETCH_WAIT_MS_MAX
from logstore.log.isolation import Isolation
from logstore.protocol.members.identity import TopicPartition
from logstore.records.encode import binary_rows, encode_array, readable_rows, runs

log = structlog.stdlib.get_logger(__name__)

router = declared_router(tags=["consumers"])

_TYPES: Final = {"json": KAFKA_JSON_V2, "binary": KAFKA_BINARY_V2}
#: A stream waits this long for the end of a poll, or of an earlier stream that has not noticed that its client is gone.
_TURN_MS: Final = 5_000


@router.get("/consumers/{group}/instances/{instance}/records", **operations.POLL)
@requires(Operation.READ, ResourceType.GROUP)
async def poll(request: Request) -> Response:
    """Return records that this instance has not had yet; wait for some if there are none."""
    state = api_state(request)
    context = context_of(request)
    instance = state.groups.instances.get(context, *_names(request))
    config = instance.value.config
    query = read_query(request, (POLL_TIMEOUT, POLL_MAX_BYTES))
    media_type = _media_type(request, config.format)
    timeout_ms, max_bytes = required(query[POLL_TIMEOUT.name]), required(query[POLL_MAX_BYTES.name])
    timeout_ms = config.request_timeout_ms if timeout_ms < 0 else min(timeout_ms, FETCH_WAIT_MS_MAX)
    limit = state.settings.consumer_request_max_bytes
    async with contextlib.AsyncExitStack() as turn:
        await turn.enter_async_context(instance.used())
        gone = functools.partial(answer_wanted, request)
        polling = instance.poll(context, timeout_ms, limit if max_bytes < 0 else max(1, min(max_bytes, limit)), gone)
        polled = await turn.enter_async_context(polling)
        reservation = polled.reservation or state.answers.reserve()
        turn.callback(reservation.release)
        num_bytes = sum(one.records.nbytes for one in polled.partitions)
        pieces = encode_array(_rows(polled.partitions, config.format))
        body = await state.work(num_bytes, functools.partial(gather, pieces, reservation, num_bytes))
        reservation.resize(sum(map(len, body)))
        return PolledResponse(body, reservation, media_type, polled, turn.pop_all())


def _names(request: Request) -> tuple[str, str]:
    return request.path_params["group"], request.path_params["instance"]


def _media_type(request: Request, embedded: str) -> str:
    """Return the media type of the response. Raises EmbeddedFormatError, NotAcceptableError."""
    try:
        return response_media_type(request.headers, (_TYPES[embedded], *METADATA_TYPES))
    except NotAcceptableError:
        if _asks_for_another(request, embedded):
            raise EmbeddedFormatError(
                "The requested embedded data format does not match the deserializer for this consumer instance: it was "
                f"created with format {embedded}, ask for {_TYPES[embedded]}."
            ) from None
        raise


def _asks_for_another(request: Request, embedded: str) -> bool:
    """Return whether Accept allows another embedded format."""
    with contextlib.suppress(NotAcceptableError):
        response_media_type(request.headers, [media_type for name, media_type in _TYPES.items() if name != embedded])
        return True
    return False


def _rows(partitions: Iterable[PolledPartition], embedded: str) -> Iterator[Iterable[bytes]]:
    """Yield the rows of each run. Bytes that are not JSON become text or base64, as their record shows, so that no
    record blocks an instance.
    """
    for one in partitions:
        for run in runs(one.records):
            if embedded == "binary":
                yield binary_rows(run, one.topic, one.partition)
            else:
                yield readable_rows(run, one.topic, one.partition, string_keys=one.string_keys)


class PolledResponse(RecordsResponse):
    """Its records were handed out when all of them were given to an open connection. ``turn`` ends then."""

    def __init__(
        self,
        body: list[Buffer],
        reservation: Reservation,
        media_type: str,
        polled: Polled,
        turn: contextlib.AsyncExitStack,
    ) -> None:
        super().__init__(body, reservation, media_type=media_type, headers={})
        self._polled = polled
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope.get(CONNECTION)
        was_open = False

        async def send_piece(message: Message) -> None:
            nonlocal was_open
            # After the last piece the connection may be closed because the client asked for that.
            was_open = connection is None or not connection.transport.is_closing()
            await send(message)

        async with self._turn:
            await super().__call__(scope, receive, send_piece)
            if was_open and HEAD_ONLY not in scope:
                self._polled.delivered()


@router.get("/consumers/{group}/instances/{instance}/events", **operations.POLL_EVENTS)
@requires(Operation.READ, ResourceType.GROUP)
async def stream_events(request: Request) -> Response:
    """Send records of the partitions that this instance holds, as they become readable and as partitions come and go,
    until the client closes the connection.
    """
    state = api_state(request)
    context = context_of(request)
    instance = state.groups.instances.get(context, *_names(request))
    config = instance.value.config
    read_query(request)
    response_media_type(request.headers, (EVENT_STREAM,))
    async with contextlib.AsyncExitStack() as turn:
        await turn.enter_async_context(instance.used())
        if not await turn.enter_async_context(instance.streaming(_TURN_MS)):
            raise IllegalStateError(
                f"Illegal state: another stream or poll of instance {instance.key.instance!r} is open: end it first, "
                "or make an instance for each reader."
            )
        selection = InstanceSelection(instance)
        if last_id := request.headers.get(LAST_EVENT_ID):
            named = parse_position(last_id, selection.partitions(), LAST_EVENT_ID, lenient=True)
            await instance.resume_stream({TopicPartition(*one[:2]): offset for one, offset in named.items()})
        form = Form.JSON if config.format == "json" else Form.BINARY
        reading = Reading(selection.partitions(), form, Isolation(config.isolation))
        offsets = tuple(selection.start(one) for one in reading.partitions)
        keepalive_s = state.settings.event_stream_keepalive_ms / 1000
        stream = EventStream(state.events, context, selection, reading, offsets, key=None, keepalive_s=keepalive_s)

        def streamed() -> Mapping[TopicPartition, int]:
            return {TopicPartition(*one[:2]): offset for one, offset in stream.position().items()}

        instance.begin_stream(streamed, stream.look_again)
        turn.callback(instance.end_stream)
        if config.auto_commit:
            committing = asyncio.get_running_loop().create_task(_auto_commit(instance))
            turn.callback(committing.cancel)
        state.events.open()
        return InstanceEventsResponse(request, state.events, stream, turn.pop_all())


async def _auto_commit(instance: ConsumerInstance) -> None:
    """Commit what was sent one interval before: the client has had that time for it."""
    handed: Mapping[TopicPartition, int] = {}
    while True:
        await asyncio.sleep(AUTO_COMMIT_S)
        try:
            handed = await instance.auto_commit_stream(handed)
        except LogStoreError as error:
            # During a rebalance, or while a coordinator loads, the next attempt may succeed.
            log.warning("instance.auto_commit_failed", instance=instance.key.instance, error=str(error))


class InstanceSelection:
    """The partitions that an instance holds, at its positions."""

    def __init__(self, instance: ConsumerInstance) -> None:
        self._instance = instance
        self._shown: tuple[TopicPartition, ...] | None = None
        self._partitions: Partitions = ()

    def partitions(self) -> Partitions:
        """Return the partitions. Raises UnknownInstanceError when the instance is deleted."""
        self._instance.require_there()
        if self._instance.reading is not self._shown:
            self._shown = self._instance.reading
            found = ((at, self._instance.position(at)) for at in self._shown)
            self._partitions = tuple(StreamPartition(*at, position.topic_id) for at, position in found if position)
        return self._partitions

    def start(self, partition: StreamPartition) -> int:
        position = self._instance.position(TopicPartition(*partition[:2]))
        assert position is not None, partition
        return position.offset


class InstanceEventsResponse(EventStreamResponse):
    """``turn`` ends with the stream."""

    def __init__(self, request: Request, hub: EventHub, stream: EventStream, turn: contextlib.AsyncExitStack) -> None:
        super().__init__(request, hub, stream, {})
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._turn:
            await super().__call__(scope, receive, send)
