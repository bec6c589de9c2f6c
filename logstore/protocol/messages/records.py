"""Records in produce requests and in responses to reads; offsets of a partition; ids of producers."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from logstore.limits import (
    FETCH_BYTES_DEFAULT,
    FETCH_BYTES_MAX,
    FETCH_PARTITIONS_MAX,
    FETCH_WAIT_MS_MAX,
    TIMES_PARTITIONS_MAX,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
)
from logstore.protocol.messages.base import INT64_MAX, Int32, Int64, ProducerEpoch, Query, Request, Response, TopicId

#: The most entries of one ``records:batch``.
ENTRIES_MAX = 1_000


class RecordHeader(Response, frozen=True):
    key: str
    value: Annotated[str | None, Meta(description="Base64; null means a header without a value.")]


class ProduceRecord(Response, frozen=True):
    """In json.v2 `key` and `value` are any JSON, stored as text; in binary.v2 they are base64. Absent means null."""

    key: Any = None
    value: Any = None
    partition: Int32 | None = None
    timestamp: Annotated[
        int | None, Meta(description="Milliseconds since 1970-01-01T00:00:00Z. Default: the time of the append.")
    ] = None
    headers: tuple[RecordHeader, ...] | None = None


class ProduceRequest(Response, frozen=True):
    records: Annotated[tuple[ProduceRecord, ...], Meta(min_length=1)]


class ProducedOffset(Response, frozen=True):
    """If there is an error, `error_code` says, as for a whole request, whether the record may be stored."""

    partition: Int32 | None
    offset: Int64 | None
    error_code: int | None
    error: str | None


class ProducedOffsets(Response, frozen=True):
    """One entry per record, in the order of the request; empty with `acks=0`."""

    offsets: tuple[ProducedOffset, ...]
    key_schema_id: int | None
    value_schema_id: int | None


class ProducedRange(Response, frozen=True):
    """`error_code` and `error` are present if records of some partitions were not stored; null for the others."""

    partition: Int32
    base_offset: Int64 | None
    count: int
    error_code: int | None = None
    error: str | None = None


class ProducedRanges(Response, frozen=True):
    """Within a partition the records of the request have consecutive offsets, in their order; empty with `acks=0`."""

    ranges: tuple[ProducedRange, ...]


class TypedHeader(Response, frozen=True):
    name: str
    value: Annotated[str | None, Meta(description="Base64; null means a header without a value.")] = None


class TypedData(Response, frozen=True):
    """A key or a value. It is null if `data` is absent or null."""

    type: Annotated[
        Literal["BINARY", "JSON", "STRING"],
        Meta(description="BINARY: base64. JSON: any JSON, stored as its text. STRING: a text, stored in UTF-8."),
    ] = "BINARY"
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


class TypedRecord(Response, frozen=True):
    """A record of REST v3. Types of a schema registry (AVRO, JSONSCHEMA, PROTOBUF) are refused."""

    examples = (_RECORD_EXAMPLE,)

    partition_id: Int32 | None = None
    headers: tuple[TypedHeader, ...] | None = None
    key: TypedData | None = None
    value: TypedData | None = None
    timestamp: Annotated[
        str | int | None,
        Meta(description="ISO 8601 with its offset, or milliseconds since 1970. Default: the time of the append."),
    ] = None


class TypedSize(Response, frozen=True):
    type: str
    size: Annotated[int, Meta(description="The number of bytes as they are stored.")]


class RecordPlace(Response, frozen=True):
    cluster_id: str
    topic_name: str
    partition_id: Int32
    offset: Int64
    timestamp: Annotated[str | None, Meta(description="Null if the topic's `message.timestamp.type` is LogAppendTime.")]
    key: TypedSize | None
    value: TypedSize | None


class RecordReport(RecordPlace, frozen=True):
    """`error_code` is 200 for a record that is stored."""

    examples = ({**_REPORT_EXAMPLE, "error_code": 200},)

    error_code: Literal[200]


class RecordEntry(TypedRecord, frozen=True, kw_only=True):
    examples = ({"id": "1", **_RECORD_EXAMPLE},)

    id: Annotated[
        str,
        Meta(min_length=1, max_length=80, description="Names the entry in the response, and is unique in the request."),
    ]


class RecordBatchRequest(Response, frozen=True):
    examples = ({"entries": [{"id": "1", **_RECORD_EXAMPLE}]},)

    entries: Annotated[tuple[RecordEntry, ...], Meta(min_length=1, max_length=ENTRIES_MAX)]


class RecordSuccess(RecordPlace, frozen=True):
    id: str


class RecordFailure(Response, frozen=True):
    id: str
    error_code: int
    message: str


class RecordBatchAnswer(Response, frozen=True):
    examples = (
        {
            "successes": [{**_REPORT_EXAMPLE, "id": "1"}],
            "failures": [{"id": "2", "error_code": 42206, "message": "The value cannot be read."}],
        },
    )

    successes: tuple[RecordSuccess, ...]
    failures: tuple[RecordFailure, ...]


class InitProducerRequest(Request, frozen=True):
    """The producer that asks for its next epoch. Without a body the store makes a new producer."""

    producer_id: Int64
    producer_epoch: ProducerEpoch


class Producer(Response, frozen=True):
    producer_id: Int64
    producer_epoch: ProducerEpoch


class ConsumedRecord(Response, frozen=True):
    topic: str
    key: Any
    value: Any
    partition: Int32
    offset: Int64
    timestamp: Annotated[int, Meta(description="Milliseconds since 1970-01-01T00:00:00Z.")]
    key_format: Annotated[
        Literal["string", "binary"] | None,
        Meta(description="If Accept names no JSON type: the key is not JSON, but text, or bytes as base64."),
    ] = None
    value_format: Annotated[Literal["string", "binary"] | None, Meta(description="The same for the value.")] = None
    headers: Annotated[tuple[RecordHeader, ...] | None, Meta(description="Left out if the record has none.")] = None


class OffsetsQuery(Query, frozen=True):
    timestamp: Annotated[
        str | None,
        Meta(
            description="Also return the smallest offset whose timestamp is not below this time: ISO 8601 (in UTC "
            "unless it has an offset), a date, `now`, `today`, `yesterday`, `-1h`, `-7d`, or "
            "milliseconds since 1970-01-01T00:00:00Z.",
            examples=["2026-11-21T08:00:00Z", "-1h"],
        ),
    ] = None


class PartitionOffsets(Response, frozen=True):
    """`offset` and `timestamp` are present if the request has a timestamp; null if all records are older."""

    beginning_offset: Int64
    end_offset: Int64
    last_stable_offset: Int64
    offset: Int64 | UnsetType | None = UNSET
    timestamp: int | UnsetType | None = UNSET


class PartitionTime(Request, frozen=True):
    partition: Int32
    timestamp: Annotated[
        Annotated[int, Meta(ge=TIMESTAMP_MS_MIN, le=TIMESTAMP_MS_MAX)],
        Meta(description="Milliseconds since 1970-01-01T00:00:00Z."),
    ]


class OffsetsForTimesRequest(Request, frozen=True):
    partitions: Annotated[tuple[PartitionTime, ...], Meta(min_length=1, max_length=TIMES_PARTITIONS_MAX)]


class OffsetForTime(Response, frozen=True):
    """The smallest offset whose timestamp is not below the time, and its timestamp; null without one."""

    partition: Int32
    offset: Int64 | None
    timestamp: int | None


class OffsetsForTimes(Response, frozen=True):
    """The offsets, in the order of the request."""

    offsets: tuple[OffsetForTime, ...]


class FetchPartition(Request, frozen=True, gc=False):
    topic: str
    partition: Int32
    offset: Annotated[Int64, Meta(description="The first offset to read.")]
    topic_id: TopicId = None


class FetchRequest(Request, frozen=True):
    """Kafka's Fetch. The limits are the bytes and the time to wait for, and the most bytes in all and per partition."""

    partitions: Annotated[
        tuple[FetchPartition, ...],
        Meta(
            min_length=1, max_length=FETCH_PARTITIONS_MAX, description="The partitions, which are read in this order."
        ),
    ]
    max_bytes: Annotated[int, Meta(ge=1, le=FETCH_BYTES_MAX)] = FETCH_BYTES_MAX
    max_partition_bytes: Annotated[int, Meta(ge=1, le=FETCH_BYTES_MAX)] = FETCH_BYTES_DEFAULT
    min_bytes: Annotated[int, Meta(ge=0, le=FETCH_BYTES_MAX)] = 1
    max_wait_ms: Annotated[int, Meta(ge=0, le=FETCH_WAIT_MS_MAX)] = 500
    where: Annotated[
        str | None,
        Meta(
            description="Only records that this expression selects. A response may have no records, only a "
            "`next_offset` to continue at."
        ),
    ] = None


class DeleteRecordsRequest(Request, frozen=True):
    before_offset: Annotated[
        Annotated[int, Meta(ge=-1, le=INT64_MAX)],
        Meta(description="The new log start offset; -1 deletes all records that exist now."),
    ]


class DeletedRecords(Response, frozen=True):
    log_start_offset: Int64
