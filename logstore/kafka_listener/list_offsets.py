"""ListOffsets (2): the offset of a time, or of an end of a partition (KIP-79, KIP-734, KIP-405, KIP-1005).

-1 is the end that readers may reach, -2 the log start, -3 the first record with the largest timestamp. -4, the start of
the broker's local log, is the log start here, because the leader of a partition serves all of it. -5, the end of the
records in tiered storage, is not known, as in a Kafka without tiered storage.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from logstore.broker.context import RequestContext
from logstore.errors import (
    InvalidRequestError,
    LeaderNotAvailableError,
    LogStoreError,
    OffsetNotAvailableError,
    UnsupportedVersionError,
)
from logstore.kafka_listener.leader_epochs import UNDEFINED, epoch_of, require_leader
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import ListOffsetsRequest, ListOffsetsResponse
from logstore.log.isolation import ISOLATION_LEVELS, Isolation
from logstore.log.log_reader import require_in_range
from logstore.log.topic import Topic

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
#: The first version of requests for each number that is not a time.
_VERSIONS: Final[Mapping[int, int]] = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
}
#: Clients of earlier versions do not know OFFSET_NOT_AVAILABLE.
_OFFSET_NOT_AVAILABLE_VERSION: Final = 5

_Asked = ListOffsetsRequest.ListOffsetsPartition
_Response = ListOffsetsResponse.ListOffsetsPartitionResponse


async def list_offsets(
    store: KafkaStore, context: RequestContext, request: ListOffsetsRequest, version: int
) -> ListOffsetsResponse:
    """Return an error or an offset for each partition; offset -1 if there is no such record."""
    await store.broker.elsewhere.until_known(topic.name for topic in request.topics)
    times = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
    topics = []
    for asked in request.topics:
        responses = []
        for one in asked.partitions:
            try:
                if times[asked.name, one.partition_index] > 1:
                    raise InvalidRequestError(f"{asked.name}-{one.partition_index} is asked for more than once.")
                if request.isolation_level not in ISOLATION_LEVELS:
                    raise InvalidRequestError(f"There is no isolation level {request.isolation_level}.")
                topic = store.broker.topics.served.topic(context, asked.name)
                response = await _find(store, context, topic, one, Isolation(request.isolation_level), version)
            except LogStoreError as error:
                response = _Response(partition_index=one.partition_index, error_code=_number_of(error, version))
            responses.append(response)
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=asked.name, partitions=responses))
    return ListOffsetsResponse(topics=topics)


def _number_of(error: LogStoreError, version: int) -> int:
    if isinstance(error, OffsetNotAvailableError) and version < _OFFSET_NOT_AVAILABLE_VERSION:
        return LeaderNotAvailableError.kafka_code
    return number_of(error)


async def _find(
    store: KafkaStore, context: RequestContext, topic: Topic, asked: _Asked, isolation: Isolation, version: int
) -> _Response:
    timestamp = asked.timestamp
    if timestamp < 0 and version < _VERSIONS.get(timestamp, version + 1):
        raise UnsupportedVersionError(f"Timestamp {timestamp} means nothing in version {version} of ListOffsets.")
    log = topic.partition(asked.partition_index)
    require_leader(log, asked.current_leader_epoch)
    # A log in quarantine, or one whose end may fall, returns no offsets.
    require_in_range(log, log.log_start_offset)
    match timestamp:
        case -1:
            return _response(asked, log.readable_end(isolation), log.state.leader_epochs.last)
        case -2 | -4:
            return _response(asked, log.log_start_offset, epoch_of(log, log.log_start_offset))
        case -5:
            return _response(asked, UNDEFINED, UNDEFINED)
        case -3:
            found = await store.broker.fetch.offset_of_max_timestamp(context, topic, log.partition)
        case _:
            found = await store.broker.fetch.offset_for_timestamp(context, topic, log.partition, timestamp)
    if found is None or found[0] >= log.readable_end(isolation):
        return _response(asked, UNDEFINED, UNDEFINED)
    offset, found_timestamp = found
    return _response(asked, offset, epoch_of(log, offset), found_timestamp)


def _response(asked: _Asked, offset: int, leader_epoch: int, timestamp: int = -1) -> _Response:
    return _Response(
        partition_index=asked.partition_index, offset=offset, timestamp=timestamp, leader_epoch=leader_epoch
    )
