"""The events of a group: requests of members, timers that fire, topics that change.

``request`` is the token by which the Answer effect names a request. Ids of new members come with the event
(``new_member_id``), because the machine generates nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from consumer_offsets.effects import TimerFired

#: ``member_id`` of a member that does not have one yet, and of a commit without membership.
UNKNOWN_MEMBER_ID = ""
#: ``generation`` of a commit without membership.
NO_GENERATION = -1
#: ``member_epoch`` of a member that joins (KIP-848).
JOIN_GROUP_MEMBER_EPOCH = 0
#: ``member_epoch`` of a member that leaves (KIP-848).
LEAVE_GROUP_MEMBER_EPOCH = -1
#: ``member_epoch`` of a static member that leaves for a while and keeps its partitions (KIP-848).
LEAVE_GROUP_STATIC_MEMBER_EPOCH = -2


class JoinProtocol(NamedTuple):
    """An assignor that a classic member supports, with the member's opaque metadata for it."""

    name: str
    metadata: bytes


class TopicIdPartition(NamedTuple):
    topic_id: UUID
    partition: int


class TopicDescription(NamedTuple):
    topic_id: UUID
    partitions: int


#: The topics that exist, by name. A group reads it and never changes it.
TopicImage = Mapping[str, TopicDescription]


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """``new_member_id`` is the id for a member that has none. ``rebalance_timeout_ms`` is its ``max.poll.interval.ms``.

    Without ``requires_known_member_id`` a new member is taken at once (JoinGroup before version 4);
    ``supports_skipping_assignment`` is KIP-814 (version 9).
    """

    request: int
    member_id: str
    new_member_id: str
    protocol_type: str
    protocols: tuple[JoinProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    reason: str = ""
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """``assignments`` are the leader's: opaque bytes by member id. A protocol of None is not compared."""

    request: int
    member_id: str
    generation: int
    assignments: tuple[tuple[str, bytes], ...] = ()
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """``since_poll_ms`` is the time since the member's last poll, if its client reports it; Kafka's clients do not."""

    request: int
    member_id: str
    generation: int
    instance_id: str | None = None
    since_poll_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """A static member may be named by its ``instance_id`` alone."""

    member_id: str
    instance_id: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    request: int
    members: tuple[LeavingMember, ...]


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Asks whether these offsets may be committed. ``generation`` is the member epoch in a consumer group. The response
    is yes or no; the coordinator keeps the offsets themselves.
    """

    request: int
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeat:
    """A heartbeat of KIP-848: join (``member_epoch`` 0), continue, leave (-1), leave for a while (-2, static members).

    None, and -1 for ``rebalance_timeout_ms``, means "as before". ``regex_topics`` are the names of topics that
    ``subscribed_regex`` matches now; an empty regex ends that subscription.

    ``owned`` has the partitions that the member holds, or will hold after its last response; it has given up all
    others. A member sends one heartbeat at a time, and all fields after a lost response. ``since_poll_ms`` is that of
    Heartbeat.
    """

    request: int
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: frozenset[str] | None = None
    subscribed_regex: str | None = None
    regex_topics: frozenset[str] = frozenset()
    server_assignor: str | None = None
    owned: frozenset[TopicIdPartition] | None = None
    client_id: str = ""
    client_host: str = ""
    since_poll_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics were made, were deleted or grew. ``matches`` has the topics of each regex in ``Group.regexes``."""

    topics: TopicImage
    matches: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class DeleteGroup:
    request: int


@dataclass(frozen=True, slots=True)
class Unload:
    """The group moves to another coordinator: parked requests get NOT_COORDINATOR."""


Event = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | ConsumerGroupHeartbeat
    | TimerFired
    | TopicsChanged
    | DeleteGroup
    | Unload
)
