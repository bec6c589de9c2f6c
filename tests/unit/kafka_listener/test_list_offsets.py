"""ListOffsets and OffsetForLeaderEpoch, by a real broker's handlers."""

import random
from pathlib import Path
from typing import Any

import pytest

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import ListOffsetsRequest, OffsetForLeaderEpochRequest
from logstore.log.topic import Topic
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.kafka_reading import ask
from tests.support.running_broker import produce, records
from tests.support.virtual_time import run

LIST_OFFSETS = 2
OFFSET_FOR_LEADER_EPOCH = 23
NEVER = {"segment.ms": "100000000"}


def list_request(*asked: tuple[int, int], name: str = "t", epoch: int = -1, isolation: int = 0) -> ListOffsetsRequest:
    """Return a request for ``asked``, which are (partition, timestamp)."""
    partitions = [
        ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
        )
        for partition, timestamp in asked
    ]
    topics = [ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=partitions)]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)


async def listed(handlers: Handlers, version: int, request: ListOffsetsRequest) -> list[tuple[int, int, int, int]]:
    """Return (error, offset, timestamp, leader epoch) of each partition."""
    response = await ask(handlers, LIST_OFFSETS, version, request)
    return [
        (one.error_code, one.offset, one.timestamp, one.leader_epoch)
        for topic in response.topics
        for one in topic.partitions
    ]


async def timed(handlers: Handlers, topic: Topic, *timestamps: int) -> None:
    for timestamp in timestamps:
        result = await handlers.broker.produce.records.produce(
            INTERNAL, topic, records([b"v"], timestamp=timestamp), partition=0
        )
        result.require_stored()


@pytest.mark.parametrize("version", range(APIS[LIST_OFFSETS].version_min, APIS[LIST_OFFSETS].version_max + 1))
def test_each_version_returns_ends_and_times(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=2, configs=NEVER)
            assert topic is not None
            await timed(handlers, topic, 100, 300, 200)
            await handlers.broker.topics.tables.roll(INTERNAL, topic)
            await timed(handlers, topic, 250, 300, 40)
            epoch = topic.partition(0).leader_epoch if version >= 4 else -1
            expected = {
                -1: (0, 6, -1, epoch),
                -2: (0, 0, -1, epoch),
                0: (0, 0, 100, epoch),
                101: (0, 1, 300, epoch),
                300: (0, 1, 300, epoch),
                301: (0, -1, -1, -1),
                -3: (0, 1, 300, epoch) if version >= 7 else (35, -1, -1, -1),
                -4: (0, 0, -1, epoch) if version >= 8 else (35, -1, -1, -1),
                -5: (0, -1, -1, -1) if version >= 9 else (35, -1, -1, -1),
                -6: (35, -1, -1, -1),
            }
            for timestamp, answer in expected.items():
                for isolation in (0, 1):
                    request = list_request((0, timestamp), isolation=isolation)
                    assert await listed(handlers, version, request) == [answer], timestamp
            empty = {-1: (0, 0, -1, -1), -2: (0, 0, -1, -1), 5: (0, -1, -1, -1)}
            for timestamp, answer in empty.items():
                assert await listed(handlers, version, list_request((1, timestamp))) == [answer]

    run(scenario())


def test_errors_are_those_of_each_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied({"denied"}))) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=2, configs=NEVER)
            assert topic is not None
            await handlers.broker.topics.changes.create(INTERNAL, "denied", partitions=1, configs=NEVER)
            refused = (-1, -1, -1)
            assert await listed(handlers, 10, list_request((0, -1), (9, -1))) == [(0, 0, -1, -1), (3, *refused)]
            assert await listed(handlers, 10, list_request((0, -1), (0, -2), (1, -1))) == [
                (42, *refused),
                (42, *refused),
                (0, 0, -1, -1),
            ]
            assert await listed(handlers, 10, list_request((0, -1), name="none")) == [(3, *refused)]
            assert await listed(handlers, 10, list_request((0, -1), name="denied")) == [(29, *refused)]
            assert await listed(handlers, 10, list_request((0, -1), isolation=7)) == [(42, *refused)]
            epoch = topic.partition(0).leader_epoch
            for known, error in ((0, 74), (epoch, 0), (epoch + 1, 75)):
                ((found, *_),) = await listed(handlers, 10, list_request((0, -1), epoch=known))
                assert found == error
            topic.partition(1).resign(epoch)
            assert await listed(handlers, 10, list_request((1, -1))) == [(6, *refused)]

    run(scenario())


