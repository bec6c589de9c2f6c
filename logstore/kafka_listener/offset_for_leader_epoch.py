"""OffsetForLeaderEpoch (23): the end of a leader epoch's records, by which consumers detect truncation (KIP-320)."""

from logstore.broker.context import RequestContext
from logstore.errors import LogStoreError
from logstore.kafka_listener.leader_epochs import epoch_end, require_leader
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from logstore.log.topic import Topic

_EpochEnd = OffsetForLeaderEpochResponse.EpochEndOffset


async def offset_for_leader_epoch(
    store: KafkaStore,
    context: RequestContext,
    request: OffsetForLeaderEpochRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> OffsetForLeaderEpochResponse:
    """Return an error or an end for each partition."""
    await store.broker.elsewhere.until_known(topic.topic for topic in request.topics)
    results = []
    for asked in request.topics:
        try:
            topic = store.broker.topics.served.topic(context, asked.topic)
        except LogStoreError as error:
            ends = [_EpochEnd(partition=one.partition, error_code=number_of(error)) for one in asked.partitions]
        else:
            ends = [_end(topic, one) for one in asked.partitions]
        results.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=asked.topic, partitions=ends))
    return OffsetForLeaderEpochResponse(topics=results)


def _end(topic: Topic, asked: OffsetForLeaderEpochRequest.OffsetForLeaderPartition) -> _EpochEnd:
    try:
        log = topic.partition(asked.partition)
        require_leader(log, asked.current_leader_epoch)
        epoch, end_offset = epoch_end(log, asked.leader_epoch)
    except LogStoreError as error:
        return _EpochEnd(partition=asked.partition, error_code=number_of(error))
    return _EpochEnd(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
