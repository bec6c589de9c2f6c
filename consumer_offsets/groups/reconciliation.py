"""One step of a member of a consumer group from its present partitions to its target (KIP-848).

In Kafka this is ``CurrentAssignmentBuilder``. A member first gives up the partitions outside its target, at its old
epoch. Then it moves to the target's epoch and takes the partitions that nobody holds any more.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from uuid import UUID

from consumer_offsets.groups.events import TopicIdPartition
from consumer_offsets.groups.group_record import names_bytes, protocols_bytes, topic_names_bytes
from logstore.protocol.messages.members import Protocol

Partitions = frozenset[TopicIdPartition]
NOTHING: Partitions = frozenset()


def by_topic(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    """Group the partitions by topic id, in order of their numbers."""
    numbers: dict[UUID, list[int]] = defaultdict(list)
    for topic_id, partition in sorted(partitions):
        numbers[topic_id].append(partition)
    return dict(numbers)


def partitions_of(numbers: Mapping[UUID, list[int]]) -> Partitions:
    """Undo ``by_topic``."""
    return frozenset(TopicIdPartition(topic_id, number) for topic_id, each in numbers.items() for number in each)


class MemberState(StrEnum):
    """Kafka's MemberState: the member has its partitions, has to revoke some, or waits for others to release some."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked_partitions"
    UNRELEASED_PARTITIONS = "unreleased_partitions"


@dataclass(frozen=True, slots=True)
class ClassicProtocol:
    """The protocols of a consumer group's member that joined with the classic protocol. Its generation is its member
    epoch, and its protocol the first one.
    """

    session_timeout_ms: int
    protocols: tuple[Protocol, ...]

    @property
    def name(self) -> str:
        return self.protocols[0].name

    @property
    def num_bytes(self) -> int:
        """The bytes that it brings into the group's record."""
        return protocols_bytes(self.protocols)


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """``assigned`` has the partitions that the member may hold, ``pending_revocation`` those that it is to give up and
    may still hold. ``classic`` is None for a member of the consumer protocol.
    """

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    classic: ClassicProtocol | None = None
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
        """The bytes that the member brings into the group's record."""
        names = names_bytes(self.member_id, self.instance_id, self.rack_id, self.client_id, self.client_host)
        classic = 0 if self.classic is None else self.classic.num_bytes
        return names + topic_names_bytes(self.subscribed_topics) + len(self.subscribed_regex) + classic

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state == MemberState.STABLE and self.member_epoch == target_epoch


def reconcile(
    member: ConsumerMember,
    target: Partitions,
    target_epoch: int,
    owners: Mapping[TopicIdPartition, str],
    owned: Partitions | None,
) -> ConsumerMember:
    """Return the member after this step, or the same one. ``owned`` is what the member reports to hold, None if it
    reports nothing.
    """
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
