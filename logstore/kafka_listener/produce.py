"""Produce (0), versions 3 to 13: one record batch for each partition, all of them by one append.

Each partition has its own outcome, with the message of its error and, if single records are the reason, their numbers
in the batch (version 8 and later). Topics have ids instead of names from version 13 on. With acks=0 there is no
response; as in Kafka an error ends the connection then, which makes the client look for leaders again.

Without room in the journal, or in the queue before it, a request waits for its turn and keeps the later ones of its
connection behind it, so that nothing more is read from the socket; the response then also asks for a pause. Producers
never see an error for it unless their time is up.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from logstore.broker.authorizer import Operation
from logstore.broker.context import RequestContext
from logstore.broker.produce.batches import BatchOutcome, TopicBatches
from logstore.errors import (
    InvalidRecordError,
    InvalidRequiredAcksError,
    LogStoreError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    StorageError,
    ThrottledError,
)
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import ProduceRequest, ProduceResponse
from logstore.limits import RECORD_ERRORS_MAX
from logstore.log.topic import Topic

_Partition = ProduceResponse.PartitionProduceResponse
_Topic = ProduceResponse.TopicProduceResponse
_RecordError = ProduceResponse.BatchIndexAndErrorMessage
_Leader = ProduceResponse.LeaderIdAndEpoch

#: The version from which topics have ids instead of names.
_BY_ID: Final = 13
#: The longest wait that a client may ask for, and the shortest and the longest pause that it is asked for, in ms.
_TIMEOUT_MAX_MS: Final = 600_000
_PAUSE_MIN_MS: Final = 10
_PAUSE_MAX_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Turn:
    """The order of a connection's Produce requests: through ``room``, then through ``append``."""

    room: asyncio.Lock = field(default_factory=asyncio.Lock)
    append: asyncio.Lock = field(default_factory=asyncio.Lock)


