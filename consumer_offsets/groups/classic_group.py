"""A classic group: members bring protocols with opaque metadata, their leader assigns (KIP-35, 134, 345, 394, 814).

The rules are those of Kafka's ``GroupMetadataManager`` for classic groups, with these differences. A generation is also
recorded when it begins, so that no generation is used twice, and a restart during a rebalance continues it. A parked
request always gets a response, also that of a member that is removed, and that of a client which has asked again.
"""

from consumer_offsets.groups.classic_joins import (
    has_room,
    require_common_protocol,
    require_room_for_bytes,
    require_session_timeout,
    require_small,
)
from consumer_offsets.groups.classic_members import ClassicMember, ClassicMembers, ClassicState, member_bytes
from consumer_offsets.groups.conversion import to_consumer_group
from consumer_offsets.groups.description import GroupDescription
from consumer_offsets.groups.events import (
    UNKNOWN_MEMBER_ID,
    CommitOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    SyncGroup,
    TopicImage,
)
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups.group_record import ClassicGroupValue, ConsumerGroupValue, GroupRecord
from consumer_offsets.groups.outbox import Outbox
from consumer_offsets.groups.responses import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    SyncGroupResponse,
)
from logstore.errors import (
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    LogStoreError,
    MemberIdRequiredError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from logstore.protocol.assignors.registry import CLIENT_ASSIGNORS
from logstore.protocol.consumer_protocol import PROTOCOL_TYPE
from logstore.protocol.messages.members import LeavingMember

_CAN_REBALANCE = (ClassicState.EMPTY, ClassicState.COMPLETING_REBALANCE, ClassicState.STABLE)
_JOIN = "join"
_SYNC = "sync"
_HEARTBEAT = "heartbeat/"


class ClassicGroup:
    def __init__(self, name: str, config: GroupConfig, out: Outbox, generation: int) -> None:
        self.name = name
        self.generation = generation
        self.state = ClassicState.EMPTY
        self._config = config
        self._out = out
        self._members = ClassicMembers()
        self._protocol_type: str | None = None
        self._protocol: str | None = None
        self._state_since_ms: int | None = None
        #: The present delay of an initial rebalance (KIP-134), and the time by which it may still be extended.
        self._initial: tuple[int, int] | None = None
        self._new_member_added = False

    @property
    def is_empty(self) -> bool:
        return self.state == ClassicState.EMPTY

    @property
    def is_vacant(self) -> bool:
        """True if there is neither a member nor one that is about to join."""
        return not self._members and not self._members.pending_join

    @property
    def pending_count(self) -> int:
        """The number of ids that were given to members that have not joined yet."""
        return len(self._members.pending_join)

    @property
    def num_bytes(self) -> int:
        """The bytes that the members bring into the group's record."""
        return self._members.joined_bytes + self._members.assigned_bytes

    def would_grow(self, event: JoinGroup | SyncGroup) -> bool:
        """Return whether the members bring more bytes after the request."""
        if isinstance(event, JoinGroup):
            return self._members.joined_bytes_with(event) > self._members.joined_bytes
        assigns = self.state == ClassicState.COMPLETING_REBALANCE and event.member_id == self._members.leader
        return assigns and _assigned_bytes(event) > self._members.assigned_bytes

    def knows(self, member_id: str) -> bool:
        """Return whether there is a member with this id, or one that was given it and has not joined yet."""
        return member_id in self._members.by_id or member_id in self._members.pending_join

    def require_member(self, member_id: str, instance_id: str | None) -> None:
        """Raise UnknownMemberIdError or FencedInstanceIdError if this is not a member."""
        self._members.require(member_id, instance_id)

    # ---- JoinGroup --------------------------------------------------------------------------------------------------

    def join(self, event: JoinGroup, now_ms: int) -> None:
        try:
            self._join(event, now_ms)
        except LogStoreError as error:
            self._out.answer(event.request, JoinGroupResponse(error, event.member_id))

    def _join(self, event: JoinGroup, now_ms: int) -> None:
        require_session_timeout(self._config, event.session_timeout_ms)
        if not has_room(self._config.group_max_size, self.state, self._members, event):
            self._expel(event.member_id, now_ms)
            size = self._config.group_max_size
            raise GroupMaxSizeReachedError(f"Group {self.name} has {size} members, the most of group.max.size.")
        require_small(self.name, "metadata of a member", member_bytes(event))
        require_room_for_bytes(self.name, self._members.joined_bytes_with(event), self._members.joined_bytes)
        require_common_protocol(self.name, self._protocol_type, self._members, event)
        if event.member_id == UNKNOWN_MEMBER_ID:
            self._join_new(event, now_ms)
        elif event.member_id in self._members.pending_join and event.group_instance_id is None:
            self._add_member(event, event.member_id, now_ms)
        else:
            self._join_again(event, self._members.require(event.member_id, event.group_instance_id), now_ms)

    def _join_new(self, event: JoinGroup, now_ms: int) -> None:
        if event.group_instance_id is not None:
            existing = self._members.static.get(event.group_instance_id)
            if existing is None:
                self._add_member(event, event.new_member_id, now_ms)
            else:
                self._replace_static_member(event, self._members.by_id[existing], now_ms)
        elif event.requires_known_member_id:
            self._members.pending_join[event.new_member_id] = None
            self._out.arm(_HEARTBEAT + event.new_member_id, now_ms + event.session_timeout_ms)
            error = MemberIdRequiredError(f"Join group {self.name} again as member {event.new_member_id!r}.")
            self._out.answer(event.request, JoinGroupResponse(error, event.new_member_id))
        else:
            self._add_member(event, event.new_member_id, now_ms)

    def _add_member(self, event: JoinGroup, member_id: str, now_ms: int) -> None:
        if self._initial is not None:
            self._new_member_added = True
        if not self._members:
            self._protocol_type = event.protocol_type
        member = ClassicMember(
            member_id,
            event.group_instance_id,
            event.client_id,
            event.client_host,
            event.session_timeout_ms,
            event.rebalance_timeout_ms,
            event.protocols,
            parked_join=event.request,
            is_new=True,
        )
        self._members.add(member)
        # A new member cannot send heartbeats yet. If its client has gone away, the group notices by this timer.
        self._out.arm(_HEARTBEAT + member_id, now_ms + self._config.group_new_member_join_timeout_ms)
        self._rebalance_or_complete_join(now_ms)

    def _join_again(self, event: JoinGroup, member: ClassicMember, now_ms: int) -> None:
        unchanged = event.protocols == member.protocols
        leads = self._members.leader == member.member_id
        if unchanged and (
            self.state == ClassicState.COMPLETING_REBALANCE or (self.state == ClassicState.STABLE and not leads)
        ):
            # The response was lost, or a follower asks: the generation stays. Only the leader of a stable group asks
            # for another assignment by joining.
            self._out.answer(event.request, self._joined(member))
            return
        self._update_member(event, member)
        self._rebalance_or_complete_join(now_ms)

    def _update_member(self, event: JoinGroup, member: ClassicMember) -> None:
        self._supersede(member.parked_join)
        member.protocols = event.protocols
        member.session_timeout_ms = event.session_timeout_ms
        member.rebalance_timeout_ms = event.rebalance_timeout_ms
        member.client_id, member.client_host = event.client_id, event.client_host
        self._members.measure(member)
        member.parked_join = event.request

    def _supersede(self, parked_join: int | None) -> None:
        """Refuse the earlier request of a client that asks again. Its connection was lost, or two clients use one
        id.
        """
        if parked_join is not None:
            error = RebalanceInProgressError("The member has joined again meanwhile: this answer is not for it.")
            self._out.answer(parked_join, JoinGroupResponse(error))

    def _replace_static_member(self, event: JoinGroup, member: ClassicMember, now_ms: int) -> None:
        """Give a static member that comes back a new id, and fence the old one (KIP-345)."""
        old_leader = self._members.leader
        self._out.cancel(_HEARTBEAT + member.member_id)
        self._refuse_parked(
            member,
            FencedInstanceIdError(f"Another member has taken over the group.instance.id {event.group_instance_id!r}."),
        )
        self._members.rename(member, event.new_member_id)
        member.is_new = False
        self._update_member(event, member)
        self._out.arm(_HEARTBEAT + member.member_id, now_ms + member.session_timeout_ms)
        if self.state == ClassicState.STABLE and self._members.select_protocol() == self._protocol:
            member.parked_join = None
            self._append()
            if event.supports_skipping_assignment:
                self._out.answer(event.request, self._joined(member, skip_assignment=True))
            else:
                # The old leader's id keeps an old client from making another assignment.
                self._out.answer(
                    event.request,
                    JoinGroupResponse(
                        None,
                        member.member_id,
                        self.generation,
                        self._protocol_type,
                        self._protocol,
                        old_leader or "",
                    ),
                )
        else:
            # The leader that is assigning has the old id: the new one would get nothing.
            self._rebalance_or_complete_join(now_ms)

    def _joined(self, member: ClassicMember, *, skip_assignment: bool = False) -> JoinGroupResponse:
        leads = self._members.leader == member.member_id
        return JoinGroupResponse(
            None,
            member.member_id,
            self.generation,
            self._protocol_type,
            self._protocol,
            self._members.leader or "",
            skip_assignment and leads,
            self._members.for_leader(self._protocol) if leads else (),
        )

    # ---- rebalance --------------------------------------------------------------------------------------------------

    def _rebalance_or_complete_join(self, now_ms: int) -> None:
        if self.state in _CAN_REBALANCE:
            self._prepare_rebalance(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _maybe_complete_join(self, now_ms: int) -> None:
        """Complete the join if all have joined. An initial rebalance waits for its delay."""
        if self.state == ClassicState.PREPARING_REBALANCE and self._initial is None and self._members.all_have_joined():
            self._complete_join(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        if self.state == ClassicState.COMPLETING_REBALANCE:
            self._answer_syncs(RebalanceInProgressError(f"Group {self.name} rebalances again: join it again."), now_ms)
        self._members.pending_sync.clear()
        self._out.cancel(_SYNC)
        initial = self.state == ClassicState.EMPTY
        self._enter(ClassicState.PREPARING_REBALANCE, now_ms)
        if initial:
            delay = self._config.group_initial_rebalance_delay_ms
            self._initial = delay, max(self._members.rebalance_timeout_ms() - delay, 0)
            self._new_member_added = False
            self._out.arm(_JOIN, now_ms + delay)
        elif self._members.all_have_joined():
            self._complete_join(now_ms)
        else:
            self._out.arm(_JOIN, now_ms + self._members.rebalance_timeout_ms())

    def _on_join_timer(self, now_ms: int) -> None:
        if self._initial is not None:
            delay, remaining = self._initial
            if self._new_member_added and remaining:
                self._new_member_added = False
                delay_next = min(self._config.group_initial_rebalance_delay_ms, remaining)
                self._initial = delay_next, max(remaining - delay, 0)
                self._out.arm(_JOIN, now_ms + delay_next)
                return
        self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Begin the next generation with the members that have joined. Static members may join until their sessions
        end.
        """
        members = self._members
        self._out.cancel(_JOIN)
        for member in list(members.by_id.values()):
            if member.parked_join is None and member.instance_id is None:
                self._remove(member, "It did not join the rebalance in time.")
        if not members.elect_leader_that_joined() and members:
            self._out.arm(_JOIN, now_ms + members.rebalance_timeout_ms())
            return
        self._initial = None
        self.generation += 1
        if not members:
            self._protocol = None
            self._enter(ClassicState.EMPTY, now_ms)
            self._append()
            return
        self._protocol = members.select_protocol()
        self._enter(ClassicState.COMPLETING_REBALANCE, now_ms)
        for member in members.by_id.values():
            member.assignment = b""
            if member.parked_join is not None:
                self._out.answer(member.parked_join, self._joined(member))
                member.parked_join = None
            member.is_new = False
            self._arm_session(member, now_ms)
        members.pending_sync = dict.fromkeys(members.by_id)
        self._out.arm(_SYNC, now_ms + members.rebalance_timeout_ms())
        self._append()

    def _on_sync_timer(self, now_ms: int) -> None:
        for member_id in list(self._members.pending_sync):
            self._remove(self._members.by_id[member_id], "It did not send SyncGroup in time.")
        self._prepare_rebalance(now_ms)

    # ---- SyncGroup --------------------------------------------------------------------------------------------------

    def sync(self, event: SyncGroup, now_ms: int) -> None:
        try:
            self._sync(event, now_ms)
        except LogStoreError as error:
            self._out.answer(event.request, SyncGroupResponse(error))

    def _sync(self, event: SyncGroup, now_ms: int) -> None:
        member = self._members.require(event.member_id, event.group_instance_id)
        self._require_generation(event.generation)
        for asked, chosen in ((event.protocol_type, self._protocol_type), (event.protocol, self._protocol)):
            if asked is not None and chosen is not None and asked != chosen:
                raise InconsistentGroupProtocolError(
                    f"Group {self.name} has chosen {chosen}, not {asked}: join it again."
                )
        if self.state == ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgressError(f"Group {self.name} rebalances: join it again.")
        for each in event.assignments:
            require_small(self.name, f"assignment of member {each.member_id}", len(each.assignment))
        require_room_for_bytes(self.name, _assigned_bytes(event), self._members.assigned_bytes)
        self._members.pending_sync.pop(member.member_id, None)
        if not self._members.pending_sync:
            self._out.cancel(_SYNC)
        if self.state == ClassicState.STABLE:
            self._out.answer(event.request, self._synced(member))
            return
        if member.parked_sync is not None:
            error = RebalanceInProgressError("The member has sent SyncGroup again meanwhile.")
            self._out.answer(member.parked_sync, SyncGroupResponse(error))
        member.parked_sync = event.request
        if self._members.leader == member.member_id:
            self._members.assign({each.member_id: each.assignment for each in event.assignments})
            self._enter(ClassicState.STABLE, now_ms)
            self._append()
            self._answer_syncs(None, now_ms)

    def _answer_syncs(self, error: LogStoreError | None, now_ms: int) -> None:
        for member in self._members.by_id.values():
            if member.parked_sync is not None:
                response = self._synced(member) if error is None else SyncGroupResponse(error)
                self._out.answer(member.parked_sync, response)
                member.parked_sync = None
                # The member's session timer may have fired while it waited.
                self._arm_session(member, now_ms)

    def _synced(self, member: ClassicMember) -> SyncGroupResponse:
        return SyncGroupResponse(None, self._protocol_type, self._protocol, member.assignment)

    # ---- Heartbeat, LeaveGroup, OffsetCommit ------------------------------------------------------------------------

    def heartbeat(self, event: Heartbeat, now_ms: int) -> None:
        try:
            member = self._members.require(event.member_id, event.group_instance_id)
            self._require_generation(event.generation)
        except LogStoreError as error:
            self._out.answer(event.request, HeartbeatResponse(error))
            return
        self._arm_session(member, now_ms)
        rebalances = self.state == ClassicState.PREPARING_REBALANCE
        refusal = RebalanceInProgressError(f"Group {self.name} rebalances: join it again.") if rebalances else None
        self._out.answer(event.request, HeartbeatResponse(refusal))

    def leave(self, event: LeaveGroup, now_ms: int) -> None:
        before = len(self._members)
        left = tuple(self._leave(leaving) for leaving in event.members)
        self._out.answer(event.request, LeaveGroupResponse(None, left))
        if len(self._members) < before:
            self._rebalance_or_complete_join(now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _leave(self, leaving: LeavingMember) -> LeftMember:
        member_id, instance_id = leaving.member_id, leaving.group_instance_id
        if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
            # An administrator removes a static member by its instance id.
            member_id = self._members.static.get(instance_id, UNKNOWN_MEMBER_ID)
        error: LogStoreError | None = None
        if member_id in self._members.pending_join:
            self._remove_pending(member_id)
        else:
            try:
                self._remove(self._members.require(member_id, instance_id), leaving.reason or "It has left.")
            except LogStoreError as refused:
                error = refused
        return LeftMember(leaving.member_id, instance_id, error)

    def check_commit(self, event: CommitOffsets, now_ms: int) -> None:
        """Raise UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError or RebalanceInProgressError if it
        is refused.
        """
        if event.generation < 0 and (self.is_empty or self.is_vacant):
            return
        if event.generation < 0 and event.member_id == UNKNOWN_MEMBER_ID and event.group_instance_id is None:
            raise UnknownMemberIdError(f"Group {self.name} has members: stop them, or commit as one of them.")
        member = self._members.require(event.member_id, event.group_instance_id)
        self._require_generation(event.generation)
        if self.state == ClassicState.COMPLETING_REBALANCE:
            raise RebalanceInProgressError(f"Group {self.name} rebalances: finish that, then commit.")
        self._arm_session(member, now_ms)

    # ---- timers and members -----------------------------------------------------------------------------------------

    def on_timer(self, key: str, now_ms: int) -> None:
        if key == _JOIN:
            self._on_join_timer(now_ms)
        elif key == _SYNC:
            self._on_sync_timer(now_ms)
        else:
            self._on_session_timer(key.removeprefix(_HEARTBEAT), now_ms)

    def _on_session_timer(self, member_id: str, now_ms: int) -> None:
        if member_id in self._members.pending_join:
            self._members.remove(member_id)
            self._maybe_complete_join(now_ms)
            return
        member = self._members.by_id[member_id]
        if not member.has_satisfied_heartbeat():
            self._remove(member, "Its session has ended.")
            self._rebalance_or_complete_join(now_ms)

    def _arm_session(self, member: ClassicMember, now_ms: int) -> None:
        self._out.arm(_HEARTBEAT + member.member_id, now_ms + member.session_timeout_ms)

    def _require_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise IllegalGenerationError(
                f"Group {self.name} is in generation {self.generation}, the request is of {generation}: join it again."
            )

    def _expel(self, member_id: str, now_ms: int) -> None:
        """Remove a member, or one about to join, that does not fit into the group."""
        member = self._members.by_id.get(member_id)
        if member is not None:
            self._remove(member, "The group is full.")
        elif member_id in self._members.pending_join:
            self._remove_pending(member_id)
        self._maybe_complete_join(now_ms)

    def _remove_pending(self, member_id: str) -> None:
        self._out.cancel(_HEARTBEAT + member_id)
        self._members.remove(member_id)

    def _remove(self, member: ClassicMember, reason: str) -> None:
        self._out.cancel(_HEARTBEAT + member.member_id)
        self._refuse_parked(
            member, UnknownMemberIdError(f"Member {member.member_id!r} is no longer in group {self.name}. {reason}")
        )
        self._members.remove(member.member_id)

    def _refuse_parked(self, member: ClassicMember, error: LogStoreError) -> None:
        if member.parked_join is not None:
            self._out.answer(member.parked_join, JoinGroupResponse(error))
            member.parked_join = None
        if member.parked_sync is not None:
            self._out.answer(member.parked_sync, SyncGroupResponse(error))
            member.parked_sync = None

    def _enter(self, state: ClassicState, now_ms: int) -> None:
        self.state = state
        self._state_since_ms = now_ms

    # ---- records ----------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        value = ClassicGroupValue(
            self.generation,
            self.state,
            self._state_since_ms or 0,
            self._protocol_type,
            self._protocol,
            self._members.leader,
            self._members.values(),
        )
        self._out.append(GroupRecord(self.name, value))

    def restore(self, value: ClassicGroupValue) -> None:
        """Take over the state of a record. A rebalance continues: every member's JoinGroup or SyncGroup is awaited
        again.
        """
        self.generation = value.generation
        self.state = ClassicState(value.state)
        self._state_since_ms = value.state_timestamp
        self._protocol_type, self._protocol = value.protocol_type, value.protocol
        self._members = ClassicMembers.of(value.members, value.leader)
        if self.state == ClassicState.COMPLETING_REBALANCE:
            self._members.pending_sync = dict.fromkeys(self._members.by_id)

    def resume(self, now_ms: int) -> None:
        """Give every member a whole session after a restart to send a request."""
        for member in self._members.by_id.values():
            self._arm_session(member, now_ms)
        if self._members.pending_sync:
            self._out.arm(_SYNC, now_ms + self._members.rebalance_timeout_ms())
        if self.state == ClassicState.PREPARING_REBALANCE:
            self._out.arm(_JOIN, now_ms + self._members.rebalance_timeout_ms())

    def upgraded(self, topics: TopicImage) -> ConsumerGroupValue:
        """Return the group as a consumer group. Raises InvalidRequestError if its members are not consumers."""
        if self._protocol_type != PROTOCOL_TYPE:
            raise InvalidRequestError(f"Its members are no consumers: they use {self._protocol_type}.")
        if self._protocol not in CLIENT_ASSIGNORS and self._members.have_assigned_user_data():
            # Kafka Streams, for example, sends its members such data. Kafka refuses user data of any assignor; that of
            # librdkafka's cooperative-sticky, and of this store's leaders, is of no use to the coordinator.
            raise InvalidRequestError(f"The user data of its assignor {self._protocol} would be lost.")
        is_stable = self.state == ClassicState.STABLE
        return to_consumer_group(self.generation, list(self._members.by_id.values()), topics, is_stable=is_stable)

    def unload(self, error: LogStoreError) -> None:
        for member in self._members.by_id.values():
            self._refuse_parked(member, error)

    def describe(self, *, with_members: bool = True) -> GroupDescription:
        return GroupDescription(
            self.name,
            "classic",
            self.state,
            self.generation,
            self._protocol_type,
            self._protocol,
            self._state_since_ms,
            self._members.described(self._protocol_type, self._protocol) if with_members else (),
        )

    def subscribed_topics(self) -> frozenset[str] | None:
        """Return the topics of all subscriptions; None if they are not known yet.

        Raises NonEmptyGroupError if the members are not consumers.
        """
        if not self._members:
            return frozenset()
        if self._protocol_type != PROTOCOL_TYPE:
            raise NonEmptyGroupError(f"Group {self.name} has members that are no consumers: stop them first.")
        return None if self._protocol is None else self._members.subscribed_topics(self._protocol)

    def parked(self) -> set[int]:
        """Return the requests that wait for their responses."""
        parked = [each for member in self._members.by_id.values() for each in (member.parked_join, member.parked_sync)]
        return {request for request in parked if request is not None}

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        members, state, armed = self._members, self.state, self._out.deadlines
        members.validate()
        joins = [member for member in members.by_id.values() if member.parked_join is not None]
        syncs = [member for member in members.by_id.values() if member.parked_sync is not None]
        assert state == ClassicState.PREPARING_REBALANCE or not joins, f"{state} with parked joins"
        assert state == ClassicState.COMPLETING_REBALANCE or not syncs, f"{state} with parked syncs"
        assert (self._initial is None) or state == ClassicState.PREPARING_REBALANCE, "an initial rebalance goes on"
        assert (_JOIN in armed) == (state == ClassicState.PREPARING_REBALANCE), f"join timer in {state}"
        assert (_SYNC in armed) == bool(members.pending_sync), "the sync timer runs while a sync is awaited"
        if state == ClassicState.EMPTY:
            assert not members, "Empty with members"
        elif state == ClassicState.PREPARING_REBALANCE:
            assert self._initial is not None or not members.all_have_joined(), "all have joined, and nothing happens"
        else:
            assert members, f"{state} without members"
            assert self._protocol in members.common_protocols(), "a member does not support the protocol"
            waiting = state == ClassicState.COMPLETING_REBALANCE
            assert not waiting or members.leader in members.pending_sync, "the leader has synced, and nothing happens"
            assert not (waiting and any(each.assignment for each in members.by_id.values())), "nothing is assigned yet"
        for member in members.by_id.values():
            has_timer = _HEARTBEAT + member.member_id in armed
            assert has_timer or member.has_satisfied_heartbeat(), f"nobody watches {member.member_id}"
        for member_id in members.pending_join:
            assert _HEARTBEAT + member_id in armed, f"nobody watches {member_id}"
        watched = {key.removeprefix(_HEARTBEAT) for key in armed if key.startswith(_HEARTBEAT)}
        assert watched <= members.by_id.keys() | members.pending_join.keys(), "a timer of somebody who is gone"


def _assigned_bytes(event: SyncGroup) -> int:
    return sum(len(each.assignment) for each in event.assignments)
