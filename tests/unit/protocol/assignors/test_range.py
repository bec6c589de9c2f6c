"""Kafka's RangeAssignor, of clients and of the group coordinator: the examples of its documentation and its tests."""

from logstore.protocol.assignors.range import RangeAssignor
from tests.support.assignments import assign, member

RANGE = RangeAssignor()


def test_each_topic_is_divided_by_itself():
    members = {"C0": member("t0 t1"), "C1": member("t0 t1")}
    assert assign(RANGE, {"t0": 3, "t1": 3}, members) == {"C0": "t0:0 t0:1 t1:0 t1:1", "C1": "t0:2 t1:2"}


def test_only_subscribers_of_a_topic_share_it():
    members = {"A": member("t1 t2"), "B": member("t3"), "C": member("t2 t3")}
    expected = {"A": "t1:0 t1:1 t1:2 t2:0 t2:1", "B": "t3:0", "C": "t2:2 t3:1"}
    assert assign(RANGE, {"t1": 3, "t2": 3, "t3": 2}, members) == expected


def test_subscriptions_to_topics_that_do_not_exist_and_topics_without_subscribers_give_nothing():
    assert assign(RANGE, {"other": 3}, {"A": member("t1"), "B": member("")}) == {"A": "", "B": ""}
    assert assign(RANGE, {"t1": 0}, {"A": member("t1")}) == {"A": ""}
    assert assign(RANGE, {"t1": 3}, {}) == {}


def test_more_members_than_partitions():
    members = {name: member("t1 t3") for name in "ABC"}
    assert assign(RANGE, {"t1": 3, "t3": 2}, members) == {"A": "t1:0 t3:0", "B": "t1:1 t3:1", "C": "t1:2"}


def test_static_members_come_first_by_instance_id():
    members = {
        "consumer-b": member("t1 t2", instance_id="instance1"),
        "consumer-a": member("t1 t2", instance_id="instance2"),
        "a": member("t1 t2"),
    }
    expected = {"consumer-b": "t1:0 t1:1 t2:0", "consumer-a": "t1:2 t1:3 t2:1", "a": "t1:4 t2:2"}
    assert assign(RANGE, {"t1": 5, "t2": 3}, members) == expected


def test_a_static_member_has_its_ranges_again_under_another_member_id():
    before = {f"consumer{i}": member("t1 t2", instance_id=f"instance{i}") for i in (1, 2, 3)}
    after = {"consumer1": before["consumer1"], "consumer5": before["consumer2"], "consumer4": before["consumer3"]}
    first = assign(RANGE, {"t1": 5, "t2": 5}, before)
    assert first == {
        "consumer1": "t1:0 t1:1 t2:0 t2:1",
        "consumer2": "t1:2 t1:3 t2:2 t2:3",
        "consumer3": "t1:4 t2:4",
    }
    assert list(assign(RANGE, {"t1": 5, "t2": 5}, after).values()) == list(first.values())


def test_owned_partitions_do_not_count():
    members = {"A": member("t1", "t1:0 t1:1"), "B": member("t1 t2 t3", "t2:1"), "C": member("t2", "t2:2 t3:0 t3:1")}
    expected = {"A": "t1:0 t1:1", "B": "t1:2 t2:0 t2:1 t3:0 t3:1", "C": "t2:2"}
    assert assign(RANGE, {"t1": 3, "t2": 3, "t3": 2}, members) == expected
