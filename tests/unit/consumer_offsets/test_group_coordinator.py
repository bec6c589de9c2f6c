"""Commits of a group: valid ones, and those whose topic is deleted, whose disk fails, or whose caller goes away."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from msgspec import structs

from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.groups.events import (
    ConsumerGroupHeartbeat,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    TopicIdPartition,
)
from consumer_offsets.groups.responses import ConsumerGroupHeartbeatResponse, JoinGroupResponse
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import PartitionState
from logstore.errors import (
    BrokerNotReadyError,
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InvalidGroupError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTopicError,
    LogStoreError,
    NonEmptyGroupError,
    NotCoordinatorError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    QuarantinedError,
    RequestTimedOutError,
    StorageError,
    StorageFullError,
    UnknownGroupError,
    UnknownMemberIdError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
    UnstableOffsetCommitError,
)
from logstore.protocol.consumer_protocol import Assignment, Subscription, encode_assignment, encode_subscription
from logstore.protocol.messages.members import LeavingMember, MemberAssignment, Protocol
from logstore.records.murmur2 import partition_for
from logstore.records.offset_record import OFFSETS_TOPIC, OffsetCommit, OffsetKey
from tests.support.eventually import eventually_async
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.manual_clock import ManualClock
from tests.support.running_broker import CLIENT, produce, records, running_broker
from tests.support.virtual_time import clock_of_loop, run

Store = tuple[Broker, GroupCoordinator]


@contextlib.asynccontextmanager
async def running(data: Path, **options: Any) -> AsyncIterator[Store]:
    async with (
        running_broker(data, **options) as broker,
        GroupCoordinator.running(broker, clock=options.get("clock") or clock_of_loop()) as groups,
    ):
        yield broker, groups


async def new_topic(broker: Broker, name: str = "t", partitions: int = 2, count: int = 5) -> None:
    """Create a topic whose partitions have ``count`` records each."""
    topic = await broker.topics.changes.create(
        INTERNAL, name, partitions=partitions, configs={"segment.ms": "100000000"}
    )
    assert topic is not None
    for partition in range(partitions):
        await produce(broker, topic, [b"x"] * count, partition=partition)


def committed(groups: GroupCoordinator, group: str = "g") -> dict[tuple[str, int], int]:
    return {(found.topic, found.partition): found.offset for found in groups.committed(INTERNAL, group)}


def log_ends(broker: Broker) -> list[int]:
    return [found.next_offset for found in broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC).partitions]


def test_the_last_commit_counts_also_after_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, clock=clock) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 5, "é\n"), OffsetToCommit("t", 1, 2)])
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 3)])
            await groups.commit(INTERNAL, "other", [OffsetToCommit("t", 1, 0, "\0")])
            before = [*groups.committed(INTERNAL, "g"), *groups.committed(INTERNAL, "other")]
            assert [found.leader_epoch for found in before] == [1, 1, -1]
            assert {found.timestamp for found in before} == {clock.now_ms()}
            assert [found.lag for found in groups.lag(INTERNAL, "g")] == [2, 3]
        async with running(tmp_path) as (broker, groups):
            assert [*groups.committed(INTERNAL, "g"), *groups.committed(INTERNAL, "other")] == before
            assert groups.groups(INTERNAL) == ["g", "other"]
            assert [found.offset for found in groups.committed(INTERNAL, "g", "t")] == [3, 2]
            await new_topic(broker, "u")
            assert groups.committed(INTERNAL, "g", "u") == []

    run(scenario())


@pytest.mark.parametrize(
    ("group", "offsets", "error"),
    [
        ("\ud800", [OffsetToCommit("t", 0, 1)], InvalidGroupError),
        ("é" * 16_384, [OffsetToCommit("t", 0, 1)], InvalidGroupError),
        ("g", [], InvalidRequestError),
        ("g", [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 0, 1)], InvalidRequestError),
        ("g", [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 6)], OffsetOutOfRangeError),
        ("g", [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, -1)], OffsetOutOfRangeError),
        ("g", [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 2, 0)], UnknownPartitionError),
        ("g", [OffsetToCommit("t", 0, 1), OffsetToCommit("u", 0, 0)], UnknownTopicError),
        ("g", [OffsetToCommit("t", 0, 1, "x" * 4097)], OffsetMetadataTooLargeError),
        ("g", [OffsetToCommit("t", 0, 1, "é" * 2049)], OffsetMetadataTooLargeError),
    ],
)
def test_a_refused_commit_leaves_nothing(
    tmp_path: Path, group: str, offsets: list[OffsetToCommit], error: type[Exception]
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            with pytest.raises(error):
                await groups.commit(INTERNAL, group, offsets)
            assert groups.groups(INTERNAL) == []
            assert [topic.name for topic in broker.topics.served.all(INTERNAL, include_internal=True)] == ["t"]

    run(scenario())


def test_the_largest_that_is_allowed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker, "t" * 249)
            await groups.commit(INTERNAL, "g" * 32_767, [OffsetToCommit("t" * 249, 1, 5, "é" * 2048)])
            assert groups.committed(INTERNAL, "g" * 32_767)[0].metadata == "é" * 2048

    run(scenario())


def test_commits_of_a_moment_end_as_the_log_orders_them(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker, count=100)
            await asyncio.gather(*(groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, n)]) for n in range(100)))
            assert committed(groups) == {("t", 0): 99}
            # A request of more than 1 MiB is encoded in a thread, and may be appended after later calls.
            large = [OffsetToCommit("wide", n, 0, "\x01" * 4096) for n in range(300)]
            await new_topic(broker, "wide", partitions=300, count=1)
            await asyncio.gather(
                groups.commit(INTERNAL, "g", large),
                *(groups.commit(INTERNAL, "g", [OffsetToCommit("wide", n, 1)]) for n in range(300)),
                groups.delete(INTERNAL, "g"),
            )
            before = {group: committed(groups, group) for group in groups.groups(INTERNAL)}
        async with running(tmp_path) as (broker, groups):
            assert {group: committed(groups, group) for group in groups.groups(INTERNAL)} == before

    run(scenario())


def test_a_deleted_group_is_gone_with_what_was_on_its_way(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            for group in ("g", "other"):
                await groups.commit(INTERNAL, group, [OffsetToCommit("t", 0, 1)])
            await asyncio.gather(
                groups.commit(INTERNAL, "g", [OffsetToCommit("t", 1, 2)]), groups.delete(INTERNAL, "g")
            )
            for _ in range(2):
                with pytest.raises(UnknownGroupError):
                    await groups.delete(INTERNAL, "g")
                with pytest.raises(UnknownGroupError):
                    groups.committed(INTERNAL, "g")
                with pytest.raises(UnknownGroupError):
                    groups.lag(INTERNAL, "g")
            assert groups.groups(INTERNAL) == ["other"]
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 1, 3)])
        async with running(tmp_path) as (broker, groups):
            assert committed(groups) == {("t", 1): 3}
            assert committed(groups, "other") == {("t", 0): 1}

    run(scenario())


def test_offsets_belong_to_a_topic_and_not_to_its_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            for name in ("t", "u"):
                await new_topic(broker, name)
                await groups.commit(INTERNAL, "g", [OffsetToCommit(name, 0, 4)])
            await groups.commit(INTERNAL, "only-t", [OffsetToCommit("t", 1, 1)])
            racing = asyncio.gather(
                broker.topics.changes.delete(INTERNAL, "t"),
                groups.commit(INTERNAL, "late", [OffsetToCommit("t", 1, 1)]),
                return_exceptions=True,
            )
            await racing
            await new_topic(broker, "t")
            assert groups.groups(INTERNAL) == ["g"]
            assert committed(groups) == {("u", 0): 4}
            assert {found.topic for found in groups.lag(INTERNAL, "g")} == {"u"}
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 2)])
        async with running(tmp_path) as (broker, groups):
            assert groups.groups(INTERNAL) == ["g"]
            assert committed(groups) == {("t", 0): 2, ("u", 0): 4}

    run(scenario())


def test_a_commit_that_waits_while_its_topic_is_made_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "other", [OffsetToCommit("t", 0, 0)])
            before = str(broker.topics.served.topic(INTERNAL, "t").topic_id)
            internal_topic, going_on = broker.topics.changes.internal, asyncio.Event()

            async def wait_for_it(*given: Any, **options: Any) -> Any:
                await going_on.wait()
                return await internal_topic(*given, **options)

            monkeypatch.setattr(broker.topics.changes, "internal", wait_for_it)
            offsets = [OffsetToCommit("t", 0, 4, topic_id=before)]
            committing = asyncio.create_task(groups.commit(INTERNAL, "g", offsets))
            await asyncio.sleep(0)
            monkeypatch.undo()
            await broker.topics.changes.delete(INTERNAL, "t")
            await new_topic(broker)
            ends = log_ends(broker)
            going_on.set()
            with pytest.raises(UnknownTopicIdError):
                await committing
            assert log_ends(broker) == ends
            assert groups.groups(INTERNAL) == []
            await groups.commit(
                INTERNAL,
                "g",
                [OffsetToCommit("t", 0, 4, topic_id=str(broker.topics.served.topic(INTERNAL, "t").topic_id))],
            )
            assert committed(groups) == {("t", 0): 4}

    run(scenario())


@pytest.mark.parametrize("made_again", [False, True])
def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start(tmp_path: Path, made_again: bool) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 4)])
        async with running_broker(tmp_path) as broker:
            # No coordinator sees the deletion, as if the process ended between the deletion and the tombstones.
            await broker.topics.changes.delete(INTERNAL, "t")
            if made_again:
                await new_topic(broker)
            ends = log_ends(broker)
        async with running(tmp_path) as (broker, groups):
            assert groups.groups(INTERNAL) == []
            assert sum(log_ends(broker)) == sum(ends) + 1
        async with running(tmp_path) as (broker, groups):
            assert sum(log_ends(broker)) == sum(ends) + 1

    run(scenario())


def test_the_offsets_of_a_topic_that_is_missing_wait_for_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path / "data") as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 4)])
        for _ in range(2):  # until the journal has no record of it
            async with running(tmp_path / "data"):
                pass
        (tmp_path / "data" / "topics" / "t").rename(tmp_path / "unmounted")
        async with running(tmp_path / "data") as (_, groups):
            assert groups.groups(INTERNAL) == []
        (tmp_path / "unmounted").rename(tmp_path / "data" / "topics" / "t")
        async with running(tmp_path / "data") as (_, groups):
            assert committed(groups) == {("t", 0): 4}

    run(scenario())


def test_a_commit_that_a_full_disk_refuses_is_not_seen(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running(tmp_path, filesystem=disk) as (broker, groups):
            await new_topic(broker, partitions=20, count=1)
            disk.fail("rename", errno.ENOSPC)
            with pytest.raises(StorageFullError):
                await groups.commit(INTERNAL, "first", [OffsetToCommit("t", 0, 1)])
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
            disk.fill()
            # Together these are more than the journal has allocated ahead.
            large = [OffsetToCommit("t", partition, 1, "\x01" * 4096) for partition in range(20)]
            outcomes = await asyncio.gather(
                *(groups.commit(INTERNAL, f"g{n}", large) for n in range(60)), return_exceptions=True
            )
            # Commits that fitted are stored, whatever came after them.
            assert {type(outcome) for outcome in outcomes} <= {type(None), StorageFullError}
            assert StorageFullError in {type(outcome) for outcome in outcomes}
            stored = sorted(["g", *(f"g{n}" for n, outcome in enumerate(outcomes) if outcome is None)])
            assert groups.groups(INTERNAL) == stored
            disk.heal()
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 0)])
            assert committed(groups) == {("t", 0): 0}
            disk.fill()
        # The store still stops; the journal keeps records that could not be rolled.
        async with running(tmp_path) as (broker, groups):
            assert groups.groups(INTERNAL) == stored
            assert committed(groups) == {("t", 0): 0}

    run(scenario())


def test_a_commit_that_a_failed_disk_refuses_is_not_seen(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running(tmp_path, filesystem=disk) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 2)])
            disk.fail("fdatasync", errno.EIO)
            for _ in range(2):
                with pytest.raises(StorageError):
                    await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 3)])
            assert committed(groups) == {("t", 0): 2}
            # The topic is deleted, although its offsets cannot be deleted now.
            await broker.topics.changes.delete(INTERNAL, "t")
            assert groups.groups(INTERNAL) == []

    run(scenario())


def test_members_that_a_failed_disk_removes_are_not_reported(tmp_path: Path) -> None:
    """Wait for the disk: otherwise a group's described generation would fall."""

    async def scenario() -> None:
        disk = FaultyFileSystem()
        settings = {"offsets_topic_num_partitions": 1, "group_initial_rebalance_delay_ms": 0}
        async with running(tmp_path, filesystem=disk, **settings) as (broker, groups):
            await new_topic(broker)
            await groups.members.join(INTERNAL, "g", joining("m"))
            await groups.members.until_durable(INTERNAL, "g")
            disk.fail("fdatasync", errno.EIO)
            leave = LeaveGroup(request=0, members=(LeavingMember("m"),))
            leaving = asyncio.create_task(groups.members.leave(INTERNAL, "g", leave))
            while groups.describe(INTERNAL, "g").generation == 1:  # noqa: ASYNC110 - its append fails soon after
                await asyncio.sleep(0)
            with pytest.raises(LogStoreError):
                await groups.members.until_durable(INTERNAL, "g")
            with pytest.raises(LogStoreError):
                await leaving
            await eventually_async(lambda: groups.describe(INTERNAL, "g").generation == 1)
            await groups.members.until_durable(INTERNAL, "g")
            (shard,) = groups._shards.active()
            shard.load()
            assert groups.describe(INTERNAL, "g").generation == 1
            with pytest.raises(CoordinatorLoadInProgressError):
                await groups.members.until_durable(INTERNAL, "g")

    run(scenario())


