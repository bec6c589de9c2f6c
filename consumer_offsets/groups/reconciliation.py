"""One step of a member of a consumer group from what it has to what it is to have (KIP-848).

Kafka's ``CurrentAssignmentBuilder``. A member first gives up what is not in its target, at its old epoch; then it goes
to the target's epoch and takes what nobody holds any more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from consumer_offsets.groups.events import TopicIdPartition
from consumer_offsets.groups.group_record import names_bytes, topic_names_bytes

Partitions = frozenset[TopicIdPartition]
NOTHING: Partitions = frozenset()


class MemberState(StrEnum):
    """Kafka's MemberState: it waits for the member to revoke, or for others to release, or for nothing."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked_partitions"
    UNRELEASED_PARTITIONS = "unreleased_partitions"


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """``assigned`` is what the member may hold, ``pending_revocation`` what it is to give up and may still hold."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topics: frozenset[str] = frozenset()
    subscribed_regex: str = ""
    server_assignor: str | None = None
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Partitions = NOTHING
    pending_revocation: Partitions = NOTHING

    @property
    def num_bytes(self) -> int:
        """What the member brings into the group's record."""
        names = names_bytes(self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host)
        return names + topic_names_bytes(self.subscribed_topics) + len(self.subscribed_regex)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == MemberState.STABLE and self.member_epoch == target_epoch


def reconcile(
    member: ConsumerMember,
    target: Partitions,
    target_epoch: int,
    owners: Mapping[TopicIdPartition, str],
    owned: Partitions | None,
) -> ConsumerMember:
    """The member after this step, or the same one. ``owned`` is what it says that it holds, None if it says nothing."""
    if member.state == MemberState.UNREVOKED_PARTITIONS:
        if owned is None or owned & member.pending_revocation:
            return member
        return _next(member, member.member_epoch + 1, target, target_epoch, owners, owned)
    if member.is_reconciled_to(target_epoch):
        return member
    return _next(member, member.member_epoch, target, target_epoch, owners, owned)


def _next(
    member: ConsumerMember,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owners: Mapping[TopicIdPartition, str],
    owned: Partitions | None,
) -> ConsumerMember:
    kept = member.assigned & target
    revoked = member.assigned - target
    if revoked and (owned is None or owned & revoked):
        return _at(member, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    missing = target - kept
    free = frozenset(each for each in missing if owners.get(each, member.member_id) == member.member_id)
    state = MemberState.STABLE if free == missing else MemberState.UNRELEASED_PARTITIONS
    return _at(member, target_epoch, state, kept | free, NOTHING)


def _at(
    member: ConsumerMember, epoch: int, state: MemberState, assigned: Partitions, pending_revocation: Partitions
) -> ConsumerMember:
    previous = member.previous_member_epoch if epoch == member.member_epoch else member.member_epoch
    return replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=previous,
        state=state,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )
