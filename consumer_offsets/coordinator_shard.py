"""A shard of a coordinator: the state machine of one partition of an internal topic, its log, and its timers.

In Kafka it is a coordinator of CoordinatorRuntime. The shard loads the machine from the log, gives it events, and
carries out their effects. Invariants, all on the event loop:

* Only the shard appends to its partition. The records of one event are in one frame: after a crash all of them exist,
  or none. Appends are in the order of the events.
* One append is under way at a time, with the records of all events that came during the previous one, the last of each
  key. The machine is notified of durable records in the order of the events (``stored``).
* A response goes out when all records of its event, and of earlier events, are below the high watermark.
* The machine is the result of the log: when an append fails, or its outcome is unknown, a new machine is loaded.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa
import structlog

from consumer_offsets.committed_offsets import NO_PRODUCER_ID
from consumer_offsets.effects import AppendRecord, ArmTimer, CancelTimer, Effect, Record, Respond, TimerFired
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.clock import Clock
from logstore.errors import (
    BrokerNotReadyError,
    CoordinatorLoadInProgressError,
    CorruptionError,
    LogStoreError,
    MissingRecordsError,
    NotCoordinatorError,
    QuarantinedError,
    RequestTimedOutError,
)
from logstore.limits import KIB
from logstore.log.topic import Topic
from logstore.records.batch import DecodedRecords
from logstore.records.offset_record import wire_batch

log = structlog.stdlib.get_logger(__name__)

# The sizes let the event loop do other work between two reads of a load, and while a frame is encoded.
_LOAD_BYTES = 256 * KIB
_APPEND_BYTES = 512 * KIB
_LOAD_WAIT_MS = 500
_LOAD_AGAIN_S = 1.0
# Every session that ends in a large group writes the whole group.
_TIMERS_S = 0.01
_NO_PRODUCER_EPOCH = -1


class Machine(Protocol):
    """The state of a partition: pure, synchronous, without a clock. ``now_ms`` is that of the shard."""

    def replay(self, records: pa.Table, producer_id: int, producer_epoch: int) -> None:
        """Apply records of the log, by rising offset: the columns of LOG_SCHEMA. Raises CorruptionError if they are
        damaged.
        """
        ...

    def replay_marker(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """Apply the end of a producer's transaction."""
        ...

    def on_loaded(self, now_ms: int) -> Iterable[Effect]:
        """Return the first effects, now that the whole log is replayed."""
        ...

    def apply(self, event: Any, now_ms: int) -> Iterable[Effect]: ...

    def stored(self, offsets: Sequence[int], records: Sequence[Any]) -> None:
        """Apply the records of an event: they are durable, at ``offsets``."""
        ...


M = TypeVar("M", bound=Machine)


class _State(Enum):
    LOADING = auto()
    ACTIVE = auto()
    #: The log cannot be read.
    FAILED = auto()
    #: Another broker leads the partition.
    UNLOADED = auto()
    CLOSED = auto()


@dataclass(frozen=True, slots=True)
class _Append:
    """The records of one event, and the responses that wait for them."""

    records: list[Record]
    encoded: list[tuple[bytes, bytes | None]]
    answers: list[Respond]


