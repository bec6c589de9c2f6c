"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in all their versions, on a real broker, as bytes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from consumer_offsets import groups_machine
from logstore.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidGroupError,
    InvalidRequestError,
    InvalidSessionTimeoutError,
    MemberIdRequiredError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from logstore.kafka_listener import classic_groups
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.support.eventually import loop_turns
from tests.support.kafka_handlers import Handlers, kafka_handlers
from tests.support.virtual_time import run

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE = 11, 12, 13, 14, 15
OPTIONS: dict[str, Any] = {"group_initial_rebalance_delay_ms": 0}


async def join(handlers: Handlers, version: int = 9, **values: Any) -> JoinGroupResponse:
    """Send one JoinGroup."""
    wanted: dict[str, Any] = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 20_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"mine")],
    }
    answer: JoinGroupResponse = await handlers.ask(JOIN, version, JoinGroupRequest(**wanted | values))
    return answer


async def joined(handlers: Handlers, version: int = 9, **values: Any) -> JoinGroupResponse:
    """Join as a client does: again, with the id from the first answer."""
    answer = await join(handlers, version, **values)
    if answer.error_code == MemberIdRequiredError.kafka_code:
        answer = await join(handlers, version, member_id=answer.member_id, **values)
    assert answer.error_code == 0
    return answer


async def sync(
    handlers: Handlers, member: JoinGroupResponse, assignments: dict[str, bytes], version: int = 5, **values: Any
) -> SyncGroupResponse:
    wanted: dict[str, Any] = {
        "group_id": "g",
        "generation_id": member.generation_id,
        "member_id": member.member_id,
        "protocol_type": member.protocol_type,
        "protocol_name": member.protocol_name,
        "assignments": [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in assignments.items()
        ],
    }
    answer: SyncGroupResponse = await handlers.ask(SYNC, version, SyncGroupRequest(**wanted | values))
    return answer


async def beat(handlers: Handlers, member_id: str, generation: int, version: int = 4, **values: Any) -> int:
    wanted = {"group_id": "g", "member_id": member_id, "generation_id": generation}
    answer = await handlers.ask(HEARTBEAT, version, HeartbeatRequest(**wanted | values))
    code: int = answer.error_code
    return code


@pytest.mark.parametrize("version", range(APIS[JOIN].version_min, APIS[JOIN].version_max + 1))
def test_a_member_joins_syncs_lives_and_leaves(tmp_path: Path, version: int) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            first = await join(handlers, version)
            if version >= 4:
                assert first.error_code == MemberIdRequiredError.kafka_code
                assert first.member_id.startswith("test-")
                assert (first.generation_id, first.leader, list(first.members)) == (-1, "", [])
                member = await join(handlers, version, member_id=first.member_id)
                assert member.member_id == first.member_id
            else:
                member = first
            assert member.error_code == 0
            assert (member.generation_id, member.protocol_name) == (1, "range")
            assert member.protocol_type == ("consumer" if version >= 7 else None)
            assert member.leader == member.member_id
            assert [(one.member_id, one.metadata) for one in member.members] == [(member.member_id, b"mine")]
            sync_version = min(version, APIS[SYNC].version_max)
            synced = await sync(handlers, member, {member.member_id: b"all"}, sync_version, protocol_type="consumer")
            assert (synced.error_code, synced.assignment) == (0, b"all")
            if sync_version >= 5:
                assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")
            beat_version = min(version, APIS[HEARTBEAT].version_max)
            assert await beat(handlers, member.member_id, 1, beat_version) == 0
            assert await beat(handlers, member.member_id, 0, beat_version) == IllegalGenerationError.kafka_code
            assert await beat(handlers, "nobody", 1, beat_version) == UnknownMemberIdError.kafka_code
            leave_version = min(version, APIS[LEAVE].version_max)
            leaving = LeaveGroupRequest(
                group_id="g",
                member_id=member.member_id,
                members=[LeaveGroupRequest.MemberIdentity(member_id=member.member_id, reason="done")],
            )
            left = await handlers.ask(LEAVE, leave_version, leaving)
            assert left.error_code == 0
            assert [one.error_code for one in left.members] == ([0] if leave_version >= 3 else [])
            again = await handlers.ask(LEAVE, leave_version, leaving)
            if leave_version >= 3:
                assert again.error_code == 0
                assert [one.error_code for one in again.members] == [UnknownMemberIdError.kafka_code]
            else:
                assert again.error_code == UnknownMemberIdError.kafka_code

    run(scenario())


