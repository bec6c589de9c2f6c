"""The client's side of a membership, without threads, clock or store."""

import math
from uuid import UUID

import pytest

from logstore.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    NetworkError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from logstore.protocol.consumer_protocol import Assignment, decode_assignment, decode_subscription, encode_assignment
from logstore.protocol.members.classic_member import ClassicMember
from logstore.protocol.members.consumer_member import ConsumerMember
from logstore.protocol.members.identity import MemberIdentity, TopicPartition
from logstore.protocol.members.membership import (
    Assigned,
    Lost,
    MemberOptions,
    Membership,
    PartitionCounts,
    Revoked,
    State,
    Step,
)
from logstore.protocol.messages.members import (
    AssignedPartition,
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinedGroup,
    JoinedMember,
    JoinGroupRequest,
    LeaveGroupRequest,
    OwnedPartition,
    SyncedGroup,
    SyncGroupRequest,
)

ME = "me-1"
ID, NEW_ID = UUID(int=1), UUID(int=2)


def options(*assignors: str, instance_id: str | None = None) -> MemberOptions:
    return MemberOptions(ME, instance_id, assignors, 45, 3, 300, 60, frozenset({"t"}))


def at(*numbers: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in numbers)


def joined(generation: int, leader: str = "other", protocol: str = "range") -> JoinedGroup:
    return JoinedGroup(generation, ME, leader, "consumer", protocol, False, ())


def synced(*numbers: int) -> SyncedGroup:
    return SyncedGroup("consumer", "range", encode_assignment(Assignment(tuple(at(*numbers)))))


def answer(member: Membership, kind: type, reply: object, now: float = 0.0) -> object:
    """Take the member's next request, which must be of the kind, and answer it or let it fail."""
    request = member.next(now)
    assert isinstance(request, kind), request
    if isinstance(reply, Exception):
        member.failed(request, reply, now)  # type: ignore[arg-type]
    else:
        member.answered(request, reply, now)
    return request


def steps(member: Membership) -> list[Step]:
    """Return all steps of a poll."""
    found = []
    while (step := member.step()) is not None:
        found.append(step)
        member.done(step)
    return found


def stable(member: ClassicMember, generation: int, *numbers: int) -> None:
    """Take the member from the beginning of a join to its end."""
    assert steps(member) == []
    answer(member, JoinGroupRequest, joined(generation))
    answer(member, SyncGroupRequest, synced(*numbers))
    assert steps(member) == [Assigned(at(*numbers) - frozenset(member.owned))] or member.owned.keys() == at(*numbers)


@pytest.fixture
def eager() -> ClassicMember:
    return ClassicMember(options("range", "cooperative-sticky"))


@pytest.fixture
def cooperative() -> ClassicMember:
    return ClassicMember(options("cooperative-sticky"))


# ---- classic --------------------------------------------------------------------------------------------------------


def test_nothing_is_sent_before_the_first_poll(eager: ClassicMember):
    assert eager.next(0) == math.inf
    stable(eager, 1, 0, 1)
    assert eager.state is State.STABLE
    assert eager.identity == MemberIdentity(ME, 1, None)
    assert eager.next(1) == 2
    answer(eager, HeartbeatRequest, None, 3)


def test_an_eager_member_revokes_everything_before_it_joins(eager: ClassicMember):
    stable(eager, 1, 0, 1)
    answer(eager, HeartbeatRequest, RebalanceInProgressError("join"), 3)
    assert eager.wants_poll
    assert eager.next(3) == 3, "it joins only when poll has revoked"
    assert eager.step() == Revoked(at(0, 1))
    assert eager.identity_of(eager.hold(at(0))).generation == 1, "a commit counts until then"
    assert steps(eager) == [Revoked(at(0, 1))]
    answer(eager, JoinGroupRequest, joined(2))
    answer(eager, SyncGroupRequest, synced(1))
    assert steps(eager) == [Assigned(at(1))]


