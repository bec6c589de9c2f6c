"""Groups of both protocols: conversions of a live group, and classic members of a consumer group (KIP-848)."""

from typing import Any

import pytest

from consumer_offsets.effects import AppendRecord
from consumer_offsets.groups.events import LeaveGroup
from consumer_offsets.groups.group_config import GroupConfig
from logstore import errors
from logstore.protocol.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from logstore.protocol.messages.members import LeavingMember, Protocol
from tests.support.group_driver import REBALANCE_MS, SESSION_MS, GroupDriver, assigned

Places = list[tuple[str, int]]
CONSUMER_SESSION_MS = GroupConfig().group_consumer_session_timeout_ms


def all_of(topic: str, *numbers: int) -> Places:
    return [(topic, number) for number in numbers]


def protocols(*owned: tuple[str, int], topics: tuple[str, ...] = ("t",), names: tuple[str, ...] = ("range",)) -> Any:
    metadata = encode_subscription(Subscription(topics, None, owned, 1 if owned else -1))
    return tuple(Protocol(name, metadata) for name in names)


def group_of(policy: str = "bidirectional", *, delay_ms: int = 0, max_size: int = 1_000, **topics: int) -> GroupDriver:
    config = GroupConfig(
        group_initial_rebalance_delay_ms=delay_ms,
        group_consumer_migration_policy=policy,
        group_max_size=max_size,
    )
    return GroupDriver(config=config, **(topics or {"t": 4}))


def classic_pair(group: GroupDriver, *instance_ids: str | None) -> list[str]:
    """Join members of a stable classic group: the first gets the first half of t, the second the other half."""
    ids = instance_ids or (None, None)
    joins = [group.park_join(group_instance_id=each, protocols=protocols()) for each in ids]
    group.settle()
    first, second = [group.answer(request).member_id for request in joins]
    waits = group.park_sync(second, 1)
    half = group.topics["t"].partitions // 2
    shares = {first: all_of("t", *range(half)), second: all_of("t", *range(half, 2 * half))}
    group.sync(first, 1, assignments={m: encode_assignment(Assignment(tuple(at))) for m, at in shares.items()})
    assert group.answer(waits).error is None
    return [first, second]


def synced(group: GroupDriver, member: str, generation: int) -> Places | type[errors.LogStoreError]:
    response = group.sync(member, generation)
    return type(response.error) if response.error else list(decode_assignment(response.assignment).partitions)


def kind(group: GroupDriver) -> str:
    return group.group.describe().kind


def rejoins(group: GroupDriver, member: str, generation: int) -> bool:
    return type(group.heartbeat(member, generation)) is errors.RebalanceInProgressError


# ---- upgrade ---------------------------------------------------------------------------------------------------------


def test_a_consumer_member_joins_a_classic_group_and_takes_its_share_when_the_others_have_given_it_up():
    group = group_of(t=6)
    a, b = classic_pair(group)
    before = len(group.log)
    joined = group.beat("c", 0)
    assert (joined.error, joined.member_epoch, assigned(joined)) == (None, 2, []), "all is in other hands"
    assert (kind(group), len(group.log) - before) == ("consumer", 1), "the conversion is one record"
    for member, has, keeps in ((a, (0, 1, 2), (0, 1)), (b, (3, 4, 5), (3, 4))):
        assert rejoins(group, member, 1)
        joined = group.join(member, protocols=protocols(*all_of("t", *has)))
        assert (joined.leader, joined.members, joined.protocol) == ("", (), "range")
        assert joined.generation == 1, "it is to give something up first"
        assert synced(group, member, 1) == all_of("t", *keeps)
        assert rejoins(group, member, 1)
        assert assigned(group.beat("c", 2)) is None, "it is not given up yet"
        assert group.join(member, protocols=protocols(*all_of("t", *keeps))).generation == 2
        assert synced(group, member, 2) == all_of("t", *keeps)
        assert assigned(group.beat("c", 2)) == (all_of("t", 2) if member == a else all_of("t", 2, 5))
    assert [group.heartbeat(member, 2) for member in (a, b)] == [None, None]
    assert group.state == "Stable"


def test_an_eager_member_gives_all_up_by_joining_and_continues_at_once():
    group = group_of(t=6)
    a, b = classic_pair(group)
    group.beat("c", 0)
    assert group.join(a, protocols=protocols()).generation == 2
    assert group.join(b, protocols=protocols()).generation == 2
    assert synced(group, a, 2) == all_of("t", 0, 1)
    assert synced(group, b, 2) == all_of("t", 3, 4)
    assert assigned(group.beat("c", 2)) == all_of("t", 2, 5)


