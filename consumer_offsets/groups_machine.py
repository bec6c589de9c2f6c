"""The state machine of a partition of ``__consumer_offsets``: its groups with their committed offsets, and its consumer
instances.

Invariants: an offset that is read here is durable, because a commit counts once its record is stored, not when it is
requested. A group is in memory as long as it has a member, a member that is still to join, or a record in the log.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from consumer_offsets.committed_offsets import CommittedOffsets, TopicPartition
from consumer_offsets.effects import AppendRecord, ArmTimer, CancelTimer, Effect, Respond, TimerFired
from consumer_offsets.groups import events
from consumer_offsets.groups.description import GroupDescription
from consumer_offsets.groups.group import Group, refusal
from consumer_offsets.groups.group_record import decode_group_record
from consumer_offsets.groups.instance_record import decode_instance
from consumer_offsets.groups.instance_table import InstanceTable, PutInstance
from logstore.errors import CorruptionError, LogStoreError, ThrottledError, UnknownInstanceError
from logstore.limits import ALL_GROUPS_BYTES_MAX, GROUP_MEMBERS_PENDING_MAX
from logstore.records.offset_record import (
    GroupKey,
    InstanceKey,
    OffsetCommit,
    OffsetKey,
    OffsetRecord,
    decode_commit,
    decode_key,
)

#: The token of the machine's own requests to a group; the tokens of a shard count from 1.
OWN_REQUEST: Final = 0


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Commit all offsets or none; the response is None. ``member`` is the committing member; ``instance`` has the id of
    the committing consumer instance, and UnknownInstanceError is raised if it no longer exists.
    """

    request: int
    group: str
    commits: Mapping[TopicPartition, OffsetCommit]
    member: events.CommitOffsets
    instance: tuple[InstanceKey, str] | None = None


