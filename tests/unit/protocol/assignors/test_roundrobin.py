"""Kafka's RoundRobinAssignor: the examples of its documentation and its tests."""

from logstore.protocol.assignors.roundrobin import RoundRobinAssignor
from tests.support.assignments import assign, member

ROUNDROBIN = RoundRobinAssignor()


def test_partitions_of_all_topics_go_round_all_members():
    members = {"C0": member("t0 t1"), "C1": member("t0 t1")}
    assert assign(ROUNDROBIN, {"t0": 3, "t1": 3}, members) == {"C0": "t0:0 t0:2 t1:1", "C1": "t0:1 t1:0 t1:2"}


def test_members_without_the_topic_are_passed_over():
    members = {"C0": member("t0"), "C1": member("t0 t1"), "C2": member("t0 t1 t2")}
    expected = {"C0": "t0:0", "C1": "t1:0", "C2": "t1:1 t2:0 t2:1 t2:2"}
    assert assign(ROUNDROBIN, {"t0": 1, "t1": 2, "t2": 3}, members) == expected


def test_mixed_subscriptions():
    members = {"consumer1": member("t1"), "consumer2": member("t1 t2"), "consumer3": member("t1")}
    expected = {"consumer1": "t1:0", "consumer2": "t1:1 t2:0 t2:1", "consumer3": "t1:2"}
    assert assign(ROUNDROBIN, {"t1": 3, "t2": 2}, members) == expected


def test_static_members_come_first_and_keep_their_turns():
    static = {f"consumer{i}": member("t1 t2", instance_id=f"instance{i}") for i in (1, 2, 3)}
    expected = {"consumer1": "t1:0 t2:1", "consumer2": "t1:1 t2:2", "consumer3": "t1:2"}
    for dynamic in ("consumer4", "a-consumer"):
        members = static | {dynamic: member("t1 t2")}
        assert assign(ROUNDROBIN, {"t1": 3, "t2": 3}, members) == expected | {dynamic: "t2:0"}


def test_only_topics_that_exist_and_have_subscribers():
    assert assign(ROUNDROBIN, {"t1": 3, "other": 3}, {"A": member("t1 none")}) == {"A": "t1:0 t1:1 t1:2"}
    assert assign(ROUNDROBIN, {}, {"A": member("t1"), "B": member("")}) == {"A": "", "B": ""}
    assert assign(ROUNDROBIN, {"t1": 1}, {}) == {}
