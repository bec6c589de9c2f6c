"""Whether the process lives, and whether it takes records: for load balancers and supervisors."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.parameters import read_query
from ingest_api.state import api_state
from logstore.errors import BrokerNotReadyError

router = APIRouter(prefix="/health", tags=["health"])


@router.get("/live", **openapi.LIVE)
async def live(request: Request) -> Response:
    """The process answers, also while the store starts. Restart it when this does not come."""
    read_query(request)
    return json_response({"status": "live"})


@router.get("/ready", **openapi.READY)
async def ready(request: Request) -> Response:
    """The store takes appends; else 503 with the reason, the first of which is that it is starting.

    Ready, too, when some topics are not served: `problems` names them.
    """
    read_query(request)
    state = api_state(request)
    reason = state.not_ready_reason
    if reason is not None:
        raise BrokerNotReadyError(f"Not ready: {reason}.")
    return json_response({"status": "ready", "problems": api_state(request).broker.problems()})
