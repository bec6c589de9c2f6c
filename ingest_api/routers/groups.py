"""Consumer groups: what they have committed, and how far behind they are."""

from starlette.requests import Request
from starlette.responses import Response

from consumer_offsets.group_coordinator import OffsetToCommit
from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.bodies import receive_model
from ingest_api.content_types import METADATA_TYPES, answer_media_type
from ingest_api.guard import context_of
from ingest_api.parameters import TOPIC, read_query, read_text_query
from ingest_api.routes import declared_router, requires
from ingest_api.schemas import CommitOffsetsRequest
from ingest_api.state import api_state
from logstore.broker.access import Operation, ResourceType

router = declared_router(tags=["groups"])


@router.get("/groups", **openapi.LIST_GROUPS)
@requires(Operation.DESCRIBE, ResourceType.GROUP, names_in="answer")
async def list_groups(request: Request) -> Response:
    """Names of all groups that have committed something, sorted."""
    read_query(request)
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    state = api_state(request)
    return json_response(state.groups.groups(context_of(request)), media_type=media_type)


@router.post("/groups/{group}/offsets", **openapi.COMMIT_OFFSETS)
@requires(Operation.READ, ResourceType.GROUP)
async def commit_offsets(request: Request) -> Response:
    """Commit offsets, all of them or none, also lower ones than before; answers when that is durable."""
    read_query(request)
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    state, asked = api_state(request), await receive_model(request, CommitOffsetsRequest)
    offsets = [
        OffsetToCommit(entry.topic, entry.partition, entry.offset, entry.metadata or "", entry.topic_id)
        for entry in asked.offsets
    ]
    await state.groups.commit(context_of(request), request.path_params["group"], offsets)
    return json_response({"offsets": [_committed(offset) for offset in offsets]}, media_type=media_type)


@router.get("/groups/{group}/offsets", **openapi.GET_GROUP_OFFSETS)
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_offsets(request: Request) -> Response:
    """What the group has committed, by topic and partition."""
    topic = read_text_query(request, TOPIC)
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    state = api_state(request)
    committed = state.groups.committed(context_of(request), request.path_params["group"], topic)
    return json_response({"offsets": committed}, media_type=media_type)


@router.get("/groups/{group}/lag", **openapi.GET_GROUP_LAG)
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_lag(request: Request) -> Response:
    """How many offsets there are between what the group has committed and the end, by topic and partition."""
    read_query(request)
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    group = request.path_params["group"]
    lags = api_state(request).groups.lag(context_of(request), group)
    answer = {
        "group": group,
        "total_lag": sum(found.lag for found in lags),
        "max_lag": max((found.lag for found in lags), default=0),
        "partitions": lags,
    }
    return json_response(answer, media_type=media_type)


@router.delete("/groups/{group}", status_code=204, **openapi.DELETE_GROUP)
@requires(Operation.DELETE, ResourceType.GROUP)
async def delete_group(request: Request) -> Response:
    """Take back all that the group has committed."""
    read_query(request)
    await api_state(request).groups.delete(context_of(request), request.path_params["group"])
    return Response(status_code=204)


def _committed(offset: OffsetToCommit) -> dict[str, str | int]:
    return {
        "topic": offset.topic,
        "partition": offset.partition,
        "offset": offset.offset,
        "metadata": offset.metadata,
    }
