"""Members of consumer groups: the requests of Kafka's group protocols, and the description of a group.

Member ids are made by the clients (KIP-1082): a request that is sent again is of the same member.
"""

from typing import Annotated, ClassVar, Literal
from uuid import UUID

from msgspec import Meta

from logstore.protocol.messages.base import NOT_SENT_BEFORE, Int32, Int64, Request, Response

MemberId = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=400,
        description="The client makes it once and keeps it as long as it lives: a UUID, for example.",
    ),
]
InstanceId = Annotated[
    Annotated[str, Meta(min_length=1, max_length=249)] | None,
    Meta(description="`group.instance.id` of a static member."),
]
Generation = Annotated[int, Meta(ge=-1, le=2**31 - 1, description="The generation from the response to join.")]
SincePoll = Annotated[
    Annotated[int, Meta(ge=0, le=2**53)] | None,
    Meta(description="Milliseconds since the member's last poll, shown in descriptions of the group."),
]
#: The assignors of the store, for groups of KIP-848.
ServerAssignor = Literal["uniform", "range"]


class GroupRequest(Request, frozen=True):
    """A request of a member. ``path`` comes after the group's own; ``response`` is None if there is nothing in it.

    The response to a request that ``waits`` comes when others have done their part, at most a rebalance later.
    """

    path: ClassVar[str]
    response: ClassVar[type[Response] | None] = None
    waits: ClassVar[bool] = False


class Protocol(Request, frozen=True):
    name: Annotated[
        str, Meta(min_length=1, max_length=249, description="The name of an assignor, `range` for example.")
    ]
    metadata: Annotated[bytes, Meta(description="Kafka's ConsumerProtocol: the subscription, in base64.")]


class JoinedMember(Response, frozen=True):
    member_id: str
    group_instance_id: str | None
    metadata: Annotated[bytes, Meta(description="The member's subscription, in base64.")]


class JoinedGroup(Response, frozen=True):
    """`members` is for the leader, which assigns the partitions and sends the assignments with sync."""

    generation: Int32
    member_id: str
    leader: Annotated[str, Meta(description="The member id of the leader.")]
    protocol_type: str | None
    protocol: str | None
    skip_assignment: Annotated[
        bool, Meta(description="True if the leader sends no assignments and the present ones stay.")
    ]
    members: tuple[JoinedMember, ...]


class JoinGroupRequest(GroupRequest, frozen=True, kw_only=True):
    path = "/join"
    response = JoinedGroup
    waits = True

    member_id: MemberId
    group_instance_id: InstanceId = None
    session_timeout_ms: Int32 = 45_000
    rebalance_timeout_ms: Annotated[Int32, Meta(description="`max.poll.interval.ms` of the member.")] = 300_000
    protocol_type: Annotated[str, Meta(min_length=1, max_length=249)] = "consumer"
    protocols: Annotated[
        tuple[Protocol, ...], Meta(min_length=1, max_length=32, description="The assignors, the preferred one first.")
    ]
    reason: Annotated[str, Meta(max_length=255)] = ""


class MemberAssignment(Request, frozen=True):
    member_id: MemberId
    assignment: bytes


class SyncedGroup(Response, frozen=True):
    protocol_type: str | None
    protocol: str | None
    assignment: Annotated[bytes, Meta(description="Kafka's ConsumerProtocol: the assignment, in base64.")]


class SyncGroupRequest(GroupRequest, frozen=True):
    path = "/sync"
    response = SyncedGroup
    waits = True

    member_id: MemberId
    generation: Generation
    group_instance_id: InstanceId = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Annotated[
        tuple[MemberAssignment, ...], Meta(description="The assignments of all members; only the leader sends them.")
    ] = ()


class HeartbeatRequest(GroupRequest, frozen=True):
    path = "/heartbeat"

    member_id: MemberId
    generation: Generation
    group_instance_id: InstanceId = None
    since_poll_ms: SincePoll = None


class LeavingMember(Request, frozen=True):
    member_id: Annotated[str, Meta(max_length=400, description="May be left out for a static member.")] = ""
    group_instance_id: InstanceId = None
    reason: Annotated[str, Meta(max_length=255)] = ""


class LeftMember(Response, frozen=True):
    member_id: str
    group_instance_id: str | None
    error_code: Annotated[int | None, Meta(description="Null if the member has left.")]
    message: str | None


class LeftGroup(Response, frozen=True):
    members: tuple[LeftMember, ...]


class LeaveGroupRequest(GroupRequest, frozen=True):
    path = "/leave"
    response = LeftGroup

    members: Annotated[tuple[LeavingMember, ...], Meta(min_length=1, max_length=1_000)]


class OwnedPartition(Request, frozen=True):
    topic_id: UUID
    partition: Int32


class AssignedPartition(Response, frozen=True):
    topic: str
    topic_id: UUID
    partition: Int32


class ConsumerGroupHeartbeat(Response, frozen=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: Int32
    assignment: Annotated[
        tuple[AssignedPartition, ...] | None,
        Meta(description="All partitions that the member may hold; null if they have not changed."),
    ]


class ConsumerGroupHeartbeatRequest(GroupRequest, frozen=True):
    """A field that is left out, or null, has the value of the previous heartbeat."""

    path = "/consumer-heartbeat"
    response = ConsumerGroupHeartbeat

    member_id: MemberId
    member_epoch: Annotated[
        int,
        Meta(
            ge=-2,
            le=2**31 - 1,
            description="The member's epoch. 0 joins, -1 leaves, -2 leaves for a while (static members).",
        ),
    ]
    group_instance_id: InstanceId = None
    rack_id: str | None = None
    rebalance_timeout_ms: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    subscribed_topics: Annotated[tuple[str, ...], Meta(max_length=10_000)] | None = None
    subscribed_regex: Annotated[
        Annotated[str, Meta(max_length=1_000)] | None,
        Meta(description="A regular expression for names of topics; an empty text ends it."),
    ] = None
    server_assignor: ServerAssignor | None = None
    owned: Annotated[
        tuple[OwnedPartition, ...] | None, Meta(description="All partitions that the member holds now.")
    ] = None
    since_poll_ms: SincePoll = None


class AssignedTopicPartition(Response, frozen=True):
    topic: str
    partition: Int32


class MemberDescription(Response, frozen=True):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: Annotated[str, Meta(description="Empty for a consumer instance, which the store itself holds.")]
    member_epoch: Annotated[int, Meta(description="-1 in a classic group.")]
    assignment: tuple[AssignedTopicPartition, ...]
    since_heartbeat_ms: Annotated[
        Int64 | None,
        Meta(
            description="Milliseconds since the store heard from the member; null if it has not since the "
            "coordinator started."
        ),
    ] = NOT_SENT_BEFORE
    since_poll_ms: Annotated[
        Int64 | None,
        Meta(
            description="Milliseconds since the member's last poll, according to its last heartbeat. Null for "
            "Kafka's clients, which do not report it."
        ),
    ] = NOT_SENT_BEFORE


class GroupDescription(Response, frozen=True):
    group: str
    kind: Annotated[str, Meta(description="`classic` or `consumer` (KIP-848); empty if the group never had a member.")]
    state: Annotated[str, Meta(description="Kafka's name of the state, such as Empty, PreparingRebalance or Stable.")]
    protocol_type: str | None
    protocol: Annotated[str | None, Meta(description="The assignor.")]
    generation: Annotated[
        int, Meta(description="The generation, or the group epoch; -1 if the group never had a member.")
    ]
    members: tuple[MemberDescription, ...]