def test_a_cooperative_member_revokes_what_moves_and_joins_again(cooperative: ClassicMember):
    stable(cooperative, 1, 0, 1)
    answer(cooperative, HeartbeatRequest, RebalanceInProgressError("join"), 3)
    assert steps(cooperative) == []
    join = answer(cooperative, JoinGroupRequest, joined(2))
    assert isinstance(join, JoinGroupRequest)
    assert set(decode_subscription(join.protocols[0].metadata).owned) == at(0, 1)
    answer(cooperative, SyncGroupRequest, synced(0))
    assert steps(cooperative) == [Revoked(at(1)), Assigned(at())]
    join = answer(cooperative, JoinGroupRequest, joined(3))
    assert isinstance(join, JoinGroupRequest)
    assert set(decode_subscription(join.protocols[0].metadata).owned) == at(0)
    answer(cooperative, SyncGroupRequest, synced(0, 2))
    assert steps(cooperative) == [Assigned(at(2))]
    assert cooperative.state is State.STABLE


def test_a_generation_that_passed_without_the_member_takes_all_from_it(cooperative: ClassicMember):
    stable(cooperative, 1, 0, 1)
    hold = cooperative.hold(at(0))
    answer(cooperative, HeartbeatRequest, RebalanceInProgressError("join"), 3)
    assert steps(cooperative) == []
    answer(cooperative, JoinGroupRequest, joined(3))
    with pytest.raises(CommitFailedError, match="t-0 are not assigned"):
        cooperative.identity_of(hold)
    answer(cooperative, SyncGroupRequest, synced(0))
    assert steps(cooperative) == [Lost(at(0, 1)), Assigned(at(0))]
    assert cooperative.identity_of(cooperative.hold(at(0))).generation == 3
    with pytest.raises(CommitFailedError):
        cooperative.identity_of(hold)


@pytest.mark.parametrize("error", [UnknownMemberIdError("gone"), IllegalGenerationError("old")])
def test_a_member_that_is_out_loses_everything_and_joins_after_a_poll(cooperative: ClassicMember, error: Exception):
    stable(cooperative, 1, 0, 1)
    hold = cooperative.hold(at(0))
    answer(cooperative, HeartbeatRequest, error, 3)
    with pytest.raises(CommitFailedError, match="t-0"):
        cooperative.identity_of(hold)
    with pytest.raises(CommitFailedError):
        cooperative.hold(at(1))
    assert cooperative.next(4) == math.inf
    assert steps(cooperative) == [Lost(at(0, 1))]
    join = answer(cooperative, JoinGroupRequest, joined(7))
    assert isinstance(join, JoinGroupRequest)
    assert decode_subscription(join.protocols[0].metadata).owned == ()


def test_a_member_that_does_not_poll_leaves(eager: ClassicMember):
    stable(eager, 1, 0)
    eager.end_poll(10)
    answer(eager, HeartbeatRequest, None, 300)
    assert eager.next(302) == pytest.approx(1)
    answer(eager, HeartbeatRequest, None, 308)
    assert eager.next(309) == pytest.approx(1)
    answer(eager, LeaveGroupRequest, None, 310)
    assert eager.next(1_000) == math.inf
    eager.begin_poll()
    assert steps(eager) == [Lost(at(0))]
    answer(eager, JoinGroupRequest, joined(3), 1_000)


def test_inside_poll_no_time_passes(eager: ClassicMember):
    stable(eager, 1, 0)
    eager.end_poll(10)
    eager.begin_poll()
    assert isinstance(eager.next(10_000), HeartbeatRequest)


def test_a_static_member_says_nothing_when_it_goes():
    member = ClassicMember(options("range", instance_id="one"))
    stable(member, 1, 0)
    assert member.farewell("") is None
    member.end_poll(0)
    assert member.next(300) == math.inf