def test_waiting_requests_must_join_again_when_the_group_is_converted():
    group = group_of(delay_ms=3_000)
    waits = group.park_join(protocols=protocols())
    assert group.beat("c", 0).error is None
    assert type(group.answer(waits).error) is errors.RebalanceInProgressError
    assert [member.is_classic for member in group.group.describe().members] == [True, False]
    group = group_of()
    a, b = classic_pair(group)
    group.park_join(protocols=protocols())
    for member in (a, b):
        group.park_join(member, protocols=protocols())
    group.park_sync(b, 2)
    group.beat("c", 0)
    assert not group.parked


def test_a_conversion_in_a_rebalance_leaves_members_what_they_say_they_have():
    """Convert before the new generation has an assignment: a cooperative member continues to read meanwhile."""
    group = group_of()
    a, b = classic_pair(group)
    group.park_join(protocols=protocols())
    group.park_join(a, protocols=protocols(*all_of("t", 0, 1)))
    group.park_join(b, protocols=protocols(*all_of("t", 2, 3)))
    assert group.state == "CompletingRebalance"
    assert assigned(group.beat("c", 0)) == []
    held = {each.member_id: list(each.assignment) for each in group.group.describe().members}
    assert (held[a], held[b]) == (all_of("t", 0, 1), all_of("t", 2, 3))


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_policy_forbids_an_upgrade(policy: str):
    group = group_of(policy)
    a, b = classic_pair(group)
    for _ in range(2):
        refused = group.beat("c", 0).error
        assert type(refused) is errors.UnknownGroupError
        assert "group.consumer.migration.policy" in refused.message
    assert [group.heartbeat(member, 1) for member in (a, b)] == [None, None], "the members notice nothing"


@pytest.mark.parametrize("given", [{"protocol_type": "connect"}, {"protocols": (Protocol("range", b"no"),)}])
def test_members_that_are_no_consumers_stay_a_classic_group(given: dict[str, Any]):
    group = group_of()
    waits = group.park_join(**given)
    group.settle()
    member = group.answer(waits).member_id
    group.sync(member, 1)
    assert type(group.beat("c", 0).error) is errors.UnknownGroupError
    assert (kind(group), group.heartbeat(member, 1)) == ("classic", None)


@pytest.mark.parametrize(("assignor", "converted"), [("stream", "classic"), ("cooperative-sticky", "consumer")])
def test_user_data_of_an_assignor_that_is_not_kafkas_is_not_lost(assignor: str, converted: str):
    group = group_of()
    waits = group.park_join(protocols=protocols(names=(assignor,)))
    group.settle()
    member = group.answer(waits).member_id
    group.sync(member, 1, assignments={member: encode_assignment(Assignment((("t", 0),), b"state"))})
    group.beat("c", 0)
    assert kind(group) == converted


def test_a_full_group_is_not_converted():
    group = group_of(max_size=2)
    a, _ = classic_pair(group)
    assert type(group.beat("c", 0).error) is errors.GroupMaxSizeReachedError
    assert (kind(group), group.heartbeat(a, 1)) == ("classic", None)


# ---- classic members of a consumer group -----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["bidirectional", "upgrade", "downgrade", "disabled"])
def test_a_classic_member_joins_a_consumer_group_whatever_the_policy(policy: str):
    group = group_of(policy)
    group.beat("c", 0)
    asked = group.join(protocols=protocols())
    assert type(asked.error) is errors.MemberIdRequiredError
    joined = group.join(asked.member_id, protocols=protocols())
    assert (joined.error, joined.generation, joined.protocol_type, joined.leader) == (None, 2, "consumer", "")
    assert synced(group, joined.member_id, 2) == []
    assert assigned(group.beat("c", 1, owned=all_of("t", 0, 1, 2, 3))) == all_of("t", 0, 1)
    group.beat("c", 1, owned=all_of("t", 0, 1))
    assert rejoins(group, joined.member_id, 2), "what it waited for is free"
    group.join(joined.member_id, protocols=protocols())
    assert synced(group, joined.member_id, 2) == all_of("t", 2, 3)
    described = {member.member_id: member.is_classic for member in group.group.describe().members}
    assert described == {"c": False, joined.member_id: True}


