"""Members of consumer groups: join, sync, heartbeat and leave of Kafka's classic protocol, the heartbeat of KIP-848,
and the description of a group.
"""

from msgspec import structs

from consumer_offsets.groups import events
from ingest_api.dependencies import Context, GroupInPath, MemberGroupName, State
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.errors import InvalidRequestError
from logstore.protocol.error_codes import code_of
from logstore.protocol.messages.members import (
    AssignedTopicPartition,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatRequest,
    GroupDescription,
    HeartbeatRequest,
    JoinedGroup,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeftGroup,
    LeftMember,
    MemberDescription,
    SyncedGroup,
    SyncGroupRequest,
)

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

    Responds when all members have joined: keep the connection for `rebalance_timeout_ms`.
    """
    event = events.JoinGroup(
        **structs.asdict(asked),
        request=0,
        new_member_id=asked.member_id,
        client_id=context.client_id,
        client_host=context.peer,
    )
    return JoinedGroup.of(await state.groups.members.join(context, group, event))


@router.post(
    "/groups/{group}/sync",
    operation_id="syncGroup",
    response_description="The member's assignment.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def sync(state: State, context: Context, group: MemberGroupName, asked: SyncGroupRequest) -> SyncedGroup:
    """Get this member's assignment; the leader sends everybody's (Kafka's SyncGroup). Responds when the leader has."""
    event = events.SyncGroup(**structs.asdict(asked), request=0)
    return SyncedGroup.of(await state.groups.members.sync(context, group, event))


@router.post(
    "/groups/{group}/heartbeat",
    operation_id="heartbeat",
    status_code=204,
    response_description="The member's session continues.",
    responses=refusals(409, 503),
)
@requires(Operation.READ, ResourceType.GROUP)
async def heartbeat(state: State, context: Context, group: MemberGroupName, asked: HeartbeatRequest) -> None:
    """Keep a member's session alive (Kafka's Heartbeat). 40923: a rebalance has begun, join again."""
    await state.groups.members.heartbeat(context, group, events.Heartbeat(**structs.asdict(asked), request=0))


@router.post(
    "/groups/{group}/leave",
    operation_id="leaveGroup",
    response_description="Who has left.",
    responses=refusals(503),
)
@requires(Operation.READ, ResourceType.GROUP)
async def leave(state: State, context: Context, group: MemberGroupName, asked: LeaveGroupRequest) -> LeftGroup:
    """Take members out of the group at once, before their sessions end (Kafka's LeaveGroup)."""
    left = await state.groups.members.leave(context, group, events.LeaveGroup(**structs.asdict(asked), request=0))
    return LeftGroup(
        members=tuple(
            LeftMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=None if member.error is None else code_of(member.error),
                message=None if member.error is None else member.error.message,
            )
            for member in left.members
        )
    )


@router.post(
    "/groups/{group}/consumer-heartbeat",
    operation_id="consumerGroupHeartbeat",
    response_description="The member's epoch, and its assignment if it has changed.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def consumer_heartbeat(
    state: State, context: Context, group: MemberGroupName, asked: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeat:
    """Join, stay in or leave a group whose partitions the store assigns (Kafka's ConsumerGroupHeartbeat, KIP-848)."""
    subscribes = asked.subscribed_topics or asked.subscribed_regex
    if asked.member_epoch == events.JOIN_GROUP_MEMBER_EPOCH and not subscribes:
        raise InvalidRequestError("There is no subscription: send topic names or a regex with MemberEpoch 0.")
    event = events.ConsumerGroupHeartbeat.sent_in(asked, client_id=context.client_id, client_host=context.peer)
    return (await state.groups.members.consumer_heartbeat(context, group, event)).message()


@router.get("/groups/{group}", operation_id="describeGroup", response_description="The group and its members.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def describe_group(group: GroupInPath) -> GroupDescription:
    """Describe a group: its state, kind, generation and members, with the partitions of each member."""
    return GroupDescription(
        group=group.group,
        kind=group.kind,
        state=group.state,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        generation=group.generation,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_epoch=member.member_epoch,
                assignment=tuple(AssignedTopicPartition(topic, partition) for topic, partition in member.assignment),
                since_heartbeat_ms=member.since_heartbeat_ms,
                since_poll_ms=member.since_poll_ms,
            )
            for member in group.members
        ),
    )
