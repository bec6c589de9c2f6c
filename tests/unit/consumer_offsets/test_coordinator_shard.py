"""A shard with a small machine, which counts by name, over a real broker."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumer_offsets.coordinator_shard import (
    AppendRecord,
    ArmTimer,
    CancelTimer,
    CoordinatorShard,
    Effect,
    Respond,
    TimerFired,
)
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.clock import Clock
from logstore.cluster.cluster_state import PartitionState
from logstore.errors import (
    BrokerNotReadyError,
    CoordinatorLoadInProgressError,
    CorruptionError,
    InvalidRequestError,
    LogStoreError,
    NotCoordinatorError,
    RequestTimedOutError,
    StorageFullError,
)
from logstore.records.murmur2 import partition_for
from tests.support.eventually import eventually_async
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import produce, running_broker
from tests.support.virtual_time import clock_of_loop, run

TOPIC = "__transaction_state"


@dataclass(frozen=True)
class Total:
    name: str
    total: int

    def encoded(self) -> tuple[bytes, bytes | None]:
        return self.name.encode(), str(self.total).encode()


@dataclass(frozen=True)
class Add:
    """An event that adds 1 to each of the names; its answer has the totals."""

    request: int
    names: Sequence[str]


@dataclass(frozen=True)
class Read:
    request: int


@dataclass(frozen=True)
class Remind:
    key: str
    at_ms: int | None


@dataclass(frozen=True)
class Break:
    """An event that changes the machine and raises an error."""


class Counters:
    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.durable: dict[str, int] = {}
        self.stored_at: list[tuple[str, int]] = []
        self.fired: list[Any] = []
        self.ended: list[tuple[int, int, bool]] = []

    def replay(self, records: pa.Table, producer_id: int, producer_epoch: int) -> None:
        for offset, key, value in zip(*(records[c].to_pylist() for c in ("offset", "key", "value")), strict=True):
            if key is None:
                raise CorruptionError(f"offset {offset}: no key")
            self.totals[key.decode()] = self.durable[key.decode()] = int(value)

    def replay_marker(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:
        self.ended.append((producer_id, producer_epoch, committed))

    def on_loaded(self, now_ms: int) -> Iterator[Effect]:
        yield ArmTimer("loaded", now_ms + 1000)

    def apply(self, event: Any, now_ms: int) -> Iterator[Effect]:
        match event:
            case Add(request, names):
                if not names:
                    yield Respond(request, InvalidRequestError("name something"))
                for name in names:
                    self.totals[name] = self.totals.get(name, 0) + 1
                    yield AppendRecord(Total(name, self.totals[name]))
                yield Respond(request, [self.totals[name] for name in names])
            case Read(request):
                yield Respond(request, dict(self.totals))
            case Remind(key, None):
                yield CancelTimer(key)
            case Remind(key, at_ms):
                yield ArmTimer(key, at_ms)
            case TimerFired(key):
                self.fired.append(key)
            case Break():
                self.totals["broken"] = 1
                raise ValueError("a mistake of the machine")

    def stored(self, offsets: Sequence[int], records: Sequence[Total]) -> None:
        for offset, record in zip(offsets, records, strict=True):
            assert record.total == self.durable.get(record.name, 0) + 1
            self.durable[record.name] = record.total
            self.stored_at.append((record.name, offset))


Shard = CoordinatorShard[Counters]


@contextlib.asynccontextmanager
async def running(data: Path, clock: Clock | None = None, **options: Any) -> AsyncIterator[tuple[Broker, Shard]]:
    async with running_broker(data, clock=clock, **options) as broker:
        topic = await broker.topics.changes.internal(INTERNAL, TOPIC, partitions=1, configs={"segment.ms": "100000000"})
        shard = CoordinatorShard(broker, topic, 0, Counters, clock or clock_of_loop())
        await load(shard)
        try:
            yield broker, shard
        finally:
            await shard.close()


async def load(shard: Shard) -> None:
    shard.load()
    await shard.until_settled(10_000)


def add(shard: Shard, *names: str) -> "asyncio.Future[Any]":
    return shard.request(lambda request: Add(request, names))


def log_end(broker: Broker) -> int:
    return broker.topics.served.topic(INTERNAL, TOPIC).partitions[0].high_watermark


def lead(broker: Broker, leader: int) -> int:
    """Let ``leader`` lead the partition with a new epoch, as the coordinator reports it."""
    topic = broker.topics.served.topic(INTERNAL, TOPIC)
    epoch = topic.partitions[0].leader_epoch + 1
    broker.topics.served._partition_changed(topic.topic_id, 0, PartitionState(leader, epoch, (leader,), (leader,)))
    return epoch


def test_acknowledged_changes_exist_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            assert await add(shard, "a", "b") == [1, 1]
            assert await add(shard, "a") == [2]
            with pytest.raises(InvalidRequestError):
                await add(shard)
            assert log_end(broker) == 3
        for _ in range(2):
            async with running(tmp_path) as (broker, shard):
                assert shard.machine.totals == {"a": 2, "b": 1}
                await broker.topics.tables.roll(INTERNAL, broker.topics.served.topic(INTERNAL, TOPIC))
        async with running(tmp_path) as (broker, shard):
            assert await add(shard, "a") == [3]

    run(scenario())


def test_answers_wait_for_their_records_and_for_those_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            first = add(shard, "a")
            reading = shard.request(Read)
            seen = []
            for future in (first, reading):
                future.add_done_callback(lambda done: seen.append((done.result(), log_end(broker))))
            await asyncio.sleep(0)
            assert not reading.done()
            later = [add(shard, "a") for _ in range(300)]
            assert await reading == {"a": 1}
            assert seen == [([1], 1), ({"a": 1}, 1)]
            assert await asyncio.gather(*later) == [[n] for n in range(2, 302)]
            # A reader does not wait if no append is under way.
            reading = shard.request(Read)
            assert reading.done()

    run(scenario())


def test_events_of_one_moment_are_one_append_and_those_of_an_event_are_never_parted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            index = broker.topics.served.topic(INTERNAL, TOPIC).partitions[0].index
            await asyncio.gather(*(add(shard, f"a{each}") for each in range(100)))
            assert [frame.end_offset for frame in index.frames_by_bytes(0, 1 << 30, 1 << 30)] == [100]
            # One append cannot hold all of these, so it is split between events.
            name = "x" * 1000
            await asyncio.gather(*(add(shard, *(f"{name}{e}-{n}" for n in range(300))) for e in range(4)))
            ends = [frame.end_offset for frame in index.frames_by_bytes(0, 1 << 30, 1 << 30)]
            assert ends == [100, 400, 700, 1000, 1300]

    run(scenario())


def test_the_last_record_of_a_key_in_an_append_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            # All of these would fill several appends if each were written.
            name = "x" * 1000
            answers = await asyncio.gather(*(add(shard, name, f"a{each}") for each in range(1000)))
            assert answers == [[each, 1] for each in range(1, 1001)]
            stored_at = dict(shard.machine.stored_at)
            assert log_end(broker) == len(set(stored_at.values())) < 1010
            records = await broker.fetch.partition(
                INTERNAL,
                broker.topics.served.topic(INTERNAL, TOPIC),
                0,
                0,
                max_bytes=1 << 30,
                min_bytes=1,
                max_wait_ms=0,
            )
            latest = dict(zip(records.records["key"].to_pylist(), records.records["offset"].to_pylist(), strict=True))
            assert {key.decode(): offset for key, offset in latest.items()} == stored_at
        async with running(tmp_path) as (_, shard):
            assert shard.machine.totals == {name: 1000, **{f"a{each}": 1 for each in range(1000)}}

    run(scenario())


def test_requests_during_a_load_are_refused_and_what_was_durable_can_be_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (_, shard):
            await add(shard, "a")
            shard.load()
            for _ in range(2):
                with pytest.raises(CoordinatorLoadInProgressError):
                    add(shard, "a")
                assert shard.machine.durable == {"a": 1}
                await asyncio.sleep(0)
            await shard.until_settled(10_000)
            assert await add(shard, "a") == [2]

    run(scenario())


def test_a_shard_that_moves_forgets_everything_and_finds_it_again_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            await add(shard, "a")
            under_way = add(shard, "a")
            await asyncio.sleep(0)
            shard.unload()
            with pytest.raises(RequestTimedOutError, match="may or may not be stored"):
                await under_way
            with pytest.raises(NotCoordinatorError):
                add(shard, "a")
            with pytest.raises(NotCoordinatorError):
                _ = shard.machine
            await load(shard)
            # The journal had the append, so the load waited for it.
            assert shard.machine.totals == {"a": 2}
            assert await add(shard, "a") == [3]
            assert log_end(broker) == 3

    run(scenario())


def test_a_load_waits_for_an_append_that_has_no_offsets_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            encoded, produce = asyncio.Event(), broker.produce.records.produce

            async def produce_later(*args: Any, **options: Any) -> Any:
                await encoded.wait()  # as a large request does in its thread
                return await produce(*args, **options)

            monkeypatch.setattr(broker.produce.records, "produce", produce_later)
            under_way = add(shard, "a")
            await asyncio.sleep(0)
            shard.unload()
            shard.load()
            with pytest.raises(RequestTimedOutError):
                await under_way
            await asyncio.sleep(0.05)
            encoded.set()
            await shard.until_settled(10_000)
            assert shard.machine.totals == {"a": 1}
            assert await add(shard, "a") == [2]

    run(scenario())


def test_the_log_decides_on_an_append_with_an_unknown_outcome(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            await add(shard, "a")
            under_way, waiting = add(shard, "a"), shard.request(Read)
            await eventually_async(
                lambda: broker.topics.served.topic(INTERNAL, TOPIC).partitions[0].next_offset > 1, every_s=0
            )
            lead(broker, broker.broker_id)
            later = add(shard, "a", "b")
            for future in (under_way, waiting, later):
                with pytest.raises(RequestTimedOutError):
                    await future
            await shard.until_settled(10_000)
            # The log has neither of the two later appends.
            assert shard.machine.totals == shard.machine.durable == {"a": log_end(broker)}
            assert await add(shard, "b") == [1]

    run(scenario())


def test_a_shard_whose_append_fails_loads_again_and_continues(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running(tmp_path, filesystem=disk) as (broker, shard):
            await add(shard, "a")
            disk.fail("journal.write_at", errno.ENOSPC)
            shard.apply(Remind("forgotten", shard.now_ms()))
            refused = [add(shard, "a"), add(shard, "b"), shard.request(Read)]
            outcomes = await asyncio.gather(*refused, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {StorageFullError}
            assert all(outcome.retriable for outcome in outcomes)
            with pytest.raises(CoordinatorLoadInProgressError):
                add(shard, "a")
            assert shard.machine.durable == {"a": 1}
            await shard.until_settled(10_000)
            assert shard.machine.totals == {"a": 1}
            assert await add(shard, "a") == [2]
            assert log_end(broker) == 2
        async with running(tmp_path) as (_, shard):
            assert shard.machine.totals == {"a": 2}

    run(scenario())


def test_a_machine_that_raises_is_loaded_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (_, shard):
            await add(shard, "a")
            with pytest.raises(ValueError, match="a mistake"):
                shard.apply(Break())
            await shard.until_settled(10_000)
            assert shard.machine.totals == {"a": 1}

    run(scenario())


def test_a_log_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, shard):
            await produce(broker, broker.topics.served.topic(INTERNAL, TOPIC), [b"1"])
            await load(shard)
            for _ in range(2):
                with pytest.raises(CorruptionError, match=f"{TOPIC}-0, offset 0: no key"):
                    add(shard, "a")

    run(scenario())


def test_a_load_that_fails_for_no_known_reason_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (_, shard):
            monkeypatch.setattr(Counters, "on_loaded", lambda *_: 1 / 0)
            await load(shard)
            for _ in range(2):
                with pytest.raises(LogStoreError, match=f"{TOPIC}-0 cannot be loaded: ZeroDivisionError"):
                    add(shard, "a")

    run(scenario())


def test_a_shard_that_is_closed_finishes_what_is_under_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (_, shard):
            under_way = [add(shard, "a") for _ in range(3)]
            closing = asyncio.create_task(shard.close())
            await asyncio.sleep(0)
            with pytest.raises(BrokerNotReadyError):
                add(shard, "a")
            await closing
            assert [future.result() for future in under_way] == [[1], [2], [3]]
            assert shard.machine.durable == {"a": 3}

    run(scenario())


def test_a_timer_that_is_due_while_a_shard_is_closed_does_nothing(tmp_path: Path) -> None:
    """Advance the clock while the shard waits for its last append, during which a member's session may end."""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, clock=clock) as (_, shard):
            shard.apply(Remind("a", shard.now_ms() + 10))
            under_way = add(shard, "a")
            closing = asyncio.create_task(shard.close())
            await asyncio.sleep(0)
            assert not under_way.done()
            clock.advance(30)
            shard.run_due()
            await closing
            assert shard.machine.fired == []

    run(scenario())


