"""Metadata of topics and groups in the store's responses: one dataclass for each response.

Fields that a newer store adds are ignored.
"""

from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True)
class Replica:
    """A copy of a partition on a broker."""

    broker: int
    leader: bool
    in_sync: bool


@dataclass(frozen=True, slots=True)
class PartitionReplicas:
    """Ids of a partition's brokers: the leader (-1: none), all replicas with the preferred leader first, those in sync,
    and those that a reassignment adds and removes.
    """

    topic: str
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    """A live broker: how many partitions it has replicas of, and how many it leads."""

    broker_id: int
    url: str
    rack: str | None
    replicas: int
    leaders: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """``controller_id`` is the broker that decides which replicas lead; None while there is none."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerDescription, ...]
    partitions: int
    under_replicated_partitions: int
    unavailable_partitions: int
    under_min_isr_partitions: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition. Readers see offsets in [log_start_offset, high_watermark); below ``sealed_offset`` they are in
    Delta.

    ``size_bytes`` is the size of the ``segments`` Parquet files, ``unsealed_bytes`` that of its records in the journal.
    """

    partition: int
    leader: int
    replicas: tuple[Replica, ...]
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
class PartitionLeader:
    """The leader of a partition: a broker's id, or -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic's id and partitions, or else its error as code and message."""

    name: str
    topic_id: str | None
    error_code: int | None
    message: str | None
    partitions: tuple[PartitionLeader, ...]


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
    """A topic in a list, without offsets."""

    topic_name: str
    partitions_count: int
    replication_factor: int
    is_internal: bool


