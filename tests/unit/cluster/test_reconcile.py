"""The controller's steps, one by one; ``tests/stateful/test_reconcile_model.py`` tests all of them together."""

import dataclasses
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from logstore.cluster.cluster_state import ElectionType, KnownTopic
from logstore.cluster.reconcile import NEW, Policy, Preferred, TopicWrite, apply, elect, reconcile
from logstore.cluster.view import ClusterView, LiveBroker, TopicNode
from logstore.cluster.znodes import BrokerRegistration, PartitionRegistration, TopicRegistration
from logstore.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    PreferredLeaderNotAvailableError,
)

ID = UUID(int=1)


def broker(state="running", rack=None, offline=None) -> LiveBroker:
    return LiveBroker(BrokerRegistration("u", "p", rack, state, 0, offline or {}), 1)


def view_of(*rows: PartitionRegistration, live=(), stopping=(), offline=None, deleting=False) -> ClusterView:
    brokers = {one: broker(offline=(offline or {}).get(one)) for one in live}
    brokers |= {one: broker("shutting_down") for one in stopping}
    return ClusterView(None, brokers, {"t": TopicNode(TopicRegistration(ID, 0, deleting, rows), 7)})


def row(leader, isr, replicas=(1, 2, 3), epoch=5, **more) -> PartitionRegistration:
    return PartitionRegistration(leader, epoch, tuple(isr), tuple(replicas), **more)


def decided(view: ClusterView, policy=None) -> tuple[PartitionRegistration, ...]:
    """Return the rows of topic t after the decisions."""
    decisions = reconcile(view, {}, policy or Policy())
    return apply(view, decisions.writes).topics["t"].document.partitions


ELECTIONS = {
    "the preferred leader leads again": (
        row(2, (1, 2, 3)), {"live": [1, 2, 3]}, ElectionType.PREFERRED, row(1, (1, 2, 3), epoch=6)),
    "it leads already": (row(1, (1, 2)), {"live": [1, 2]}, ElectionType.PREFERRED, ElectionNotNeededError),
    "it is not in sync": (row(2, (2, 3)), {"live": [1, 2]}, ElectionType.PREFERRED, PreferredLeaderNotAvailableError),
    "it stops": (
        row(2, (1, 2)), {"live": [2], "stopping": [1]}, ElectionType.PREFERRED, PreferredLeaderNotAvailableError),
    "the first replica of a reassignment's target is preferred": (
        row(1, (1, 3), (3, 1), adding=(3,), removing=(1,)), {"live": [1, 3]}, ElectionType.PREFERRED,
        row(3, (1, 3), (3, 1), epoch=6, adding=(3,), removing=(1,))),
    "a replica that is not in sync leads": (
        row(-1, (1,)), {"live": [2, 3]}, ElectionType.UNCLEAN, row(2, (2,), epoch=6, recovering=True)),
    "there is a leader": (row(1, (1,)), {"live": [1, 2]}, ElectionType.UNCLEAN, ElectionNotNeededError),
    "there is no replica": (row(-1, (1,)), {"live": [4]}, ElectionType.UNCLEAN, EligibleLeadersNotAvailableError),
}  # fmt: skip


@pytest.mark.parametrize(("before", "view", "election", "wanted"), ELECTIONS.values(), ids=ELECTIONS)
def test_an_election_on_request(before, view, election, wanted):
    if isinstance(wanted, PartitionRegistration):
        assert elect(view_of(before, **view), "t", 0, election) == wanted
    else:
        with pytest.raises(wanted):
            elect(view_of(before, **view), "t", 0, election)


ALL = Policy(preferred=Preferred.ALL)
UNCLEAN = Policy(unclean={"t"})

