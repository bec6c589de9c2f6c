"""Members of consumer groups: the requests of Kafka's group protocols, and the description of a group.

Member ids are made by the clients (KIP-1082): a request that is sent again is of the same member.
"""

import base64
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BeforeValidator, Field

from ingest_api.schemas.base import Answer, Int32, Int64, Request


def _decoded(given: Any) -> bytes:
    if not isinstance(given, str):
        raise ValueError("is no text in base64")  # noqa: TRY004 - pydantic's
    return base64.b64decode(given, validate=True)


Base64Bytes = Annotated[
    bytes, BeforeValidator(_decoded, json_schema_input_type=str), Field(json_schema_extra={"contentEncoding": "base64"})
]
#: Bytes in a response.
Base64Text = Annotated[
    str, BeforeValidator(lambda given: base64.b64encode(given).decode() if isinstance(given, bytes) else given)
]
MemberId = Annotated[
    str, Field(min_length=1, max_length=400, description="Made by the client, once in its life: a UUID, for example.")
]
InstanceId = Annotated[
    str | None, Field(min_length=1, max_length=249, description="`group.instance.id` of a static member.")
]
Generation = Annotated[int, Field(ge=-1, le=2**31 - 1, description="As the answer to join gave it.")]


SincePoll = Annotated[
    int | None, Field(ge=0, le=2**53, description="Milliseconds since the member polled last, for descriptions.")
]


class Protocol(Request):
    name: str = Field(min_length=1, max_length=249, description="Of an assignor, `range` for example.")
    metadata: Base64Bytes = Field(description="Kafka's ConsumerProtocol: the subscription, in base64.")


class JoinGroupRequest(Request):
    member_id: MemberId
    group_instance_id: InstanceId = None
    session_timeout_ms: Int32 = 45_000
    rebalance_timeout_ms: Int32 = Field(300_000, description="`max.poll.interval.ms` of the member.")
    protocol_type: str = Field("consumer", min_length=1, max_length=249)
    protocols: list[Protocol] = Field(min_length=1, max_length=32, description="By falling preference.")
    reason: str = Field("", max_length=255)


class JoinedMember(Answer):
    member_id: str
    group_instance_id: str | None
    metadata: Base64Text = Field(description="In base64.")


class JoinedGroup(Answer):
    """`members` is for the leader, which assigns the partitions and sends the assignments with sync."""

    generation: Int32
    member_id: str
    leader: str = Field(description="The member id of the leader.")
    protocol_type: str | None
    protocol: str | None
    skip_assignment: bool = Field(description="The leader sends no assignments: the present ones stay.")
    members: list[JoinedMember]


class MemberAssignment(Request):
    member_id: MemberId
    assignment: Base64Bytes


class SyncGroupRequest(Request):
    member_id: MemberId
    generation: Generation
    group_instance_id: InstanceId = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: list[MemberAssignment] = Field([], description="Of all members, from the leader alone.")


class SyncedGroup(Answer):
    protocol_type: str | None
    protocol: str | None
    assignment: Base64Text = Field(description="Kafka's ConsumerProtocol: the assignment, in base64.")


class HeartbeatRequest(Request):
    member_id: MemberId
    generation: Generation
    group_instance_id: InstanceId = None
    since_poll_ms: SincePoll = None


class LeavingMember(Request):
    member_id: str = Field("", max_length=400, description="May be left out for a static member.")
    group_instance_id: InstanceId = None
    reason: str = Field("", max_length=255)


class LeaveGroupRequest(Request):
    members: list[LeavingMember] = Field(min_length=1, max_length=1_000)


class LeftMember(Answer):
    member_id: str
    group_instance_id: str | None
    error_code: int | None = Field(description="Null: the member has left.")
    message: str | None


class LeftGroup(Answer):
    members: list[LeftMember]


class OwnedPartition(Request):
    topic_id: UUID
    partition: Int32


class ConsumerGroupHeartbeatRequest(Request):
    """A field that is left out, or null, is as in the previous heartbeat."""

    member_id: MemberId
    member_epoch: int = Field(ge=-2, le=2**31 - 1, description="0 joins; -1 leaves, -2 for a while (static members).")
    group_instance_id: InstanceId = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = Field(-1, ge=-1, le=2**31 - 1)
    subscribed_topics: list[str] | None = Field(None, max_length=10_000)
    subscribed_regex: str | None = Field(None, max_length=1_000, description="An empty text ends it.")
    server_assignor: Literal["uniform", "range"] | None = None
    owned: list[OwnedPartition] | None = Field(None, description="All that the member holds now.")
    since_poll_ms: SincePoll = None


class AssignedPartition(Answer):
    topic: str
    topic_id: UUID
    partition: Int32


class ConsumerGroupHeartbeat(Answer):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: Int32
    assignment: list[AssignedPartition] | None = Field(description="All that the member may hold. Null: as before.")


class AssignedTopicPartition(Answer):
    topic: str
    partition: Int32


class MemberDescription(Answer):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str = Field(description="Empty for a consumer instance, which the store itself holds.")
    member_epoch: int = Field(description="-1 in a classic group.")
    assignment: list[AssignedTopicPartition]
    since_heartbeat_ms: Int64 | None = Field(
        description="Milliseconds since the store heard of the member. Null: not since the coordinator has begun."
    )
    since_poll_ms: Int64 | None = Field(
        description="Milliseconds since the member polled, by its last heartbeat. Null for Kafka's clients, which do "
        "not tell."
    )


class GroupDescription(Answer):
    group: str
    kind: str = Field(description="`classic`, `consumer` (KIP-848), or empty: it never had a member.")
    state: str = Field(description="Kafka's name of it: Empty, PreparingRebalance, Stable for example.")
    protocol_type: str | None
    protocol: str | None = Field(description="The assignor.")
    generation: int = Field(description="Or the group epoch; -1: it never had a member.")
    members: list[MemberDescription]
