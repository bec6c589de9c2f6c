"""Health: liveness and readiness of the process, for load balancers and supervisors."""

from ingest_api.dependencies import Context, State
from ingest_api.model_routes import model_router
from ingest_api.operations import refusals
from ingest_api.routes import open_to_all
from logstore.errors import BrokerNotReadyError
from logstore.protocol.messages.status import Health, Readiness, TopicProblem

router = model_router(tags=["health"])


@router.get("/health/live", operation_id="getLiveness", response_description="The process lives.")
@open_to_all
async def live() -> Health:
    """Respond if the process lives, also while the store starts. Restart the process when this response does not
    come.
    """
    return Health(status="live")


@router.get(
    "/health/ready",
    operation_id="getReadiness",
    response_description="The store takes appends.",
    responses=refusals(503),
)
@open_to_all
async def ready(state: State, context: Context) -> Readiness:
    """Check that the store takes appends; otherwise 503 with the reason, for example that the store is starting.

    It is also ready when some topics are not served: `problems` names them.
    """
    if state.not_ready_reason is not None:
        raise BrokerNotReadyError(f"Not ready: {state.not_ready_reason}.")
    problems = tuple(TopicProblem.of(found) for found in state.broker.topics.problems.all(context))
    return Readiness(status="ready", problems=problems)
