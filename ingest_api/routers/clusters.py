"""Clusters and topics in REST v3 shapes: the administration of topics."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.bodies import receive_model
from ingest_api.content_types import JSON, answer_media_type
from ingest_api.guard import context_of
from ingest_api.parameters import read_query, shown
from ingest_api.routes import declared_router, requires
from ingest_api.schemas import ConfigEntry, CreateTopicRequest, UpdateTopicRequest
from ingest_api.state import api_state
from logstore.broker.access import Operation, ResourceType
from logstore.broker.broker import Broker, Topic
from logstore.broker.topics import DEFAULT_REPLICATION_FACTOR
from logstore.errors import InvalidConfigError, UnknownClusterError

router = declared_router(tags=["administration"])


def broker_of(request: Request) -> Broker:
    """The broker, when the path names its cluster. Raises UnknownClusterError."""
    broker = api_state(request).broker
    cluster_id = request.path_params["cluster_id"]
    if cluster_id != broker.cluster_id:
        raise UnknownClusterError(
            f"Cluster {shown(cluster_id)} not found: this is {broker.cluster_id!r}, as GET /v3/clusters says."
        )
    return broker


def link(request: Request, *parts: str) -> str:
    """The URL of a resource below ``/v3/clusters``, as this client reaches it."""
    host = request.headers.get("host")
    if host is None:
        host = "{}:{}".format(*(request.scope.get("server") or ("localhost", 80)))
    path = "/".join(quote(part, safe=":") for part in ("v3", "clusters", *parts))
    return f"{request.scope['scheme']}://{host}/{path}"


def config_changes(entries: Sequence[ConfigEntry]) -> dict[str, str | None]:
    """Names to values; InvalidConfigError for a name that is there twice."""
    changes: dict[str, str | None] = {}
    for entry in entries:
        if entry.name in changes:
            raise InvalidConfigError(f"The configuration {shown(entry.name)} is given twice: send it once.")
        changes[entry.name] = entry.value
    return changes


def _cluster(request: Request, broker: Broker) -> dict[str, Any]:
    return {
        "kind": "KafkaCluster",
        "metadata": {"self": link(request, broker.cluster_id), "resource_name": f"crn:///kafka={broker.cluster_id}"},
        "cluster_id": broker.cluster_id,
        "topics": {"related": link(request, broker.cluster_id, "topics")},
    }


def _topic(request: Request, broker: Broker, name: str, topic: Topic | None, partitions_count: int) -> dict[str, Any]:
    path = (broker.cluster_id, "topics", name)
    return {
        "kind": "KafkaTopic",
        "metadata": {
            "self": link(request, *path),
            "resource_name": f"crn:///kafka={broker.cluster_id}/topic={name}",
        },
        "cluster_id": broker.cluster_id,
        "topic_name": name,
        "topic_id": str(topic.topic_id) if topic else None,
        "is_internal": topic.is_internal if topic else False,
        "replication_factor": len(broker.partition_state(topic, 0).replicas) if topic else DEFAULT_REPLICATION_FACTOR,
        "partitions_count": partitions_count,
        "partitions": {"related": f"{link(request).removesuffix('/v3/clusters')}/topics/{quote(name)}/partitions"},
        "configs": {"related": link(request, *path, "configs")},
    }


@router.get("/v3/clusters", **openapi.LIST_CLUSTERS)
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def list_clusters(request: Request) -> Response:
    """The one cluster that this server belongs to."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    cluster = _cluster(request, api_state(request).broker)
    metadata = {"self": link(request), "next": None}
    return json_response({"kind": "KafkaClusterList", "metadata": metadata, "data": [cluster]})


@router.get("/v3/clusters/{cluster_id}", **openapi.GET_CLUSTER)
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def get_cluster(request: Request) -> Response:
    """The cluster of this server."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    return json_response(_cluster(request, broker_of(request)))


@router.get("/v3/clusters/{cluster_id}/topics", **openapi.LIST_CLUSTER_TOPICS)
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_cluster_topics(request: Request) -> Response:
    """All topics, internal ones too, by name."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    broker = broker_of(request)
    found = broker.topics(include_internal=True)
    names = [topic.name for topic in found]
    access = api_state(request).access
    shown = set(access.authorize(context_of(request), Operation.DESCRIBE, ResourceType.TOPIC, names))
    topics = [
        _topic(request, broker, topic.name, topic, len(topic.partitions)) for topic in found if topic.name in shown
    ]
    metadata = {"self": link(request, broker.cluster_id, "topics"), "next": None}
    return json_response({"kind": "KafkaTopicList", "metadata": metadata, "data": topics})


@router.post("/v3/clusters/{cluster_id}/topics", status_code=201, **openapi.CREATE_TOPIC)
@requires(Operation.CREATE, ResourceType.TOPIC, names_in="body")
async def create_topic(request: Request) -> Response:
    """Create a topic; with `validate_only` only check that it could be."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    broker = broker_of(request)
    asked = await receive_model(request, CreateTopicRequest)
    api_state(request).access.require(context_of(request), Operation.CREATE, ResourceType.TOPIC, asked.topic_name)
    topic = await broker.create_topic(
        asked.topic_name,
        partitions=asked.partitions_count,
        replication_factor=asked.replication_factor,
        configs=config_changes(asked.configs),
        validate_only=asked.validate_only,
    )
    if topic is None:
        count = asked.partitions_count or broker.settings.num_partitions
        return json_response(_topic(request, broker, asked.topic_name, None, count))
    answer = _topic(request, broker, topic.name, topic, len(topic.partitions))
    return json_response(answer, status=201, headers={"Location": answer["metadata"]["self"]})


@router.get("/v3/clusters/{cluster_id}/topics/{topic}", **openapi.GET_CLUSTER_TOPIC)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_cluster_topic(request: Request) -> Response:
    """One topic."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    broker = broker_of(request)
    topic = broker.topic(request.path_params["topic"])
    return json_response(_topic(request, broker, topic.name, topic, len(topic.partitions)))


@router.patch("/v3/clusters/{cluster_id}/topics/{topic}", **openapi.UPDATE_TOPIC)
@requires(Operation.ALTER, ResourceType.TOPIC)
async def update_topic(request: Request) -> Response:
    """Grow the number of partitions. Records stay where they are; keys hash to other partitions from now on."""
    read_query(request)
    answer_media_type(request.headers, (JSON,))
    broker = broker_of(request)
    name = broker.topic(request.path_params["topic"]).name
    asked = await receive_model(request, UpdateTopicRequest)
    topic = await broker.add_partitions(name, asked.partitions_count)
    return json_response(_topic(request, broker, topic.name, topic, len(topic.partitions)))


@router.delete("/v3/clusters/{cluster_id}/topics/{topic}", status_code=204, **openapi.DELETE_TOPIC)
@requires(Operation.DELETE, ResourceType.TOPIC)
async def delete_topic(request: Request) -> Response:
    """Delete a topic and its Delta table."""
    read_query(request)
    await broker_of(request).delete_topic(request.path_params["topic"])
    return Response(status_code=204)
