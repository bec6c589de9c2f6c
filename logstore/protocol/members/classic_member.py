"""A member of a classic group (Kafka's JoinGroup, SyncGroup, Heartbeat; KIP-429 for the cooperative protocol).

A rebalance goes PREPARING → JOINING → (ASSIGNING, the leader) → SYNCING → COMPLETING → STABLE. With an eager assignor
everything is revoked in PREPARING. With cooperative-sticky alone only partitions that move are revoked, in COMPLETING,
and the member joins once more.
"""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

from logstore.errors import (
    IllegalGenerationError,
    InvalidRequestError,
    LogStoreError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from logstore.protocol.assignors.assignor import MemberSubscription
from logstore.protocol.assignors.member_metadata import decode_metadata, encode_metadata
from logstore.protocol.assignors.registry import CLIENT_ASSIGNORS
from logstore.protocol.consumer_protocol import (
    Assignment,
    decode_assignment,
    decode_partition_counts,
    encode_assignment,
    encode_partition_counts,
)
from logstore.protocol.members.identity import MemberIdentity, TopicPartition
from logstore.protocol.members.membership import (
    Assigned,
    MemberOptions,
    Membership,
    PartitionCounts,
    Revoked,
    State,
    Step,
    Todo,
)
from logstore.protocol.messages.members import (
    GroupRequest,
    HeartbeatRequest,
    JoinedGroup,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    Protocol,
    SyncedGroup,
    SyncGroupRequest,
)

_COOPERATIVE: Final = "cooperative-sticky"
_NO_GENERATION: Final = -1
#: In these states the member has a generation, and only heartbeats show the group that it is alive.
_SENDS_HEARTBEATS: Final = (State.PREPARING, State.COMPLETING, State.STABLE)


class ClassicMember(Membership):
    def __init__(self, options: MemberOptions) -> None:
        super().__init__(options)
        # As in Kafka, one eager assignor makes the member eager.
        self._eager = any(name != _COOPERATIVE for name in options.assignors)
        self._generation = _NO_GENERATION
        self._joined: JoinedGroup | None = None
        self._assignments_of_all: tuple[MemberAssignment, ...] = ()
        # The leader keeps the numbers of partitions with which it has assigned. None means that another member leads.
        self._assigned_by: Mapping[str, int] | None = None
        self._assigned_for: frozenset[str] = frozenset()
        # The last assignment and its generation, for the sticky assignor.
        self._before: tuple[tuple[TopicPartition, ...], int] = ((), _NO_GENERATION)
        # Join again when this rebalance is complete.
        self._again = False
        self._is_announced = False

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _due(self) -> float:
        return self._heartbeat_at if self.state in _SENDS_HEARTBEATS else 0.0

    def _request(self) -> Todo:
        options = self.options
        if self.state is State.JOINING:
            self._again = False
            return JoinGroupRequest(
                member_id=options.member_id,
                group_instance_id=options.group_instance_id,
                session_timeout_ms=round(options.session_timeout_s * 1000),
                rebalance_timeout_ms=round(options.max_poll_interval_s * 1000),
                protocols=tuple(Protocol(name, self._metadata(name)) for name in options.assignors),
            )
        if self.state is State.ASSIGNING:
            return PartitionCounts(self._assigned_for)
        if self.state is State.SYNCING:
            assert self._joined is not None
            return SyncGroupRequest(
                member_id=options.member_id,
                generation=self._generation,
                group_instance_id=options.group_instance_id,
                protocol=self._joined.protocol,
                assignments=self._assignments_of_all,
            )
        return HeartbeatRequest(
            member_id=options.member_id,
            generation=self._generation,
            group_instance_id=options.group_instance_id,
            since_poll_ms=self._since_poll_ms,
        )

    def _metadata(self, assignor: str) -> bytes:
        assert self.topics is not None
        owned, generation = self._before if self._eager else (tuple(self.owned), self._generation)
        if self._eager and assignor == _COOPERATIVE:
            owned = ()
        return encode_metadata(assignor, MemberSubscription(tuple(self.topics), owned, generation))

    def farewell(self, reason: str) -> GroupRequest | None:
        if self.options.group_instance_id is not None or self.state in (State.UNJOINED, State.FENCED):
            return None
        return LeaveGroupRequest(members=(LeavingMember(self.options.member_id, None, reason),))

    def resume(self, generation: int, owned: Iterable[TopicPartition], partitions: Mapping[str, int]) -> None:
        """Continue as the member that the group knows: stable in ``generation``, with the assigned partitions
        ``owned``.

        ``partitions`` has the numbers of partitions of the subscribed topics, which a leader follows.
        """
        self._resume(MemberIdentity(self.options.member_id, generation), dict.fromkeys(owned, ""))
        self._generation = generation
        self._before = tuple(self.owned), generation
        self._is_announced = True
        self._assigned_by, self._assigned_for = partitions, self.topics or frozenset()

    # ---- outcomes ---------------------------------------------------------------------------------------------------

    def _take(self, todo: Todo, answer: object, now: float) -> None:
        self._heartbeat_at = now + self.options.heartbeat_interval_s
        if isinstance(todo, JoinGroupRequest):
            assert isinstance(answer, JoinedGroup)
            self._take_generation(answer)
        elif isinstance(todo, PartitionCounts):
            assert isinstance(answer, dict)
            self._assign(answer)
        elif isinstance(todo, SyncGroupRequest):
            assert isinstance(answer, SyncedGroup)
            assignment = decode_assignment(answer.assignment) if answer.assignment else Assignment(())
            self._target = {TopicPartition(*partition): "" for partition in assignment.partitions}
            self._take_up_leading(assignment)
            self._before = tuple(self._target), self._generation
            self._is_announced = False
            self.state = State.COMPLETING

    def _take_generation(self, joined: JoinedGroup) -> None:
        if self.owned and joined.generation != self._generation + 1:
            # A generation has passed without this member: another one may have had its partitions in it.
            self._lost = True
            self._since.clear()
        self._joined = joined
        self._generation = joined.generation
        self.identity = MemberIdentity(self.options.member_id, joined.generation, self.options.group_instance_id)
        self._assignments_of_all = ()
        self._assigned_by = None
        self._assigned_for = frozenset()
        if joined.leader == self.options.member_id:
            self._assigned_for = frozenset(
                topic for member in self._subscriptions(joined).values() for topic in member.topics
            )
            self.state = State.ASSIGNING
        else:
            self.state = State.SYNCING

    def _assign(self, partitions: Mapping[str, int]) -> None:
        joined = self._joined
        assert joined is not None
        self._assigned_by = partitions
        if not joined.skip_assignment:
            assigned = CLIENT_ASSIGNORS[joined.protocol or ""].assign(partitions, self._subscriptions(joined))
            counts = encode_partition_counts(partitions)
            self._assignments_of_all = tuple(
                MemberAssignment(
                    member_id, encode_assignment(Assignment(tuple(its), counts if member_id == joined.leader else None))
                )
                for member_id, its in assigned.items()
            )
        self.state = State.SYNCING

    def _take_up_leading(self, assignment: Assignment) -> None:
        """Take the numbers of partitions of the group's assignment over when a static leader comes back (KIP-814). They
        may have changed while it was away, and no other member checks them.
        """
        assert self._joined is not None
        if self._joined.skip_assignment and assignment.user_data is not None:
            with contextlib.suppress(InvalidRequestError):  # The previous leader was another client.
                self._assigned_by = decode_partition_counts(assignment.user_data)

    @staticmethod
    def _subscriptions(joined: JoinedGroup) -> dict[str, MemberSubscription]:
        return {
            member.member_id: decode_metadata(joined.protocol or "", member.metadata, member.group_instance_id)
            for member in joined.members
        }

    def _is_refusal(self, todo: Todo, error: LogStoreError, now: float) -> bool:
        if isinstance(todo, LeaveGroupRequest):
            return True  # The session ends by itself.
        if isinstance(error, RebalanceInProgressError):
            self._heartbeat_at = now + self.options.heartbeat_interval_s
            if isinstance(todo, HeartbeatRequest):
                self._join_again()
            else:
                self.state = State.JOINING
                self._retry_at = now + next(self._backoffs)
            return True
        if isinstance(error, (UnknownMemberIdError, IllegalGenerationError)):
            self._lose()
            return True
        return False

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _has_step(self) -> bool:
        return self.state in (State.PREPARING, State.COMPLETING)

    def _step(self) -> Step | None:
        if self.state is State.UNJOINED and self.topics is not None:
            self.state = State.JOINING
        if self.state is State.COMPLETING:
            if gone := self.owned.keys() - self._target.keys():
                return Revoked(frozenset(gone))
            if not self._is_announced:
                return Assigned(frozenset(self._target.keys() - self.owned.keys()))
            self.state = State.PREPARING if self._again else State.STABLE
        if self.state is State.PREPARING:
            assert self.topics is not None
            gone = {partition for partition in self.owned if self._eager or partition.topic not in self.topics}
            if gone:
                return Revoked(frozenset(gone))
            self.state = State.JOINING
        return None

    def _done(self, step: Step) -> None:
        if self.state is State.COMPLETING:
            if isinstance(step, Assigned):
                self._is_announced = True
            elif isinstance(step, Revoked):
                # The partitions may only now be given to others.
                self._again = True

    # ---- topics -----------------------------------------------------------------------------------------------------

    @property
    def followed(self) -> frozenset[str]:
        return self._assigned_for

    def resubscribe(self, topics: frozenset[str] | None, regex: str | None) -> None:
        self.regex = regex
        if topics is not None and topics != self.topics:
            self.topics = topics
            self._join_again()

    def found_topics(self, subscribed: frozenset[str], partitions: Mapping[str, int]) -> None:
        changed = subscribed != self.topics
        self.topics = subscribed
        if self._assigned_by is not None:
            now = {topic: partitions[topic] for topic in self._assigned_for if topic in partitions}
            changed |= now != self._assigned_by
        if changed:
            self._join_again()

    def _join_again(self) -> None:
        if self.state is State.STABLE:
            self.state = State.PREPARING
        elif self.state not in (State.UNJOINED, State.FENCED, State.PREPARING):
            self._again = True