def test_a_static_member_whose_place_was_not_taken_is_not_fenced(tmp_path: Path) -> None:
    """Fail the append of a JoinGroup that gives the member another id: the previous id remains valid."""

    async def scenario() -> None:
        disk = FaultyFileSystem()
        settings = {"offsets_topic_num_partitions": 1, "group_initial_rebalance_delay_ms": 0}
        async with running(tmp_path, filesystem=disk, **settings) as (broker, groups):
            await new_topic(broker)

            async def join(new_member_id: str) -> JoinGroupResponse:
                static = structs.replace(joining(new_member_id), member_id="", group_instance_id="i")
                return await groups.members.join(INTERNAL, "g", static)

            await join("first")
            sync = SyncGroup(
                request=0,
                member_id="first",
                generation=1,
                assignments=(MemberAssignment("first", b"all"),),
                group_instance_id="i",
            )
            await groups.members.sync(INTERNAL, "g", sync)
            disk.fail("journal.write_at", errno.ENOSPC)
            with pytest.raises(StorageFullError):
                await join("second")
            await groups.members.heartbeat(
                INTERNAL, "g", Heartbeat(request=0, member_id="first", generation=1, group_instance_id="i")
            )
            assert (await groups.members.sync(INTERNAL, "g", sync)).assignment == b"all"
            # The next id is recorded, and the previous one is fenced.
            assert (await join("third")).generation == 1
            with pytest.raises(FencedInstanceIdError):
                await groups.members.heartbeat(
                    INTERNAL, "g", Heartbeat(request=0, member_id="first", generation=1, group_instance_id="i")
                )

    run(scenario())


