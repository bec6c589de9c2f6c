"""Classic groups follow the rules of JoinGroup, SyncGroup, Heartbeat, LeaveGroup and OffsetCommit, in Kafka's words."""

import pytest

from consumer_offsets.effects import AppendRecord, Respond, TimerFired
from consumer_offsets.groups import classic_joins
from consumer_offsets.groups.events import LeaveGroup, Unload
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups.group_record import Tombstone, decode_group_record
from logstore import errors
from logstore.limits import GROUP_BYTES_MAX, GROUP_MEMBER_BYTES_MAX, KIB
from logstore.protocol.messages.members import LeavingMember, Protocol
from tests.support.group_driver import RANGE, REBALANCE_MS, SESSION_MS, GroupDriver

OTHER = (Protocol("range", b"other"),)


def is_error(error, cls) -> bool:
    return type(error) is cls


# ---- joining ---------------------------------------------------------------------------------------------------------


def test_a_new_member_is_given_an_id_and_joins_again_with_it():
    """Give an id first (KIP-394), so that a client that repeats its request does not fill the group with members."""
    group = GroupDriver()
    first = group.join()
    assert is_error(first.error, errors.MemberIdRequiredError)
    assert first.member_id == "m1"
    assert group.state == "Empty"
    assert group.join("m1") is None
    assert group.state == "PreparingRebalance"


def test_an_id_that_is_not_used_within_the_session_timeout_is_void():
    group = GroupDriver()
    group.join()
    group.advance(SESSION_MS)
    assert is_error(group.join("m1").error, errors.UnknownMemberIdError)
    assert group.group.is_vacant


def test_a_client_before_kip_394_joins_at_once():
    group = GroupDriver()
    assert group.join(requires_known_member_id=False) is None
    assert group.state == "PreparingRebalance"


