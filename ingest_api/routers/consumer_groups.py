"""Consumer groups in REST v3 shapes, to look at: groups, their consumers with assignments, their lags."""

import re
from typing import Annotated, Final

from fastapi import Depends, Path, Query
from starlette.requests import Request

from consumer_offsets.group_queries import PartitionLag
from consumer_offsets.groups.description import GroupDescription, MemberDescription
from ingest_api.dependencies import ClusterBroker, Context, GroupInPath, GroupName, PartitionNumber, State, TopicName
from ingest_api.errors import NoSuchResourceError
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.parameters import shown
from ingest_api.routers.links import link, list_metadata, page_size, resource_metadata
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.protocol.messages import consumer_groups as messages
from logstore.protocol.messages.administration import Link, PageQuery, ResourceMetadata
from logstore.protocol.messages.groups import GroupListing

_GROUPS: Final = "/v3/clusters/{cluster_id}/consumer-groups"
_GROUP: Final = f"{_GROUPS}/{{group}}"
_ASSIGNMENTS: Final = f"{_GROUP}/consumers/{{consumer_id}}/assignments"
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")

router = model_router(AdministrationRoute, tags=["administration"])


async def _consumer(
    _: ClusterBroker, group: GroupInPath, consumer_id: Annotated[str, Path(description="The member id.")]
) -> MemberDescription:
    for member in group.members:
        if member.member_id == consumer_id:
            return member
    raise NoSuchResourceError(
        f"Group {group.group!r} has no consumer {shown(consumer_id)}: the list of all is one level up."
    )


ConsumerInPath = Annotated[MemberDescription, Depends(_consumer)]


@router.get(_GROUPS, operation_id="listConsumerGroups", response_description="Consumer groups, by name.")
@requires(Operation.DESCRIBE, ResourceType.GROUP, names_in="answer")
async def list_groups(
    request: Request, state: State, context: Context, broker: ClusterBroker, query: Annotated[PageQuery, Query()]
) -> messages.ConsumerGroupList:
    """List the groups that have members or committed offsets, by name, a page at a time."""
    page = await state.groups.list_all_groups(context, after=query.page_token, limit=page_size(query))
    return messages.ConsumerGroupList(
        metadata=list_metadata(request, broker.cluster_id, "consumer-groups", query=query, next_token=page.next),
        data=tuple(
            _group(request, broker, group, state.groups.coordinator_of(context, group.group)) for group in page.groups
        ),
    )


