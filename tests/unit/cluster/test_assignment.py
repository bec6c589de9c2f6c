"""Placement is even, also over racks; a reassignment keeps the replicas that are in sync."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.cluster.assignment import Load, assign, begin_reassignment, cancel_reassignment
from logstore.cluster.znodes import PartitionRegistration
from logstore.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError


@st.composite
def clusters(draw):
    brokers = draw(st.sets(st.integers(0, 50), min_size=1, max_size=9))
    racks = draw(st.sampled_from([(None,), ("a", "b"), ("a", "b", "c"), ("a", "b", "c", None)]))
    of_rack = {broker: draw(st.sampled_from(racks)) for broker in brokers}
    return of_rack, draw(st.integers(1, len(brokers)))


def spread(counts: Counter, brokers) -> int:
    found = [counts[broker] for broker in brokers]
    return max(found) - min(found)


@given(clusters(), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_replicas_are_distinct_and_on_as_many_racks_as_there_are(cluster, topics):
    racks, replication_factor = cluster
    load = Load()
    of_rack = {broker: rack or broker for broker, rack in racks.items()}
    for count in topics:
        for replicas in assign(count, replication_factor, racks, load):
            assert len(set(replicas)) == len(replicas) == replication_factor
            in_racks = Counter(of_rack[one] for one in replicas)
            assert len(in_racks) == min(replication_factor, len(set(of_rack.values())))
    assert load.replicas.total() == sum(topics) * replication_factor


@given(st.integers(1, 9), st.data(), st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_without_racks_replicas_and_leaders_are_even(brokers, data, topics):
    racks = dict.fromkeys(range(brokers))
    replication_factor = data.draw(st.integers(1, brokers))
    load = Load()
    for count in topics:
        assign(count, replication_factor, racks, load)
        assert spread(load.replicas, racks) <= 1
        assert spread(load.leaders, racks) <= 2


@pytest.mark.parametrize(("brokers", "replication_factor"), [(3, 2), (3, 3), (4, 2), (5, 3), (6, 2), (6, 3), (9, 3)])
def test_all_others_share_what_a_dead_broker_led(brokers, replication_factor):
    load = Load()
    found = assign(60 * brokers, replication_factor, dict.fromkeys(range(brokers)), load)
    for dead in range(brokers):
        heirs = Counter(replicas[1] for replicas in found if replicas[0] == dead)
        assert len(heirs) == brokers - 1
        assert max(heirs.values()) <= 60 / (brokers - 1) + 2


def test_even_racks_have_even_replicas():
    racks = {broker: "abc"[broker % 3] for broker in range(6)}
    load = Load()
    assign(100, 3, racks, load)
    assert spread(load.replicas, racks) <= 1


def test_a_broker_that_comes_late_gets_the_next_partitions():
    load = Load.of([(0, 1)] * 10)
    assert {replicas[0] for replicas in assign(5, 1, {0: None, 1: None, 2: None}, load)} == {2}


@pytest.mark.parametrize("replication_factor", [0, 3])
def test_replicas_need_as_many_brokers(replication_factor):
    with pytest.raises(InvalidReplicationFactorError, match=r"brokers \(2\)"):
        assign(1, replication_factor, {0: None, 1: None}, Load())


# ---- reassignment ----------------------------------------------------------------------------------------------------


@st.composite
def rows(draw):
    replicas = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), unique=True))
    leader = draw(st.sampled_from([*isr, -1]))
    return PartitionRegistration(leader, 5, tuple(isr), tuple(replicas))


targets = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


@given(rows(), st.lists(targets, min_size=1, max_size=3))
def test_a_reassignment_keeps_leader_and_isr_and_ends_at_its_target(row, asked):
    moving, epoch = row, row.leader_epoch
    for target in asked:
        before, moving = moving, begin_reassignment(moving, target)
        epoch += not set(before.replicas) <= set(moving.replicas)
        assert (moving.leader, moving.leader_epoch, moving.isr) == (row.leader, epoch, row.isr)
    assert moving.target == tuple(asked[-1])
    assert begin_reassignment(moving, asked[-1]) == moving


@given(rows(), targets)
def test_a_cancelled_reassignment_goes_back_to_the_same_replicas(row, target):
    back = cancel_reassignment(begin_reassignment(row, target))
    assert set(back.target) == set(row.replicas)
    assert cancel_reassignment(row) == row


def test_a_reassignment_names_what_comes_and_what_goes():
    row = PartitionRegistration(1, 5, (1, 2), (1, 2, 3))
    moving = begin_reassignment(row, [4, 2])
    assert (moving.replicas, moving.adding, moving.removing) == ((4, 2, 1, 3), (4,), (1, 3))


@pytest.mark.parametrize("target", [[], [1, 1]])
def test_a_target_is_distinct_brokers(target):
    with pytest.raises(InvalidReplicaAssignmentError, match="distinct"):
        begin_reassignment(PartitionRegistration(1, 5, (1,), (1,)), target)
