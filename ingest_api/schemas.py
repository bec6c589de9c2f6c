"""Shapes of requests and answers. Requests of administration are read with these; the hot path only documents itself
with them (its bodies never become objects).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from logstore.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_PARTITIONS_MAX,
    FETCH_WAIT_MS_MAX,
    OFFSET_METADATA_BYTES_MAX,
)
from logstore.records.batch_identity import PRODUCER_EPOCH_MAX

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

Int32 = Annotated[int, Field(ge=0, le=_INT32_MAX, json_schema_extra={"format": "int32"})]
ProducerEpoch = Annotated[int, Field(ge=0, le=PRODUCER_EPOCH_MAX, json_schema_extra={"format": "int32"})]
#: As GET /topics/{topic} gives it.
TopicId = Annotated[
    str | None, Field(description="The topic that is meant: another one of that name is error_code 40406.")
]
Int64 = Annotated[int, Field(ge=0, le=_INT64_MAX, json_schema_extra={"format": "int64"})]


class Request(BaseModel):
    """No conversions (``"4"`` is not 4, ``true`` is not 1), no unknown fields: a misspelt one must not be lost."""

    model_config = ConfigDict(strict=True, extra="forbid")


class Answer(BaseModel):
    pass


class ErrorBody(Answer):
    """Every 4xx and 5xx answer. `error_code` is the HTTP status, or the status * 100 + n."""

    error_code: int
    message: str


# ---- records --------------------------------------------------------------------------------------------------------


class RecordHeader(Answer):
    key: str
    value: str | None = Field(description="Base64; null is a header without a value.")


class ProduceRecord(Answer):
    """`key` and `value` are any JSON in json.v2 (stored as their text), base64 text in binary.v2; absent is null."""

    key: Any = None
    value: Any = None
    partition: Int32 | None = None
    timestamp: int | None = Field(
        None, description="Milliseconds since 1970-01-01T00:00:00Z; absent: time of the append."
    )
    headers: list[RecordHeader] | None = None


class ProduceRequest(Answer):
    records: list[ProduceRecord] = Field(min_length=1)


class ProducedOffset(Answer):
    """With an error the record is not stored, or nobody knows, as with the same error of a whole request."""

    partition: Int32 | None
    offset: Int64 | None
    error_code: int | None
    error: str | None


class ProducedOffsets(Answer):
    """One entry per record, in the order of the request; empty with `acks=0`."""

    offsets: list[ProducedOffset]
    key_schema_id: int | None
    value_schema_id: int | None


class ProducedRange(Answer):
    """`error_code` and `error` are there when some partitions have not taken their records; null for others."""

    partition: Int32
    base_offset: Int64 | None
    count: int
    error_code: int | None = None
    error: str | None = None


class ProducedRanges(Answer):
    """Within a partition the records of the request have consecutive offsets, in their order; empty with `acks=0`."""

    ranges: list[ProducedRange]


class InitProducerRequest(Request):
    """Without a body the producer is a new one."""

    producer_id: Int64
    producer_epoch: ProducerEpoch


class Producer(Answer):
    producer_id: Int64
    producer_epoch: ProducerEpoch


class ConsumedRecord(Answer):
    topic: str
    key: Any
    value: Any
    partition: Int32
    offset: Int64
    timestamp: int = Field(description="Milliseconds since 1970-01-01T00:00:00Z.")
    key_format: Literal["string", "binary"] | None = Field(
        None, description="Without a JSON type in Accept: the key is not JSON but text, or bytes as base64."
    )
    value_format: Literal["string", "binary"] | None = Field(None, description="The same of the value.")
    headers: list[RecordHeader] | None = Field(None, description="Left out when the record has none.")


class PartitionOffsets(Answer):
    """`offset` and `timestamp` are there when a timestamp was asked for; null when no record is that young."""

    beginning_offset: Int64
    end_offset: Int64
    offset: Int64 | None = None
    timestamp: int | None = None


class FetchPartition(Request):
    topic: str
    partition: Int32
    offset: Int64 = Field(description="The first offset to read.")
    topic_id: TopicId = None


class FetchRequest(Request):
    """Kafka's Fetch: how much to wait for, and at most to take, in all and of one partition."""

    partitions: list[FetchPartition] = Field(
        min_length=1, max_length=FETCH_PARTITIONS_MAX, description="Read in this order: the first ones come first."
    )
    max_bytes: Annotated[int, Field(ge=1, le=FETCH_BYTES_MAX)] = FETCH_BYTES_MAX
    max_partition_bytes: Annotated[int, Field(ge=1, le=FETCH_BYTES_MAX)] = FETCH_BYTES_DEFAULT
    min_bytes: Annotated[int, Field(ge=0, le=FETCH_BYTES_MAX)] = 1
    max_wait_ms: Annotated[int, Field(ge=0, le=FETCH_WAIT_MS_MAX)] = 500


