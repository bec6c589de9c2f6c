"""Fetches of sessions wait for something new: the events that end the wait, and the answer after each."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.quotas import QuotaKind, Quotas
from logstore.kafka_listener import idle_fetch
from logstore.kafka_protocol.messages import ApiVersionsRequest, FetchRequest, FetchResponse
from logstore.limits import MIB
from logstore.log.topic import Topic
from tests.support.authorizer_views import Denied
from tests.support.captured_logs import captured_logs
from tests.support.eventually import eventually_async
from tests.support.kafka_client import (
    API_VERSIONS,
    FETCH,
    PRODUCE,
    KafkaConnection,
    KafkaServer,
    batch_of,
    kafka_server,
)
from tests.support.kafka_client import produce_request as produce
from tests.support.virtual_time import run

LONG_MS = 30_000


@dataclass
class Session:
    """A consumer at the end of all partitions of a topic, with the answers that it gets."""

    connection: KafkaConnection
    topic: Topic
    version: int
    id: int = 0
    epoch: int = 0

    async def begin(self) -> "Session":
        partitions = [
            FetchRequest.FetchPartition(
                partition=log.partition,
                fetch_offset=log.high_watermark,
                partition_max_bytes=MIB,
                current_leader_epoch=log.leader_epoch if self.version >= 9 else -1,
            )
            for log in self.topic.partitions
        ]
        named = {"topic_id": self.topic.topic_id.bytes} if self.version >= 13 else {"topic": self.topic.name}
        self.send(0, topics=[FetchRequest.FetchTopic(partitions=partitions, **named)])
        answer = await self.receive()
        assert answer.session_id
        self.id = answer.session_id
        return self

    def send(self, max_wait_ms: int, client_id: str = "test", **fields: Any) -> None:
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=MIB,
            session_id=self.id,
            session_epoch=self.epoch,
            **fields,
        )
        self.connection.send(FETCH, self.version, request, client_id)
        self.epoch += 1

    async def receive(self) -> FetchResponse:
        _, answer = await self.connection.receive(FETCH, self.version)
        return answer


async def session_of(server: KafkaServer, topic: Topic, version: int = 17) -> Session:
    return await Session(await server.connect(), topic, version).begin()


def tasks_of(server: KafkaServer) -> list[str]:
    """Return the list to which the listener adds the tasks that it begins from now on."""
    begun = []
    run_task = server.listener.run

    def run_and_tell(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        begun.append(work.__qualname__)
        return run_task(work)

    server.listener.run = run_and_tell  # type: ignore[method-assign]
    return begun


async def waits(topic: Topic, waiting: int = 1) -> None:
    readers = topic.partition(0)._high_watermark._readers
    await eventually_async(lambda: len(readers) == waiting)


def end_waits(server: KafkaServer) -> None:
    """End all waits, as if their time were over."""
    for connection in server.listener._connections:
        if connection._waiting is not None:
            assert connection._idle_fetch is not None
            connection._idle_fetch._end = 0.0
            assert connection._idle_fetch._delayed is not None
            connection._idle_fetch._delayed.expire()


def told(answer: FetchResponse) -> list[tuple[int, int, int, int, bool]]:
    """Return the partition, error, high watermark, log start, and whether there are records."""
    return [
        (one.partition_index, one.error_code, one.high_watermark, one.log_start_offset, bool(one.records))
        for topic in answer.responses
        for one in topic.partitions
    ]


@pytest.mark.parametrize("version", [7, 11, 12, 13, 18])
def test_the_answer_of_nothing_is_that_of_a_fetch_that_does_not_wait(tmp_path: Path, version: int) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=3)
            session = await session_of(server, topic, version)
            tasks = tasks_of(server)
            answers = []
            for max_wait_ms, with_a_task in ((60, False), (0, True), (70, False)):
                began = asyncio.get_running_loop().time()
                session.send(max_wait_ms)
                answers.append(await session.connection.frame())
                assert asyncio.get_running_loop().time() - began >= max_wait_ms / 1000
                assert bool(tasks) == with_a_task
                tasks.clear()
            # The answers are equal behind their correlation ids.
            assert answers[0][4:] == answers[1][4:] == answers[2][4:]
            assert not topic.partition(0)._high_watermark._readers

    run(ask())


async def records_come(server: KafkaServer, topic: Topic) -> None:
    client = await server.connect()
    await client.ask(PRODUCE, 9, produce({1: batch_of(b"v")}, topic=topic.name))


async def topic_goes(server: KafkaServer, topic: Topic) -> None:
    await server.store.broker.topics.changes.delete(INTERNAL, topic.name)


async def permission_goes(server: KafkaServer, topic: Topic) -> None:
    server.store.broker.authorizer.replace(Denied({topic.name}))


async def other_permissions_go(server: KafkaServer, topic: Topic) -> None:
    server.store.broker.authorizer.replace(Denied({"another"}))
    await waits(topic)
    await records_come(server, topic)


async def leader_resigns(_: KafkaServer, topic: Topic) -> None:
    log = topic.partition(1)
    log.resign(log.leader_epoch)


@pytest.mark.parametrize(
    ("happens", "expected"),
    [
        (records_come, [(1, 0, 1, 0, True)]),
        (topic_goes, [(at, 3, -1, -1, False) for at in range(2)]),
        (permission_goes, [(at, 29, -1, -1, False) for at in range(2)]),
        (other_permissions_go, [(1, 0, 1, 0, True)]),
        (leader_resigns, [(1, 6, -1, -1, False)]),
    ],
)
def test_the_event_that_ends_the_wait_is_reported_at_once(
    tmp_path: Path, happens: Callable[[KafkaServer, Topic], Awaitable[None]], expected: list[tuple[int, ...]]
) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            session = await session_of(server, topic, 12)
            tasks = tasks_of(server)
            began = asyncio.get_running_loop().time()
            session.send(LONG_MS)
            await waits(topic)
            assert not tasks
            await happens(server, topic)
            assert told(await session.receive()) == expected
            assert asyncio.get_running_loop().time() - began < LONG_MS / 3000
            known = [one._idle_fetch for one in server.listener._connections if one._idle_fetch is not None]
            assert [one._watched for one in known] == [()], "what has ended is not kept"

    run(ask())


def test_records_that_are_not_enough_are_waited_on_for_the_rest_of_the_time(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            session = await session_of(server, topic)
            request = FetchRequest(
                max_wait_ms=10_000, min_bytes=100_000, max_bytes=MIB, session_id=session.id, session_epoch=1
            )
            began = asyncio.get_running_loop().time()
            session.connection.send(FETCH, 17, request)
            await waits(topic)
            await asyncio.sleep(5)
            await records_come(server, topic)
            assert told(await session.receive()) == [(1, 0, 1, 0, True)]
            assert 9.9 <= asyncio.get_running_loop().time() - began < 14.5

    run(ask())


def test_a_new_log_start_is_reported_when_the_time_is_over(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            await records_come(server, topic)
            session = await session_of(server, topic)
            session.send(LONG_MS)
            await waits(topic)
            await server.store.broker.topics.tables.delete_records(INTERNAL, topic, 1, 1)
            end_waits(server)
            assert told(await session.receive()) == [(1, 0, 1, 1, False)]
            session.send(50)
            assert told(await session.receive()) == []

    run(ask())


def test_a_change_of_the_session_counts_for_later_fetches(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            session = await session_of(server, topic)
            session.send(50)
            assert told(await session.receive()) == []
            await records_come(server, topic)
            session.send(LONG_MS)
            assert told(await session.receive()) == [(1, 0, 1, 0, True)]
            # The consumer's position has not moved, so it gets the same records again.
            session.send(LONG_MS)
            assert told(await session.receive()) == [(1, 0, 1, 0, True)]
            moved = FetchRequest.FetchTopic(
                topic_id=topic.topic_id.bytes,
                partitions=[FetchRequest.FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=MIB)],
            )
            session.send(50, topics=[moved])
            assert told(await session.receive()) == []
            tasks = tasks_of(server)
            session.send(50)
            assert told(await session.receive()) == []
            assert not tasks
            forgotten = FetchRequest.ForgottenTopic(topic_id=topic.topic_id.bytes, partitions=[1])
            session.send(50, forgotten_topics_data=[forgotten])
            assert told(await session.receive()) == []
            await records_come(server, topic)
            tasks.clear()
            session.send(50)
            assert told(await session.receive()) == []
            assert not tasks

    run(ask())


def test_a_client_that_knows_an_earlier_leader_gets_an_error(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            session = await session_of(server, topic)
            log = topic.partition(1)
            log.become_leader(log.leader_epoch + 1)
            await eventually_async(lambda: log.is_settled)
            session.send(LONG_MS)
            assert told(await session.receive()) == [(1, 74, -1, -1, False)]

    run(ask())


def test_changes_of_the_session_by_another_connection_count(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            await records_come(server, topic)
            session = await session_of(server, topic)
            session.send(50)
            assert told(await session.receive()) == []
            other = Session(await server.connect(), topic, 17, session.id, session.epoch)
            back = FetchRequest.FetchPartition(partition=1, fetch_offset=0, partition_max_bytes=MIB)
            other.send(0, topics=[FetchRequest.FetchTopic(topic_id=topic.topic_id.bytes, partitions=[back])])
            assert told(await other.receive()) == [(1, 0, 1, 0, True)]
            session.epoch += 1
            session.send(LONG_MS)
            assert told(await session.receive()) == [(1, 0, 1, 0, True)]

    run(ask())


def test_the_second_fetch_with_an_epoch_is_refused_at_once(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            again = Session(await server.connect(), topic, 17, session.id, session.epoch)
            session.send(LONG_MS)
            await waits(topic)
            again.send(LONG_MS)
            assert (await again.receive()).error_code == 71
            end_waits(server)
            assert (await session.receive()).error_code == 0
            session.send(50)
            assert (await session.receive()).error_code == 0

    run(ask())


def test_a_fetch_that_waits_has_lost_its_turn_when_the_next_one_comes(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            following = Session(await server.connect(), topic, 17, session.id, session.epoch + 1)
            session.send(LONG_MS)
            await waits(topic)
            following.send(50)
            assert (await following.receive()).error_code == 0
            end_waits(server)
            assert (await session.receive()).error_code == 71

    run(ask())


def test_a_session_counts_as_used_when_its_fetch_begins(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            cached = server.kafka.fetch_sessions._sessions[session.id]
            used = cached.used
            await asyncio.sleep(1)
            session.send(LONG_MS)
            await waits(topic)
            assert cached.used > used

    run(ask())


def test_a_session_that_has_ended_is_not_kept(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            session.send(50)
            await session.receive()
            cached = weakref.ref(server.kafka.fetch_sessions._sessions[session.id])
            closing = await server.connect()
            await closing.ask(FETCH, 17, FetchRequest(session_id=session.id, session_epoch=-1))
            gc.collect()
            assert cached() is None
            session.send(LONG_MS)
            assert (await session.receive()).error_code == 70

    run(ask())


def test_a_session_without_partitions_has_nothing_to_wait_for(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = Session(await server.connect(), topic, 17)
            session.send(0)
            session.id = (await session.receive()).session_id
            session.send(LONG_MS)
            assert told(await session.receive()) == []

    run(ask())


def test_a_topic_that_is_made_again_is_waited_for(tmp_path: Path) -> None:
    """Use a session of topic names: the name now belongs to another topic."""

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            session = await session_of(server, topic, 12)
            session.send(LONG_MS)
            await waits(topic)
            await topic_goes(server, topic)
            assert {error for _, error, *_ in told(await session.receive())} == {3}
            again = await server.topic(partitions=2)
            session.send(50)
            await session.receive()  # it returns the ends
            tasks = tasks_of(server)
            session.send(LONG_MS)
            await waits(again)
            assert not tasks

    run(ask())


def test_a_permission_that_went_between_two_fetches_is_missed_at_once(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            session.send(50)
            assert told(await session.receive()) == []
            await permission_goes(server, topic)
            session.send(LONG_MS)
            assert [code for _, code, *_ in told(await session.receive())] == [29]

    run(ask())


def test_an_unknown_isolation_level_is_refused_at_once(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            session = await session_of(server, await server.topic())
            session.send(50)
            assert told(await session.receive()) == []
            session.send(LONG_MS, isolation_level=7)
            assert (await session.receive()).error_code == 42

    run(ask())


@pytest.mark.parametrize("kind", ["many partitions", "history"])
def test_some_fetches_wait_in_a_task(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a session with too many partitions, and one that sends an epoch, which may have diverged."""
    if kind == "many partitions":
        monkeypatch.setattr(idle_fetch, "_PARTITIONS_MAX", 1)

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            session = await session_of(server, topic)
            if kind == "history":
                told_of = FetchRequest.FetchPartition(
                    partition=0, fetch_offset=0, partition_max_bytes=MIB, last_fetched_epoch=0
                )
                session.send(50, topics=[FetchRequest.FetchTopic(topic_id=topic.topic_id.bytes, partitions=[told_of])])
                await session.receive()
            tasks = tasks_of(server)
            session.send(50)
            assert told(await session.receive()) == []
            assert tasks

    run(ask())


