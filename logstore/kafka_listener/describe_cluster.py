"""DescribeCluster (60), versions 0 to 2: the brokers and the controller, for admin clients."""

from typing import Final

from logstore.broker.authorizer import ResourceType
from logstore.broker.context import RequestContext
from logstore.errors import MismatchedEndpointTypeError, UnsupportedEndpointTypeError
from logstore.kafka_listener.authorized_operations import NOT_ASKED, authorized_operations
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import DescribeClusterRequest, DescribeClusterResponse

_Broker = DescribeClusterResponse.DescribeClusterBroker

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


async def describe_cluster(
    store: KafkaStore,
    context: RequestContext,
    request: DescribeClusterRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> DescribeClusterResponse:
    broker = store.broker
    if request.endpoint_type != _BROKERS:
        kind = MismatchedEndpointTypeError if request.endpoint_type == _CONTROLLERS else UnsupportedEndpointTypeError
        return DescribeClusterResponse(
            error_code=kind.kafka_code,
            error_message="This is a broker: ask it for brokers (endpoint type 1).",
            endpoint_type=_BROKERS,
        )
    return DescribeClusterResponse(
        endpoint_type=_BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=-1 if broker.controller_id is None else broker.controller_id,
        brokers=[
            _Broker(broker_id=one.id, host=host, port=port, rack=one.rack)
            for one, (host, port) in store.reachable_brokers()
        ],
        cluster_authorized_operations=(
            authorized_operations(broker.authorizer, context, ResourceType.CLUSTER)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )
