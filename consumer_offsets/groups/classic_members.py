"""The members of a classic group, with their leader and the protocol that all of them support.

In Kafka this is ``ClassicGroup``. Invariants: a ``group.instance.id`` names one member; the leader is a member; a
member id is a member's or pending, never both.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.groups.description import MemberDescription
from consumer_offsets.groups.events import UNKNOWN_MEMBER_ID, JoinGroup
from consumer_offsets.groups.group_record import ClassicMemberValue, names_bytes, protocols_bytes
from logstore.errors import FencedInstanceIdError, InvalidRequestError, UnknownMemberIdError
from logstore.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment, decode_subscription
from logstore.protocol.messages.members import JoinedMember, Protocol


class ClassicState(StrEnum):
    """Kafka's ClassicGroupState, without Dead, which Group itself keeps."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(slots=True)
class ClassicMember:
    """``parked_join`` and ``parked_sync`` are requests that wait for their responses. A member ``is_new`` until its
    first JoinGroup has a response.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    parked_join: int | None = None
    parked_sync: int | None = None
    is_new: bool = False

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def vote(self, candidates: set[str]) -> str:
        """Return the member's first protocol that all support."""
        return next(each.name for each in self.protocols if each.name in candidates)

    def has_satisfied_heartbeat(self) -> bool:
        """Return whether the member waits for a response, so that it sends no heartbeats. A new member may be gone
        meanwhile.
        """
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)


def member_bytes(member: ClassicMember | JoinGroup) -> int:
    """Return the bytes of the group's record for a member and what it joins with."""
    instance_id = member.group_instance_id if isinstance(member, JoinGroup) else member.instance_id
    names = names_bytes(member.member_id, instance_id, member.client_id, member.client_host)
    return names + protocols_bytes(member.protocols)


