"""Room in the journal: each topic may use a part of it, and the last of it is for the store's internal topics."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.broker.admission import Admission
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.broker.topics.problems import ProblemState
from logstore.clock import SystemClock
from logstore.errors import StorageError, StorageFullError, ThrottledError
from logstore.journal.journal import Journal
from logstore.log.topic import Topic
from logstore.settings import Settings
from tests.support.eventually import eventually_async
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.running_broker import produce, read_all, records, running_broker
from tests.support.virtual_time import run

MIB = 1 << 20
NEVER = {"segment.ms": "100000000"}


@dataclasses.dataclass(eq=False)
class HeldTopic:
    name: str
    journal_bytes: int
    is_internal: bool = False


async def new_topic(broker: Broker, name: str, partitions: int = 1) -> Topic:
    topic = await broker.topics.changes.create(INTERNAL, name, partitions=partitions, configs=NEVER)
    assert topic is not None
    return topic


async def fill(broker: Broker, topic: Topic, num_bytes: int) -> ThrottledError:
    """Append records of ``num_bytes`` until one is refused, and return the refusal."""
    for _ in range(100):
        try:
            await broker.produce.records.produce(INTERNAL, topic, records([bytes(num_bytes)]))
        except ThrottledError as error:
            return error
    raise AssertionError("never refused")


async def produce_patiently(broker: Broker, topic: Topic, values: list[bytes | None]) -> None:
    """Produce, and try again after each 429, as a producer does. Raises TimeoutError after a minute."""
    async with asyncio.timeout(60):
        while True:
            try:
                await produce(broker, topic, values)
            except ThrottledError:
                await asyncio.sleep(0.02)
            else:
                return


def counted(topic: Topic) -> int:
    return sum(p.unsealed_bytes for p in topic.partitions)


def test_a_topic_whose_rolls_fail_is_a_problem_until_one_succeeds(tmp_path: Path) -> None:
    disk = FaultyFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await broker.topics.changes.create(INTERNAL, "stuck", configs={"segment.ms": "1"})
            assert topic
            disk.fail("create", path="topics/stuck", times=10**6)
            await produce(broker, topic, [b"a"])
            await eventually_async(lambda: broker.topics.problems.all(INTERNAL))
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.topic, problem.state) == ("stuck", ProblemState.ROLLS_FAIL)
            assert "Input/output error" in problem.reason
            disk.heal()
            await broker.topics.tables.roll(INTERNAL, topic)
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


def test_a_roll_by_request_that_fails_is_a_problem_at_once(tmp_path: Path) -> None:
    disk = FaultyFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker, "stuck")
            await produce(broker, topic, [b"a"])
            disk.fail("create", path="topics/stuck", times=10**6)
            with pytest.raises(StorageError):
                await broker.topics.tables.roll(INTERNAL, topic)
            (problem,) = broker.topics.problems.all(INTERNAL)
            assert (problem.topic, problem.state) == ("stuck", ProblemState.ROLLS_FAIL)
            disk.heal()
            await broker.topics.tables.roll(INTERNAL, topic)
            assert broker.topics.problems.all(INTERNAL) == []

    run(scenario())


def test_a_topic_that_cannot_roll_is_refused_alone(tmp_path: Path) -> None:
    disk = FaultyFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=disk, journal_max_bytes=16 * MIB) as broker:
            stuck, other = await new_topic(broker, "stuck"), await new_topic(broker, "other")
            disk.fail("create", path="topics/stuck", times=10**6)
            error = await fill(broker, stuck, 400_000)
            assert "journal.topic.max.bytes" in error.message
            values = [bytes(400_000)] * stuck.partition(0).log_end_offset
            assert 3.5 * MIB < stuck.journal_bytes <= 4 * MIB

            # All of this is several times what the journal may hold, and it is in files that the stuck topic needs.
            for _ in range(100):
                await produce_patiently(broker, other, [bytes(400_000)])
                assert broker.journal.needed_bytes <= 16 * MIB
            assert other.partition(0).next_offset == 100

            problem = next(problem for problem in broker.topics.problems.all(INTERNAL) if problem.topic == "stuck")
            assert (problem.topic, problem.partition, problem.state) == ("stuck", None, ProblemState.JOURNAL_FULL)
            assert "Input/output error" in problem.reason
            assert "logstore topic roll stuck" in problem.remedy

            disk.heal()
            await broker.topics.tables.roll(INTERNAL, stuck)
            assert broker.topics.problems.all(INTERNAL) == []
            values.append(b"again")
            await produce(broker, stuck, [b"again"])
            assert await read_all(broker, stuck, max_bytes=10**8) == list(enumerate(values))

    run(scenario())


def test_copies_of_a_stuck_topic_survive_a_restart(tmp_path: Path) -> None:
    disk = FaultyFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=disk, journal_max_bytes=16 * MIB) as broker:
            stuck, other = await new_topic(broker, "stuck"), await new_topic(broker, "other")
            disk.fail("create", path="topics/stuck", times=10**6)
            values = [b"%d" % at + bytes(400_000) for at in range(8)]
            for value in values:
                await produce(broker, stuck, [value])
            first, _ = broker.journal.files[0]
            for _ in range(60):
                await produce_patiently(broker, other, [bytes(400_000)])
            assert broker.journal.files[0][0] > first, "the files are free that the stuck topic was in"
            held = stuck.journal_bytes
        disk.heal()
        async with running_broker(tmp_path, journal_max_bytes=16 * MIB) as broker:
            stuck = broker.topics.served.topic(INTERNAL, "stuck")
            assert (stuck.journal_bytes, counted(stuck)) == (held, held)
            assert await read_all(broker, stuck, max_bytes=10**8) == list(enumerate(values))

    run(scenario())


def test_the_last_of_the_journal_is_for_internal_topics(tmp_path: Path) -> None:
    disk = FaultyFileSystem()

    async def scenario() -> None:
        limits = {"journal_max_bytes": 4 * MIB, "journal_topic_max_bytes": 4 * MIB}
        async with running_broker(tmp_path, filesystem=disk, **limits) as broker:
            topic = await new_topic(broker, "t")
            offsets = await broker.topics.changes.internal(INTERNAL, "__consumer_offsets", partitions=1, configs=NEVER)
            disk.fail("create", path="topics/", times=10**6)
            error = await fill(broker, topic, 50_000)
            assert "journal.max.bytes" in error.message
            assert broker.journal.needed_bytes <= 4 * MIB * 15 // 16
            await broker.produce.records.produce(INTERNAL, offsets, records([bytes(100_000)]))
            await fill(broker, offsets, 50_000)
            assert 4 * MIB * 15 // 16 < broker.journal.needed_bytes <= 4 * MIB
            await eventually_async(lambda: "t" in [problem.topic for problem in broker.topics.problems.all(INTERNAL)])

    run(scenario())


def test_a_topic_rolls_before_its_part_of_the_journal_is_full(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_topic_max_bytes=4 * MIB) as broker:
            topic = await new_topic(broker, "t", partitions=2)
            for partition in (0, 1, 0):
                await produce(broker, topic, [bytes(900_000)], partition=partition)
            await eventually_async(lambda: not topic.journal_bytes)
            assert [p.sealed_offset for p in topic.partitions] == [2, 1]

    run(scenario())


def test_a_request_larger_than_the_part_of_its_topic_is_taken_when_nothing_is_held(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_broker(tmp_path, journal_topic_max_bytes=1000) as broker:
            topic = await new_topic(broker, "t")
            await produce(broker, topic, [bytes(5000)])
            with pytest.raises(ThrottledError):
                await produce(broker, topic, [b"x"])

    run(scenario())


def test_bytes_of_a_topic_are_counted_from_the_append_until_they_are_sealed(tmp_path: Path) -> None:
    disk = FaultyFileSystem()

    async def scenario() -> None:
        async with running_broker(tmp_path, filesystem=disk) as broker:
            topic = await new_topic(broker, "t", partitions=3)
            for partition in (0, 1, 1, 2):
                await produce(broker, topic, [bytes(1000)], partition=partition)
            assert topic.journal_bytes == counted(topic) > 4000
            disk.fill()
            for acks in (-1, 0):
                append = broker.produce.records.produce(
                    INTERNAL, topic, records([bytes(900_000)] * 8), partition=0, acks=acks
                )
                if acks:
                    with pytest.raises(StorageFullError):
                        await append
                else:
                    await append
                    assert topic.journal_bytes > 7_000_000, "while it is on its way"
            await eventually_async(lambda: topic.journal_bytes <= 7_000_000)
            assert topic.journal_bytes == counted(topic)
            disk.heal()
            await produce(broker, topic, [b"y"])
            await broker.topics.tables.roll(INTERNAL, topic)
            assert topic.journal_bytes == counted(topic) == 0
            await produce(broker, topic, [b"z"])
            held = topic.journal_bytes
            assert held == counted(topic) > 0

    run(scenario())


@given(data=st.data())
def test_room_for_any_topic_is_room_for_each(data: st.DataObject) -> None:
    """Compare ``has_room``, which looks up no topic, with a topic's bounds: it may allow nothing that they refuse."""
    settings = Settings(
        journal_max_bytes=data.draw(st.integers(4 * MIB, 8 * MIB)),
        journal_topic_max_bytes=data.draw(st.sampled_from([None, 1 * MIB, 4 * MIB])),
        queued_max_request_bytes=data.draw(st.integers(1 * MIB, 4 * MIB)),
        max_request_size=1 * MIB,
    )
    needed, queued = (data.draw(st.integers(0, 12)) * MIB // 4 for _ in range(2))
    journal = SimpleNamespace(needed_bytes=needed, queued_bytes=queued, failed=None, on_room=lambda _: None)
    # The topic has all frames, both in the needed files and on their way to the journal.
    topic = SimpleNamespace(name="t", is_internal=data.draw(st.booleans()), journal_bytes=needed + queued)
    admission = Admission(settings, cast("Journal", journal), (), lambda: None, Quotas(), SystemClock())
    num_bytes = data.draw(st.integers(1, 12)) * MIB // 4
    if admission.has_room(num_bytes):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(admission, "has_room", lambda _: False)  # the bounds of the topic count alone
            admission.require_room(cast("Topic", topic), num_bytes)


def test_appends_get_the_journals_room_in_the_order_in_which_they_wait_for_it() -> None:
    async def scenario() -> None:
        settings = Settings(journal_max_bytes=16 * MIB, journal_topic_max_bytes=4 * MIB)
        changed: list[Callable[[], None]] = []
        journal = SimpleNamespace(needed_bytes=15 * MIB, queued_bytes=0, failed=None, file_loss=None)
        journal.on_room = changed.append
        admission = Admission(settings, cast("Journal", journal), (), lambda: None, Quotas(), SystemClock())
        admission.open()
        full, other = (cast("Topic", HeldTopic(name, held)) for name, held in (("full", 4 * MIB), ("other", MIB)))
        rooms = [admission.wait_for_room([(topic, MIB)]) for topic in (full, other, other, full, other)]

        def has_room() -> list[bool]:
            for listener in changed:
                listener()
            return [room.done() for room in rooms]

        assert has_room() == [False] * 5
        journal.needed_bytes = 13 * MIB
        assert has_room() == [False, True, True, False, False], "two fit, and the topic beside them has no room"
        for room in rooms[1:3]:
            admission.wait_no_more(room)
        journal.needed_bytes, full.journal_bytes = 14 * MIB, 0  # type: ignore[misc]
        assert has_room() == [True, True, True, False, False], "its first append comes first"
        admission.close("the store is stopping")
        assert [room.done() and room.result() for room in (rooms[0], *rooms[3:])] == [True, False, False]
        assert all(room.done() for room in rooms)

    asyncio.run(scenario())