CASES = {
    "C1: a dead leader is replaced by the first live member of the ISR, in a new epoch": (
        row(1, (3, 1, 2)), {"live": [2, 3]}, Policy(), row(2, (3, 2), epoch=6)),
    "a dead leader is not replaced by a replica out of sync": (
        row(1, (1,)), {"live": [2, 3]}, Policy(), row(-1, (1,), epoch=6)),
    "without a leader the last ISR waits, without another epoch": (
        row(-1, (1,), epoch=6), {"live": [2, 3]}, Policy(), row(-1, (1,), epoch=6)),
    "a member of the last ISR that comes back leads": (
        row(-1, (1, 2), epoch=6), {"live": [2, 3]}, Policy(), row(2, (2,), epoch=7)),
    "one that stops leads only if there is no other": (
        row(1, (1, 2, 3)), {"live": [3], "stopping": [2]}, Policy(), row(3, (2, 3), epoch=6)),
    "one that stops is better than none": (
        row(1, (1, 2)), {"live": [3], "stopping": [2]}, Policy(), row(2, (2,), epoch=6)),
    "a dead follower leaves the ISR in the same epoch": (
        row(1, (1, 2, 3)), {"live": [1, 3]}, Policy(), row(1, (1, 3))),
    "a replica whose disk is offline is dead for its partition": (
        row(1, (1, 2, 3)), {"live": [1, 2, 3], "offline": {1: {"t": (0,)}}}, Policy(), row(2, (2, 3), epoch=6)),
    "another partition's disk is another's": (
        row(1, (1, 2, 3)), {"live": [1, 2, 3], "offline": {1: {"t": (1,), "u": (0,)}}}, Policy(), row(1, (1, 2, 3))),
    "a leader that stops hands over, and stays in the ISR": (
        row(1, (1, 2, 3)), {"live": [2, 3], "stopping": [1]}, Policy(), row(2, (1, 2, 3), epoch=6)),
    "a leader that stops leads on if nobody else is in sync": (
        row(1, (1,)), {"live": [2, 3], "stopping": [1]}, Policy(), row(1, (1,))),
    "a reassignment ends when its target is in sync": (
        row(2, (4, 2, 3), (4, 2, 3), adding=(4,), removing=(3,)), {"live": [2, 3, 4]}, Policy(),
        row(2, (4, 2), (4, 2), epoch=6)),
    "a reassignment waits for all of its target, also for what was there": (
        row(3, (4, 3), (4, 2, 3), adding=(4,), removing=(3,)), {"live": [2, 3, 4]}, Policy(),
        row(3, (4, 3), (4, 2, 3), adding=(4,), removing=(3,))),
    "a leader that is moved away hands over": (
        row(3, (4, 2, 3), (4, 2, 3), adding=(4,), removing=(3,)), {"live": [2, 3, 4]}, Policy(),
        row(4, (4, 2), (4, 2), epoch=6)),
    "the preferred leader leads again, if asked for": (
        row(2, (1, 2)), {"live": [1, 2]}, ALL, row(1, (1, 2), epoch=6)),
    "the preferred leader does not lead out of sync": (
        row(2, (2, 3)), {"live": [1, 2, 3]}, ALL, row(2, (2, 3))),
    "the preferred leader does not lead while it stops": (
        row(2, (1, 2)), {"live": [2], "stopping": [1]}, ALL, row(2, (1, 2))),
    "nobody is preferred to a leader that recovers": (
        row(2, (1, 2), recovering=True), {"live": [1, 2]}, ALL, row(2, (1, 2), recovering=True)),
    "C11: an unclean leader recovers first": (
        row(1, (1,)), {"live": [3]}, UNCLEAN, row(3, (3,), epoch=6, recovering=True)),
    "a leader that dies as its reassignment ends is replaced once": (
        row(3, (4, 2, 3), (4, 2, 3), adding=(4,), removing=(3,)), {"live": [2, 4]}, ALL,
        row(4, (4, 2), (4, 2), epoch=6)),
    "C11: recovery goes on with the next leader": (
        row(1, (1, 2), recovering=True), {"live": [2]}, Policy(), row(2, (2,), epoch=6, recovering=True)),
    "C12: an ISR without a member is left by an unclean election only": (
        row(-1, ()), {"live": [1, 2, 3]}, Policy(), row(-1, ())),
    "C12: and by that it is left": (
        row(-1, ()), {"live": [1, 2, 3]}, UNCLEAN, row(1, (1,), epoch=6, recovering=True)),
    "an unclean election is for partitions that no clean one helps": (
        row(1, (1, 3)), {"live": [2, 3]}, UNCLEAN, row(3, (3,), epoch=6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_step(name):
    before, brokers, policy, after = CASES[name]
    assert decided(view_of(before, **brokers), policy) == (after,)


def test_a_write_names_the_version_that_was_seen_and_untouched_topics_are_not_written():
    view = view_of(row(1, (1, 2)), live=[2])
    assert [write.version for write in reconcile(view, {}, Policy()).writes] == [7]
    assert reconcile(view_of(row(1, (1, 2)), live=[1, 2]), {}, Policy()).writes == ()


def test_only_topics_that_changed_are_looked_at():
    view = view_of(row(1, (1, 2)), live=[2])
    assert reconcile(view, {}, Policy(), only={"u"}).writes == ()
    assert reconcile(view, {}, Policy(), only={"t", "gone"}).writes != ()


def test_a_document_that_is_not_believed_is_left_alone():
    view = dataclasses.replace(view_of(row(1, (1, 2)), live=[2]), damaged={"/brokers/topics/t": "edited"})
    table = KnownTopic("t", ID, (0, 0))
    assert reconcile(view, {ID: table}, Policy()).writes == ()
    assert reconcile(dataclasses.replace(view, topics={}), {ID: table}, Policy()).writes == ()


def test_imbalance_is_each_brokers_share_of_what_prefers_it():
    rows = [row(1, (1, 2)), *([row(2, (1, 2))] * 2), *([row(2, (2, 1), (2, 1, 3))] * 9), row(1, (2, 1), (2, 1, 3))]
    view = view_of(*rows, live=[1, 2])
    policy = Policy(preferred=Preferred.IMBALANCED, imbalance_percentage=10)
    assert [one.leader for one in decided(view, policy)] == [1, 1, 1, *[2] * 9, 1], "1 leads a third, 2 leads 9 of 10"


# ---- topics ----------------------------------------------------------------------------------------------------------


def placed(view: ClusterView, *tables: KnownTopic, policy=None) -> tuple[list[TopicWrite], dict[str, str]]:
    decisions = reconcile(view, {table.topic_id: table for table in tables}, policy or Policy())
    return list(decisions.writes), dict(decisions.refused)


def test_a_table_without_records_is_placed_above_its_epochs():
    brokers = ClusterView(None, {1: broker(), 2: broker()})
    (write,), refused = placed(brokers, KnownTopic("u", ID, (-1, 0, 41), replication_factor=2))
    assert (write.version, write.document.topic_id, refused) == (NEW, ID, {})
    assert [one.leader_epoch for one in write.document.partitions] == [1, 1, 42]
    assert all(set(one.isr) == {1, 2} and one.leader == one.replicas[0] for one in write.document.partitions)


def test_a_table_with_records_is_not_placed():
    writes, refused = placed(ClusterView(None, {1: broker()}), KnownTopic("u", ID, (3,), has_records=True))
    assert (writes, list(refused)) == ([], ["u"])
    assert "logstore cluster adopt u" in refused["u"]


def test_a_topic_whose_configuration_allows_it_is_led_by_a_replica_that_is_not_in_sync():
    view = view_of(row(-1, (2,), (1, 2)), live=[1])
    (topic,) = view.topics.values()
    for unclean in (False, True):
        table = KnownTopic("t", topic.document.topic_id, (0,), unclean=unclean)
        writes = reconcile(view, {table.topic_id: table}, Policy()).writes
        assert [one.document.partitions[0].leader for one in writes] == ([1] if unclean else [])


def test_new_partitions_get_as_many_replicas_as_the_others_and_old_ones_stay():
    view = view_of(row(1, (1, 2), (1, 2)), live=[1, 2, 3])
    (write,), _ = placed(view, KnownTopic("t", ID, (5, 0, 0)))
    old, *new = write.document.partitions
    assert old == row(1, (1, 2), (1, 2))
    assert [len(one.replicas) for one in new] == [2, 2]
    assert 3 in {one.leader for one in new}


def test_replicas_that_somebody_has_chosen_are_taken_and_the_others_are_placed():
    brokers = ClusterView(None, {one: broker() for one in (1, 2, 3)})
    chosen = KnownTopic("u", ID, (0, 0), assignments=((3, 1), (2, 3)))
    (write,), _ = placed(brokers, chosen)
    assert [one.replicas for one in write.document.partitions] == [(3, 1), (2, 3)]
    assert [one.leader for one in write.document.partitions] == [3, 2]
    view = view_of(row(1, (1, 2), (1, 2)), live=[1, 2, 3])
    (write,), _ = placed(view, KnownTopic("t", ID, (5, 0, 0, 0), assignments=((), (), (2, 3))))
    old, first, second, third = write.document.partitions
    assert (old, second.replicas) == (row(1, (1, 2), (1, 2)), (2, 3))
    assert len(first.replicas) == len(third.replicas) == 2
    assert {3} <= {*first.replicas, *third.replicas}, "chosen replicas count as load"


def test_a_table_under_the_name_of_another_topic_is_refused():
    writes, refused = placed(view_of(row(1, (1,)), live=[1, 2, 3]), KnownTopic("t", uuid4(), (0, 0)))
    assert (writes, list(refused)) == ([], ["t"])


def test_too_few_brokers_are_waited_for():
    writes, refused = placed(ClusterView(None, {1: broker(), 2: broker("shutting_down")}), KnownTopic("u", ID, (0,)))
    assert len(writes) == 1
    writes, refused = placed(ClusterView(None, {1: broker()}), KnownTopic("u", ID, (0,), replication_factor=2))
    assert (writes, list(refused)) == ([], ["u"])


def test_a_deleted_topic_has_no_elections_and_goes_with_its_table():
    view = view_of(row(1, (1, 2)), live=[2], deleting=True)
    table = KnownTopic("t", ID, (0, 0))
    assert reconcile(view, {ID: table}, UNCLEAN).writes == ()
    assert reconcile(view, {}, UNCLEAN).writes == (TopicWrite("t", None, 7),)
    assert apply(view, reconcile(view, {}, UNCLEAN).writes).topics == {}


# ---- all states ------------------------------------------------------------------------------------------------------


@st.composite
def any_row(draw) -> PartitionRegistration:
    replicas = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), unique=True))
    adding = draw(st.lists(st.sampled_from(replicas), unique=True))
    removing = draw(st.lists(st.sampled_from(replicas), unique=True, max_size=len(replicas) - 1))
    return PartitionRegistration(
        draw(st.sampled_from([*isr, -1])), draw(st.integers(0, 9)), tuple(isr), tuple(replicas),
        tuple(one for one in adding if one not in removing), tuple(removing), draw(st.booleans()),
    )  # fmt: skip


