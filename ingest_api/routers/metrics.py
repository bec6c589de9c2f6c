"""Metrics for Prometheus."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.parameters import read_query
from ingest_api.state import api_state
from logstore.observability import IN_FLIGHT_BYTES, METRICS_CONTENT_TYPE, UNSEALED_RECORDS, render_metrics

router = APIRouter(tags=["health"])


@router.get("/metrics", **openapi.METRICS)
async def metrics(request: Request) -> Response:
    """All metrics in Prometheus' text format."""
    read_query(request)
    state = api_state(request)
    # Gauges are read off when somebody looks.
    IN_FLIGHT_BYTES.set(state.requests.reserved)
    for topic in state.broker.topics(include_internal=True):
        unsealed = sum(log.log_end_offset - log.sealed_offset for log in topic.partitions)
        UNSEALED_RECORDS.labels(topic.name).set(unsealed)
    return Response(render_metrics(), media_type=METRICS_CONTENT_TYPE)
