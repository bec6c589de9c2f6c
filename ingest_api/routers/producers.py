"""Ids for idempotent producers (KIP-98)."""

from starlette.requests import Request
from starlette.responses import Response

from ingest_api import openapi
from ingest_api.answers import json_response
from ingest_api.bodies import receive_model_or_none
from ingest_api.content_types import METADATA_TYPES, answer_media_type
from ingest_api.parameters import read_query
from ingest_api.routes import declared_router, requires
from ingest_api.schemas import InitProducerRequest
from ingest_api.state import api_state
from logstore.broker.access import Operation, ResourceType

router = declared_router(tags=["records"])


@router.post("/producers", **openapi.INIT_PRODUCER)
@requires(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
async def init_producer(request: Request) -> Response:
    """Hand out a producer id with epoch 0; for an id and its epoch, the same id with the next epoch."""
    read_query(request)
    media_type = answer_media_type(request.headers, METADATA_TYPES)
    asked = await receive_model_or_none(request, InitProducerRequest)
    broker = api_state(request).broker
    got = await (
        broker.init_producer() if asked is None else broker.init_producer(asked.producer_id, asked.producer_epoch)
    )
    return json_response(got._asdict(), media_type=media_type)
