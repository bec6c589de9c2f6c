"""Kafka's UniformAssignor (KIP-848): the cases of its tests, with the answers of Kafka 4.1."""

from logstore.protocol.assignors.uniform import UniformAssignor
from tests.support.assignments import assign, in_order, member, owners, tps

UNIFORM = UniformAssignor()


def test_equal_subscriptions_share_evenly():
    members = {"A": member("t1 t3"), "B": member("t1 t3")}
    assert assign(UNIFORM, {"t1": 3, "t3": 2}, members) == {"A": "t1:0 t1:1", "B": "t1:2 t3:0 t3:1"}


def test_more_members_than_partitions():
    members = {name: member("t3") for name in "ABC"}
    assert assign(UNIFORM, {"t3": 2}, members) == {"A": "", "B": "t3:0", "C": "t3:1"}


def test_a_member_with_too_many_gives_up_the_rest():
    members = {"A": member("t1 t2", "t1:0 t1:1 t2:0 t2:1"), "B": member("t1 t2", "t1:2 t2:2")}
    expected = {"A": "t1:0 t1:1 t2:0", "B": "t1:2 t2:1 t2:2"}
    assert in_order(assign(UNIFORM, {"t1": 3, "t2": 3}, members)) == expected


def test_a_new_member_gets_a_share_of_each():
    members = {"A": member("t1 t2", "t1:0 t1:2 t2:0"), "B": member("t1 t2", "t1:1 t2:1 t2:2"), "C": member("t1 t2")}
    expected = {"A": "t1:0 t1:2", "B": "t1:1 t2:1", "C": "t2:0 t2:2"}
    assert in_order(assign(UNIFORM, {"t1": 3, "t2": 3}, members)) == expected


def test_one_more_stays_with_those_that_have_it():
    members = {"A": member("t", "t:0"), "B": member("t", "t:1 t:2"), "C": member("t", "t:3 t:4")}
    assert in_order(assign(UNIFORM, {"t": 5}, members)) == {"A": "t:0", "B": "t:1 t:2", "C": "t:3 t:4"}


def test_partitions_of_a_member_that_left():
    members = {"A": member("t1 t2", "t1:0 t2:0"), "B": member("t1 t2", "t1:1 t2:1")}
    assignment = UNIFORM.assign({"t1": 3, "t2": 3}, members)
    assert {name: len(assigned) for name, assigned in assignment.items()} == {"A": 3, "B": 3}
    assert set(tps("t1:0 t2:0")) < set(assignment["A"])
    assert set(tps("t1:1 t2:1")) < set(assignment["B"])


def test_a_topic_that_nobody_subscribes_to_any_more():
    members = {"A": member("t2", "t1:0 t2:0"), "B": member("t2", "t1:1 t2:1")}
    assert assign(UNIFORM, {"t1": 2, "t2": 2}, members) == {"A": "t2:0", "B": "t2:1"}


def test_different_subscriptions():
    members = {"A": member("t1 t3"), "B": member("t3")}
    expected = {"A": "t1:0 t1:1 t1:2 t3:4", "B": "t3:0 t3:1 t3:2 t3:3 t3:5"}
    assert in_order(assign(UNIFORM, {"t1": 3, "t3": 6}, members)) == expected
    members = {"A": member("t3"), "B": member("t3"), "C": member("t1")}
    assert in_order(assign(UNIFORM, {"t1": 2, "t3": 1}, members)) == {"A": "t3:0", "B": "", "C": "t1:0 t1:1"}


def test_different_subscriptions_are_evened_out_by_few_moves():
    members = {
        "A": member("t1", "t1:0 t1:1 t1:2"),
        "B": member("t1 t2", "t1:3 t2:0"),
        "C": member("t1 t2 t3", "t1:4 t1:5 t2:1 t2:2 t2:3 t3:0 t3:1 t3:2 t3:3"),
    }
    expected = {"A": "t1:0 t1:1 t1:2 t1:5", "B": "t1:3 t2:0 t2:1 t2:2 t2:3", "C": "t1:4 t3:0 t3:1 t3:2 t3:3"}
    assert in_order(assign(UNIFORM, {"t1": 6, "t2": 4, "t3": 4}, members)) == expected


def test_new_partitions_go_where_the_fewest_are():
    members = {
        "A": member("t1 t3", "t1:0 t1:1 t1:2 t1:3 t3:0 t3:1"),
        "B": member("t1 t2 t3 t4", "t2:0 t2:1 t2:2 t4:0 t4:1 t4:2"),
    }
    expected = {
        "A": "t1:0 t1:1 t1:2 t1:3 t1:4 t1:5 t3:0 t3:1 t3:2",
        "B": "t2:0 t2:1 t2:2 t2:3 t2:4 t4:0 t4:1 t4:2",
    }
    assert in_order(assign(UNIFORM, {"t1": 6, "t2": 5, "t3": 3, "t4": 3}, members)) == expected


def test_a_new_member_and_new_partitions():
    members = {"A": member("t1", "t1:0 t1:2 t2:0"), "B": member("t1 t2", "t1:1 t2:1 t2:2"), "C": member("t1 t2")}
    expected = {"A": "t1:0 t1:2 t1:3 t1:4 t1:5", "B": "t1:1 t2:1 t2:2 t2:6", "C": "t2:0 t2:3 t2:4 t2:5"}
    assert in_order(assign(UNIFORM, {"t1": 6, "t2": 7}, members)) == expected


def test_a_subscription_that_was_given_up():
    members = {"A": member("t1", "t1:0 t1:2 t2:1 t2:3"), "B": member("t1 t2", "t1:1 t2:0 t2:2 t2:4")}
    expected = {"A": "t1:0 t1:1 t1:2", "B": "t2:0 t2:1 t2:2 t2:3 t2:4"}
    assert in_order(assign(UNIFORM, {"t1": 3, "t2": 5}, members)) == expected


def test_a_member_without_subscription_gets_nothing():
    members = {"A": member("t1"), "B": member("")}
    assert assign(UNIFORM, {"t1": 3}, members) == {"A": "t1:0 t1:1 t1:2", "B": ""}


def test_claims_that_cannot_be():
    """Pass claims that a target assignment cannot have, except after a topic is made again with fewer partitions."""
    members = {"A": member("t", "t:0 t:1 t:5"), "B": member("t", "t:1 u:0")}
    assert owners(UNIFORM.assign({"t": 2}, members)) == {("t", 0): "A", ("t", 1): "B"}
    assert assign(UNIFORM, {"t": 2}, {}) == {}