def test_the_last_join_completes_the_rebalance_and_the_leaders_sync_answers_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            leader = await joined(handlers)
            await sync(handlers, leader, {leader.member_id: b"both"})
            joining = asyncio.create_task(joined(handlers))
            await loop_turns()
            assert await beat(handlers, leader.member_id, 1) == RebalanceInProgressError.kafka_code
            assert not joining.done()
            leader = await join(handlers, member_id=leader.member_id)
            follower = await joining
            assert leader.generation_id == follower.generation_id == 2
            assert leader.leader == follower.leader == leader.member_id
            assert [one.member_id for one in leader.members] == [leader.member_id, follower.member_id]
            assert list(follower.members) == []
            waiting = asyncio.create_task(sync(handlers, follower, {}))
            await loop_turns()
            assert not waiting.done()
            mine = await sync(handlers, leader, {leader.member_id: b"one", follower.member_id: b"two"})
            assert (mine.assignment, (await waiting).assignment) == (b"one", b"two")
            # A second request gets the assignment again.
            assert (await sync(handlers, follower, {})).assignment == b"two"

    run(scenario())


def test_a_static_member_comes_back_without_a_rebalance_and_fences_its_former_self(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            first = await join(handlers, group_instance_id="pod-1")
            assert first.error_code == 0, "a static member need not ask for its id"
            assert first.member_id.startswith("pod-1-")
            await sync(handlers, first, {first.member_id: b"all"}, group_instance_id="pod-1")
            second = await join(handlers, group_instance_id="pod-1")
            assert (second.error_code, second.generation_id) == (0, 1)
            assert second.member_id != first.member_id
            assert second.skip_assignment
            older = await join(handlers, 8, group_instance_id="pod-1")
            assert not older.skip_assignment, "version 8 has no such field"
            third = await join(handlers, group_instance_id="pod-1")
            assert (await sync(handlers, third, {}, group_instance_id="pod-1")).assignment == b"all"
            fenced = await beat(handlers, first.member_id, 1, group_instance_id="pod-1")
            assert fenced == FencedInstanceIdError.kafka_code
            removed = LeaveGroupRequest(
                group_id="g",
                members=[
                    LeaveGroupRequest.MemberIdentity(group_instance_id="pod-1"),
                    LeaveGroupRequest.MemberIdentity(group_instance_id="pod-2"),
                ],
            )
            left = await handlers.ask(LEAVE, 5, removed)
            assert [one.error_code for one in left.members] == [0, UnknownMemberIdError.kafka_code]
            assert [one.group_instance_id for one in left.members] == ["pod-1", "pod-2"]

    run(scenario())


def test_bad_requests_of_members_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            assert (await join(handlers, group_id="")).error_code == InvalidGroupError.kafka_code
            assert (await join(handlers, session_timeout_ms=1)).error_code == InvalidSessionTimeoutError.kafka_code
            assert (await join(handlers, member_id="nobody")).error_code == UnknownMemberIdError.kafka_code
            inconsistent = InconsistentGroupProtocolError.kafka_code
            assert (await join(handlers, protocol_type="")).error_code == inconsistent
            assert (await join(handlers, protocols=[])).error_code == inconsistent
            member = await joined(handlers)
            assert (await sync(handlers, member, {}, protocol_name=None)).error_code == inconsistent
            assert (await sync(handlers, member, {}, protocol_name="other")).error_code == inconsistent
            assert (await sync(handlers, member, {}, group_id="")).error_code == InvalidGroupError.kafka_code
            assert (await sync(handlers, member, {}, generation_id=9)).error_code == IllegalGenerationError.kafka_code
            assert await beat(handlers, member.member_id, 1, group_id="") == InvalidGroupError.kafka_code
            other = [JoinGroupRequest.JoinGroupRequestProtocol(name="other", metadata=b"")]
            assert (await join(handlers, protocols=other)).error_code == inconsistent
            left = await handlers.ask(LEAVE, 5, LeaveGroupRequest(group_id=""))
            assert left.error_code == InvalidGroupError.kafka_code

    run(scenario())


def test_a_group_of_any_name_has_members_and_their_clients_are_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            name = "my group/ä 🙂" + "x" * 300
            member = await joined(handlers, group_id=name)
            await sync(handlers, member, {member.member_id: b"all"}, group_id=name)
            described = await handlers.ask(DESCRIBE, 6, DescribeGroupsRequest(groups=[name]))
            (group,) = described.groups
            assert (group.error_code, group.group_id, group.group_state) == (0, name, "Stable")
            assert (group.protocol_type, group.protocol_data) == ("consumer", "range")
            (one,) = group.members
            assert (one.client_id, one.client_host) == ("test", "127.0.0.1")
            assert (one.member_metadata, one.member_assignment) == (b"mine", b"all")

    run(scenario())


def test_ids_that_nobody_joins_with_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_machine, "GROUP_MEMBERS_PENDING_MAX", 3)
    again = CoordinatorNotAvailableError.kafka_code

    async def scenario() -> None:
        async with kafka_handlers(tmp_path, offsets_topic_num_partitions=1, **OPTIONS) as handlers:
            given = [await join(handlers, group_id=f"g{number}") for number in range(4)]
            assert [one.error_code for one in given] == [*[MemberIdRequiredError.kafka_code] * 3, again]
            assert (await join(handlers, 3, group_id="old")).error_code == 0, "it is a member at once"
            assert (await join(handlers, group_id="g0", member_id=given[0].member_id)).error_code == 0
            assert (await join(handlers, group_id="g3")).error_code == MemberIdRequiredError.kafka_code
            assert (await join(handlers, group_id="g3")).error_code == again
            one = LeaveGroupRequest.MemberIdentity(member_id=given[1].member_id)
            await handlers.ask(LEAVE, 5, LeaveGroupRequest(group_id="g1", members=[one]))
            assert (await join(handlers, group_id="g3")).error_code == MemberIdRequiredError.kafka_code
            many = LeaveGroupRequest(group_id="g3", members=[one] * 10_001)
            assert (await handlers.ask(LEAVE, 5, many)).error_code == InvalidRequestError.kafka_code

    run(scenario())