def test_timers_fire_in_the_order_of_their_times(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, clock=clock) as (_, shard):
            began = shard.now_ms()
            assert began == clock.now_ms()
            for key, after_ms in (("c", 30), ("a", 10), ("never", 20), ("b", 500), ("d", 2000)):
                shard.apply(Remind(key, began + after_ms))
            shard.apply(Remind("b", began + 20))
            shard.apply(Remind("never", None))
            shard.apply(Remind("nobody's", None))
            clock.step_wall(3_600_000)
            shard.run_due()
            assert shard.machine.fired == []
            clock.advance(30)
            shard.run_due()
            assert shard.machine.fired == ["a", "b", "c"]
            clock.advance(1000)
            shard.run_due()
            assert shard.machine.fired == ["a", "b", "c", "loaded"]
            # A load forgets the timers of the previous machine.
            await load(shard)
            clock.advance(10_000)
            shard.run_due()
            assert shard.machine.fired == ["loaded"]
            # Timers that are set repeatedly leave nothing behind.
            for n in range(10_000):
                shard.apply(Remind("a", shard.now_ms() + n))
            assert len(shard._deadlines) < 100

    run(scenario())


def test_many_timers_that_are_due_leave_the_loop_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (_, shard):
            monkeypatch.setattr("consumer_offsets.coordinator_shard._TIMERS_S", 0)
            now = shard.now_ms()
            for number in range(100):
                shard.apply(Remind(str(number), now))
            # This request comes in between, like a heartbeat that keeps a session alive.
            await asyncio.sleep(0)
            shard.run_due()
            assert len(shard.machine.fired) < 100
            shard.apply(Remind("99", None))
            await eventually_async(lambda: len(shard.machine.fired) == 99)
            assert shard.machine.fired == [str(number) for number in range(99)]

    asyncio.run(scenario())  # on real time, which passes while timers fire


def test_timers_fire_by_themselves(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (_, shard):
            for key, after_ms in (("b", 60), ("a", 20)):
                shard.apply(Remind(key, shard.now_ms() + after_ms))
            await eventually_async(lambda: shard.machine.fired[:2] == ["a", "b"])

    run(scenario())


def test_the_end_of_a_transaction_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (_, shard):
            shard.replay_marker(7, 1, committed=True)
            assert shard.machine.ended == [(7, 1, True)]

    run(scenario())


def test_the_partition_of_a_key_is_the_clients_hash_of_it() -> None:
    assert [partition_for(key, 8) for key in ("a", "b", "é")] == [partition_for(key, 8) for key in ("a", "b", "é")]
    assert {partition_for(f"g{n}", 3) for n in range(100)} == {0, 1, 2}
