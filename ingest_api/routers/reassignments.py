"""Reassignments of partitions to other brokers: shown in REST v3 shapes, begun and cancelled at the same path."""

import asyncio

from starlette.requests import Request

from ingest_api.dependencies import ClusterBroker, Context, PartitionInCluster, TopicInCluster
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routers.links import link, list_metadata, reassignment_link, resource_metadata
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.forwarding import Target
from logstore.cluster.cluster_state import PartitionState
from logstore.errors import NoReassignmentInProgressError
from logstore.log.topic import Topic
from logstore.protocol.messages.administration import (
    Link,
    Reassignment,
    ReassignmentList,
    ReassignRequest,
    ResourceMetadata,
)

_TOPIC = "/v3/clusters/{cluster_id}/topics/{topic}"
_PARTITION = f"{_TOPIC}/partitions/{{partition}}/reassignment"
# Other tasks of the event loop have their turn after this many partitions.
_STEP = 200

router = model_router(AdministrationRoute, tags=["administration"])


@router.get(
    "/v3/clusters/{cluster_id}/topics/-/partitions/-/reassignment",
    operation_id="listReassignments",
    response_description="The reassignments that are under way.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_all(request: Request, context: Context, broker: ClusterBroker) -> ReassignmentList:
    """List the reassignments of all topics."""
    path = ("topics", "-", "partitions", "-", "reassignment")
    found, looked_at = list[Reassignment](), 0
    for topic in broker.topics.served.all(context, include_internal=True):
        found += _of_topic(request, context, broker, topic)
        looked_at += len(topic.partitions)
        if looked_at >= _STEP:
            looked_at = 0
            await asyncio.sleep(0)
    return ReassignmentList(metadata=list_metadata(request, broker.cluster_id, *path), data=tuple(found))


@router.get(
    f"{_TOPIC}/partitions/-/reassignment",
    operation_id="listTopicReassignments",
    response_description="The reassignments that are under way.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def list_of_topic(
    request: Request, context: Context, broker: ClusterBroker, topic: TopicInCluster
) -> ReassignmentList:
    """List the reassignments of a topic."""
    path = ("topics", topic.name, "partitions", "-", "reassignment")
    return ReassignmentList(
        metadata=list_metadata(request, broker.cluster_id, *path),
        data=tuple(_of_topic(request, context, broker, topic)),
    )


@router.get(_PARTITION, operation_id="getReassignment", response_description="The reassignment.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_reassignment(
    request: Request, context: Context, broker: ClusterBroker, topic: TopicInCluster, log: PartitionInCluster
) -> Reassignment:
    """Return the reassignment of a partition."""
    state = broker.topics.leaders.partition_state(context, topic, log.partition)
    if not state.is_reassigning:
        raise NoReassignmentInProgressError(f"The partition {topic.name}-{log.partition} is not being reassigned.")
    return _reassignment(request, broker, topic, log.partition, state)


@router.put(
    _PARTITION,
    operation_id="reassignPartition",
    status_code=202,
    response_description="The reassignment has begun, or there was nothing to move.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER, ResourceType.TOPIC, target=Target.CONTROLLER)
async def reassign(
    request: Request,
    context: Context,
    broker: ClusterBroker,
    topic: TopicInCluster,
    log: PartitionInCluster,
    asked: ReassignRequest,
) -> Reassignment:
    """Move the partition to other brokers, as Kafka's AlterPartitionReassignments does: the new replicas copy it, and
    once all of them are in sync the others go. It replaces a reassignment under way.
    """
    await broker.topics.leaders.reassign(context, topic, {log.partition: asked.replicas})
    state = broker.topics.leaders.partition_state(context, topic, log.partition)
    return _reassignment(request, broker, topic, log.partition, state)


@router.delete(
    _PARTITION,
    operation_id="cancelReassignment",
    status_code=204,
    response_description="The partition moves back.",
    responses=refusals(503),
)
@requires(Operation.ALTER, ResourceType.TOPIC, target=Target.CONTROLLER)
async def cancel(context: Context, broker: ClusterBroker, topic: TopicInCluster, log: PartitionInCluster) -> None:
    """Cancel a reassignment that is under way."""
    await broker.topics.leaders.reassign(context, topic, {log.partition: None})


def _of_topic(request: Request, context: RequestContext, broker: Broker, topic: Topic) -> list[Reassignment]:
    return [
        _reassignment(request, broker, topic, number, state)
        for number, state in enumerate(broker.topics.leaders.partition_states(context, topic))
        if state.is_reassigning
    ]


def _reassignment(
    request: Request, broker: Broker, topic: Topic, partition: int, state: PartitionState
) -> Reassignment:
    whole = resource_metadata(request, broker, topic=topic.name, partition=str(partition))
    metadata = ResourceMetadata(
        self=reassignment_link(request, broker, topic.name, str(partition)),
        resource_name=f"{whole.resource_name}/reassignment",
    )
    path = (broker.cluster_id, "topics", topic.name, "partitions", str(partition), "replicas")
    return Reassignment(
        metadata=metadata,
        cluster_id=broker.cluster_id,
        topic_name=topic.name,
        partition_id=partition,
        adding_replicas=tuple(state.adding_replicas),
        removing_replicas=tuple(state.removing_replicas),
        replicas=Link(related=link(request, *path)),
    )
