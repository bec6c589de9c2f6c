"""A consumer group: the coordinator assigns, and each member goes to its target step by step (KIP-848).

The rules are those of Kafka's ``ConsumerGroup`` and its ``GroupMetadataManager``, with these differences. A member that
joins again under its own id (epoch 0) has given everything up and is accepted at once. A lost response does not fence a
member that still holds what it is to revoke. Invariant: a partition has one owner, from the response that assigns it
until that owner reports that it has given it up, leaves, or is fenced.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from uuid import UUID

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.groups.classic_joins import require_room_for_bytes
from consumer_offsets.groups.description import GroupDescription, MemberDescription
from consumer_offsets.groups.events import (
    JOIN_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_MEMBER_EPOCH,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    UNKNOWN_MEMBER_ID,
    CommitOffsets,
    ConsumerGroupHeartbeat,
    TopicDescription,
    TopicIdPartition,
    TopicImage,
    TopicsChanged,
)
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups.group_record import (
    ClassicProtocolValue,
    ConsumerGroupValue,
    ConsumerMemberValue,
    GroupRecord,
    topic_names_bytes,
)
from consumer_offsets.groups.outbox import Outbox
from consumer_offsets.groups.reconciliation import (
    NOTHING,
    ClassicProtocol,
    ConsumerMember,
    MemberState,
    Partitions,
    by_topic,
    partitions_of,
    reconcile,
)
from consumer_offsets.groups.responses import AssignedTopic, ConsumerGroupHeartbeatResponse
from logstore.errors import (
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InvalidRequestError,
    LogStoreError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)
from logstore.protocol.assignors.assignor import MemberSubscription, ServerAssignor
from logstore.protocol.messages.members import Protocol

SESSION = "session/"
REBALANCE = "rebalance/"


class ConsumerGroup:
    """The first of ``assignors`` is the default. ``topics`` is read and never changed."""

    def __init__(
        self,
        name: str,
        config: GroupConfig,
        out: Outbox,
        epoch: int,
        assignors: Mapping[str, ServerAssignor],
        topics: TopicImage,
    ) -> None:
        self.name = name
        #: The epoch of the target assignment is lower than the group's between a change and the next heartbeat.
        self.epoch = self.target_epoch = epoch
        self._config = config
        self._out = out
        self._assignors = assignors
        self._image = topics
        self._members: dict[str, ConsumerMember] = {}
        self._static: dict[str, str] = {}
        self._targets: dict[str, Partitions] = {}
        self._owners: dict[TopicIdPartition, str] = {}
        self._names: dict[UUID, str] = {}
        #: Kafka's subscription metadata: the subscribed topics that exist.
        self._topics: dict[str, TopicDescription] = {}
        self._matches: dict[str, frozenset[str]] = {}
        self._empty_since_ms: int | None = None
        #: The bytes that all members bring into the group's record, and those of each member, without matches of
        #: regexes.
        self._members_bytes = 0
        self._sizes: dict[str, int] = {}
        #: The bytes of the record for the names that the regexes match.
        self._matched_bytes = 0

    def knows(self, member_id: str) -> bool:
        """Return whether there is a member with this id."""
        return member_id in self._members

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def state(self) -> str:
        """Kafka's ConsumerGroupState, without Dead, which Group itself keeps."""
        if not self._members:
            return "Empty"
        if self.epoch > self.target_epoch:
            return "Assigning"
        settled = all(member.is_reconciled_to(self.target_epoch) for member in self._members.values())
        return "Stable" if settled else "Reconciling"

    @property
    def num_bytes(self) -> int:
        """The bytes that the members, and the topics that their regexes match, bring into the group's record."""
        return self._members_bytes + self._matched_bytes

    @property
    def regexes(self) -> frozenset[str]:
        """The regexes that members subscribe with."""
        return frozenset(member.subscribed_regex for member in self._members.values() if member.subscribed_regex)

    def would_grow(self, event: ConsumerGroupHeartbeat) -> bool:
        """Return whether the members bring more bytes after the request."""
        existing = self._existing(event.member_id, event.group_instance_id)
        if event.member_epoch < 0 or (event.member_epoch > 0 and existing is None):
            return False
        member = _updated(existing or ConsumerMember(event.member_id), event)
        return self._num_bytes_with(member, existing, _found(event)) > self.num_bytes

    # ---- ConsumerGroupHeartbeat -------------------------------------------------------------------------------------

    def consumer_heartbeat(self, event: ConsumerGroupHeartbeat, now_ms: int) -> None:
        try:
            self.check_request(event, self._assignors)
            if event.member_epoch in (LEAVE_GROUP_MEMBER_EPOCH, LEAVE_GROUP_STATIC_MEMBER_EPOCH):
                response = self._leave(event, now_ms)
            else:
                response = self._heartbeat(event, now_ms)
        except LogStoreError as error:
            response = ConsumerGroupHeartbeatResponse(error, event.member_id)
        self._out.answer(event.request, response)

    @staticmethod
    def check_request(event: ConsumerGroupHeartbeat, assignors: Mapping[str, ServerAssignor]) -> None:
        """Raise InvalidRequestError or UnsupportedAssignorError if the request is malformed."""
        if not event.member_id:
            raise InvalidRequestError("MemberId is empty: send the id that the member has chosen for its life.")
        for name, value in (("InstanceId", event.group_instance_id), ("RackId", event.rack_id)):
            if value == "":
                raise InvalidRequestError(f"{name} is empty: leave it out.")
        if event.member_epoch < LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            raise InvalidRequestError(f"MemberEpoch is {event.member_epoch}: send -2, -1, 0 or the member's epoch.")
        if event.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH and event.group_instance_id is None:
            raise InvalidRequestError("MemberEpoch -2 is for static members: send the InstanceId.")
        if event.member_epoch == JOIN_GROUP_MEMBER_EPOCH:
            if event.rebalance_timeout_ms < 0:
                raise InvalidRequestError("RebalanceTimeoutMs is missing: send it with MemberEpoch 0.")
            if event.owned != NOTHING:
                raise InvalidRequestError("TopicPartitions must be empty with MemberEpoch 0: give all partitions up.")
            if event.subscribed_topics is None and event.subscribed_regex is None:
                # A client that matches names itself, and has found none yet, sends an empty list and an empty regex.
                raise InvalidRequestError("There is no subscription: send topic names or a regex with MemberEpoch 0.")
        if event.server_assignor is not None and event.server_assignor not in assignors:
            raise UnsupportedAssignorError(
                f"There is no assignor {event.server_assignor!r}: choose one of {', '.join(assignors)}."
            )

    def _heartbeat(self, event: ConsumerGroupHeartbeat, now_ms: int) -> ConsumerGroupHeartbeatResponse:
        before = self.check_heartbeat(event)
        if event.member_epoch == JOIN_GROUP_MEMBER_EPOCH:
            self._out.cancel(REBALANCE + event.member_id)
        after = self._advance(before, _updated(before, event), _found(event), event.owned, now_ms)
        self._arm_session(after, now_ms)
        is_full = event.member_epoch == JOIN_GROUP_MEMBER_EPOCH or (
            event.rebalance_timeout_ms >= 0 and event.subscribed_topics is not None and event.owned is not None
        )
        return ConsumerGroupHeartbeatResponse(
            None,
            after.member_id,
            after.member_epoch,
            self._config.group_consumer_heartbeat_interval_ms,
            self._by_topic(after.assigned) if is_full or after.assigned != before.assigned else None,
        )

    def check_heartbeat(self, event: ConsumerGroupHeartbeat) -> ConsumerMember:
        """Return the member before a heartbeat that does not leave; changes nothing.

        Raises GroupMaxSizeReachedError, UnknownMemberIdError, FencedInstanceIdError, UnreleasedInstanceIdError,
        FencedMemberEpochError, InvalidRequestError.
        """
        before = self._member_of(event)
        existing = self._existing(event.member_id, event.group_instance_id)
        num_bytes = self._num_bytes_with(_updated(before, event), existing, _found(event))
        require_room_for_bytes(self.name, num_bytes, self.num_bytes)
        return before

    def _advance(
        self,
        before: ConsumerMember,
        member: ConsumerMember,
        found: Mapping[str, frozenset[str]],
        owned: Partitions | None,
        now_ms: int,
    ) -> ConsumerMember:
        """Store the member as its request makes it, assign again if that changes the group, reconcile the member, and
        return it.

        ``found`` has the topics that its regex matches.
        """
        existing = self._existing(member.member_id, member.instance_id)
        if existing is not None and existing.member_id != member.member_id:
            self._take_over(existing, member.member_id)
        changed = self._put(member)
        if (
            self._look_at_topics(found)
            or existing is None
            or member.subscribed_topics != before.subscribed_topics
            or member.subscribed_regex != before.subscribed_regex
        ):
            self.epoch += 1
            changed = True
        if self.epoch > self.target_epoch:
            self._assign()
        after = reconcile(member, self._targets.get(member.member_id, NOTHING), self.target_epoch, self._owners, owned)
        if self._put(after):
            changed = True
            self._watch_revocation(after, now_ms)
        if changed:
            self._append()
        return after

    def _member_of(self, event: ConsumerGroupHeartbeat) -> ConsumerMember:
        joins = event.member_epoch == JOIN_GROUP_MEMBER_EPOCH
        member = self._members.get(event.member_id)
        existing = self._static.get(event.group_instance_id) if event.group_instance_id is not None else None
        if not joins:
            member = self._require(event.member_id, event.group_instance_id)
            if member.classic is not None:
                raise UnknownMemberIdError(
                    f"Member {member.member_id!r} uses the classic protocol: join with epoch 0 to change that."
                )
            _require_epoch(member, event.member_epoch, event.owned)
            return member
        if existing is not None and existing != event.member_id:
            static = self._members[existing]
            is_there = static.classic is None and static.member_epoch != LEAVE_GROUP_STATIC_MEMBER_EPOCH
            if is_there or member is not None:
                raise UnreleasedInstanceIdError(
                    f"Member {existing!r} has the group.instance.id {event.group_instance_id!r}: stop it, or wait for "
                    "the end of its session."
                )
            return replaced(static, event.member_id)
        if member is not None:
            if member.instance_id != event.group_instance_id:
                raise InvalidRequestError(
                    f"Member {event.member_id!r} joined as {member.instance_id!r}: it cannot change its InstanceId."
                )
            return replace(
                member,
                member_epoch=0,
                previous_member_epoch=0,
                state=MemberState.STABLE,
                assigned=NOTHING,
                pending_revocation=NOTHING,
            )
        return self._new_member(event.member_id)

    def _new_member(self, member_id: str) -> ConsumerMember:
        """Return a new member. Raises GroupMaxSizeReachedError."""
        if len(self._members) >= self._config.group_max_size:
            raise GroupMaxSizeReachedError(
                f"Group {self.name} has {self._config.group_max_size} members, the most of group.max.size."
            )
        return ConsumerMember(member_id)

    def _existing(self, member_id: str, instance_id: str | None) -> ConsumerMember | None:
        """Return the member with these ids, or the static member that it replaces."""
        static = self._static.get(instance_id) if instance_id is not None else None
        return self._members.get(static or member_id)

    def _num_bytes_with(
        self, member: ConsumerMember, existing: ConsumerMember | None, found: Mapping[str, frozenset[str]]
    ) -> int:
        """Return ``num_bytes`` after the request, whose member replaces the existing one. A new regex may replace
        another one, which counts until then.
        """
        matched = sum(topic_names_bytes(names) for regex, names in found.items() if regex not in self._matches)
        return (
            self.num_bytes + matched + member.num_bytes - (0 if existing is None else self._sizes[existing.member_id])
        )

    def _require(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        """Return a member. Raises UnknownMemberIdError, FencedInstanceIdError.

        A classic member that has lost its id is unknown, and not fenced: see ``ClassicMembers.require``.
        """
        owner = self._static.get(instance_id) if instance_id is not None else None
        if owner is not None and member_id not in (owner, UNKNOWN_MEMBER_ID):
            raise FencedInstanceIdError(
                f"Another member has the group.instance.id {instance_id!r}: give each consumer its own."
            )
        member = self._members.get(member_id)
        if member is None or (instance_id is not None and member.instance_id != instance_id):
            raise UnknownMemberIdError(f"Group {self.name} has no member {member_id!r}: join it again, with epoch 0.")
        return member

    def _take_over(self, static: ConsumerMember, member_id: str) -> None:
        """Give the partitions and the target of a static member to its new id."""
        self._targets[member_id] = self._targets.get(static.member_id, NOTHING)
        self._drop(static)

    # ---- leaving and fencing ----------------------------------------------------------------------------------------

    def _leave(self, event: ConsumerGroupHeartbeat, now_ms: int) -> ConsumerGroupHeartbeatResponse:
        member = self._require(event.member_id, event.group_instance_id)
        if event.member_epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
            away = replace(
                member,
                member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH,
                previous_member_epoch=LEAVE_GROUP_STATIC_MEMBER_EPOCH,
                state=MemberState.STABLE,
                pending_revocation=NOTHING,
            )
            self._put(away)
            self._out.cancel(REBALANCE + member.member_id)
            self._append()
        else:
            self._fence([member], now_ms)
        return ConsumerGroupHeartbeatResponse(None, member.member_id, event.member_epoch)

    def _fence(self, members: Iterable[ConsumerMember], now_ms: int) -> None:
        """Remove the members. The next heartbeat of another member makes an assignment without them."""
        for member in members:
            self._drop(member)
        if not self._members:
            self._empty_since_ms = now_ms
        self._look_at_topics({})
        self.epoch += 1
        if not self._members:
            self._assign()
        self._append()

    def check_commit(self, event: CommitOffsets) -> None:
        """Raise UnknownMemberIdError, FencedInstanceIdError, StaleMemberEpochError, or for a classic member
        IllegalGenerationError, if the commit is refused.
        """
        if event.generation >= 0 or self._members:
            self.check_epoch(event.member_id, event.group_instance_id, event.generation, "the commit")

    def check_epoch(self, member_id: str, instance_id: str | None, epoch: int, request: str) -> None:
        """Raise what ``check_commit`` raises."""
        member = self._require(member_id, instance_id)
        if member.classic is not None:
            require_generation(member, epoch)
        elif epoch < 0 or epoch != member.member_epoch:
            raise StaleMemberEpochError(
                f"Member {member.member_id!r} is at epoch {member.member_epoch}, {request} is of {epoch}: "
                "send a heartbeat, then try again with the epoch of its answer."
            )

    def on_timer(self, key: str, now_ms: int) -> None:
        """Remove a member whose session has ended, or which has not revoked within its rebalance timeout."""
        member_id = key.removeprefix(SESSION if key.startswith(SESSION) else REBALANCE)
        self._fence([self._members[member_id]], now_ms)

    def _arm_session(self, member: ConsumerMember, now_ms: int) -> None:
        timeout_ms = self._config.group_consumer_session_timeout_ms
        if member.classic is not None:
            timeout_ms = member.classic.session_timeout_ms
        self._out.arm(SESSION + member.member_id, now_ms + timeout_ms)

    def _watch_revocation(self, member: ConsumerMember, now_ms: int) -> None:
        """Watch a member that has to revoke. Classic members have that time for their next JoinGroup and SyncGroup, see
        ``MixedGroup``.
        """
        if member.classic is not None:
            return
        if member.state == MemberState.UNREVOKED_PARTITIONS:
            self._out.arm(REBALANCE + member.member_id, now_ms + member.rebalance_timeout_ms)
        else:
            self._out.cancel(REBALANCE + member.member_id)

    # ---- topics and the target assignment ---------------------------------------------------------------------------

    def on_topics(self, event: TopicsChanged) -> None:
        self._image = event.topics
        self._refresh(event.matches)

    def _refresh(self, matches: Mapping[str, frozenset[str]]) -> None:
        if self._look_at_topics(matches):
            self.epoch += 1
            self._append()

    def _subscribed(self, member: ConsumerMember) -> frozenset[str]:
        return member.subscribed_topics | self._matches.get(member.subscribed_regex, frozenset())

    def _look_at_topics(self, matches: Mapping[str, frozenset[str]]) -> bool:
        """Update the subscribed topics and the matches of regexes, and return whether a subscription changed, or a
        topic was made, was deleted or grew.
        """
        matches_before = self._matches
        self._take_matches(
            {regex: matches.get(regex, matches_before.get(regex, frozenset())) for regex in sorted(self.regexes)}
        )
        subscribed = sorted({name for member in self._members.values() for name in self._subscribed(member)})
        topics = {name: self._image[name] for name in subscribed if name in self._image}
        changed = topics != self._topics or self._matches != matches_before
        self._topics = topics
        return changed

    def _take_matches(self, matches: dict[str, frozenset[str]]) -> None:
        if matches != self._matches:
            self._matches = matches
            self._matched_bytes = sum(map(topic_names_bytes, matches.values()))

    def _assign(self) -> None:
        """Make the target assignment of the present epoch, with the assignor that most members prefer."""
        # For an assignor, nothing is owned of a topic's former id.
        names = {description.topic_id: name for name, description in self._topics.items()}
        members = {
            member_id: MemberSubscription(
                tuple(sorted(self._subscribed(member) & self._topics.keys())),
                tuple(sorted((names[each.topic_id], each.partition) for each in target if each.topic_id in names)),
                member.member_epoch,
                member.instance_id,
                member.rack_id,
            )
            for member_id, member in self._members.items()
            for target in [self._targets.get(member_id, NOTHING)]
        }
        partitions = {name: description.partitions for name, description in self._topics.items()}
        assigned = self._assignors[self.assignor].assign(partitions, members) if members else {}
        self._targets = {
            member_id: frozenset(
                TopicIdPartition(self._topics[topic].topic_id, partition)
                for topic, partition in assigned.get(member_id, ())
            )
            for member_id in members
        }
        self.target_epoch = self.epoch
        held = {each.topic_id for each in self._owners}
        self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in held} | names

    @property
    def assignor(self) -> str:
        """The assignor that most members ask for; the first one asked for decides a tie."""
        asked = Counter(m.server_assignor for m in self._members.values() if m.server_assignor is not None)
        return max(asked, key=asked.__getitem__) if asked else next(iter(self._assignors))

    # ---- members ----------------------------------------------------------------------------------------------------

    def _put(self, member: ConsumerMember) -> bool:
        """Store the member as it is now, and return whether that is a change."""
        before = self._members.get(member.member_id)
        if before == member:
            return False
        if before is not None:
            self._release(before)
        self._members[member.member_id] = member
        num_bytes = member.num_bytes
        self._members_bytes += num_bytes - self._sizes.get(member.member_id, 0)
        self._sizes[member.member_id] = num_bytes
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        for each in member.assigned | member.pending_revocation:
            assert self._owners.setdefault(each, member.member_id) == member.member_id, f"{each} has two owners"
        self._empty_since_ms = None
        return True

    def _drop(self, member: ConsumerMember) -> None:
        self._release(member)
        del self._members[member.member_id]
        self._members_bytes -= self._sizes.pop(member.member_id)
        self._targets.pop(member.member_id, None)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self._out.cancel(SESSION + member.member_id)
        self._out.cancel(REBALANCE + member.member_id)

    def _release(self, member: ConsumerMember) -> None:
        for each in member.assigned | member.pending_revocation:
            del self._owners[each]

    def _by_topic(self, partitions: Iterable[TopicIdPartition]) -> tuple[AssignedTopic, ...]:
        named = by_topic(partitions).items()
        topics = (AssignedTopic(at, self._names.get(at, ""), tuple(numbers)) for at, numbers in named)
        return tuple(sorted(topics, key=lambda topic: (topic.topic, topic.topic_id)))

    # ---- records ----------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        self._out.append(GroupRecord(self.name, self.value()))

    def value(self) -> ConsumerGroupValue:
        """Return the group for its record."""
        members = [
            ConsumerMemberValue(
                member.member_id,
                member.instance_id,
                member.rack_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                sorted(member.subscribed_topics),
                member.subscribed_regex,
                member.server_assignor,
                member.member_epoch,
                member.previous_member_epoch,
                member.state,
                by_topic(member.assigned),
                by_topic(member.pending_revocation),
                by_topic(self._targets.get(member.member_id, NOTHING)),
                _classic_value(member.classic),
            )
            for member in self._members.values()
        ]
        return ConsumerGroupValue(
            self.epoch,
            self.target_epoch,
            self._empty_since_ms or 0,
            {name: (topic_id, partitions) for name, (topic_id, partitions) in self._topics.items()},
            {regex: sorted(names) for regex, names in self._matches.items()},
            self._names,
            members,
        )

    def restore(self, value: ConsumerGroupValue) -> None:
        self.epoch, self.target_epoch = value.epoch, value.target_epoch
        self._topics = {name: TopicDescription(*description) for name, description in value.topics.items()}
        self._take_matches({regex: frozenset(names) for regex, names in value.regexes.items()})
        self._names = dict(value.names)
        self._members, self._static, self._targets, self._owners = {}, {}, {}, {}
        for each in value.members:
            self._put(
                ConsumerMember(
                    each.member_id,
                    each.instance_id,
                    each.rack_id,
                    each.client_id,
                    each.client_host,
                    each.rebalance_timeout_ms,
                    _classic_protocol(each.classic),
                    frozenset(each.subscribed_topics),
                    each.subscribed_regex,
                    each.server_assignor,
                    each.member_epoch,
                    each.previous_member_epoch,
                    MemberState(each.state),
                    partitions_of(each.assigned),
                    partitions_of(each.pending_revocation),
                )
            )
            self._targets[each.member_id] = partitions_of(each.target)
        self._empty_since_ms = None if self._members else value.state_timestamp

    def resume(self, now_ms: int) -> None:
        """Give every member a whole session after a restart to send a request, and look at topics that may have
        changed.
        """
        for member in self._members.values():
            self._arm_session(member, now_ms)
            self._watch_revocation(member, now_ms)
        self._refresh({})

    def describe(self, *, with_members: bool = True) -> GroupDescription:
        members = tuple(self._described(member) for member in self._members.values()) if with_members else ()
        return GroupDescription(
            self.name,
            "consumer",
            self.state,
            self.epoch,
            "consumer",
            self.assignor,
            self._empty_since_ms,
            members,
            self.target_epoch,
        )

    def subscribed_topics(self) -> frozenset[str]:
        """Return the topics that members name, or that match their regexes."""
        return frozenset(name for member in self._members.values() for name in self._subscribed(member))

    def _described(self, member: ConsumerMember) -> MemberDescription:
        assigned = self._by_topic(member.assigned)
        return MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            tuple(TopicPartition(each.topic, partition) for each in assigned for partition in each.partitions),
            member_epoch=member.member_epoch,
            rack_id=member.rack_id,
            subscribed_topics=tuple(sorted(member.subscribed_topics)),
            subscribed_regex=member.subscribed_regex,
            is_classic=member.classic is not None,
            assigned=assigned,
            target=self._by_topic(self._targets.get(member.member_id, NOTHING)),
        )

    def validate(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        members, armed = self._members, self._out.deadlines
        owners: dict[TopicIdPartition, str] = {}
        for member_id, member in members.items():
            assert member.member_id == member_id, f"{member_id} is kept under another id"
            for each in member.assigned | member.pending_revocation:
                assert owners.setdefault(each, member_id) == member_id, f"{each} has two owners"
            self._validate_member(member)
        assert owners == self._owners, "the owners differ from what the members have"
        static = {m.instance_id: m.member_id for m in members.values() if m.instance_id is not None}
        assert static == self._static, "instance ids do not name their members"
        sizes = {name: member.num_bytes for name, member in members.items()}
        assert (self._sizes, self._members_bytes) == (sizes, sum(sizes.values())), "the members have other sizes"
        matched = sum(map(topic_names_bytes, self._matches.values()))
        assert self._matched_bytes == matched, "the regexes match names of another size"
        assert self.target_epoch <= self.epoch, "the target is ahead of the group"
        assert self._targets.keys() <= members.keys(), "somebody who is no member has a target"
        if self.epoch == self.target_epoch:
            assert self._targets.keys() == members.keys(), "a member has no target"
            targets = [each for target in self._targets.values() for each in target]
            assert len(targets) == len(set(targets)), "a partition is in two targets"
        watched = {key.partition("/")[2] for key in armed}
        assert watched == members.keys(), "the timers are not those of the members"

    def _validate_member(self, member: ConsumerMember) -> None:
        name, armed = member.member_id, self._out.deadlines
        unrevoked = member.state == MemberState.UNREVOKED_PARTITIONS
        assert SESSION + name in armed, f"nobody watches {name}"
        watched = REBALANCE + name in armed
        assert member.classic is not None or unrevoked == watched, f"{name} is {member.state}, and watched: {watched}"
        assert unrevoked == bool(member.pending_revocation), f"{name} is {member.state} with something to revoke or not"
        assert member.member_epoch <= self.target_epoch, f"{name} is ahead of the target"
        assert not member.assigned & member.pending_revocation, f"{name} has what it is to revoke"
        if member.is_reconciled_to(self.target_epoch) and member.member_id in self._targets:
            assert member.assigned == self._targets[name], f"{name} is reconciled to something else"


def _updated(before: ConsumerMember, event: ConsumerGroupHeartbeat) -> ConsumerMember:
    """Return the member with the fields of the heartbeat; the others stay."""
    return replace(
        before,
        instance_id=event.group_instance_id if event.group_instance_id is not None else before.instance_id,
        rack_id=event.rack_id if event.rack_id is not None else before.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        classic=None,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if event.rebalance_timeout_ms < 0
        else event.rebalance_timeout_ms,
        subscribed_topics=before.subscribed_topics if event.subscribed_topics is None else event.subscribed_topics,
        subscribed_regex=before.subscribed_regex if event.subscribed_regex is None else event.subscribed_regex,
        server_assignor=event.server_assignor if event.server_assignor is not None else before.server_assignor,
    )


def replaced(static: ConsumerMember, member_id: str) -> ConsumerMember:
    """Return the static member under another id, with the partitions that were kept for it. It has lost those that it
    was to revoke.
    """
    return replace(
        static,
        member_id=member_id,
        member_epoch=0,
        previous_member_epoch=0,
        state=MemberState.STABLE,
        pending_revocation=NOTHING,
    )


def _found(event: ConsumerGroupHeartbeat) -> dict[str, frozenset[str]]:
    """Return the topics that the regex of a heartbeat matches."""
    return {event.subscribed_regex: event.regex_topics} if event.subscribed_regex else {}


def require_generation(member: ConsumerMember, generation: int) -> None:
    """Raise IllegalGenerationError if this is not the member epoch, which is the generation of a classic member."""
    if generation != member.member_epoch:
        raise IllegalGenerationError(
            f"Member {member.member_id!r} is in generation {member.member_epoch}, the request is of {generation}: "
            "join the group again."
        )


def _classic_value(classic: ClassicProtocol | None) -> ClassicProtocolValue | None:
    if classic is None:
        return None
    return ClassicProtocolValue(classic.session_timeout_ms, [(each.name, each.metadata) for each in classic.protocols])


def _classic_protocol(value: ClassicProtocolValue | None) -> ClassicProtocol | None:
    if value is None:
        return None
    return ClassicProtocol(value.session_timeout_ms, tuple(Protocol(*each) for each in value.protocols))


def _require_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Raise FencedMemberEpochError if the epoch is not the member's.

    A member whose last response was lost sends its previous epoch and what it holds.
    """
    if epoch == member.member_epoch:
        return
    holds_its_own = owned is not None and owned <= member.assigned | member.pending_revocation
    if epoch != member.previous_member_epoch or not holds_its_own:
        raise FencedMemberEpochError(
            f"Member {member.member_id!r} is at epoch {member.member_epoch}, the request is of {epoch}: give up all "
            "partitions, and join again with epoch 0."
        )
