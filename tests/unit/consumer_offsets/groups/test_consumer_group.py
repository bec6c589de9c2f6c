"""Groups of the consumer protocol (KIP-848): epochs, the target assignment, and how members reach it."""

import pytest

from consumer_offsets.effects import AppendRecord
from consumer_offsets.groups import classic_joins
from consumer_offsets.groups.events import TopicDescription, TopicsChanged
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups.group_record import decode_group_record
from logstore import errors
from logstore.limits import GROUP_BYTES_MAX, KIB
from tests.support.group_driver import REBALANCE_MS, GroupDriver, assigned, topic_id

SESSION_MS = GroupConfig().group_consumer_session_timeout_ms


def is_error(error, cls) -> bool:
    return type(error) is cls


def all_of(topic: str, *numbers: int) -> list[tuple[str, int]]:
    return [(topic, number) for number in numbers]


# ---- joining ---------------------------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once():
    group = GroupDriver(t=3)
    answer = group.beat("a", 0)
    assert (answer.error, answer.member_id, answer.member_epoch, answer.heartbeat_interval_ms) == (None, "a", 1, 5_000)
    assert assigned(answer) == all_of("t", 0, 1, 2)
    assert group.state == "Stable"


def test_an_unchanged_assignment_is_left_out():
    group = GroupDriver(t=3)
    group.beat("a", 0)
    before = len(group.log)
    answer = group.beat("a", 1)
    assert (answer.error, answer.member_epoch, answer.assignment) == (None, 1, None)
    assert len(group.log) == before
    full = group.beat("a", 1, rebalance_timeout_ms=1_000, subscribed_topics={"t"}, owned=all_of("t", 0, 1, 2))
    assert assigned(full) == all_of("t", 0, 1, 2)


def test_a_member_revokes_before_another_is_assigned():
    group = GroupDriver(t=4)
    group.beat("a", 0)
    second = group.beat("b", 0)
    assert (second.member_epoch, assigned(second)) == (2, [])
    assert group.state == "Reconciling"
    first = group.beat("a", 1, owned=all_of("t", 0, 1, 2, 3))
    assert (first.member_epoch, assigned(first)) == (1, all_of("t", 0, 1)), "the epoch stays until it has revoked"
    assert assigned(group.beat("b", 2)) is None
    assert assigned(group.beat("a", 1, owned=all_of("t", 0, 1, 2))) is None, "it still has one to revoke"
    assert assigned(group.beat("b", 2)) is None
    assert group.beat("a", 1, owned=all_of("t", 0, 1)).member_epoch == 2
    assert assigned(group.beat("b", 2)) == all_of("t", 2, 3)
    assert group.state == "Stable"


def test_a_member_need_not_revoke_partitions_of_others():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    group.beat("b", 0)
    answer = group.beat("a", 1, owned=all_of("t", 0))
    assert (answer.member_epoch, assigned(answer)) == (2, all_of("t", 0))
    assert assigned(group.beat("b", 2)) == all_of("t", 1)


@pytest.mark.parametrize(
    "given",
    [
        {"owned": [("t", 0)]},
        {"owned": None},
        {"rebalance_timeout_ms": -1},
        {"subscribed_topics": None},
        {"group_instance_id": ""},
        {"rack_id": ""},
    ],
)
def test_a_first_heartbeat_that_lacks_something_is_refused(given):
    group = GroupDriver(t=1)
    assert is_error(group.beat("a", 0, **given).error, errors.InvalidRequestError)
    assert group.log == []


@pytest.mark.parametrize(("member_id", "epoch"), [("", 0), ("a", -3), ("a", -2)])
def test_epochs_and_ids_that_mean_nothing_are_refused(member_id: str, epoch: int):
    assert is_error(GroupDriver(t=1).beat(member_id, epoch).error, errors.InvalidRequestError)


def test_an_assignor_that_is_not_there_is_refused():
    answer = GroupDriver(t=1).beat("a", 0, server_assignor="other")
    assert is_error(answer.error, errors.UnsupportedAssignorError)
    assert "even, round-robin" in str(answer.error)


