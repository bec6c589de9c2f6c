"""Batching: small produce requests that arrive together are appended together, whichever listener they came by.

Columns cost the same for one record as for a hundred. So the requests that come while an append of their topic is being
fsynced become the next append: the journal would not have begun it earlier.

Invariants: each request is answered with its own places, when they are durable. A request that must be refused is
refused before it joins others, so that requests share only errors of the journal and of a partition. The records of a
request stay together in their order. Requests that join become one frame, and a frame has one sender: so only plain
requests come here, never one with a producer id, an idempotency key or a transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from typing import Any, Protocol

import msgspec
import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.produce.appends import not_acknowledged
from logstore.broker.produce.result import ProduceResult
from logstore.broker.quotas import QuotaKind
from logstore.errors import InvalidRecordError, LogStoreError
from logstore.limits import MIB
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords

log = structlog.stdlib.get_logger(__name__)

#: A larger request gains nothing by joining others.
SMALL_REQUEST_BYTES_MAX = 32 * 1024
SMALL_REQUEST_RECORDS_MAX = 1024
# These bounds keep an append, and its encoding on the event loop, to a few milliseconds.
_REQUESTS_MAX = 256
_RECORDS_MAX = 2048
_BYTES_MAX = 1 * MIB
# Requests share timers, because a separate timer for each would mostly be set and cancelled in vain. A time-out comes
# late by at most this share of its length.
_TIME_OUT_LATE = 0.1
_TIME_OUTS_MAX = 100

#: Makes columns of the records of many requests at once, given for each request as ``Batcher.begin`` got them. Only the
#: listener knows their kind.
ToColumns = Callable[[Sequence[Any]], DecodedRecords]


class RecordPlaces(msgspec.Struct, frozen=True):
    """Partition and offset of each record of a request, in its order.

    ``errors`` has the reason for each partition that has not taken its records; their offsets are NO_OFFSET.
    """

    partitions: list[int]
    offsets: list[int]
    errors: Mapping[int, LogStoreError]


#: It is called with the places of the records, or with the error.
Callback = Callable[[RecordPlaces | None, BaseException | None], None]


class Produce(Protocol):
    def __call__(
        self,
        context: RequestContext,
        topic: Topic,
        records: DecodedRecords,
        *,
        partition: int | None,
        acks: int,
        timeout_ms: None,
    ) -> Awaitable[ProduceResult]: ...


class _Waiting:
    """A request that waits for its response; it leaves its batch when its time is up."""

    __slots__ = ("_batch", "_callback", "_time_out", "count", "num_bytes", "records")

    def __init__(
        self,
        records: Sized,
        num_bytes: int,
        callback: Callback,
        time_out: "_TimeOut",
        batch: "dict[_Waiting, None]",
    ) -> None:
        self.records = records
        self.count = len(records)
        self.num_bytes = num_bytes
        self._callback: Callback | None = callback
        self._batch = batch
        self._time_out = time_out
        time_out.requests[self] = None

    def time_out(self, timeout_ms: int) -> None:
        self._batch.pop(self, None)
        self.complete(None, not_acknowledged(timeout_ms))

    def complete(self, places: RecordPlaces | None, error: BaseException | None = None) -> None:
        """Call back once: nothing follows a time-out. An error of the callback does not reach other requests."""
        callback, self._callback = self._callback, None
        if callback is None:
            return
        self._time_out.requests.pop(self, None)
        try:
            callback(places, error)
        except Exception:
            log.exception("batcher.callback_failed")


class _TimeOut:
    """The requests with the same ``timeout_ms`` that began in the same interval; they share one timer."""

    __slots__ = ("_timeout_ms", "ends_s", "requests")

    def __init__(self, timeout_ms: int, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timeout_ms = timeout_ms
        #: The end of the interval, by the loop's clock: later requests need another timer.
        self.ends_s = loop.time() + interval_s
        self.requests: dict[_Waiting, None] = {}
        # The last request that joins has its full time.
        loop.call_at(self.ends_s + timeout_ms / 1000, self._time_out_all)

    def _time_out_all(self) -> None:
        for waiting in list(self.requests):
            waiting.time_out(self._timeout_ms)


class _Queue:
    """The requests that wait for the next append with the same ``acks`` to a topic, or to the partition that all of
    them name, in order of arrival; and the number of appends under way.
    """

    __slots__ = ("acks", "appends", "begins", "last_size", "partition", "to_columns", "topic", "waiting")

    def __init__(self, topic: Topic, partition: int | None, acks: int, to_columns: ToColumns) -> None:
        self.topic = topic
        self.partition = partition
        self.acks = acks
        self.to_columns = to_columns
        self.waiting: dict[_Waiting, None] = {}
        self.appends = 0
        self.last_size = 0
        # True if an append begins at the next turn of the loop.
        self.begins = False

    @property
    def is_due(self) -> bool:
        """True if an append begins now. While one append is being fsynced, a second one as large is encoded."""
        if self.begins or not self.waiting:
            return False
        return not self.appends or (self.appends == 1 and len(self.waiting) >= self.last_size)

    @property
    def key(self) -> tuple[Topic, int | None, int, ToColumns]:
        return self.topic, self.partition, self.acks, self.to_columns


class Batcher:
    """Joins small requests. It belongs to the broker's event loop."""

    def __init__(self, produce: Produce, authorizer: Authorizer, admission: Admission) -> None:
        self._loop = asyncio.get_running_loop()
        self._produce = produce
        self._authorizer = authorizer
        self._admission = admission
        # By topic, partition, acks and function that makes columns: one append has one of each.
        self._queues: dict[tuple[Topic, int | None, int, ToColumns], _Queue] = {}
        self._appends: set[asyncio.Task[None]] = set()
        # By time-out in ms, the timer that new requests join.
        self._time_outs: dict[int, _TimeOut] = {}

    def begin(
        self,
        context: RequestContext,
        topic: Topic,
        records: Sized,
        to_columns: ToColumns,
        *,
        partition: int | None = None,
        acks: int = -1,
        num_bytes: int,
        timeout_ms: int,
        callback: Callback,
    ) -> None:
        """Queue a request, as ``Broker.produce`` does, with acks -1 or 1; ``callback`` is called on the event loop. A
        request whose time is up before its append has begun is not stored.

        ``may_join(topic, num_bytes, partition)`` must hold. ``to_columns`` takes ``records``, whose length is their
        number, together with those of other requests; give the same function each time. Raises TopicAuthorizationError,
        InvalidTopicError, and ThrottledError (of a quota).
        """
        self._authorizer.require(context, Operation.WRITE, ResourceType.TOPIC, topic.name)
        topic.require_not_internal()
        self._admission.require_quota(context, QuotaKind.PRODUCED_BYTES)
        queue = self._queues.get((topic, partition, acks, to_columns))
        if queue is None:
            queue = _Queue(topic, partition, acks, to_columns)
            self._queues[queue.key] = queue
        queue.waiting[_Waiting(records, num_bytes, callback, self._time_out(timeout_ms), queue.waiting)] = None
        self._admission.charge(context, QuotaKind.PRODUCED_BYTES, num_bytes)
        if not queue.begins:
            self._begin_if_due(queue)

    def _time_out(self, timeout_ms: int) -> _TimeOut:
        """Return the timer for a request that begins now. It fires late by ``_TIME_OUT_LATE`` of ``timeout_ms``, at
        most by 100 ms.
        """
        found = self._time_outs.get(timeout_ms)
        if found is None or found.ends_s < self._loop.time():
            if len(self._time_outs) == _TIME_OUTS_MAX:
                self._time_outs.clear()  # these timers still fire, but no further request joins them
            interval_s = min(0.1, timeout_ms / 1000 * _TIME_OUT_LATE)
            found = self._time_outs[timeout_ms] = _TimeOut(timeout_ms, interval_s)
        return found

    async def produce(
        self,
        context: RequestContext,
        topic: Topic,
        records: Sized,
        to_columns: ToColumns,
        *,
        partition: int | None = None,
        acks: int = -1,
        num_bytes: int,
        timeout_ms: int,
    ) -> RecordPlaces:
        """Call ``begin``, and wait for the result."""
        result: asyncio.Future[RecordPlaces] = asyncio.get_running_loop().create_future()

        def callback(places: RecordPlaces | None, error: BaseException | None) -> None:
            if result.done():
                return
            if places is None:
                assert error is not None
                result.set_exception(error)
            else:
                result.set_result(places)

        self.begin(
            context,
            topic,
            records,
            to_columns,
            partition=partition,
            acks=acks,
            num_bytes=num_bytes,
            timeout_ms=timeout_ms,
            callback=callback,
        )
        return await result

    def _begin_if_due(self, queue: _Queue) -> None:
        if queue.is_due:
            queue.begins = True
            # The task begins after the other requests that this turn of the loop has read.
            append = asyncio.get_running_loop().create_task(self._append_waiting(queue))
            self._appends.add(append)
            append.add_done_callback(self._appends.discard)

    async def _append_waiting(self, queue: _Queue) -> None:
        queue.begins = False
        taken = _take(queue.waiting)
        queue.appends += 1
        try:
            if taken:
                queue.last_size = len(taken)
                self._begin_if_due(queue)
                await self._append_all(queue, taken)
        finally:
            queue.appends -= 1
            self._begin_if_due(queue)
            if not (queue.appends or queue.begins):
                del self._queues[queue.key]

    async def _append_all(self, queue: _Queue, batch: list[_Waiting]) -> None:
        try:
            records = queue.to_columns([waiting.records for waiting in batch])
            # Each request has its own time-out, so this append has none. Each was authorized before, hence INTERNAL.
            result = await self._produce(
                INTERNAL, queue.topic, records, partition=queue.partition, acks=queue.acks, timeout_ms=None
            )
        except InvalidRecordError as error:
            # The topic was altered since the requests were checked, and nothing is stored: append each alone, in order.
            if len(batch) == 1:
                batch[0].complete(None, error)
                return
            await asyncio.gather(*(self._append_all(queue, [waiting]) for waiting in batch))
            return
        except BaseException as error:  # noqa: BLE001 - of whatever kind, it is theirs
            for waiting in batch:
                waiting.complete(None, _copy(error))
            return
        _complete_all(batch, result)


