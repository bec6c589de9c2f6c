"""Producing of Kafka's record batches: each is checked in full and stored as it came, by the append of ``Producing``.

Invariants: a batch that is taken can be rolled, and read by Kafka's clients. Each partition of a request has its own
outcome, and an error of one stops no other. The event loop checks only small batches: long ones, or those that inflate
to much, are checked in threads. Nothing is forwarded to other brokers: Kafka's clients find the leader themselves.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.produce.appends import Appended, AppendedRequest, PreparedRequest
from logstore.broker.produce.records import Producing
from logstore.broker.produce.result import NO_OFFSET, ProduceResult
from logstore.errors import (
    InvalidRecordBatchError,
    InvalidRequestError,
    InvalidTimestampError,
    LogStoreError,
    RecordBatchTooLargeError,
    TransactionalIdAuthorizationError,
)
from logstore.filesystem import Buffer
from logstore.kafka_batches.header import NO_TIMESTAMP, BatchHeader, bytes_of, with_max_timestamp
from logstore.kafka_batches.validation import find_null_keys, validate
from logstore.limits import MIB, RECORD_ERRORS_MAX
from logstore.log.topic import Topic
from logstore.records.batch import KafkaBatch, PartitionBatch
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity
from logstore.records.payload import MESSAGE_BYTES
from logstore.threads import threads

# Checking this many inflated bytes takes a millisecond or less.
_CHECK_ON_LOOP_BYTES: Final = 1 * MIB


class TopicBatches(NamedTuple):
    """The part of a produce request for one topic, by name or (Produce 13 and later) by id.

    ``batches`` has pairs of a partition and its record batch, as the client sent it; None if it sent none.
    """

    topic: str | UUID
    batches: Sequence[tuple[int, Buffer | None]]


class BatchOutcome(NamedTuple):
    """The outcome for one partition. ``log_append_time_ms`` is -1 unless the topic's records have the append time;
    ``log_start_offset`` is -1 if it is unknown. With an ``error`` there is no base offset.
    """

    partition: int
    base_offset: int = NO_OFFSET
    log_append_time_ms: int = NO_TIMESTAMP
    log_start_offset: int = -1
    error: LogStoreError | None = None


class ProducedBatches(NamedTuple):
    """``outcomes`` has each topic and partition of the request, in its order. ``throttle_ms`` is how long the client
    should wait before its next request, because of a quota.
    """

    outcomes: list[list[BatchOutcome]]
    throttle_ms: int


class TopicLookup(Protocol):
    """The lookups of ``Topics``."""

    def get(self, name: str) -> Topic: ...

    def by_id(self, topic_id: UUID) -> Topic: ...


class _RequestedBatch:
    """One record batch of a request; ``place`` is the place of its outcome."""

    __slots__ = ("batch", "data", "error", "identity", "log_append_time", "partition", "place", "topic")

    def __init__(self, topic: Topic, partition: int, data: Buffer, place: tuple[int, int]) -> None:
        self.topic = topic
        self.partition = partition
        self.data: Buffer = data
        self.place = place
        self.log_append_time = topic.config.log_append_time
        self.batch: KafkaBatch | None = None
        self.identity = NO_IDENTITY
        self.error: LogStoreError | None = None

    def check(self, inflated_bytes_max: int) -> None:
        """Set ``batch`` and ``identity``, or ``error``. Raises RecordBatchTooLargeError if the records inflate to
        more.
        """
        try:
            self._check(inflated_bytes_max)
        except RecordBatchTooLargeError:
            raise
        except LogStoreError as error:
            self.error = error

    def _check(self, inflated_bytes_max: int) -> None:
        view = bytes_of(self.data)
        valid, *others = validate(view, inflated_bytes_max=inflated_bytes_max, log_append_time=self.log_append_time)
        header = valid.header
        _require_producers(header, 1 + len(others))
        null_keys = [valid.first_null_key] if valid.null_key_count else []
        if valid.null_key_count > 1 and self.topic.config.compacted:
            null_keys = find_null_keys(view, valid, RECORD_ERRORS_MAX)
        if header.max_timestamp != valid.max_timestamp and not self.log_append_time:
            view = memoryview(with_max_timestamp(view, valid.max_timestamp, log_append_time=False))
        self.data = view
        self.batch = KafkaBatch(
            num_rows=header.record_count,
            nbytes=MESSAGE_BYTES + valid.inflated_bytes,
            untimed_count=valid.untimed_count,
            max_timestamp_ms=valid.max_timestamp,
            null_keys=null_keys,
            log_append_time=self.log_append_time,
        )
        if header.producer_id >= 0:
            self.identity = BatchIdentity(header.producer_id, header.producer_epoch, header.base_sequence)


def _hold_little_else(taken: Sequence[_RequestedBatch]) -> None:
    """Copy the taken batches if the buffer that they arrived in is much larger, because the journal may hold it for
    long. Usually they are nearly all of the buffer.
    """
    taken_of: dict[int, int] = {}
    for one in taken:
        key = id(memoryview(one.data).obj)
        taken_of[key] = taken_of.get(key, 0) + len(one.data)
    for one in taken:
        buffer = memoryview(one.data).obj
        if 2 * taken_of[id(buffer)] < memoryview(buffer).nbytes:
            one.data = bytes(one.data)


def _require_producers(header: BatchHeader, count: int) -> None:
    """Raise the fault of a partition's batches: their ``count``, or the ``header`` of the first."""
    if count != 1:
        raise InvalidRecordBatchError(
            f"The request has {count} record batches for the partition: send one for each partition"
        )
    if header.is_control:
        raise InvalidRecordBatchError("The record batch is a control batch: only brokers write these")
    if header.is_transactional:
        raise TransactionalIdAuthorizationError(
            "The record batch belongs to a transaction: this release has none, so send it without a transactional.id"
        )
    if header.is_log_append_time:
        raise InvalidTimestampError(
            "The record batch says that its timestamps are append times: only brokers write these"
        )


