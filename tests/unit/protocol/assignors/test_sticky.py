"""Kafka's StickyAssignor: the examples of its documentation and the cases of its tests."""

from itertools import permutations

import pytest

from logstore.protocol.assignors.roundrobin import RoundRobinAssignor
from logstore.protocol.assignors.sticky import StickyAssignor, assign_sticky
from tests.support.assignments import assign, in_order, member, next_round, owners, tps

STICKY = StickyAssignor()


def test_a_member_that_leaves_leaves_the_others_what_they_have():
    counts = dict.fromkeys(("t0", "t1", "t2", "t3"), 2)
    members = {name: member(" ".join(counts)) for name in ("C0", "C1", "C2")}
    first = assign(STICKY, counts, members)
    assert first == {"C0": "t0:0 t1:1 t3:0", "C1": "t0:1 t2:0 t3:1", "C2": "t1:0 t2:1"}
    rest = {name: member(" ".join(counts), first[name], 1) for name in ("C0", "C2")}
    # Kafka 4.1 answers this; the documentation describes an older version.
    assert in_order(assign(STICKY, counts, rest)) == {"C0": "t0:0 t0:1 t1:1 t3:0", "C2": "t1:0 t2:0 t2:1 t3:1"}


def test_members_with_more_topics_get_those_that_others_cannot_have():
    counts = {"t0": 1, "t1": 2, "t2": 3}
    members = {"C0": member("t0"), "C1": member("t0 t1"), "C2": member("t0 t1 t2")}
    first = assign(STICKY, counts, members)
    assert first == {"C0": "t0:0", "C1": "t1:0 t1:1", "C2": "t2:0 t2:1 t2:2"}
    rest = {"C1": member("t0 t1", first["C1"], 1), "C2": member("t0 t1 t2", first["C2"], 1)}
    assert assign(STICKY, counts, rest) == {"C1": "t1:0 t1:1 t0:0", "C2": "t2:0 t2:1 t2:2"}


def test_mixed_subscriptions():
    members = {"consumer1": member("t1"), "consumer2": member("t1 t2"), "consumer3": member("t1")}
    expected = {"consumer1": "t1:0 t1:2", "consumer2": "t2:0 t2:1", "consumer3": "t1:1"}
    assert assign(STICKY, {"t1": 3, "t2": 2}, members) == expected


def test_where_roundrobin_leaves_a_member_without_a_partition():
    counts = {"topic1": 2, "topic2": 1, "topic3": 2, "topic4": 1, "topic5": 2}
    few, all_topics = "topic1 topic3 topic5", " ".join(counts)
    members = {
        "consumer1": member(all_topics),
        "consumer2": member(few),
        "consumer3": member(few),
        "consumer4": member(all_topics),
    }
    assert [len(text.split()) for text in assign(RoundRobinAssignor(), counts, members).values()] == [3, 3, 0, 2]
    assert [len(text.split()) for text in assign(STICKY, counts, members).values()] == [2, 2, 2, 2]


def test_a_member_with_the_quota_gets_the_one_that_is_left():
    members = {"consumer1": member("t1 t2", "t1:0 t2:1", 1), "consumer2": member("t1 t2", "t1:1 t2:2", 1)}
    expected = {"consumer1": "t1:0 t2:1 t2:0", "consumer2": "t1:1 t2:2"}
    assert assign(STICKY, {"t1": 2, "t2": 3}, members) == expected


def test_the_first_owner_in_kafkas_order_keeps_a_partition_above_the_quota():
    members = {
        "consumer1": member("t1 t2", "t1:0 t2:0", 1),
        "consumer2": member("t1 t2", "t1:1 t2:1", 1),
        "consumer3": member("t1 t2", "", 1),
    }
    result = assign_sticky({"t1": 2, "t2": 2}, members)
    assert result.assignment == {
        "consumer1": tps("t1:0"),
        "consumer2": tps("t1:1 t2:1"),
        "consumer3": tps("t2:0"),
    }
    assert result.transferring == {("t2", 0): "consumer3"}


def test_members_come_and_go():
    counts = {"t1": 3, "t2": 4}
    two = {"consumer1": member("t1 t2"), "consumer2": member("t1 t2")}
    first = assign_sticky(counts, two).assignment
    assert first == {"consumer1": tps("t1:0 t1:2 t2:1 t2:3"), "consumer2": tps("t1:1 t2:0 t2:2")}
    four = next_round(two, first, 1) | {"consumer3": member("t1 t2"), "consumer4": member("t1 t2")}
    second = assign_sticky(counts, four)
    assert second.assignment == {
        "consumer1": tps("t1:0 t2:1"),
        "consumer2": tps("t2:0 t1:1"),
        "consumer3": tps("t1:2 t2:3"),
        "consumer4": tps("t2:2"),
    }
    assert second.transferring == {("t1", 2): "consumer3", ("t2", 3): "consumer3", ("t2", 2): "consumer4"}
    rest = {name: four[name] for name in ("consumer3", "consumer4")}
    third = assign(STICKY, counts, next_round(rest, second.assignment, 1))
    assert third == {"consumer3": "t1:2 t2:3 t1:0 t2:1", "consumer4": "t2:2 t1:1 t2:0"}


