"""A consumer group that also has members of the classic protocol (KIP-848: a fleet moves one client at a time).

The coordinator assigns partitions to all members. When a classic member joins, it gets a response at once, as a
follower whose generation is its member epoch. The response to SyncGroup has its assignment. Heartbeats ask it to join
again when it has to take a step. A cooperative member revokes by joining with the partitions that it keeps; an eager
member has none when it joins. A member must join and sync within its rebalance timeout, or it is fenced.

This corresponds to Kafka's ``classicGroupJoinToConsumerGroup`` and related methods in ``GroupMetadataManager``.
Invariant: all classic members have a protocol in common, so that the group can become a classic group as soon as it has
no other members.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from consumer_offsets.groups.classic_joins import require_room_for_bytes, require_session_timeout, require_small
from consumer_offsets.groups.classic_members import ClassicState, member_bytes
from consumer_offsets.groups.consumer_group import REBALANCE, ConsumerGroup, replaced, require_generation
from consumer_offsets.groups.conversion import to_classic_group
from consumer_offsets.groups.events import (
    UNKNOWN_MEMBER_ID,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    TopicIdPartition,
)
from consumer_offsets.groups.group_record import ClassicGroupValue
from consumer_offsets.groups.reconciliation import NOTHING, ClassicProtocol, ConsumerMember, MemberState, Partitions
from consumer_offsets.groups.responses import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    SyncGroupResponse,
)
from logstore.errors import (
    InconsistentGroupProtocolError,
    InvalidRequestError,
    LogStoreError,
    MemberIdRequiredError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from logstore.protocol.consumer_protocol import (
    PROTOCOL_TYPE,
    Assignment,
    Subscription,
    decode_subscription,
    encode_assignment,
    version_of,
)
from logstore.protocol.messages.members import LeavingMember


class MixedGroup(ConsumerGroup):
    """``downgrade`` is set when the group has to become a classic group.

    It is Stable if the members have their target assignments, and PreparingRebalance if they have to join again. Only
    ``classic_value`` may be called then.
    """

    downgrade: ClassicState | None = None

    def classic_value(self, now_ms: int) -> ClassicGroupValue:
        """Return the group as a classic group."""
        names = {description.topic_id: topic for topic, description in self._image.items()}
        return to_classic_group(self.value(), names, now_ms, is_settled=self.downgrade == ClassicState.STABLE)

    def join_would_grow(self, event: JoinGroup) -> bool:
        """Return whether the members' data would take more bytes after the request."""
        existing = self._existing(event.member_id, event.group_instance_id)
        try:
            member = _joined(existing or ConsumerMember(event.member_id), event, _subscription(self.name, event))
        except InconsistentGroupProtocolError:
            return False
        return self._num_bytes_with(member, existing, {}) > self.num_bytes

    # ---- JoinGroup --------------------------------------------------------------------------------------------------

    def join(self, event: JoinGroup, now_ms: int) -> None:
        try:
            response = self._join(event, now_ms)
        except LogStoreError as error:
            response = JoinGroupResponse(error, event.member_id)
        self._out.answer(event.request, response)

    def _join(self, event: JoinGroup, now_ms: int) -> JoinGroupResponse:
        require_session_timeout(self._config, event.session_timeout_ms)
        require_small(self.name, "metadata of a member", member_bytes(event))
        before = self._joining(event)
        self._require_common_protocol(event, before.member_id)
        subscription = _subscription(self.name, event)
        if subscription.owned and before.member_id not in self._members:
            # It was fenced meanwhile. Kafka treats it as a new member, which continues to read partitions of others.
            raise UnknownMemberIdError(
                f"Group {self.name} has no member {event.member_id!r}: give up all partitions, and join it again."
            )
        existing = self._existing(before.member_id, event.group_instance_id)
        member = _joined(before, event, subscription)
        require_room_for_bytes(self.name, self._num_bytes_with(member, existing, {}), self.num_bytes)
        if event.member_id == UNKNOWN_MEMBER_ID and event.group_instance_id is None and event.requires_known_member_id:
            error = MemberIdRequiredError(f"Join group {self.name} again as member {event.new_member_id!r}.")
            return JoinGroupResponse(error, event.new_member_id)
        after = self._advance(before, member, {}, self._owned(subscription), now_ms)
        if existing is not None and existing.classic is None and self._may_downgrade(()):
            self.downgrade = ClassicState.STABLE if self.state == "Stable" else ClassicState.PREPARING_REBALANCE
        self._arm_session(after, now_ms)
        self._out.arm(REBALANCE + after.member_id, now_ms + after.rebalance_timeout_ms)
        return JoinGroupResponse(
            None, after.member_id, after.member_epoch, PROTOCOL_TYPE, event.protocols[0].name, skip_assignment=False
        )

    def _joining(self, event: JoinGroup) -> ConsumerMember:
        """Return the member as it is before it joins; changes nothing.

        A static member without an id replaces the member that has its name, of either protocol. Raises
        UnknownMemberIdError, FencedInstanceIdError, GroupMaxSizeReachedError.
        """
        member_id = event.member_id or event.new_member_id
        if event.group_instance_id is not None:
            static = self._static.get(event.group_instance_id)
            if event.member_id:
                return self._require(event.member_id, event.group_instance_id)
            if static is not None:
                return replaced(self._members[static], member_id)
        return self._members.get(member_id) or self._new_member(member_id)

    def _require_common_protocol(self, event: JoinGroup, member_id: str) -> None:
        """Raise InconsistentGroupProtocolError if the classic members would have no protocol in common."""
        others = [each.classic for each in self._members.values() if each.classic and each.member_id != member_id]
        counts = Counter(name for other in others for name in {each.name for each in other.protocols})
        common = {name for name, count in counts.items() if count == len(others)}
        names = {each.name for each in event.protocols}
        if event.protocol_type != PROTOCOL_TYPE or not names or (others and not names & common):
            raise InconsistentGroupProtocolError(
                f"The members of group {self.name} are consumers"
                f"{f' with the assignors {sorted(common)}' if others else ''}: "
                f"join as one of them, not with {event.protocol_type} {sorted(names)}."
            )

    def _owned(self, subscription: Subscription) -> Partitions:
        """Return the partitions that a member has when it joins, without those of deleted topics."""
        return frozenset(
            TopicIdPartition(self._image[topic].topic_id, partition)
            for topic, partition in subscription.owned
            if topic in self._image
        )

    # ---- SyncGroup, Heartbeat, LeaveGroup ---------------------------------------------------------------------------

    def sync(self, event: SyncGroup, now_ms: int) -> None:
        try:
            response = self._sync(event, now_ms)
        except LogStoreError as error:
            response = SyncGroupResponse(error)
        self._out.answer(event.request, response)

    def _sync(self, event: SyncGroup, now_ms: int) -> SyncGroupResponse:
        member, classic = self._require_classic(event.member_id, event.group_instance_id, event.generation)
        for asked, chosen in ((event.protocol_type, PROTOCOL_TYPE), (event.protocol, classic.name)):
            if asked is not None and asked != chosen:
                raise InconsistentGroupProtocolError(
                    f"Member {member.member_id!r} has joined with {chosen}, not {asked}: join group {self.name} again."
                )
        self._arm_session(member, now_ms)
        if self.epoch > member.member_epoch and member.state != MemberState.UNREVOKED_PARTITIONS:
            raise self._rejoin_error(member, now_ms)
        self._out.cancel(REBALANCE + member.member_id)
        partitions = tuple(
            (topic.topic, partition)
            for topic in self._by_topic(member.assigned)
            if topic.topic in self._image
            for partition in topic.partitions
        )
        assignment = encode_assignment(Assignment(partitions), version_of(classic.protocols[0].metadata))
        return SyncGroupResponse(None, PROTOCOL_TYPE, classic.name, assignment)

    def heartbeat(self, event: Heartbeat, now_ms: int) -> None:
        error: LogStoreError | None = None
        try:
            member, _ = self._require_classic(event.member_id, event.group_instance_id, event.generation)
            self._arm_session(member, now_ms)
            if self._has_a_step_to_make(member):
                error = self._rejoin_error(member, now_ms)
        except LogStoreError as refused:
            error = refused
        self._out.answer(event.request, HeartbeatResponse(error))

    def _has_a_step_to_make(self, member: ConsumerMember) -> bool:
        """Return whether the member has to join again.

        It has to if the group has a newer epoch, if it has to revoke partitions, or if all partitions that it waits for
        are free.
        """
        if member.member_epoch < self.epoch or member.state == MemberState.UNREVOKED_PARTITIONS:
            return True
        missing = self._targets.get(member.member_id, NOTHING) - member.assigned
        return member.state == MemberState.UNRELEASED_PARTITIONS and not missing & self._owners.keys()

    def _rejoin_error(self, member: ConsumerMember, now_ms: int) -> LogStoreError:
        self._out.arm_if_absent(REBALANCE + member.member_id, now_ms + member.rebalance_timeout_ms)
        return RebalanceInProgressError(f"Group {self.name} rebalances: join it again.")

    def leave(self, event: LeaveGroup, now_ms: int) -> None:
        """Remove members as for an administrator, who may also name members of the consumer protocol."""
        gone: dict[str, ConsumerMember] = {}
        left = []
        for leaving in event.members:
            error: LogStoreError | None = None
            try:
                member = self._leaving(leaving, gone)
                gone[member.member_id] = member
            except LogStoreError as refused:
                error = refused
            left.append(LeftMember(leaving.member_id, leaving.group_instance_id, error))
        if gone:
            self._fence(gone.values(), now_ms)
        self._out.answer(event.request, LeaveGroupResponse(None, tuple(left)))

    def _leaving(self, leaving: LeavingMember, gone: dict[str, ConsumerMember]) -> ConsumerMember:
        member_id = leaving.member_id
        if member_id == UNKNOWN_MEMBER_ID and leaving.group_instance_id is not None:
            member_id = self._static.get(leaving.group_instance_id, UNKNOWN_MEMBER_ID)
        member = self._require(member_id, leaving.group_instance_id)
        if member.member_id in gone:
            raise UnknownMemberIdError(f"Member {member_id!r} is there twice.")
        return member

    def _require_classic(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicProtocol]:
        """Return a classic member. Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError."""
        member = self._require(member_id, instance_id)
        if member.classic is None:
            raise UnknownMemberIdError(f"Member {member_id!r} of group {self.name} uses the consumer protocol.")
        require_generation(member, generation)
        return member, member.classic

    # ---- downgrade --------------------------------------------------------------------------------------------------

    def _fence(self, members: Iterable[ConsumerMember], now_ms: int) -> None:
        gone = {member.member_id: member for member in members}
        if any(member.classic is None for member in gone.values()) and self._may_downgrade(gone):
            # The epoch stays, so that heartbeats report a rebalance of the generation that the other members know.
            for member in gone.values():
                self._drop(member)
            self.downgrade = ClassicState.PREPARING_REBALANCE
        else:
            super()._fence(gone.values(), now_ms)

    def _may_downgrade(self, gone: Iterable[str]) -> bool:
        """Return whether members remain without those that are gone, and all of them are classic members."""
        left = [member for member_id, member in self._members.items() if member_id not in gone]
        return self._config.downgrades and bool(left) and all(member.classic is not None for member in left)

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        super().validate()
        assert self.downgrade is None, "the group is still no classic one"
        protocols = [
            {each.name for each in m.classic.protocols} for m in self._members.values() if m.classic is not None
        ]
        assert not protocols or set.intersection(*protocols), "the classic members have no protocol in common"


def _subscription(group: str, event: JoinGroup) -> Subscription:
    """Return the subscription in a join request; clients send the same one with each of their protocols.

    Raises InconsistentGroupProtocolError.
    """
    if not event.protocols:
        raise InconsistentGroupProtocolError("A member has a protocol type and at least one protocol: send both.")
    try:
        return decode_subscription(event.protocols[0].metadata)
    except InvalidRequestError as error:
        raise InconsistentGroupProtocolError(f"Group {group} takes consumers alone: {error}") from error


def _joined(before: ConsumerMember, event: JoinGroup, subscription: Subscription) -> ConsumerMember:
    """Return the member with the data of its join request."""
    return replace(
        before,
        instance_id=event.group_instance_id if event.group_instance_id is not None else before.instance_id,
        rack_id=subscription.rack,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        classic=ClassicProtocol(event.session_timeout_ms, event.protocols),
        subscribed_topics=frozenset(subscription.topics),
        subscribed_regex="",
        server_assignor=None,
    )