def test_the_bytes_of_members_of_all_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_machine, "ALL_GROUPS_BYTES_MAX", 300_000)
    again = CoordinatorNotAvailableError.kafka_code
    large = [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(200_000))]

    async def scenario() -> None:
        async with kafka_handlers(tmp_path, offsets_topic_num_partitions=1, **OPTIONS) as handlers:
            members = [await join(handlers, 3, group_id=f"g{number}", protocols=large) for number in range(3)]
            assert [one.error_code for one in members] == [0, 0, again]
            # A client that asks for an id, or has an id but no member, is not a member yet.
            assert (await join(handlers, group_id="g2", protocols=large)).error_code == again
            names = {"group_id": "k", "subscribed_topic_names": ["t"], "topic_partitions": []}
            beat = ConsumerGroupHeartbeatRequest(member_id="m", rebalance_timeout_ms=1_000, **names)
            assert (await handlers.ask(68, 1, beat)).error_code == again
            # Members continue, and make room when they leave.
            one = {"group_id": "g0", "member_id": members[0].member_id}
            assert (await join(handlers, 3, protocols=large, **one)).error_code == 0
            leaving = LeaveGroupRequest(group_id="g0", member_id=members[0].member_id)
            assert (await handlers.ask(LEAVE, 1, leaving)).error_code == 0
            assert (await handlers.ask(68, 1, beat)).error_code == 0
            assert (await join(handlers, 3, group_id="g2", protocols=large)).error_code == 0

    run(scenario())


