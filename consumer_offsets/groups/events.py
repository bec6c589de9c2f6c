"""The events of a group: requests of members, timers that fire, topics that change.

``request`` is the token by which the Respond effect names a request. Ids of new members come with the event
(``new_member_id``), because the machine generates nothing. The requests of the classic protocol are the messages of
HTTP, with what the coordinator knows of their sender.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self
from uuid import UUID

import msgspec
from msgspec import structs

from consumer_offsets.effects import TimerFired
from logstore.protocol.messages.members import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

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


class TopicIdPartition(NamedTuple):
    topic_id: UUID
    partition: int


class TopicDescription(NamedTuple):
    topic_id: UUID
    partitions: int


#: The topics that exist, by name. A group reads it and never changes it.
TopicImage = Mapping[str, TopicDescription]


class JoinGroup(JoinGroupRequest, frozen=True, kw_only=True):
    """``new_member_id`` is the id for a member that has none.

    Without ``requires_known_member_id`` a new member is taken at once (JoinGroup before version 4);
    ``supports_skipping_assignment`` is KIP-814 (version 9).
    """

    request: int
    new_member_id: str
    client_id: str = ""
    client_host: str = ""
    requires_known_member_id: bool = True
    supports_skipping_assignment: bool = True


class SyncGroup(SyncGroupRequest, frozen=True, kw_only=True):
    """A protocol of None is not compared."""

    request: int


class Heartbeat(HeartbeatRequest, frozen=True, kw_only=True):
    """Kafka's clients do not send ``since_poll_ms``."""

    request: int


class LeaveGroup(LeaveGroupRequest, frozen=True, kw_only=True):
    """A static member may be named by its ``group_instance_id`` alone."""

    request: int


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Asks whether these offsets may be committed. ``generation`` is the member epoch in a consumer group. The response
    is yes or no; the coordinator keeps the offsets themselves.
    """

    request: int
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    group_instance_id: str | None = None


class ConsumerGroupHeartbeat(msgspec.Struct, frozen=True):
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
    group_instance_id: str | None = None
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

    @classmethod
    def sent_in(cls, message: ConsumerGroupHeartbeatRequest, *, client_id: str = "", client_host: str = "") -> Self:
        """Return the heartbeat that a client has sent in ``message``."""
        fields = structs.asdict(message)
        if message.subscribed_topics is not None:
            fields["subscribed_topics"] = frozenset(message.subscribed_topics)
        if message.owned is not None:
            fields["owned"] = frozenset(TopicIdPartition(each.topic_id, each.partition) for each in message.owned)
        return cls(request=0, client_id=client_id, client_host=client_host, **fields)


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
