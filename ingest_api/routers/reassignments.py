"""Reassignments of partitions to other brokers in REST v3 shapes. One broker has all replicas: there are none."""

from starlette.requests import Request

from ingest_api.dependencies import ClusterBroker, PartitionInCluster, TopicInCluster
from ingest_api.errors import NoSuchResourceError
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.routers.links import list_metadata
from ingest_api.routes import requires
from ingest_api.schemas.administration import Reassignment, ReassignmentList
from logstore.broker.authorizer import Operation, ResourceType

_TOPIC = "/v3/clusters/{cluster_id}/topics/{topic}"

router = model_router(AdministrationRoute, tags=["administration"])


@router.get(
    "/v3/clusters/{cluster_id}/topics/-/partitions/-/reassignment",
    operation_id="listReassignments",
    response_description="The reassignments that are under way.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_all(request: Request, broker: ClusterBroker) -> ReassignmentList:
    """The reassignments of all topics."""
    path = ("topics", "-", "partitions", "-", "reassignment")
    return ReassignmentList(metadata=list_metadata(request, broker.cluster_id, *path), data=[])


@router.get(
    f"{_TOPIC}/partitions/-/reassignment",
    operation_id="listTopicReassignments",
    response_description="The reassignments that are under way.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def list_of_topic(request: Request, broker: ClusterBroker, topic: TopicInCluster) -> ReassignmentList:
    """The reassignments of a topic."""
    path = ("topics", topic.name, "partitions", "-", "reassignment")
    return ReassignmentList(metadata=list_metadata(request, broker.cluster_id, *path), data=[])


@router.get(
    f"{_TOPIC}/partitions/{{partition}}/reassignment",
    operation_id="getReassignment",
    response_description="The reassignment.",
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_reassignment(topic: TopicInCluster, log: PartitionInCluster) -> Reassignment:
    """The reassignment of a partition."""
    raise NoSuchResourceError(f"The partition {topic.name}-{log.partition} is not being reassigned.")
