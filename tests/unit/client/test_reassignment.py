"""Plans of reassignments: the replicas that they move, those that they leave alone, and files that are no plans."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.client.reassignment import (
    PlannedPartition,
    Progress,
    ReassignmentPlan,
    generate,
    plan_of,
    progress,
    read_plan,
    require_possible,
)
from logstore.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError, UnknownTopicError
from logstore.protocol.messages.cluster import PartitionReplicas


def state(topic: str, partition: int, *replicas: int, adding: tuple[int, ...] = (), removing: tuple[int, ...] = ()):
    return PartitionReplicas(topic, partition, replicas[0], 1, replicas, replicas, adding, removing)


def racks(*brokers: int) -> dict[int, str | None]:
    return dict.fromkeys(brokers)


def after(states: list[PartitionReplicas], plan: ReassignmentPlan) -> dict[tuple[str, int], tuple[int, ...]]:
    found = {(one.topic, one.partition): one.replicas for one in states}
    return found | {(one.topic, one.partition): one.replicas for one in plan.partitions}


THREE = [state("t", 0, 1, 2, 3), state("t", 1, 2, 3, 1), state("t", 2, 3, 1, 2)]


def test_spread_partitions_stay() -> None:
    assert generate(THREE, None, racks(1, 2, 3)).partitions == ()


def test_a_new_broker_gets_its_part_and_no_more_is_moved() -> None:
    states = [state("t", number, *(1 + (number + at) % 3 for at in range(2))) for number in range(12)]
    plan = generate(states, None, racks(1, 2, 3, 4))
    found = after(states, plan)
    assert Counter(broker for replicas in found.values() for broker in replicas) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert Counter(replicas[0] for replicas in found.values()) == {1: 3, 2: 3, 3: 3, 4: 3}
    copies = sum(len(set(found[one.topic, one.partition]) - set(one.replicas)) for one in states)
    assert copies == 6, "only what the new broker gets is copied"


def test_a_broker_that_goes_for_good_has_nothing_left_and_the_others_keep_what_they_have() -> None:
    states = [state("t", number, *(1 + (number + at) % 4 for at in range(2))) for number in range(8)]
    plan = generate(states, None, racks(1, 2, 4))
    found = after(states, plan)
    assert 3 not in {broker for replicas in found.values() for broker in replicas}
    assert Counter(broker for replicas in found.values() for broker in replicas) in (
        {1: 5, 2: 5, 4: 6},
        {1: 5, 2: 6, 4: 5},
        {1: 6, 2: 5, 4: 5},
    )
    assert {(one.topic, one.partition) for one in plan.partitions} >= {
        (one.topic, one.partition) for one in states if 3 in one.replicas
    }
    copies = sum(len(set(found[one.topic, one.partition]) - set(one.replicas)) for one in states)
    assert copies == 4, "the four replicas of broker 3"


def test_only_the_topics_that_are_named_are_moved_and_the_others_count() -> None:
    states = [state("a", 0, 1), state("a", 1, 1), state("b", 0, 2), state("b", 1, 2), state("c", 0, 3)]
    plan = generate(states, {"c"}, racks(1, 2, 4))
    assert plan.partitions == (PlannedPartition("c", 0, (4,)),)


def test_a_replication_factor_adds_and_takes_away() -> None:
    plan = generate([state("t", 0, 1)], None, racks(1, 2, 3), replication_factor=3)
    assert plan.partitions == (PlannedPartition("t", 0, (1, 2, 3)),)
    plan = generate(THREE, None, racks(1, 2, 3), replication_factor=1)
    assert sorted(one.replicas for one in plan.partitions) == [(1,), (2,), (3,)]


def test_replicas_stay_on_different_racks() -> None:
    in_racks = {1: "a", 2: "a", 3: "b", 4: "b", 5: "a"}
    states = [state("t", number, 1 + number % 2, 3 + number % 2) for number in range(8)]
    plan = generate(states, None, {broker: in_racks[broker] for broker in (1, 3, 4, 5)})
    found = after(states, plan)
    assert all({in_racks[broker] for broker in replicas} == {"a", "b"} for replicas in found.values()), found
    assert 2 not in {broker for replicas in found.values() for broker in replicas}


@given(
    st.lists(st.permutations([1, 2, 3, 4, 5, 6]), min_size=1, max_size=30),
    st.integers(1, 4),
    st.sets(st.integers(1, 7), min_size=4, max_size=7),
    st.integers(1, 4) | st.none(),
)
def test_every_plan_is_whole_even_and_the_end_of_its_own(orders, count, brokers, factor) -> None:
    states = [state("t", number, *order[:count]) for number, order in enumerate(orders)]
    plan = generate(states, None, racks(*brokers), factor)
    found = after(states, plan)
    for replicas in found.values():
        assert len(set(replicas)) == len(replicas) == (factor or count)
        assert set(replicas) <= brokers
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(broker for replicas in found.values() for broker in replicas)
    assert max(load.values()) - min(load.values()) <= 1
    again = [state("t", number, *found["t", number]) for number in range(len(states))]
    assert generate(again, None, racks(*brokers), factor).partitions == ()


@pytest.mark.parametrize(
    ("brokers", "factor", "told"),
    [((1, 2), None, "is to have 3 replicas, and the plan has 2 brokers"), ((1, 2, 3), 4, "4 replicas"), ((1,), 0, "0")],
)
def test_more_replicas_than_brokers_are_refused(brokers, factor, told) -> None:
    with pytest.raises(InvalidReplicationFactorError, match=told):
        generate(THREE, None, racks(*brokers), factor)


def test_a_topic_that_is_not_there() -> None:
    with pytest.raises(UnknownTopicError, match="'u'"):
        generate(THREE, {"t", "u"}, racks(1, 2, 3))


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_file_of_kafka_is_read() -> None:
    text = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,1],"log_dirs":["any","any"]}]}'
    (one,) = read_plan(text).partitions
    assert (one.topic, one.partition, one.replicas) == ("t", 0, (3, 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "is not"),
        (b"\xff", "is not"),
        (b"[]", "is not"),
        (b'{"version":2,"partitions":[]}', "version"),
        (b'{"topics":[{"topic":"t"}],"version":1}', "partitions"),
        (b'{"partitions":[{"topic":"t","partition":0,"replicas":"1"}]}', r"partitions\[0\].replicas"),
        (b'{"partitions":[{"topic":"t","partition":0,"replicas":[]}]}', "t-0 the replicas"),
        (b'{"partitions":[{"topic":"t","partition":0,"replicas":[1,1]}]}', "distinct"),
        (b'{"partitions":[{"topic":"t","partition":0,"replicas":[-1]}]}', "distinct"),
        (b'{"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["/d"]}]}', "log_dirs"),
        (
            b'{"partitions":[{"topic":"t","partition":0,"replicas":[1]},{"topic":"t","partition":0,"replicas":[2]}]}',
            "twice",
        ),
    ],
)
def test_a_malformed_plan_is_refused(text, told) -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=told):
        read_plan(text)


def test_a_plan_is_refused_whole_if_it_cannot_be_carried_out() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=r"t-9, and there is no such partition. Nothing is moved"):
        require_possible(ReassignmentPlan((PlannedPartition("t", 9, (1,)),)), THREE, {1, 2, 3})
    with pytest.raises(InvalidReplicaAssignmentError, match=r"t-0 to brokers \[7\], and there are \[1, 2, 3\]"):
        require_possible(ReassignmentPlan((PlannedPartition("t", 0, (7, 1)),)), THREE, {1, 2, 3})
    # A broker that is away keeps the replica that it has.
    require_possible(ReassignmentPlan((PlannedPartition("t", 0, (3, 1)),)), THREE, {1, 2})


def test_progress_and_the_way_back() -> None:
    planned = PlannedPartition("t", 0, (4, 1))
    moving = state("t", 0, 4, 1, 2, adding=(4,), removing=(2,))
    assert progress(planned, moving) is Progress.IN_PROGRESS
    assert progress(planned, state("t", 0, 4, 1)) is Progress.COMPLETE
    assert progress(planned, state("t", 0, 1, 4)) is Progress.ELSEWHERE
    assert progress(planned, None) is Progress.ELSEWHERE
    assert plan_of([moving]).partitions == (PlannedPartition("t", 0, (1, 2)),)