class DeleteRecordsRequest(Request):
    before_offset: Annotated[int, Field(ge=-1, le=_INT64_MAX)] = Field(
        description="The new log start offset; -1: everything there is now."
    )


class DeletedRecords(Answer):
    log_start_offset: Int64


# ---- topics, v2 -----------------------------------------------------------------------------------------------------


class Replica(Answer):
    broker: Int32
    leader: bool
    in_sync: bool


class Partition(Answer):
    """Offsets are exclusive ends: `sealed_offset` is the first one that is not yet in the Delta table."""

    partition: Int32
    leader: Int32
    replicas: list[Replica]
    log_start_offset: Int64
    high_watermark: Int64
    log_end_offset: Int64
    last_stable_offset: Int64
    sealed_offset: Int64
    leader_epoch: Int32
    segments: int
    size_bytes: Int64
    unsealed_bytes: Int64


class Topic(Answer):
    name: str
    topic_id: str
    location: str = Field(description="URI of the topic's Delta table.")
    is_internal: bool
    configs: dict[str, str]
    partitions: list[Partition]


class RollRequest(Request):
    pass


class SealedOffset(Answer):
    partition: Int32
    sealed_offset: Int64


class Rolled(Answer):
    version: int = Field(description="Version of the Delta table that holds everything below the sealed offsets.")
    sealed_offsets: list[SealedOffset]


class RefreshRequest(Request):
    pass


class DropForeignFilesRequest(Request):
    pass


class DroppedForeignFiles(Answer):
    files: list[str] = Field(description="Paths of the files, relative to the table. They are still on disk.")


class Refreshed(Answer):
    version: int = Field(description="Version of the Delta table that every read from here on sees, or a later one.")


# ---- administration, v3 ---------------------------------------------------------------------------------------------


class ResourceMetadata(Answer):
    self: str
    resource_name: str | None = None
    next: str | None = None


class Link(Answer):
    related: str


class Cluster(Answer):
    kind: Literal["KafkaCluster"]
    metadata: ResourceMetadata
    cluster_id: str
    topics: Link


class ClusterList(Answer):
    kind: Literal["KafkaClusterList"]
    metadata: ResourceMetadata
    data: list[Cluster]


class ClusterTopic(Answer):
    kind: Literal["KafkaTopic"]
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    topic_id: str | None = Field(description="Null when the topic was only validated.")
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: Link
    configs: Link


class ClusterTopicList(Answer):
    kind: Literal["KafkaTopicList"]
    metadata: ResourceMetadata
    data: list[ClusterTopic]


class ConfigEntry(Request):
    name: str
    value: str | None = None


class CreateTopicRequest(Request):
    topic_name: str
    partitions_count: int | None = None
    replication_factor: int | None = None
    configs: list[ConfigEntry] = []
    validate_only: bool = False


class UpdateTopicRequest(Request):
    partitions_count: int


class ConfigSynonym(Answer):
    name: str
    value: str
    source: str


class TopicConfigEntry(Answer):
    kind: Literal["KafkaTopicConfig"]
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    name: str
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: Literal["DYNAMIC_TOPIC_CONFIG", "STATIC_BROKER_CONFIG", "DEFAULT_CONFIG"]
    synonyms: list[ConfigSynonym]