class BatchProducing:
    """Produces record batches. ``inflated_bytes_max`` bounds the records of one batch."""

    def __init__(
        self,
        producing: Producing,
        topics: TopicLookup,
        admission: Admission,
        authorizer: Authorizer,
        inflated_bytes_max: int,
    ) -> None:
        self._producing = producing
        self._topics = topics
        self._admission = admission
        self._authorizer = authorizer
        self._inflated_bytes_max = inflated_bytes_max
        # Few threads are enough, because each holds an inflated batch.
        self._checkers = threads().pool(2, "check-batch")

    def close(self) -> None:
        self._checkers.shutdown()

    async def produce(
        self,
        context: RequestContext,
        requests: Sequence[TopicBatches],
        *,
        acks: int = -1,
        timeout_ms: int | None = 30_000,
        turn: asyncio.Lock | None = None,
    ) -> ProducedBatches:
        """Append one record batch for each partition, all in one append to the journal. Errors are in the outcomes.

        ``acks``: 0 returns once they are queued, 1 when they are durable here, -1 on all in-sync replicas. Calls with
        the same ``turn`` are appended in the order of the calls, while earlier ones still wait to be acknowledged. A
        batch of an idempotent producer that is already stored is not stored again, and gets its first offsets.
        ``max.message.bytes`` bounds a batch as it was sent.

        Errors of a topic: TopicAuthorizationError, UnknownTopicError, UnknownTopicIdError, LeaderNotAvailableError,
        InvalidTopicError (the store's own), ThrottledError (no room in the journal). Errors of a partition: those of
        ``Producing.produce``, and NotLeaderOrFollowerError, NotEnoughReplicasError, InvalidRecordBatchError and its
        classes, RecordTooLargeError, InvalidRecordError (a null key in a compacted topic), UnknownProducerIdError,
        TransactionalIdAuthorizationError, RequestTimedOutError. Errors of the whole request apply to all partitions:
        BrokerNotReadyError, StorageFullError, StorageError.
        """
        outcomes = [[BatchOutcome(partition) for partition, _ in request.batches] for request in requests]
        throttle_ms = 0
        async with turn or contextlib.nullcontext():
            wanted = list(self._found(context, requests, outcomes))
            del requests
            prepared, places = await self._prepared(wanted, outcomes)
            del wanted
            appended = await self._append(context, prepared, acks, places, outcomes)
        if appended is not None:
            for one, of_one in zip(await self._producing.acknowledged(appended, timeout_ms), places, strict=True):
                result = one.result()
                _place(one, result, of_one, outcomes)
                throttle_ms = max(throttle_ms, result.throttle_ms)
        return ProducedBatches(outcomes, throttle_ms)

    def _found(
        self, context: RequestContext, requests: Sequence[TopicBatches], outcomes: list[list[BatchOutcome]]
    ) -> Iterator[_RequestedBatch]:
        """Yield the batches whose topics and partitions exist, each partition once."""
        taken: set[tuple[Topic, int]] = set()
        for at, (topic_or_id, batches) in enumerate(requests):
            try:
                topic = self._topic(context, topic_or_id)
            except LogStoreError as error:
                outcomes[at] = [BatchOutcome(partition, error=error) for partition, _ in batches]
                continue
            for number, (partition, data) in enumerate(batches):
                try:
                    topic.partition(partition)
                    if not data:
                        raise InvalidRecordBatchError("The request has no record batch for the partition: send one")
                    if (topic, partition) in taken:
                        raise InvalidRequestError(
                            f"The request names partition {partition} of topic {topic.name!r} twice: send one record "
                            "batch for each partition"
                        )
                except LogStoreError as error:
                    outcomes[at][number] = BatchOutcome(partition, error=error)
                    continue
                taken.add((topic, partition))
                yield _RequestedBatch(topic, partition, data, (at, number))

    def _topic(self, context: RequestContext, topic_or_id: str | UUID) -> Topic:
        if isinstance(topic_or_id, str):
            self._authorizer.require(context, Operation.WRITE, ResourceType.TOPIC, topic_or_id)
            topic = self._topics.get(topic_or_id)
        else:
            topic = self._topics.by_id(topic_or_id)
            self._authorizer.require(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
        if context is not INTERNAL:
            topic.require_not_internal()
        return topic

    async def _prepared(
        self, wanted: list[_RequestedBatch], outcomes: list[list[BatchOutcome]]
    ) -> tuple[list[PreparedRequest], list[list[tuple[int, int]]]]:
        """Return the valid batches by topic, and the places of their outcomes."""
        await self._check(wanted)
        await self._require_ids_issued(wanted)
        by_topic: dict[Topic, list[_RequestedBatch]] = {}
        taken = []
        for one in wanted:
            if one.error is not None:
                at, number = one.place
                log_start_offset = one.topic.partitions[one.partition].log_start_offset
                outcomes[at][number] = BatchOutcome(one.partition, log_start_offset=log_start_offset, error=one.error)
            else:
                by_topic.setdefault(one.topic, []).append(one)
                taken.append(one)
        _hold_little_else(taken)
        return [_request(group) for group in by_topic.values()], [
            [one.place for one in group] for group in by_topic.values()
        ]

    async def _check(self, wanted: list[_RequestedBatch]) -> None:
        """Check the batches, the small first ones on the event loop, the rest in a thread."""
        left = _CHECK_ON_LOOP_BYTES
        for count, one in enumerate(wanted):
            left -= len(one.data)
            if left >= 0:
                try:
                    one.check(min(left + len(one.data), self._inflated_bytes_max))
                    left -= 0 if one.batch is None else max(0, one.batch.nbytes - len(one.data))
                    continue
                except RecordBatchTooLargeError:
                    pass
            rest = wanted[count:]
            return await asyncio.get_running_loop().run_in_executor(self._checkers, self._check_all, rest)
        return None

    def _check_all(self, wanted: list[_RequestedBatch]) -> None:
        for one in wanted:
            try:
                one.check(self._inflated_bytes_max)
            except RecordBatchTooLargeError as error:
                one.error = error

    async def _require_ids_issued(self, wanted: list[_RequestedBatch]) -> None:
        refused: dict[int, LogStoreError] = {}
        for producer_id in {one.identity.owner for one in wanted if one.identity.is_producers}:
            try:
                await self._producing.require_issued(producer_id)
            except LogStoreError as error:
                refused[producer_id] = error
        if refused:
            for one in wanted:
                if one.identity.is_producers:
                    one.error = refused.get(one.identity.owner, one.error)

    async def _append(
        self,
        context: RequestContext,
        prepared: list[PreparedRequest],
        acks: int,
        places: list[list[tuple[int, int]]],
        outcomes: list[list[BatchOutcome]],
    ) -> Appended | None:
        """Append the batches. Return None if nothing was appended: all partitions have an error."""
        if not prepared:
            return None
        try:
            self._admission.require_ready()
            return await self._producing.append(context, prepared, acks)
        except LogStoreError as error:
            for of_one in places:
                for at, number in of_one:
                    outcomes[at][number] = outcomes[at][number]._replace(error=error)
            return None


def _request(group: Sequence[_RequestedBatch]) -> PreparedRequest:
    batches = [one.batch for one in group if one.batch is not None]
    identities = [one.identity for one in group]
    return PreparedRequest(
        group[0].topic,
        identities if any(identity.is_producers for identity in identities) else None,
        sum(batch.num_rows for batch in batches),
        sum(batch.nbytes for batch in batches),
        [PartitionBatch(one.partition, batch, None, one.data) for one, batch in zip(group, batches, strict=True)],
        [one.data for one in group],
    )


def _place(
    one: AppendedRequest,
    result: ProduceResult,
    places: Sequence[tuple[int, int]],
    outcomes: list[list[BatchOutcome]],
) -> None:
    log_append_time = one.topic.config.log_append_time
    for part, ((at, number), response, claimed) in enumerate(zip(places, result.partitions, one.claims, strict=True)):
        append_time_ms = NO_TIMESTAMP
        if log_append_time and response.error is None:
            stored = claimed.stored
            append_time_ms = one.append_times_ms.get(part, NO_TIMESTAMP) if stored is None else stored.append_time_ms
        outcomes[at][number] = BatchOutcome(
            response.partition,
            response.base_offset,
            append_time_ms,
            one.topic.partitions[response.partition].log_start_offset,
            response.error,
        )