def test_members_of_full_groups_continue_and_bring_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = CoordinatorNotAvailableError.kafka_code

    def protocols(length: int) -> list[JoinGroupRequest.JoinGroupRequestProtocol]:
        return [JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(length))]

    def heartbeat(member_id: str, epoch: int, *topics: str, **values: Any) -> ConsumerGroupHeartbeatRequest:
        wanted: dict[str, Any] = {"group_id": "k", "rebalance_timeout_ms": 1_000, "topic_partitions": []}
        wanted |= {"member_id": member_id, "member_epoch": epoch, "subscribed_topic_names": list(topics)}
        return ConsumerGroupHeartbeatRequest(**wanted | values)

    async def scenario() -> None:
        async with kafka_handlers(tmp_path, offsets_topic_num_partitions=1, **OPTIONS) as handlers:
            static = await joined(handlers, group_id="s", group_instance_id="i", protocols=protocols(100))
            assert (await sync(handlers, static, {static.member_id: bytes(100)}, group_id="s")).error_code == 0
            other = await joined(handlers)
            beats = [heartbeat("m", 0, "t"), heartbeat("n", 0, "t", instance_id="j")]
            assert [(await handlers.ask(68, 1, beat)).error_code for beat in beats] == [0, 0]
            monkeypatch.setattr(groups_machine, "ALL_GROUPS_BYTES_MAX", 1_000)

            # No member may add more.
            assert (await sync(handlers, other, {other.member_id: b"all"})).error_code == again
            larger = {"member_id": other.member_id, "protocols": protocols(5)}
            assert (await join(handlers, **larger)).error_code == again
            assert (await handlers.ask(68, 1, heartbeat("m", 1, "t", "u"))).error_code == again
            assert (await handlers.ask(68, 1, heartbeat("p", 0, "t"))).error_code == again
            # A wrong request gets its own error.
            assert (await handlers.ask(68, 1, heartbeat("p", 5, "t"))).error_code == UnknownMemberIdError.kafka_code
            mixed = await join(handlers, 3, group_id="k")
            assert mixed.error_code == InconsistentGroupProtocolError.kafka_code

            # An existing member continues, also with another id or from another host.
            assert (await handlers.ask(68, 1, heartbeat("m", 1, "t"))).error_code == 0
            assert (await handlers.ask(68, 1, heartbeat("n", -2, instance_id="j"))).error_code == 0
            assert (await handlers.ask(68, 1, heartbeat("o", 0, "t", instance_id="j"))).error_code == 0
            back = {"group_id": "s", "group_instance_id": "i"}
            static = await join(handlers, protocols=protocols(100), **back)
            assert (static.error_code, static.generation_id) == (0, 1)
            # A generation may use the room of its predecessor's assignments.
            member = await join(handlers, member_id=static.member_id, protocols=protocols(99), **back)
            assert (member.error_code, member.generation_id) == (0, 2)
            assert (await sync(handlers, member, {member.member_id: bytes(101)}, **back)).error_code == again
            assert (await sync(handlers, member, {member.member_id: bytes(100)}, **back)).error_code == 0

    run(scenario())


def test_a_member_too_large_for_the_groups_record_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            large = [JoinGroupRequest.JoinGroupRequestProtocol(name=f"{n}" * 30_000, metadata=b"") for n in range(9)]
            assert (await join(handlers, protocols=large)).error_code == 10
            assert (await joined(handlers)).generation_id == 1

    run(scenario())


def test_a_group_outlives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            member = await joined(handlers)
            await sync(handlers, member, {member.member_id: b"all"})
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            assert await beat(handlers, member.member_id, 1) == 0
            assert (await sync(handlers, member, {})).assignment == b"all"

    run(scenario())


def test_a_coordinator_that_loads_or_stops_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_groups, "GROUP_TIMEOUT_MS", 0)

    async def scenario() -> None:
        async with kafka_handlers(tmp_path, **OPTIONS) as handlers:
            await handlers.store.groups._shards.make_topic()
            shard = handlers.store.groups._shards.find_shard("g")
            assert shard is not None
            await shard.until_settled(10_000)
            may_load, load = asyncio.Event(), shard._load_machine

            async def held() -> None:
                await may_load.wait()
                await load()

            monkeypatch.setattr(shard, "_load_machine", held)
            shard.load()
            assert await beat(handlers, "m", 1) == 0, "a load is no reason to join again"
            assert (await join(handlers)).error_code == CoordinatorLoadInProgressError.kafka_code
            may_load.set()
            await shard.until_settled(10_000)
            assert await beat(handlers, "m", 1) == UnknownMemberIdError.kafka_code
            await shard.close()
            assert await beat(handlers, "m", 1) == CoordinatorNotAvailableError.kafka_code
            shard.unload()
            assert await beat(handlers, "m", 1) == NotCoordinatorError.kafka_code

    run(scenario())
