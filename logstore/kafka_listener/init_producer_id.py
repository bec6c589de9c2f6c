"""InitProducerId (22), versions 0 to 5: the id of an idempotent producer, or its next epoch (KIP-360).

The store has no transactions yet. A transactional id is refused with UNSUPPORTED_VERSION: of the errors that clients
may get here it is the one whose text says in all of them that the broker cannot do it. The Java client, kafka-python
and aiokafka raise it at once; librdkafka tries until its timeout ends, and raises it then.
TRANSACTIONAL_ID_AUTHORIZATION_FAILED would end librdkafka at once, but its user would look for a permission.
"""

from logstore.broker.context import RequestContext
from logstore.errors import InvalidRequestError, LogStoreError, UnsupportedVersionError
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import InitProducerIdRequest, InitProducerIdResponse


async def init_producer_id(
    store: KafkaStore,
    context: RequestContext,
    request: InitProducerIdRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> InitProducerIdResponse:
    try:
        if request.transactional_id is not None:
            raise UnsupportedVersionError("This release has no transactions: produce without a transactional.id.")
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise InvalidRequestError("A producer has an id and an epoch, or neither of them.")
        producer_id = None if request.producer_id < 0 else request.producer_id
        made = await store.broker.produce.records.init_producer(context, producer_id, request.producer_epoch)
    except LogStoreError as error:
        return InitProducerIdResponse(error_code=number_of(error), producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=made.producer_id, producer_epoch=made.producer_epoch)
