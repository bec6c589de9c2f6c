"""Properties that each assignor promises, for any group that evolves."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.protocol.assignors.assignor import Assignor, MemberSubscription, TopicPartition
from logstore.protocol.assignors.cooperative_sticky import CooperativeStickyAssignor
from logstore.protocol.assignors.registry import CLIENT_ASSIGNORS, SERVER_ASSIGNORS
from logstore.protocol.assignors.sticky import StickyAssignor
from logstore.protocol.assignors.uniform import UniformAssignor
from tests.support.assignments import next_round, owners
from tests.support.examples import examples

Members = dict[str, MemberSubscription]
Partitions = dict[str, int]

COOPERATIVE = CooperativeStickyAssignor()
ALL = [*CLIENT_ASSIGNORS.values(), *SERVER_ASSIGNORS.values()]
WHOLE = [assignor for assignor in ALL if assignor.name != "cooperative-sticky"]
STICKY = [StickyAssignor(), UniformAssignor()]
TOPICS = ["a", "b", "c", "d", "e"]

names = st.text("mnop", min_size=1, max_size=3)
partition_counts = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7), min_size=1)
some_topics = st.lists(st.sampled_from([*TOPICS, "none"]), unique=True).map(tuple)
equal_members = st.builds(
    lambda topics, ids: {name: MemberSubscription(topics) for name in ids}, some_topics, st.sets(names, min_size=1)
)
mixed_members = st.dictionaries(names, st.builds(MemberSubscription, some_topics), min_size=1, max_size=8)
groups = equal_members | mixed_members


@st.composite
def any_claims(draw: st.DrawFn, members: st.SearchStrategy[Members] = groups) -> tuple[Partitions, Members]:
    """Draw a group whose members claim anything: nonexistent partitions, those of others, in any generation."""
    claims = st.lists(st.tuples(st.sampled_from([*TOPICS, "none"]), st.integers(-1, 8)), max_size=8).map(tuple)
    drawn = {
        name: MemberSubscription(member.topics, draw(claims), draw(st.integers(-1, 3)))
        for name, member in draw(members).items()
    }
    return draw(partition_counts), drawn


def wanted(partitions: Partitions, members: Members) -> set[TopicPartition]:
    topics = {topic for member in members.values() for topic in member.topics}
    return {(topic, number) for topic in topics for number in range(partitions.get(topic, 0))}


def check(partitions: Partitions, members: Members, assignment: Mapping[str, list[TopicPartition]]) -> None:
    """Check that every partition of a subscribed topic has one owner, which subscribes to the topic."""
    assert assignment.keys() == members.keys()
    assert owners(assignment).keys() == wanted(partitions, members)
    for name, assigned in assignment.items():
        assert {topic for topic, _ in assigned} <= set(members[name].topics)


@pytest.mark.parametrize("assignor", WHOLE, ids=lambda assignor: assignor.name)
@settings(max_examples=examples(300))
@given(any_claims())
def test_every_partition_has_one_owner_who_subscribes(assignor: Assignor, group: tuple[Partitions, Members]):
    check(*group, assignor.assign(*group))


@pytest.mark.parametrize("assignor", ALL, ids=lambda assignor: assignor.name)
@settings(max_examples=examples(100))
@given(any_claims())
def test_the_order_of_the_mappings_does_not_matter(assignor: Assignor, group: tuple[Partitions, Members]):
    partitions, members = group
    other = assignor.assign(dict(reversed(partitions.items())), dict(reversed(members.items())))
    assert assignor.assign(partitions, members) == other


@pytest.mark.parametrize("name", ["roundrobin", "sticky", "uniform"])
@settings(max_examples=examples(200))
@given(any_claims(equal_members))
def test_equal_subscriptions_differ_by_one_at_most(name: str, group: tuple[Partitions, Members]):
    loads = [len(assigned) for assigned in (CLIENT_ASSIGNORS | SERVER_ASSIGNORS)[name].assign(*group).values()]
    assert max(loads) - min(loads) <= 1


@settings(max_examples=examples(300))
@given(partition_counts, mixed_members)
def test_sticky_leaves_no_partition_that_could_move_to_a_member_with_two_fewer(
    partitions: Partitions, members: Members
):
    assignment = StickyAssignor().assign(partitions, members)
    for name, assigned in assignment.items():
        for topic in {topic for topic, _ in assigned}:
            for other, member in members.items():
                assert topic not in member.topics or len(assigned) - len(assignment[other]) <= 1, (name, other)


@pytest.mark.parametrize("assignor", [*STICKY, COOPERATIVE], ids=lambda assignor: assignor.name)
@settings(max_examples=examples(300))
@given(partition_counts, groups)
def test_a_second_run_moves_nothing(assignor: Assignor, partitions: Partitions, members: Members):
    first = assignor.assign(partitions, members)
    second = assignor.assign(partitions, next_round(members, first, 1))
    assert owners(second) == owners(first)


@pytest.mark.parametrize("assignor", [*STICKY, COOPERATIVE], ids=lambda assignor: assignor.name)
@settings(max_examples=examples(300))
@given(partition_counts, equal_members.filter(lambda members: len(members) > 1), st.data())
def test_a_member_that_leaves_moves_its_own_partitions_only(
    assignor: Assignor, partitions: Partitions, members: Members, data: st.DataObject
):
    first = assignor.assign(partitions, members)
    gone = data.draw(st.sampled_from(sorted(members)))
    rest = next_round(members, first, 1)
    del rest[gone]
    second = owners(assignor.assign(partitions, rest))
    assert second.keys() == owners(first).keys()
    assert all(second[partition] == owner for partition, owner in owners(first).items() if owner != gone)


@pytest.mark.parametrize("assignor", STICKY, ids=lambda assignor: assignor.name)
@settings(max_examples=examples(300))
@given(partition_counts, equal_members, names)
def test_a_member_that_joins_gets_its_share_and_nothing_else_moves(
    assignor: Assignor, partitions: Partitions, members: Members, name: str
):
    first = assignor.assign(partitions, members)
    joined = next_round(members, first, 1) | {name: MemberSubscription(next(iter(members.values())).topics)}
    before = {partition: owner for partition, owner in owners(first).items() if owner != name}
    second = assignor.assign(partitions, joined)
    moved = sum(owners(second)[partition] != owner for partition, owner in before.items())
    quota = len(owners(first)) // len(joined)
    assert moved <= quota if name not in members else moved == 0


@st.composite
def evolved(draw: st.DrawFn) -> tuple[Partitions, Members]:
    """Draw a group after an assignment by sticky, with later changes of partitions, subscriptions and members."""
    partitions, members = draw(partition_counts), draw(groups)
    members = next_round(members, StickyAssignor().assign(partitions, members), 1)
    changed = draw(st.dictionaries(st.sampled_from(sorted(members)), some_topics | st.none()))
    for name, topics in changed.items():
        old = members.pop(name)
        if topics is not None:
            members[name] = MemberSubscription(topics, old.owned, old.generation)
    for name, member in draw(groups).items():
        members.setdefault(name, member)
    return partitions | draw(partition_counts), members


@settings(max_examples=examples(500))
@given(evolved())
def test_cooperative_gives_nothing_that_another_member_still_owns(group: tuple[Partitions, Members]):
    partitions, members = group
    held = {partition: name for name, member in members.items() for partition in member.owned}
    assigned = COOPERATIVE.assign(partitions, members)
    for partition, name in owners(assigned).items():
        assert held.get(partition, name) == name
    # Apart from the partitions that are held back, the assignment is that of sticky.
    sticky = owners(StickyAssignor().assign(partitions, members))
    given_up = {partition for partition, name in sticky.items() if held.get(partition, name) != name}
    assert owners(assigned) == {partition: name for partition, name in sticky.items() if partition not in given_up}


@settings(max_examples=examples(500))
@given(evolved())
def test_cooperative_is_done_after_a_second_round(group: tuple[Partitions, Members]):
    """Assign twice; with different subscriptions Kafka's tests allow four rounds."""
    partitions, members = group
    equal = len({frozenset(member.topics) for member in members.values()}) <= 1
    first = COOPERATIVE.assign(partitions, members)
    members = next_round(members, first, 2)
    last = COOPERATIVE.assign(partitions, members)
    for generation in range(3, 3 if equal else 5):
        members = next_round(members, last, generation)
        last = COOPERATIVE.assign(partitions, members)
    check(partitions, members, last)
    loads = sorted(map(len, last.values()))
    assert sorted(map(len, StickyAssignor().assign(partitions, members).values())) == loads
    if equal:
        assert all(owners(last)[partition] == name for partition, name in owners(first).items())
