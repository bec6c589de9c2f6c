"""A group with a clock, timers, a log and clients' requests: everything that its coordinator provides, in memory."""

import uuid
from collections.abc import Mapping
from typing import Any

from consumer_offsets.effects import Answer, AppendRecord, ArmTimer, CancelTimer, Effect, TimerFired
from consumer_offsets.groups.events import (
    CommitOffsets,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    Event,
    Heartbeat,
    JoinGroup,
    JoinProtocol,
    LeaveGroup,
    LeavingMember,
    SyncGroup,
    TopicDescription,
    TopicIdPartition,
    TopicsChanged,
)
from consumer_offsets.groups.group import Group
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups.group_record import decode_group_record
from logstore.protocol.assignors.assignor import MemberSubscription

RANGE = (JoinProtocol("range", b"r"),)
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def topic_id(topic: str, life: int = 0) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{topic}-{life}")


def topics_of(**partitions: int) -> dict[str, TopicDescription]:
    return {topic: TopicDescription(topic_id(topic), number) for topic, number in partitions.items()}


class EvenAssignor:
    """Keeps owned partitions as far as that is even, and gives the rest to the members with the fewest."""

    name = "even"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[tuple[str, int]]]:
        assigned: dict[str, list[tuple[str, int]]] = {member: [] for member in members}
        for topic, number in partitions.items():
            subscribed = [member for member in members if topic in members[member].topics]
            most = -(-number // len(subscribed))
            left = [(topic, partition) for partition in range(number)]
            for member in subscribed:
                kept = [each for each in members[member].owned if each in left][:most]
                assigned[member] += kept
                left = [each for each in left if each not in kept]
            for each in left:
                least = min(subscribed, key=lambda member: sum(at == topic for at, _ in assigned[member]))
                assigned[least].append(each)
        return assigned


class RoundRobinAssignor:
    """Moves any partitions, but gives the same assignment for the same members."""

    name = "round-robin"

    def assign(
        self, partitions: Mapping[str, int], members: Mapping[str, MemberSubscription]
    ) -> dict[str, list[tuple[str, int]]]:
        assigned: dict[str, list[tuple[str, int]]] = {member: [] for member in members}
        for topic, number in partitions.items():
            subscribed = sorted(member for member in members if topic in members[member].topics)
            for partition in range(number):
                assigned[subscribed[partition % len(subscribed)]].append((topic, partition))
        return assigned


ASSIGNORS = {each.name: each for each in (EvenAssignor(), RoundRobinAssignor())}


class GroupDriver:
    """Drives a group; ``answers`` are the responses by request that were not taken yet. Each event is followed by
    ``validate``.
    """

    def __init__(self, *, config: GroupConfig | None = None, **partitions: int) -> None:
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0)
        self.topics = topics_of(**partitions)
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        #: The number of last records of the log that compaction has left.
        self.keeps = 1_000
        self.timers: dict[str, int] = {}
        self.answers: dict[int, Any] = {}
        self.parked: set[int] = set()
        self.effects: list[Effect] = []
        self._next = 0
        self.group = self.new_group()

    def new_group(self) -> Group:
        return Group("g", self.config, ASSIGNORS, self.topics)

    def token(self) -> int:
        self._next += 1
        return self._next

    # ---- coordinator ------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        request = getattr(event, "request", None)
        if request is not None:
            self.parked.add(request)
        self.perform(self.group.apply(event, self.now_ms))

    def perform(self, effects: list[Effect]) -> None:
        self.effects = effects
        for effect in effects:
            match effect:
                case AppendRecord(record):
                    self.log.append(record.encoded())
                case Answer(request, response):
                    assert request in self.parked, f"{request} is answered twice, or was never asked"
                    self.parked.remove(request)
                    self.answers[request] = response
                case ArmTimer(key, at_ms):
                    self.timers[key] = at_ms
                case CancelTimer(key):
                    del self.timers[key]
        self.group.validate()

    def advance(self, ms: int) -> None:
        """Let time pass, and fire timers when they are due."""
        end = self.now_ms + ms
        while self.timers and min(self.timers.values()) <= end:
            key = min(self.timers, key=lambda each: (self.timers[each], each))
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.apply(TimerFired(key))
        self.now_ms = end

    def settle(self) -> None:
        """Fire the timers that are due now."""
        self.advance(0)

    def restart(self) -> None:
        """Let another coordinator read the log. Requests under way are lost with their connections."""
        self.timers.clear()
        self.parked.clear()
        self.group = self.new_group()
        for key, value in self.log[-self.keeps :]:
            self.group.replay(decode_group_record(key, value))
        self.perform(self.group.resume(self.now_ms))

    def answer(self, request: int) -> Any:
        """Take the response, or None if the request is parked."""
        return self.answers.pop(request, None)

    def ask(self, event: Any) -> Any:
        self.apply(event)
        return self.answer(event.request)

    @property
    def state(self) -> str:
        return self.group.describe().state

    # ---- classic members --------------------------------------------------------------------------------------------

    def join_event(self, member_id: str = "", **given: Any) -> JoinGroup:
        request = self.token()
        fields = {
            "new_member_id": f"m{request}",
            "protocol_type": "consumer",
            "protocols": RANGE,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
        }
        return JoinGroup(request, member_id, **(fields | given))

    def join(self, member_id: str = "", **given: Any) -> Any:
        return self.ask(self.join_event(member_id, **given))

    def park_join(self, member_id: str = "", **given: Any) -> int:
        """Join, with a member id first if needed; return the parked request."""
        if not member_id and given.get("instance_id") is None and given.get("requires_known_member_id", True):
            member_id = self.join(**given).member_id
        event = self.join_event(member_id, **given)
        self.apply(event)
        return event.request

    def sync(self, member_id: str, generation: int, **given: Any) -> Any:
        given["assignments"] = tuple(given.get("assignments", {}).items())
        return self.ask(SyncGroup(self.token(), member_id, generation, **given))

    def park_sync(self, member_id: str, generation: int) -> int:
        event = SyncGroup(self.token(), member_id, generation)
        self.apply(event)
        return event.request

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> Any:
        return self.ask(Heartbeat(self.token(), member_id, generation, instance_id)).error

    def leave(self, member_id: str, instance_id: str | None = None) -> Any:
        return self.ask(LeaveGroup(self.token(), (LeavingMember(member_id, instance_id),))).members[0].error

    def commit(self, member_id: str = "", generation: int = -1, instance_id: str | None = None) -> Any:
        return self.ask(CommitOffsets(self.token(), member_id, generation, instance_id)).error

    def delete(self) -> Any:
        return self.ask(DeleteGroup(self.token())).error

    def stable(self, *instance_ids: str | None) -> list[str]:
        """Return members of a stable classic group of generation 1, the leader first; each is assigned its own id."""
        requests = [self.park_join(instance_id=each) for each in instance_ids]
        self.settle()
        joined = [self.answer(request) for request in requests]
        members = [each.member_id for each in joined]
        parked = [self.park_sync(member, 1) for member in members[1:]]
        self.sync(members[0], 1, assignments={member: member.encode() for member in members})
        assert [self.answer(request).assignment for request in parked] == [member.encode() for member in members[1:]]
        assert self.state == "Stable"
        return members

    # ---- members of the consumer protocol ---------------------------------------------------------------------------

    def beat(self, member_id: str, member_epoch: int, **given: Any) -> Any:
        if member_epoch == 0:
            defaults = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topics": {"t"}, "owned": ()}
            given = defaults | given
        for name in ("subscribed_topics", "regex_topics"):
            if given.get(name) is not None:
                given[name] = frozenset(given[name])
        if given.get("owned") is not None:
            given["owned"] = owned(*given["owned"])
        return self.ask(ConsumerGroupHeartbeat(self.token(), member_id, member_epoch, **given))

    def change_topics(self, matches: Mapping[str, set[str]] | None = None, **partitions: int) -> None:
        self.topics = topics_of(**partitions)
        self.apply(TopicsChanged(self.topics, {regex: frozenset(names) for regex, names in (matches or {}).items()}))


def owned(*partitions: tuple[str, int]) -> frozenset[TopicIdPartition]:
    return frozenset(TopicIdPartition(topic_id(topic), partition) for topic, partition in partitions)


def assigned(response: Any) -> list[tuple[str, int]] | None:
    """Return the assignment of a response as (topic, partition), None for "unchanged"."""
    if response.assignment is None:
        return None
    return [(each.topic, partition) for each in response.assignment for partition in each.partitions]
