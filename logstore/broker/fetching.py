"""Fetching: records of any number of partitions, each from its offset on, with one wait for all of them.

The wait is in ``purgatory``. Invariants: records are read once, when the fetch is answered; room for them is reserved
before, among the bytes in flight of all answers.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from logstore.broker.admission import Admission, Reservation
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.purgatory import (
    FetchLimits,
    Gone,
    Patience,
    Permissions,
    WantedPartition,
    refuse,
    wait_for_records,
)
from logstore.broker.quotas import QuotaKind
from logstore.broker.topic_ids import require_topic_id
from logstore.errors import LogStoreError
from logstore.journal.journal import Journal
from logstore.log.isolation import Isolation
from logstore.log.log_reader import FetchResult, LogReader
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.observability import FETCHED_BYTES, FETCHED_RECORDS
from logstore.protocol.record_batch import RecordBatch

__all__ = ["FetchLimits", "FetchPartition", "Fetched", "Fetching", "Gone"]

T = TypeVar("T")


class FetchPartition(NamedTuple):
    """A partition to fetch from ``offset`` on. ``topic_id`` as in answers; None: the topic that has the name now."""

    topic: str
    partition: int
    offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class Fetched(Generic[T]):
    """``answers``: records or an error, by the partition's place in the request; none for partitions without news, or
    beyond ``max_bytes``. ``reservation``: the answer's share of the bytes in flight; the caller releases it.
    """

    answers: dict[int, FetchResult[T] | LogStoreError]
    reservation: Reservation
    #: How long the client is to wait before its next request, because of a quota.
    throttle_ms: int = 0


class _Read(Protocol[T]):
    async def __call__(
        self, topic: Topic, log: PartitionLog, offset: int, *, max_bytes: int, min_bytes: int, isolation: Isolation
    ) -> FetchResult[T]: ...


@dataclass(frozen=True, slots=True)
class _Form(Generic[T]):
    """A form of records: how they are read, and how many bytes they hold."""

    read: _Read[T]
    held_bytes: Callable[[FetchResult[T]], int]


class Fetching:
    """``find_topic`` raises the error that a request for that topic is answered with."""

    def __init__(
        self,
        journal: Journal,
        refresh: Callable[[Topic], Awaitable[None]],
        find_topic: Callable[[str], Topic],
        admission: Admission,
        authorizer: Authorizer,
    ) -> None:
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._reader = LogReader(journal, self._threads, refresh)
        self._find_topic = find_topic
        self._stored = _Form(self._reader.read_stored, _stored_bytes)
        self._decoded = _Form(self._reader.read, lambda result: result.num_bytes)
        self._admission = admission
        self._answers = admission.answers
        self._authorizer = authorizer

    def close(self) -> None:
        self._threads.shutdown()

    async def fetch_stored(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None = None,
    ) -> Fetched[list[RecordBatch]]:
        """Records as they are stored: at least one if there is any, else up to the limits.

        Waits for ``min_bytes`` over all partitions, or for one that cannot, or may not, be read. Raises ThrottledError
        if there is no room among the answers within the wait, or it is over a quota, and the errors of ``gone``.
        """
        return await self._fetch(context, partitions, limits, gone, self._stored, 1)

    async def fetch_records(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None = None,
        *,
        copies: float = 2,
    ) -> Fetched[pa.Table]:
        """As ``fetch_stored``, with tables of LOG_SCHEMA. ``copies`` times their bytes are reserved: for the records,
        and for the copies that the caller makes.
        """
        return await self._fetch(context, partitions, limits, gone, self._decoded, copies)

    async def fetch(
        self,
        context: RequestContext,
        topic: Topic,
        partition: int,
        offset: int,
        *,
        max_bytes: int,
        min_bytes: int,
        max_wait_ms: int,
    ) -> FetchResult[pa.Table]:
        """Records of one partition for the store itself: nothing is reserved.

        Raises OffsetOutOfRangeError outside [log start, high watermark], UnknownPartitionError, UnknownTopicError if
        the topic is deleted, NotLeaderOrFollowerError, OffsetNotAvailableError, TopicAuthorizationError.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, topic.name)
        wanted = WantedPartition(topic, topic.partition(partition), offset)
        limits = FetchLimits(max_bytes, max_bytes, min_bytes, max_wait_ms, fill=False)
        permissions = Permissions(self._authorizer, context)
        try:
            await wait_for_records([wanted], limits, Patience(max_wait_ms, None), permissions)
        finally:
            permissions.end()
        if wanted.error is not None:
            raise wanted.error
        return _counted(
            topic, await self._reader.read(topic, wanted.log, offset, max_bytes=max_bytes, min_bytes=min_bytes)
        )

    async def offset_for_timestamp(
        self, context: RequestContext, topic: Topic, partition: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """The smallest offset with a timestamp of at least ``timestamp_ms``, and its timestamp; None without one.

        Raises TopicAuthorizationError, UnknownPartitionError, NotLeaderOrFollowerError, OffsetNotAvailableError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        topic.partition(partition).require_leader().require_settled()
        return await self._reader.offset_for_timestamp(topic, partition, timestamp_ms)

    async def _fetch(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None,
        form: _Form[T],
        copies: float,
    ) -> Fetched[T]:
        self._admission.require_quota(context, QuotaKind.FETCHED_BYTES)
        permissions = Permissions(self._authorizer, context)
        found = self._find(partitions, permissions, limits.isolation)
        wanted = [one for one in found if isinstance(one, WantedPartition)]
        patience = Patience(limits.max_wait_ms, gone)
        try:
            if len(wanted) == len(found):  # no wait if there is an error to tell
                await wait_for_records(wanted, limits, patience, permissions)
            todo = [(at, one) for at, one in enumerate(found) if isinstance(one, LogStoreError) or one.has_news]
            size = _held_bytes_max(todo, limits)
            reservation = await self._reserve(math.ceil(size * copies), patience)
        finally:
            permissions.end()
            await patience.end()
        try:
            # Room may have come long after the records.
            refuse(wanted, permissions)
            answers = await _read(todo, limits, size, form)
            held = sum(form.held_bytes(answer) for answer in answers.values() if isinstance(answer, FetchResult))
            reservation.resize(math.ceil(held * copies))
        except BaseException:
            reservation.release()
            raise
        return Fetched(answers, reservation, self._admission.charge(context, QuotaKind.FETCHED_BYTES, held))

    def _find(
        self, partitions: Sequence[FetchPartition], permissions: Permissions, isolation: Isolation
    ) -> list[WantedPartition | LogStoreError]:
        topics: dict[tuple[str, str | None], Topic | LogStoreError] = {}
        refusals = permissions.refusals(one.topic for one in partitions)
        found: list[WantedPartition | LogStoreError] = []
        for name, partition, offset, topic_id in partitions:
            topic = topics.get((name, topic_id))
            if topic is None:
                topic = topics[name, topic_id] = refusals.get(name) or self._topic(name, topic_id)
            if isinstance(topic, LogStoreError):
                found.append(topic)
                continue
            try:
                found.append(WantedPartition(topic, topic.partition(partition), offset, isolation))
            except LogStoreError as error:
                found.append(error)
        return found

    def _topic(self, name: str, topic_id: str | None) -> Topic | LogStoreError:
        try:
            topic = self._find_topic(name)
            require_topic_id(topic, topic_id)
        except LogStoreError as error:
            return error
        return topic

    async def _reserve(self, size: int, patience: Patience) -> Reservation:
        while not self._answers.has_room(size):
            room = self._answers.wait_for_room(size)
            try:
                if not await patience.until_any([room]):
                    break
            finally:
                self._answers.wait_no_more(room)
        return self._answers.reserve(size)


def _held_bytes_max(todo: Sequence[tuple[int, WantedPartition | LogStoreError]], limits: FetchLimits) -> int:
    total = 0
    for _, one in todo:
        if total >= limits.max_bytes:
            break
        if isinstance(one, WantedPartition):
            total += one.held_bytes_max(min(limits.max_bytes - total, limits.max_partition_bytes))
    return total


async def _read(
    todo: Sequence[tuple[int, WantedPartition | LogStoreError]], limits: FetchLimits, reserved: int, form: _Form[T]
) -> dict[int, FetchResult[T] | LogStoreError]:
    """Read the reserved bytes and no more, even if more records have come since."""
    answers: dict[int, FetchResult[T] | LogStoreError] = {}
    taken = 0
    for at, one in todo:
        error = one if isinstance(one, LogStoreError) else one.error
        if error is not None or isinstance(one, LogStoreError):
            assert error is not None
            answers[at] = error
            continue
        max_bytes = min(reserved - taken, limits.max_bytes - taken, limits.max_partition_bytes)
        if max_bytes <= 0:
            continue
        min_bytes = max_bytes if limits.fill else limits.min_bytes
        try:
            result = await form.read(
                one.topic, one.log, one.offset, max_bytes=max_bytes, min_bytes=min_bytes, isolation=one.isolation
            )
        except LogStoreError as failure:
            answers[at] = failure
            continue
        taken += result.num_bytes
        answers[at] = _counted(one.topic, result)
    return answers


def _stored_bytes(result: FetchResult[list[RecordBatch]]) -> int:
    return sum(len(batch.payload) for batch in result.records)


def _counted(topic: Topic, result: FetchResult[T]) -> FetchResult[T]:
    FETCHED_RECORDS.count(topic, result.count)
    FETCHED_BYTES.count(topic, result.num_bytes)
    return result
