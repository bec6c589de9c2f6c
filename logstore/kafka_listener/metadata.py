"""Metadata (3), versions 0 to 13: the brokers, the controller, the leaders of partitions; the second request of almost
every client.

Topics come by name, by id (version 12 and later), or all of them. A missing topic is created, if the client allows it
and ``auto.create.topics.enable`` is set. An error is that of its topic or partition. In a cluster the response is this
broker's view.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from consumer_offsets.steps import in_steps
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.topics.catalog import check_topic_name
from logstore.cluster.cluster_state import PartitionState
from logstore.errors import InvalidRequestError, LeaderNotAvailableError, LogStoreError, UnknownTopicError
from logstore.kafka_listener.authorized_operations import NOT_ASKED, authorized_operations
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import ZERO_UUID, MetadataRequest, MetadataResponse
from logstore.log.topic import Topic
from logstore.names import is_internal

_Broker = MetadataResponse.MetadataResponseBroker
_Topic = MetadataResponse.MetadataResponseTopic
_Partition = MetadataResponse.MetadataResponsePartition

_REPLICA_NOT_AVAILABLE: Final = 9
_LISTENER_NOT_FOUND: Final = 72
#: From this version on a leader without an address for Kafka's clients has its own error.
_NAMES_LISTENERS: Final = 6


async def metadata(
    store: KafkaStore, context: RequestContext, request: MetadataRequest, version: int
) -> MetadataResponse:
    broker = store.broker
    operations = request.include_topic_authorized_operations
    asked = request.topics
    if asked is None or (version == 0 and not asked):
        found: Sequence[Topic | _Topic] = broker.topics.served.all(context, include_internal=True)
    else:
        await broker.elsewhere.until_known([one.name for one in asked if one.name is not None])
        may_create = request.allow_auto_topic_creation
        found = [
            await _asked_topic(store, context, one, version, may_create=may_create) async for one in in_steps(asked)
        ]
    # The brokers are read together with the leaders: nothing is awaited from here on.
    reachable = store.reachable_brokers()
    there = {one.id for one, _ in reachable}
    return MetadataResponse(
        brokers=[_Broker(node_id=one.id, host=host, port=port, rack=one.rack) for one, (host, port) in reachable],
        cluster_id=broker.cluster_id,
        controller_id=-1 if broker.controller_id is None else broker.controller_id,
        topics=[
            _topic(store, context, one, there, version, operations=operations) if isinstance(one, Topic) else one
            for one in found
        ],
        cluster_authorized_operations=(
            authorized_operations(broker.authorizer, context, ResourceType.CLUSTER)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


async def _asked_topic(
    store: KafkaStore,
    context: RequestContext,
    asked: MetadataRequest.MetadataRequestTopic,
    version: int,
    *,
    may_create: bool,
) -> Topic | _Topic:
    """Return the topic, or the response for one that is not available."""
    broker = store.broker
    try:
        if asked.topic_id != ZERO_UUID:
            return broker.topics.served.topic_by_id(context, UUID(bytes=asked.topic_id))
        if asked.name is None:
            raise InvalidRequestError("A topic of the request has neither a name nor an id.")
        return await _topic_by_name(store, context, asked.name, may_create=may_create)
    except LogStoreError as error:
        # Before version 12 a name is not null.
        name = asked.name if version >= 12 else asked.name or ""
        return _Topic(error_code=number_of(error), name=name, topic_id=asked.topic_id)


async def _topic_by_name(store: KafkaStore, context: RequestContext, name: str, *, may_create: bool) -> Topic:
    try:
        if may_create:
            return await store.broker.topics.changes.find_or_create(context, name, Operation.DESCRIBE)
        return store.broker.topics.served.topic(context, name)
    except UnknownTopicError:
        if not is_internal(name):
            check_topic_name(name)
        raise


def _topic(
    store: KafkaStore, context: RequestContext, topic: Topic, there: set[int], version: int, *, operations: bool
) -> _Topic:
    """Describe a topic. ``there`` are the brokers that Kafka's clients can reach."""
    broker = store.broker
    states = broker.topics.leaders.partition_states(context, topic)
    return _Topic(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.is_internal,
        partitions=[_partition(number, state, there, version) for number, state in enumerate(states)],
        topic_authorized_operations=(
            authorized_operations(broker.authorizer, context, ResourceType.TOPIC, topic.name)
            if operations
            else NOT_ASKED
        ),
    )


def _partition(number: int, state: PartitionState, there: set[int], version: int) -> _Partition:
    """Describe a partition. Version 0 names only brokers that are ``there``, and has an error if some are not."""
    error_code = 0
    leader = state.leader
    replicas, isr = state.replicas, state.in_sync_replicas
    if leader not in there:
        has_leader = leader >= 0 and version >= _NAMES_LISTENERS
        error_code = _LISTENER_NOT_FOUND if has_leader else LeaderNotAvailableError.kafka_code
        leader = -1
    elif version == 0 and not there.issuperset(replicas):
        error_code = _REPLICA_NOT_AVAILABLE
    if version == 0:
        replicas = tuple(one for one in replicas if one in there)
        isr = tuple(one for one in isr if one in there)
    return _Partition(
        error_code=error_code,
        partition_index=number,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=tuple(one for one in state.replicas if one not in there),
    )
