"""Fetch, by a real broker's handler; aiokafka decodes the records."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.kafka_listener.fetch import fetch
from logstore.kafka_listener.held import Held
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import FetchRequest
from logstore.log.topic import Topic
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import KAFKA_CLIENT, Handlers, kafka_handlers
from tests.support.kafka_reading import ask, read_batches
from tests.support.running_broker import produce
from tests.support.virtual_time import run

FETCH = 1
NEVER = {"segment.ms": "100000000"}
VALUES: list[bytes | None] = [b"%d" % n for n in range(10)]


async def topic_of(handlers: Handlers, values: list[bytes | None] = VALUES, *, partitions: int = 1) -> Topic:
    topic = await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=partitions, configs=NEVER)
    assert topic is not None
    for partition in range(partitions):
        if values:
            await produce(handlers.broker, topic, values, partition=partition)
    return topic


def wanted(
    topic: Topic | str | bytes,
    *partitions: dict[str, Any],
    session_epoch: int = -1,
    max_wait_ms: int = 0,
    **fields: Any,
) -> FetchRequest:
    """Return a request. ``topic`` is a name, an id, or a topic that is requested by both: a version takes the one it
    knows.
    """
    named: dict[str, Any] = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    if isinstance(topic, Topic):
        named = {"topic": topic.name, "topic_id": topic.topic_id.bytes}
    limits = {"partition_max_bytes": 1 << 20}
    asked = [FetchRequest.FetchPartition(**{**limits, **one}) for one in partitions]
    return FetchRequest(
        session_epoch=session_epoch,
        max_wait_ms=max_wait_ms,
        min_bytes=fields.pop("min_bytes", 1),
        topics=[FetchRequest.FetchTopic(partitions=asked, **named)] if asked else [],
        **fields,
    )


def partitions_of(response: Any) -> list[Any]:
    return [one for topic in response.responses for one in topic.partitions]


def values_of(answer: Any) -> list[bytes | None]:
    return [row.value for batch in read_batches([answer.records]) for row in batch.rows.values()]


@pytest.mark.parametrize("version", range(APIS[FETCH].version_min, APIS[FETCH].version_max + 1))
def test_each_version_gives_records_and_the_ends_of_the_partition(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers)
            asked = wanted(topic, {"fetch_offset": 4}, isolation_level=1)
            response = await ask(handlers, FETCH, version, asked)
            assert (response.error_code, response.session_id, response.throttle_time_ms) == (0, 0, 0)
            (found,) = response.responses
            assert found.topic == ("t" if version < 13 else "")
            assert version < 13 or found.topic_id == topic.topic_id.bytes
            (answer,) = found.partitions
            assert answer.error_code == 0
            assert (answer.high_watermark, answer.last_stable_offset) == (10, 10)
            assert list(answer.aborted_transactions) == []
            assert version < 5 or answer.log_start_offset == 0
            assert values_of(answer)[-6:] == VALUES[4:]
            at_the_end = await ask(handlers, FETCH, version, wanted(topic, {"fetch_offset": 10}))
            (answer,) = partitions_of(at_the_end)
            assert (answer.error_code, answer.high_watermark, bytes(answer.records)) == (0, 10, b"")
            assert answer.aborted_transactions is None

    run(scenario())


def test_an_unreadable_part_has_its_error_and_the_rest_is_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers)
            began = asyncio.get_running_loop().time()
            asked = FetchRequest(
                session_epoch=-1,
                max_wait_ms=60_000,
                min_bytes=10**6,
                topics=[
                    FetchRequest.FetchTopic(
                        topic=name,
                        partitions=[
                            FetchRequest.FetchPartition(partition=number, fetch_offset=offset, partition_max_bytes=99)
                        ],
                    )
                    for name, number, offset in [("t", 0, 0), ("none", 0, 0), ("t", 5, 0), ("u", 0, 0)]
                ],
            )
            response = await ask(handlers, FETCH, 12, asked)
            assert asyncio.get_running_loop().time() - began < 30, "an error is told at once"
            found = partitions_of(response)
            assert [one.error_code for one in found] == [0, 3, 3, 3]
            assert values_of(found[0]) == VALUES
            assert [one.high_watermark for one in found] == [10, -1, -1, -1]
            for offset in (-1, 11):
                response = await ask(handlers, FETCH, 12, wanted("t", {"fetch_offset": offset}))
                assert [one.error_code for one in partitions_of(response)] == [1]
            response = await ask(handlers, FETCH, 13, wanted(b"?" * 16, {}))
            assert [one.error_code for one in partitions_of(response)] == [100]
            response = await ask(handlers, FETCH, 13, wanted(topic, {}, isolation_level=2))
            assert (response.error_code, list(response.responses)) == (42, [])

    run(scenario())


def test_a_client_that_may_not_read_gets_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied({"t"}))) as handlers:
            topic = await topic_of(handlers)
            for version in (12, 13):
                response = await ask(handlers, FETCH, version, wanted(topic, {}))
                assert [one.error_code for one in partitions_of(response)] == [29]

    run(scenario())


def test_a_fetch_waits_for_min_bytes_over_all_partitions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers, [], partitions=2)
            asked = wanted(topic, {}, {"partition": 1}, max_wait_ms=60_000, min_bytes=400)
            fetching = asyncio.create_task(ask(handlers, FETCH, 17, asked))
            await produce(handlers.broker, topic, [b"a" * 200], partition=1)
            await asyncio.sleep(0.05)
            assert not fetching.done()
            await produce(handlers.broker, topic, [b"b" * 200], partition=0)
            found = partitions_of(await fetching)
            assert [values_of(one) for one in found] == [[b"b" * 200], [b"a" * 200]]
            began = asyncio.get_running_loop().time()
            late = wanted(topic, {"fetch_offset": 1}, max_wait_ms=120)
            assert values_of(partitions_of(await ask(handlers, FETCH, 17, late))[0]) == []
            assert 0.1 < asyncio.get_running_loop().time() - began < 10

    run(scenario())


def test_bounds_of_partitions_and_of_the_answer(tmp_path: Path) -> None:
    values: list[bytes | None] = [b"x" * 1000]

    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers, [], partitions=3)
            for partition in range(3):
                for _ in range(5):
                    await produce(handlers.broker, topic, values, partition=partition)
            asked = [{"partition": 0, "partition_max_bytes": 1}, {"partition": 1, "partition_max_bytes": 4_000}]
            asked += [{"partition": 2, "partition_max_bytes": 0}]
            found = partitions_of(await ask(handlers, FETCH, 17, wanted(topic, *asked)))
            # Each partition has at least one whole batch.
            assert [len(values_of(one)) for one in found] == [1, 3, 1]
            found = partitions_of(await ask(handlers, FETCH, 17, wanted(topic, *asked, max_bytes=1)))
            assert [len(values_of(one)) for one in found] == [1, 0, 0]
            found = partitions_of(await ask(handlers, FETCH, 17, wanted(topic, *asked, max_bytes=2**31 - 1)))
            assert [len(values_of(one)) for one in found] == [1, 3, 1]

    run(scenario())


def test_bytes_are_held_until_the_answer_has_gone_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers, [b"x" * 5_000] * 20)
            in_flight = handlers.broker.admission.answers
            held = await fetch(handlers.store, KAFKA_CLIENT, wanted(topic, {}), 17)
            assert isinstance(held, Held)
            (answer,) = partitions_of(held.message)
            assert in_flight.reserved == sum(map(len, answer.records)) > 100_000
            held.release()
            assert in_flight.reserved == 0

    run(scenario())


def test_a_session_sends_only_what_is_new(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers, partitions=3)
            ends = [{"partition": n, "fetch_offset": 10} for n in range(3)]
            full = await ask(handlers, FETCH, 17, wanted(topic, *ends, session_epoch=0))
            assert full.session_id > 0
            assert len(partitions_of(full)) == 3
            session = {"session_id": full.session_id, "max_wait_ms": 1}
            nothing = await ask(handlers, FETCH, 17, wanted(topic, **session, session_epoch=1))
            assert (nothing.error_code, nothing.session_id, list(nothing.responses)) == (0, full.session_id, [])
            await produce(handlers.broker, topic, [b"news"], partition=1)
            news = await ask(handlers, FETCH, 17, wanted(topic, **session, session_epoch=2))
            assert [(one.partition_index, values_of(one)) for one in partitions_of(news)] == [(1, [b"news"])]
            went_on = wanted(topic, {"partition": 1, "fetch_offset": 11}, **session, session_epoch=3)
            assert partitions_of(await ask(handlers, FETCH, 17, went_on)) == []
            assert (await ask(handlers, FETCH, 17, went_on)).error_code == 71
            assert (await ask(handlers, FETCH, 12, wanted("t", **session, session_epoch=4))).error_code == 106
            other = {"session_id": full.session_id ^ 1, "session_epoch": 4}
            assert (await ask(handlers, FETCH, 17, wanted(topic, **other))).error_code == 70
            # A full fetch ends the session that it names.
            await ask(handlers, FETCH, 17, wanted(topic, *ends, session_id=full.session_id, session_epoch=-1))
            assert (await ask(handlers, FETCH, 17, wanted(topic, **session, session_epoch=4))).error_code == 70

    run(scenario())


def test_leader_epochs_of_clients_are_checked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers)
            log = topic.partition(0)
            for version in (9, 17):
                for epoch, error in ((-1, 0), (log.leader_epoch, 0), (0, 74), (log.leader_epoch + 1, 75)):
                    asked = wanted(topic, {"current_leader_epoch": epoch}, max_wait_ms=60_000)
                    response = await ask(handlers, FETCH, version, asked)
                    (answer,) = partitions_of(response)
                    assert answer.error_code == error, (version, epoch)
                    if version == 17 and error == 74:
                        assert answer.current_leader.leader_id == handlers.store.node_id
                        assert answer.current_leader.leader_epoch == log.leader_epoch
                        (endpoint,) = response.node_endpoints
                        assert (endpoint.node_id, endpoint.host, endpoint.port) == (0, "127.0.0.1", 9092)
                    else:
                        assert list(response.node_endpoints) == []

    run(scenario())


def test_a_leader_that_resigns_ends_the_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await topic_of(handlers)
            asked = wanted(topic, {"fetch_offset": 10}, max_wait_ms=60_000)
            fetching = asyncio.create_task(ask(handlers, FETCH, 17, asked))
            await asyncio.sleep(0.02)
            log = topic.partition(0)
            log.resign(log.leader_epoch)
            (answer,) = partitions_of(await fetching)
            assert answer.error_code == 6
            assert [one.error_code for one in partitions_of(await ask(handlers, FETCH, 12, asked))] == [6]

    run(scenario())


def test_a_reader_with_another_history_learns_where_it_diverges(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await topic_of(handlers)
        async with kafka_handlers(tmp_path) as handlers:
            topic = handlers.broker.topics.served.topic(INTERNAL, "t")
            await produce(handlers.broker, topic, [b"later"])
            (first, _), (second, start) = topic.partition(0).state.leader_epochs.entries
            assert start == 10
            for epoch, offset, told in (
                (first, 10, None),
                (second, 11, None),
                (first, 11, (first, 10)),
                (second - 1, 3, None) if second - 1 == first else (second - 1, 3, (first, 10)),
            ):
                asked = wanted(topic, {"fetch_offset": offset, "last_fetched_epoch": epoch})
                (answer,) = partitions_of(await ask(handlers, FETCH, 12, asked))
                found = answer.diverging_epoch
                assert answer.error_code == 0
                assert (found.epoch, found.end_offset) == (told or (-1, -1)), (epoch, offset)
                assert bool(answer.records) == (told is None and offset < 11)
            asked = wanted(topic, {"fetch_offset": 3, "last_fetched_epoch": second + 1})
            assert [one.error_code for one in partitions_of(await ask(handlers, FETCH, 12, asked))] == [1]

    run(scenario())
