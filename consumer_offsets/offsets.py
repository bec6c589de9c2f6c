"""Offsets to commit, and the members that commit them."""

from dataclasses import dataclass

from consumer_offsets.groups.events import UNKNOWN_MEMBER_ID
from logstore.records.offset_record import NO_GENERATION


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """``offset`` is the next one to read; ``metadata`` is the consumer's own text.

    ``topic_id`` is the id of the topic that was read; None: the topic that has the name now. ``leader_epoch`` is the
    epoch of the record before the offset, -1 if there is none; None: the epoch that this broker knows.
    """

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    topic_id: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommittingMember:
    """``generation`` is the member epoch in a consumer group. The default is no member: the group has to be empty."""

    member_id: str = UNKNOWN_MEMBER_ID
    generation: int = NO_GENERATION
    instance_id: str | None = None
