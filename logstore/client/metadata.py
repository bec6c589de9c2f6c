"""What a store tells about its topics and groups: typed, a dataclass per answer.

Fields that a newer store adds are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec

from logstore.errors import LogStoreError

T = TypeVar("T")


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class TopicIdentity(NamedTuple):
    """One topic among those that had the name, one after the other (KIP-516)."""

    name: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """What a producer knows of a topic: which one it is of those with its name, and how many partitions it has."""

    topic_id: str
    count: int


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
class ConfigSynonym:
    """A value that a layer gives to a key; ``source`` is Kafka's name of the layer."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration key of a topic; ``is_default`` when neither the topic nor the store sets it.

    ``synonyms`` are all the layers that give it a value, the one that counts first and the default last.
    """

    name: str
    value: str
    is_default: bool
    source: str
    synonyms: tuple[ConfigSynonym, ...] = ()


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


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """What a group has committed in one partition: ``offset`` is the next one to read, ``timestamp`` (ms) when that was
    committed, ``leader_epoch`` that of the record before it (-1: not known).
    """

    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``lag`` offsets are up to ``high_watermark``: from ``committed_offset``, or from ``log_start_offset`` where the
    group has committed nothing (None). Below ``log_start_offset`` records are gone.
    """

    topic: str
    partition: int
    committed_offset: int | None
    log_start_offset: int
    high_watermark: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind: in all, in the partition that is furthest behind, and in each of all partitions of the
    topics that it has committed to.
    """

    group: str
    total_lag: int
    max_lag: int
    partitions: tuple[PartitionLag, ...]


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic in numbers. ``size_bytes`` are in Delta, ``unsealed_bytes`` in the journal alone.

    ``newest_timestamp`` (ms) is that of what was appended last, None in an empty topic.
    """

    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    replication_factor: int
    records: int
    size_bytes: int
    unsealed_records: int
    unsealed_bytes: int
    newest_timestamp: int | None


@dataclass(frozen=True, slots=True)
class TopicProblem:
    """What is wrong with a topic, or with one ``partition``: ``state`` is "quarantined" (not served),
    "records_missing", "unreadable" (a segment) or "journal_full"; ``remedy`` is what to do.
    """

    topic: str
    partition: int | None
    state: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """``max_bytes`` bounds ``needed_bytes``, which hold something un-sealed; ``retained_bytes`` is all that is kept."""

    needed_bytes: int
    retained_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class InFlightStatus:
    """Bytes of requests and answers being worked on; ``max_bytes`` bounds each."""

    request_bytes: int
    answer_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A running store. ``now`` is its clock (ms), ``not_ready_reason`` why it refuses appends (None: it takes them);
    ``open_files_max`` None is no limit. A quarantined topic is among ``problems`` alone.
    """

    version: str
    cluster_id: str
    broker_id: int
    now: int
    uptime_ms: int
    not_ready_reason: str | None
    topics: tuple[TopicStatus, ...]
    problems: tuple[TopicProblem, ...]
    journal: JournalStatus
    in_flight: InFlightStatus
    max_connections: int
    connections_taken_max: int
    open_files_max: int | None


def decode(body: bytes, kind: type[T]) -> T:
    """``body`` as ``kind``; LogStoreError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogStoreError(f"What answered is not a log store, or of another version: {error}") from error
