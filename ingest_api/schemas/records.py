"""Records in produce requests and in responses to reads; offsets of a partition; ids of producers."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from ingest_api.schemas.base import INT64_MAX, Answer, Int32, Int64, ProducerEpoch, Request, TopicId
from logstore.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_PARTITIONS_MAX,
    FETCH_WAIT_MS_MAX,
    TIMES_PARTITIONS_MAX,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
)

#: The most entries of one ``records:batch``.
ENTRIES_MAX = 1_000


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
    """With an error the record is not stored, or may be stored: `error_code` means the same as for a whole request."""

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
    """`error_code` and `error` are there when records of some partitions were not stored; null for the others."""

    partition: Int32
    base_offset: Int64 | None
    count: int
    error_code: int | None = None
    error: str | None = None


class ProducedRanges(Answer):
    """Within a partition the records of the request have consecutive offsets, in their order; empty with `acks=0`."""

    ranges: list[ProducedRange]


class TypedHeader(Answer):
    name: str
    value: str | None = Field(None, description="Base64; null is a header without a value.")


class TypedData(Answer):
    """Without `data`, or with null, the key or value is null."""

    type: Literal["BINARY", "JSON", "STRING"] = Field(
        "BINARY", description="BINARY: base64. JSON: any JSON, stored as its text. STRING: a text, stored as its UTF-8."
    )
    data: Any = None


_RECORD_EXAMPLE: dict[str, Any] = {
    "key": {"type": "STRING", "data": "alice"},
    "value": {"type": "JSON", "data": {"page": "/home"}},
    "headers": [{"name": "trace", "value": "MTc="}],
    "timestamp": "2026-11-21T08:00:00Z",
}
_REPORT_EXAMPLE: dict[str, Any] = {
    "cluster_id": "mzKkZTDVQpOCGQBLkZc0Kw",
    "topic_name": "clicks",
    "partition_id": 0,
    "offset": 17,
    "timestamp": "2026-11-21T08:00:00.000Z",
    "key": {"type": "STRING", "size": 5},
    "value": {"type": "JSON", "size": 17},
}


class TypedRecord(Answer):
    """A record of REST v3. Types of a schema registry (AVRO, JSONSCHEMA, PROTOBUF) are refused."""

    model_config = ConfigDict(json_schema_extra={"examples": [_RECORD_EXAMPLE]})

    partition_id: Int32 | None = None
    headers: list[TypedHeader] | None = None
    key: TypedData | None = None
    value: TypedData | None = None
    timestamp: str | int | None = Field(
        None, description="ISO 8601 with its offset, or milliseconds since 1970; absent: time of the append."
    )


class TypedSize(Answer):
    type: str
    size: int = Field(description="Bytes as they are stored.")


class RecordPlace(Answer):
    cluster_id: str
    topic_name: str
    partition_id: Int32
    offset: Int64
    timestamp: str | None = Field(description="Null if the topic's `message.timestamp.type` is LogAppendTime.")
    key: TypedSize | None
    value: TypedSize | None


class RecordReport(RecordPlace):
    """`error_code` is 200 for a record that is stored."""

    model_config = ConfigDict(json_schema_extra={"examples": [{**_REPORT_EXAMPLE, "error_code": 200}]})

    error_code: Literal[200]


class RecordEntry(TypedRecord):
    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "1", **_RECORD_EXAMPLE}]})

    id: str = Field(min_length=1, max_length=80, description="Names the entry in the answer; no other entry has it.")


class RecordBatchRequest(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [{"entries": [{"id": "1", **_RECORD_EXAMPLE}]}]})

    entries: list[RecordEntry] = Field(min_length=1, max_length=ENTRIES_MAX)


class RecordSuccess(RecordPlace):
    id: str


class RecordFailure(Answer):
    id: str
    error_code: int
    message: str


class RecordBatchAnswer(Answer):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "successes": [{**_REPORT_EXAMPLE, "id": "1"}],
                    "failures": [{"id": "2", "error_code": 42206, "message": "The value cannot be read."}],
                }
            ]
        }
    )

    successes: list[RecordSuccess]
    failures: list[RecordFailure]


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


class OffsetsQuery(Request):
    timestamp: str | SkipJsonSchema[None] = Field(
        None,
        description="A time, as ISO 8601 (UTC unless it says its offset), a date, `now`, `today`, `yesterday`, `-1h`, "
        "`-7d`, or milliseconds since 1970-01-01T00:00:00Z: also answer the smallest offset whose timestamp is not "
        "below it.",
        examples=["2026-11-21T08:00:00Z", "-1h"],
    )


class PartitionOffsets(Answer):
    """`offset` and `timestamp` are there when a timestamp was asked for; null when no record is that young."""

    model_config = ConfigDict(json_schema_serialization_defaults_required=False)

    beginning_offset: Int64
    end_offset: Int64
    last_stable_offset: Int64
    offset: Int64 | None = None
    timestamp: int | None = None


class PartitionTime(Request):
    partition: Int32
    timestamp: Annotated[int, Field(ge=TIMESTAMP_MS_MIN, le=TIMESTAMP_MS_MAX)] = Field(
        description="Milliseconds since 1970-01-01T00:00:00Z."
    )


class OffsetsForTimesRequest(Request):
    partitions: list[PartitionTime] = Field(min_length=1, max_length=TIMES_PARTITIONS_MAX)


class OffsetForTime(Answer):
    """The smallest offset whose timestamp is not below the time, and its timestamp; null without one."""

    partition: Int32
    offset: Int64 | None
    timestamp: int | None


class OffsetsForTimes(Answer):
    """In the order of the request."""

    offsets: list[OffsetForTime]


class FetchPartition(Request):
    topic: str
    partition: Int32
    offset: Int64 = Field(description="The first offset to read.")
    topic_id: TopicId = None


class FetchRequest(Request):
    """Kafka's Fetch: bytes and time to wait for, and bytes to take at most, in all and of one partition."""

    partitions: list[FetchPartition] = Field(
        min_length=1, max_length=FETCH_PARTITIONS_MAX, description="Read in this order: the first ones come first."
    )
    max_bytes: Annotated[int, Field(ge=1, le=FETCH_BYTES_MAX)] = FETCH_BYTES_MAX
    max_partition_bytes: Annotated[int, Field(ge=1, le=FETCH_BYTES_MAX)] = FETCH_BYTES_DEFAULT
    min_bytes: Annotated[int, Field(ge=0, le=FETCH_BYTES_MAX)] = 1
    max_wait_ms: Annotated[int, Field(ge=0, le=FETCH_WAIT_MS_MAX)] = 500
    where: str | None = Field(
        None,
        description="Only records that this expression selects. A response may have none of them, and a `next_offset` "
        "to go on at.",
    )


class DeleteRecordsRequest(Request):
    before_offset: Annotated[int, Field(ge=-1, le=INT64_MAX)] = Field(
        description="The new log start offset; -1: everything there is now."
    )


class DeletedRecords(Answer):
    log_start_offset: Int64
