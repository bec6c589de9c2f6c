"""Fetching: records of any number of partitions, each from its offset on, with one wait for all of them.

The wait is Kafka's purgatory. Invariants: a fetch that waits holds no records, because the indexes of its partitions
tell how many bytes there are; records are read once, when the fetch is answered; room for them is reserved before,
among the bytes in flight of all answers.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from logstore.broker.access import Access, Operation, QuotaKind, ResourceType, refusal
from logstore.broker.admission import Admission, Reservation
from logstore.broker.context import RequestContext
from logstore.broker.topic_identity import require_topic_id
from logstore.errors import LogStoreError
from logstore.journal.journal import Journal
from logstore.limits import RECORD_OVERHEAD_BYTES
from logstore.log.log_reader import FetchResult, LogReader, require_in_range
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.observability import FETCHED_BYTES, FETCHED_RECORDS
from logstore.protocol.record_batch import RecordBatch

T = TypeVar("T")

#: Called when a fetch has to wait. It returns when an answer is wanted at once, and raises when nobody takes one.
Gone = Callable[[], Coroutine[object, object, None]]


class FetchPartition(NamedTuple):
    """``topic_id`` as answers give it; None: whichever topic has the name."""

    topic: str
    partition: int
    offset: int
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How many bytes to wait for, and for how long; how many to take at most, in all and of one partition.

    Not ``fill``: what is taken ends with the first piece (a row group, a run of the tail) that brings ``min_bytes``.
    """

    max_bytes: int
    max_partition_bytes: int
    min_bytes: int
    max_wait_ms: int
    fill: bool = True


@dataclass(frozen=True, slots=True)
class Fetched(Generic[T]):
    """By place in the request, and in that order, a partition's records or an error; nothing for those without news, or
    beyond ``max_bytes``. ``reservation`` is the caller's to release: the answer's share of the bytes in flight.
    """

    answers: dict[int, FetchResult[T] | LogStoreError]
    reservation: Reservation
    #: How long whoever asked is to wait before the next one, because of a quota.
    throttle_ms: int = 0


class _Read(Protocol[T]):
    async def __call__(
        self, topic: Topic, log: PartitionLog, offset: int, *, max_bytes: int, min_bytes: int
    ) -> FetchResult[T]: ...


@dataclass(frozen=True, slots=True)
class _Form(Generic[T]):
    """How records are read, and how many bytes some hold: as often as they are there while encoded."""

    read: _Read[T]
    held_bytes: Callable[[FetchResult[T]], int]
    copies: int


class _Wanted:
    """A partition of a fetch, and the bytes counted of it so far."""

    __slots__ = ("_counted_to", "error", "log", "may_grow", "num_bytes", "offset", "topic")

    def __init__(self, topic: Topic, log: PartitionLog, offset: int) -> None:
        self.topic = topic
        self.log = log
        self.offset = offset
        self.num_bytes = 0
        self.error: LogStoreError | None = None
        #: Whether more records would be read, if there were any.
        self.may_grow = True
        self._counted_to = offset

    def count(self) -> None:
        """Count what is new; ``error`` is set if the partition cannot be read."""
        log = self.log
        if not (self.has_news or log.is_closed):
            return
        try:
            log.require_open()
            require_in_range(log, self.offset)
            end = log.readable_end(self.offset)
        except LogStoreError as error:
            self.error = error
            return
        self.may_grow = end == log.last_stable_offset
        if end > self._counted_to:
            self.num_bytes += log.stored_bytes(self._counted_to, end)
            self._counted_to = end

    @property
    def has_news(self) -> bool:
        """Whether there are records to be read, or an error to be told."""
        log = self.log
        return self.offset != log.high_watermark or self.error is not None or log.quarantined is not None

    def held_bytes_max(self, max_bytes: int) -> int:
        """Bytes that a read of up to ``max_bytes`` of what is there now may hold."""
        self.count()
        log = self.log
        if self.error is not None or self._counted_to == self.offset:
            return 0
        if self.offset < log.sealed_offset:
            return max_bytes  # how far it is compressed is not known
        (first,) = itertools.islice(log.index.frames(self.offset, self._counted_to), 1)
        found = (
            log.index.inflated_bytes(self.offset, self._counted_to)
            + (self._counted_to - self.offset) * RECORD_OVERHEAD_BYTES
        )
        # The first batch is read whatever its size.
        return max(first.inflated_bytes, min(max_bytes, found))


