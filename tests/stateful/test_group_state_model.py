"""Groups against a reference: clients of both protocols join, pause, crash, leave and come back, topics change,
responses
are lost, and coordinators start again from the log.

Partitions have one owner, generations rise, nothing is assigned to dead members, every request is answered in the end,
and a group without disturbances settles with each partition assigned to one member. ``LOGSTORE_TORTURE=1`` runs 50,000
schedules.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from consumer_offsets.groups import (
    classic_group,
    classic_members,
    consumer_group,
    conversion,
    group,
    mixed_group,
    outbox,
    reconciliation,
)
from consumer_offsets.groups.reconciliation import NOTHING
from logstore import errors
from tests.support.group_simulation import KINDS, Simulation
from tests.support.torture import TORTURE

SCHEDULES = 300
SCHEDULES_LONG = 50_000 if TORTURE else 10_000


def run(kind: str, seeds: range) -> None:
    for seed in seeds:
        try:
            Simulation(seed, kind).run()
        except Exception as error:
            error.add_note(f"Simulation({seed}, {kind!r}).run()")
            raise


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_keeps_its_promises(kind: str):
    run(kind, range(SCHEDULES // len(KINDS)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_keeps_its_promises_in_many_schedules(kind: str):
    run(kind, range(1_000_000, 1_000_000 + SCHEDULES_LONG // len(KINDS) + 1))


# ---- planted bugs ----------------------------------------------------------------------------------------------------

ClassicGroup, ConsumerGroup = classic_group.ClassicGroup, consumer_group.ConsumerGroup
MixedGroup, TO_CLASSIC_GROUP = mixed_group.MixedGroup, conversion.to_classic_group
ClassicState, MemberState = classic_group.ClassicState, reconciliation.MemberState


def assigned_before_it_is_revoked(member: Any, *given: Any) -> Any:
    after = reconciliation.reconcile(member, *given)
    return dataclasses.replace(
        after,
        pending_revocation=frozenset(),
        state=MemberState.STABLE if after.state == MemberState.UNREVOKED_PARTITIONS else after.state,
    )


def revoked_when_asked(member: Any, target: Any, target_epoch: int, owners: Any, owned: Any) -> Any:
    return reconciliation.reconcile(member, target, target_epoch, owners, frozenset())


def only_the_first_sync_is_answered(self: Any, error: Any, now_ms: int) -> None:
    for member in self._members.by_id.values():
        if member.parked_sync is not None:
            response = self._synced(member) if error is None else classic_group.SyncGroupResponse(error)
            if member.member_id == self._members.leader:
                self._out.answer(member.parked_sync, response)
            member.parked_sync = None
            self._arm_session(member, now_ms)


def heartbeat_that_does_not_count(self: Any, event: Any, now_ms: int) -> None:
    known = event.member_id in self._members.by_id
    error = None if known else errors.UnknownMemberIdError("")
    self._out.answer(event.request, classic_group.HeartbeatResponse(error))


def session_that_never_ends(self: Any, member_id: str, now_ms: int) -> None:
    self._out.arm("heartbeat/" + member_id, now_ms + 10_000)


def consumer_session_that_never_ends(self: Any, key: str, now_ms: int) -> None:
    self._out.arm(key, now_ms + 10_000)


def recorded_only_when_stable(append: Callable[[Any], None]) -> Callable[[Any], None]:
    def append_unless_completing(self: Any) -> None:
        if self.state != ClassicState.COMPLETING_REBALANCE:
            append(self)

    return append_unless_completing


def fenced_without_a_record(self: Any, members: Any, now_ms: int) -> None:
    for member in members:
        self._drop(member)
    self._look_at_topics({})
    self.epoch += 1
    if not self._members:
        self._assign()


def timer_that_is_always_due(self: Any, key: str, now_ms: int) -> bool:
    return self.deadlines.pop(key, None) is not None


def assignment_of_the_leader_for_all(self: Any, member: Any) -> Any:
    leader = self._members.by_id[self._members.leader]
    return classic_group.SyncGroupResponse(None, self._protocol_type, self._protocol, leader.assignment)


def first_protocol_of_the_leader(self: Any) -> str:
    return self.by_id[self.leader].protocols[0].name


def fenced_without_an_id(require: Callable[..., Any]) -> Callable[..., Any]:
    def require_as_kafka_does(self: Any, member_id: str, instance_id: str | None) -> Any:
        if member_id == "" and instance_id in self.static:
            raise errors.FencedInstanceIdError("")
        return require(self, member_id, instance_id)

    return require_as_kafka_does


def rejoined_with_what_it_had(self: Any, event: Any) -> Any:
    member = self._members.get(event.member_id)
    return member or consumer_group.ConsumerMember(event.member_id)


def always_settled(*given: Any, **_: Any) -> Any:
    return TO_CLASSIC_GROUP(*given, is_settled=True)


#: Each bug, with the object that it breaks, the attribute, and the broken replacement.
BUGS: dict[str, tuple[Any, str, Any]] = {
    "another is assigned before a member has revoked": (consumer_group, "reconcile", assigned_before_it_is_revoked),
    "a member is believed to have revoked when it is asked to": (consumer_group, "reconcile", revoked_when_asked),
    "topics that change are not seen": (ConsumerGroup, "_look_at_topics", lambda self, matches: False),
    "the end of a session does nothing": (ClassicGroup, "_on_session_timer", session_that_never_ends),
    "the end of a consumer's session does nothing": (ConsumerGroup, "on_timer", consumer_session_that_never_ends),
    "followers are not told their assignment": (ClassicGroup, "_answer_syncs", only_the_first_sync_is_answered),
    "followers get the leader's assignment": (ClassicGroup, "_synced", assignment_of_the_leader_for_all),
    "any generation may commit": (ClassicGroup, "_require_generation", lambda self, generation: None),
    "heartbeats do not count": (ClassicGroup, "heartbeat", heartbeat_that_does_not_count),
    "a generation is not recorded when it begins": (
        ClassicGroup,
        "_append",
        recorded_only_when_stable(ClassicGroup._append),
    ),
    "a member that is fenced stays in the log": (ConsumerGroup, "_fence", fenced_without_a_record),
    "a timer that was armed anew still fires": (outbox.Outbox, "is_due", timer_that_is_always_due),
    "the leader's protocol is taken": (classic_members.ClassicMembers, "select_protocol", first_protocol_of_the_leader),
    "a static member that has lost its id is fenced": (
        classic_members.ClassicMembers,
        "require",
        fenced_without_an_id(classic_members.ClassicMembers.require),
    ),
    "epochs are not checked": (consumer_group, "_require_epoch", lambda member, epoch, owned: None),
    "a member that joins again keeps what it had": (ConsumerGroup, "_member_of", rejoined_with_what_it_had),
    "a conversion forgets what members hold": (conversion, "_claim", lambda member, subscription: (0, ())),
    "classic members are believed to have revoked": (MixedGroup, "_owned", lambda self, subscription: NOTHING),
    "a classic member is not told to join again": (MixedGroup, "_has_a_step_to_make", lambda self, member: False),
    "the end of a consumer group is not seen": (MixedGroup, "_may_downgrade", lambda self, gone: False),
    "a downgrade is recorded as a stable group": (mixed_group, "to_classic_group", always_settled),
    "an early generation is taken up after a change of kind": (group.Group, "generation", 0),
}


#: No earlier seed shows the bug, so the search begins here.
FIRST_SEEDS = {
    "classic members are believed to have revoked": 217,
    "a static member that has lost its id is fenced": 150,
    "a conversion forgets what members hold": 117,
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch):
    """Run schedules until one breaks a guarantee or an invariant."""
    monkeypatch.setattr(*BUGS[bug])
    first = FIRST_SEEDS.get(bug, 0)
    with pytest.raises(AssertionError):
        run_all(range(first, first + SCHEDULES))


def run_all(seeds: range) -> None:
    for seed in seeds:
        for kind in KINDS:
            Simulation(seed, kind).run()
