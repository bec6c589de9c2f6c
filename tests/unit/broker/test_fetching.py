"""Fetches of many partitions: the end of their wait, and the bytes that they hold before and after it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.fetch.fetching import Fetched, FetchLimits, FetchPartition
from logstore.errors import (
    LogStoreError,
    OffsetOutOfRangeError,
    ThrottledError,
    TopicAuthorizationError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from logstore.log.log_reader import FetchResult
from logstore.log.topic import Topic
from tests.support.authorizer_views import Denied
from tests.support.eventually import loop_turns
from tests.support.running_broker import CLIENT, produce, running_broker
from tests.support.virtual_time import run

MIB = 1 << 20
LIMITS = {"queued_max_request_bytes": 4 * MIB, "max_request_size": 4 * MIB}


@asynccontextmanager
async def store(tmp_path: Path, partitions: int = 1) -> AsyncIterator[tuple[Broker, Topic]]:
    async with running_broker(tmp_path, **LIMITS) as broker:
        topic = await broker.topics.changes.create(
            INTERNAL, "t", partitions=partitions, configs={"segment.ms": "100000000"}
        )
        assert topic is not None
        yield broker, topic


def limits(
    *, max_bytes: int = MIB, max_partition_bytes: int = MIB, min_bytes: int = 1, max_wait_ms: int = 60_000
) -> FetchLimits:
    return FetchLimits(max_bytes, max_partition_bytes, min_bytes, max_wait_ms)


def places(*offsets: int) -> list[FetchPartition]:
    return [FetchPartition("t", partition, offset) for partition, offset in enumerate(offsets)]


def counts(fetched: Fetched) -> dict[int, int | type[LogStoreError]]:
    """Return by place in the request the number of records, or the type of the error."""
    fetched.reservation.release()
    return {
        at: answer.count if isinstance(answer, FetchResult) else type(answer) for at, answer in fetched.answers.items()
    }


def count_reads(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    read, calls = broker.journal.read_many, 0

    def counted(locations: Sequence) -> list:
        nonlocal calls
        calls += 1
        return read(locations)

    monkeypatch.setattr(broker.journal, "read_many", counted)
    return lambda: calls


async def until_waiting(broker: Broker, partition: int = 0) -> None:
    async with asyncio.timeout(30):
        while broker.topics.served.topic(INTERNAL, "t").partition(partition)._high_watermark._readers is None:  # noqa: ASYNC110
            await asyncio.sleep(0)


def test_many_readers_that_wait_for_many_bytes_hold_none_and_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with store(tmp_path) as (broker, topic):
            await produce(broker, topic, [bytes(900_000)])
            reads = count_reads(broker, monkeypatch)
            wanted = limits(max_bytes=2 * MIB, max_partition_bytes=2 * MIB, min_bytes=2_500_000)
            polls = [asyncio.create_task(broker.fetch.stored(INTERNAL, places(0), wanted)) for _ in range(50)]
            await until_waiting(broker)
            await produce(broker, topic, [bytes(300_000)])
            for _ in range(100):
                await loop_turns(1)
                assert (reads(), broker.admission.answers.reserved) == (0, 0)
            assert not any(poll.done() for poll in polls)
            await produce(broker, topic, [bytes(900_000)])

            async def take(poll: "asyncio.Task[Fetched]") -> int:
                fetched = await poll
                assert fetched.reservation.size <= broker.admission.answers.reserved <= 4 * MIB
                await asyncio.sleep(0.005)  # a client takes some time
                count = counts(fetched)[0]
                assert isinstance(count, int)
                return count

            assert await asyncio.gather(*map(take, polls)) == [2] * 50
            assert reads() == 50
            assert broker.admission.answers.reserved == 0

    run(scenario())


@pytest.mark.parametrize("rolled", [False, True], ids=["tail", "history"])
@pytest.mark.parametrize("form", ["stored", "records"])
def test_answers_at_once_stay_within_the_bound_and_the_others_are_refused(
    tmp_path: Path, form: str, rolled: bool
) -> None:
    async def scenario() -> None:
        async with store(tmp_path) as (broker, topic):
            for _ in range(4):
                await produce(broker, topic, [bytes(600_000)])
            if rolled:
                await broker.topics.tables.roll(INTERNAL, topic)
            answers = broker.admission.answers
            wanted = limits(max_bytes=2 * MIB, max_partition_bytes=2 * MIB, max_wait_ms=100)

            async def fetch() -> Fetched | ThrottledError:
                try:
                    return await getattr(broker.fetch, form)(INTERNAL, places(0), wanted)
                except ThrottledError as error:
                    return error
                finally:
                    assert answers.reserved <= 4 * MIB

            found = await asyncio.gather(*(fetch() for _ in range(100)))
            taken = [answer for answer in found if isinstance(answer, Fetched)]
            if form == "records":
                assert len(taken) == 1, "a record is held twice while it is encoded"
            else:
                assert len(taken) >= 2 if rolled else len(taken) == 2, "compressed, more of them fit"
            assert answers.reserved == sum(answer.reservation.size for answer in taken)
            for answer in taken:
                answer.reservation.release()
            assert answers.reserved == 0
            assert not answers._waiting

    run(scenario())


def test_room_goes_to_the_first_waiter_and_a_cancelled_waiter_leaves_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path) as (broker, topic):
            await produce(broker, topic, [bytes(900_000)])
            answers = broker.admission.answers
            with answers.reserve(4 * MIB - 10):
                polls = [asyncio.create_task(broker.fetch.stored(INTERNAL, places(0), limits())) for _ in range(3)]
                await loop_turns()
                assert not any(poll.done() for poll in polls)
                polls[0].cancel()
                await loop_turns()
            for poll in polls[1:]:
                assert counts(await asyncio.wait_for(poll, 30)) == {0: 1}
            assert (answers.reserved, list(answers._waiting)) == (0, [])

    run(scenario())


def test_a_record_of_any_partition_or_an_error_ends_the_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path, partitions=3) as (broker, topic):
            poll = asyncio.create_task(broker.fetch.stored(INTERNAL, places(0, 0, 0), limits()))
            await until_waiting(broker, 2)
            await produce(broker, topic, [b"x"], partition=2)
            assert counts(await asyncio.wait_for(poll, 30)) == {2: 1}

            poll = asyncio.create_task(broker.fetch.stored(INTERNAL, places(0, 0, 1), limits()))
            await until_waiting(broker)
            await broker.topics.changes.delete(INTERNAL, "t")
            assert counts(await asyncio.wait_for(poll, 30)) == dict.fromkeys(range(3), UnknownTopicError)

    run(scenario())


def test_errors_are_returned_at_once_beside_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path, partitions=2) as (broker, topic):
            await produce(broker, topic, [b"x"], partition=1)
            wanted = [
                FetchPartition("absent", 0, 0),
                FetchPartition("t", 7, 0),
                FetchPartition("t", 0, 3),
                FetchPartition("t", 0, 0, "another id"),
                FetchPartition("t", 1, 0),
                FetchPartition("t", 1, 1),
            ]
            fetched = await asyncio.wait_for(broker.fetch.stored(INTERNAL, wanted, limits(min_bytes=MIB)), 30)
            refused = [UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError, UnknownTopicIdError]
            assert counts(fetched) == {**dict(enumerate(refused)), 4: 1}

    run(scenario())


def test_partitions_that_are_full_each_end_the_wait(tmp_path: Path) -> None:
    """Fill each partition's limit: longer waiting would read no more records."""

    async def scenario() -> None:
        async with store(tmp_path, partitions=2) as (broker, topic):
            for partition in (0, 1):
                for _ in range(3):
                    await produce(broker, topic, [bytes(10_000)], partition=partition)
            wanted = limits(max_partition_bytes=15_000, min_bytes=100_000)
            assert counts(await asyncio.wait_for(broker.fetch.stored(INTERNAL, places(0, 0), wanted), 30)) == {
                0: 1,
                1: 1,
            }

    run(scenario())