def test_the_request_of_a_classic_member_is_checked():
    group = group_of()
    group.beat("c", 0)
    group.park_join(protocols=protocols(names=("range", "roundrobin")))
    inconsistent = [
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocols": (Protocol("range", b"no"),)},
        {"protocols": protocols(names=("sticky",))},
    ]
    for given in inconsistent:
        response = group.join(**{"protocols": protocols(), **given})
        assert type(response.error) is errors.InconsistentGroupProtocolError, given
    assert type(group.join(protocols=protocols(), session_timeout_ms=1).error) is errors.InvalidSessionTimeoutError
    assert type(group.join("gone", protocols=protocols(("t", 0))).error) is errors.UnknownMemberIdError


def test_requests_of_classic_members_are_judged_by_their_epochs():
    group = group_of()
    group.beat("c", 0)
    group.park_join(requires_known_member_id=False, protocols=protocols())
    (member,) = [each.member_id for each in group.group.describe().members if each.is_classic]
    assert type(group.heartbeat(member, 1)) is errors.IllegalGenerationError
    assert synced(group, member, 3) is errors.IllegalGenerationError
    assert type(group.commit(member, 1)) is errors.IllegalGenerationError
    assert type(group.sync(member, 2, protocol="sticky").error) is errors.InconsistentGroupProtocolError
    assert type(group.heartbeat("c", 2)) is errors.UnknownMemberIdError
    assert synced(group, "c", 2) is errors.UnknownMemberIdError
    assert type(group.beat(member, 2).error) is errors.UnknownMemberIdError
    assert group.commit(member, 2) is None


def test_a_classic_member_lives_by_its_own_session_timeout():
    group = group_of()
    group.beat("c", 0)
    group.park_join(requires_known_member_id=False, protocols=protocols())
    group.advance(SESSION_MS - 1)
    assert len(group.group.describe().members) == 2
    group.advance(1)
    assert [member.member_id for member in group.group.describe().members] == ["c"]