def test_the_largest_timestamp_is_that_of_the_records_that_are_left(tmp_path: Path) -> None:
    rng = random.Random(3)

    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            topic = await handlers.broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
            assert topic is not None
            assert await listed(handlers, 10, list_request((0, -3))) == [(0, -1, -1, -1)]
            timestamps = [900, *(rng.randrange(500) for _ in range(11)), 700, *(rng.randrange(500) for _ in range(7))]
            for at, timestamp in enumerate(timestamps):
                await timed(handlers, topic, timestamp)
                if at in (4, 9):
                    await handlers.broker.topics.tables.roll(INTERNAL, topic)
            epoch = topic.partition(0).leader_epoch
            for start in range(len(timestamps)):
                await handlers.broker.topics.tables.delete_records(INTERNAL, topic, 0, start)
                left = timestamps[start:]
                offset = start + left.index(max(left))
                assert await listed(handlers, 10, list_request((0, -3))) == [(0, offset, max(left), epoch)], start
                assert await listed(handlers, 10, list_request((0, -2))) == [(0, start, -1, epoch)]

    run(scenario())


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epochs_end_where_the_next_ones_begin(tmp_path: Path, version: int) -> None:
    async def ends(handlers: Handlers, *asked: dict[str, Any], name: str = "t") -> list[tuple[int, int, int]]:
        partitions = [OffsetForLeaderEpochRequest.OffsetForLeaderPartition(**one) for one in asked]
        topics = [OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name, partitions=partitions)]
        request = OffsetForLeaderEpochRequest(replica_id=-2, topics=topics)
        response = await ask(handlers, OFFSET_FOR_LEADER_EPOCH, version, request)
        return [(one.error_code, one.leader_epoch, one.end_offset) for t in response.topics for one in t.partitions]

    async def scenario() -> None:
        written = []
        for _ in range(3):
            async with kafka_handlers(tmp_path) as handlers:
                try:
                    topic = handlers.broker.topics.served.topic(INTERNAL, "t")
                except Exception:  # noqa: BLE001 - the first time
                    topic = await handlers.broker.topics.changes.create(INTERNAL, "t", configs=NEVER)
                await produce(handlers.broker, topic, [b"v"] * 5)
                written.append(topic.partition(0).leader_epoch)
        async with kafka_handlers(tmp_path) as handlers:
            topic = handlers.broker.topics.served.topic(INTERNAL, "t")
            current = topic.partition(0).leader_epoch
            assert current > written[-1]
            expected = {
                -1: (-1, -1),
                0: (0, 0),
                written[0]: (written[0], 5),
                written[1]: (written[1], 10),
                written[2]: (written[2], 15),
                current: (current, 15),
                current + 1: (-1, -1),
            }
            for epoch, end in expected.items():
                assert await ends(handlers, {"leader_epoch": epoch}) == [(0, *end)], epoch
            await produce(handlers.broker, topic, [b"v"])
            assert await ends(handlers, {"leader_epoch": written[2]}, {"leader_epoch": current}) == [
                (0, written[2], 15),
                (0, current, 16),
            ]
            assert await ends(handlers, {"leader_epoch": 1, "current_leader_epoch": current - 1}) == [(74, -1, -1)]
            assert await ends(handlers, {"leader_epoch": 1, "current_leader_epoch": current + 1}) == [(75, -1, -1)]
            assert await ends(handlers, {"partition": 4}) == [(3, -1, -1)]
            assert await ends(handlers, {}, name="none") == [(3, -1, -1)]

    run(scenario())