def test_history_counts_its_stored_bytes_up_to_the_end_that_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path) as (broker, topic):
            log = topic.partition(0)
            for n in range(10):
                await produce(broker, topic, [b"%d" % n * 500])
            in_tail = log.stored_bytes(0, 10)
            await broker.topics.tables.roll(INTERNAL, topic)
            (segment,) = log.segments
            assert log.stored_bytes(0, 10) == segment.size < in_tail
            assert log.stored_bytes(5, 10) == segment.size // 2
            await produce(broker, topic, [b"tail" * 100])
            assert log.stored_bytes(9, 11) == segment.size // 10 + log.stored_bytes(10, 11)
            assert 400 < log.stored_bytes(10, 11) < 450
            assert log.stored_bytes(11, 11) == 0

            wanted = limits(min_bytes=segment.size // 2 + log.stored_bytes(10, 11) + 1)
            poll = asyncio.create_task(broker.fetch.stored(INTERNAL, places(5), wanted))
            await until_waiting(broker)
            # Bytes that were counted in the tail are not counted again in the history.
            await broker.topics.tables.roll(INTERNAL, topic)
            await produce(broker, topic, [b""])
            assert counts(await asyncio.wait_for(poll, 30)) == {0: 7}

    run(scenario())


def test_a_reader_that_is_gone_ends_its_fetch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path) as (broker, topic):
            await produce(broker, topic, [b"x"])
            hung_up = asyncio.Event()

            async def wants_its_answer() -> None:
                await hung_up.wait()

            async def is_gone() -> None:
                await hung_up.wait()
                raise ConnectionResetError

            wanted = limits(min_bytes=MIB)
            poll, lost = (
                asyncio.create_task(broker.fetch.stored(INTERNAL, places(0), wanted, gone))
                for gone in (wants_its_answer, is_gone)
            )
            await until_waiting(broker)
            hung_up.set()
            assert counts(await asyncio.wait_for(poll, 30)) == {0: 1}
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(lost, 30)
            assert broker.admission.answers.reserved == 0

    run(scenario())