async def produce(
    store: KafkaStore, context: RequestContext, request: ProduceRequest, version: int, turn: Turn | None = None
) -> ProduceResponse | None:
    """Append batches. Requests with the same ``turn`` are appended in the order of the calls.

    With acks=0 the result is None, and it raises LogStoreError if a partition has failed.
    """
    by_id = version >= _BY_ID
    if request.acks not in (-1, 0, 1):
        message = f"acks is {request.acks}: it is -1 (all), 0 or 1."
        outcomes = [
            [BatchOutcome(one.index, error=InvalidRequiredAcksError(message)) for one in topic.partition_data]
            for topic in request.topic_data
        ]
        return _response(store, context, request, outcomes, 0, by_id=by_id)
    batches = [
        TopicBatches(
            UUID(bytes=topic.topic_id) if by_id else topic.name,
            [(one.index, one.records) for one in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    timeout_ms = min(max(request.timeout_ms, 0), _TIMEOUT_MAX_MS)
    waited_ms = 0
    if turn is not None:
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        # Nothing awaits between the two locks, so the order stays.
        async with turn.room:
            waited_ms = await _until_room(store, context, batches, deadline)
    produced = await store.broker.produce.batches.produce(
        context,
        batches,
        acks=request.acks,
        timeout_ms=timeout_ms,
        turn=None if turn is None else turn.append,
    )
    if request.acks == 0:
        for outcome in (one for of_topic in produced.outcomes for one in of_topic):
            if outcome.error is not None:
                raise outcome.error
        return None
    throttle_ms = max(produced.throttle_ms, min(waited_ms, _PAUSE_MAX_MS))
    return _response(store, context, request, produced.outcomes, throttle_ms, by_id=by_id)


async def _until_room(
    store: KafkaStore, context: RequestContext, batches: Sequence[TopicBatches], deadline: float
) -> int:
    """Wait until the journal has room for the batches, or until ``deadline`` of the loop's time. Return the wait in
    ms.
    """
    admission = store.broker.admission
    sizes = [sum([len(records) for _, records in one.batches if records]) for one in batches]
    if admission.has_room(sum(sizes)):
        return 0
    wanted = [
        (topic, num_bytes)
        for one, num_bytes in zip(batches, sizes, strict=True)
        if (topic := _topic(store, context, one.topic)) is not None
    ]
    try:
        for topic, num_bytes in wanted:
            admission.require_room(topic, num_bytes)
    except ThrottledError:
        loop = asyncio.get_running_loop()
        began = loop.time()
        room = admission.wait_for_room(wanted)
        came = False
        try:
            async with asyncio.timeout_at(deadline):
                came = await room
        except TimeoutError:
            pass
        finally:
            admission.wait_no_more(room)
        return max(_PAUSE_MIN_MS if came else 0, int((loop.time() - began) * 1000))
    return 0


def _topic(store: KafkaStore, context: RequestContext, topic: str | UUID) -> Topic | None:
    """Return the topic; None if it does not exist or cannot be written, which the append reports."""
    try:
        if isinstance(topic, str):
            return store.broker.topics.served.topic(context, topic, Operation.WRITE)
        return store.broker.topics.served.topic_by_id(context, topic, Operation.WRITE)
    except LogStoreError:
        return None


def _response(
    store: KafkaStore,
    context: RequestContext,
    request: ProduceRequest,
    outcomes: list[list[BatchOutcome]],
    throttle_ms: int,
    *,
    by_id: bool,
) -> ProduceResponse:
    leaders: set[int] = set()
    errors_left = RECORD_ERRORS_MAX
    responses = []
    for asked, of_topic in zip(request.topic_data, outcomes, strict=True):
        partitions = []
        for one in of_topic:
            if one.error is None:
                partitions.append(
                    _Partition(
                        index=one.partition,
                        base_offset=one.base_offset,
                        log_append_time_ms=one.log_append_time_ms,
                        log_start_offset=one.log_start_offset,
                    )
                )
                continue
            record_errors = _record_errors(one.error, errors_left)
            errors_left -= len(record_errors)
            leader = _Leader()
            if isinstance(one.error, NotLeaderOrFollowerError):
                leader = _leader(store, context, UUID(bytes=asked.topic_id) if by_id else asked.name, one.partition)
                leaders.add(leader.leader_id)
            partitions.append(
                _Partition(
                    index=one.partition,
                    error_code=_number_of(one.error),
                    base_offset=-1,
                    # Without it Java's producer tries again for ever at UNKNOWN_PRODUCER_ID.
                    log_start_offset=one.log_start_offset,
                    record_errors=record_errors,
                    error_message=one.error.message,
                    current_leader=leader,
                )
            )
        responses.append(_Topic(name=asked.name, topic_id=asked.topic_id, partition_responses=partitions))
    return ProduceResponse(
        responses=responses,
        throttle_time_ms=throttle_ms,
        node_endpoints=[
            ProduceResponse.NodeEndpoint(node_id=leader, host=address[0], port=address[1])
            for leader in sorted(leaders)
            if (address := store.endpoint(leader)) is not None
        ],
    )


def _record_errors(error: LogStoreError, most: int) -> list[_RecordError]:
    """Return the records that are the reason (KIP-467), at most ``most``. For the others, clients report that they came
    in a batch with such records.
    """
    if not isinstance(error, InvalidRecordError) or error.refused is None:
        return []
    return [
        _RecordError(batch_index=number, batch_index_error_message=error.refused.message)
        for number in error.refused.numbers[:most]
    ]


def _number_of(error: LogStoreError) -> int:
    """Return the number for a failed partition.

    librdkafka drops records at THROTTLING_QUOTA_EXCEEDED, which Kafka's brokers send for admin requests. At
    KAFKA_STORAGE_ERROR it treats them as not stored; after a failed write or fsync they may be stored.
    """
    return RequestTimedOutError.kafka_code if isinstance(error, ThrottledError | StorageError) else number_of(error)


def _leader(store: KafkaStore, context: RequestContext, topic_or_id: str | UUID, partition: int) -> _Leader:
    """Return the leader of a partition (KIP-951); none if it is not known."""
    topic = _topic(store, context, topic_or_id)
    if topic is None:
        return _Leader()
    state = store.broker.topics.leaders.partition_state(context, topic, partition)
    return _Leader(leader_id=state.leader, leader_epoch=state.leader_epoch)
