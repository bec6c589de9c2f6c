"""Fetching: records of any number of partitions, each from its offset on, with one wait for all of them.

The wait is in ``purgatory``. In a cluster, the leaders of other partitions are asked for theirs (``remote_fetches``).
Invariants: records are read once, when the fetch is answered; room for them is reserved before, among the bytes in
flight of all responses.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa

from logstore.broker.admission import Admission, Reservation
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.nobody import Elsewhere
from logstore.broker.fetch.everywhere import EverywhereFetch
from logstore.broker.fetch.forms import Fetched, FetchPartition, Form
from logstore.broker.fetch.purgatory import (
    FetchLimits,
    Gone,
    Patience,
    Permissions,
    WantedPartition,
    refuse,
    wait_for_records,
)
from logstore.broker.quotas import QuotaKind
from logstore.broker.topics.ids import require_topic_id
from logstore.errors import LogStoreError
from logstore.filesystem import Buffer
from logstore.journal.journal import Journal
from logstore.log.isolation import Isolation
from logstore.log.log_reader import FetchResult, LogReader
from logstore.log.topic import Topic
from logstore.observability import FETCHED_BYTES, FETCHED_RECORDS
from logstore.protocol.record_batch import PARQUET, RecordBatch, read_batches, read_records
from logstore.records.log_batches import int64_values
from logstore.records.schema import LOG_SCHEMA
from logstore.records.where.evaluation import Where
from logstore.segments.row_group_files import write_row_group_file
from logstore.threads import threads

__all__ = ["FetchLimits", "FetchPartition", "Fetched", "Fetching", "Gone", "WantedPartition"]

T = TypeVar("T")


class Fetching:
    """Answers fetches. ``find_topic`` raises the error with which a request for that topic is answered."""

    def __init__(
        self,
        journal: Journal,
        refresh: Callable[[Topic], Awaitable[None]],
        find_topic: Callable[[str], Topic],
        admission: Admission,
        authorizer: Authorizer,
        elsewhere: Elsewhere,
    ) -> None:
        self._threads = threads().pool(4, "read")
        self._reader = LogReader(journal, self._threads, refresh)
        self._find_topic = find_topic
        self._stored = Form(self._reader.read_stored, _stored_of, _stored_bytes)
        self._decoded = Form(self._reader.read, _decoded_of, lambda result: result.num_bytes)
        self._batches = Form(self._reader.read_batches, None, lambda result: result.num_bytes)
        #: The way to the leaders of other partitions.
        self._elsewhere = elsewhere.fetches
        self._wait_until_known = elsewhere.until_known
        self._admission = admission
        self._answers = admission.answers
        self._authorizer = authorizer

    def close(self) -> None:
        self._threads.shutdown()

    async def stored(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None = None,
    ) -> Fetched[list[RecordBatch]]:
        """Return records as they are stored: at least one if there is any, else up to the limits. With ``limits.where``
        return only those that it selects, maybe none, as ``LogReader.read`` does.

        Waits for ``min_bytes`` over all partitions, or for one that cannot, or may not, be read. Raises ThrottledError
        if there is no room among the responses within the wait, or over a quota, and the errors of ``gone``.
        """
        form = self._stored if limits.where is None else self._stored_where(limits.where)
        return await self._fetch(context, partitions, limits, gone, form, 1)

    async def records(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None = None,
        *,
        copies: float = 2,
    ) -> Fetched[pa.Table]:
        """Fetch as ``stored`` does, with tables of LOG_SCHEMA. ``copies`` times their bytes are reserved: for the
        records, and for the copies that the caller makes.
        """
        form = self._decoded if limits.where is None else self._decoded_where(limits.where)
        return await self._fetch(context, partitions, limits, gone, form, copies)

    async def batches(
        self, context: RequestContext, wanted: Sequence[WantedPartition], limits: FetchLimits
    ) -> Fetched[list[Buffer]]:
        """Fetch as ``stored`` does, with the bytes of Kafka's record batches. Kafka's clients ask the leaders
        themselves, so partitions that are led elsewhere get NotLeaderOrFollowerError.
        """
        self._admission.require_quota(context, QuotaKind.FETCHED_BYTES)
        permissions = Permissions(self._authorizer, context)
        fetched = await self._fetch_here(permissions, wanted, limits, None, self._batches, 1)
        return self._charged(context, fetched, self._batches)

    async def partition(
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
        """Return records of one partition for the store itself: nothing is reserved.

        Raises OffsetOutOfRangeError outside [log start, high watermark], UnknownPartitionError, UnknownTopicError if
        the topic is deleted, NotLeaderOrFollowerError, OffsetNotAvailableError and TopicAuthorizationError.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, topic.name)
        wanted = WantedPartition(topic, topic.partition(partition), offset)
        limits = FetchLimits(max_bytes, max_bytes, min_bytes, max_wait_ms, fill=False)
        permissions = Permissions(self._authorizer, context)
        await wait_for_records([wanted], limits, Patience(max_wait_ms, None), permissions)
        if wanted.error is not None:
            raise wanted.error
        return _counted(
            topic, await self._reader.read(topic, wanted.log, offset, max_bytes=max_bytes, min_bytes=min_bytes)
        )

    async def offset_for_timestamp(
        self, context: RequestContext, topic: Topic, partition: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """Return the smallest offset with a timestamp of at least ``timestamp_ms``, and its timestamp; None without
        one.

        Raises TopicAuthorizationError, UnknownPartitionError, NotLeaderOrFollowerError, OffsetNotAvailableError and
        LeaderNotAvailableError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        log = topic.partition(partition)
        if not log.is_leader and (leader := self._elsewhere.leader(context, log)) is not None:
            return await self._elsewhere.offset_for_timestamp(leader, context, log, timestamp_ms)
        log.require_leader().require_settled()
        return await self._reader.offset_for_timestamp(topic, partition, timestamp_ms)

    async def count_records(self, context: RequestContext, topic: Topic, partition: int, start: int, end: int) -> int:
        """Count the records of [start, end), as ``LogReader.count_records`` does. Raises TopicAuthorizationError."""
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        return await self._reader.count_records(topic, topic.partition(partition), start, end)

    async def offset_of_max_timestamp(
        self, context: RequestContext, topic: Topic, partition: int
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with the largest timestamp, for a partition that is led here;
        None without records.

        Raises TopicAuthorizationError, UnknownPartitionError, NotLeaderOrFollowerError and OffsetNotAvailableError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        topic.partition(partition).require_leader().require_settled()
        return await self._reader.offset_of_max_timestamp(topic, partition)

    def _decoded_where(self, where: Where) -> Form[pa.Table]:
        return replace(self._decoded, read=functools.partial(self._reader.read, where=where))

    def _stored_where(self, where: Where) -> Form[list[RecordBatch]]:
        async def read(*place: Any, **limits: Any) -> FetchResult[list[RecordBatch]]:
            result = await self._reader.read(*place, **limits, where=where)
            loop = asyncio.get_running_loop()
            return replace(result, records=await loop.run_in_executor(self._threads, _as_stored, result.records))

        return replace(self._stored, read=read)

    async def _fetch(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None,
        form: Form[T],
        copies: float,
    ) -> Fetched[T]:
        self._admission.require_quota(context, QuotaKind.FETCHED_BYTES)
        if unknown := self._elsewhere.unknown(partitions):
            await self._wait_until_known(unknown)
        permissions = Permissions(self._authorizer, context)
        found = self._find(partitions, permissions, limits.isolation)
        division = self._elsewhere.divide(context, found)
        if division is not None and form.read_remote is not None:
            everywhere = EverywhereFetch(
                division, found, limits, form.read_remote, copies, self._answers, self._threads
            )

            async def here(own: Sequence[WantedPartition | LogStoreError], waits: FetchLimits) -> Fetched[T]:
                return await self._fetch_here(Permissions(self._authorizer, context), own, waits, None, form, copies)

            fetched = await everywhere.fetch(here, gone)
        else:
            fetched = await self._fetch_here(permissions, found, limits, gone, form, copies)
        return self._charged(context, fetched, form)

    def _charged(self, context: RequestContext, fetched: Fetched[T], form: Form[T]) -> Fetched[T]:
        held = sum([form.held_bytes(one) for one in fetched.answers.values() if isinstance(one, FetchResult)])
        throttle_ms = self._admission.charge(context, QuotaKind.FETCHED_BYTES, held)
        return replace(fetched, throttle_ms=throttle_ms) if throttle_ms else fetched

    async def _fetch_here(
        self,
        permissions: Permissions,
        found: Sequence[WantedPartition | LogStoreError],
        limits: FetchLimits,
        gone: Gone | None,
        form: Form[T],
        copies: float,
    ) -> Fetched[T]:
        wanted = [one for one in found if isinstance(one, WantedPartition)]
        patience = Patience(limits.max_wait_ms, gone)
        try:
            if len(wanted) == len(found):  # an error is returned without a wait
                await wait_for_records(wanted, limits, patience, permissions)
            todo = [(at, one) for at, one in enumerate(found) if isinstance(one, LogStoreError) or one.has_news]
            if not todo:
                return Fetched({}, self._answers.reserve())
            size = _held_bytes_max(todo, limits)
            reservation = await self._reserve(math.ceil(size * copies), patience)
        finally:
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
        return Fetched(answers, reservation)

    def _find(
        self, partitions: Sequence[FetchPartition], permissions: Permissions, isolation: Isolation
    ) -> list[WantedPartition | LogStoreError]:
        topics: dict[tuple[str, str | None], Topic | LogStoreError] = {}
        refusals = permissions.refusals(one.topic for one in partitions)
        found: list[WantedPartition | LogStoreError] = []
        for name, partition, offset, topic_id, max_bytes in partitions:
            topic = topics.get((name, topic_id))
            if topic is None:
                topic = topics[name, topic_id] = refusals.get(name) or self._topic(name, topic_id)
            if isinstance(topic, LogStoreError):
                found.append(topic)
                continue
            try:
                found.append(WantedPartition(topic, topic.partition(partition), offset, isolation, max_bytes))
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
                if not await patience.until((), room):
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
            total += one.held_bytes_max(min(limits.max_bytes - total, one.max_bytes_of(limits)))
    return total


async def _read(
    todo: Sequence[tuple[int, WantedPartition | LogStoreError]], limits: FetchLimits, reserved: int, form: Form[T]
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
        max_bytes = min(reserved - taken, limits.max_bytes - taken, one.max_bytes_of(limits))
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


def _stored_of(content: pa.Buffer, _: int) -> tuple[list[RecordBatch], int]:
    batches = list(read_batches(content))
    return batches, sum([batch.record_count for batch in batches])


def _decoded_of(content: pa.Buffer, offset: int) -> tuple[pa.Table, int]:
    table = pa.Table.from_batches(read_records(content, offset), LOG_SCHEMA)
    return table, table.num_rows


def _as_stored(records: pa.Table) -> list[RecordBatch]:
    """Convert rows of a row group to the form in which they are sent."""
    if not records.num_rows:
        return []
    first_offset = int(int64_values(records.column("offset").chunk(0))[0])
    return [RecordBatch(first_offset, 0, records.num_rows, PARQUET, write_row_group_file(records.to_batches()))]


def _stored_bytes(result: FetchResult[list[RecordBatch]]) -> int:
    return sum(len(batch.payload) for batch in result.records)


def _counted(topic: Topic, result: FetchResult[T]) -> FetchResult[T]:
    FETCHED_RECORDS.count(topic, result.count)
    FETCHED_BYTES.count(topic, result.num_bytes)
    return result