class _Reader:
    """Who asks, each time that a fetch looks for records: what was allowed may not be any more."""

    def __init__(self, access: Access, context: RequestContext) -> None:
        self._access = access
        self._context = context
        self._changed: asyncio.Future[None] | None = None

    def refusals(self, topics: Iterable[str]) -> dict[str, LogStoreError]:
        """Of the topics that may not be read, why."""
        names = list(dict.fromkeys(topics))
        allowed = self._access.authorize(self._context, Operation.READ, ResourceType.TOPIC, names)
        if len(allowed) == len(names):
            return {}
        refused = dict.fromkeys(names)
        for name in allowed:
            del refused[name]
        return {name: refusal(self._context, Operation.READ, ResourceType.TOPIC, name) for name in refused}

    def changed(self) -> "asyncio.Future[None]":
        """Done when something else may be allowed than when ``refusals`` was called last."""
        if self._changed is None or self._changed.done():
            self._changed = self._access.changed()
        return self._changed

    def end(self) -> None:
        if self._changed is not None:
            self._changed.cancel()


class _Patience:
    """Waits until ``max_wait_ms`` are over, or ``gone`` says that no answer is waited for any more."""

    def __init__(self, max_wait_ms: int, gone: Gone | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.time() + max_wait_ms / 1000
        self._gone = gone
        self._going: asyncio.Task[None] | None = None

    async def until_any(self, futures: Sequence["asyncio.Future[None]"]) -> bool:
        """Whether one of ``futures`` was done before. Raises what ``gone`` raises."""
        left = self._end - self._loop.time()
        if left <= 0 or (self._going is not None and self._going.done()):
            return False
        awaited: list[asyncio.Future[None]] = list(futures)
        if self._going is None and self._gone is not None:
            self._going = self._loop.create_task(self._gone())
        if self._going is not None:
            awaited.append(self._going)
        done, _ = await asyncio.wait(awaited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if self._going is not None and self._going.done():
            self._going.result()
            return False
        return bool(done)

    async def end(self) -> None:
        if self._going is not None:
            self._going.cancel()
            await asyncio.gather(self._going, return_exceptions=True)


class Fetching:
    """``find_topic`` raises what a request for a topic of that name is answered."""

    def __init__(
        self,
        journal: Journal,
        refresh: Callable[[Topic], Awaitable[None]],
        find_topic: Callable[[str], Topic],
        admission: Admission,
        access: Access,
    ) -> None:
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="read")
        self._reader = LogReader(journal, self._threads, refresh)
        self._find_topic = find_topic
        self._stored = _Form(self._reader.read_stored, _stored_bytes, 1)
        self._decoded = _Form(self._reader.read, lambda result: result.num_bytes, 2)
        self._admission = admission
        self._answers = admission.answers
        self._access = access

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
        if there is no room among the answers within the wait, or it is over a quota, and what ``gone`` raises.
        """
        return await self._fetch(context, partitions, limits, gone, self._stored)

    async def fetch_records(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None = None,
    ) -> Fetched[pa.Table]:
        """As ``fetch_stored``; tables of LOG_SCHEMA, and room for as many bytes that they are encoded to."""
        return await self._fetch(context, partitions, limits, gone, self._decoded)

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
        the topic is deleted, TopicAuthorizationError.
        """
        self._access.require(context, Operation.READ, ResourceType.TOPIC, topic.name)
        wanted = _Wanted(topic, topic.partition(partition), offset)
        limits = FetchLimits(max_bytes, max_bytes, min_bytes, max_wait_ms, fill=False)
        reader = _Reader(self._access, context)
        try:
            await _wait([wanted], limits, _Patience(max_wait_ms, None), reader)
        finally:
            reader.end()
        if wanted.error is not None:
            raise wanted.error
        return _counted(
            topic, await self._reader.read(topic, wanted.log, offset, max_bytes=max_bytes, min_bytes=min_bytes)
        )

    async def offset_for_timestamp(
        self, context: RequestContext, topic: Topic, partition: int, timestamp_ms: int
    ) -> tuple[int, int] | None:
        """The smallest offset with a timestamp of at least ``timestamp_ms``, and its timestamp; None without one.

        Raises TopicAuthorizationError.
        """
        self._access.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        return await self._reader.offset_for_timestamp(topic, partition, timestamp_ms)

    async def _fetch(
        self,
        context: RequestContext,
        partitions: Sequence[FetchPartition],
        limits: FetchLimits,
        gone: Gone | None,
        form: _Form[T],
    ) -> Fetched[T]:
        self._admission.require_quota(context, QuotaKind.FETCHED_BYTES)
        reader = _Reader(self._access, context)
        found = self._find(partitions, reader)
        wanted = [one for one in found if isinstance(one, _Wanted)]
        patience = _Patience(limits.max_wait_ms, gone)
        try:
            if len(wanted) == len(found):  # else there is an error to tell
                await _wait(wanted, limits, patience, reader)
            todo = [(at, one) for at, one in enumerate(found) if isinstance(one, LogStoreError) or one.has_news]
            size = _held_bytes_max(todo, limits)
            reservation = await self._reserve(size * form.copies, patience)
        finally:
            reader.end()
            await patience.end()
        try:
            # Room may have come long after the records.
            _refuse(wanted, reader)
            answers = await _read(todo, limits, size, form)
            held = sum(form.held_bytes(answer) for answer in answers.values() if isinstance(answer, FetchResult))
            reservation.resize(held * form.copies)
        except BaseException:
            reservation.release()
            raise
        return Fetched(answers, reservation, self._admission.charge(context, QuotaKind.FETCHED_BYTES, held))

    def _find(self, partitions: Sequence[FetchPartition], reader: _Reader) -> list[_Wanted | LogStoreError]:
        topics: dict[tuple[str, str | None], Topic | LogStoreError] = {}
        refusals = reader.refusals(one.topic for one in partitions)
        found: list[_Wanted | LogStoreError] = []
        for name, partition, offset, topic_id in partitions:
            topic = topics.get((name, topic_id))
            if topic is None:
                topic = topics[name, topic_id] = refusals.get(name) or self._topic(name, topic_id)
            if isinstance(topic, LogStoreError):
                found.append(topic)
                continue
            try:
                found.append(_Wanted(topic, topic.partition(partition), offset))
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

    async def _reserve(self, size: int, patience: _Patience) -> Reservation:
        while not self._answers.has_room(size):
            room = self._answers.wait_for_room(size)
            try:
                if not await patience.until_any([room]):
                    break
            finally:
                self._answers.wait_no_more(room)
        return self._answers.reserve(size)


async def _wait(wanted: Sequence[_Wanted], limits: FetchLimits, patience: _Patience, reader: _Reader) -> None:
    while not _refuse(wanted, reader) and not _is_enough(wanted, limits):
        news = [one.log.advanced() for one in wanted if one.may_grow]
        if not await patience.until_any([*news, reader.changed()]):
            return


def _refuse(wanted: Sequence[_Wanted], reader: _Reader) -> bool:
    """Whether some of ``wanted`` may not be read; then ``error`` of these is set."""
    refusals = reader.refusals(one.topic.name for one in wanted)
    for one in wanted if refusals else ():
        one.error = refusals.get(one.topic.name) or one.error
    return bool(refusals)


def _is_enough(wanted: Sequence[_Wanted], limits: FetchLimits) -> bool:
    enough = min(max(1, limits.min_bytes), limits.max_bytes)
    total = 0
    failed = may_grow = False
    for one in wanted:
        one.count()
        if one.error is not None:
            failed = True
            continue
        total += min(one.num_bytes, limits.max_partition_bytes)
        may_grow |= one.may_grow and one.num_bytes < limits.max_partition_bytes
        if total >= enough:
            return True
    # Else nobody's records would be read, however many came.
    return failed or not may_grow


def _held_bytes_max(todo: Sequence[tuple[int, _Wanted | LogStoreError]], limits: FetchLimits) -> int:
    total = 0
    for _, one in todo:
        if total >= limits.max_bytes:
            break
        if isinstance(one, _Wanted):
            total += one.held_bytes_max(min(limits.max_bytes - total, limits.max_partition_bytes))
    return total


async def _read(
    todo: Sequence[tuple[int, _Wanted | LogStoreError]], limits: FetchLimits, reserved: int, form: _Form[T]
) -> dict[int, FetchResult[T] | LogStoreError]:
    """Read what is reserved, and no more, even if more has come since."""
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
            result = await form.read(one.topic, one.log, one.offset, max_bytes=max_bytes, min_bytes=min_bytes)
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
