"""DescribeLogDirs (35), versions 1 to 4: the sizes of the replicas that this broker has.

A partition's size is that of its files in the topic's table and of its records in this broker's journal. The journal
and the tables of a single node are in one directory; the brokers of a cluster share the tables, and each counts them as
its own.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from logstore.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.errors import ClusterAuthorizationError, StorageError
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import DescribeLogDirsRequest, DescribeLogDirsResponse
from logstore.log.topic import Topic

_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
_Partition = DescribeLogDirsResponse.DescribeLogDirsPartition

#: Other tasks of the event loop have their turn after this many partitions.
_STEP: Final = 200


async def describe_log_dirs(
    store: KafkaStore,
    context: RequestContext,
    request: DescribeLogDirsRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> DescribeLogDirsResponse:
    broker = store.broker
    # As in Kafka, a principal that may describe the cluster sees all sizes.
    if not broker.authorizer.authorize(context, Operation.DESCRIBE, ResourceType.CLUSTER, (CLUSTER_NAME,)):
        return DescribeLogDirsResponse(error_code=ClusterAuthorizationError.kafka_code)
    directory = store.settings.log_directory.absolute()
    if (failed := broker.journal.failed) is not None:
        return DescribeLogDirsResponse(results=[_Result(error_code=number_of(failed), log_dir=str(directory))])
    try:
        total_bytes = await asyncio.to_thread(broker.filesystem.total_bytes, directory)
        free_bytes = await asyncio.to_thread(broker.filesystem.free_bytes, directory)
    except OSError:
        return DescribeLogDirsResponse(results=[_Result(error_code=StorageError.kafka_code, log_dir=str(directory))])
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for asked in request.topics:
            wanted.setdefault(asked.topic, set()).update(asked.partitions)
    topics = []
    looked_at = 0
    for topic in broker.topics.served.all(INTERNAL, include_internal=True):
        if wanted is not None and topic.name not in wanted:
            continue
        partitions = range(len(topic.partitions)) if wanted is None else sorted(wanted[topic.name])
        if found := _sizes(store, topic, partitions):
            topics.append(_Topic(name=topic.name, partitions=found))
        looked_at += len(topic.partitions)
        if looked_at >= _STEP:
            looked_at = 0
            await asyncio.sleep(0)
    return DescribeLogDirsResponse(
        results=[_Result(log_dir=str(directory), topics=topics, total_bytes=total_bytes, usable_bytes=free_bytes)]
    )


def _sizes(store: KafkaStore, topic: Topic, partitions: Iterable[int]) -> list[_Partition]:
    found = []
    for partition in partitions:
        if not 0 <= partition < len(topic.partitions):
            continue
        if store.node_id not in store.cluster_state.partition_state(topic.topic_id, partition).replicas:
            continue
        log = topic.partitions[partition]
        found.append(
            _Partition(
                partition_index=partition,
                partition_size=log.segments.size_bytes + log.unsealed_bytes,
                offset_lag=max(0, log.high_watermark - log.log_end_offset),
            )
        )
    return found