def test_the_partitions_that_a_member_keeps_are_spread_over_the_topics():
    counts = {"t1": 12, "t2": 12}
    members = {"consumer1": member("t1 t2")}
    assignment = STICKY.assign(counts, members)
    members = next_round(members, assignment, 1) | {"consumer2": member("t1 t2")}
    assignment = STICKY.assign(counts, members)
    members = next_round(members, assignment, 1) | {"consumer3": member("t1 t2"), "consumer4": member("t1 t2")}
    for assigned in STICKY.assign(counts, members).values():
        assert [sum(name == topic for name, _ in assigned) for topic in counts] == [3, 3]


def test_a_partition_that_two_claim_in_one_generation_is_nobodys():
    members = {
        "consumer1": member("t", "t:0 t:1", 1),
        "consumer2": member("t", "t:0 t:2", 1),
        "consumer3": member("t", "", 1),
    }
    assert assign(STICKY, {"t": 3}, members) == {"consumer1": "t:1", "consumer2": "t:2", "consumer3": "t:0"}
    assert assign(STICKY, {"t": 4}, members) == {"consumer1": "t:1 t:3", "consumer2": "t:2", "consumer3": "t:0"}


@pytest.mark.parametrize("stale", [9, -1])
def test_the_newer_generation_of_two_claims_counts(stale: int):
    claim = "t:0 t:2 t2:1"
    members = {"consumer1": member("t t2", claim, 10), "consumer2": member("t t2", claim, stale)}
    assert in_order(assign(STICKY, {"t": 3, "t2": 3}, members)) == {"consumer1": claim, "consumer2": "t:1 t2:0 t2:2"}


def test_every_generation_keeps_what_no_newer_one_claims():
    topics = "t t2 t3"
    members = {
        "consumer1": member(topics, "t:0 t2:0 t3:0", 10),
        "consumer2": member(topics, "t:1 t2:1 t3:1", 9),
        "consumer3": member(topics, "t2:1 t3:0 t3:2", 8),
    }
    expected = {"consumer1": "t:0 t2:0 t3:0", "consumer2": "t:1 t2:1 t3:1", "consumer3": "t:2 t2:2 t3:2"}
    assert in_order(assign(STICKY, {"t": 3, "t2": 3, "t3": 3}, members)) == expected


@pytest.mark.parametrize("generations", list(permutations((1, 2, 3))))
def test_three_claims_of_one_partition_with_different_subscriptions(generations: tuple[int, int, int]):
    first, second, third = generations
    members = {
        "consumer1": member("t", "t:0 t:2", first),
        "consumer2": member("t", "t:1 t:2 t:3", second),
        "consumer3": member("t", "t:2 t:4 t:5", third),
        "consumer4": member("t1", "t1:0", 2),
    }
    assignment = STICKY.assign({"t": 6, "t1": 1}, members)
    assert len(owners(assignment)) == 7
    assert sorted(map(len, assignment.values())) == [1, 2, 2, 2]


def test_an_owner_of_before_that_left_the_topic_does_not_get_it():
    """Expect another result than Kafka, which gives the member the partition, or fails with a NullPointerException."""
    members = {
        "c1": member("t", "t:0 t:1 t:2 t:3", 4),
        "c2": member("t u", "u:0", 4),
        "stale": member("u", "t:0 t:1 t:2 t:3", 3),
    }
    assignment = STICKY.assign({"t": 5, "u": 2}, members)
    assert {topic for topic, _ in assignment["stale"]} == {"u"}
    assert len(owners(assignment)) == 7


def test_owned_partitions_that_no_longer_exist_are_left_out():
    members = {"A": member("t", "t:0 t:7 gone:0 t:-1", 1), "B": member("t u", "u:3", 1)}
    for equal in (False, True):
        if equal:
            members["B"] = member("t", "u:3 t:9", 1)
        assert set(owners(STICKY.assign({"t": 2}, members))) == set(tps("t:0 t:1"))


def test_nothing_to_assign():
    assert assign(STICKY, {"t": 3}, {}) == {}
    assert assign(STICKY, {}, {"A": member("t", "t:0", 1), "B": member("")}) == {"A": "", "B": ""}
    assert assign(STICKY, {"t": 1}, {"A": member("t"), "B": member("t")}) == {"A": "t:0", "B": ""}