def test_a_static_consumer_whose_place_was_not_taken_comes_back(tmp_path: Path) -> None:
    """Fail the append of the heartbeat that takes the place of a member that is away for a moment (KIP-848)."""

    async def scenario() -> None:
        disk = FaultyFileSystem()
        async with running(tmp_path, filesystem=disk, offsets_topic_num_partitions=1) as (broker, groups):
            await new_topic(broker)

            async def beat(member_id: str, epoch: int) -> ConsumerGroupHeartbeatResponse:
                given = {"rebalance_timeout_ms": 1_000, "subscribed_topics": frozenset({"t"}), "owned": frozenset()}
                event = ConsumerGroupHeartbeat(0, member_id, epoch, "i", **given)
                return await groups.members.consumer_heartbeat(INTERNAL, "g", event)

            assert partitions_of(await beat("first", 0)) == {("t", 0), ("t", 1)}
            await beat("first", -2)
            disk.fail("journal.write_at", errno.ENOSPC)
            with pytest.raises(StorageFullError):
                await beat("second", 0)
            assert partitions_of(await beat("first", 0)) == {("t", 0), ("t", 1)}
            assert [member.member_id for member in groups.describe(INTERNAL, "g").members] == ["first"]

    run(scenario())


def test_a_commit_that_times_out_is_in_doubt_and_memory_follows_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
            with pytest.raises(RequestTimedOutError):
                await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 2)], timeout_ms=0)
            waiting = asyncio.create_task(groups.commit(INTERNAL, "g", [OffsetToCommit("t", 1, 3)]))
            await asyncio.sleep(0)
            waiting.cancel()
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 1, 4)])
            assert committed(groups) == {("t", 0): 2, ("t", 1): 4}

    run(scenario())


