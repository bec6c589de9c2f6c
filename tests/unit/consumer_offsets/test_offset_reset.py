"""Resets of groups: each target, at and beyond the ends of a partition; groups with members; all or none."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from consumer_offsets.group_coordinator import GroupCoordinator
from consumer_offsets.groups.events import ConsumerGroupHeartbeat
from consumer_offsets.offset_reset import ResetTarget, ResetTo
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.errors import (
    InvalidGroupError,
    InvalidRequestError,
    LogStoreError,
    NonEmptyGroupError,
    OffsetOutOfRangeError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
)
from logstore.protocol.messages.groups import GroupListing, OffsetReset
from tests.support.running_broker import produce, running_broker
from tests.support.virtual_time import clock_of_loop, run

Store = tuple[Broker, GroupCoordinator]


@contextlib.asynccontextmanager
async def filled(data: Path) -> AsyncIterator[Store]:
    """Fill topic ``t`` with offsets [2, 10) in both partitions, ``u`` with [0, 5); group ``g`` is at t-0 5, u-0 1."""
    async with running_broker(data) as broker, GroupCoordinator.running(broker, clock=clock_of_loop()) as groups:
        for name, partitions, count in (("t", 2, 10), ("u", 1, 5)):
            topic = await broker.topics.changes.create(INTERNAL, name, partitions=partitions)
            assert topic is not None
            for partition in range(partitions):
                await produce(broker, topic, [b"x"] * count, partition=partition)
                if name == "t":
                    await broker.topics.tables.delete_records(INTERNAL, topic, partition, 2)
        await groups.commit(INTERNAL, "g", [OffsetToCommit("t", 0, 5, "mine"), OffsetToCommit("u", 0, 1)])
        yield broker, groups


def committed(groups: GroupCoordinator, group: str = "g") -> list[tuple[str, int, int]]:
    return [(found.topic, found.partition, found.offset) for found in groups.committed(INTERNAL, group)]


def test_where_each_target_leads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (_, groups):
            before = committed(groups)
            for to, value, offsets in (
                (ResetTo.EARLIEST, 0, [2, 2]),
                (ResetTo.LATEST, 0, [10, 10]),
                (ResetTo.CURRENT, 0, [5, 10]),
                (ResetTo.OFFSET, 2, [2, 2]),
                (ResetTo.OFFSET, 10, [10, 10]),
                (ResetTo.OFFSET, -3, [7, 7]),
                (ResetTo.OFFSET, -100, [2, 2]),
                (ResetTo.TIMESTAMP, 0, [2, 2]),
                (ResetTo.TIMESTAMP, 2**50, [10, 10]),
            ):
                planned = await groups.reset(INTERNAL, "g", ResetTarget(to, value), {"t": ()}, dry_run=True)
                assert planned == [OffsetReset("t", 0, offsets[0], 5), OffsetReset("t", 1, offsets[1], None)], to
            for shift, offset in ((1, 6), (-1, 4), (100, 10), (-100, 2), (0, 5)):
                target = ResetTarget(ResetTo.SHIFT, shift)
                (planned_one,) = await groups.reset(INTERNAL, "g", target, {"t": [0, 0]}, dry_run=True)
                assert planned_one.offset == offset
            assert committed(groups) == before, "a dry run commits nothing"

    run(scenario())


def test_without_topics_it_is_of_all_that_the_group_has_committed_to(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (_, groups):
            await groups.reset(INTERNAL, "g", ResetTarget(ResetTo.LATEST))
            assert committed(groups) == [("t", 0, 10), ("t", 1, 10), ("u", 0, 5)]
            await groups.reset(INTERNAL, "g", ResetTarget(ResetTo.SHIFT, -1))
            assert committed(groups) == [("t", 0, 9), ("t", 1, 9), ("u", 0, 4)]
            given = [OffsetToCommit("u", 0, 3), OffsetToCommit("t", 1, 1)]
            assert await groups.reset(INTERNAL, "g", given) == [OffsetReset("u", 0, 3, 4), OffsetReset("t", 1, 1, 9)]
            assert committed(groups) == [("t", 0, 9), ("t", 1, 1), ("u", 0, 3)]
            await groups.reset(INTERNAL, "new", ResetTarget(ResetTo.EARLIEST), {"t": [1]})
            assert committed(groups, "new") == [("t", 1, 2)]

    run(scenario())


def test_a_reset_that_one_partition_refuses_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (_, groups):
            before = committed(groups)
            refused: list[tuple[type[LogStoreError], str, Any, Any]] = [
                (OffsetOutOfRangeError, "g", ResetTarget(ResetTo.OFFSET, 7), {"t": (), "u": ()}),
                (OffsetOutOfRangeError, "g", ResetTarget(ResetTo.OFFSET, 1), {"t": [0]}),
                (InvalidRequestError, "g", ResetTarget(ResetTo.SHIFT, 1), {"t": ()}),
                (UnknownTopicError, "g", ResetTarget(ResetTo.LATEST), {"t": (), "absent": ()}),
                (UnknownPartitionError, "g", ResetTarget(ResetTo.LATEST), {"t": [2]}),
                (UnknownGroupError, "absent", ResetTarget(ResetTo.LATEST), None),
                (InvalidGroupError, "x" * 32_768, ResetTarget(ResetTo.LATEST), {"t": ()}),
                (InvalidRequestError, "g", ResetTarget(ResetTo.LATEST), {}),
                (InvalidRequestError, "g", [], None),
                (InvalidRequestError, "g", [OffsetToCommit("t", 0, 3), OffsetToCommit("t", 0, 4)], None),
                (OffsetOutOfRangeError, "g", [OffsetToCommit("t", 0, 3), OffsetToCommit("t", 1, 11)], None),
            ]
            for error, group, target, topics in refused:
                for dry_run in (True, False):
                    with pytest.raises(error):
                        await groups.reset(INTERNAL, group, target, topics, dry_run=dry_run)
            assert committed(groups) == before
            assert groups.groups(INTERNAL) == ["g"]

    run(scenario())


def test_a_group_with_members_is_not_reset(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (_, groups):
            before = committed(groups)
            joining = ConsumerGroupHeartbeat(
                0, "m", 0, rebalance_timeout_ms=1_000, subscribed_topics=frozenset({"t"}), owned=frozenset()
            )
            resets = [groups.reset(INTERNAL, "g", ResetTarget(ResetTo.LATEST)) for _ in range(2)]
            # The first reset begins before the member joins, and may still be refused.
            early = asyncio.create_task(resets[0])
            await groups.members.consumer_heartbeat(INTERNAL, "g", joining)
            with pytest.raises(NonEmptyGroupError, match="1 member"):
                await resets[1]
            with contextlib.suppress(NonEmptyGroupError):
                await early
                before = committed(groups)
            with pytest.raises(NonEmptyGroupError):
                await groups.reset(INTERNAL, "g", [OffsetToCommit("t", 0, 2)], dry_run=True)
            errors = await groups.delete_groups(INTERNAL, ["g", "absent", "g"])
            assert {name: type(error) for name, error in errors.items()} == {
                "g": NonEmptyGroupError,
                "absent": UnknownGroupError,
            }
            assert committed(groups) == before

    run(scenario())


def test_pages_of_groups_have_every_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with filled(tmp_path) as (_, groups):
            names = [f"g{number:02}" for number in range(20)]
            for name in names:
                await groups.commit(INTERNAL, name, [OffsetToCommit("t", 0, 4)])
            for limit in (1, 7, 21, 100):
                found: list[GroupListing] = []
                after: str | None = ""
                while after is not None:
                    page = await groups.list_groups(INTERNAL, after=after, limit=limit)
                    assert len(page.groups) <= limit
                    found += page.groups
                    after = page.next
                assert [each.group for each in found] == ["g", *names]
            assert found[1] == GroupListing("g00", "", "Empty", None, None, -1, 0, 2, 14, 8)
            none = await groups.list_groups(INTERNAL, limit=100, states={"Stable"})
            assert (none.groups, none.next) == ((), None)
            # A page ends when it has looked at many partitions, and the next one continues there.
            monkeypatch.setattr("consumer_offsets.group_queries._PAGE_PARTITIONS", 5)
            page = await groups.list_groups(INTERNAL, limit=100)
            assert 0 < len(page.groups) < 5
            assert page.next == page.groups[-1].group

    run(scenario())