def test_a_fenced_name_stays_an_error(eager: ClassicMember):
    stable(eager, 1, 0)
    answer(eager, HeartbeatRequest, FencedInstanceIdError("another"), 3)
    step = eager.step()
    assert step == Lost(at(0))
    eager.done(step)
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            eager.step()
    assert eager.next(1_000) == math.inf


def test_a_refusal_is_reported_once_and_the_next_poll_tries_again(eager: ClassicMember):
    assert steps(eager) == []
    answer(eager, JoinGroupRequest, GroupMaxSizeReachedError("full"))
    assert eager.wants_poll
    with pytest.raises(GroupMaxSizeReachedError):
        eager.step()
    assert eager.next(0) == math.inf
    assert eager.step() is None
    answer(eager, JoinGroupRequest, joined(1))


def test_a_store_that_is_away_is_asked_again_and_reported_after_a_while(eager: ClassicMember):
    assert steps(eager) == []
    now = 0.0
    while not eager.wants_poll:
        wait = eager.next(now)
        if isinstance(wait, float):
            assert wait <= 2
            now += wait
        else:
            eager.failed(wait, NetworkError("away"), now)
    assert 60 <= now <= 65
    with pytest.raises(NetworkError):
        eager.step()
    assert eager.step() is None
    answer(eager, JoinGroupRequest, joined(1), now + 2)


def test_the_leader_assigns_and_notices_new_partitions(eager: ClassicMember):
    assert steps(eager) == []
    join = eager.next(0)
    assert isinstance(join, JoinGroupRequest)
    metadata = join.protocols[0].metadata
    members = (JoinedMember(ME, None, metadata), JoinedMember("other", None, metadata))
    eager.answered(join, JoinedGroup(1, ME, ME, "consumer", "range", False, members), 0)
    asked = answer(eager, PartitionCounts, {"t": 4})
    assert asked == PartitionCounts(frozenset({"t"}))
    sync = answer(eager, SyncGroupRequest, synced(0, 1))
    assert isinstance(sync, SyncGroupRequest)
    sent = {each.member_id: decode_assignment(each.assignment).partitions for each in sync.assignments}
    assert {member: set(partitions) for member, partitions in sent.items()} == {ME: at(0, 1), "other": at(2, 3)}
    assert steps(eager) == [Assigned(at(0, 1))]
    eager.found_topics(frozenset({"t"}), {"t": 4})
    assert eager.state is State.STABLE
    eager.found_topics(frozenset({"t"}), {"t": 5})
    assert steps(eager) == [Revoked(at(0, 1))]
    assert isinstance(eager.next(0), JoinGroupRequest)


@pytest.mark.parametrize("counts", [{"t": 4}, {"t": 5}, {"t": 4, "former": 1}, None])
def test_a_static_leader_that_comes_back_notices_partitions_that_came_meanwhile(counts: dict[str, int] | None):
    """Rejoin as the leader: it makes no assignment, but the present one has the numbers of partitions for which it was
    made.

    An assignment of another client does not have them.
    """
    first, back = (ClassicMember(options("range", instance_id="static")) for _ in range(2))
    assert steps(first) == []
    join = first.next(0)
    assert isinstance(join, JoinGroupRequest)
    members = (JoinedMember(ME, "static", join.protocols[0].metadata),)
    first.answered(join, JoinedGroup(1, ME, ME, "consumer", "range", False, members), 0)
    answer(first, PartitionCounts, counts or {"t": 4})
    sync = answer(first, SyncGroupRequest, synced())
    assert isinstance(sync, SyncGroupRequest)
    (its,) = sync.assignments
    assert steps(back) == []
    answer(back, JoinGroupRequest, JoinedGroup(1, ME, ME, "consumer", "range", True, members))
    answer(back, PartitionCounts, {"t": 4})
    sync = answer(
        back,
        SyncGroupRequest,
        SyncedGroup("consumer", "range", its.assignment if counts else encode_assignment(Assignment((), b"x"))),
    )
    assert isinstance(sync, SyncGroupRequest)
    assert sync.assignments == ()
    steps(back)
    back.found_topics(frozenset({"t"}), {"t": 4})
    assert back.state is (State.STABLE if counts in ({"t": 4}, None) else State.PREPARING)


