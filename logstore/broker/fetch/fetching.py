"""Fetching: records of any number of partitions, each from its offset on, with one wait for all of them.

The wait is in ``purgatory``. In a cluster, the leaders of other partitions are asked for theirs (``remote_fetches``).
Invariants: records are read once, when the fetch is answered; room for them is reserved before, among the bytes in
flight of all responses.
"""

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from logstore.broker.admission import Admission, Reservation
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.broker.elsewhere.nobody import Elsewhere
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
from logstore.limits import FETCH_BYTES_MAX
from logstore.log.isolation import Isolation
from logstore.log.log_reader import FetchResult, LogReader
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.observability import FETCHED_BYTES, FETCHED_RECORDS
from logstore.protocol.record_batch import PARQUET, RecordBatch, read_batches, read_records
from logstore.records.log_batches import int64_values
from logstore.records.schema import LOG_SCHEMA
from logstore.records.where.evaluation import Where
from logstore.segments.row_group_files import write_row_group_file
from logstore.threads import threads

if TYPE_CHECKING:  # one node asks no other broker
    from logstore.broker.elsewhere.remote_fetches import Asked, DividedFetch

__all__ = ["FetchLimits", "FetchPartition", "Fetched", "Fetching", "Gone", "WantedPartition"]

T = TypeVar("T")