def test_a_topic_that_may_not_be_read_any_more_ends_the_wait_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path, partitions=2) as (broker, topic):
            await produce(broker, topic, [b"x"])
            forever = dataclasses.replace(limits(min_bytes=MIB), max_wait_ms=600_000)
            polls = [
                asyncio.create_task(broker.fetch.stored(CLIENT, places(0, 0), forever)),
                asyncio.create_task(broker.fetch.records(CLIENT, places(0, 0), forever)),
            ]
            of_one = broker.fetch.partition(CLIENT, topic, 0, 1, max_bytes=MIB, min_bytes=MIB, max_wait_ms=600_000)
            poll_of_one = asyncio.create_task(of_one)
            await until_waiting(broker)
            broker.authorizer.replace(Denied({"another"}, 1))
            await loop_turns()
            assert not any(poll.done() for poll in (*polls, poll_of_one)), "this change is none for them"
            broker.authorizer.replace(Denied({"t"}, 2))
            for poll in polls:
                answers = counts(await asyncio.wait_for(poll, 30))
                assert answers == {0: TopicAuthorizationError, 1: TopicAuthorizationError}
            with pytest.raises(TopicAuthorizationError):
                await asyncio.wait_for(poll_of_one, 30)
            assert broker.admission.answers.reserved == 0
            assert counts(await broker.fetch.stored(INTERNAL, places(0, 0), limits())) == {0: 1}

    run(scenario())


def test_a_topic_that_may_not_be_read_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path) as (broker, topic):
            await produce(broker, topic, [b"x"])
            other = await broker.topics.changes.create(INTERNAL, "other", partitions=1)
            await produce(broker, other, [b"y"])
            broker.authorizer.replace(Denied({"t", "none"}, 1))
            wanted = [FetchPartition(name, 0, 0) for name in ("t", "other", "none")]
            # The same error hides whether a topic exists from a client that may not see it.
            assert counts(await broker.fetch.stored(CLIENT, wanted, limits())) == {
                0: TopicAuthorizationError,
                1: 1,
                2: TopicAuthorizationError,
            }

    run(scenario())


def test_room_that_comes_after_the_permission_went_is_no_way_to_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with store(tmp_path) as (broker, topic):
            await produce(broker, topic, [b"x"])
            answers = broker.admission.answers
            held = answers.reserve(answers.limit)
            poll = asyncio.create_task(broker.fetch.stored(CLIENT, places(0), limits()))
            await loop_turns()
            broker.authorizer.replace(Denied({"t"}, 1))
            held.release()
            assert counts(await asyncio.wait_for(poll, 30)) == {0: TopicAuthorizationError}

    run(scenario())