def test_a_classic_member_that_does_not_join_or_sync_in_time_is_fenced():
    group = group_of()
    group.beat("c", 0)
    member = group.join(requires_known_member_id=False, protocols=protocols()).member_id
    for _ in range(REBALANCE_MS // 5_000):
        group.advance(5_000)
        group.heartbeat(member, 2)
        group.beat("c", 1)
    assert [each.member_id for each in group.group.describe().members] == ["c"], "it has never synced"
    member = group.join(requires_known_member_id=False, protocols=protocols()).member_id
    generation = group.group.generation
    assert isinstance(synced(group, member, generation), list)
    group.change_topics(t=5)
    for _ in range(REBALANCE_MS // 5_000 + 1):
        assert isinstance(group.heartbeat(member, generation), errors.LogStoreError)
        group.advance(5_000)
        group.beat("c", 1, owned=all_of("t", 0))
    assert member not in {each.member_id for each in group.group.describe().members}, "it has not joined again"


def test_classic_members_follow_topics():
    group = group_of()
    group.beat("c", 0)
    member = group.join(requires_known_member_id=False, protocols=protocols(topics=("t", "u"))).member_id
    assert synced(group, member, 2) == []
    group.change_topics(t=4, u=1)
    assert rejoins(group, member, 2)
    assert group.join(member, protocols=protocols(topics=("t", "u"))).generation == 3
    assert ("u", 0) in synced(group, member, 3)


# ---- downgrade -------------------------------------------------------------------------------------------------------


def mixed(policy: str = "bidirectional") -> tuple[GroupDriver, str]:
    """Return a stable group of a classic member and the consumer member c, in epoch 2."""
    group = group_of(policy)
    group.beat("c", 0)
    member = group.join(requires_known_member_id=False, protocols=protocols()).member_id
    synced(group, member, 2)
    group.beat("c", 1, owned=all_of("t", 0, 1, 2, 3))
    group.beat("c", 1, owned=all_of("t", 0, 1))
    group.join(member, protocols=protocols())
    assert synced(group, member, 2) == all_of("t", 2, 3)
    assert group.state == "Stable"
    return group, member


@pytest.mark.parametrize("how", ["leaves", "session", "removed"])
def test_a_group_that_only_classic_members_are_left_in_is_a_classic_group(how: str):
    group, member = mixed()
    before = len(group.log)
    if how == "leaves":
        group.beat("c", -1)
    elif how == "removed":
        group.ask(LeaveGroup(request=group.token(), members=(LeavingMember("c"),)))
    else:
        for _ in range(CONSUMER_SESSION_MS // 5_000):
            group.heartbeat(member, 2)
            group.advance(5_000)
    assert (kind(group), group.state, group.group.generation) == ("classic", "PreparingRebalance", 2)
    assert len(group.log) - before == 1, "the conversion is one record"
    assert rejoins(group, member, 2), "by the generation that it knows"
    waits = group.park_join(member, protocols=protocols())
    group.settle()
    joined = group.answer(waits)
    assert (joined.generation, joined.leader) == (3, member)
    assert type(group.beat("c", 2).error) is errors.UnknownMemberIdError, "it has slept, and may come back"
    assert type(group.beat("c", -1).error) is errors.UnknownGroupError


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_the_policy_forbids_a_downgrade(policy: str):
    group, member = mixed(policy)
    group.beat("c", -1)
    assert kind(group) == "consumer"
    assert rejoins(group, member, 2)
    assert group.join(member, protocols=protocols(*all_of("t", 2, 3))).generation == 3
    assert synced(group, member, 3) == all_of("t", 0, 1, 2, 3)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_restart_after_a_downgrade_continues_with_the_rebalance(is_restarted: bool):
    group, member = mixed()
    group.beat("c", -1)
    if is_restarted:
        group.restart()
    assert group.state == "PreparingRebalance"
    assert rejoins(group, member, 2)
    waits = group.park_join(member, protocols=protocols())
    group.settle()
    assert group.answer(waits).generation == 3


def test_a_restart_after_an_upgrade_continues_with_the_members_of_both_protocols():
    group = group_of()
    a, b = classic_pair(group)
    group.beat("c", 0)
    group.restart()
    assert kind(group) == "consumer"
    assert rejoins(group, a, 1)
    assert group.join(a, protocols=protocols()).generation == 2
    group.restart()
    assert synced(group, a, 2) == all_of("t", 0, 1)
    group.advance(SESSION_MS)
    assert b not in {member.member_id for member in group.group.describe().members}


# ---- static members --------------------------------------------------------------------------------------------------


def test_static_members_change_their_protocol_one_by_one_and_no_partition_moves():
    group = group_of()
    a, b = classic_pair(group, "i", "j")
    first = group.beat("a", 0, group_instance_id="i")
    assert (first.member_epoch, assigned(first)) == (1, all_of("t", 0, 1)), "it finds what its instance had"
    assert type(group.heartbeat(a, 1, "i")) is errors.FencedInstanceIdError
    assert group.heartbeat(b, 1, "j") is None, "no rebalance"
    assert assigned(group.beat("b", 0, group_instance_id="j")) == all_of("t", 2, 3)
    back = group.join(group_instance_id="i", protocols=protocols())
    assert (back.error, back.generation, kind(group)) == (None, 1, "consumer")
    assert synced(group, back.member_id, 1) == all_of("t", 0, 1)
    before = len(group.log)
    last = group.join(group_instance_id="j", protocols=protocols())
    assert (kind(group), group.state, last.generation) == ("classic", "Stable", 1)
    assert len(group.log) - before == 1
    assert synced(group, last.member_id, 1) == all_of("t", 2, 3)
    assert [group.heartbeat(each.member_id, 1) for each in (back, last)] == [None, None]
    assert type(group.beat("b", 1, group_instance_id="j").error) is errors.FencedInstanceIdError


def test_a_static_member_that_is_there_keeps_its_name_from_another_of_the_consumer_protocol():
    group = group_of()
    group.beat("a", 0, group_instance_id="i")
    assert type(group.beat("b", 0, group_instance_id="i").error) is errors.UnreleasedInstanceIdError


def test_the_last_static_member_of_the_consumer_protocol_is_replaced_in_a_rebalance():
    """Begin the classic group with a rebalance: the others do not have their target assignment yet."""
    group = group_of()
    group.beat("a", 0, group_instance_id="i")
    other = group.join(requires_known_member_id=False, protocols=protocols()).member_id
    group.join(group_instance_id="i", protocols=protocols())
    assert (kind(group), group.state) == ("classic", "PreparingRebalance")
    assert rejoins(group, other, group.group.generation)


def test_a_record_of_an_earlier_release_has_no_classic_members():
    group = group_of()
    group.beat("c", 0)
    ((_, value),) = group.log
    assert value is not None
    group.log[-1] = (group.log[-1][0], value.replace(b',"classic":null', b""))
    group.restart()
    assert [member.is_classic for member in group.group.describe().members] == [False]
    assert [effect for effect in group.effects if isinstance(effect, AppendRecord)] == []