@router.get(_GROUP, operation_id="getConsumerGroup", response_description="The group.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_group(request: Request, broker: ClusterBroker, group: GroupInPath) -> messages.ConsumerGroup:
    """Return one group."""
    return _group(request, broker, group, broker.broker_id)


@router.get(f"{_GROUP}/consumers", operation_id="listConsumers", response_description="The members of the group.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def list_consumers(request: Request, broker: ClusterBroker, group: GroupInPath) -> messages.ConsumerList:
    """List the members of a group."""
    return messages.ConsumerList(
        metadata=list_metadata(request, broker.cluster_id, "consumer-groups", group.group, "consumers"),
        data=tuple(_member(request, broker, group.group, member) for member in group.members),
    )


@router.get(f"{_GROUP}/consumers/{{consumer_id}}", operation_id="getConsumer", response_description="The member.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_consumer(
    request: Request, broker: ClusterBroker, group: GroupName, member: ConsumerInPath
) -> messages.Consumer:
    """Return one member."""
    return _member(request, broker, group, member)


@router.get(_ASSIGNMENTS, operation_id="listConsumerAssignments", response_description="The member's partitions.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def list_assignments(
    request: Request, broker: ClusterBroker, group: GroupName, member: ConsumerInPath
) -> messages.ConsumerAssignmentList:
    """List the partitions that a member reads."""
    path = ("consumer-groups", group, "consumers", member.member_id, "assignments")
    return messages.ConsumerAssignmentList(
        metadata=list_metadata(request, broker.cluster_id, *path),
        data=tuple(_assignment(request, broker, group, member, *place) for place in member.assignment),
    )


@router.get(
    f"{_ASSIGNMENTS}/{{topic}}/partitions/{{partition}}",
    operation_id="getConsumerAssignment",
    response_description="The partition.",
)
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_assignment(
    request: Request,
    broker: ClusterBroker,
    group: GroupName,
    member: ConsumerInPath,
    topic: TopicName,
    partition: PartitionNumber,
) -> messages.ConsumerAssignment:
    """Return one partition that a member reads."""
    if (topic, partition) not in member.assignment:
        raise NoSuchResourceError(f"Consumer {shown(member.member_id)} does not read {topic}-{partition}.")
    return _assignment(request, broker, group, member, topic, partition)


@router.get(
    f"{_GROUP}/lag-summary", operation_id="getConsumerGroupLagSummary", response_description="The lag of the group."
)
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_lag_summary(
    request: Request, state: State, context: Context, broker: ClusterBroker, group: GroupName
) -> messages.ConsumerGroupLagSummary:
    """Return the total lag of a group, and the lag of the partition that is furthest behind."""
    lags = await state.groups.fetch_lag(context, group)
    if not lags:
        raise NoSuchResourceError(f"Group {group!r} has committed no offset, and reads no partition: it has no lag.")
    worst = max(lags, key=lambda each: each.lag)
    whole = resource_metadata(request, broker, **{"consumer-group": group})
    metadata = ResourceMetadata(
        self=link(request, broker.cluster_id, "consumer-groups", group, "lag-summary"),
        resource_name=f"{whole.resource_name}/lag-summary",
    )
    reader = (worst.member.member_id,) if worst.member else ()
    place = ("topics", worst.topic, "partitions", str(worst.partition))
    return messages.ConsumerGroupLagSummary(
        metadata=metadata,
        cluster_id=broker.cluster_id,
        consumer_group_id=group,
        max_lag_consumer_id=worst.member.member_id if worst.member else "",
        max_lag_instance_id=worst.member.group_instance_id if worst.member else None,
        max_lag_client_id=worst.member.client_id if worst.member else "",
        max_lag_topic_name=worst.topic,
        max_lag_partition_id=worst.partition,
        max_lag=worst.lag,
        total_lag=sum(each.lag for each in lags),
        max_lag_consumer=Link(related=link(request, broker.cluster_id, "consumer-groups", group, "consumers", *reader)),
        max_lag_partition=Link(related=link(request, broker.cluster_id, *place)),
    )


@router.get(f"{_GROUP}/lags", operation_id="listConsumerLags", response_description="The lag in each partition.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def list_lags(
    request: Request, state: State, context: Context, broker: ClusterBroker, group: GroupName
) -> messages.ConsumerLagList:
    """List the lag of a group in each partition, the largest first."""
    found = await state.groups.fetch_lag(context, group)
    lags = sorted(found, key=lambda each: (-each.lag, each.topic, each.partition))
    return messages.ConsumerLagList(
        metadata=list_metadata(request, broker.cluster_id, "consumer-groups", group, "lags"),
        data=tuple(_lag(request, broker, group, each) for each in lags),
    )


@router.get(
    f"{_GROUP}/lags/{{topic}}/partitions/{{partition}}",
    operation_id="getConsumerLag",
    response_description="The lag in the partition.",
)
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_lag(
    request: Request,
    state: State,
    context: Context,
    broker: ClusterBroker,
    group: GroupName,
    topic: TopicName,
    partition: PartitionNumber,
) -> messages.ConsumerLag:
    """Return the lag of a group in one partition."""
    for each in await state.groups.fetch_lag(context, group):
        if (each.topic, each.partition) == (topic, partition):
            return _lag(request, broker, group, each)
    raise NoSuchResourceError(
        f"Group {group!r} has no lag in {shown(topic)}-{partition}: it has committed no offset of the topic, and does "
        "not read it, or the topic has no such partition."
    )


def _group(
    request: Request, broker: Broker, group: GroupDescription | GroupListing, coordinator: int
) -> messages.ConsumerGroup:
    path = (broker.cluster_id, "consumer-groups", group.group)
    return messages.ConsumerGroup.of(
        {
            "metadata": resource_metadata(request, broker, **{"consumer-group": group.group}),
            "cluster_id": broker.cluster_id,
            "consumer_group_id": group.group,
            "is_simple": not group.kind,
            "partition_assignor": group.protocol or "",
            "state": _WORD.sub("_", group.state).upper(),
            # As in Kafka, a group with nothing but commits is a classic one.
            "type": (group.kind or "classic").upper(),
            "coordinator": Link(related=link(request, broker.cluster_id, "brokers", str(coordinator))),
            "consumers": Link(related=link(request, *path, "consumers")),
            "lag_summary": Link(related=link(request, *path, "lag-summary")),
        }
    )


def _member(request: Request, broker: Broker, group: str, member: MemberDescription) -> messages.Consumer:
    names = {"consumer-group": group, "consumer": member.member_id}
    path = ("consumer-groups", group, "consumers", member.member_id, "assignments")
    return messages.Consumer(
        metadata=resource_metadata(request, broker, **names),
        cluster_id=broker.cluster_id,
        consumer_group_id=group,
        consumer_id=member.member_id,
        instance_id=member.group_instance_id,
        client_id=member.client_id,
        assignments=Link(related=link(request, broker.cluster_id, *path)),
    )


def _assignment(
    request: Request, broker: Broker, group: str, member: MemberDescription, topic: str, partition: int
) -> messages.ConsumerAssignment:
    place = {"topic": topic, "partition": str(partition)}
    names = {"consumer-group": group, "consumer": member.member_id, "assignment": topic, "partition": str(partition)}
    return messages.ConsumerAssignment(
        metadata=resource_metadata(request, broker, **names),
        cluster_id=broker.cluster_id,
        consumer_group_id=group,
        consumer_id=member.member_id,
        topic_name=topic,
        partition_id=partition,
        partition=Link(related=resource_metadata(request, broker, **place).self),
        lag=Link(related=_lag_metadata(request, broker, group, topic, partition).self),
    )


def _lag(request: Request, broker: Broker, group: str, lag: PartitionLag) -> messages.ConsumerLag:
    return messages.ConsumerLag(
        metadata=_lag_metadata(request, broker, group, lag.topic, lag.partition),
        cluster_id=broker.cluster_id,
        consumer_group_id=group,
        topic_name=lag.topic,
        partition_id=lag.partition,
        consumer_id=lag.member.member_id if lag.member else "",
        instance_id=lag.member.group_instance_id if lag.member else None,
        client_id=lag.member.client_id if lag.member else "",
        current_offset=lag.log_start_offset if lag.committed_offset is None else lag.committed_offset,
        log_end_offset=lag.high_watermark,
        lag=lag.lag,
    )


def _lag_metadata(request: Request, broker: Broker, group: str, topic: str, partition: int) -> ResourceMetadata:
    return resource_metadata(request, broker, **{"consumer-group": group, "lag": topic, "partition": str(partition)})
