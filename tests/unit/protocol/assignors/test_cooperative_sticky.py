"""Kafka's CooperativeStickyAssignor: a partition changes its owner in two rebalances (KIP-429)."""

from logstore.protocol.assignors.cooperative_sticky import CooperativeStickyAssignor
from tests.support.assignments import assign, member, next_round, owners, tps

COOPERATIVE = CooperativeStickyAssignor()


def test_a_partition_is_held_back_until_its_owner_has_given_it_up():
    members = {"consumer1": member("t", "t:0 t:1 t:2", 1), "consumer2": member("t")}
    first = COOPERATIVE.assign({"t": 3}, members)
    assert first == {"consumer1": tps("t:0 t:1"), "consumer2": []}
    assert assign(COOPERATIVE, {"t": 3}, next_round(members, first, 2)) == {"consumer1": "t:0 t:1", "consumer2": "t:2"}


def test_partitions_of_nobody_are_given_at_once():
    members = {"consumer1": member("t", "t:0 t:1", 1), "consumer2": member("t", "", 1)}
    assert assign(COOPERATIVE, {"t": 4}, members) == {"consumer1": "t:0 t:1", "consumer2": "t:2 t:3"}


def test_a_partition_that_two_claim_in_one_generation_is_held_back_from_a_third():
    members = {
        "consumer1": member("t", "t:0 t:1", 1),
        "consumer2": member("t", "t:0 t:2", 1),
        "consumer3": member("t", "", 1),
    }
    assert assign(COOPERATIVE, {"t": 3}, members) == {"consumer1": "t:1", "consumer2": "t:2", "consumer3": ""}
    assert assign(COOPERATIVE, {"t": 4}, members) == {"consumer1": "t:1 t:3", "consumer2": "t:2", "consumer3": ""}


def test_partitions_are_also_held_back_with_different_subscriptions():
    members = {"A": member("t u", "t:0 t:1 t:2 t:3", 1), "B": member("t", "", 1), "C": member("u", "", 1)}
    first = COOPERATIVE.assign({"t": 4, "u": 1}, members)
    assert len(first["A"]) == 2
    assert first["B"] == []
    second = COOPERATIVE.assign({"t": 4, "u": 1}, next_round(members, first, 2))
    assert second["A"] == first["A"]
    assert len(owners(second)) == 5


def test_a_member_that_no_longer_subscribes_gives_up_first():
    members = {"A": member("u", "t:0 u:0", 1), "B": member("t", "t:1", 1)}
    first = COOPERATIVE.assign({"t": 2, "u": 1}, members)
    assert first == {"A": tps("u:0"), "B": tps("t:1")}
    assert COOPERATIVE.assign({"t": 2, "u": 1}, next_round(members, first, 2))["B"] == tps("t:1 t:0")
