"""Offsets to commit."""

from dataclasses import dataclass


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