def test_a_store_that_stops_takes_no_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
        with pytest.raises(BrokerNotReadyError):
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 2)])
        assert committed(groups) == {("t", 0): 1}

    run(scenario())


def test_the_topic_is_the_stores_own_and_compacted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, offsets_topic_num_partitions=3) as (broker, groups):
            await new_topic(broker)
            await asyncio.gather(*(groups.commit(INTERNAL, f"g{n}", [OffsetToCommit("t", 0, n)]) for n in range(5)))
            topic = broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC)
            assert topic.is_internal
            assert topic.config.compacted
            assert topic.config.segment_ms == 5000
            assert len(topic.partitions) == 3
            before = log_ends(broker)
            for refused in (
                broker.produce.records.produce(CLIENT, topic, records([b"x"], keys=[b"k"])),
                broker.topics.changes.delete(INTERNAL, OFFSETS_TOPIC),
                broker.topics.changes.alter_configs(INTERNAL, OFFSETS_TOPIC, {"cleanup.policy": "delete"}),
                broker.topics.changes.add_partitions(INTERNAL, OFFSETS_TOPIC, 9),
                broker.topics.tables.delete_records(INTERNAL, topic, 0, -1),
                broker.topics.changes.create(INTERNAL, OFFSETS_TOPIC),
            ):
                with pytest.raises(InvalidTopicError):
                    await refused
            assert log_ends(broker) == before
        # The setting counted when the topic was made, so a group stays in its partition.
        async with running(tmp_path, offsets_topic_num_partitions=7) as (broker, groups):
            await groups.commit(INTERNAL, "g1", [OffsetToCommit("t", 0, 5)])
            assert len(broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC).partitions) == 3
        async with running(tmp_path) as (broker, groups):
            assert [committed(groups, group)["t", 0] for group in groups.groups(INTERNAL)] == [0, 5, 2, 3, 4]

    run(scenario())