def test_the_assignor_that_most_members_ask_for_is_taken():
    group = GroupDriver(t=1)
    group.beat("a", 0)
    assert group.group.describe().protocol == "even"
    group.beat("b", 0, server_assignor="round-robin")
    assert group.group.describe().protocol == "round-robin"


def test_a_full_group_takes_nobody_else():
    group = GroupDriver(config=GroupConfig(group_max_size=1), t=1)
    group.beat("a", 0, group_instance_id="i")
    assert is_error(group.beat("b", 0).error, errors.GroupMaxSizeReachedError)
    group.beat("a", -2, group_instance_id="i")
    assert group.beat("b", 0, group_instance_id="i").error is None, "a static member's place is taken by itself"


def test_the_groups_record_is_bounded_over_all_members():
    group = GroupDriver(t=1)
    large = frozenset(f"{number:0100d}" for number in range(GROUP_BYTES_MAX // 4 // 108))
    for name in "abc":
        assert group.beat(name, 0, subscribed_topics=large).error is None
    assert group.beat("d", 0).error is None
    assert is_error(group.beat("e", 0, subscribed_topics=large).error, errors.GroupMaxSizeReachedError)
    assert is_error(group.beat("d", 0, subscribed_topics=large).error, errors.GroupMaxSizeReachedError)
    assert group.beat("a", 0, subscribed_topics=large).error is None, "it brings what it has brought before"
    assert group.beat("b", 0, subscribed_topics={"t"}).error is None
    assert group.beat("e", 0, subscribed_topics=large).error is None
    group.group.validate()


def test_the_topics_that_regexes_match_count():
    group = GroupDriver(t=1)
    names = [f"{number:0100d}" for number in range(GROUP_BYTES_MAX // 4 // 108)]
    for name in "abc":
        assert group.beat(name, 0, subscribed_regex=f".*|{name}", regex_topics=names).error is None
    assert group.beat("d", 0, subscribed_regex=".*|a", regex_topics=names).error is None, "it is matched once"
    refused = group.beat("e", 0, subscribed_regex=".*|e", regex_topics=names)
    assert is_error(refused.error, errors.GroupMaxSizeReachedError)
    group.beat("c", -1)
    assert group.beat("e", 0, subscribed_regex=".*|e", regex_topics=names).error is None
    group.group.validate()


def test_a_field_that_a_heartbeat_leaves_out_keeps_its_value():
    group = GroupDriver(t=1)
    large = frozenset(f"{number:0100d}" for number in range(GROUP_BYTES_MAX // 4 // 108))
    for name in "abc":
        assert group.beat(name, 0, subscribed_topics=large).error is None
    assert group.beat("d", 0, subscribed_regex="x" * (GROUP_BYTES_MAX // 8)).error is None
    grown = {"subscribed_regex": "x" * (GROUP_BYTES_MAX // 4), "regex_topics": ()}
    assert is_error(group.beat("c", 3, owned=(), **grown).error, errors.GroupMaxSizeReachedError)
    refused = group.beat("d", 4, owned=(), subscribed_topics=large)
    assert is_error(refused.error, errors.GroupMaxSizeReachedError)
    assert group.beat("d", 4, owned=(), subscribed_regex="", subscribed_topics=sorted(large)[100:]).error is None


def test_a_member_of_long_names_is_measured_by_them():
    group = GroupDriver(t=1)
    for name in "abc":
        assert group.beat(name, 0, rack_id="x" * (GROUP_BYTES_MAX // 4)).error is None
    refused = group.beat("d", 0, rack_id="x" * (GROUP_BYTES_MAX // 4))
    assert is_error(refused.error, errors.GroupMaxSizeReachedError)


def test_a_member_that_brings_no_more_than_before_is_not_refused(monkeypatch):
    group = GroupDriver(t=1)
    assert group.beat("a", 0, group_instance_id="i").error is None
    assert group.beat("b", 0).error is None
    # This is the record of an earlier release, which had no limit.
    monkeypatch.setattr(classic_joins, "GROUP_BYTES_MAX", KIB)
    assert is_error(group.beat("c", 0).error, errors.GroupMaxSizeReachedError)
    assert is_error(group.beat("b", 0, subscribed_topics={"t", "u"}).error, errors.GroupMaxSizeReachedError)
    assert group.beat("b", 0).error is None
    assert group.beat("a", -2, group_instance_id="i").error is None
    assert group.beat("another", 0, group_instance_id="i", client_host="elsewhere").error is None


# ---- epochs ----------------------------------------------------------------------------------------------------------


def test_a_member_with_another_epoch_is_fenced_and_joins_again():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    group.beat("b", 0)
    for epoch in (1, 3):
        assert is_error(group.beat("b", epoch, owned=[("t", 0)]).error, errors.FencedMemberEpochError)
    again = group.beat("b", 0)
    assert (again.error, again.member_epoch, assigned(again)) == (None, 2, [])
    assert is_error(group.beat("c", 1).error, errors.UnknownMemberIdError)


def test_a_member_whose_answer_was_lost_continues_with_its_previous_epoch():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    group.beat("b", 0)
    group.beat("a", 1, owned=all_of("t", 0, 1))
    assert group.beat("a", 1, owned=all_of("t", 0)).member_epoch == 2
    assert is_error(group.beat("a", 1).error, errors.FencedMemberEpochError), "it does not say what it holds"
    assert is_error(group.beat("a", 1, owned=all_of("t", 0, 1)).error, errors.FencedMemberEpochError)
    again = group.beat("a", 1, owned=all_of("t", 0), rebalance_timeout_ms=1_000, subscribed_topics={"t"})
    assert (again.member_epoch, assigned(again)) == (2, all_of("t", 0))


def test_the_lost_answer_to_a_join_is_given_again():
    group = GroupDriver(t=2)
    assert group.beat("a", 0) == group.beat("a", 0)
    assert group.group.describe().generation == 1


def test_a_member_that_joins_again_has_given_everything_up():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    group.beat("b", 0)
    group.beat("a", 1, owned=all_of("t", 0, 1))
    assert assigned(group.beat("b", 2)) is None
    assert assigned(group.beat("a", 0)) == all_of("t", 0)
    assert assigned(group.beat("b", 2)) == all_of("t", 1)


def test_the_epoch_rises_with_members_and_subscriptions():
    group = GroupDriver(t=1, u=1)
    epochs = []
    for member, epoch, given in [
        ("a", 0, {}),
        ("b", 0, {}),
        ("b", 2, {"subscribed_topics": {"u"}}),
        ("b", 3, {"subscribed_topics": {"u"}}),
        ("b", -1, {}),
    ]:
        assert group.beat(member, epoch, **given).error is None
        epochs.append(group.group.describe().generation)
    assert epochs == [1, 2, 3, 3, 4]


def test_another_subscription_brings_other_partitions():
    group = GroupDriver(t=1, u=1)
    group.beat("a", 0)
    answer = group.beat("a", 1, subscribed_topics={"u"}, owned=[("t", 0)])
    assert (answer.member_epoch, assigned(answer)) == (1, [])
    answer = group.beat("a", 1, owned=[])
    assert (answer.member_epoch, assigned(answer)) == (2, [("u", 0)])


# ---- topics ----------------------------------------------------------------------------------------------------------


def test_more_partitions_and_new_topics_are_assigned():
    group = GroupDriver(t=1)
    group.beat("a", 0, subscribed_topics={"t", "later"})
    group.change_topics(t=2, other=1)
    assert group.state == "Assigning"
    assert assigned(group.beat("a", 1)) == all_of("t", 0, 1)
    group.change_topics(t=2, other=1, later=1)
    assert assigned(group.beat("a", 2)) == [("later", 0), ("t", 0), ("t", 1)]


def test_topics_that_nobody_subscribes_to_change_nothing():
    group = GroupDriver(t=1)
    group.beat("a", 0)
    before = len(group.log)
    group.change_topics(t=1, other=1)
    assert group.group.describe().generation == 1
    assert len(group.log) == before


def test_a_topic_that_is_deleted_is_revoked_and_one_of_its_name_is_another():
    group = GroupDriver(t=1, u=1)
    group.beat("a", 0, subscribed_topics={"t", "u"})
    topics = group.topics | {"t": TopicDescription(topic_id("t", 1), 1)}
    group.apply(TopicsChanged(topics, {}))
    answer = group.beat("a", 1, owned=[("t", 0), ("u", 0)])
    assert assigned(answer) == [("u", 0)]
    answer = group.beat("a", 1, owned=[("u", 0)])
    assert [(each.topic_id, each.topic) for each in answer.assignment] == [
        (topic_id("t", 1), "t"),
        (topic_id("u"), "u"),
    ]


def test_a_regex_brings_the_topics_that_match_it():
    group = GroupDriver(ta=1, tb=1)
    regex = {"subscribed_topics": (), "subscribed_regex": "t.*"}
    assert assigned(group.beat("a", 0, regex_topics={"ta", "tb"}, **regex)) == [("ta", 0), ("tb", 0)]
    assert group.group.regexes == {"t.*"}
    group.change_topics({"t.*": {"ta", "tb", "tc"}, "unused": {"x"}}, ta=1, tb=1, tc=1, x=1)
    assert assigned(group.beat("a", 1)) == [("ta", 0), ("tb", 0), ("tc", 0)]
    group.restart()
    group.change_topics({"t.*": {"ta"}}, ta=1)
    assert assigned(group.beat("a", 2, owned=[("ta", 0), ("tb", 0), ("tc", 0)])) == [("ta", 0)]
    group.beat("a", 2, subscribed_regex="", subscribed_topics={"x"}, owned=[("ta", 0)])
    assert group.group.regexes == set()


def test_a_regex_that_matches_a_topic_of_another_member_shares_it():
    group = GroupDriver(t=2, u=1)
    group.beat("a", 0)
    group.beat("b", 0, subscribed_topics=(), subscribed_regex="u|t", regex_topics={"u"})
    group.change_topics({"u|t": {"u", "t"}}, t=2, u=1)
    assert assigned(group.beat("a", 1, owned=all_of("t", 0, 1))) == all_of("t", 0)


def test_a_regex_that_matches_nothing_yet_is_a_subscription():
    group = GroupDriver(t=1)
    answer = group.beat("a", 0, subscribed_topics=(), subscribed_regex="x.*")
    assert (answer.error, answer.member_epoch, assigned(answer)) == (None, 1, [])


# ---- leaving, session, rebalance timeout -----------------------------------------------------------------------------


def test_partitions_of_a_leaving_member_are_assigned_to_others():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    assert group.beat("a", -1).member_epoch == -1
    assert group.state == "Empty"
    assert assigned(group.beat("b", 0)) == all_of("t", 0, 1)
    assert group.group.describe().generation == 3
    assert is_error(group.beat("a", 1).error, errors.UnknownMemberIdError)
    assert is_error(group.beat("a", -1).error, errors.UnknownMemberIdError)


def test_a_member_without_heartbeats_is_fenced_at_the_end_of_its_session():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    group.beat("b", 0)
    group.advance(SESSION_MS - 1)
    group.beat("b", 2)
    group.advance(1)
    assert assigned(group.beat("b", 2)) == all_of("t", 0, 1)
    assert is_error(group.beat("a", 1, owned=all_of("t", 0, 1)).error, errors.UnknownMemberIdError)


def test_a_member_that_does_not_revoke_within_its_rebalance_timeout_is_fenced():
    group = GroupDriver(t=2)
    group.beat("a", 0, rebalance_timeout_ms=30_000)
    group.beat("b", 0)
    group.beat("a", 1, owned=all_of("t", 0, 1))
    group.advance(29_999)
    assert group.beat("a", 1, owned=all_of("t", 0, 1)).error is None
    group.beat("b", 2)
    group.advance(1)
    assert is_error(group.beat("a", 1, owned=all_of("t", 0, 1)).error, errors.UnknownMemberIdError)
    assert assigned(group.beat("b", 2)) == all_of("t", 0, 1)


def test_a_member_that_has_revoked_is_not_watched_any_more():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    group.beat("b", 0)
    group.beat("a", 1, owned=all_of("t", 0, 1))
    assert "rebalance/a" in group.timers
    group.beat("a", 1, owned=all_of("t", 0))
    assert "rebalance/a" not in group.timers


# ---- static members --------------------------------------------------------------------------------------------------


def test_a_static_member_that_leaves_for_a_while_finds_its_partitions_again():
    group = GroupDriver(t=2)
    group.beat("a", 0, group_instance_id="i")
    group.beat("b", 0)
    group.beat("a", 1, group_instance_id="i", owned=all_of("t", 0))
    assert assigned(group.beat("b", 2)) == all_of("t", 1)
    before = group.group.describe().generation
    away = group.beat("a", -2, group_instance_id="i")
    assert (away.error, away.member_epoch) == (None, -2)
    assert group.beat("b", 2).assignment is None
    back = group.beat("a2", 0, group_instance_id="i")
    assert (back.member_epoch, assigned(back)) == (2, all_of("t", 0))
    assert group.group.describe().generation == before
    assert is_error(group.beat("a", 2, group_instance_id="i").error, errors.FencedInstanceIdError)
    assert is_error(group.beat("a", -2, group_instance_id="i").error, errors.FencedInstanceIdError)
    assert is_error(group.beat("a", 2).error, errors.UnknownMemberIdError)


def test_the_place_of_a_static_member_that_is_away_is_kept_for_a_session():
    group = GroupDriver(t=2)
    group.beat("a", 0, group_instance_id="i")
    group.beat("b", 0)
    group.beat("a", 1, group_instance_id="i", owned=all_of("t", 0))
    group.beat("b", 2)
    group.beat("a", -2, group_instance_id="i")
    group.advance(SESSION_MS - 1)
    assert group.beat("b", 2).assignment is None
    group.advance(1)
    assert assigned(group.beat("b", 2)) == all_of("t", 0, 1)


def test_an_instance_id_that_is_in_use_is_not_released():
    group = GroupDriver(t=2)
    group.beat("a", 0, group_instance_id="i")
    assert is_error(group.beat("b", 0, group_instance_id="i").error, errors.UnreleasedInstanceIdError)
    assert group.beat("a", 0, group_instance_id="i").error is None, "its own answer was lost"
    assert is_error(group.beat("a", 0, group_instance_id="j").error, errors.InvalidRequestError)
    assert is_error(group.beat("c", 1, group_instance_id="k").error, errors.UnknownMemberIdError)


def test_a_static_member_that_leaves_for_good_is_gone():
    group = GroupDriver(t=2)
    group.beat("a", 0, group_instance_id="i")
    assert group.beat("a", -1, group_instance_id="i").error is None
    assert group.state == "Empty"
    assert group.beat("b", 0, group_instance_id="i").error is None


def test_a_member_that_is_away_is_not_fenced_for_what_it_was_to_revoke():
    group = GroupDriver(t=2)
    group.beat("a", 0, group_instance_id="i", rebalance_timeout_ms=1_000)
    group.beat("b", 0)
    group.beat("a", 1, group_instance_id="i", owned=all_of("t", 0, 1))
    group.beat("a", -2, group_instance_id="i")
    group.advance(2_000)
    assert len(group.group.describe().members) == 2
    assert assigned(group.beat("b", 2)) == all_of("t", 1), "it has left, and so holds nothing"


# ---- commits ---------------------------------------------------------------------------------------------------------


def test_a_commit_is_of_a_member_and_its_epoch():
    group = GroupDriver(t=2)
    group.beat("a", 0)
    assert group.commit("a", 1) is None
    for generation in (0, 2, -1):
        assert is_error(group.commit("a", generation), errors.StaleMemberEpochError)
    assert is_error(group.commit("b", 1), errors.UnknownMemberIdError)
    assert is_error(group.commit(), errors.UnknownMemberIdError)
    group.beat("a", -1)
    assert group.commit() is None


def test_a_static_member_that_is_away_commits_nothing():
    group = GroupDriver(t=2)
    group.beat("a", 0, group_instance_id="i")
    group.beat("a", -2, group_instance_id="i")
    for generation in (1, -1, -2):
        assert is_error(group.commit("a", generation), errors.StaleMemberEpochError)


# ---- restart ---------------------------------------------------------------------------------------------------------


def test_a_restart_continues_where_the_group_was():
    group = GroupDriver(t=4)
    group.beat("a", 0, group_instance_id="i")
    group.beat("b", 0)
    group.beat("a", 1, group_instance_id="i", owned=all_of("t", 0, 1, 2, 3))
    described = group.group.describe()
    group.restart()
    assert group.group.describe() == described
    assert set(group.timers) == {"session/a", "session/b", "rebalance/a"}
    assert group.beat("a", 1, group_instance_id="i", owned=all_of("t", 0, 1)).member_epoch == 2
    group.restart()
    assert assigned(group.beat("b", 2)) == all_of("t", 2, 3)
    group.restart()
    assert group.beat("a", 2).assignment is None
    assert group.beat("b", 2).assignment is None
    assert group.state == "Stable"


def test_topics_that_grew_during_a_restart_are_seen():
    group = GroupDriver(t=1)
    group.beat("a", 0)
    group.topics = {"t": TopicDescription(topic_id("t"), 2)}
    group.restart()
    assert isinstance(group.effects[0], AppendRecord)
    assert assigned(group.beat("a", 1)) == all_of("t", 0, 1)


def test_an_empty_group_keeps_its_epoch_and_the_time_of_its_end():
    group = GroupDriver(t=1)
    group.beat("a", 0)
    group.beat("a", -1)
    group.advance(1_000)
    group.restart()
    described = group.group.describe()
    assert (described.state, described.generation, described.state_since_ms) == ("Empty", 2, group.now_ms - 1_000)


def test_every_epoch_is_recorded_before_it_is_answered():
    group = GroupDriver(t=2)
    for member, epoch, held in [("a", 0, []), ("b", 0, []), ("a", 1, all_of("t", 0, 1)), ("a", 1, all_of("t", 0))]:
        group.beat(member, epoch, owned=held)
        record = decode_group_record(*group.log[-1])
        assert isinstance(group.effects[0], AppendRecord)
        described = {each.member_id: each.member_epoch for each in group.group.describe().members}
        assert {each.member_id: each.member_epoch for each in record.value.members} == described


# ---- two kinds -------------------------------------------------------------------------------------------------------


def test_a_group_that_is_not_there_is_joined_with_epoch_0():
    group = GroupDriver(t=1)
    for epoch in (1, -1):
        assert is_error(group.beat("a", epoch).error, errors.UnknownGroupError)
    assert group.group.is_vacant


def test_an_empty_group_changes_its_kind_and_its_generation_continues():
    group = GroupDriver(t=1)
    (classic,) = group.stable(None)
    pending = group.join().member_id
    group.leave(pending)
    group.leave(classic)
    assert group.beat("a", 0).member_epoch == 3
    group.restart()
    assert group.group.describe().kind == "consumer"
    group.beat("a", -1)
    request = group.park_join()
    group.settle()
    assert group.answer(request).generation == 5
    group.restart()
    assert group.group.describe().kind == "classic"


def test_ids_given_out_to_classic_members_are_void_in_a_consumer_group():
    group = GroupDriver(t=1)
    pending = group.join().member_id
    group.beat("a", 0)
    assert set(group.timers) == {"session/a"}
    assert is_error(group.join(pending).error, errors.InconsistentGroupProtocolError)


def test_the_description_of_a_group():
    group = GroupDriver(t=2)
    group.beat("a", 0, rack_id="r", client_id="c", client_host="h", rebalance_timeout_ms=REBALANCE_MS)
    described = group.group.describe()
    assert (described.kind, described.state, described.generation, described.protocol) == (
        "consumer",
        "Stable",
        1,
        "even",
    )
    (member,) = described.members
    assert (member.member_id, member.member_epoch, member.rack_id, member.client_id) == ("a", 1, "r", "c")
    assert member.subscribed_topics == ("t",)
    assert [(each.topic, each.partitions) for each in member.assigned] == [("t", (0, 1))]
    assert member.target == member.assigned
