"""Fetch (1): records of many partitions, each from an offset on, with one wait for all of them.

A response has at least one batch if there is any record, however small its bounds are. Partitions are read in the order
of the request, or of its session.
"""

import asyncio
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from consumer_offsets.steps import in_steps
from logstore.broker.authorizer import Operation
from logstore.broker.context import RequestContext
from logstore.broker.fetch.fetching import FetchLimits, WantedPartition
from logstore.errors import (
    FencedLeaderEpochError,
    InvalidRequestError,
    LogStoreError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    ThrottledError,
)
from logstore.filesystem import Buffer
from logstore.kafka_listener.fetch_sessions import Asked, Fetching, Key, PartitionResponse
from logstore.kafka_listener.held import Held
from logstore.kafka_listener.leader_epochs import UNDEFINED, epoch_end, require_leader
from logstore.kafka_listener.offsets_topic import PARTITION_BYTES_MAX, in_kafkas_form
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import FetchRequest, FetchResponse
from logstore.limits import FETCH_BYTES_MAX
from logstore.log.isolation import ISOLATION_LEVELS, Isolation
from logstore.log.log_reader import FetchResult
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.offset_record import OFFSETS_TOPIC

#: The first version of requests that names topics by their ids.
TOPIC_IDS_VERSION: Final = 13
#: The first version of responses with the addresses of leaders (KIP-951).
_LEADERS_VERSION: Final = 16
_NO_RECORDS: Final = b""
# Fetches of more partitions take turns.
_AT_ONCE: Final = 1000
# The ids are cached, because every fetch of a session has the same ones.
_topic_id: Final = functools.lru_cache(4096)(lambda raw: UUID(bytes=raw))


#: The records that were read from a partition, or the reason why nothing was.
_Read = FetchResult[list[Buffer]] | LogStoreError
#: The result for a partition that needs no read; otherwise the read that it needs.
_Found = PartitionResponse | WantedPartition


async def fetch(
    store: KafkaStore, context: RequestContext, request: FetchRequest, version: int, begun: Fetching | None = None
) -> FetchResponse | Held:
    """Fetch records. Their bytes are held until the response is sent. ``begun`` is the fetch, if it has waited."""
    if request.isolation_level not in ISOLATION_LEVELS:
        return FetchResponse(error_code=InvalidRequestError.kafka_code)
    try:
        fetching = begun or store.fetch_sessions.begin(request, by_id=version >= TOPIC_IDS_VERSION)
    except LogStoreError as error:
        return FetchResponse(error_code=number_of(error))
    if version < TOPIC_IDS_VERSION:
        await store.broker.elsewhere.until_known(str(topic) for (topic, _), _ in fetching.partitions)
    responses = _Responses(store, context, version, Isolation(request.isolation_level))
    found = await responses.find(fetching)
    wanted = [one for _, one in found if isinstance(one, WantedPartition)]
    limits = FetchLimits(
        max_bytes=_bounded(request.max_bytes),
        max_partition_bytes=FETCH_BYTES_MAX,
        min_bytes=request.min_bytes,
        # The fetch does not wait if there is something to report.
        max_wait_ms=request.max_wait_ms if len(wanted) == len(found) else 0,
        isolation=responses.isolation,
    )
    try:
        fetched = await store.broker.fetch.batches(context, wanted, limits)
    except ThrottledError as error:
        return fetching.throttled(error.retry_after_s * 1000)
    try:
        read = await _in_kafkas_form(wanted, fetched.answers) if responses.has_group_offsets else fetched.answers
        response = fetching.response(responses.to_send(fetching, found, read), fetched.throttle_ms)
        return Held(responses.with_leaders(response), fetched.reservation.release)
    except BaseException:
        fetched.reservation.release()
        raise


async def _in_kafkas_form(wanted: Sequence[WantedPartition], read: Mapping[int, _Read]) -> Mapping[int, _Read]:
    """Return ``read``, with the records of ``__consumer_offsets`` in Kafka's form."""
    own = {
        at: one for at, one in read.items() if wanted[at].topic.name == OFFSETS_TOPIC and isinstance(one, FetchResult)
    }
    served = dict(read)
    for at, one in own.items():
        served[at] = dataclasses.replace(one, records=await asyncio.to_thread(in_kafkas_form, one.records))
    return served


def topic_of(store: KafkaStore, context: RequestContext, name: bytes | str) -> Topic:
    """Return the topic with this id (bytes) or name. Raises the error if it may not be read, or does not exist."""
    if isinstance(name, str):
        return store.broker.topics.served.topic(context, name, Operation.READ)
    return store.broker.topics.served.topic_by_id(context, _topic_id(name), Operation.READ)


def _bounded(num_bytes: int) -> int:
    return max(1, min(num_bytes, FETCH_BYTES_MAX))


