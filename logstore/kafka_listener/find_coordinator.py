"""FindCoordinator (10): the broker that coordinates a group; several groups since version 4."""

from typing import Final

from consumer_offsets.steps import in_steps
from logstore.broker.context import RequestContext
from logstore.errors import CoordinatorNotAvailableError, InvalidRequestError, LogStoreError
from logstore.kafka_listener.group_errors import group_error_number
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SEVERAL_KEYS: Final = 4
_NO_NODE: Final = -1

Coordinator = FindCoordinatorResponse.Coordinator


async def find_coordinator(
    store: KafkaStore, context: RequestContext, request: FindCoordinatorRequest, version: int
) -> FindCoordinatorResponse:
    """Find coordinators. In a cluster the first request makes the topic of groups, as in Kafka; until then clients ask
    again.
    """
    if version >= _SEVERAL_KEYS:
        keys = in_steps(request.coordinator_keys)
        coordinators = [await _coordinator(store, context, request.key_type, key) async for key in keys]
        return FindCoordinatorResponse(coordinators=coordinators)
    found = await _coordinator(store, context, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _coordinator(store: KafkaStore, context: RequestContext, key_type: int, key: str) -> Coordinator:
    try:
        node_id, (host, port) = await _find(store, context, key_type, key)
    except LogStoreError as error:
        return Coordinator(
            key=key,
            node_id=_NO_NODE,
            port=_NO_NODE,
            error_code=group_error_number(error),
            error_message=error.message,
        )
    return Coordinator(key=key, node_id=node_id, host=host, port=port)


async def _find(store: KafkaStore, context: RequestContext, key_type: int, key: str) -> tuple[int, tuple[str, int]]:
    if key_type == _TRANSACTION and (here := store.endpoint(store.node_id)) is not None:
        # There are no transactions. InitProducerId refuses them: librdkafka would report an error here only as a
        # time-out.
        return store.node_id, here
    if key_type != _GROUP:
        raise InvalidRequestError(f"The store coordinates groups (key type 0), nothing of key type {key_type}.")
    await store.groups.until_there(context, key)
    node_id = store.groups.coordinator_of(context, key)
    if store.broker.elsewhere.is_alone:
        node_id = store.node_id  # A single node coordinates all groups, even before it has made the topic of groups.
    endpoint = store.endpoint(node_id)
    if endpoint is None:
        raise CoordinatorNotAvailableError(f"No broker coordinates group {key!r} at present: try again soon.")
    return node_id, endpoint
