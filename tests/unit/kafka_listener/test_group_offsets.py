"""OffsetCommit, OffsetFetch and OffsetDelete in all their versions, on a real broker, as bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from consumer_offsets.groups.events import ConsumerGroupHeartbeat, JoinGroup
from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.errors import (
    GroupAuthorizationError,
    GroupSubscribedToTopicError,
    IllegalGenerationError,
    InvalidRequestError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    StaleMemberEpochError,
    TopicAuthorizationError,
    UnknownGroupError,
    UnknownMemberIdError,
    UnknownTopicError,
    UnstableOffsetCommitError,
    UnsupportedVersionError,
)
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from logstore.protocol.consumer_protocol import Subscription, encode_subscription
from logstore.protocol.messages.members import Protocol
from logstore.records.offset_record import OffsetCommit, OffsetKey
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.virtual_time import run

COMMIT, FETCH, DELETE = 8, 9, 47
OPTIONS: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0}
UNKNOWN_TOPIC = UnknownTopicError.kafka_code

Offset = tuple[int, int, int, str | None]
Answers = dict[tuple[str, int], int]


async def commit(handlers: Handlers, offsets: dict[str, Sequence[Offset]], version: int = 9, **values: Any) -> Answers:
    """Commit the partition, offset, leader epoch and metadata of each topic; return the error codes."""
    topics = [
        OffsetCommitRequest.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=number, committed_offset=at, committed_leader_epoch=epoch, committed_metadata=text
                )
                for number, at, epoch, text in partitions
            ],
        )
        for name, partitions in offsets.items()
    ]
    wanted: dict[str, Any] = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": topics}
    answer = await handlers.ask(COMMIT, version, OffsetCommitRequest(**wanted | values))
    return {(topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions}


async def fetch(
    handlers: Handlers,
    topics: dict[str, list[int]] | None,
    version: int = 9,
    *,
    group: str = "g",
    member: tuple[str | None, int] = (None, -1),
    require_stable: bool = False,
) -> tuple[int, dict[tuple[str, int], tuple[Any, ...]]]:
    """Return the error code, and the offset, leader epoch, metadata and error code of each partition."""
    names = None if topics is None else topics.items()
    old = names and [OffsetFetchRequest.OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in names]
    new = names and [OffsetFetchRequest.OffsetFetchRequestTopics(name=n, partition_indexes=p) for n, p in names]
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(
        group_id=group, member_id=member[0], member_epoch=member[1], topics=new
    )
    request = OffsetFetchRequest(group_id=group, topics=old, groups=[asked], require_stable=require_stable)
    answer = await handlers.ask(FETCH, version, request)
    if version >= 8:
        (answer,) = answer.groups
        assert answer.group_id == group
    return answer.error_code, {
        (topic.name, one.partition_index): (
            one.committed_offset,
            one.committed_leader_epoch,
            one.metadata,
            one.error_code,
        )
        for topic in answer.topics
        for one in topic.partitions
    }


async def delete(handlers: Handlers, places: dict[str, list[int]], group: str = "g") -> tuple[int, Answers]:
    topics = [
        OffsetDeleteRequest.OffsetDeleteRequestTopic(
            name=name,
            partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=number) for number in numbers],
        )
        for name, numbers in places.items()
    ]
    answer = await handlers.ask(DELETE, 0, OffsetDeleteRequest(group_id=group, topics=topics))
    codes = {(topic.name, one.partition_index): one.error_code for topic in answer.topics for one in topic.partitions}
    return answer.error_code, codes


async def new_topics(handlers: Handlers, *names: str) -> None:
    for name in names:
        await handlers.broker.topics.changes.create(INTERNAL, name, partitions=2)


@pytest.mark.parametrize("commit_version", range(APIS[COMMIT].version_min, APIS[COMMIT].version_max + 1))
@pytest.mark.parametrize("group", ["g", "", "any name/ä"])
def test_committed_offsets_are_fetched_in_every_version(tmp_path: Path, commit_version: int, group: str) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await new_topics(handlers, "t", "u")
            # These offsets are beyond the end, because both logs are empty.
            offsets: dict[str, Sequence[Offset]] = {"t": [(0, 7, 3, "ä"), (1, 0, -1, None)], "u": [(1, 2**40, -1, "")]}
            answers = await commit(handlers, offsets, commit_version, group_id=group, retention_time_ms=5)
            assert answers == {("t", 0): 0, ("t", 1): 0, ("u", 1): 0}
            epoch = 3 if commit_version >= 6 else -1
            for version in range(APIS[FETCH].version_min, APIS[FETCH].version_max + 1):
                told = epoch if version >= 5 else -1
                error, found = await fetch(handlers, {"t": [1, 0], "u": [0], "v": [5]}, version, group=group)
                assert error == 0
                assert found == {
                    ("t", 1): (0, -1, "", 0),
                    ("t", 0): (7, told, "ä", 0),
                    ("u", 0): (-1, -1, "", 0),
                    ("v", 5): (-1, -1, "", 0),
                }
                if version >= 2:
                    error, found = await fetch(handlers, None, version, group=group)
                    assert error == 0
                    assert {place: values[0] for place, values in found.items()} == {
                        ("t", 0): 7,
                        ("t", 1): 0,
                        ("u", 1): 2**40,
                    }
                assert await fetch(handlers, {"t": [0]}, version, group="unknown") == (0, {("t", 0): (-1, -1, "", 0)})
        async with kafka_handlers(tmp_path) as handlers:
            assert (await fetch(handlers, {"t": [0]}, group=group))[1][("t", 0)][0] == 7

    run(scenario())


def test_a_partition_that_is_refused_keeps_no_other_from_being_committed(tmp_path: Path) -> None:
    async def scenario() -> None:
        authorizer = Authorizer(Denied({"secret"}))
        async with kafka_handlers(tmp_path, authorizer=authorizer) as handlers:
            await new_topics(handlers, "t", "secret")
            offsets: dict[str, Sequence[Offset]] = {
                "t": [(0, 1, -1, "x" * 4096), (1, 1, -1, "x" * 4097), (2, 1, -1, ""), (-1, 1, -1, "")],
                "missing": [(0, 1, -1, "")],
                "no/name": [(0, 1, -1, "")],
                "secret": [(0, 1, -1, "")],
            }
            assert await commit(handlers, offsets) == {
                ("t", 0): 0,
                ("t", 1): OffsetMetadataTooLargeError.kafka_code,
                ("t", 2): UNKNOWN_TOPIC,
                ("t", -1): UNKNOWN_TOPIC,
                ("missing", 0): UNKNOWN_TOPIC,
                ("no/name", 0): UNKNOWN_TOPIC,
                ("secret", 0): TopicAuthorizationError.kafka_code,
            }
            assert await commit(handlers, {"t": [(1, -1, -1, "")]}) == {("t", 1): OffsetOutOfRangeError.kafka_code}
            # The store writes no value that a reader of the log would refuse.
            assert await commit(handlers, {"t": [(1, 5, -7, "")]}, generation_id_or_member_epoch=-9) == {("t", 1): 0}
            error, found = await fetch(handlers, {"t": [0, 1], "secret": [0]})
            assert error == 0
            assert found[("t", 0)][0] == 1
            assert found[("t", 1)] == (5, -1, "", 0)
            assert found[("secret", 0)] == (-1, -1, "", TopicAuthorizationError.kafka_code)
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied({"g"}))) as handlers:
            refused = GroupAuthorizationError.kafka_code
            assert await commit(handlers, {"t": [(0, 1, -1, "")]}) == {("t", 0): refused}
            for version in (1, 2, 7, 8, 9):
                error, found = await fetch(handlers, {"t": [0]}, version)
                if version == 1:
                    assert found == {("t", 0): (-1, -1, "", refused)}
                else:
                    assert (error, found) == (refused, {})
            assert await delete(handlers, {"t": [0]}) == (refused, {})
            assert (await fetch(handlers, {"t": [0]}, group="other"))[0] == 0

    run(scenario())


async def classic_member(handlers: Handlers, metadata: bytes, protocol_type: str = "consumer") -> str:
    event = JoinGroup(
        request=0,
        member_id="m",
        new_member_id="m",
        protocol_type=protocol_type,
        protocols=(Protocol("range", metadata),),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
    )
    joined = await handlers.store.groups.members.join(INTERNAL, "g", event)
    assert joined.generation == 1
    return joined.member_id


async def consumer_member(handlers: Handlers) -> int:
    names = frozenset({"t"})
    event = ConsumerGroupHeartbeat(
        0, "m", 0, rebalance_timeout_ms=1000, subscribed_topics=names, subscribed_regex="u.*", owned=frozenset()
    )
    return (await handlers.store.groups.members.consumer_heartbeat(INTERNAL, "g", event)).member_epoch


def test_a_group_with_members_takes_commits_of_its_members_alone(tmp_path: Path) -> None:
    one: dict[str, Sequence[Offset]] = {"t": [(0, 1, -1, "")]}

    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            await new_topics(handlers, "t", "u")
            illegal = {("t", 0): IllegalGenerationError.kafka_code}
            assert await commit(handlers, one, generation_id_or_member_epoch=1) == illegal
            epoch = await consumer_member(handlers)
            mine = {"member_id": "m", "generation_id_or_member_epoch": epoch}
            assert await commit(handlers, one, **mine) == {("t", 0): 0}
            assert await commit(handlers, one) == {("t", 0): UnknownMemberIdError.kafka_code}
            stale = mine | {"generation_id_or_member_epoch": epoch + 1}
            assert await commit(handlers, one, **stale) == {("t", 0): StaleMemberEpochError.kafka_code}
            assert await commit(handlers, one, 8, **stale) == {("t", 0): UnsupportedVersionError.kafka_code}
            assert (await fetch(handlers, {"t": [0]}, member=("m", epoch)))[0] == 0
            assert (await fetch(handlers, {"t": [0]}))[0] == 0, "administrators are no members"
            assert await fetch(handlers, {"t": [0]}, member=("m", epoch + 1)) == (StaleMemberEpochError.kafka_code, {})
            assert await fetch(handlers, {"t": [0]}, member=("n", epoch)) == (UnknownMemberIdError.kafka_code, {})

    run(scenario())


def test_offsets_of_topics_that_nobody_subscribes_to_are_deleted(tmp_path: Path) -> None:
    both: dict[str, Sequence[Offset]] = {"t": [(0, 1, -1, ""), (1, 1, -1, "")], "v": [(0, 1, -1, "")]}
    subscribed = GroupSubscribedToTopicError.kafka_code

    async def scenario() -> None:
        async with kafka_handlers(tmp_path / "simple") as handlers:
            await new_topics(handlers, "t", "v")
            assert await delete(handlers, {"t": [0]}) == (UnknownGroupError.kafka_code, {})
            await commit(handlers, both)
            codes = {("t", 0): 0, ("t", 9): UNKNOWN_TOPIC, ("missing", 0): UNKNOWN_TOPIC}
            assert await delete(handlers, {"t": [0, 9], "missing": [0]}) == (0, codes)
            assert set((await fetch(handlers, None))[1]) == {("t", 1), ("v", 0)}
        async with kafka_handlers(tmp_path / "consumer", **OPTIONS) as handlers:
            await new_topics(handlers, "t", "u", "v")
            await commit(handlers, both)
            await consumer_member(handlers)
            codes = {("t", 0): subscribed, ("u", 0): subscribed, ("v", 0): 0}
            assert await delete(handlers, {"t": [0], "u": [0], "v": [0]}) == (0, codes)
            assert set((await fetch(handlers, None))[1]) == {("t", 0), ("t", 1)}
        async with kafka_handlers(tmp_path / "classic", **OPTIONS) as handlers:
            await new_topics(handlers, "t", "v")
            await commit(handlers, both)
            await classic_member(handlers, encode_subscription(Subscription(("t",))))
            assert await delete(handlers, {"t": [0], "v": [0]}) == (0, {("t", 0): subscribed, ("v", 0): 0})
        async with kafka_handlers(tmp_path / "unreadable", **OPTIONS) as handlers:
            await new_topics(handlers, "v")
            await commit(handlers, {"v": [(0, 1, -1, "")]})
            await classic_member(handlers, b"\0")
            assert await delete(handlers, {"v": [0]}) == (0, {("v", 0): subscribed})
        async with kafka_handlers(tmp_path / "connect", **OPTIONS) as handlers:
            await new_topics(handlers, "v")
            await commit(handlers, {"v": [(0, 1, -1, "")]})
            await classic_member(handlers, b"", "connect")
            assert await delete(handlers, {"v": [0]}) == (NonEmptyGroupError.kafka_code, {})

    run(scenario())


def test_a_group_is_fetched_once_in_a_request(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await new_topics(handlers, "t")
            await commit(handlers, {"t": [(0, 1, -1, "")]})
            one = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
            answer = await handlers.ask(FETCH, 9, OffsetFetchRequest(groups=[one, one]))
            assert [group.error_code for group in answer.groups] == [0, InvalidRequestError.kafka_code]
            assert [len(group.topics) for group in answer.groups] == [1, 0]

    run(scenario())


def test_an_offset_of_an_open_transaction_is_not_stable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path) as handlers:
            await new_topics(handlers, "t")
            await commit(handlers, {"t": [(0, 1, -1, ""), (1, 2, -1, "")]})
            topic = handlers.broker.topics.served.topic(INTERNAL, "t")
            machine = handlers.store.groups._shards.get_machine("g")
            pending = OffsetCommit(9, -1, "", -1, str(topic.topic_id), 0)
            machine.offsets.replay(99, OffsetKey("g", "t", 1), pending, producer_id=5)
            unstable = UnstableOffsetCommitError.kafka_code
            for version in (7, 8, 9):
                for topics in ({"t": [0, 1]}, None):
                    _, found = await fetch(handlers, topics, version, require_stable=True)
                    assert found == {("t", 0): (1, -1, "", 0), ("t", 1): (-1, -1, "", unstable)}
                    _, found = await fetch(handlers, topics, version)
                    assert found[("t", 1)] == (2, -1, "", 0)

    run(scenario())
