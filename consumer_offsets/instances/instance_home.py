"""What consumer instances stand on, and what they give."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from consumer_offsets.followed_topics import FollowedTopics
from consumer_offsets.group_members import GroupMembers
from consumer_offsets.offsets import CommittingMember, OffsetToCommit
from logstore.broker.admission import Reservation
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.clock import Clock
from logstore.protocol.members.identity import TopicPartition
from logstore.records.offset_record import InstanceKey, OffsetCommit


class Commit(Protocol):
    """``GroupCoordinator.commit_of_instance``."""

    def __call__(
        self,
        context: RequestContext,
        key: InstanceKey,
        id: str,
        offsets: Sequence[OffsetToCommit],
        member: CommittingMember,
    ) -> Coroutine[Any, Any, None]: ...


@dataclass(frozen=True, slots=True)
class InstanceHome:
    """What all instances of a store stand on. ``commits`` are the group's, of topics as they are now. Times in ms."""

    broker: Broker
    members: GroupMembers
    topics: FollowedTopics
    clock: Clock
    commit: Commit
    commits: Callable[[str], Mapping[TopicPartition, OffsetCommit]]
    session_timeout_ms: int
    max_poll_interval_ms: int


@dataclass(frozen=True, slots=True)
class PolledPartition:
    """``records`` of LOG_SCHEMA."""

    topic: str
    partition: int
    records: pa.Table
    string_keys: bool


class Polled:
    """The records of a poll: handed out with ``delivered``. The caller releases the ``reservation``."""

    def __init__(
        self,
        partitions: list[PolledPartition],
        reservation: Reservation | None,
        delivered: Callable[[], None] = lambda: None,
    ) -> None:
        self.partitions = partitions
        self.reservation = reservation
        self.delivered = delivered