class _Responses:
    """The partitions of one fetch, and their results."""

    def __init__(self, store: KafkaStore, context: RequestContext, version: int, isolation: Isolation) -> None:
        self._store = store
        self._context = context
        self._version = version
        self.isolation = isolation
        self._topics: dict[bytes | str, Topic | LogStoreError] = {}
        self.has_group_offsets = False
        #: The brokers that are named as leaders.
        self._leaders: set[int] = set()

    async def find(self, fetching: Fetching) -> list[tuple[Key, _Found]]:
        """Return all partitions of the fetch; an error or a divergence is a result."""
        asked = list(fetching.partitions)
        if len(asked) <= _AT_ONCE:
            return [(key, self._find(key, one)) for key, one in asked]
        async with self._store.long_requests:
            return [(key, self._find(key, one)) async for key, one in in_steps(asked)]

    def _find(self, key: Key, asked: Asked) -> _Found:
        name, partition = key
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = self._topic(name)
        if isinstance(topic, LogStoreError):
            return self._error(None, partition, topic)
        try:
            log = topic.partition(partition)
            require_leader(log, asked.current_leader_epoch)
            diverged = _divergence(log, asked)
        except LogStoreError as error:
            return self._error(topic, partition, error)
        max_bytes = _bounded(asked.partition_max_bytes)
        if topic.name == OFFSETS_TOPIC:
            self.has_group_offsets = True
            max_bytes = min(max_bytes, PARTITION_BYTES_MAX)
        return diverged or WantedPartition(topic, log, asked.fetch_offset, self.isolation, max_bytes)

    def _topic(self, name: bytes | str) -> Topic | LogStoreError:
        try:
            return topic_of(self._store, self._context, name)
        except LogStoreError as error:
            return error

    def to_send(
        self,
        fetching: Fetching,
        found: Sequence[tuple[Key, _Found]],
        read: Mapping[int, _Read],
    ) -> list[tuple[Key, PartitionResponse]]:
        """Return the results of all partitions, except those that the client has already. ``read`` has what was read,
        by the place among the wanted ones.
        """
        responses = []
        place = -1
        for key, one in found:
            if isinstance(one, PartitionResponse):
                responses.append((key, one))
                continue
            place += 1
            records = read.get(place)
            if records is not None or not fetching.has_sent(key, one.log.high_watermark, one.log.log_start_offset):
                responses.append((key, self._of(one, records)))
        return responses

    def _of(self, wanted: WantedPartition, read: _Read | None) -> PartitionResponse:
        """Return the result of a partition that was read; ``read`` is None if there are no new records."""
        log = wanted.log
        if isinstance(read, LogStoreError):
            return self._error(wanted.topic, log.partition, read)
        ends: FetchResult[list[Buffer]] | PartitionLog = log if read is None else read
        return PartitionResponse(
            partition_index=log.partition,
            high_watermark=ends.high_watermark,
            last_stable_offset=ends.last_stable_offset,
            log_start_offset=ends.log_start_offset,
            # Records of aborted transactions would be among the others, but there are no transactions yet.
            aborted_transactions=() if self.isolation is Isolation.READ_COMMITTED else None,
            records=_NO_RECORDS if read is None else read.records,
        )

    def _error(self, topic: Topic | None, partition: int, error: LogStoreError) -> PartitionResponse:
        response = PartitionResponse(
            partition_index=partition, error_code=number_of(error), high_watermark=-1, records=_NO_RECORDS
        )
        if (
            topic is None
            or self._version < _LEADERS_VERSION
            or not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError)
        ):
            return response
        state = self._store.cluster_state.partition_state(topic.topic_id, partition)
        self._leaders.add(state.leader)
        leader = FetchResponse.LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch)
        return msgspec.structs.replace(response, current_leader=leader)

    def with_leaders(self, response: FetchResponse) -> FetchResponse:
        """Return ``response`` with the addresses of the leaders that its partitions name."""
        endpoints = [
            FetchResponse.NodeEndpoint(node_id=leader, host=found[0], port=found[1])
            for leader in sorted(self._leaders)
            if (found := self._store.endpoint(leader)) is not None
        ]
        return msgspec.structs.replace(response, node_endpoints=endpoints) if endpoints else response


def _divergence(log: PartitionLog, asked: Asked) -> PartitionResponse | None:
    """Return the result for a reader whose log has another end of its last epoch than this one (KIP-595)."""
    if asked.last_fetched_epoch == UNDEFINED:
        return None
    epoch, end_offset = epoch_end(log, asked.last_fetched_epoch)
    if epoch == UNDEFINED or asked.fetch_offset < log.log_start_offset:
        raise OffsetOutOfRangeError(
            f"{log.topic}-{log.partition} does not tell the end of epoch {asked.last_fetched_epoch} for offset "
            f"{asked.fetch_offset}.",
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
    if epoch == asked.last_fetched_epoch and end_offset >= asked.fetch_offset:
        return None
    return PartitionResponse(
        partition_index=log.partition,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        diverging_epoch=FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset),
        aborted_transactions=None,
        records=_NO_RECORDS,
    )