@dataclass(frozen=True, slots=True)
class KeylessRecords:
    """Records of a partition that have no key; the first one is at ``first_offset``."""

    partition: int
    records: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """The value that one layer gives to a key; ``source`` is Kafka's name of the layer."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One configuration key of a topic; ``is_default`` if neither the topic nor the store sets it.

    ``synonyms`` are all layers that give it a value: the first one counts, the default is last.
    """

    name: str
    value: str
    is_default: bool
    source: str
    synonyms: tuple[ConfigSynonym, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """``beginning_offset`` is the log start offset, ``end_offset`` the high watermark; no transaction is open below
    ``last_stable_offset``. ``offset`` and ``timestamp`` (ms) are those of the first record at or after the requested
    time, None if there is none.
    """

    beginning_offset: int
    end_offset: int
    last_stable_offset: int
    offset: int | None = None
    timestamp: int | None = None


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a time: its offset and timestamp."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SealedOffset:
    partition: int
    sealed_offset: int


@dataclass(frozen=True, slots=True)
class RollDescription:
    """A durable roll: the Delta version, and the sealed offset of each partition."""

    version: int
    sealed_offsets: tuple[SealedOffset, ...]


@dataclass(frozen=True, slots=True)
class ErasureProgress:
    """The progress of the broker that works on an erasure; ``step`` is empty while none does."""

    step: str
    files: int
    files_done: int


@dataclass(frozen=True, slots=True)
class ErasedBroker:
    """A broker without the records in its journal since ``erased_ms``; ``journal_files`` were removed for that."""

    broker: int
    erased_ms: int
    journal_files: int


@dataclass(frozen=True, slots=True)
class ErasureRepeat:
    """Records came back with a RESTORE or a backup, and were erased again."""

    version: int
    records: int
    erased_ms: int


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """An erasure. ``state`` is ``started``, ``pending`` (no reader sees the records any more, copies may be on a disk)
    or ``erased``; for a dry run ``counting``, ``counted`` or ``failed``.

    Times are in ms since 1970. ``keys`` are hashed with ``salt``. ``versions`` are those of the table from which on the
    ``records`` are not in it. Brokers in ``pending`` are down, and erase before they serve again. ``not_reached`` lists
    what the store cannot reach.
    """

    erasure: str
    state: str
    topic: str
    topic_id: str
    dry_run: bool
    requested_ms: int
    erased_ms: int | None
    salt: str
    keys: tuple[str, ...]
    where: str | None
    records: int
    versions: tuple[int, ...]
    rewritten_files: int
    deleted_files: tuple[str, ...]
    deleted_files_count: int
    brokers: tuple[ErasedBroker, ...]
    pending: tuple[int, ...]
    waiting: str | None
    progress: ErasureProgress
    repeats: tuple[ErasureRepeat, ...]
    not_reached: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """True if nothing more happens: the records are erased, or the dry run has ended."""
        return self.state in ("erased", "counted", "failed")


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's committed offset of a partition. ``offset`` is the next one to read, ``timestamp`` (ms) the time of the
    commit, ``leader_epoch`` that of the record before the offset (-1: unknown).
    """

    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``lag`` is the number of offsets from ``committed_offset`` to ``high_watermark``, or from ``log_start_offset`` if
    nothing is committed (None). Below ``log_start_offset`` records are gone. ``records_behind`` of these offsets have a
    record, and the timestamp of the first one is ``lag_ms`` ago; None: unknown, or the store is an earlier release.
    """

    topic: str
    partition: int
    committed_offset: int | None
    log_start_offset: int
    high_watermark: int
    lag: int
    records_behind: int | None = None
    lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupLag:
    """The lag of a group: the sum, the largest, and that of each partition of the topics that it has committed to."""

    group: str
    total_lag: int
    max_lag: int
    partitions: tuple[PartitionLag, ...]
    records_behind: int | None = None
    max_lag_ms: int | None = None


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """A member of a group. ``member_epoch`` is -1 in a classic group; ``assignment`` has the partitions that the member
    reads. The times since its last heartbeat and poll are None if the store does not know them.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    assignment: tuple[AssignedPartition, ...]
    since_heartbeat_ms: int | None = None
    since_poll_ms: int | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. ``kind`` is "classic", "consumer" (KIP-848), or "" for a group that never had a member;
    ``state`` is Kafka's name for it; ``protocol`` is the assignor; ``generation`` is a classic group's, or the epoch.
    """

    group: str
    kind: str
    state: str
    protocol_type: str | None
    protocol: str | None
    generation: int
    members: tuple[GroupMemberDescription, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list, in numbers; the first fields are those of GroupDescription. The lags cover ``partitions``: all
    of the topics that the group has committed to or reads.
    """

    group: str
    kind: str
    state: str
    protocol_type: str | None
    protocol: str | None
    generation: int
    members: int
    partitions: int
    total_lag: int
    max_lag: int


@dataclass(frozen=True, slots=True)
class OffsetReset:
    """The next offset that a group reads; ``previous_offset`` is None if it had none there."""

    topic: str
    partition: int
    offset: int
    previous_offset: int | None


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """A topic in numbers. ``size_bytes`` are in Delta, ``unsealed_bytes`` only in the journal.

    ``newest_timestamp`` (ms) is that of the record appended last, None in an empty topic.
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
    """A problem of a topic, or of one ``partition``: ``state`` is "quarantined" (not served), "records_missing",
    "unreadable" (a segment), "foreign_file" (in the table, not served), "rolls_fail", "append_only" (nothing is
    removed from the table), "journal_full" or "registration_damaged" (in ZooKeeper); ``remedy`` is what to do.
    """

    topic: str
    partition: int | None
    state: str
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The size of the journal. ``max_bytes`` bounds ``needed_bytes``, which count from the oldest file with unsealed
    records on; ``retained_bytes`` count all files.
    """

    needed_bytes: int
    retained_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class InFlightStatus:
    """Bytes of requests and responses being worked on; ``max_bytes`` bounds each."""

    request_bytes: int
    answer_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A running store. ``now`` is its clock (ms), ``not_ready_reason`` why it refuses appends (None: it accepts them),
    ``open_files_max`` is None if there is no limit. A quarantined topic is only among ``problems``.
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
    """Decode ``body`` to ``kind``. Raises LogStoreError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogStoreError(f"The server is not a log store, or of another version: {error}") from error