def test_a_rebalance_during_a_rebalance_is_joined_at_its_end(eager: ClassicMember):
    assert steps(eager) == []
    answer(eager, JoinGroupRequest, joined(1))
    answer(eager, SyncGroupRequest, RebalanceInProgressError("again"))
    answer(eager, JoinGroupRequest, joined(2), 5)
    answer(eager, SyncGroupRequest, synced(0), 5)
    answer(eager, HeartbeatRequest, RebalanceInProgressError("again"), 8)
    assert steps(eager) == [Assigned(at(0)), Revoked(at(0))]
    assert isinstance(eager.next(9), JoinGroupRequest)


def test_an_answer_after_the_end_of_the_membership_counts_for_nothing(eager: ClassicMember):
    stable(eager, 1, 0)
    beat = eager.next(3)
    assert isinstance(beat, HeartbeatRequest)
    assert eager.identity is not None
    eager.refused(eager.identity, UnknownMemberIdError("gone"))
    assert steps(eager) == [Lost(at(0))]
    eager.failed(beat, UnknownMemberIdError("gone"), 3)
    assert eager.state is State.JOINING
    assert steps(eager) == []


def test_a_commit_of_what_came_back_is_another(cooperative: ClassicMember):
    stable(cooperative, 1, 0, 1)
    hold = cooperative.hold(at(1))
    for generation, numbers in ((2, (0,)), (3, (0, 1))):
        if generation == 2:
            answer(cooperative, HeartbeatRequest, RebalanceInProgressError("join"), 3)
        steps(cooperative)
        answer(cooperative, JoinGroupRequest, joined(generation), 3)
        answer(cooperative, SyncGroupRequest, synced(*numbers), 3)
        steps(cooperative)
    assert cooperative.owned.keys() == at(0, 1)
    with pytest.raises(CommitFailedError, match="t-1"):
        cooperative.identity_of(hold)
    assert cooperative.identity_of(cooperative.hold(at(1))).generation == 3


# ---- consumer protocol ----------------------------------------------------------------------------------------------


def told(epoch: int, *numbers: int, topic_id: UUID = ID) -> ConsumerGroupHeartbeat:
    return ConsumerGroupHeartbeat(ME, epoch, 5_000, tuple(AssignedPartition("t", topic_id, n) for n in numbers))


AS_BEFORE = ConsumerGroupHeartbeat(ME, 5, 5_000, None)


@pytest.fixture
def modern() -> ConsumerMember:
    member = ConsumerMember(options("uniform"))
    assert steps(member) == []
    answer(member, ConsumerGroupHeartbeatRequest, told(5, 0, 1))
    assert steps(member) == [Assigned(at(0, 1))]
    return member


def test_the_heartbeat_that_joins_sends_everything():
    member = ConsumerMember(options("uniform"))
    assert steps(member) == []
    assert member.next(0) == ConsumerGroupHeartbeatRequest(
        member_id=ME,
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topics=("t",),
        subscribed_regex="",
        server_assignor="uniform",
        owned=(),
        since_poll_ms=0,
    )