def may_join(topic: Topic, num_bytes: int, partition: int | None = None) -> bool:
    """Return True if a request of this many bytes gains by joining, and cannot be refused for one of its records. A
    request for a ``partition`` that is not led here cannot gain: another broker answers it.
    """
    config = topic.config
    if num_bytes > SMALL_REQUEST_BYTES_MAX or num_bytes > config.max_message_bytes or config.compacted:
        return False
    return partition is None or (partition < len(topic.partitions) and topic.partitions[partition].is_leader)


def _complete_all(batch: Sequence[_Waiting], result: ProduceResult) -> None:
    partitions, offsets = (places.tolist() for places in result.places())
    errors = result.errors()
    end = 0
    for waiting in batch:
        first, end = end, end + waiting.count
        own, own_errors = partitions[first:end], {}
        if errors:
            own_errors = {p: _copy(errors[p]) for p in dict.fromkeys(own) if p in errors}
        waiting.complete(RecordPlaces(own, offsets[first:end], own_errors))


def _take(waiting: dict[_Waiting, None]) -> list[_Waiting]:
    """Take the first requests, as many as fit one append."""
    taken: list[_Waiting] = []
    count = num_bytes = 0
    for one in waiting:
        count += one.count
        num_bytes += one.num_bytes
        if taken and (len(taken) == _REQUESTS_MAX or count > _RECORDS_MAX or num_bytes > _BYTES_MAX):
            break
        taken.append(one)
    for one in taken:
        del waiting[one]
    return taken


def _copy(error: Any) -> Any:
    """Copy the error for each request: an exception that is raised in several tasks collects all their tracebacks."""
    if isinstance(error, LogStoreError):
        copy = error.__class__.__new__(error.__class__)
        copy.__dict__.update(error.__dict__)
        copy.args = error.args
        return copy
    return error
