"""The responses to a group's members. ``error`` is None when the request took effect."""

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from consumer_offsets.groups.events import UNKNOWN_MEMBER_ID
from logstore.errors import LogStoreError
from logstore.protocol.messages.members import AssignedPartition, ConsumerGroupHeartbeat, JoinedMember


@dataclass(frozen=True, slots=True)
class JoinGroupResponse:
    """Only the leader gets ``members``, with the metadata of the chosen protocol. With ``skip_assignment`` it makes no
    assignment, and syncs with an empty one (KIP-814).
    """

    error: LogStoreError | None = None
    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncGroupResponse:
    error: LogStoreError | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    error: LogStoreError | None = None


class LeftMember(NamedTuple):
    member_id: str
    group_instance_id: str | None
    error: LogStoreError | None


@dataclass(frozen=True, slots=True)
class LeaveGroupResponse:
    error: LogStoreError | None = None
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class CommitOffsetsResponse:
    error: LogStoreError | None = None


class AssignedTopic(NamedTuple):
    """``partitions`` is in ascending order."""

    topic_id: UUID
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatResponse:
    """``assignment`` is all that the member may hold; None means "as before"."""

    error: LogStoreError | None = None
    member_id: str = UNKNOWN_MEMBER_ID
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: tuple[AssignedTopic, ...] | None = None

    def message(self) -> ConsumerGroupHeartbeat:
        """Return the response without an error as it is sent over HTTP."""
        assignment = None
        if self.assignment is not None:
            assignment = tuple(
                AssignedPartition(entry.topic, entry.topic_id, partition)
                for entry in self.assignment
                for partition in entry.partitions
            )
        return ConsumerGroupHeartbeat(self.member_id, self.member_epoch, self.heartbeat_interval_ms, assignment)


@dataclass(frozen=True, slots=True)
class DeleteGroupResponse:
    error: LogStoreError | None = None


Response = (
    JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | CommitOffsetsResponse
    | ConsumerGroupHeartbeatResponse
    | DeleteGroupResponse
)
