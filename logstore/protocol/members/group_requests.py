"""The requests of a group's members and their responses in their HTTP form; bytes are base64 there."""

from typing import ClassVar

import msgspec


class JoinedMember(msgspec.Struct, frozen=True):
    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinedGroup(msgspec.Struct, frozen=True):
    """Only the leader gets ``members``."""

    generation: int
    member_id: str
    leader: str
    protocol: str
    skip_assignment: bool
    members: tuple[JoinedMember, ...]


class SyncedGroup(msgspec.Struct, frozen=True):
    assignment: bytes


class AssignedPartition(msgspec.Struct, frozen=True):
    topic: str
    topic_id: str
    partition: int


class ConsumerHeartbeatAnswer(msgspec.Struct, frozen=True):
    """An ``assignment`` of None means "as before"."""

    member_epoch: int
    heartbeat_interval_ms: int
    assignment: tuple[AssignedPartition, ...] | None


class GroupRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``path`` comes after the group's own; ``answer`` is the type of the response's body, None if nothing in it is
    read. The response to a request that ``waits`` comes when others have done their part, at most a rebalance later.
    """

    path: ClassVar[str]
    answer: ClassVar[type[msgspec.Struct] | None] = None
    waits: ClassVar[bool] = False


class JoinProtocol(msgspec.Struct, frozen=True):
    name: str
    metadata: bytes


class JoinGroup(GroupRequest, frozen=True, kw_only=True):
    """The response comes when all members have joined."""

    path = "/join"
    answer = JoinedGroup
    waits = True

    member_id: str
    group_instance_id: str | None = None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[JoinProtocol, ...]
    reason: str = ""


class MemberAssignment(msgspec.Struct, frozen=True):
    member_id: str
    assignment: bytes


class SyncGroup(GroupRequest, frozen=True, kw_only=True):
    """The response comes when the leader has sent the assignments."""

    path = "/sync"
    answer = SyncedGroup
    waits = True

    member_id: str
    generation: int
    group_instance_id: str | None = None
    protocol: str
    assignments: tuple[MemberAssignment, ...]


class Heartbeat(GroupRequest, frozen=True, kw_only=True):
    path = "/heartbeat"

    member_id: str
    generation: int
    group_instance_id: str | None = None
    since_poll_ms: int | None = None


class LeavingMember(msgspec.Struct, frozen=True, omit_defaults=True):
    member_id: str
    group_instance_id: str | None = None
    reason: str = ""


class LeaveGroup(GroupRequest, frozen=True, kw_only=True):
    path = "/leave"

    members: tuple[LeavingMember, ...]


class OwnedPartition(msgspec.Struct, frozen=True):
    topic_id: str
    partition: int


class ConsumerHeartbeat(GroupRequest, frozen=True, kw_only=True):
    """A heartbeat of KIP-848: a field that is None, or -1, is as in the previous heartbeat."""

    path = "/consumer-heartbeat"
    answer = ConsumerHeartbeatAnswer

    member_id: str
    member_epoch: int
    group_instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: tuple[OwnedPartition, ...] | None = None
    since_poll_ms: int | None = None
