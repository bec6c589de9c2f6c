"""Members of consumer groups: join, sync, heartbeat and leave of Kafka's classic protocol, the heartbeat of KIP-848,
and the description of a group.
"""

from consumer_offsets.groups import events
from consumer_offsets.groups.responses import AssignedTopic
from ingest_api.dependencies import Context, GroupInPath, MemberGroupName, State
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routes import requires
from ingest_api.schemas.members import (
    AssignedPartition,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatRequest,
    GroupDescription,
    HeartbeatRequest,
    JoinedGroup,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeftGroup,
    LeftMember,
    SyncedGroup,
    SyncGroupRequest,
)
from logstore.broker.authorizer import Operation, ResourceType
from logstore.errors import InvalidRequestError
from logstore.protocol.error_codes import code_of

router = model_router(MetadataRoute, tags=["groups"])


@router.post(
    "/groups/{group}/join",
    operation_id="joinGroup",
    response_description="The rebalance is complete.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def join(state: State, context: Context, group: MemberGroupName, asked: JoinGroupRequest) -> JoinedGroup:
    """Join a group of the classic protocol, or join again in a rebalance (Kafka's JoinGroup).

    Answers when all members have joined: keep the connection for `rebalance_timeout_ms`.
    """
    joined = await state.groups.members.join(
        context,
        group,
        events.JoinGroup(
            request=0,
            member_id=asked.member_id,
            new_member_id=asked.member_id,
            protocol_type=asked.protocol_type,
            protocols=tuple(events.JoinProtocol(protocol.name, protocol.metadata) for protocol in asked.protocols),
            session_timeout_ms=asked.session_timeout_ms,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            instance_id=asked.group_instance_id,
            client_id=context.client_id,
            client_host=context.peer,
            reason=asked.reason,
        ),
    )
    return JoinedGroup.model_validate(joined)


@router.post(
    "/groups/{group}/sync",
    operation_id="syncGroup",
    response_description="The member's assignment.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def sync(state: State, context: Context, group: MemberGroupName, asked: SyncGroupRequest) -> SyncedGroup:
    """Get this member's assignment; the leader sends everybody's (Kafka's SyncGroup). Answers when the leader has."""
    synced = await state.groups.members.sync(
        context,
        group,
        events.SyncGroup(
            request=0,
            member_id=asked.member_id,
            generation=asked.generation,
            assignments=tuple((entry.member_id, entry.assignment) for entry in asked.assignments),
            instance_id=asked.group_instance_id,
            protocol_type=asked.protocol_type,
            protocol=asked.protocol,
        ),
    )
    return SyncedGroup.model_validate(synced)


@router.post(
    "/groups/{group}/heartbeat",
    operation_id="heartbeat",
    status_code=204,
    response_description="The member's session goes on.",
    responses=refusals(409, 503),
)
@requires(Operation.READ, ResourceType.GROUP)
async def heartbeat(state: State, context: Context, group: MemberGroupName, asked: HeartbeatRequest) -> None:
    """Keep a member's session alive (Kafka's Heartbeat). 40923: a rebalance has begun, join again."""
    event = events.Heartbeat(0, asked.member_id, asked.generation, asked.group_instance_id, asked.since_poll_ms)
    await state.groups.members.heartbeat(context, group, event)


@router.post(
    "/groups/{group}/leave",
    operation_id="leaveGroup",
    response_description="Who has left.",
    responses=refusals(503),
)
@requires(Operation.READ, ResourceType.GROUP)
async def leave(state: State, context: Context, group: MemberGroupName, asked: LeaveGroupRequest) -> LeftGroup:
    """Members leave at once, and do not wait for the end of their sessions (Kafka's LeaveGroup)."""
    leaving = tuple(events.LeavingMember(m.member_id, m.group_instance_id, m.reason) for m in asked.members)
    left = await state.groups.members.leave(context, group, events.LeaveGroup(0, leaving))
    return LeftGroup(
        members=[
            LeftMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=None if member.error is None else code_of(member.error),
                message=None if member.error is None else member.error.message,
            )
            for member in left.members
        ]
    )


@router.post(
    "/groups/{group}/consumer-heartbeat",
    operation_id="consumerGroupHeartbeat",
    response_description="The member's epoch, and its assignment if that is another now.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def consumer_heartbeat(
    state: State, context: Context, group: MemberGroupName, asked: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeat:
    """Join, go on or leave a group whose partitions the store assigns (Kafka's ConsumerGroupHeartbeat, KIP-848)."""
    subscribes = asked.subscribed_topics or asked.subscribed_regex
    if asked.member_epoch == events.JOIN_GROUP_MEMBER_EPOCH and not subscribes:
        raise InvalidRequestError("There is no subscription: send topic names or a regex with MemberEpoch 0.")
    owned = None
    if asked.owned is not None:
        owned = frozenset(events.TopicIdPartition(entry.topic_id, entry.partition) for entry in asked.owned)
    beat = await state.groups.members.consumer_heartbeat(
        context,
        group,
        events.ConsumerGroupHeartbeat(
            request=0,
            member_id=asked.member_id,
            member_epoch=asked.member_epoch,
            instance_id=asked.group_instance_id,
            rack_id=asked.rack_id,
            rebalance_timeout_ms=asked.rebalance_timeout_ms,
            subscribed_topics=None if asked.subscribed_topics is None else frozenset(asked.subscribed_topics),
            subscribed_regex=asked.subscribed_regex,
            server_assignor=asked.server_assignor,
            since_poll_ms=asked.since_poll_ms,
            owned=owned,
            client_id=context.client_id,
            client_host=context.peer,
        ),
    )
    return ConsumerGroupHeartbeat(
        member_id=beat.member_id,
        member_epoch=beat.member_epoch,
        heartbeat_interval_ms=beat.heartbeat_interval_ms,
        assignment=None if beat.assignment is None else _assigned(beat.assignment),
    )


def _assigned(topics: tuple[AssignedTopic, ...]) -> list[AssignedPartition]:
    return [
        AssignedPartition(topic=entry.topic, topic_id=entry.topic_id, partition=partition)
        for entry in topics
        for partition in entry.partitions
    ]


@router.get("/groups/{group}", operation_id="describeGroup", response_description="The group and its members.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def describe_group(group: GroupInPath) -> GroupDescription:
    """State, kind, generation and members of a group, with the partitions of each member."""
    return GroupDescription.model_validate(group)