def test_the_time_of_a_wait_that_has_ended_ends_no_other(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic(partitions=2)
            session = await session_of(server, topic)
            session.send(3_000)
            await waits(topic)
            await records_come(server, topic)
            assert told(await session.receive()) == [(1, 0, 1, 0, True)]
            moved = FetchRequest.FetchPartition(partition=1, fetch_offset=1, partition_max_bytes=MIB)
            session.send(0, topics=[FetchRequest.FetchTopic(topic_id=topic.topic_id.bytes, partitions=[moved])])
            assert told(await session.receive()) == []
            session.send(LONG_MS)
            await waits(topic)
            await asyncio.sleep(3.5)
            await waits(topic)
            (waiting,) = [one for one in server.listener._connections if one._waiting is not None]
            assert waiting._idle_fetch is not None

    run(ask())


class _Broken:
    """A view that fails for one topic."""

    version = 1

    def allows(self, *_: object) -> bool:
        raise RuntimeError("broken view")


def test_an_error_of_the_look_for_news_ends_the_connection(tmp_path: Path) -> None:
    """Queue the fetch behind another request, whose task begins it."""

    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            server.store.broker.authorizer.replace(_Broken())
            with captured_logs() as logs:
                session.connection.send(API_VERSIONS, 0, ApiVersionsRequest())
                session.send(LONG_MS)
                await session.connection.receive(API_VERSIONS, 0)
                assert await session.connection.is_closed()
            assert "kafka.unexpected_error" in str(logs)

    run(ask())


def test_an_error_when_the_time_is_over_leaves_the_answer_to_a_task(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            session.send(LONG_MS)
            await waits(topic)
            (waiting,) = [one for one in server.listener._connections if one._waiting is not None]
            assert waiting._idle_fetch is not None
            waiting._idle_fetch._watched = [None]  # type: ignore[list-item]
            errors: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, found: errors.append(found.get("exception")))
            end_waits(server)
            assert told(await session.receive()) == []
            asyncio.get_running_loop().set_exception_handler(None)
            assert [type(error) for error in errors] == [AttributeError]
            assert not topic.partition(0)._high_watermark._readers

    run(ask())


def test_a_client_that_goes_leaves_nothing_behind(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            session.send(LONG_MS)
            await waits(topic)
            await session.connection.close()
            await eventually_async(lambda: not server.listener.connection_count)
            assert not topic.partition(0)._high_watermark._readers
            assert not server.store.broker.authorizer._readers
            assert server.store.broker.admission.requests.reserved == 0

    run(ask())


def test_a_stop_ends_the_wait_and_the_connection(tmp_path: Path) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            session = await session_of(server, topic)
            session.send(LONG_MS)
            await waits(topic)
            async with asyncio.timeout(20):
                await server.listener.stop()
            assert await session.connection.is_closed()

    run(ask())


@dataclass
class _Over(Quotas):
    """Quotas that the client ``greedy`` exceeds."""

    of: QuotaKind

    def charge(self, context: RequestContext, kind: QuotaKind, amount: int) -> float:
        assert amount == 1 or kind is not QuotaKind.REQUESTS
        return 0.2 if kind is self.of and context.client_id == "greedy" else 0.0


@pytest.mark.parametrize("kind", [QuotaKind.REQUESTS, QuotaKind.FETCHED_BYTES])
def test_over_a_quota_the_answer_says_so_with_a_wait_and_without(tmp_path: Path, kind: QuotaKind) -> None:
    async def ask() -> None:
        async with kafka_server(tmp_path, quotas=_Over(kind)) as server:
            topic = await server.topic()
            for max_wait_ms in (50, 0):
                session = await session_of(server, topic)
                tasks = tasks_of(server)
                session.send(max_wait_ms, "greedy")
                answer = await session.receive()
                assert bool(tasks) == (max_wait_ms == 0)
                assert (answer.throttle_time_ms, answer.session_id) == (200, session.id)
                await asyncio.sleep(0.3)

    run(ask())