class TopicConfigList(Answer):
    kind: Literal["KafkaTopicConfigList"]
    metadata: ResourceMetadata
    data: list[TopicConfigEntry]


class ConfigChange(Request):
    """`value` null, or operation DELETE, takes the key back to its default."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class AlterConfigsRequest(Request):
    data: list[ConfigChange] = Field(min_length=1)
    validate_only: bool = False


class UpdateConfigRequest(Request):
    value: str | None


# ---- groups ---------------------------------------------------------------------------------------------------------


class OffsetToCommit(Request):
    topic: str
    partition: Int32
    offset: Int64 = Field(description="The next offset to read: that of the last record done, plus 1.")
    topic_id: TopicId = None
    metadata: str | None = Field(
        None, description=f"Text of the consumer's own, at most {OFFSET_METADATA_BYTES_MAX} bytes in UTF-8."
    )


class CommitOffsetsRequest(Request):
    offsets: list[OffsetToCommit] = Field(min_length=1)


class CommittedOffset(Answer):
    topic: str
    partition: Int32
    offset: Int64
    metadata: str


class CommittedOffsets(Answer):
    """In the order of the request."""

    offsets: list[CommittedOffset]


class GroupOffset(CommittedOffset):
    leader_epoch: int = Field(description="Of the record before the offset; -1: not known.")
    timestamp: int = Field(description="When it was committed, in milliseconds since 1970-01-01T00:00:00Z.")


class GroupOffsets(Answer):
    """By topic and partition."""

    offsets: list[GroupOffset]


class PartitionLag(Answer):
    """`lag` = `high_watermark` - `committed_offset`, or without a commit (null) - `log_start_offset`; records below
    `log_start_offset` are gone.
    """

    topic: str
    partition: Int32
    committed_offset: Int64 | None
    log_start_offset: Int64
    high_watermark: Int64
    lag: Int64


class GroupLag(Answer):
    group: str
    total_lag: Int64
    max_lag: Int64 = Field(description="Of the partition that is furthest behind.")
    partitions: list[PartitionLag]


# ---- health ---------------------------------------------------------------------------------------------------------


class Health(Answer):
    status: Literal["live"]


# ---- status ---------------------------------------------------------------------------------------------------------


class TopicStatus(Answer):
    """`newest_timestamp` (ms) is that of what was appended last; null in an empty topic."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    replication_factor: int
    records: Int64
    size_bytes: Int64 = Field(description="Of the Parquet files in the Delta table.")
    unsealed_records: Int64
    unsealed_bytes: Int64 = Field(description="In the journal alone.")
    newest_timestamp: int | None


class TopicProblem(Answer):
    topic: str
    partition: Int32 | None = Field(description="Null: the whole topic.")
    state: Literal["quarantined", "records_missing", "unreadable", "journal_full"]
    reason: str
    remedy: str


class Readiness(Answer):
    status: Literal["ready"]
    problems: list[TopicProblem] = Field(description="Topics and partitions that are not served, or not whole.")


class JournalStatus(Answer):
    """`needed_bytes` hold something un-sealed: `max_bytes` (journal.max.bytes) bounds them."""

    needed_bytes: Int64
    retained_bytes: Int64
    max_bytes: Int64


class InFlightStatus(Answer):
    """`max_bytes` (queued.max.request.bytes) bounds requests, and answers too."""

    request_bytes: Int64
    answer_bytes: Int64
    max_bytes: Int64


class StoreStatus(Answer):
    """Topics by name, internal ones too; a quarantined one is among `problems` alone."""

    version: str
    cluster_id: str
    broker_id: Int32
    now: int = Field(description="The store's clock, in milliseconds since 1970-01-01T00:00:00Z.")
    uptime_ms: Int64
    not_ready_reason: str | None = Field(description="Why appends are refused; null while they are taken.")
    topics: list[TopicStatus]
    problems: list[TopicProblem]
    journal: JournalStatus
    in_flight: InFlightStatus
    max_connections: int
    connections_taken_max: int = Field(description="`max_connections`, or what `open_files_max` allows.")
    open_files_max: int | None = Field(description="`ulimit -n` of the process; null: no limit.")
