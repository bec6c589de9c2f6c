"""One group, whose state machine is used through this class.

``apply(event, now_ms)`` gives the effects of an event, and is the only thing that changes a group after its ``replay``
and ``resume``. A group is classic or a consumer group (KIP-848). A group with members changes its kind as
``group.consumer.migration.policy`` allows: the first member of the consumer protocol makes a classic group a consumer
group, and when the last one leaves, the others are a classic group again. The generation, or epoch, keeps rising when
the kind changes, so that a commit of an earlier life is always refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from consumer_offsets.effects import AppendRecord, Effect, TimerFired
from consumer_offsets.groups.classic_group import ClassicGroup
from consumer_offsets.groups.description import GroupDescription, MemberDescription
from consumer_offsets.groups.events import (
    JOIN_GROUP_MEMBER_EPOCH,
    CommitOffsets,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    Event,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    TopicImage,
    TopicsChanged,
    Unload,
)
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups.group_record import ClassicGroupValue, GroupRecord, Tombstone
from consumer_offsets.groups.mixed_group import MixedGroup
from consumer_offsets.groups.outbox import Outbox
from consumer_offsets.groups.responses import (
    CommitOffsetsResponse,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    Response,
    SyncGroupResponse,
)
from logstore.errors import (
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    InvalidRequestError,
    LogStoreError,
    NonEmptyGroupError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownGroupError,
    UnknownMemberIdError,
)
from logstore.protocol.assignors.assignor import ServerAssignor

_Request = JoinGroup | SyncGroup | Heartbeat | LeaveGroup | CommitOffsets | ConsumerGroupHeartbeat | DeleteGroup

# With fewer members the times of former members are kept.
_HEARD_MIN = 16


class _Heard(NamedTuple):
    at_ms: int
    polled_ms: int | None


class Group:
    """``assignors`` are by name, the first is the default; ``topics`` are those that exist, until TopicsChanged."""

    def __init__(
        self, name: str, config: GroupConfig, assignors: Mapping[str, ServerAssignor], topics: TopicImage
    ) -> None:
        self.name = name
        self._config = config
        self._assignors = assignors
        self._topics = topics
        self._out = Outbox()
        self._kind: ClassicGroup | MixedGroup | None = None
        self._is_dead = False
        #: True if the log has a record of the group that is not a tombstone.
        self._is_recorded = False
        #: The times in ms of each member's last request, and last poll if it is reported. They are lost with the
        #: coordinator.
        self._heard: dict[str, _Heard] = {}
        self._heard_max = _HEARD_MIN

    def apply(self, event: Event, now_ms: int) -> list[Effect]:
        """Return what the coordinator has to do. The effects of one call are atomic, see ``effects``."""
        if isinstance(event, TimerFired):
            if self._out.is_due(event.key, now_ms):
                assert self._kind is not None
                self._kind.on_timer(event.key, now_ms)
                self._maybe_downgrade(now_ms)
        elif isinstance(event, TopicsChanged):
            self._topics = event.topics
            if isinstance(self._kind, MixedGroup):
                self._kind.on_topics(event)
        elif isinstance(event, Unload):
            self._die(NotCoordinatorError(f"Group {self.name} has moved to another coordinator: look it up again."))
        elif self._is_dead:
            error = CoordinatorNotAvailableError(f"Group {self.name} is not here any more: ask again.")
            self._out.answer(event.request, refusal(event, error))
        else:
            self._request(event, now_ms)
            self._maybe_downgrade(now_ms)
            self._hear(event, now_ms)
        return self._effects()

    def replay(self, record: GroupRecord | Tombstone) -> None:
        """Take over the state of a record; the last one of the group counts."""
        if isinstance(record, Tombstone):
            self._kind, self._is_recorded = None, False
            return
        self._is_recorded = True
        if isinstance(record.value, ClassicGroupValue):
            self._kind = ClassicGroup(self.name, self._config, self._out, 0)
            self._kind.restore(record.value)
        else:
            self._kind = self._consumer(0)
            self._kind.restore(record.value)

    def resume(self, now_ms: int) -> list[Effect]:
        """Return the effects after the last ``replay``: the timers, and the changes for topics that changed meanwhile.
        It is called once; a TopicsChanged follows if there are ``regexes``.
        """
        if self._kind is not None:
            self._kind.resume(now_ms)
        return self._effects()

    def describe(self, *, with_members: bool = True, now_ms: int | None = None) -> GroupDescription:
        """Describe the group. With ``now_ms`` members have the time since their last request."""
        if self._kind is not None and not self._is_dead:
            described = self._kind.describe(with_members=with_members)
            if now_ms is None or not self._heard:
                return described
            return replace(described, members=tuple(self._with_times(member, now_ms) for member in described.members))
        return GroupDescription(self.name, "", "Dead" if self._is_dead else "Empty", -1)

    def _with_times(self, member: MemberDescription, now_ms: int) -> MemberDescription:
        heard = self._heard.get(member.member_id)
        if heard is None:
            return member
        since_poll_ms = None if heard.polled_ms is None else max(0, now_ms - heard.polled_ms)
        return replace(member, since_heartbeat_ms=max(0, now_ms - heard.at_ms), since_poll_ms=since_poll_ms)

    def _hear(self, event: _Request, now_ms: int) -> None:
        if isinstance(event, Heartbeat | ConsumerGroupHeartbeat):
            since_poll_ms = event.since_poll_ms
        elif isinstance(event, JoinGroup | SyncGroup):
            since_poll_ms = None
        else:
            return
        if not self.knows(event.member_id):
            self._heard.pop(event.member_id, None)
            return
        before = self._heard.get(event.member_id)
        polled_ms = now_ms - since_poll_ms if since_poll_ms is not None else before.polled_ms if before else None
        self._heard[event.member_id] = _Heard(now_ms, polled_ms)
        if len(self._heard) > self._heard_max:
            # Members whose sessions have ended are dropped.
            self._heard = {name: heard for name, heard in self._heard.items() if self.knows(name)}
            self._heard_max = max(_HEARD_MIN, 2 * len(self._heard))

    def knows(self, member_id: str) -> bool:
        """Return whether there is a member with this id, or one that was given it and has not joined yet."""
        return self._kind is not None and self._kind.knows(member_id)

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return what ``GroupsMachine.subscribed_topics`` returns."""
        return frozenset() if self._kind is None or self._is_dead else self._kind.subscribed_topics()

    def check_fetch(self, member_id: str, member_epoch: int) -> None:
        """Raise what ``GroupsMachine.check_fetch`` raises."""
        if isinstance(self._kind, MixedGroup) and not self._is_dead:
            self._kind.check_epoch(member_id, None, member_epoch, "the fetch of offsets")

    @property
    def generation(self) -> int:
        """The present generation of a classic group, or epoch of a consumer group; 0 before the first."""
        match self._kind:
            case ClassicGroup():
                return self._kind.generation
            case MixedGroup():
                return self._kind.epoch
            case None:
                return 0

    @property
    def is_empty(self) -> bool:
        """True if the group has no members: ``offsets.retention.minutes`` counts from then on."""
        return self._kind is None or self._kind.is_empty

    @property
    def pending_count(self) -> int:
        """The number of ids that were given to members that have not joined yet."""
        return self._kind.pending_count if isinstance(self._kind, ClassicGroup) and not self._is_dead else 0

    @property
    def num_bytes(self) -> int:
        """The bytes that the members bring into the group's record."""
        return 0 if self._kind is None or self._is_dead else self._kind.num_bytes

    def would_grow(self, event: JoinGroup | SyncGroup | ConsumerGroupHeartbeat) -> bool:
        """Return whether the members bring more bytes after the request."""
        match self._kind, event:
            case (ClassicGroup() as classic, JoinGroup() | SyncGroup()):
                return classic.would_grow(event)
            case (MixedGroup() as consumer, ConsumerGroupHeartbeat()):
                return consumer.would_grow(event)
            case (MixedGroup(is_empty=False) as consumer, JoinGroup()):
                return consumer.join_would_grow(event)
        return isinstance(event, JoinGroup) or (
            isinstance(event, ConsumerGroupHeartbeat) and event.member_epoch == JOIN_GROUP_MEMBER_EPOCH
        )

    @property
    def regexes(self) -> frozenset[str]:
        """The regexes of subscriptions, for ``TopicsChanged.matches``."""
        return self._kind.regexes if isinstance(self._kind, MixedGroup) else frozenset()

    @property
    def is_vacant(self) -> bool:
        """True if the coordinator can forget the object: there is no member, none to come, and no record."""
        if isinstance(self._kind, ClassicGroup) and not self._kind.is_vacant:
            return False
        return self._is_dead or not (self._is_recorded or self._out.deadlines)

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        if self._is_dead or self._kind is None:
            assert not self._out.deadlines, "a group that is not there has timers"
        else:
            self._kind.validate()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _request(self, event: _Request, now_ms: int) -> None:
        kind = self._kind
        if isinstance(event, JoinGroup):
            if kind is None or kind.is_empty:
                kind = self._classic()
            kind.join(event, now_ms)
        elif isinstance(event, ConsumerGroupHeartbeat):
            self._consumer_heartbeat(event, now_ms)
        elif isinstance(event, CommitOffsets):
            self._commit(event, now_ms)
        elif isinstance(event, DeleteGroup):
            self._delete(event)
        elif kind is None or (isinstance(kind, MixedGroup) and kind.is_empty):
            error = UnknownMemberIdError(f"Group {self.name} has no members: join it.")
            self._out.answer(event.request, refusal(event, error))
        elif isinstance(event, SyncGroup):
            kind.sync(event, now_ms)
        elif isinstance(event, Heartbeat):
            kind.heartbeat(event, now_ms)
        else:
            kind.leave(event, now_ms)

    def _consumer_heartbeat(self, event: ConsumerGroupHeartbeat, now_ms: int) -> None:
        kind = self._kind
        try:
            MixedGroup.check_request(event, self._assignors)
            if isinstance(kind, ClassicGroup) and not kind.is_empty:
                kind = self._upgraded(kind, event, now_ms)
            elif not isinstance(kind, MixedGroup):
                if event.member_epoch != JOIN_GROUP_MEMBER_EPOCH:
                    raise UnknownGroupError(f"Group {self.name} not found: join it with epoch 0.")
                # Ids that were given out to classic members that have not joined become void.
                self._out.cancel_all()
                kind = self._kind = self._consumer(self.generation)
        except LogStoreError as error:
            self._out.answer(event.request, refusal(event, error))
            return
        kind.consumer_heartbeat(event, now_ms)

    def _commit(self, event: CommitOffsets, now_ms: int) -> None:
        error: LogStoreError | None = None
        try:
            if isinstance(self._kind, ClassicGroup):
                self._kind.check_commit(event, now_ms)
            elif isinstance(self._kind, MixedGroup):
                self._kind.check_commit(event)
            elif event.generation >= 0:
                raise IllegalGenerationError(f"Group {self.name} has no generation {event.generation}: join it.")
        except LogStoreError as refused:
            error = refused
        self._out.answer(event.request, CommitOffsetsResponse(error))

    def _delete(self, event: DeleteGroup) -> None:
        if not self.is_empty:
            error = NonEmptyGroupError(f"Group {self.name} has members: stop them first.")
            self._out.answer(event.request, DeleteGroupResponse(error))
            return
        if self._is_recorded:
            self._out.append(Tombstone(self.name))
        self._die(CoordinatorNotAvailableError(f"Group {self.name} is deleted."))
        self._out.answer(event.request, DeleteGroupResponse())

    # ---- kinds ------------------------------------------------------------------------------------------------------

    def _classic(self) -> ClassicGroup:
        """Return the group as a classic one. The record of another kind stays until the first generation."""
        if not isinstance(self._kind, ClassicGroup):
            self._kind = ClassicGroup(self.name, self._config, self._out, self.generation)
        return self._kind

    def _consumer(self, epoch: int) -> MixedGroup:
        return MixedGroup(self.name, self._config, self._out, epoch, self._assignors, self._topics)

    def _upgraded(self, classic: ClassicGroup, event: ConsumerGroupHeartbeat, now_ms: int) -> MixedGroup:
        """Return the group of classic members as a consumer group, which a member of that protocol joins.

        Raises UnknownGroupError, as Kafka does, if the member may not join; then the group is unchanged.
        """
        if event.member_epoch > JOIN_GROUP_MEMBER_EPOCH:
            # Kafka returns GROUP_ID_NOT_FOUND, which ends a consumer that has slept while the last other member of its
            # protocol left. With the unknown or fenced member of a consumer group, it joins again or learns why it may
            # not.
            classic.require_member(event.member_id, event.group_instance_id)
        if event.member_epoch != JOIN_GROUP_MEMBER_EPOCH:
            raise UnknownGroupError(f"Group {self.name} is no consumer group: {event.member_id!r} is no member.")
        if not self._config.upgrades:
            raise UnknownGroupError(
                f"Group {self.name} is no consumer group: its members use the classic protocol. Set "
                "group.protocol=classic, or group.consumer.migration.policy=bidirectional of the store."
            )
        consumer = self._consumer(0)
        try:
            consumer.restore(classic.upgraded(self._topics))
        except InvalidRequestError as error:
            raise UnknownGroupError(f"Group {self.name} cannot become a consumer group. {error.message}") from error
        consumer.check_heartbeat(event)
        classic.unload(RebalanceInProgressError(f"Group {self.name} has become a consumer group: join it again."))
        self._out.cancel_all()
        consumer.resume(now_ms)
        self._kind = consumer
        return consumer

    def _maybe_downgrade(self, now_ms: int) -> None:
        """Turn the group into a classic one if only classic members are left."""
        if not isinstance(self._kind, MixedGroup) or self._kind.downgrade is None:
            return
        value = self._kind.classic_value(now_ms)
        self._out.cancel_all()
        self._kind = ClassicGroup(self.name, self._config, self._out, 0)
        self._kind.restore(value)
        self._kind.resume(now_ms)
        self._out.append(GroupRecord(self.name, value))

    def _die(self, error: LogStoreError) -> None:
        if isinstance(self._kind, ClassicGroup):
            self._kind.unload(error)
        self._out.cancel_all()
        self._is_dead = True

    def _effects(self) -> list[Effect]:
        effects = self._out.take()
        for effect in effects:
            if isinstance(effect, AppendRecord):
                self._is_recorded = isinstance(effect.record, GroupRecord)
        return effects


def refusal(event: _Request, error: LogStoreError) -> Response:
    """Return the response to a request that is refused."""
    match event:
        case JoinGroup():
            return JoinGroupResponse(error, event.member_id)
        case SyncGroup():
            return SyncGroupResponse(error)
        case Heartbeat():
            return HeartbeatResponse(error)
        case LeaveGroup() if isinstance(error, UnknownMemberIdError):
            # Kafka's response has one refusal for each member.
            members = tuple(LeftMember(member.member_id, member.group_instance_id, error) for member in event.members)
            return LeaveGroupResponse(None, members)
        case LeaveGroup():
            return LeaveGroupResponse(error)
        case CommitOffsets():
            return CommitOffsetsResponse(error)
        case ConsumerGroupHeartbeat():
            return ConsumerGroupHeartbeatResponse(error, event.member_id)
        case DeleteGroup():
            return DeleteGroupResponse(error)