def test_records_that_no_coordinator_has_written_keep_only_the_groups_of_their_partition_from_being_served(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
            topic = broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC)
            await broker.produce.records.produce(INTERNAL, topic, records([b"{}"], keys=[b"k"]), partition=2)
            again = await GroupCoordinator.start(broker)
            names = {partition_for(f"g{n}", len(topic.partitions)): f"g{n}" for n in range(100)}
            with pytest.raises(QuarantinedError, match=f"{OFFSETS_TOPIC}-2, offset 0"):
                await again.commit(INTERNAL, names[2], [OffsetToCommit("t", 0, 1)])
            with pytest.raises(QuarantinedError, match=f"{OFFSETS_TOPIC}-2, offset 0"):
                again.committed(INTERNAL, names[2])
            await again.commit(INTERNAL, names[3], [OffsetToCommit("t", 0, 1)])
            assert [found.offset for found in again.committed(INTERNAL, names[3])] == [1]
            await again.close()

    run(scenario())


def test_offsets_expire_each_after_its_own_commit(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        minute = 60_000
        async with running(tmp_path, clock=clock, offsets_retention_minutes=10) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 2)])
            await groups.commit(INTERNAL, "old", [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1)])
            clock.advance(6 * minute)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 1, 2)])
            clock.advance(4 * minute)
            assert await groups.cleanup.expire_offsets() == 0
            clock.advance(1)
            ends = log_ends(broker)
            # A commit that is under way when the offset expires is the newer record.
            committing = asyncio.create_task(groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 3)]))
            await asyncio.sleep(0)
            assert await groups.cleanup.expire_offsets() == 2
            await committing
            assert groups.groups(INTERNAL) == ["g"]
            assert committed(groups) == {("t", 0): 3, ("t", 1): 2}
            assert sum(log_ends(broker)) == sum(ends) + 3
            assert await groups.cleanup.expire_offsets() == 0
            clock.advance(7 * minute)
            assert await groups.cleanup.expire_offsets() == 1
        async with running(tmp_path, clock=clock) as (_, groups):
            assert committed(groups) == {("t", 0): 3}
            clock.advance(20 * 24 * 60 * minute)
            assert await groups.cleanup.expire_offsets() == 1
            assert groups.groups(INTERNAL) == []

    run(scenario())