class FetchPartition(NamedTuple):
    """A partition to fetch from ``offset`` on. ``topic_id`` is written as in responses; None means the topic that has
    the name now. ``max_bytes`` bounds its records in addition to the limits of the fetch.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str | None = None
    max_bytes: int = FETCH_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Fetched(Generic[T]):
    """``answers`` has records or an error by the partition's place in the request, and nothing for partitions without
    news or beyond ``max_bytes``. ``reservation`` is the response's share of the bytes in flight; the caller releases
    it.
    """

    answers: dict[int, FetchResult[T] | LogStoreError]
    reservation: Reservation
    #: How long the client should wait before its next request, because of a quota.
    throttle_ms: int = 0


class _Read(Protocol[T]):
    async def __call__(
        self, topic: Topic, log: PartitionLog, offset: int, *, max_bytes: int, min_bytes: int, isolation: Isolation
    ) -> FetchResult[T]: ...


@dataclass(frozen=True, slots=True)
class _Form(Generic[T]):
    """A form of records: how they are read, and how many bytes they hold. ``read_remote`` makes the form and the number
    of records from another broker's response; without it the form is only for partitions that are led here.
    """

    read: _Read[T]
    read_remote: Callable[[pa.Buffer, int], tuple[T, int]] | None
    held_bytes: Callable[[FetchResult[T]], int]


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
        self._stored = _Form(self._reader.read_stored, _stored_of, _stored_bytes)
        self._decoded = _Form(self._reader.read, _decoded_of, lambda result: result.num_bytes)
        self._batches = _Form(self._reader.read_batches, None, lambda result: result.num_bytes)
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

    def _decoded_where(self, where: Where) -> _Form[pa.Table]:
        return replace(self._decoded, read=functools.partial(self._reader.read, where=where))

    def _stored_where(self, where: Where) -> _Form[list[RecordBatch]]:
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
        form: _Form[T],
        copies: float,
    ) -> Fetched[T]:
        self._admission.require_quota(context, QuotaKind.FETCHED_BYTES)
        if unknown := self._elsewhere.unknown(one.topic for one in partitions):
            await self._wait_until_known(unknown)
        permissions = Permissions(self._authorizer, context)
        found = self._find(partitions, permissions, limits.isolation)
        division = self._elsewhere.divide(context, found)
        if division is not None and form.read_remote is not None:
            fetched = await self._fetch_everywhere(
                division, form.read_remote, context, found, limits, gone, form, copies
            )
        else:
            fetched = await self._fetch_here(permissions, found, limits, gone, form, copies)
        return self._charged(context, fetched, form)

    def _charged(self, context: RequestContext, fetched: Fetched[T], form: _Form[T]) -> Fetched[T]:
        held = sum([form.held_bytes(one) for one in fetched.answers.values() if isinstance(one, FetchResult)])
        throttle_ms = self._admission.charge(context, QuotaKind.FETCHED_BYTES, held)
        return replace(fetched, throttle_ms=throttle_ms) if throttle_ms else fetched

    async def _fetch_here(
        self,
        permissions: Permissions,
        found: Sequence[WantedPartition | LogStoreError],
        limits: FetchLimits,
        gone: Gone | None,
        form: _Form[T],
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

    async def _fetch_everywhere(
        self,
        division: "DividedFetch",
        read_remote: Callable[[pa.Buffer, int], tuple[T, int]],
        context: RequestContext,
        found: Sequence[WantedPartition | LogStoreError],
        limits: FetchLimits,
        gone: Gone | None,
        form: _Form[T],
        copies: float,
    ) -> Fetched[T]:
        """Ask all leaders for what they have. If that is less than ``min_bytes`` in all, ask them to wait, each for its
        part of what is missing: when there is enough, at least one of them has its part. Then ask all again. Each
        leader has an equal part of ``max_bytes``.
        """
        elsewhere = division.by_leader
        sources = _Sources(list(elsewhere.values()), len(found))
        here = sources.here
        enough = min(max(1, limits.min_bytes), limits.max_bytes)
        share = replace(limits, max_bytes=max(1, limits.max_bytes // len(sources)))

        async def at_home(min_bytes: int, max_wait_ms: int) -> Fetched[T]:
            permissions = Permissions(self._authorizer, context)
            own = [found[at] for at in here]
            waits = replace(share, max_wait_ms=max_wait_ms, min_bytes=min_bytes)
            fetched = await self._fetch_here(permissions, own, waits, None, form, copies)
            return replace(fetched, answers={here[at]: answer for at, answer in fetched.answers.items()})

        async def away(leader: int, asked: "Sequence[Asked]", min_bytes: int, max_wait_ms: int) -> Fetched[T]:
            reservation = self._answers.reserve()
            try:
                wanted_here = replace(share, min_bytes=min_bytes)
                raw = await division.fetch(leader, wanted_here, max_wait_ms, reservation)
                answers: dict[int, FetchResult[T] | LogStoreError] = {}
                for at, wanted in asked:
                    one = raw.get(at)
                    if isinstance(one, FetchResult):
                        reservation.grow(math.ceil(one.num_bytes * (copies - 1)))
                        records, count = await asyncio.get_running_loop().run_in_executor(
                            self._threads, read_remote, one.records, wanted.offset
                        )
                        answers[at] = replace(one, records=records, count=count)
                    elif one is not None:
                        answers[at] = one
            except BaseException:
                reservation.release()
                raise
            return Fetched(answers, reservation)

        def ask(min_bytes: Sequence[int], max_wait_ms: int) -> list[Coroutine[object, object, Fetched[T]]]:
            asked = [
                away(leader, wanted, least, max_wait_ms)
                for (leader, wanted), least in zip(elsewhere.items(), min_bytes, strict=False)
            ]
            return [*asked, at_home(min_bytes[-1], max_wait_ms)] if here else asked

        loop = asyncio.get_running_loop()
        end = loop.time() + limits.max_wait_ms / 1000
        wanted_at_once = False

        async def client_gone() -> None:
            nonlocal wanted_at_once
            assert gone is not None
            await gone()
            wanted_at_once = True

        while True:
            fetched = await self._first_news(ask([enough] * len(sources), 0), None)
            left_ms = math.ceil((end - loop.time()) * 1000)
            had = sources.num_bytes(fetched.answers)
            missing = enough - sum(had)
            # A search that found nothing has still moved on.
            if missing <= 0 or left_ms <= 0 or wanted_at_once or _has_error(fetched.answers) or limits.where:
                return fetched
            fetched.reservation.release()
            parts = [size + math.ceil(missing / len(sources)) for size in had]
            fetched = await self._first_news(ask(parts, left_ms), None if gone is None else client_gone, ends=True)
            now = sources.num_bytes(fetched.answers)
            if not fetched.answers or sum(now) >= enough or _has_error(fetched.answers):
                return fetched
            fetched.reservation.release()
            if all(new <= before for new, before in zip(now, had, strict=True)):
                wanted_at_once = True  # a leader that has no more to give has answered

    async def _first_news(
        self, sources: "Sequence[Coroutine[object, object, Fetched[T]]]", gone: Gone | None, *, ends: bool = False
    ) -> Fetched[T]:
        """Collect the responses of all ``sources``. With ``ends``, stop when one source has news. Raises the errors of
        ``gone``.
        """
        fetching = [asyncio.ensure_future(source) for source in sources]
        going = None if gone is None else asyncio.ensure_future(gone())
        waiting: set[asyncio.Future[Any]] = {*fetching} if going is None else {*fetching, going}
        try:
            while not all(one.done() for one in fetching):
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if going is not None and going.done():
                    going.result()
                    break
                if ends and any(one in done and one.result().answers for one in fetching):
                    break
            answers: dict[int, FetchResult[T] | LogStoreError] = {}
            for one in fetching:
                if one.done():
                    answers.update(one.result().answers)
            whole = self._answers.reserve()
            for one in fetching:
                if one.done():
                    size = one.result().reservation.size
                    one.result().reservation.release()
                    whole.grow(size)
            return Fetched(dict(sorted(answers.items())), whole)
        except BaseException:
            for one in fetching:
                if one.done() and not one.cancelled() and one.exception() is None:
                    one.result().reservation.release()
            raise
        finally:
            await _end([*fetching, *([] if going is None else [going])])

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
                if not await patience.until(room):
                    break
            finally:
                self._answers.wait_no_more(room)
        return self._answers.reserve(size)


class _Sources:
    """The partitions of a fetch by the broker that answers: other leaders in their order, then this broker."""

    def __init__(self, elsewhere: "Sequence[Sequence[Asked]]", count: int) -> None:
        remotely = {at for asked in elsewhere for at, _ in asked}
        self.here = [at for at in range(count) if at not in remotely]
        self._places = [[at for at, _ in asked] for asked in elsewhere] + ([self.here] if self.here else [])

    def __len__(self) -> int:
        return len(self._places)

    def num_bytes(self, answers: Mapping[int, FetchResult[T] | LogStoreError]) -> list[int]:
        """Return the number of bytes from each."""
        sizes = {at: one.num_bytes for at, one in answers.items() if isinstance(one, FetchResult)}
        return [sum([sizes.get(at, 0) for at in places]) for places in self._places]


def _has_error(answers: Mapping[int, FetchResult[T] | LogStoreError]) -> bool:
    return any(isinstance(one, LogStoreError) for one in answers.values())


def _held_bytes_max(todo: Sequence[tuple[int, WantedPartition | LogStoreError]], limits: FetchLimits) -> int:
    total = 0
    for _, one in todo:
        if total >= limits.max_bytes:
            break
        if isinstance(one, WantedPartition):
            total += one.held_bytes_max(min(limits.max_bytes - total, one.max_bytes_of(limits)))
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


async def _end(futures: "Sequence[asyncio.Future[Any]]") -> None:
    """Cancel the unfinished futures, and wait for them."""
    under_way = [one for one in futures if not one.done()]
    for one in under_way:
        one.cancel()
    for ended in await asyncio.gather(*under_way, return_exceptions=True):
        if isinstance(ended, Fetched):  # it was done before it could be cancelled
            ended.reservation.release()


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
