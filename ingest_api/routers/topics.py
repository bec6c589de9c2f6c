"""Topics and their partitions in REST Proxy v2 shapes; rolling a topic into its Delta table, and looking at that."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.bodies import receive_model_or_none
from ingest_api.content_types import METADATA_TYPES, answer_media_type
from ingest_api.guard import context_of
from ingest_api.parameters import partition_in_path, read_query
from ingest_api.routes import declared_router, requires
from ingest_api.schemas import DropForeignFilesRequest, RefreshRequest, RollRequest
from ingest_api.state import api_state
from logstore.broker.access import Operation, ResourceType
from logstore.broker.broker import Broker, PartitionLog, Topic

router = declared_router(tags=["topics"])


@router.get("/topics", **openapi.LIST_TOPICS)
@requires(Operation.DESCRIBE, ResourceType.TOPIC, names_in="answer")
async def list_topics(request: Request) -> Response:
    """Names of all topics that are not internal, sorted."""
    read_query(request)
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    state = api_state(request)
    names = [topic.name for topic in state.broker.topics()]
    shown = state.access.authorize(context_of(request), Operation.DESCRIBE, ResourceType.TOPIC, names)
    return json_response(shown, media_type=media_type)


@router.get("/topics/{topic}", **openapi.GET_TOPIC)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_topic(request: Request) -> Response:
    """One topic: its configuration, where its Delta table is, and the state of each partition."""
    read_query(request)
    broker = api_state(request).broker
    topic = broker.topic(request.path_params["topic"])
    answer = {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "location": topic.location,
        "is_internal": topic.is_internal,
        "configs": topic.config.as_strings(),
        "partitions": [_partition(broker, topic, found) for found in topic.partitions],
    }
    return json_response(answer, media_type=answer_media_type(request.headers, METADATA_TYPES))


@router.get("/topics/{topic}/partitions", **openapi.LIST_PARTITIONS)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def list_partitions(request: Request) -> Response:
    """The state of each partition."""
    read_query(request)
    broker = api_state(request).broker
    topic: Topic = broker.topic(request.path_params["topic"])
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    return json_response([_partition(broker, topic, found) for found in topic.partitions], media_type=media_type)


@router.get("/topics/{topic}/partitions/{partition}", **openapi.GET_PARTITION)
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_partition(request: Request) -> Response:
    """The state of one partition."""
    read_query(request)
    broker = api_state(request).broker
    topic = broker.topic(request.path_params["topic"])
    found = topic.partition(partition_in_path(request))
    return json_response(
        _partition(broker, topic, found), media_type=answer_media_type(request.headers, METADATA_TYPES)
    )


@router.post("/topics/{topic}/roll", **openapi.ROLL)
@requires(Operation.ALTER, ResourceType.TOPIC)
async def roll(request: Request) -> Response:
    """Put everything acknowledged into the Delta table now; answers when the commit is durable."""
    read_query(request)
    broker = api_state(request).broker
    topic = broker.topic(request.path_params["topic"])
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    await receive_model_or_none(request, RollRequest)
    rolled = await broker.roll(topic)
    sealed = [{"partition": partition, "sealed_offset": offset} for partition, offset in sorted(rolled.sealed.items())]
    return json_response({"version": rolled.version, "sealed_offsets": sealed}, media_type=media_type)


@router.post("/topics/{topic}/refresh", **openapi.REFRESH)
@requires(Operation.ALTER, ResourceType.TOPIC)
async def refresh(request: Request) -> Response:
    """Read now what others, such as jobs, committed to the Delta table; without it the store looks by itself."""
    read_query(request)
    broker = api_state(request).broker
    topic = broker.topic(request.path_params["topic"])
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    await receive_model_or_none(request, RefreshRequest)
    return json_response({"version": await broker.refresh(topic)}, media_type=media_type)


@router.post("/topics/{topic}/drop-foreign-files", **openapi.DROP_FOREIGN_FILES)
@requires(Operation.ALTER, ResourceType.TOPIC)
async def drop_foreign_files(request: Request) -> Response:
    """Take files that other writers added out of the Delta table, so that its partitions are served again."""
    read_query(request)
    broker = api_state(request).broker
    topic = broker.topic(request.path_params["topic"])
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    await receive_model_or_none(request, DropForeignFilesRequest)
    return json_response({"files": await broker.drop_foreign_files(topic)}, media_type=media_type)


def _partition(broker: Broker, topic: Topic, log: PartitionLog) -> dict[str, Any]:
    state = broker.partition_state(topic, log.partition)
    return {
        "partition": log.partition,
        "leader": state.leader,
        "replicas": [
            {"broker": replica, "leader": replica == state.leader, "in_sync": replica in state.in_sync_replicas}
            for replica in state.replicas
        ],
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "last_stable_offset": log.last_stable_offset,
        "sealed_offset": log.sealed_offset,
        "leader_epoch": log.leader_epoch,
        "segments": log.segment_count,
        "size_bytes": log.size_bytes,
        "unsealed_bytes": log.unsealed_bytes,
    }