def test_a_group_that_had_members_and_never_committed_is_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, group_initial_rebalance_delay_ms=0) as (broker, groups):
            await new_topic(broker)
            for name in ("passing", "staying", "committed"):
                await groups.members.join(INTERNAL, name, joining("m"))
            for name in ("passing", "committed"):
                await groups.members.leave(INTERNAL, name, LeaveGroup(request=0, members=(LeavingMember("m"),)))
            await groups.commit(INTERNAL, "committed", [OffsetToCommit("t", 0, 1)])
            assert groups.groups(INTERNAL) == ["committed", "passing", "staying"]
            assert await groups.cleanup.expire_offsets() == 0
            assert groups.groups(INTERNAL) == ["committed", "staying"]
        async with running(tmp_path) as (_, groups):
            assert groups.groups(INTERNAL) == ["committed", "staying"]

    run(scenario())


def test_expired_offsets_are_looked_for_by_themselves(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        settings = {"offsets_retention_minutes": 1, "offsets_retention_check_interval_ms": 10}
        async with running(tmp_path, clock=clock, **settings) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
            clock.advance(60_001)
            await eventually_async(lambda: groups.groups(INTERNAL) == [])

    run(scenario())


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"member_id": "m", "generation": 1}, IllegalGenerationError),
        ({"generation": 0}, IllegalGenerationError),
        ({"producer_id": 5, "producer_epoch": 0}, InvalidRequestError),
        ({"transactional_id": "x"}, InvalidRequestError),
    ],
)
def test_a_commit_of_a_member_or_a_transaction_is_refused(
    tmp_path: Path, given: dict[str, Any], error: type[Exception]
) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            with pytest.raises(error):
                await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)], **given)
            assert groups.groups(INTERNAL) == []

    run(scenario())


def test_a_reader_that_requires_stable_offsets_waits_for_the_end_of_a_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1), OffsetToCommit("t", 1, 1)])
            shard = groups._shards.find_shard("g")
            assert shard is not None
            topic_id = str(broker.topics.served.topic(INTERNAL, "t").topic_id)
            pending = OffsetCommit(4, 1, "", -1, topic_id, 5)
            shard.machine.offsets.replay(100, OffsetKey("g", "t", 0), pending, producer_id=7)
            assert committed(groups) == {("t", 0): 1, ("t", 1): 1}
            with pytest.raises(UnstableOffsetCommitError, match="t-0"):
                groups.committed(INTERNAL, "g", "t", require_stable=True)
            shard.replay_marker(7, 0, committed=True)
            stable = groups.committed(INTERNAL, "g", require_stable=True)
            assert [found.offset for found in stable] == [4, 1]

    run(scenario())


def test_groups_move_with_the_leader_of_their_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, offsets_topic_num_partitions=2) as (broker, groups):
            await new_topic(broker)
            names = {partition_for(f"g{n}", 2): f"g{n}" for n in range(20)}
            for name in names.values():
                await groups.commit(INTERNAL, name, [OffsetToCommit("t", 0, 1)])
            topic = broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC)

            def lead(leader: int) -> None:
                here = (broker.broker_id,)
                state = PartitionState(leader, topic.partitions[0].leader_epoch + 1, here, here)
                broker.topics.served._partition_changed(topic.topic_id, 0, state)

            lead(-1)
            with pytest.raises(NotCoordinatorError):
                groups.committed(INTERNAL, names[0])
            with pytest.raises(NotCoordinatorError):
                await groups.commit(INTERNAL, names[0], [OffsetToCommit("t", 0, 2)])
            assert groups.groups(INTERNAL) == [names[1]]
            await groups.commit(INTERNAL, names[1], [OffsetToCommit("t", 0, 2)])
            lead(broker.broker_id)
            with pytest.raises(CoordinatorLoadInProgressError):
                groups.committed(INTERNAL, names[0])
            await groups.commit(INTERNAL, names[0], [OffsetToCommit("t", 1, 3)])
            assert committed(groups, names[0]) == {("t", 0): 1, ("t", 1): 3}

    run(scenario())


