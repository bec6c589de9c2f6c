"""DescribeTopicPartitions (75), version 0 (KIP-966): topics by name, a number of partitions at a time, with a
cursor.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from logstore.broker.authorizer import ResourceType
from logstore.broker.context import RequestContext
from logstore.cluster.cluster_state import PartitionState
from logstore.errors import InvalidRequestError, LeaderNotAvailableError, LogStoreError
from logstore.kafka_listener.authorized_operations import authorized_operations
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import NONE, number_of
from logstore.kafka_protocol.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from logstore.log.topic import Topic

#: Kafka's ``max.request.partition.size.limit``.
_PARTITIONS_MAX: Final = 2000

_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition


async def describe_topic_partitions(
    store: KafkaStore,
    context: RequestContext,
    request: DescribeTopicPartitionsRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> DescribeTopicPartitionsResponse:
    broker = store.broker
    asked = sorted({topic.name for topic in request.topics})
    cursor = request.cursor
    if cursor is not None and (cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)):
        error = InvalidRequestError(
            "The cursor is a partition of a topic that the request names: send one of an answer."
        )
        return DescribeTopicPartitionsResponse(topics=[_refused(name, error) for name in asked])
    await broker.elsewhere.until_known(asked)
    names = asked or [topic.name for topic in broker.topics.served.all(context, include_internal=True)]
    first = "" if cursor is None else cursor.topic_name
    left = max(1, min(request.response_partition_limit, _PARTITIONS_MAX))
    brokers = frozenset(store.cluster_state.brokers)
    found: list[_Topic] = []
    for name in names:
        if name < first:
            continue
        if left == 0:
            return DescribeTopicPartitionsResponse(topics=found, next_cursor=_cursor(name, 0))
        try:
            topic = broker.topics.served.topic(context, name)
            states = broker.topics.leaders.partition_states(context, topic)
        except LogStoreError as error:
            if asked:
                found.append(_refused(name, error))
            continue
        begin = cursor.partition_index if cursor is not None and name == first else 0
        end = min(len(states), begin + left)
        left -= max(0, end - begin)
        found.append(_described(store, context, topic, begin, states[begin:end], brokers))
        if end < len(states):
            return DescribeTopicPartitionsResponse(topics=found, next_cursor=_cursor(name, end))
        await asyncio.sleep(0)
    return DescribeTopicPartitionsResponse(topics=found)


def _cursor(topic: str, partition: int) -> DescribeTopicPartitionsResponse.Cursor:
    return DescribeTopicPartitionsResponse.Cursor(topic_name=topic, partition_index=partition)


def _refused(name: str, error: LogStoreError) -> _Topic:
    return _Topic(error_code=number_of(error), name=name)


def _described(
    store: KafkaStore,
    context: RequestContext,
    topic: Topic,
    begin: int,
    states: Sequence[PartitionState],
    brokers: Collection[int],
) -> _Topic:
    """Return the partitions from ``begin`` on, with their ``states``."""
    return _Topic(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.is_internal,
        partitions=[
            _Partition(
                error_code=LeaderNotAvailableError.kafka_code if state.leader < 0 else NONE,
                partition_index=partition,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=state.replicas,
                isr_nodes=state.in_sync_replicas,
                eligible_leader_replicas=(),
                last_known_elr=(),
                offline_replicas=[one for one in state.replicas if one not in brokers],
            )
            for partition, state in enumerate(states, begin)
        ],
        topic_authorized_operations=authorized_operations(
            store.broker.authorizer, context, ResourceType.TOPIC, topic.name
        ),
    )
