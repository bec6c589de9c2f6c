"""Metrics for Prometheus."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import operations
from ingest_api.guard import context_of
from ingest_api.parameters import read_query
from ingest_api.routes import declared_router, requires
from ingest_api.state import api_state
from ingest_api.store_metrics import observe, render
from logstore.broker.authorizer import Operation, ResourceType
from logstore.observability import IN_FLIGHT_BYTES, METRICS_CONTENT_TYPE, render_metrics

router = declared_router(tags=["health"])


@router.get("/metrics", **operations.METRICS)
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format; while the store starts, only those of the process."""
    read_query(request)
    if request.app.state.api is None:
        return Response(render_metrics(), media_type=METRICS_CONTENT_TYPE)
    state = api_state(request)
    IN_FLIGHT_BYTES.set(state.requests.reserved)
    observed = await observe(context_of(request), state.broker, state.groups)
    # This runs in a thread, because with thousands of series it takes tens of milliseconds.
    body = await asyncio.to_thread(lambda: render_metrics() + render(observed))
    return Response(body, media_type=METRICS_CONTENT_TYPE)