def test_groups_stand_beside_their_offsets_and_live_on(tmp_path: Path) -> None:
    """Restart: the member continues with heartbeats in the same generation."""

    async def scenario() -> None:
        settings = {"offsets_topic_num_partitions": 1, "group_initial_rebalance_delay_ms": 0}
        async with running(tmp_path, **settings) as (broker, groups):
            await new_topic(broker)
            joined = await groups.members.join(INTERNAL, "g", joining("m"))
            assert (joined.member_id, joined.leader, joined.generation) == ("m", "m", 1)
            sync = SyncGroup(
                request=0,
                member_id="m",
                generation=1,
                assignments=(MemberAssignment("m", encode_assignment(Assignment((("t", 0),)))),),
            )
            assert (await groups.members.sync(INTERNAL, "g", sync)).assignment == sync.assignments[0].assignment
            await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)], member_id="m", generation=1)
            with pytest.raises(UnknownMemberIdError):
                await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 1)])
        async with running(tmp_path, **settings) as (_, groups):
            described = groups.describe(INTERNAL, "g")
            assert (described.state, described.generation) == ("Stable", 1)
            assert [(member.member_id, member.assignment) for member in described.members] == [("m", (("t", 0),))]
            await groups.members.heartbeat(INTERNAL, "g", Heartbeat(request=0, member_id="m", generation=1))
            assert committed(groups) == {("t", 0): 1}
            with pytest.raises(NonEmptyGroupError):
                await groups.delete(INTERNAL, "g")
            await groups.members.leave(INTERNAL, "g", LeaveGroup(request=0, members=(LeavingMember("m"),)))
            assert groups.describe(INTERNAL, "g").state == "Empty"
            await groups.delete(INTERNAL, "g")
            assert groups.groups(INTERNAL) == []
        rows = DeltaTable(tmp_path / "topics" / OFFSETS_TOPIC).to_pyarrow_dataset().to_table().to_pylist()
        kinds = {(row["group"], row["topic"], row["value"] is None) for row in rows}
        assert kinds == {("g", "t", False), ("g", None, False), ("g", "t", True), ("g", None, True)}

    run(scenario())


def test_a_join_that_is_sent_again_is_of_the_same_member(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, group_initial_rebalance_delay_ms=50) as (broker, groups):
            await new_topic(broker)
            lost = asyncio.create_task(groups.members.join(INTERNAL, "g", joining("m")))
            await asyncio.sleep(0.01)
            lost.cancel()
            again = await groups.members.join(INTERNAL, "g", joining("m"))
            assert [member.member_id for member in again.members] == ["m"]

    run(scenario())


def test_the_store_assigns_the_partitions_of_a_consumer_group_as_topics_come_and_grow(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as (broker, groups):
            await new_topic(broker)

            async def beat(epoch: int, **given: Any) -> ConsumerGroupHeartbeatResponse:
                event = ConsumerGroupHeartbeat(0, "m", epoch, **given)
                return await groups.members.consumer_heartbeat(INTERNAL, "g", event)

            joined = await beat(0, rebalance_timeout_ms=1_000, subscribed_regex="t|u.*", owned=frozenset())
            assert partitions_of(joined) == {("t", 0), ("t", 1)}
            owned = owned_of(joined)
            await new_topic(broker, "users")

            async def reassigned() -> ConsumerGroupHeartbeatResponse:
                while True:
                    if (found := await beat(joined.member_epoch, owned=owned)).assignment is not None:
                        return found
                    await asyncio.sleep(0.02)

            changed = await asyncio.wait_for(reassigned(), 10)
            assert partitions_of(changed) == {(topic, n) for topic in ("t", "users") for n in range(2)}
            with pytest.raises(InvalidRegularExpressionError, match=r"'\(' cannot be used \(RE2\): missing \): \(\."):
                await beat(changed.member_epoch, subscribed_regex="(")

    run(scenario())


def joining(member_id: str) -> JoinGroup:
    metadata = encode_subscription(Subscription(("t",)))
    return JoinGroup(
        request=0,
        member_id=member_id,
        new_member_id=member_id,
        protocol_type="consumer",
        protocols=(Protocol("range", metadata),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
    )


def partitions_of(response: ConsumerGroupHeartbeatResponse) -> set[tuple[str, int]]:
    return {(entry.topic, partition) for entry in response.assignment or () for partition in entry.partitions}


def owned_of(response: ConsumerGroupHeartbeatResponse) -> frozenset[TopicIdPartition]:
    entries = response.assignment or ()
    return frozenset(TopicIdPartition(entry.topic_id, partition) for entry in entries for partition in entry.partitions)
