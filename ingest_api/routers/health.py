"""Whether the process lives, and whether it takes records: for load balancers and supervisors."""

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.guard import context_of
from ingest_api.parameters import read_query
from ingest_api.routes import declared_router, open_to_all
from ingest_api.state import api_state
from logstore.errors import BrokerNotReadyError

router = declared_router(prefix="/health", tags=["health"])


@router.get("/live", **openapi.LIVE)
@open_to_all
async def live(request: Request) -> Response:
    """The process answers, also while the store starts. Restart it when this does not come."""
    read_query(request)
    return json_response({"status": "live"})


@router.get("/ready", **openapi.READY)
@open_to_all
async def ready(request: Request) -> Response:
    """The store takes appends; else 503 with the reason, the first of which is that it is starting.

    Ready, too, when some topics are not served: `problems` names them.
    """
    read_query(request)
    state = api_state(request)
    if state.not_ready_reason is not None:
        raise BrokerNotReadyError(f"Not ready: {state.not_ready_reason}.")
    return json_response({"status": "ready", "problems": state.broker.problems(context_of(request))})
