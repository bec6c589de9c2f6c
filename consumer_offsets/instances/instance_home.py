"""The parts of the store that consumer instances use, and the results that they give."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from consumer_offsets.followed_topics import FollowedTopics
from consumer_offsets.group_members import GroupMembers
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.admission import Reservation
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.clock import Clock
from logstore.protocol.members.identity import MemberIdentity, TopicPartition
from logstore.records.offset_record import InstanceKey, OffsetCommit


class Commit(Protocol):
    """The type of ``GroupCoordinator.commit_of_instance``."""

    def __call__(
        self,
        context: RequestContext,
        key: InstanceKey,
        id: str,
        offsets: Sequence[OffsetToCommit],
        member: MemberIdentity,
    ) -> Coroutine[Any, Any, None]: ...


@dataclass(frozen=True, slots=True)
class InstanceHome:
    """The parts that all instances of a store use. ``commits`` returns a group's commits of present topics. Times are
    in ms.
    """

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
    """``records`` have the columns of LOG_SCHEMA."""

    topic: str
    partition: int
    records: pa.Table
    string_keys: bool


class Polled:
    """The records of a poll. The caller calls ``delivered`` when they are handed out, and releases ``reservation``."""

    def __init__(
        self,
        partitions: list[PolledPartition],
        reservation: Reservation | None,
        delivered: Callable[[], None] = lambda: None,
    ) -> None:
        self.partitions = partitions
        self.reservation = reservation
        self.delivered = delivered
