"""Consumer instances (REST Proxy v2): their life, subscription or assignment, positions and commits."""

from collections.abc import AsyncIterator
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import Depends, Path, Query
from starlette.requests import Request

from consumer_offsets.groups.instance_record import InstanceConfig
from consumer_offsets.instances.consumer_instance import ConsumerInstance
from consumer_offsets.offsets import OffsetToCommit
from ingest_api.content_types import JSON_REQUEST_TYPES, KAFKA_BINARY_V2, KAFKA_JSON_V2, METADATA_TYPES
from ingest_api.dependencies import Context, GroupName, State
from ingest_api.errors import ParameterError
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import NAME_PATTERN, refusals
from ingest_api.parameters import shown
from ingest_api.routers.links import address
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.errors import IllegalStateError, InvalidInstanceConfigError, InvalidRequestError, UnknownPartitionError
from logstore.limits import FETCH_WAIT_MS_MAX, INSTANCE_NAME_LENGTH_MAX
from logstore.log.isolation import Isolation
from logstore.protocol.members.identity import TopicPartition
from logstore.protocol.messages.instances import (
    CreatedInstance,
    CreateInstanceRequest,
    InstanceAssignments,
    InstanceCommitQuery,
    InstanceCommitRequest,
    InstanceCommitted,
    InstanceCommittedOffset,
    InstanceCommittedOffsets,
    InstancePartition,
    InstancePartitions,
    PositionsRequest,
    Subscription,
    SubscriptionRequest,
)
from logstore.protocol.messages.members import AssignedTopicPartition
from logstore.quantities import TIME_FORMS, timestamp_ms

_INSTANCE: Final = "/consumers/{group}/instances/{instance}"
_FETCH_MIN_BYTES: Final = (-1, 10_000_000)
_INT32_MAX: Final = 2**31 - 1


class InstanceRoute(MetadataRoute):
    """A route where clients may send and accept the media type of their embedded format."""

    response_types = (*METADATA_TYPES, KAFKA_JSON_V2, KAFKA_BINARY_V2)
    request_types = (*JSON_REQUEST_TYPES, KAFKA_JSON_V2, KAFKA_BINARY_V2)


router = model_router(InstanceRoute, tags=["consumers"])

InstanceName = Annotated[
    str,
    Path(
        alias="instance",
        description="Name of the consumer instance.",
        json_schema_extra={"pattern": NAME_PATTERN, "maxLength": INSTANCE_NAME_LENGTH_MAX},
    ),
]


async def _instance(
    state: State, context: Context, group: GroupName, name: InstanceName
) -> AsyncIterator[ConsumerInstance]:
    async with state.groups.instances.get(context, group, name).used() as instance:
        yield instance


Instance = Annotated[ConsumerInstance, Depends(_instance)]


