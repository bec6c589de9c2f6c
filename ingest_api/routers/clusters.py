"""Clusters and topics in REST v3 shapes: the administration of topics."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from ingest_api.dependencies import ClusterBroker, Context, StoreBroker, TopicInCluster, TopicName
from ingest_api.message_models import model_of
from ingest_api.model_routes import AdministrationRoute, model_router
from ingest_api.operations import refusals
from ingest_api.parameters import shown
from ingest_api.routers.links import link, list_metadata, reassignment_link, resource_metadata
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.elsewhere.forwarding import Target
from logstore.errors import InvalidConfigError
from logstore.log.topic import Topic
from logstore.protocol.messages.administration import (
    Cluster,
    ClusterList,
    ClusterTopic,
    ClusterTopicList,
    ConfigEntry,
    CreateTopicRequest,
    Link,
    UpdateTopicRequest,
)

router = model_router(AdministrationRoute, tags=["administration"])


@router.get("/v3/clusters", operation_id="listClusters", response_description="This cluster, alone.")
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def list_clusters(request: Request, broker: StoreBroker) -> ClusterList:
    """List the one cluster that this server belongs to."""
    return ClusterList(metadata=list_metadata(request), data=(_cluster(request, broker),))


@router.get("/v3/clusters/{cluster_id}", operation_id="getCluster", response_description="This cluster.")
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def get_cluster(request: Request, broker: ClusterBroker) -> Cluster:
    """Return the cluster of this server."""
    return _cluster(request, broker)


@router.get("/v3/clusters/{cluster_id}/topics", operation_id="listClusterTopics", response_description="All topics.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_cluster_topics(request: Request, context: Context, broker: ClusterBroker) -> ClusterTopicList:
    """List all topics by name, including internal ones."""
    topics = broker.topics.served.all(context, include_internal=True)
    return ClusterTopicList(
        metadata=list_metadata(request, broker.cluster_id, "topics"),
        data=tuple(_topic(request, broker, topic) for topic in topics),
    )


@router.post(
    "/v3/clusters/{cluster_id}/topics",
    operation_id="createTopic",
    status_code=201,
    response_description="Created, durably.",
    responses={
        200: {"model": model_of(ClusterTopic), "description": "The topic could be created (`validate_only`)."},
        **refusals(400, 503),
    },
)
@requires(Operation.CREATE, ResourceType.TOPIC, names_in="body", target=Target.CONTROLLER)
async def create_topic(
    request: Request,
    response: Response,
    context: Context,
    broker: ClusterBroker,
    asked: CreateTopicRequest,
) -> ClusterTopic:
    """Create a topic; with `validate_only` only check that it could be."""
    topic = await broker.topics.changes.create(
        context,
        asked.topic_name,
        partitions=asked.partitions_count,
        replication_factor=asked.replication_factor,
        configs=config_changes(asked.configs),
        validate_only=asked.validate_only,
    )
    if topic is None:
        response.status_code = 200
        count = asked.partitions_count or broker.settings.num_partitions
        return _described(request, broker, asked.topic_name, count)
    answer = _topic(request, broker, topic)
    response.headers["Location"] = answer.metadata.self
    return answer


@router.get(
    "/v3/clusters/{cluster_id}/topics/{topic}", operation_id="getClusterTopic", response_description="The topic."
)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_cluster_topic(request: Request, broker: ClusterBroker, topic: TopicInCluster) -> ClusterTopic:
    """Return one topic."""
    return _topic(request, broker, topic)


@router.patch(
    "/v3/clusters/{cluster_id}/topics/{topic}",
    operation_id="updateTopic",
    response_description="The topic as it is now.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER, ResourceType.TOPIC, target=Target.CONTROLLER)
async def update_topic(
    request: Request, context: Context, broker: ClusterBroker, topic: TopicInCluster, asked: UpdateTopicRequest
) -> ClusterTopic:
    """Grow the number of partitions. Records stay where they are; keys hash to other partitions from now on."""
    return _topic(
        request, broker, await broker.topics.changes.add_partitions(context, topic.name, asked.partitions_count)
    )


@router.delete(
    "/v3/clusters/{cluster_id}/topics/{topic}",
    operation_id="deleteTopic",
    status_code=204,
    response_description="Done.",
    responses=refusals(503),
)
@requires(Operation.DELETE, ResourceType.TOPIC, target=Target.CONTROLLER)
async def delete_topic(broker: ClusterBroker, context: Context, name: TopicName) -> None:
    """Delete a topic and its Delta table."""
    await broker.topics.changes.delete(context, name)


def config_changes(entries: Sequence[ConfigEntry]) -> dict[str, str | None]:
    """Return the value of each name. Raises InvalidConfigError if a name occurs twice."""
    changes: dict[str, str | None] = {}
    for entry in entries:
        if entry.name in changes:
            raise InvalidConfigError(f"The configuration {shown(entry.name)} is given twice: send it once.")
        changes[entry.name] = entry.value
    return changes


def _cluster(request: Request, broker: Broker) -> Cluster:
    return Cluster(
        metadata=resource_metadata(request, broker),
        cluster_id=broker.cluster_id,
        controller=None
        if broker.controller_id is None
        else Link(related=link(request, broker.cluster_id, "brokers", str(broker.controller_id))),
        brokers=Link(related=link(request, broker.cluster_id, "brokers")),
        consumer_groups=Link(related=link(request, broker.cluster_id, "consumer-groups")),
        topics=Link(related=link(request, broker.cluster_id, "topics")),
        partition_reassignments=Link(related=reassignment_link(request, broker, "-", "-")),
    )


def _topic(request: Request, broker: Broker, topic: Topic) -> ClusterTopic:
    return _described(request, broker, topic.name, len(topic.partitions), topic)


def _described(
    request: Request, broker: Broker, name: str, partitions_count: int, topic: Topic | None = None
) -> ClusterTopic:
    """Return the response for a topic; ``topic`` is None while no topic has this name."""
    # INTERNAL: a client that created or grew the topic sees it, without the permission to describe it.
    replicas = broker.settings.default_replication_factor
    if topic is not None:
        replicas = len(broker.topics.leaders.partition_state(INTERNAL, topic, 0).replicas)
    return ClusterTopic(
        metadata=resource_metadata(request, broker, topic=name),
        cluster_id=broker.cluster_id,
        topic_name=name,
        topic_id=str(topic.topic_id) if topic else None,
        is_internal=topic.is_internal if topic else False,
        replication_factor=replicas,
        partitions_count=partitions_count,
        partitions=Link(related=link(request, broker.cluster_id, "topics", name, "partitions")),
        configs=Link(related=link(request, broker.cluster_id, "topics", name, "configs")),
        partition_reassignments=Link(related=reassignment_link(request, broker, name, "-")),
    )