def test_a_revocation_is_acknowledged_at_once(modern: ConsumerMember):
    beat = answer(modern, ConsumerGroupHeartbeatRequest, told(5, 0), 5)
    assert beat == ConsumerGroupHeartbeatRequest(
        member_id=ME, member_epoch=5, owned=(OwnedPartition(ID, 0), OwnedPartition(ID, 1)), since_poll_ms=0
    )
    assert modern.next(5) == 5, "before the revocation nothing is acknowledged"
    assert steps(modern) == [Revoked(at(1)), Assigned(at())]
    beat = answer(modern, ConsumerGroupHeartbeatRequest, AS_BEFORE, 5)
    assert beat == ConsumerGroupHeartbeatRequest(
        member_id=ME, member_epoch=5, owned=(OwnedPartition(ID, 0),), since_poll_ms=0
    )
    assert modern.next(6) == 4
    assert answer(modern, ConsumerGroupHeartbeatRequest, AS_BEFORE, 10) == ConsumerGroupHeartbeatRequest(
        member_id=ME, member_epoch=5, since_poll_ms=0
    )


def test_a_topic_that_was_made_again_is_another(modern: ConsumerMember):
    answer(modern, ConsumerGroupHeartbeatRequest, told(6, 0, topic_id=NEW_ID), 5)
    assert steps(modern) == [Revoked(at(0, 1)), Assigned(at(0))]
    assert modern.owned == {TopicPartition("t", 0): str(NEW_ID)}


def test_after_a_lost_response_everything_is_sent_again(modern: ConsumerMember):
    answer(modern, ConsumerGroupHeartbeatRequest, NetworkError("broken"), 5)
    again = modern.next(8)
    assert isinstance(again, ConsumerGroupHeartbeatRequest)
    assert (again.member_epoch, again.rebalance_timeout_ms, again.subscribed_topics) == (5, 300_000, ("t",))
    assert again.owned is not None
    assert len(again.owned) == 2


@pytest.mark.parametrize("error", [UnknownMemberIdError("gone"), FencedMemberEpochError("old")])
def test_a_fenced_member_gives_up_before_it_joins_again(modern: ConsumerMember, error: Exception):
    answer(modern, ConsumerGroupHeartbeatRequest, error, 5)
    assert modern.next(9) == math.inf
    with pytest.raises(CommitFailedError):
        modern.hold(at(0))
    assert steps(modern) == [Lost(at(0, 1))]
    join = modern.next(9)
    assert isinstance(join, ConsumerGroupHeartbeatRequest)
    assert (join.member_epoch, join.owned) == (0, ())


def test_a_target_that_comes_during_the_listener_is_taken_next(modern: ConsumerMember):
    answer(modern, ConsumerGroupHeartbeatRequest, told(6, 0, 1, 2), 5)
    step = modern.step()
    assert step == Assigned(at(2))
    answer(modern, ConsumerGroupHeartbeatRequest, told(7, 0), 10)
    modern.done(step)
    assert steps(modern) == [Revoked(at(1, 2)), Assigned(at())]


def test_the_revocation_of_what_no_heartbeat_reported_is_acknowledged(modern: ConsumerMember):
    """Send the owned partitions: otherwise the store waits until the rebalance timeout, and fences the member."""
    answer(modern, ConsumerGroupHeartbeatRequest, told(6, 0, 1, 2), 5)
    step = modern.step()
    assert step == Assigned(at(2))
    answer(modern, ConsumerGroupHeartbeatRequest, told(6, 0, 1), 10)
    modern.done(step)
    assert steps(modern) == [Revoked(at(2)), Assigned(at())]
    beat = answer(modern, ConsumerGroupHeartbeatRequest, AS_BEFORE, 10)
    assert beat == ConsumerGroupHeartbeatRequest(
        member_id=ME, member_epoch=6, owned=(OwnedPartition(ID, 0), OwnedPartition(ID, 1)), since_poll_ms=0
    )


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("one", -2)])
def test_leaving_is_an_epoch(instance_id: str | None, epoch: int):
    member = ConsumerMember(options(instance_id=instance_id))
    assert member.farewell("") is None
    assert steps(member) == []
    farewell = member.farewell("")
    assert isinstance(farewell, ConsumerGroupHeartbeatRequest)
    assert (farewell.member_epoch, farewell.group_instance_id) == (epoch, instance_id)