@router.post(
    "/consumers/{group}",
    operation_id="createConsumerInstance",
    response_description="The instance.",
    responses=refusals(409, 429, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def create_instance(
    request: Request, state: State, context: Context, group: GroupName, asked: CreateInstanceRequest | None = None
) -> CreatedInstance:
    """Make a consumer that the store holds: it reads for one client, alone or as a member of the group."""
    asked = asked or CreateInstanceRequest()
    config = _config(asked, state.settings.consumer_request_timeout_ms)
    name = await state.groups.instances.create(context, group, asked.name or asked.id, config)
    host = ":".join(filter(None, address(request)))
    # Dots are escaped as well: clients that follow RFC 3986 (section 5.2.4) would remove them from a path.
    path = quote(group, safe="").replace(".", "%2E") if group in (".", "..") else quote(group, safe="")
    base_uri = f"{request.scope['scheme']}://{host}/consumers/{path}/instances/{quote(name)}"
    return CreatedInstance(instance_id=name, base_uri=base_uri)


def _config(asked: CreateInstanceRequest, timeout_ms: int) -> InstanceConfig:
    """Return the configuration. Raises ParameterError for the format, InvalidInstanceConfigError."""
    if asked.format not in (None, "binary", "json"):
        hint = " There is no schema registry here." if asked.format in ("avro", "jsonschema", "protobuf") else ""
        raise ParameterError(f"Invalid format type {shown(asked.format or '')}: send binary or json.{hint}")
    min_bytes = _number("fetch.min.bytes", asked.fetch_min_bytes, asked.response_min_bytes, *_FETCH_MIN_BYTES)
    wait_ms = _number("consumer.request.timeout.ms", asked.consumer_request_timeout_ms, asked.request_wait_ms)
    isolation = _choice("isolation.level", asked.isolation_level, ("read_uncommitted", "read_committed"))
    return InstanceConfig(
        format=asked.format or "binary",
        auto_offset_reset=_choice("auto.offset.reset", asked.auto_offset_reset, ("latest", "earliest")),
        auto_commit=_truth("auto.commit.enable", asked.auto_commit_enable),
        fetch_min_bytes=1 if min_bytes < 0 else min_bytes,
        request_timeout_ms=timeout_ms if wait_ms < 0 else min(wait_ms, FETCH_WAIT_MS_MAX),
        isolation=Isolation[isolation.upper()],
    )


def _choice(name: str, given: str | None, choices: tuple[str, ...]) -> str:
    if given is None:
        return choices[0]
    if given not in choices:
        raise _invalid(name, given, f"one of {', '.join(choices)}")
    return given


def _truth(name: str, given: bool | str | None) -> bool:
    if given is None or isinstance(given, bool):
        return bool(given)
    return _choice(name, given, ("false", "true")) == "true"


def _number(name: str, given: int | str | None, alias: int | str | None, low: int = -1, high: int = _INT32_MAX) -> int:
    value = alias if given is None else given
    if value is None:
        return -1
    text = str(value)
    if isinstance(value, bool) or not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 12:
        raise _invalid(name, text, f"a whole number from {low} to {high}")
    if not low <= int(text) <= high:
        raise _invalid(name, text, f"a whole number from {low} to {high}")
    return int(text)


def _invalid(name: str, given: str, takes: str) -> InvalidInstanceConfigError:
    return InvalidInstanceConfigError(f"Invalid consumer configuration: {name} cannot be {shown(given)}, send {takes}.")


@router.delete(
    _INSTANCE,
    operation_id="deleteConsumerInstance",
    status_code=204,
    response_description="Done.",
    responses=refusals(503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def delete_instance(state: State, context: Context, group: GroupName, name: InstanceName) -> None:
    """Delete an instance: it leaves its group, and its polls end."""
    await state.groups.instances.delete(context, group, name)


@router.post(
    f"{_INSTANCE}/subscription",
    operation_id="subscribeConsumerInstance",
    status_code=204,
    response_description="Done.",
    responses=refusals(400, 409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def subscribe(context: Context, instance: Instance, asked: SubscriptionRequest) -> None:
    """Subscribe to topics, or to those that match a pattern, as a member of the group."""
    if asked.topics is not None and asked.topic_pattern is not None:
        raise IllegalStateError("Illegal state: topics and topic_pattern are mutually exclusive: send one of them.")
    if asked.topics is None and asked.topic_pattern is None:
        raise InvalidRequestError("There is nothing to subscribe to: send topics or topic_pattern.")
    await instance.subscribe(context, asked.topics, asked.topic_pattern)


@router.get(
    f"{_INSTANCE}/subscription",
    operation_id="getConsumerInstanceSubscription",
    response_description="The topics; none without a subscription.",
    responses=refusals(503),
)
@requires(Operation.READ, ResourceType.GROUP)
async def get_subscription(instance: Instance) -> Subscription:
    """List the topics that the instance is subscribed to; for a pattern, those that match it now."""
    return Subscription(topics=tuple(instance.subscription()))


@router.delete(
    f"{_INSTANCE}/subscription",
    operation_id="unsubscribeConsumerInstance",
    status_code=204,
    response_description="Done.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def unsubscribe(instance: Instance) -> None:
    """End the subscription or the assignment, and leave the group."""
    await instance.unsubscribe()


@router.post(
    f"{_INSTANCE}/assignments",
    operation_id="assignConsumerInstance",
    status_code=204,
    response_description="Done.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def assign(context: Context, instance: Instance, asked: InstancePartitions) -> None:
    """Read these partitions and no others, without the group."""
    await instance.assign(context, [_place(one) for one in asked.partitions])


@router.get(
    f"{_INSTANCE}/assignments",
    operation_id="getConsumerInstanceAssignments",
    response_description="The partitions.",
    responses=refusals(503),
)
@requires(Operation.READ, ResourceType.GROUP)
async def get_assignments(instance: Instance) -> InstanceAssignments:
    """List the partitions that the instance holds: assigned by the client, or by the group."""
    held = instance.assignment()
    return InstanceAssignments(
        partitions=tuple(AssignedTopicPartition(topic=at.topic, partition=at.partition) for at in held)
    )


@router.post(
    f"{_INSTANCE}/positions",
    operation_id="seekConsumerInstance",
    status_code=204,
    response_description="Done.",
    responses=refusals(409, 416, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def seek(state: State, context: Context, instance: Instance, asked: PositionsRequest) -> None:
    """Continue from offsets, or from times."""
    if not asked.offsets and not asked.timestamps:
        raise InvalidRequestError("There is nowhere to go on from: send offsets or timestamps.")
    now_ms = state.broker.clock.now_ms()
    times = {_place(one): _time(one.timestamp, now_ms) for one in asked.timestamps or ()}
    offsets = {_place(one): one.offset for one in asked.offsets or ()}
    if times:
        await instance.seek_to_times(context, times)
    if offsets:
        await instance.seek(context, offsets)


def _time(text: str, now_ms: int) -> int:
    try:
        return timestamp_ms(text, now_ms)
    except ValueError:
        raise InvalidRequestError(f"timestamp cannot be {shown(text)}: send {TIME_FORMS}.") from None


@router.post(
    f"{_INSTANCE}/positions/beginning",
    operation_id="seekConsumerInstanceToBeginning",
    status_code=204,
    response_description="Done.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def seek_to_beginning(context: Context, instance: Instance, asked: InstancePartitions) -> None:
    """Continue from the first records."""
    await instance.seek_to(context, [_place(one) for one in asked.partitions], end=False)


@router.post(
    f"{_INSTANCE}/positions/end",
    operation_id="seekConsumerInstanceToEnd",
    status_code=204,
    response_description="Done.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def seek_to_end(context: Context, instance: Instance, asked: InstancePartitions) -> None:
    """Continue after the last records."""
    await instance.seek_to(context, [_place(one) for one in asked.partitions], end=True)


@router.post(
    f"{_INSTANCE}/offsets",
    operation_id="commitConsumerInstanceOffsets",
    response_description="The committed offsets, which are durable.",
    responses=refusals(409, 416, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def commit(
    context: Context,
    instance: Instance,
    _: Annotated[InstanceCommitQuery, Query()],  # type: ignore[valid-type]
    asked: InstanceCommitRequest | None = None,
) -> list[InstanceCommitted]:
    """Commit the last processed records; without a body, all records that polls have returned."""
    offsets = None
    if asked is not None:
        offsets = [OffsetToCommit(o.topic, o.partition, o.offset + 1, o.metadata or "") for o in asked.offsets]
    committed = await instance.commit(context, offsets)
    return [
        InstanceCommitted(topic=at.topic, partition=at.partition, consumed=offset - 1, committed=offset)
        for at, offset in sorted(committed.items())
    ]


@router.get(
    f"{_INSTANCE}/offsets",
    operation_id="getConsumerInstanceOffsets",
    response_description="The committed offsets.",
    responses=refusals(503),
)
@requires(Operation.READ, ResourceType.GROUP)
async def get_offsets(
    context: Context, instance: Instance, asked: InstancePartitions | None = None
) -> InstanceCommittedOffsets:
    """Return the group's committed offsets of the partitions in the body."""
    if asked is None:
        raise UnknownPartitionError("Partition not found: send a body with partitions.")
    committed = instance.committed(context, [_place(one) for one in asked.partitions])
    return InstanceCommittedOffsets(
        offsets=tuple(
            InstanceCommittedOffset(
                topic=at.topic, partition=at.partition, offset=found.offset, metadata=found.metadata
            )
            for at, found in committed.items()
        )
    )


def _place(asked: InstancePartition) -> TopicPartition:
    return TopicPartition(asked.topic, asked.partition)
