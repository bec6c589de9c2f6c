"""DescribeGroups, ListGroups, DeleteGroups and FindCoordinator in all their versions, on a real broker, as bytes."""

from pathlib import Path
from typing import Any

import pytest

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.groups.events import ConsumerGroupHeartbeat, JoinGroup
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.errors import (
    CoordinatorLoadInProgressError,
    GroupAuthorizationError,
    InvalidRequestError,
    NonEmptyGroupError,
    UnknownGroupError,
)
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListGroupsRequest,
)
from logstore.protocol.members.identity import MemberIdentity
from logstore.protocol.messages.members import Protocol
from tests.support.authorizer_views import Denied
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.virtual_time import run

FIND, DESCRIBE, LIST, DELETE = 10, 15, 16, 42
OPTIONS: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0}
NOT_ASKED = -(2**31)


async def make_groups(handlers: Handlers) -> None:
    """Create a classic group that rebalances, a consumer group, and two groups that only have committed offsets."""
    await handlers.broker.topics.changes.create(INTERNAL, "t", partitions=2)
    groups = handlers.store.groups
    await groups.members.join(
        INTERNAL,
        "classic",
        JoinGroup(
            request=0,
            member_id="m",
            new_member_id="m",
            protocol_type="consumer",
            protocols=(Protocol("range", b"mine"),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            client_id="c",
        ),
    )
    await groups.members.consumer_heartbeat(
        INTERNAL,
        "consumer",
        ConsumerGroupHeartbeat(
            0, "m", 0, rebalance_timeout_ms=1000, subscribed_topics=frozenset({"t"}), owned=frozenset()
        ),
    )
    for group in ("simple", ""):
        assert await groups.commit_each(INTERNAL, group, [OffsetToCommit("t", 0, 9)], MemberIdentity()) == {
            TopicPartition("t", 0): None
        }


@pytest.mark.parametrize("version", range(APIS[DESCRIBE].version_min, APIS[DESCRIBE].version_max + 1))
def test_groups_are_described(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        authorizer = Authorizer(Denied({"secret"}))
        async with kafka_handlers(tmp_path, authorizer=authorizer, **OPTIONS) as handlers:
            await make_groups(handlers)
            asked = DescribeGroupsRequest(
                groups=["classic", "consumer", "simple", "", "unknown", "secret"], include_authorized_operations=True
            )
            answer = await handlers.ask(DESCRIBE, version, asked)
            found = {group.group_id: group for group in answer.groups}
            assert list(found) == list(asked.groups)
            classic = found["classic"]
            assert (classic.error_code, classic.group_state) == (0, "CompletingRebalance")
            assert (classic.protocol_type, classic.protocol_data) == ("consumer", "")
            (member,) = classic.members
            assert (member.member_id, member.client_id, member.member_metadata) == ("m", "c", b"")
            operations = 1 << 3 | 1 << 6 | 1 << 8
            told = classic.authorized_operations
            assert told & operations == operations if version >= 3 else told == NOT_ASKED
            for group in ("simple", ""):
                assert (found[group].error_code, found[group].group_state) == (0, "Empty")
            for group in ("consumer", "unknown"):
                assert found[group].group_state == "Dead"
                assert found[group].error_code == (UnknownGroupError.kafka_code if version >= 6 else 0)
                assert (found[group].error_message is not None) == (version >= 6)
            assert found["secret"].error_code == GroupAuthorizationError.kafka_code
            twice = await handlers.ask(DESCRIBE, version, DescribeGroupsRequest(groups=["classic", "classic"]))
            assert [group.error_code for group in twice.groups] == [0, InvalidRequestError.kafka_code]

    run(scenario())


@pytest.mark.parametrize("version", range(APIS[LIST].version_min, APIS[LIST].version_max + 1))
def test_groups_are_listed_by_state_and_type(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            assert list((await handlers.ask(LIST, version, ListGroupsRequest())).groups) == []
            await make_groups(handlers)

            async def listed(**filters: Any) -> dict[str, tuple[str, str, str]]:
                answer = await handlers.ask(LIST, version, ListGroupsRequest(**filters))
                assert answer.error_code == 0
                return {one.group_id: (one.protocol_type, one.group_state, one.group_type) for one in answer.groups}

            whole = {
                "": ("", "Empty", "classic"),
                "classic": ("consumer", "CompletingRebalance", "classic"),
                "consumer": ("consumer", "Stable", "consumer"),
                "simple": ("", "Empty", "classic"),
            }
            told = {
                group: (kind, state if version >= 4 else "", sort if version >= 5 else "")
                for group, (kind, state, sort) in whole.items()
            }
            assert await listed() == told
            if version >= 4:
                assert set(await listed(states_filter=["empty", "STABLE"])) == {"", "simple", "consumer"}
                assert await listed(states_filter=["unheard of"]) == {}
            if version >= 5:
                assert set(await listed(types_filter=["Consumer"])) == {"consumer"}
                assert set(await listed(types_filter=["classic"], states_filter=["Empty"])) == {"", "simple"}
                assert await listed(types_filter=["share"]) == {}

    run(scenario())


def test_a_list_that_is_not_whole_yet_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            await make_groups(handlers)
            shard = handlers.store.groups._shards.find_shard("classic")
            assert shard is not None
            shard.unload()
            shard.load()
            answer = await handlers.ask(LIST, 5, ListGroupsRequest())
            assert answer.error_code == CoordinatorLoadInProgressError.kafka_code
            await shard.until_settled(10_000)
            assert len((await handlers.ask(LIST, 5, ListGroupsRequest())).groups) == 4
            shard.unload()
            # Another broker reports these groups.
            answer = await handlers.ask(LIST, 5, ListGroupsRequest())
            assert answer.error_code == 0
            assert len(answer.groups) < 4

    run(scenario())


@pytest.mark.parametrize("version", range(APIS[DELETE].version_min, APIS[DELETE].version_max + 1))
def test_groups_without_members_are_deleted(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied({"secret"})), **OPTIONS) as handlers:
            await make_groups(handlers)
            asked = DeleteGroupsRequest(groups_names=["simple", "", "classic", "unknown", "secret", "simple"])
            answer = await handlers.ask(DELETE, version, asked)
            assert {one.group_id: one.error_code for one in answer.results} == {
                "simple": 0,
                "": 0,
                "classic": NonEmptyGroupError.kafka_code,
                "unknown": UnknownGroupError.kafka_code,
                "secret": GroupAuthorizationError.kafka_code,
            }
            assert handlers.store.groups.groups(INTERNAL) == ["classic", "consumer"]

    run(scenario())


@pytest.mark.parametrize("version", range(APIS[FIND].version_min, APIS[FIND].version_max + 1))
def test_the_coordinator_is_found_before_there_are_groups(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, authorizer=Authorizer(Denied({"secret"}))) as handlers:
            keys = ["any name/ä", "secret", ""]
            found = []
            if version >= 4:
                answer = await handlers.ask(FIND, version, FindCoordinatorRequest(coordinator_keys=keys))
                assert [one.key for one in answer.coordinators] == keys
                found = list(answer.coordinators)
            else:
                found = [await handlers.ask(FIND, version, FindCoordinatorRequest(key=key)) for key in keys]
            ours = (0, handlers.store.node_id, "127.0.0.1", 9092)
            assert [(one.error_code, one.node_id, one.host, one.port) for one in found] == [
                ours,
                (GroupAuthorizationError.kafka_code, -1, "", -1),
                ours,
            ]
            if version >= 1:
                assert "secret" in (found[1].error_message or "")
                for key_type in (2, 7):
                    asked = FindCoordinatorRequest(key="x", coordinator_keys=["x"], key_type=key_type)
                    answer = await handlers.ask(FIND, version, asked)
                    one = answer.coordinators[0] if version >= 4 else answer
                    assert one.error_code == InvalidRequestError.kafka_code
                    assert one.error_message

    run(scenario())
