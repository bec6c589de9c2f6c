"""What a store tells about its topics: typed, a dataclass per answer. Fields that a newer store adds are ignored."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from logstore.errors import LogStoreError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition. Readers see offsets in [log_start_offset, high_watermark); below ``sealed_offset`` they are in
    Delta.

    ``size_bytes`` is that of the ``segments`` Parquet files, ``unsealed_bytes`` what the journal holds for it.
    """

    partition: int
    leader: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    last_stable_offset: int
    sealed_offset: int
    leader_epoch: int
    segments: int
    size_bytes: int
    unsealed_bytes: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic: ``configs`` are the values in force, ``location`` the URI of its Delta table."""

    name: str
    topic_id: str
    location: str
    is_internal: bool
    configs: Mapping[str, str]
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic in a list: without offsets."""

    topic_name: str
    partitions_count: int
    replication_factor: int
    is_internal: bool


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration key of a topic; ``is_default`` when neither the topic nor the store sets it."""

    name: str
    value: str
    is_default: bool
    source: str


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """``beginning_offset`` is the log start, ``end_offset`` the high watermark. ``offset`` and ``timestamp`` (ms) are
    those of the first record at or after the time that was asked for; None without one.
    """

    beginning_offset: int
    end_offset: int
    offset: int | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class SealedOffset:
    partition: int
    sealed_offset: int


@dataclass(frozen=True, slots=True)
class RollDescription:
    """A roll that is durable: the Delta version, and up to where each partition is in Delta now."""

    version: int
    sealed_offsets: tuple[SealedOffset, ...]


def decode(body: bytes, kind: type[T]) -> T:
    """``body`` as ``kind``; LogStoreError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogStoreError(f"What answered is not a log store, or of another version: {error}") from error
