"""Shapes of what a client knows of topics; decodes responses to the messages of ``logstore.protocol.messages``."""

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from logstore.errors import LogStoreError
from logstore.protocol.members.identity import MemberIdentity as MemberIdentity  # noqa: PLC0414 (given on)
from logstore.protocol.members.identity import TopicPartition as TopicPartition  # noqa: PLC0414 (given on)

T = TypeVar("T")


class TopicIdentity(NamedTuple):
    """A topic by name and id: several topics may have had the name one after the other (KIP-516)."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """A producer's knowledge of a topic: its id, and how many partitions it has."""

    topic_id: str
    count: int


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time: its offset and timestamp."""

    offset: int
    timestamp_ms: int


def decode(body: bytes, kind: type[T]) -> T:
    """Decode ``body`` to ``kind``. Raises LogStoreError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogStoreError(f"The server is not a log store, or of another version: {error}") from error
