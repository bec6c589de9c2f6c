"""A member of a group of the consumer protocol (KIP-848): the store assigns, the member reconciles.

Every response may bring the partitions that the member may hold. It first revokes all others, and reports that at once
in the next heartbeat. Then it takes the new ones.
"""

from collections.abc import Mapping
from typing import cast
from uuid import UUID

from logstore.errors import FencedMemberEpochError, LogStoreError, UnknownMemberIdError
from logstore.protocol.members.identity import MemberIdentity, TopicPartition
from logstore.protocol.members.membership import (
    Assigned,
    MemberOptions,
    Membership,
    Revoked,
    State,
    Step,
    Todo,
)
from logstore.protocol.messages.members import (
    ConsumerGroupHeartbeat,
    ConsumerGroupHeartbeatRequest,
    GroupRequest,
    OwnedPartition,
    ServerAssignor,
)

_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_EPOCH_STATIC = -2


class ConsumerMember(Membership):
    def __init__(self, options: MemberOptions) -> None:
        super().__init__(options)
        self._epoch = _JOIN_EPOCH
        self._told_owned: frozenset[tuple[str, int]] | None = None
        self._told_assigned = True
        # Send the next heartbeat at once.
        self._acknowledges = False

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _due(self) -> float:
        return 0.0 if self.state is State.JOINING or self._acknowledges else self._heartbeat_at

    def _request(self) -> Todo:
        options, joins = self.options, self.state is State.JOINING
        owned = frozenset((topic_id, number) for (_, number), topic_id in self.owned.items())
        # After a failure it is unknown what has arrived, so everything is reported again.
        in_full = joins or self._told_owned is None
        # A report made while a revoked partition was being assigned may equal the present one: it reported no
        # revocation.
        tells = in_full or self._acknowledges or owned != self._told_owned
        self._told_owned, self._acknowledges = owned, False
        return ConsumerGroupHeartbeatRequest(
            member_id=options.member_id,
            member_epoch=_JOIN_EPOCH if joins else self._epoch,
            group_instance_id=options.group_instance_id,
            rebalance_timeout_ms=round(options.max_poll_interval_s * 1000) if in_full else -1,
            subscribed_topics=tuple(sorted(self.topics or ())) if in_full else None,
            # An empty regex ends the previous subscription by regex.
            subscribed_regex=self.regex or "" if in_full else None,
            server_assignor=cast(ServerAssignor, options.assignors[0]) if in_full and options.assignors else None,
            owned=tuple(OwnedPartition(UUID(topic_id), number) for topic_id, number in sorted(owned))
            if tells
            else None,
            since_poll_ms=self._since_poll_ms,
        )

    def farewell(self, reason: str) -> GroupRequest | None:  # noqa: ARG002
        if self.state in (State.UNJOINED, State.FENCED):
            return None
        instance_id = self.options.group_instance_id
        return ConsumerGroupHeartbeatRequest(
            member_id=self.options.member_id,
            member_epoch=_LEAVE_EPOCH if instance_id is None else _LEAVE_EPOCH_STATIC,
            group_instance_id=instance_id,
        )

    def resume(self, epoch: int, owned: Mapping[TopicPartition, str]) -> None:
        """Continue as the member that the group knows: in ``epoch``, with ``owned`` (by topic id)."""
        self._resume(MemberIdentity(self.options.member_id, epoch), owned)
        self._epoch = epoch

    # ---- outcomes ---------------------------------------------------------------------------------------------------

    def _take(self, todo: Todo, answer: object, now: float) -> None:
        assert isinstance(todo, ConsumerGroupHeartbeatRequest)
        assert isinstance(answer, ConsumerGroupHeartbeat)
        if todo.member_epoch < 0:
            return
        self._heartbeat_at = now + answer.heartbeat_interval_ms / 1000
        self._epoch = answer.member_epoch
        self.identity = MemberIdentity(self.options.member_id, self._epoch, self.options.group_instance_id)
        self.state = State.STABLE
        if answer.assignment is not None:
            self._target = {
                TopicPartition(each.topic, each.partition): str(each.topic_id) for each in answer.assignment
            }
            self._told_assigned = False

    def _is_refusal(self, todo: Todo, error: LogStoreError, now: float) -> bool:  # noqa: ARG002
        assert isinstance(todo, ConsumerGroupHeartbeatRequest)
        if todo.member_epoch < 0:
            return True  # The session ends by itself.
        if isinstance(error, (UnknownMemberIdError, FencedMemberEpochError)):
            self._lose()
            return True
        self._told_owned = None
        return False

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _has_step(self) -> bool:
        return self.state is State.STABLE and not self._told_assigned

    def _step(self) -> Step | None:
        if self.state is State.UNJOINED:
            self._told_owned = None
            self.state = State.JOINING
        if not self._has_step():
            return None
        if gone := {each for each, topic_id in self.owned.items() if self._target.get(each) != topic_id}:
            return Revoked(frozenset(gone))
        return Assigned(frozenset(self._target.keys() - self.owned.keys()))

    def _done(self, step: Step) -> None:
        if isinstance(step, Assigned):
            # The target may have changed meanwhile.
            self._told_assigned = self._assigning is self._target
        elif isinstance(step, Revoked):
            self._acknowledges = True

    # ---- topics: the store looks after them -------------------------------------------------------------------------

    @property
    def followed(self) -> frozenset[str]:
        return frozenset()

    def resubscribe(self, topics: frozenset[str] | None, regex: str | None) -> None:
        self.topics, self.regex = topics, regex
        self._told_owned, self._acknowledges = None, True

    def found_topics(self, subscribed: frozenset[str], partitions: Mapping[str, int]) -> None:
        pass
