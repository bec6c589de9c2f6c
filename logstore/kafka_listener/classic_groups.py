"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14): members of classic groups.

The responses of JoinGroup and SyncGroup come when the other members have joined and the leader has assigned; the
group's state machine (``consumer_offsets.groups``) decides when that is.
"""

from typing import Final

from consumer_offsets.groups import events
from consumer_offsets.groups.responses import LeftMember
from logstore.broker.context import RequestContext
from logstore.entropy import new_uuid
from logstore.errors import (
    CoordinatorLoadInProgressError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    LogStoreError,
    MemberIdRequiredError,
)
from logstore.kafka_listener.group_errors import GROUP_TIMEOUT_MS, group_error_number, require_group_name
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import NONE
from logstore.kafka_protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from logstore.protocol.messages.members import LeavingMember, MemberAssignment, Protocol

# First versions of JoinGroup: with a rebalance timeout; where a new member joins twice (KIP-394); where the protocol's
# name may be null (KIP-559); where a static leader keeps the assignment (KIP-814).
_JOIN_REBALANCE_TIMEOUT: Final = 1
_JOIN_KNOWN_MEMBER_ID: Final = 4
_JOIN_NULL_PROTOCOL: Final = 7
_JOIN_SKIP_ASSIGNMENT: Final = 9
# First version of SyncGroup that must name the protocol (KIP-559), and of LeaveGroup that has several members.
_SYNC_PROTOCOL: Final = 5
_LEAVE_MEMBERS: Final = 3
_NO_GENERATION: Final = -1
# The limit is needed because all leave in one event of the group.
_LEAVING_MAX: Final = 10_000


async def join_group(
    store: KafkaStore, context: RequestContext, request: JoinGroupRequest, version: int
) -> JoinGroupResponse:
    """Join a group. As in Kafka, the id of a new member begins with the client's id, or with that of the static
    member.
    """
    new_member_id = f"{request.group_instance_id or context.client_id}-{new_uuid()}"
    no_protocol = None if version >= _JOIN_NULL_PROTOCOL else ""
    rebalance_timeout_ms = (
        request.rebalance_timeout_ms if version >= _JOIN_REBALANCE_TIMEOUT else request.session_timeout_ms
    )
    event = events.JoinGroup(
        request=0,
        member_id=request.member_id,
        new_member_id=new_member_id,
        protocol_type=request.protocol_type,
        protocols=tuple(Protocol(one.name, one.metadata) for one in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=max(0, rebalance_timeout_ms),
        group_instance_id=request.group_instance_id,
        client_id=context.client_id,
        client_host=context.peer,
        reason=request.reason or "",
        requires_known_member_id=version >= _JOIN_KNOWN_MEMBER_ID,
        supports_skipping_assignment=version >= _JOIN_SKIP_ASSIGNMENT,
    )
    try:
        require_group_name(request.group_id)
        joined = await store.groups.members.join(context, request.group_id, event, timeout_ms=GROUP_TIMEOUT_MS)
    except LogStoreError as error:
        return JoinGroupResponse(
            error_code=group_error_number(error),
            generation_id=_NO_GENERATION,
            protocol_name=no_protocol,
            member_id=new_member_id if isinstance(error, MemberIdRequiredError) else request.member_id,
        )
    return JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=no_protocol if joined.protocol is None else joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=one.member_id, group_instance_id=one.group_instance_id, metadata=one.metadata
            )
            for one in joined.members
        ],
    )


async def sync_group(
    store: KafkaStore, context: RequestContext, request: SyncGroupRequest, version: int
) -> SyncGroupResponse:
    event = events.SyncGroup(
        request=0,
        member_id=request.member_id,
        generation=request.generation_id,
        assignments=tuple(MemberAssignment(one.member_id, one.assignment) for one in request.assignments),
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
    )
    try:
        require_group_name(request.group_id)
        if version >= _SYNC_PROTOCOL and None in (request.protocol_type, request.protocol_name):
            raise InconsistentGroupProtocolError("SyncGroup names neither protocol type nor protocol: send both.")
        synced = await store.groups.members.sync(context, request.group_id, event, timeout_ms=GROUP_TIMEOUT_MS)
    except LogStoreError as error:
        return SyncGroupResponse(error_code=group_error_number(error))
    return SyncGroupResponse(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
    )


async def heartbeat(
    store: KafkaStore,
    context: RequestContext,
    request: HeartbeatRequest,
    version: int,  # noqa: ARG001
) -> HeartbeatResponse:
    event = events.Heartbeat(
        request=0,
        member_id=request.member_id,
        generation=request.generation_id,
        group_instance_id=request.group_instance_id,
    )
    try:
        require_group_name(request.group_id)
        await store.groups.members.heartbeat(context, request.group_id, event, timeout_ms=GROUP_TIMEOUT_MS)
    except CoordinatorLoadInProgressError:
        # As in Kafka, every member gets a whole session after the load.
        return HeartbeatResponse()
    except LogStoreError as error:
        return HeartbeatResponse(error_code=group_error_number(error))
    return HeartbeatResponse()


async def leave_group(
    store: KafkaStore, context: RequestContext, request: LeaveGroupRequest, version: int
) -> LeaveGroupResponse:
    """Remove members. Before version 3 it is one member, whose error is that of the response."""
    if version >= _LEAVE_MEMBERS:
        leaving = [LeavingMember(m.member_id, m.group_instance_id, m.reason or "") for m in request.members]
    else:
        leaving = [LeavingMember(request.member_id)]
    try:
        require_group_name(request.group_id)
        if len(leaving) > _LEAVING_MAX:
            raise InvalidRequestError(f"{len(leaving)} members of a group are to leave: send {_LEAVING_MAX} at most.")
        event = events.LeaveGroup(request=0, members=tuple(leaving))
        left = await store.groups.members.leave(context, request.group_id, event, timeout_ms=GROUP_TIMEOUT_MS)
    except LogStoreError as error:
        return LeaveGroupResponse(error_code=group_error_number(error))
    if version >= _LEAVE_MEMBERS:
        return LeaveGroupResponse(
            members=[
                LeaveGroupResponse.MemberResponse(
                    member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=_number(one)
                )
                for one in left.members
            ]
        )
    (member,) = left.members
    return LeaveGroupResponse(error_code=_number(member))


def _number(left: LeftMember) -> int:
    return NONE if left.error is None else group_error_number(left.error)