class CoordinatorShard(Generic[M]):
    """The owner calls ``load`` when this broker leads the partition, and ``unload`` when another one does.

    ``on_change`` is called when a machine is loaded, and when there is no longer one.
    """

    def __init__(
        self,
        broker: Broker,
        topic: Topic,
        partition: int,
        new_machine: Callable[[], M],
        clock: Clock,
        on_change: Callable[["CoordinatorShard[M]"], None] = lambda _: None,
    ) -> None:
        self.name = f"{topic.name}-{partition}"
        self._broker = broker
        self._topic = topic
        self._partition = partition
        self._log = topic.partition(partition)
        self._new_machine = new_machine
        self._clock = clock
        self._on_change = on_change
        self._state = _State.UNLOADED
        self._failure: LogStoreError | None = None
        self._machine: M | None = None
        #: Rises with every load and unload: work that began before it is ignored.
        self._incarnation = 0
        self._loading: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._wall_ms, self._monotonic_s = 0, 0.0
        self._tokens = itertools.count(1)
        self._parked: dict[int, asyncio.Future[Any]] = {}
        self._queue: list[_Append] = []
        self._under_way: list[_Append] = []
        self._writing: asyncio.Task[None] | None = None
        self._timers: dict[Hashable, tuple[int, object]] = {}
        # An entry is (time, number, key); a timer that was replaced or cancelled leaves its entry behind.
        self._deadlines: list[tuple[int, int, Hashable]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    # ---- loading ----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Begin to load a new machine from the log. Until then requests are refused, and waiting requests get that
        error.

        The previous machine, if there is one, can be read until then: its state was durable.
        """
        self._end(_State.LOADING, self._load_in_progress())
        self._loading = asyncio.create_task(self._load(self._incarnation))

    def unload(self) -> None:
        """Forget everything and refuse requests, because another broker leads the partition."""
        self._end(_State.UNLOADED, self._not_coordinator())
        self._machine = None
        self._settled.set()
        self._on_change(self)

    async def close(self) -> None:
        """Take no more requests, and wait for the appends under way. The machine can still be read."""
        if self._state is _State.ACTIVE:
            self._state = _State.CLOSED
            if self._writing is not None:
                await asyncio.wait([self._writing])
        loading = self._loading
        self._end(_State.CLOSED, self._stopping())
        self._settled.set()
        if loading is not None:
            await asyncio.wait([loading])

    def _end(self, state: _State, reason: LogStoreError) -> None:
        """End everything that belongs to the machine until now."""
        self._incarnation += 1
        self._state, self._failure = state, None
        self._settled.clear()
        if self._loading is not None:
            self._loading.cancel()
            self._loading = None
        under_way, self._queue, self._under_way = self._under_way, [], []
        self._timers, self._deadlines = {}, []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        parked, self._parked = self._parked, {}
        for answer in (answer for append in under_way for answer in append.answers):
            if (future := parked.pop(answer.request, None)) is not None:
                _fail(future, self._outcome_open())
        for future in parked.values():
            _fail(future, reason)

    async def _load(self, incarnation: int) -> None:
        try:
            await self._load_machine()
        except Exception as error:
            log.exception("shard.not_loaded", shard=self.name)
            if incarnation == self._incarnation:
                self._state, self._machine = _State.FAILED, None
                self._failure = LogStoreError(f"{self.name} cannot be loaded: {error!r}. The server's log has more.")
        finally:
            if incarnation == self._incarnation:
                self._loading = None
                self._settled.set()

    async def _load_machine(self) -> None:
        began = self._clock.monotonic()
        if self._writing is not None:
            # An append of the previous machine may still get its offsets, and the new machine has to read it.
            await asyncio.wait([self._writing])
        while True:
            try:
                machine, count = await self._replayed()
            except (QuarantinedError, MissingRecordsError, CorruptionError) as error:
                self._state, self._failure = _State.FAILED, error
                self._machine = None
                log.error("shard.not_loaded", shard=self.name, error=str(error))
                return
            except LogStoreError as error:
                log.warning("shard.load_again", shard=self.name, error=str(error))
                await asyncio.sleep(_LOAD_AGAIN_S)
                continue
            self._machine, self._state = machine, _State.ACTIVE
            self._wall_ms, self._monotonic_s = self._clock.now_ms(), self._clock.monotonic()
            self._perform(machine.on_loaded(self.now_ms()))
            seconds = round(self._clock.monotonic() - began, 3)
            (log.info if count else log.debug)("shard.loaded", shard=self.name, records=count, seconds=seconds)
            self._on_change(self)
            return

    async def _replayed(self) -> tuple[M, int]:
        """Return a machine that has replayed the whole log, and the number of records."""
        machine, count = self._new_machine(), 0
        self._log.require_served()
        at = self._log.log_start_offset
        # The load reads to the end, not to the high watermark: only this shard appends, and it can wait for the records
        # between the two.
        while at < self._log.next_offset:
            fetched = await self._broker.fetch.partition(
                INTERNAL,
                self._topic,
                self._partition,
                at,
                max_bytes=_LOAD_BYTES,
                min_bytes=1,
                max_wait_ms=_LOAD_WAIT_MS,
            )
            if fetched.count:
                try:
                    machine.replay(fetched.records, NO_PRODUCER_ID, _NO_PRODUCER_EPOCH)
                except CorruptionError as error:
                    raise CorruptionError(f"{self.name}, {error}") from error
                count += fetched.count
            at = fetched.next_offset
        return machine, count

    async def until_settled(self, timeout_ms: int) -> None:
        """Wait until the shard is loaded or has failed, at most ``timeout_ms``, without an error."""
        if not self._settled.is_set():
            waiting = asyncio.ensure_future(self._settled.wait())
            try:
                await asyncio.wait([waiting], timeout=timeout_ms / 1000)
            finally:
                waiting.cancel()

    @property
    def failure(self) -> LogStoreError | None:
        """The reason why the log could not be read."""
        return self._failure

    @property
    def is_active(self) -> bool:
        """True if the shard takes requests."""
        return self._state is _State.ACTIVE

    @property
    def is_readable(self) -> bool:
        """True if there is a machine to read, which is loaded now or was loaded before."""
        return self._machine is not None

    @property
    def machine(self) -> M:
        """The machine, for reading durable state. Raises the error of ``require_active`` if there is none."""
        if self._machine is None:
            self.require_active()
        assert self._machine is not None
        return self._machine

    def require_active(self) -> None:
        """Raise CoordinatorLoadInProgressError, NotCoordinatorError, BrokerNotReadyError, or the error of the log."""
        if self._state is _State.ACTIVE:
            return
        if self._state is _State.LOADING:
            raise self._load_in_progress()
        if self._state is _State.UNLOADED:
            raise self._not_coordinator()
        if self._state is _State.CLOSED:
            raise self._stopping()
        assert self._failure is not None
        raise self._failure

    def _load_in_progress(self) -> LogStoreError:
        return CoordinatorLoadInProgressError(f"The coordinator is loading {self.name}: try again.")

    def _not_coordinator(self) -> LogStoreError:
        return NotCoordinatorError(f"This broker does not lead {self.name}: look up the coordinator, and ask there.")

    def _outcome_open(self) -> LogStoreError:
        return RequestTimedOutError(
            f"This broker has stopped leading {self.name} since the append: it may or may not be stored. Try again."
        )

    def _stopping(self) -> LogStoreError:
        return BrokerNotReadyError("The store is stopping. Try again in a few seconds.")

    # ---- events -----------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return milliseconds since the epoch that never step: the wall clock's time at the load, and the time since
        then.
        """
        return self._wall_ms + round((self._clock.monotonic() - self._monotonic_s) * 1000)

    def request(self, event: Callable[[int], object]) -> "asyncio.Future[Any]":
        """Apply an event, made with the token of its response, which comes in the future.

        Raises the errors of ``require_active``. The future may be cancelled, which does not undo the event. It fails
        with the error of the append, or with that of ``load`` or ``unload`` if these come first; then the outcome of an
        append under way is unknown.
        """
        self.require_active()
        token = next(self._tokens)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._parked[token] = future
        self.apply(event(token))
        return future

    def apply(self, event: object) -> None:
        """Apply an event without a response. Raises what ``require_active`` raises."""
        self.require_active()
        assert self._machine is not None
        try:
            self._perform(self._machine.apply(event, self.now_ms()))
        except BaseException:
            self.load()  # The machine may be half changed.
            raise

    def replay_marker(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        """Apply a marker that ends a producer's transaction and is below the high watermark."""
        self.require_active()
        self.machine.replay_marker(producer_id, producer_epoch, committed=committed)

    def _perform(self, effects: Iterable[Effect]) -> None:
        records: list[Record] = []
        answers: list[Respond] = []
        for effect in effects:
            match effect:
                case AppendRecord(record):
                    records.append(record)
                case Respond():
                    answers.append(effect)
                case ArmTimer(key, at_ms):
                    self.arm(key, at_ms, TimerFired(key))
                case CancelTimer(key):
                    self.cancel(key)
        if records:
            self._queue.append(_Append(records, [record.encoded() for record in records], answers))
            if self._writing is None:
                self._writing = asyncio.create_task(self._write())
        elif answers:
            # The responses may report what an earlier event did.
            before = self._queue or self._under_way
            if before:
                before[-1].answers.extend(answers)
            else:
                self._deliver(answers)

    def _deliver(self, answers: Iterable[Respond]) -> None:
        for answer in answers:
            future = self._parked.pop(answer.request, None)
            if future is None or future.done():
                continue
            if isinstance(answer.response, LogStoreError):
                _fail(future, answer.response)
            else:
                future.set_result(answer.response)

    # ---- appending --------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            while self._queue:
                incarnation, appends = self._incarnation, self._take()
                self._under_way = appends
                try:
                    offsets = iter(await self._append(appends))
                except Exception as error:
                    if incarnation == self._incarnation:
                        self._append_failed(error)
                    if not isinstance(error, LogStoreError):
                        raise
                    continue
                if incarnation != self._incarnation:
                    continue
                assert self._machine is not None
                self._under_way = []
                for append in appends:
                    self._machine.stored(list(itertools.islice(offsets, len(append.records))), append.records)
                    self._deliver(append.answers)
        finally:
            self._writing = None

    def _take(self) -> list[_Append]:
        """Return the next appends, as many as fit into a frame, but at least one."""
        sizes: dict[bytes, int] = {}
        count, num_bytes = 0, 0
        for append in self._queue:
            for key, value in append.encoded:
                size = len(key) + len(value or b"")
                num_bytes += size - sizes.get(key, 0)
                sizes[key] = size
            if count and num_bytes > _APPEND_BYTES:
                break
            count += 1
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    async def _append(self, appends: Sequence[_Append]) -> list[int]:
        """Append the records, and return their offsets once all are below the high watermark.

        Of several records with one key only the last is written, because one frame has them all; the others get its
        offset. Otherwise a group whose members join together would be written whole for each of them.
        """
        encoded = [record for append in appends for record in append.encoded]
        latest = dict(encoded)
        batch = wire_batch(list(latest.items()))
        produced = await self._broker.produce.records.produce(
            INTERNAL, self._topic, DecodedRecords(batch, None), partition=self._partition, timeout_ms=None
        )
        produced.require_stored()
        offsets = dict(zip(latest, itertools.count(produced.partitions[0].base_offset), strict=False))
        return [offsets[key] for key, _ in encoded]

    def _append_failed(self, error: Exception) -> None:
        """Load again: the machine has changed, and the log has not, or its outcome is unknown."""
        log.warning("shard.append_failed", shard=self.name, error=str(error))
        reason = error if isinstance(error, LogStoreError) else self._load_in_progress()
        for append in (*self._under_way, *self._queue):
            for answer in append.answers:
                if (future := self._parked.pop(answer.request, None)) is not None:
                    _fail(future, reason)
        if self._state is _State.ACTIVE:
            self.load()
        else:
            self._queue, self._under_way = [], []

    # ---- timers -----------------------------------------------------------------------------------------------------

    def arm(self, key: Hashable, at_ms: int, event: object) -> None:
        """Apply ``event`` when ``now_ms`` reaches ``at_ms``; a timer of the same key is replaced."""
        number = next(self._numbers)
        self._timers[key] = number, event
        heapq.heappush(self._deadlines, (at_ms, number, key))
        if len(self._deadlines) > 2 * len(self._timers) + 64:
            self._deadlines = [entry for entry in self._deadlines if self._is_armed(entry)]
            heapq.heapify(self._deadlines)
        if self._timer is None or self._deadlines[0][1] == number:
            self._set_timer()

    def cancel(self, key: Hashable) -> None:
        """Forget the timer, if it is armed."""
        self._timers.pop(key, None)

    def run_due(self) -> None:
        """Apply the events of timers that are due, in the order of their times.

        If that takes long, the event loop does other work in between: a heartbeat that came in time must not become
        late because of members that have timed out.
        """
        end = self._clock.monotonic() + _TIMERS_S
        while self._state is _State.ACTIVE and self._deadlines and self._deadlines[0][0] <= self.now_ms():
            entry = heapq.heappop(self._deadlines)
            if self._is_armed(entry):
                _, event = self._timers.pop(entry[2])
                self.apply(event)
                if self._clock.monotonic() > end:
                    break
        if self._state is _State.ACTIVE:
            self._set_timer()

    def _is_armed(self, entry: tuple[int, int, Hashable]) -> bool:
        return entry[2] in self._timers and self._timers[entry[2]][0] == entry[1]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadlines:
            delay_s = max(0, self._deadlines[0][0] - self.now_ms()) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.run_due)


def _fail(future: "asyncio.Future[Any]", error: LogStoreError) -> None:
    if not future.done():
        future.set_exception(error)
        # The caller may be gone: asyncio must not warn about an exception that nobody retrieved.
        future.exception()