@dataclass(frozen=True, slots=True)
class DeleteOffsets:
    """Delete offsets of topics that were deleted, whichever members the group has. The response is None."""

    request: int
    group: str
    places: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    """Delete the group with all its offsets, also those under way. The response is None, or NonEmptyGroupError."""

    request: int
    group: str


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Delete offsets of the group that were committed before ``before_ms``, and are not being committed again, if it
    has had no member since then. The response is their number.
    """

    request: int
    group: str
    before_ms: int


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """A request of a member, made with the token of its response, which is one of ``groups.responses``."""

    group: str
    event: events.Event


@dataclass(frozen=True, slots=True)
class Barrier:
    """An event that changes nothing. Like every response, its None comes when all that was done before is durable."""

    request: int


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """``matches`` gives the topics that each of some regexes matches."""

    topics: events.TopicImage
    matches: Callable[[frozenset[str]], Mapping[str, frozenset[str]]]


Event = (
    CommitOffsets
    | DeleteOffsets
    | DeleteGroup
    | ExpireOffsets
    | MemberRequest
    | PutInstance
    | Barrier
    | TopicsChanged
    | TimerFired
)


class GroupsMachine:
    """``new_group`` makes the machine of the group with that name; ``topics`` gives the topics that exist now."""

    def __init__(self, new_group: Callable[[str], Group], topics: Callable[[], TopicsChanged]) -> None:
        self.offsets = CommittedOffsets()
        self.instances = InstanceTable()
        self._new_group = new_group
        self._topics = topics
        self._groups: dict[str, Group] = {}
        #: For each group, the number of records under way for each partition.
        self._on_their_way: dict[str, Counter[TopicPartition]] = {}
        #: For each group, the number of members that were given an id and have not joined; and the sum for all groups.
        self._pending: dict[str, int] = {}
        self._pending_total = 0
        #: For each group, the bytes that its members bring into its record; and the sum for all groups.
        self._sizes: dict[str, int] = {}
        self._num_bytes = 0

    # ---- reading ----------------------------------------------------------------------------------------------------

    def groups(self) -> list[str]:
        """Return the groups that have had members, and are not deleted."""
        return list(self._groups)

    def describe(self, group: str, *, with_members: bool = True, now_ms: int | None = None) -> GroupDescription | None:
        """Return the present state of the group, which is durable after a Barrier; None if it never had a member.
        ``now_ms`` is that of ``Group``.
        """
        found = self._groups.get(group)
        return None if found is None else found.describe(with_members=with_members, now_ms=now_ms)

    def subscribed_topics(self, group: str) -> frozenset[str] | None:
        """Return the topics that members subscribe to; None: any topic. Raises NonEmptyGroupError if members do not
        subscribe.
        """
        found = self._groups.get(group)
        return frozenset() if found is None else found.subscribed_topics()

    def check_fetch(self, group: str, member_id: str, member_epoch: int) -> None:
        """Raise UnknownMemberIdError or StaleMemberEpochError if a group of KIP-848 has no such member."""
        found = self._groups.get(group)
        if found is not None:
            found.check_fetch(member_id, member_epoch)

    def is_known(self, group: str) -> bool:
        """Return whether the group has had members, and is not deleted."""
        return group in self._groups

    def is_empty(self, group: str) -> bool:
        """Return whether the group has no members."""
        found = self._groups.get(group)
        return found is None or found.is_empty

    def knows(self, group: str, member_id: str) -> bool:
        """Return whether the group has a member with this id, or gave it to one that has not joined yet."""
        found = self._groups.get(group)
        return found is not None and found.knows(member_id)

    def keys(self, group: str) -> list[TopicPartition]:
        """Return the partitions with a committed offset, or with one that is under way."""
        return list(dict.fromkeys([*self.offsets.keys(group), *self._on_their_way.get(group, ())]))

    def unused(self) -> list[str]:
        """Return the groups that had members, and now have neither a member nor an offset."""
        return [name for name, group in self._groups.items() if group.is_empty and not self.keys(name)]

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups with such a partition of the topic."""
        on_their_way = (group for group, places in self._on_their_way.items() if any(topic == p.topic for p in places))
        return list(dict.fromkeys([*self.offsets.of_topic(topic), *on_their_way]))

    # ---- the machine of a shard -------------------------------------------------------------------------------------

    def replay(self, records: pa.Table, producer_id: int, producer_epoch: int) -> None:  # noqa: ARG002 - as the protocol
        columns = (records.column(name).to_pylist() for name in ("offset", "key", "value"))
        latest = {key: (offset, value) for offset, key, value in zip(*columns, strict=True)}
        for text, (offset, value) in latest.items():
            try:
                key = decode_key(text)
                if isinstance(key, GroupKey):
                    self._replay_group(key.group, text, value)
                elif isinstance(key, InstanceKey):
                    self.instances.replay(key, decode_instance(text, value))
                else:
                    self.offsets.replay(offset, key, decode_commit(text, value), producer_id)
            except CorruptionError as error:
                raise CorruptionError(f"offset {offset}: {error}") from error

    def _replay_group(self, group: str, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._groups.pop(group, None)
        else:
            self._group(group).replay(decode_group_record(key, value))

    def replay_marker(self, producer_id: int, producer_epoch: int, *, committed: bool) -> None:  # noqa: ARG002
        self.offsets.replay_marker(producer_id, committed=committed)

    def on_loaded(self, now_ms: int) -> Iterator[Effect]:
        for name, group in list(self._groups.items()):
            yield from self._done(name, group.resume(now_ms))
        yield from self.apply(self._topics(), now_ms)

    def apply(self, event: Event, now_ms: int) -> Iterator[Effect]:
        match event:
            case MemberRequest(group, request):
                yield from self._done(group, self._asked_by_member(self._group(group), request, now_ms))
            case CommitOffsets():
                yield from self._commit(event, now_ms)
            case TimerFired(key=(group, key)):
                if group in self._groups:
                    yield from self._done(group, self._groups[group].apply(TimerFired(key), now_ms))
            case PutInstance():
                yield from self.instances.put(event)
            case DeleteOffsets(request, group, places):
                yield from self._append(group, dict.fromkeys(places))
                yield Respond(request, None)
            case DeleteGroup():
                yield from self._delete(event, now_ms)
            case ExpireOffsets(request, group, before_ms):
                expired = self._expired(group, before_ms)
                yield from self._append(group, dict.fromkeys(expired))
                if group in self._groups and len(expired) == len(self.keys(group)):
                    yield from self._asked(group, events.DeleteGroup(OWN_REQUEST), now_ms)
                yield Respond(request, len(expired))
            case Barrier(request):
                yield Respond(request, None)
            case TopicsChanged(topics, matches):
                for name, group in list(self._groups.items()):
                    changed = events.TopicsChanged(topics, matches(group.regexes))
                    yield from self._done(name, group.apply(changed, now_ms))

    def stored(self, offsets: Sequence[int], records: Sequence[object]) -> None:
        for offset, record in zip(offsets, records, strict=True):
            if not isinstance(record, OffsetRecord):
                continue
            key, commit = record
            self.offsets.replay(offset, key, commit)
            places, place = self._on_their_way[key.group], TopicPartition(key.topic, key.partition)
            places[place] -= 1
            if not places[place]:
                del places[place]
                if not places:
                    del self._on_their_way[key.group]

    # ---- groups -----------------------------------------------------------------------------------------------------

    def _group(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._new_group(name)
        return group

    def _done(self, name: str, effects: Sequence[Effect]) -> Iterator[Effect]:
        """Yield the effects of a group as effects of the machine, and forget the group if nothing is left of it."""
        for effect in effects:
            match effect:
                case ArmTimer(key, at_ms):
                    yield ArmTimer((name, key), at_ms)
                case CancelTimer(key):
                    yield CancelTimer((name, key))
                case _:
                    yield effect
        group = self._groups[name]
        pending = group.pending_count
        self._pending_total += pending - self._pending.pop(name, 0)
        if pending:
            self._pending[name] = pending
        self._num_bytes += group.num_bytes - self._sizes.pop(name, 0)
        if group.num_bytes:
            self._sizes[name] = group.num_bytes
        if group.is_vacant:
            del self._groups[name]

    def _asked_by_member(self, group: Group, request: events.Event, now_ms: int) -> Sequence[Effect]:
        """Apply a member's request, or throttle it.

        ThrottledError (KIP-394) is for a member that asks for an id when too many have one and have not joined, and for
        one whose group would grow when all groups bring too much. Other requests are served.
        """
        match request:
            case events.JoinGroup(member_id="", group_instance_id=None, requires_known_member_id=True) if (
                self._pending_total >= GROUP_MEMBERS_PENDING_MAX
            ):
                full = f"{GROUP_MEMBERS_PENDING_MAX} members have an id and have not joined"
            case events.JoinGroup() | events.SyncGroup() | events.ConsumerGroupHeartbeat() if (
                self._num_bytes >= ALL_GROUPS_BYTES_MAX and group.would_grow(request)
            ):
                full = f"The members of all groups bring {ALL_GROUPS_BYTES_MAX} bytes, the most"
            case _:
                return group.apply(request, now_ms)
        return [Respond(request.request, refusal(request, ThrottledError(f"{full}: try again soon.")))]

    def _commit(self, event: CommitOffsets, now_ms: int) -> Iterator[Effect]:
        error: LogStoreError | None = None
        if event.instance is not None:
            try:
                self.instances.require(*event.instance)
            except UnknownInstanceError as unknown:
                error = unknown
        if error is None:
            error = yield from self._asked(event.group, event.member, now_ms)
        if error is None:
            yield from self._append(event.group, event.commits)
            if event.instance is not None:
                yield from self.instances.committed(event.instance[0], event.commits)
        yield Respond(event.request, error)

    def _delete(self, event: DeleteGroup, now_ms: int) -> Iterator[Effect]:
        error = yield from self._asked(event.group, events.DeleteGroup(OWN_REQUEST), now_ms)
        if error is None:
            yield from self._append(event.group, dict.fromkeys(self.keys(event.group)))
        yield Respond(event.request, error)

    def _asked(
        self, group: str, event: events.CommitOffsets | events.DeleteGroup, now_ms: int
    ) -> Generator[Effect, None, LogStoreError | None]:
        """Yield the effects of the machine's own request to a group, and return its refusal."""
        effects = self._group(group).apply(event, now_ms)
        own = [effect for effect in effects if isinstance(effect, Respond) and effect.request == OWN_REQUEST]
        yield from self._done(group, [effect for effect in effects if effect not in own])
        (answer,) = own
        error: LogStoreError | None = answer.response.error
        return error

    def _expired(self, group: str, before_ms: int) -> list[TopicPartition]:
        described = self.describe(group)
        if described is not None and (described.members or (described.state_since_ms or 0) >= before_ms):
            return []
        on_their_way = self._on_their_way.get(group, ())
        return [
            place
            for place, commit in self.offsets.commits(group).items()
            if commit.commit_timestamp < before_ms and place not in on_their_way
        ]

    def _append(self, group: str, commits: Mapping[TopicPartition, OffsetCommit | None]) -> Iterator[Effect]:
        if commits:
            self._on_their_way.setdefault(group, Counter()).update(commits.keys())
        for place, commit in commits.items():
            yield AppendRecord(OffsetRecord(OffsetKey(group, *place), commit))
