"""Ids for idempotent producers (KIP-98)."""

from ingest_api.dependencies import Context, StoreBroker
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.protocol.messages.records import InitProducerRequest, Producer

router = model_router(MetadataRoute, tags=["records"])


@router.post(
    "/producers",
    operation_id="initProducer",
    response_description="A unique id, and the epoch to send with it.",
    responses=refusals(400, 503),
)
@requires(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
async def init_producer(broker: StoreBroker, context: Context, asked: InitProducerRequest | None = None) -> Producer:
    """Hand out a producer id with epoch 0; for an id and its epoch, the same id with the next epoch."""
    identity = () if asked is None else (asked.producer_id, asked.producer_epoch)
    issued = await broker.produce.records.init_producer(context, *identity)
    return Producer(producer_id=issued.producer_id, producer_epoch=issued.producer_epoch)
