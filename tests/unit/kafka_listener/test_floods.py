"""Floods of members, groups and sessions at the socket get Kafka's errors, and other clients are answered meanwhile."""

import asyncio
import itertools
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from logstore.errors import CoordinatorNotAvailableError, GroupMaxSizeReachedError, UnknownPartitionError
from logstore.kafka_listener.fetch_sessions import SESSIONS_MAX
from logstore.kafka_protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    MetadataRequest,
    OffsetFetchRequest,
)
from tests.support.kafka_client import FETCH, METADATA, PRODUCE, KafkaServer, batch_of, kafka_server, produce_request
from tests.support.virtual_time import run

JOIN, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, DELETE_GROUPS, HEARTBEAT = 11, 9, 10, 15, 42, 68
FULL = GroupMaxSizeReachedError.kafka_code
MEMBERS_MAX = 5


async def flood(server: KafkaServer, api_key: int, version: int, messages: Iterable[Any]) -> Counter[int]:
    """Send the requests over one connection without waiting; return how often each error number came."""
    client = await server.connect()
    sent = [client.send(api_key, version, message) for message in messages]
    return Counter([(await client.receive(api_key, version))[1].error_code for _ in sent])


async def producing(server: KafkaServer) -> "asyncio.Task[int]":
    """Produce as another client; return, after the first record, a task that returns their number when cancelled."""
    client = await server.connect()
    begun = asyncio.Event()

    async def produce() -> int:
        for count in itertools.count():
            try:
                answer = await client.ask(PRODUCE, 9, produce_request({0: batch_of(b"v")}))
            except asyncio.CancelledError:
                return count - 1
            assert answer.responses[0].partition_responses[0].error_code == 0
            begun.set()
        raise AssertionError

    task = asyncio.create_task(produce())
    await begun.wait()
    return task


def join(member_id: str = "", group: str = "g", metadata: bytes = b"m") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=6_000,
        rebalance_timeout_ms=1_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def test_a_flood_of_members_is_refused_at_group_max_size(tmp_path: Path):
    async def scenario() -> None:
        async with kafka_server(tmp_path, group_max_size=MEMBERS_MAX, group_initial_rebalance_delay_ms=200) as server:
            await server.topic()
            other = await producing(server)
            # Each client gets an id first (KIP-394); before version 4 it is a member at once.
            given = await flood(server, JOIN, 9, [join() for _ in range(60)])
            assert given == {79: MEMBERS_MAX, FULL: 60 - MEMBERS_MAX}
            joined = await flood(server, JOIN, 3, [join(group="old") for _ in range(60)])
            assert joined == {0: MEMBERS_MAX, FULL: 60 - MEMBERS_MAX}
            beats = [
                ConsumerGroupHeartbeatRequest(
                    group_id="k",
                    member_id=f"m{number}",
                    rebalance_timeout_ms=1_000,
                    subscribed_topic_names=["t"],
                    topic_partitions=[],
                )
                for number in range(60)
            ]
            assert await flood(server, HEARTBEAT, 1, beats) == {0: MEMBERS_MAX, FULL: 60 - MEMBERS_MAX}
            other.cancel()
            assert await other > 3

    asyncio.run(scenario())  # on real time, which continues under a load without a pause


def test_a_flood_of_groups_is_refused_when_their_members_bring_too_much(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("consumer_offsets.groups_machine.ALL_GROUPS_BYTES_MAX", 2_000_000)

    async def scenario() -> None:
        options = {"offsets_topic_num_partitions": 1, "group_initial_rebalance_delay_ms": 0}
        async with kafka_server(tmp_path, **options) as server:
            await server.topic()
            other = await producing(server)
            joins = [join(group=f"g{number}", metadata=bytes(200_000)) for number in range(50)]
            found = await flood(server, JOIN, 3, joins)
            assert found == {0: 10, CoordinatorNotAvailableError.kafka_code: 40}
            other.cancel()
            assert await other > 3

    asyncio.run(scenario())  # on real time, which continues under a load without a pause


def test_requests_that_name_very_many_things_do_not_block_others(tmp_path: Path):
    names = [f"group-{number}" for number in range(20_000)]
    groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    asked = (
        (DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=names)),
        (OFFSET_FETCH, 9, OffsetFetchRequest(groups=groups)),
        (FIND_COORDINATOR, 6, FindCoordinatorRequest(key_type=0, coordinator_keys=names)),
        (DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=names)),
        (METADATA, 12, MetadataRequest(topics=topics, allow_auto_topic_creation=False)),
    )

    async def scenario() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic()
            # This request brings the coordinator up.
            await flood(server, JOIN, 9, [join()])
            for api_key, version, message in asked:
                client = await server.connect()
                other = await producing(server)
                await client.ask(api_key, version, message)
                other.cancel()
                assert await other > 0, api_key

    asyncio.run(scenario())  # on real time, which continues under a load without a pause


def test_fetches_of_very_many_partitions_take_turns_with_others(tmp_path: Path):
    partitions = [
        FetchRequest.FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1) for number in range(20_000)
    ]
    wanted = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=partitions)],
    )

    async def scenario() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic()
            clients = [await server.connect() for _ in range(6)]
            for client in clients:
                client.send(FETCH, 11, wanted)
            other = await producing(server)
            for client in clients:
                _, answer = await client.receive(FETCH, 11)
                errors = Counter(one.error_code for one in answer.responses[0].partitions)
                assert errors == {0: 1, UnknownPartitionError.kafka_code: len(partitions) - 1}
            other.cancel()
            assert await other > len(clients)

    asyncio.run(scenario())  # on real time, which continues under a load without a pause


def test_nothing_is_begun_behind_a_long_request_that_cannot_be_read(tmp_path: Path):
    async def scenario() -> None:
        async with kafka_server(tmp_path) as server:
            topic = await server.topic()
            client = await server.connect()
            client.writer.write(struct.pack(">ihhih", 100_000, FETCH, 11, 0, -1) + b"\xff" * 99_990)
            client.send(PRODUCE, 9, produce_request({0: batch_of(b"v")}))
            assert await client.is_closed()
            assert topic.partition(0).log_end_offset == 0

    run(scenario())


def test_a_flood_of_sessions_leaves_the_later_ones_with_full_fetches(tmp_path: Path):
    partition = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    wanted = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000,
        session_id=0,
        session_epoch=0,
        topics=[FetchRequest.FetchTopic(topic="t", partitions=[partition])],
    )

    async def scenario() -> None:
        async with kafka_server(tmp_path) as server:
            await server.topic()
            client = await server.connect()
            answers = [await client.ask(FETCH, 11, wanted) for _ in range(SESSIONS_MAX + 20)]
            assert {answer.error_code for answer in answers} == {0}
            assert [answer.session_id == 0 for answer in answers] == [False] * SESSIONS_MAX + [True] * 20

    run(scenario())