@st.composite
def any_view(draw) -> ClusterView:
    states = draw(st.dictionaries(st.integers(1, 5), st.sampled_from(["running", "running", "shutting_down"])))
    offline = draw(st.dictionaries(st.integers(1, 5), st.just({"t": (0,)}), max_size=1))
    brokers = {one: broker(state, offline=offline.get(one)) for one, state in states.items()}
    rows = draw(st.lists(any_row(), min_size=1, max_size=4))
    return ClusterView(None, brokers, {"t": TopicNode(TopicRegistration(ID, 0, False, tuple(rows)), 0)})


policies = st.builds(
    Policy,
    preferred=st.sampled_from(Preferred),
    imbalance_percentage=st.sampled_from([0, 10, 60]),
    unclean=st.sampled_from([(), ("t",)]),
)


@given(any_view(), policies)
def test_a_reconciled_view_needs_no_more_writes(view, policy):
    once = apply(view, reconcile(view, {}, policy).writes)
    assert reconcile(once, {}, policy).writes == ()


@given(any_view(), policies)
def test_c1_the_epoch_rises_with_the_leader(view, policy):
    for before, after in zip(view.topics["t"].document.partitions, decided(view, policy), strict=True):
        changes = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
        assert after.leader_epoch - before.leader_epoch == changes, "one change of leader a pass at most"


@given(any_view(), policies)
def test_only_an_unclean_election_adds_to_an_isr(view, policy):
    for number, (before, after) in enumerate(
        zip(view.topics["t"].document.partitions, decided(view, policy), strict=True)
    ):
        live = [one for one in before.isr if view.is_replica_live(one, "t", number)]
        if set(after.isr) <= set(before.isr):
            assert after.recovering == before.recovering, "C11"
        else:
            assert policy.unclean, "asked for"
            assert not live, "no clean leader was there"
            assert after.recovering, "C11"
            assert after.isr == (after.leader,)
        if live:
            assert after.leader in live
        elif not policy.unclean:
            assert after == replace(before, leader=-1, leader_epoch=before.leader_epoch + (before.leader != -1)), (
                "the last ISR is kept"
            )
