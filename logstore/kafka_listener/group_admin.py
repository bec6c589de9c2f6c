"""DescribeGroups (15), ListGroups (16), DeleteGroups (42): the view of administrators on groups."""

from typing import Final

from consumer_offsets.groups.description import GroupDescription
from consumer_offsets.steps import in_steps
from logstore.broker.authorizer import ResourceType
from logstore.broker.context import RequestContext
from logstore.errors import LogStoreError, UnknownGroupError
from logstore.kafka_listener.authorized_operations import NOT_ASKED, authorized_operations
from logstore.kafka_listener.group_errors import GROUP_TIMEOUT_MS, group_error_number, require_first
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import NONE
from logstore.kafka_protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)

# Since this version of DescribeGroups an unknown group is an error (KIP-1043); before, it is dead.
_DESCRIBE_NOT_FOUND: Final = 6
_DEAD: Final = "Dead"
_STABLE: Final = "Stable"
#: Kafka also gives this type to a group that never had a member.
_CLASSIC: Final = "classic"

Described = DescribeGroupsResponse.DescribedGroup


async def describe_groups(
    store: KafkaStore, context: RequestContext, request: DescribeGroupsRequest, version: int
) -> DescribeGroupsResponse:
    """Describe classic groups, and groups that never had a member. As in Kafka, a group of KIP-848 is not found
    here.
    """
    groups: list[Described] = []
    seen: set[str] = set()
    async for group in in_steps(request.groups):
        try:
            require_first(group, seen)
            described = store.groups.describe(context, group)
            if described.kind == "consumer":
                raise UnknownGroupError(f"Group {group!r} is not a classic group.")
            await store.groups.members.until_durable(context, group)
        except UnknownGroupError as error:
            groups.append(_unknown(group, error, version))
            continue
        except LogStoreError as error:
            groups.append(Described(group_id=group, error_code=group_error_number(error), error_message=error.message))
            continue
        operations = NOT_ASKED
        if request.include_authorized_operations:
            operations = authorized_operations(store.broker.authorizer, context, ResourceType.GROUP, group)
        groups.append(_described(described, operations))
    return DescribeGroupsResponse(groups=groups)


def _unknown(group: str, error: UnknownGroupError, version: int) -> Described:
    if version < _DESCRIBE_NOT_FOUND:
        return Described(group_id=group, group_state=_DEAD)
    return Described(
        group_id=group, group_state=_DEAD, error_code=group_error_number(error), error_message=error.message
    )


def _described(group: GroupDescription, operations: int) -> Described:
    """Return the description. Only a stable group has protocol, subscriptions and assignments: in a rebalance they are
    old.
    """
    is_stable = group.state == _STABLE
    return Described(
        group_id=group.group,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata if is_stable else b"",
                member_assignment=member.assignment_data if is_stable else b"",
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


async def list_groups(
    store: KafkaStore,
    context: RequestContext,
    request: ListGroupsRequest,
    version: int,  # noqa: ARG001
) -> ListGroupsResponse:
    """List the groups that this broker coordinates: clients ask all brokers. Filters ignore upper and lower case
    (KIP-518, 848).
    """
    try:
        groups = await store.groups.overview(context)
    except LogStoreError as error:
        return ListGroupsResponse(error_code=group_error_number(error))
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    return ListGroupsResponse(
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=group.group,
                protocol_type=group.protocol_type or "",
                group_state=group.state,
                group_type=group.kind or _CLASSIC,
            )
            for group in groups
            if (not states or group.state.lower() in states) and (not types or (group.kind or _CLASSIC) in types)
        ]
    )


async def delete_groups(
    store: KafkaStore,
    context: RequestContext,
    request: DeleteGroupsRequest,
    version: int,  # noqa: ARG001
) -> DeleteGroupsResponse:
    """Delete groups. A group that occurs twice in the request has one result."""
    outcomes = await store.groups.delete_groups(context, request.groups_names, timeout_ms=GROUP_TIMEOUT_MS)
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(
                group_id=group, error_code=NONE if error is None else group_error_number(error)
            )
            for group, error in outcomes.items()
        ]
    )