def test_the_first_rebalance_waits_for_more_members_up_to_the_rebalance_timeout():
    group = GroupDriver(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
    requests = [group.park_join(rebalance_timeout_ms=10_000)]
    # A member in each window extends the delay: by 3 + 3 + 3 seconds, and then by the last of the 10.
    for _ in range(3):
        group.advance(2_900)
        requests.append(group.park_join(rebalance_timeout_ms=10_000))
        group.advance(100)
        assert group.state == "PreparingRebalance"
    group.advance(999)
    assert group.state == "PreparingRebalance"
    group.advance(1)
    assert [group.answer(request).generation for request in requests] == [1] * 4


def test_the_first_rebalance_ends_after_the_delay_when_nobody_else_comes():
    group = GroupDriver(config=GroupConfig(group_initial_rebalance_delay_ms=3_000))
    request = group.park_join()
    group.advance(2_999)
    assert group.answer(request) is None
    group.advance(1)
    assert group.answer(request).generation == 1


@pytest.mark.parametrize(("ms", "refused"), [(5_999, True), (6_000, False), (1_800_000, False), (1_800_001, True)])
def test_a_session_timeout_is_within_its_bounds(ms: int, refused: bool):
    error = GroupDriver().join(session_timeout_ms=ms).error
    assert is_error(error, errors.InvalidSessionTimeoutError if refused else errors.MemberIdRequiredError)


def test_only_the_leader_gets_the_members_and_their_metadata():
    group = GroupDriver()
    requests = [group.park_join(protocols=(Protocol("range", bytes([number])),)) for number in range(2)]
    group.settle()
    leader, follower = (group.answer(request) for request in requests)
    assert (leader.leader, follower.leader) == (leader.member_id, leader.member_id)
    assert [(each.member_id, each.metadata) for each in leader.members] == [
        (leader.member_id, b"\0"),
        (follower.member_id, b"\1"),
    ]
    assert follower.members == ()
    assert (leader.protocol_type, leader.protocol) == ("consumer", "range")


def protocols(*names: str) -> tuple[Protocol, ...]:
    return tuple(Protocol(name, b"") for name in names)


def test_the_protocol_that_most_members_prefer_among_the_common_ones_is_chosen():
    group = GroupDriver()
    requests = [
        group.park_join(protocols=protocols(*names)) for names in [("x", "a", "b"), ("b", "a"), ("y", "b", "a")]
    ]
    group.settle()
    assert {group.answer(request).protocol for request in requests} == {"b"}


@pytest.mark.parametrize(
    "given",
    [{"protocols": protocols("b")}, {"protocol_type": "connect"}, {"protocols": ()}, {"protocol_type": ""}],
)
def test_a_member_without_a_common_protocol_is_refused(given):
    group = GroupDriver()
    group.park_join(protocols=protocols("a"))
    assert is_error(group.join(**given).error, errors.InconsistentGroupProtocolError)


def test_a_members_share_of_the_groups_record_is_bounded():
    group = GroupDriver()
    half = GROUP_MEMBER_BYTES_MAX // 2
    large = group.join(protocols=(Protocol("range", bytes(half)), Protocol("sticky", bytes(half + 1))))
    assert is_error(large.error, errors.RecordTooLargeError)
    assert group.group.is_vacant


def test_the_groups_record_is_bounded_over_all_members():
    group = GroupDriver()
    large = (Protocol("range", bytes(GROUP_MEMBER_BYTES_MAX - KIB - 20)),)
    room = GROUP_BYTES_MAX // GROUP_MEMBER_BYTES_MAX
    for number in range(room - 1):
        group.park_join(group_instance_id=f"i{number}", protocols=large)
    group.park_join(group_instance_id="small")
    assert is_error(group.join(group_instance_id="large", protocols=large).error, errors.GroupMaxSizeReachedError)
    # A member may come again with the same metadata, and without it there is room.
    group.park_join(group_instance_id="i0", protocols=large)
    group.park_join(group_instance_id="i1")
    group.park_join(group_instance_id="large", protocols=large)
    group.group.validate()


def test_assignments_take_no_room_from_the_members_that_join_the_next_generation():
    group = GroupDriver()
    metadata = (Protocol("range", bytes(40 * KIB)),)
    requests = [group.park_join(protocols=metadata) for _ in range(60)]
    group.settle()
    members = [group.answer(request).member_id for request in requests]
    assignments = {member: bytes(40 * KIB) for member in members}
    assert group.sync(members[0], 1, assignments=assignments).error is None
    assert group.join(members[1], protocols=metadata).error is None, "its answer was lost"
    assert group.leave(members.pop()) is None
    requests = [group.park_join(member, protocols=metadata) for member in members]
    assert {(answer.error, answer.generation) for answer in map(group.answer, requests)} == {(None, 2)}
    assert group.sync(members[0], 2, assignments=assignments).error is None


def test_a_leaders_assignment_is_bounded():
    group = GroupDriver()
    (member,) = group.stable(None)
    assert group.join(member, protocols=OTHER).generation == 2
    room = GROUP_BYTES_MAX // GROUP_MEMBER_BYTES_MAX
    large = {f"{number}": bytes(GROUP_MEMBER_BYTES_MAX) for number in range(room + 1)}
    assert is_error(group.sync(member, 2, assignments=large).error, errors.GroupMaxSizeReachedError)
    del large["0"]
    assert group.sync(member, 2, assignments=large | {member: b""}).error is None


def test_a_member_that_brings_no_more_than_before_is_not_refused(monkeypatch):
    group = GroupDriver()
    members = group.stable("i0", "i1", None)
    # This is the record of an earlier release, which had no limit.
    monkeypatch.setattr(classic_joins, "GROUP_BYTES_MAX", KIB)
    assert is_error(group.join(group_instance_id="i2").error, errors.GroupMaxSizeReachedError)
    again = group.join(group_instance_id="i0", new_member_id="another", client_host="elsewhere")
    assert (again.error, again.member_id) == (None, "another")
    assert is_error(group.join(members[2], protocols=OTHER).error, errors.GroupMaxSizeReachedError)
    assert group.join(members[2]).error is None
    assert group.join("another", group_instance_id="i0") is None, "the leader makes another generation"


def test_a_member_of_long_names_is_measured_by_them():
    group = GroupDriver()
    for number in range(GROUP_BYTES_MAX // GROUP_MEMBER_BYTES_MAX):
        group.park_join(group_instance_id=f"i{number}", client_id="x" * (GROUP_MEMBER_BYTES_MAX - 100))
    long = group.join(group_instance_id="i", client_id="x" * (GROUP_MEMBER_BYTES_MAX - 100))
    assert is_error(long.error, errors.GroupMaxSizeReachedError)


def test_the_first_member_brings_a_protocol_type_and_a_protocol():
    for given in ({"protocols": ()}, {"protocol_type": ""}):
        assert is_error(GroupDriver().join(**given).error, errors.InconsistentGroupProtocolError)


def test_a_full_group_takes_nobody_else():
    group = GroupDriver(config=GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    leader, _ = group.stable(None, None)
    assert is_error(group.join().error, errors.GroupMaxSizeReachedError)
    assert is_error(group.join(group_instance_id="i").error, errors.GroupMaxSizeReachedError)
    assert group.leave(leader) is None
    assert is_error(group.join().error, errors.MemberIdRequiredError)


def test_the_last_members_to_join_a_rebalance_of_a_group_that_was_made_smaller_are_put_out():
    group = GroupDriver()
    members = group.stable(None, None)
    group.config = GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=1)
    group.restart()
    assert group.join(members[0]) is None
    refused = group.join(members[1], protocols=OTHER)
    assert is_error(refused.error, errors.GroupMaxSizeReachedError)
    assert group.group.describe().generation == 2
    assert [each.member_id for each in group.group.describe().members] == [members[0]]


def test_ids_that_are_given_out_are_bounded():
    group = GroupDriver(config=GroupConfig(group_max_size=2))
    assert [type(group.join().error) for _ in range(3)] == [
        errors.MemberIdRequiredError,
        errors.MemberIdRequiredError,
        errors.GroupMaxSizeReachedError,
    ]


# ---- rebalances ------------------------------------------------------------------------------------------------------


def test_a_new_member_waits_until_the_others_have_joined_again():
    group = GroupDriver()
    first, second = group.stable(None, None)
    third = group.park_join()
    assert is_error(group.heartbeat(first, 1), errors.RebalanceInProgressError)
    again = [group.park_join(member) for member in (first, second)]
    assert [group.answer(request).generation for request in (third, *again)] == [2, 2, 2]


def keep_alive(group: GroupDriver, ms: int, *members: tuple[str, str | None]) -> None:
    """Let time pass, with heartbeats of these members of generation 1."""
    for _ in range(ms // (SESSION_MS - 1_000)):
        group.advance(SESSION_MS - 1_000)
        for member, instance_id in members:
            group.heartbeat(member, 1, instance_id)
    group.advance(ms % (SESSION_MS - 1_000))


def test_members_that_do_not_join_within_the_rebalance_timeout_are_removed_and_another_leads():
    group = GroupDriver()
    leader, follower = group.stable(None, None)
    request = group.park_join(follower, protocols=OTHER)
    keep_alive(group, REBALANCE_MS - 1, (leader, None))
    assert group.answer(request) is None
    group.advance(1)
    answer = group.answer(request)
    assert (answer.generation, answer.leader) == (2, follower)
    assert is_error(group.heartbeat(leader, 1), errors.UnknownMemberIdError)


def test_the_generation_begins_without_an_offline_static_member_once_its_session_has_ended():
    group = GroupDriver()
    static, dynamic = group.stable("i", None)
    request = group.park_join(dynamic, protocols=OTHER, session_timeout_ms=60_000)
    group.advance(SESSION_MS)
    answer = group.answer(request)
    assert (answer.generation, answer.leader) == (2, dynamic)
    assert is_error(group.heartbeat(static, 1, "i"), errors.UnknownMemberIdError)


def test_a_static_member_that_does_not_join_stays_until_its_session_ends():
    """Keep the static member in the next generation, although it did not join (KIP-345)."""
    group = GroupDriver()
    static, dynamic = group.stable("i", None)
    request = group.park_join(dynamic, protocols=OTHER)
    keep_alive(group, REBALANCE_MS, (static, "i"))
    answer = group.answer(request)
    assert (answer.generation, answer.leader) == (2, dynamic)
    assert [each.member_id for each in answer.members] == [static, dynamic]


def test_the_leader_of_a_stable_group_asks_for_another_assignment_by_joining():
    group = GroupDriver()
    leader, follower = group.stable(None, None)
    assert group.join(leader) is None
    assert group.state == "PreparingRebalance"
    assert group.join(follower).generation == 2


def test_a_follower_that_joins_without_a_change_gets_the_generation():
    group = GroupDriver()
    leader, follower = group.stable(None, None)
    answer = group.join(follower)
    assert (answer.generation, answer.leader, answer.members, answer.error) == (1, leader, (), None)
    assert group.state == "Stable"
    assert group.sync(follower, 1).assignment == follower.encode()


def test_a_follower_with_other_metadata_starts_a_rebalance():
    group = GroupDriver()
    _, follower = group.stable(None, None)
    assert group.join(follower, protocols=OTHER) is None
    assert group.state == "PreparingRebalance"


def test_a_join_whose_answer_was_lost_gets_it_again_while_the_leader_assigns():
    group = GroupDriver()
    request = group.park_join()
    group.settle()
    lost = group.answer(request)
    assert group.state == "CompletingRebalance"
    assert group.join(lost.member_id) == lost
    assert group.join(lost.member_id, protocols=OTHER).generation == 2


def test_a_client_that_asks_again_gets_the_answer_on_its_new_request():
    group = GroupDriver()
    leader, _ = group.stable(None, None)
    first, second = group.park_join(leader), group.park_join(leader)
    assert is_error(group.answer(first).error, errors.RebalanceInProgressError)
    assert group.answer(second) is None
    assert group.parked == {second}


def test_a_new_member_that_has_gone_away_is_found_out():
    """Remove a waiting member, which cannot send heartbeats and whose session timeout does not count."""
    group = GroupDriver()
    request = group.park_join(rebalance_timeout_ms=600_000)
    group.settle()
    member = group.answer(request).member_id
    group.sync(member, 1)
    request = group.park_join()
    keep_alive(group, 299_999, (member, None))
    assert request in group.parked
    group.advance(1)
    assert is_error(group.answer(request).error, errors.UnknownMemberIdError)


# ---- SyncGroup -------------------------------------------------------------------------------------------------------


def joined_pair(group: GroupDriver) -> tuple[str, str]:
    requests = [group.park_join(), group.park_join()]
    group.settle()
    leader, follower = (group.answer(request).member_id for request in requests)
    return leader, follower


def test_followers_wait_for_the_leaders_assignment():
    group = GroupDriver()
    leader, follower = joined_pair(group)
    parked = group.park_sync(follower, 1)
    assert group.answer(parked) is None
    answer = group.sync(leader, 1, assignments={leader: b"L", follower: b"F"})
    assert (answer.assignment, group.answer(parked).assignment) == (b"L", b"F")
    assert (answer.protocol_type, answer.protocol) == ("consumer", "range")
    # The answer was lost, and a retry gets the same one.
    assert group.sync(follower, 1).assignment == b"F"


def test_a_member_that_the_leader_forgot_is_assigned_nothing():
    group = GroupDriver()
    leader, follower = joined_pair(group)
    group.sync(leader, 1, assignments={leader: b"L"})
    assert group.sync(follower, 1).assignment == b""


def test_the_errors_of_sync():
    group = GroupDriver()
    assert is_error(group.sync("nobody", 1).error, errors.UnknownMemberIdError)
    leader, follower = joined_pair(group)
    assert is_error(group.sync("nobody", 1).error, errors.UnknownMemberIdError)
    assert is_error(group.sync(leader, 0).error, errors.IllegalGenerationError)
    assert is_error(group.sync(leader, 1, protocol="b").error, errors.InconsistentGroupProtocolError)
    assert is_error(group.sync(leader, 1, protocol_type="b").error, errors.InconsistentGroupProtocolError)
    group.join(follower, protocols=OTHER)
    assert is_error(group.sync(leader, 1).error, errors.RebalanceInProgressError)


def test_a_rebalance_answers_the_syncs_that_wait():
    group = GroupDriver()
    leader, follower = joined_pair(group)
    parked = group.park_sync(follower, 1)
    group.park_join()
    assert is_error(group.answer(parked).error, errors.RebalanceInProgressError)
    assert is_error(group.heartbeat(leader, 1), errors.RebalanceInProgressError)


def test_members_that_never_sync_are_removed():
    group = GroupDriver()
    leader, follower = joined_pair(group)
    parked = group.park_sync(follower, 1)
    for _ in range(REBALANCE_MS // 9_000):
        group.advance(9_000)
        assert group.heartbeat(leader, 1) is None
    group.advance(9_000)
    assert is_error(group.answer(parked).error, errors.RebalanceInProgressError)
    assert is_error(group.heartbeat(leader, 1), errors.UnknownMemberIdError)
    assert [each.member_id for each in group.group.describe().members] == [follower]


# ---- Heartbeat, session, LeaveGroup ----------------------------------------------------------------------------------


def test_the_errors_of_heartbeat():
    group = GroupDriver()
    assert is_error(group.heartbeat("nobody", 1), errors.UnknownMemberIdError)
    (member,) = group.stable(None)
    assert group.heartbeat(member, 1) is None
    assert is_error(group.heartbeat(member, 2), errors.IllegalGenerationError)
    assert is_error(group.heartbeat(member, 1, "i"), errors.UnknownMemberIdError)


def test_heartbeats_are_taken_while_the_leader_assigns():
    group = GroupDriver()
    leader, _ = joined_pair(group)
    assert group.heartbeat(leader, 1) is None


def test_a_member_without_heartbeats_is_removed_at_the_end_of_its_session():
    group = GroupDriver()
    first, second = group.stable(None, None)
    group.advance(SESSION_MS - 1)
    assert group.heartbeat(second, 1) is None
    group.advance(1)
    assert is_error(group.heartbeat(first, 1), errors.UnknownMemberIdError)
    assert is_error(group.heartbeat(second, 1), errors.RebalanceInProgressError)
    assert group.join(second).leader == second


def test_a_member_that_waits_for_an_answer_keeps_its_session():
    group = GroupDriver()
    first, second = group.stable(None, None)
    request = group.park_join(first, session_timeout_ms=6_000)
    for _ in range(5):
        group.advance(SESSION_MS - 1)
        group.heartbeat(second, 1)
    group.park_join(second)
    assert group.answer(request).generation == 2


def test_a_group_whose_members_have_gone_is_empty_with_the_next_generation():
    group = GroupDriver()
    group.stable(None, None)
    group.advance(2 * SESSION_MS)
    described = group.group.describe()
    assert (described.state, described.generation, described.members) == ("Empty", 2, ())
    assert described.state_since_ms == group.now_ms - SESSION_MS
    assert group.timers == {}


def test_leaving_starts_a_rebalance_at_once():
    group = GroupDriver()
    first, second = group.stable(None, None)
    assert group.leave(first) is None
    assert is_error(group.heartbeat(first, 1), errors.UnknownMemberIdError)
    assert is_error(group.heartbeat(second, 1), errors.RebalanceInProgressError)


def test_the_requests_of_a_member_that_leaves_are_answered():
    group = GroupDriver()
    leader, follower = joined_pair(group)
    parked = group.park_sync(follower, 1)
    group.leave(follower)
    assert is_error(group.answer(parked).error, errors.UnknownMemberIdError)
    parked = group.park_join(leader)
    assert group.answer(parked).generation == 2
    parked = group.park_join()
    group.leave(group.group.describe().members[1].member_id)
    assert is_error(group.answer(parked).error, errors.UnknownMemberIdError)


def test_several_members_leave_and_each_has_an_answer():
    group = GroupDriver()
    (static,) = group.stable("i")
    pending = group.join().member_id
    members = (
        LeavingMember(pending),
        LeavingMember("nobody"),
        LeavingMember("", "j"),
        LeavingMember("other", "i"),
        LeavingMember("", "i"),
    )
    answer = group.ask(LeaveGroup(request=group.token(), members=members))
    assert [type(each.error) for each in answer.members] == [
        type(None),
        errors.UnknownMemberIdError,
        errors.UnknownMemberIdError,
        errors.FencedInstanceIdError,
        type(None),
    ]
    assert group.state == "Empty"
    assert is_error(group.heartbeat(static, 1), errors.UnknownMemberIdError)


def test_an_id_that_was_given_out_and_left_disturbs_no_stable_group():
    group = GroupDriver()
    group.stable(None)
    assert group.leave(group.join().member_id) is None
    assert group.state == "Stable"


def test_a_rebalance_waits_for_an_id_that_was_given_out():
    group = GroupDriver()
    (member,) = group.stable(None)
    pending = group.join().member_id
    request = group.park_join(member)
    assert group.answer(request) is None
    group.leave(pending)
    assert group.answer(request).generation == 2


# ---- static members --------------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_with_a_new_id_and_nobody_rebalances():
    group = GroupDriver()
    leader, static = group.stable(None, "i")
    answer = group.join(group_instance_id="i")
    assert (answer.error, answer.generation, answer.leader, answer.skip_assignment) == (None, 1, leader, False)
    assert group.state == "Stable"
    assert group.sync(answer.member_id, 1, group_instance_id="i").assignment == static.encode()
    assert is_error(group.heartbeat(static, 1, "i"), errors.FencedInstanceIdError)
    assert is_error(group.sync(static, 1, group_instance_id="i").error, errors.FencedInstanceIdError)
    assert is_error(group.commit(static, 1, "i"), errors.FencedInstanceIdError)
    assert is_error(group.join(static, group_instance_id="i").error, errors.FencedInstanceIdError)
    assert is_error(group.heartbeat(static, 1), errors.UnknownMemberIdError)


def test_a_static_member_without_its_id_is_unknown_and_not_fenced():
    """Answer librdkafka, which forgets its id when its session ends and sends heartbeats until it may join again."""
    group = GroupDriver()
    (static,) = group.stable("i")
    assert is_error(group.heartbeat("", 1, "i"), errors.UnknownMemberIdError)
    assert is_error(group.commit("", 1, "i"), errors.UnknownMemberIdError)
    assert is_error(group.sync("", 1, group_instance_id="i").error, errors.UnknownMemberIdError)
    assert group.heartbeat(static, 1, "i") is None
    assert group.join(group_instance_id="i").error is None


def test_a_static_leader_that_comes_back_skips_the_assignment():
    """Skip the assignment (KIP-814); an older client gets the old leader's id, so it makes no assignment either."""
    group = GroupDriver()
    leader, _ = group.stable("i", None)
    answer = group.join(group_instance_id="i")
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert len(answer.members) == 2
    assert group.sync(answer.member_id, 1).assignment == leader.encode()
    older = group.join(group_instance_id="i", supports_skipping_assignment=False)
    assert (older.leader, older.skip_assignment, older.members) == (answer.member_id, False, ())


def test_the_requests_of_a_static_member_that_is_replaced_are_fenced():
    group = GroupDriver()
    group.stable(None, None)
    parked = group.park_join(group_instance_id="i")
    again = group.park_join(group_instance_id="i")
    assert is_error(group.answer(parked).error, errors.FencedInstanceIdError)
    assert group.answer(again) is None


def test_a_static_member_that_comes_back_while_the_leader_assigns_starts_a_rebalance():
    group = GroupDriver()
    requests = [group.park_join(), group.park_join(group_instance_id="i")]
    group.settle()
    leader, static = (group.answer(request).member_id for request in requests)
    parked = group.park_sync(static, 1)
    again = group.park_join(group_instance_id="i")
    assert is_error(group.answer(parked).error, errors.FencedInstanceIdError)
    assert group.state == "PreparingRebalance"
    group.park_join(leader)
    assert group.answer(again).generation == 2


def test_a_static_member_whose_protocols_change_the_choice_starts_a_rebalance():
    group = GroupDriver()
    requests = [group.park_join(protocols=protocols("a", "b"), group_instance_id=each) for each in ("i", "j")]
    group.settle()
    leader = group.answer(requests[0]).member_id
    group.sync(leader, 1)
    assert group.join(protocols=protocols("b"), group_instance_id="j") is None
    assert group.state == "PreparingRebalance"
    assert group.join(leader, protocols=protocols("a", "b"), group_instance_id="i").protocol == "b"


def test_a_static_member_leaves_only_by_its_session_or_by_name():
    group = GroupDriver()
    (static,) = group.stable("i")
    answer = group.join(group_instance_id="i")
    assert is_error(group.leave(static, "i"), errors.FencedInstanceIdError)
    assert group.leave("", "i") is None
    assert is_error(group.heartbeat(answer.member_id, 1, "i"), errors.UnknownMemberIdError)


# ---- commits ---------------------------------------------------------------------------------------------------------


def test_a_commit_without_membership_is_taken_by_an_empty_group_only():
    group = GroupDriver()
    assert group.commit() is None
    assert is_error(group.commit("m", 1), errors.IllegalGenerationError)
    (member,) = group.stable(None)
    assert is_error(group.commit(), errors.UnknownMemberIdError)
    group.leave(member)
    assert group.commit() is None
    assert is_error(group.commit(member, 1), errors.UnknownMemberIdError)


def test_a_commit_is_of_a_member_and_its_generation():
    group = GroupDriver()
    (member,) = group.stable(None)
    assert group.commit(member, 1) is None
    assert is_error(group.commit(member, 0), errors.IllegalGenerationError)
    assert is_error(group.commit("nobody", 1), errors.UnknownMemberIdError)
    assert is_error(group.commit("", -1, "i"), errors.UnknownMemberIdError)


def test_a_commit_in_a_rebalance():
    group = GroupDriver()
    first, second = group.stable(None, None)
    request = group.park_join(second, protocols=OTHER)
    assert group.commit(first, 1) is None, "members commit before they join again"
    group.park_join(first)
    assert group.answer(request).generation == 2
    assert is_error(group.commit(first, 2), errors.RebalanceInProgressError)
    assert is_error(group.commit(first, 1), errors.IllegalGenerationError)


def test_a_commit_keeps_the_session():
    group = GroupDriver()
    (member,) = group.stable(None)
    for _ in range(3):
        group.advance(SESSION_MS - 1)
        assert group.commit(member, 1) is None


# ---- records, restarts, deletion -------------------------------------------------------------------------------------


def test_a_generation_is_recorded_before_it_is_answered():
    group = GroupDriver()
    request = group.park_join()
    group.settle()
    assert isinstance(group.effects[0], AppendRecord)
    assert any(isinstance(effect, Respond) and effect.request == request for effect in group.effects[1:])
    member = group.answer(request).member_id
    group.sync(member, 1, assignments={member: b"a"})
    record = decode_group_record(*group.log[-1])
    assert isinstance(group.effects[0], AppendRecord)
    assert (record.value.generation, record.value.state, record.value.members[0].assignment) == (1, "Stable", b"a")


def test_a_heartbeat_is_not_recorded():
    group = GroupDriver()
    (member,) = group.stable(None)
    before = len(group.log)
    group.heartbeat(member, 1)
    group.commit(member, 1)
    assert len(group.log) == before


def test_a_stable_group_continues_after_a_restart():
    group = GroupDriver()
    members = group.stable(None, "i")
    group.advance(SESSION_MS - 1)
    group.restart()
    group.advance(SESSION_MS - 1)
    assert [group.heartbeat(member, 1) for member in members] == [None, None]
    assert [group.sync(member, 1).assignment for member in members] == [member.encode() for member in members]
    assert group.join(group_instance_id="i").error is None
    group.advance(SESSION_MS)
    assert group.state == "Empty"


def test_a_group_whose_leader_assigns_continues_after_a_restart():
    group = GroupDriver()
    leader, follower = joined_pair(group)
    group.park_sync(follower, 1)
    group.restart()
    assert group.state == "CompletingRebalance"
    parked = group.park_sync(follower, 1)
    assert group.sync(leader, 1, assignments={follower: b"F"}).error is None
    assert group.answer(parked).assignment == b"F"


def test_a_restart_during_a_rebalance_costs_no_generation_twice():
    group = GroupDriver()
    first, second = group.stable(None, None)
    group.park_join(second, protocols=OTHER)
    group.restart()
    assert group.state == "Stable"
    request = group.park_join(second, protocols=OTHER)
    group.park_join(first)
    assert group.answer(request).generation == 2


def test_a_group_is_deleted_when_it_is_empty():
    group = GroupDriver()
    (member,) = group.stable(None)
    assert is_error(group.delete(), errors.NonEmptyGroupError)
    group.leave(member)
    assert not group.group.is_vacant
    assert group.delete() is None
    assert decode_group_record(*group.log[-1]) == Tombstone("g")
    assert group.state == "Dead"
    assert is_error(group.join().error, errors.CoordinatorNotAvailableError)
    assert is_error(group.heartbeat(member, 1), errors.CoordinatorNotAvailableError)
    group.restart()
    assert group.group.is_vacant
    assert group.group.describe().generation == -1


def test_a_group_that_never_had_a_member_leaves_no_record():
    group = GroupDriver()
    assert group.group.is_vacant
    group.join()
    assert not group.group.is_vacant
    assert group.delete() is None
    assert (group.log, group.timers) == ([], {})


def test_a_group_that_moves_answers_whoever_waits():
    group = GroupDriver()
    leader, follower = joined_pair(group)
    sync = group.park_sync(follower, 1)
    group.apply(Unload())
    assert is_error(group.answer(sync).error, errors.NotCoordinatorError)
    assert (group.timers, group.parked) == ({}, set())
    assert is_error(group.heartbeat(leader, 1), errors.CoordinatorNotAvailableError)


def test_a_timer_that_fires_early_or_late_does_no_harm():
    group = GroupDriver()
    (member,) = group.stable(None)
    key = f"heartbeat/{member}"
    at_ms = group.timers.pop(key)
    group.apply(TimerFired(key))
    assert group.timers[key] == at_ms, "it is armed again"
    group.leave(member)
    group.apply(TimerFired(key))
    group.apply(TimerFired("no such timer"))
    assert group.state == "Empty"


def test_the_description_of_a_group():
    group = GroupDriver()
    request = group.park_join(client_id="c", client_host="/127.0.0.1", group_instance_id="i")
    group.settle()
    member = group.answer(request).member_id
    group.sync(member, 1, assignments={member: b"a"})
    described = group.group.describe()
    assert (described.group, described.kind, described.state, described.generation) == ("g", "classic", "Stable", 1)
    assert (described.protocol_type, described.protocol) == ("consumer", "range")
    (one,) = described.members
    assert (one.member_id, one.group_instance_id, one.client_id, one.client_host) == (member, "i", "c", "/127.0.0.1")
    assert (one.metadata, one.assignment_data) == (RANGE[0].metadata, b"a")