class ClassicMembers:
    def __init__(self) -> None:
        #: The members in the order in which they joined.
        self.by_id: dict[str, ClassicMember] = {}
        self.static: dict[str, str] = {}
        self.leader: str | None = None
        #: Ids that were given out with MEMBER_ID_REQUIRED and have not joined yet (KIP-394), in order.
        self.pending_join: dict[str, None] = {}
        #: Members of this generation that have not sent SyncGroup, in order.
        self.pending_sync: dict[str, None] = {}
        #: The bytes that all members joined with, and those of each member.
        self.joined_bytes = 0
        self._sizes: dict[str, int] = {}
        #: The bytes that the leader assigned last. The next generation drops them, and its assignments take their room.
        self.assigned_bytes = 0

    @classmethod
    def of(cls, values: Iterable[ClassicMemberValue], leader: str | None) -> Self:
        """Return the members of a group's record."""
        members = cls()
        for each in values:
            members.add(
                ClassicMember(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.session_timeout_ms,
                    each.rebalance_timeout_ms,
                    tuple(Protocol(*protocol) for protocol in each.protocols),
                    each.assignment,
                )
            )
        members.leader = leader
        members.assigned_bytes = sum(len(each.assignment) for each in members.by_id.values())
        return members

    def values(self) -> list[ClassicMemberValue]:
        """Return the members for the group's record."""
        return [
            ClassicMemberValue(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout_ms,
                member.rebalance_timeout_ms,
                [(one.name, one.metadata) for one in member.protocols],
                member.assignment,
            )
            for member in self.by_id.values()
        ]

    def described(self, protocol_type: str | None, protocol: str | None) -> tuple[MemberDescription, ...]:
        """Return the members for a description of the group."""
        return tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                _assigned(member.assignment) if protocol_type == PROTOCOL_TYPE else (),
                member.metadata(protocol),
                member.assignment,
            )
            for member in self.by_id.values()
        )

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, member: ClassicMember) -> None:
        assert member.member_id not in self.by_id
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.static
            self.static[member.instance_id] = member.member_id
        self.leader = self.leader or member.member_id
        self.pending_join.pop(member.member_id, None)
        self.measure(member)

    def measure(self, member: ClassicMember) -> None:
        """Measure a member again that has joined with other data."""
        num_bytes = member_bytes(member)
        self.joined_bytes += num_bytes - self._sizes.get(member.member_id, 0)
        self._sizes[member.member_id] = num_bytes

    def joined_bytes_with(self, event: JoinGroup) -> int:
        """Return ``joined_bytes`` after the request, which replaces its member's bytes, those of a static member by
        instance id.
        """
        replaced = self.static.get(event.group_instance_id) if event.group_instance_id is not None else None
        return self.joined_bytes - self._sizes.get(replaced or event.member_id, 0) + member_bytes(event)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Set the assignments by member id; a member that is not named gets nothing."""
        for member in self.by_id.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.assigned_bytes = sum(len(member.assignment) for member in self.by_id.values())

    def remove(self, member_id: str) -> None:
        """Remove a member, which may be pending. The member that joined first leads next."""
        member = self.by_id.pop(member_id, None)
        if member is not None and member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.by_id), None)
        self.pending_join.pop(member_id, None)
        self.pending_sync.pop(member_id, None)
        self.joined_bytes -= self._sizes.pop(member_id, 0)
        if not self.by_id:
            self.assigned_bytes = 0

    def rename(self, member: ClassicMember, new_member_id: str) -> None:
        """Give a static member another id. It keeps its place, the lead and its assignment (KIP-345)."""
        assert member.instance_id is not None
        old = member.member_id
        self.by_id = {new_member_id if at == old else at: each for at, each in self.by_id.items()}
        self.pending_sync = dict.fromkeys(new_member_id if at == old else at for at in self.pending_sync)
        self.static[member.instance_id] = new_member_id
        if self.leader == old:
            self.leader = new_member_id
        member.member_id = new_member_id
        self._sizes[new_member_id] = self._sizes.pop(old)

    def require(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """Return a member. Raises UnknownMemberIdError, or FencedInstanceIdError if another one has the instance id."""
        if instance_id is not None:
            owner = self.static.get(instance_id)
            if owner is None:
                raise UnknownMemberIdError(
                    f"No member has the group.instance.id {instance_id!r}: join the group again."
                )
            # A member without an id is unknown, where Kafka fences it. librdkafka forgets its id when its session ends,
            # but sends heartbeats until its partitions are given up, and a fenced member is a fatal error there.
            if member_id not in (owner, UNKNOWN_MEMBER_ID):
                raise FencedInstanceIdError(
                    f"Another member has the group.instance.id {instance_id!r}: give each consumer its own."
                )
        member = self.by_id.get(member_id)
        if member is None:
            raise UnknownMemberIdError(f"The group has no member {member_id!r}: join the group again.")
        return member

    def all_have_joined(self) -> bool:
        return not self.pending_join and all(member.parked_join is not None for member in self.by_id.values())

    def num_awaiting_join(self) -> int:
        return sum(member.parked_join is not None for member in self.by_id.values())

    def elect_leader_that_joined(self) -> bool:
        """Return whether the leader has joined this rebalance, or was replaced by another member that has."""
        if self.leader is not None and self.by_id[self.leader].parked_join is None:
            joined = (member_id for member_id, member in self.by_id.items() if member.parked_join is not None)
            leader = next(joined, None)
            if leader is None:
                return False
            self.leader = leader
        return self.leader is not None

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance time-out of all members."""
        return max((member.rebalance_timeout_ms for member in self.by_id.values()), default=0)

    def common_protocols(self) -> set[str]:
        """Return the protocols that every member supports."""
        votes = Counter(name for member in self.by_id.values() for name in {each.name for each in member.protocols})
        return {name for name, count in votes.items() if count == len(self.by_id)}

    def select_protocol(self) -> str:
        """Return the common protocol with most votes; each member votes for its first. The earlier member decides a
        tie.
        """
        candidates = self.common_protocols()
        votes = Counter(member.vote(candidates) for member in self.by_id.values())
        return max(votes, key=votes.__getitem__)

    def subscribed_topics(self, protocol: str) -> frozenset[str] | None:
        """Return the topics in the subscriptions of members of type "consumer"; None if one of them is not a
        subscription.
        """
        try:
            metadata = [member.metadata(protocol) for member in self.by_id.values()]
            return frozenset(topic for each in metadata for topic in decode_subscription(each).topics)
        except InvalidRequestError:
            return None

    def have_assigned_user_data(self) -> bool:
        """Return whether the leader has sent user data. Raises InvalidRequestError if its bytes are not of the consumer
        protocol.
        """
        return any(decode_assignment(each.assignment).user_data for each in self.by_id.values() if each.assignment)

    def for_leader(self, protocol: str | None) -> tuple[JoinedMember, ...]:
        """Return the members for the leader's JoinGroup response."""
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(protocol))
            for member in self.by_id.values()
        )

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        for member_id, member in self.by_id.items():
            assert member.member_id == member_id, f"{member_id} is kept under another id"
            if member.instance_id is not None:
                assert self.static.get(member.instance_id) == member_id, (
                    f"{member.instance_id} does not name {member_id}"
                )
        assert set(self.static.values()) <= self.by_id.keys(), "an instance id names nobody"
        assert len(set(self.static.values())) == len(self.static), "a member has two instance ids"
        assert (self.leader is None) == (not self.by_id), "a group with members has one leader"
        assert self.leader is None or self.leader in self.by_id, "the leader is no member"
        assert self._sizes.keys() == self.by_id.keys(), "others than the members are measured"
        assert self.joined_bytes == sum(map(member_bytes, self.by_id.values())), "members have other sizes"
        assigned_bytes = sum(len(member.assignment) for member in self.by_id.values())
        assert self.assigned_bytes >= assigned_bytes, "assignments have other sizes"
        assert self.by_id or not self.assigned_bytes, "nobody has room for an assignment"
        assert not self.pending_join.keys() & self.by_id.keys(), "a member is pending"
        assert self.pending_sync.keys() <= self.by_id.keys(), "the sync of somebody who is no member is awaited"
        parked = [each for member in self.by_id.values() for each in (member.parked_join, member.parked_sync)]
        requests = [request for request in parked if request is not None]
        assert len(requests) == len(set(requests)), "a request is parked twice"


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    if not data:
        return ()
    try:
        return tuple(TopicPartition(*place) for place in sorted(decode_assignment(data).partitions))
    except InvalidRequestError:
        return ()  # The client uses its own format.
