"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69): the coordinator assigns the partitions (KIP-848)."""

import base64
import uuid
from collections.abc import Sequence
from typing import Final

from consumer_offsets.groups import events
from consumer_offsets.groups.description import GroupDescription, MemberDescription
from consumer_offsets.groups.responses import AssignedTopic
from consumer_offsets.steps import in_steps
from logstore.broker.authorizer import ResourceType
from logstore.broker.context import RequestContext
from logstore.entropy import new_uuid
from logstore.errors import LogStoreError, RecordTooLargeError, UnknownGroupError
from logstore.kafka_listener.authorized_operations import NOT_ASKED, authorized_operations
from logstore.kafka_listener.group_errors import GROUP_TIMEOUT_MS, group_error_number, require_first, require_group_name
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

# Since version 1 members generate their ids themselves (KIP-1082).
_HEARTBEAT_OWN_ID: Final = 1
# The types of members.
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
# This is in characters: 10,000 topics with names of 100.
_SUBSCRIPTION_MAX: Final = 1_000_000
# Each name takes these characters in addition to its own.
_NAME_MORE: Final = 8

Described = ConsumerGroupDescribeResponse.DescribedGroup


async def consumer_group_heartbeat(
    store: KafkaStore, context: RequestContext, request: ConsumerGroupHeartbeatRequest, version: int
) -> ConsumerGroupHeartbeatResponse:
    """Handle a heartbeat. A null field means "as before". The response has the assignment if it changed, or was asked
    for.
    """
    member_id = request.member_id
    if not member_id and version < _HEARTBEAT_OWN_ID and request.member_epoch == events.JOIN_GROUP_MEMBER_EPOCH:
        member_id = base64.urlsafe_b64encode(new_uuid().bytes).decode().rstrip("=")
    owned = None
    if request.topic_partitions is not None:
        owned = frozenset(
            events.TopicIdPartition(uuid.UUID(bytes=topic.topic_id), partition)
            for topic in request.topic_partitions
            for partition in topic.partitions
        )
    names = request.subscribed_topic_names
    event = events.ConsumerGroupHeartbeat(
        request=0,
        member_id=member_id,
        member_epoch=request.member_epoch,
        group_instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topics=None if names is None else frozenset(names),
        subscribed_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=owned,
        client_id=context.client_id,
        client_host=context.peer,
    )
    try:
        require_group_name(request.group_id)
        _require_small(request)
        beat = await store.groups.members.consumer_heartbeat(
            context, request.group_id, event, timeout_ms=GROUP_TIMEOUT_MS
        )
    except LogStoreError as error:
        return ConsumerGroupHeartbeatResponse(error_code=group_error_number(error), error_message=error.message)
    assignment = None
    if beat.assignment is not None:
        assignment = ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[
                ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=one.topic_id.bytes, partitions=one.partitions)
                for one in beat.assignment
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=beat.member_id,
        member_epoch=beat.member_epoch,
        heartbeat_interval_ms=beat.heartbeat_interval_ms,
        assignment=assignment,
    )


def _require_small(request: ConsumerGroupHeartbeatRequest) -> None:
    """Raise RecordTooLargeError if the group's record would hold too much for the member."""
    texts = (request.member_id, request.instance_id, request.rack_id, request.subscribed_topic_regex)
    names = request.subscribed_topic_names or ()
    size = sum(map(len, names)) + _NAME_MORE * len(names) + sum(len(text or "") for text in texts)
    if size > _SUBSCRIPTION_MAX:
        raise RecordTooLargeError(
            f"The subscription of a member of group {request.group_id!r} has {size} characters: "
            f"{_SUBSCRIPTION_MAX} are the most."
        )


async def consumer_group_describe(
    store: KafkaStore,
    context: RequestContext,
    request: ConsumerGroupDescribeRequest,
    version: int,  # noqa: ARG001
) -> ConsumerGroupDescribeResponse:
    """Describe groups. A classic group is GROUP_ID_NOT_FOUND: clients ask for it again with DescribeGroups."""
    groups: list[Described] = []
    seen: set[str] = set()
    async for group in in_steps(request.group_ids):
        try:
            require_group_name(group)
            require_first(group, seen)
            described = store.groups.describe(context, group)
            if described.kind != "consumer":
                raise UnknownGroupError(f"Group {group!r} is not a consumer group.")
            await store.groups.members.until_durable(context, group)
        except LogStoreError as error:
            groups.append(Described(group_id=group, error_code=group_error_number(error), error_message=error.message))
            continue
        operations = NOT_ASKED
        if request.include_authorized_operations:
            operations = authorized_operations(store.broker.authorizer, context, ResourceType.GROUP, group)
        groups.append(_group(described, operations))
    return ConsumerGroupDescribeResponse(groups=groups)


def _group(group: GroupDescription, operations: int) -> Described:
    return Described(
        group_id=group.group,
        group_state=group.state,
        group_epoch=group.generation,
        assignment_epoch=group.target_epoch,
        assignor_name=group.protocol or "",
        members=[_member(member) for member in group.members],
        authorized_operations=operations,
    )


def _member(member: MemberDescription) -> ConsumerGroupDescribeResponse.Member:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topics,
        subscribed_topic_regex=member.subscribed_regex or None,
        assignment=_assignment(member.assigned),
        target_assignment=_assignment(member.target),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(topics: Sequence[AssignedTopic]) -> ConsumerGroupDescribeResponse.Assignment:
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=one.topic_id.bytes, topic_name=one.topic, partitions=one.partitions
            )
            for one in topics
        ]
    )
