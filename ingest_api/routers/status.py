"""The state of the whole store in one answer, for people and their tools: no disk is read for it."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.parameters import read_query
from ingest_api.routes import declared_router, requires
from ingest_api.state import ApiState, api_state
from logstore import __version__
from logstore.broker.access import Operation, ResourceType
from logstore.broker.broker import Broker, Topic
from logstore.open_files import connections_within, open_files_limit

router = declared_router(tags=["health"])


@router.get("/status", **openapi.STATUS)
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def status(request: Request) -> Response:
    """What `logstore status` and `logstore topic list` show: the store, its topics, and what is wrong with them."""
    read_query(request)
    return json_response(_status(api_state(request)))


def _status(state: ApiState) -> dict[str, Any]:
    broker, settings = state.broker, state.settings
    limit = open_files_limit()
    return {
        "version": __version__,
        "cluster_id": broker.cluster_id,
        "broker_id": broker.broker_id,
        "now": broker.clock.now_ms(),
        "uptime_ms": round((broker.clock.monotonic() - state.began) * 1000),
        "not_ready_reason": state.not_ready_reason,
        "topics": [_topic(broker, topic) for topic in broker.topics(include_internal=True)],
        "problems": broker.problems(),
        "journal": {
            "needed_bytes": broker.journal.needed_bytes,
            "retained_bytes": broker.journal.retained_bytes,
            "max_bytes": settings.journal_max_bytes,
        },
        "in_flight": {
            "request_bytes": state.requests.reserved,
            "answer_bytes": state.answers.reserved,
            "max_bytes": settings.queued_max_request_bytes,
        },
        "max_connections": settings.max_connections,
        "connections_taken_max": connections_within(settings.max_connections, limit),
        "open_files_max": limit,
    }


def _topic(broker: Broker, topic: Topic) -> dict[str, Any]:
    logs = topic.partitions
    newest = [at for log in logs if (at := log.newest_timestamp_ms) is not None]
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "is_internal": topic.is_internal,
        "partitions": len(logs),
        "replication_factor": len(broker.partition_state(topic, 0).replicas),
        "records": sum(log.record_count for log in logs),
        "size_bytes": sum(log.size_bytes for log in logs),
        "unsealed_records": sum(log.high_watermark - log.sealed_offset for log in logs),
        "unsealed_bytes": sum(log.unsealed_bytes for log in logs),
        "newest_timestamp": max(newest, default=None),
    }
