"""Consumer instances, as REST Proxy v2 has them."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, create_model

from ingest_api.schemas.base import INT64_MAX, Answer, Int32, Int64, Request
from logstore.limits import INSTANCE_NAME_LENGTH_MAX, OFFSET_METADATA_BYTES_MAX

_NUMBER = "A whole number; a text of its digits is taken, too. -1: the store's default."


class CreateInstanceRequest(Request):
    """Numbers and booleans may also be given as texts."""

    name: str | None = Field(
        None, description=f"1 to {INSTANCE_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -; made if it is left out."
    )
    id: str | None = Field(None, description="As `name`, which goes before it.")
    format: str | None = Field(None, description="The embedded format: `binary` (default) or `json`.")
    auto_offset_reset: str | None = Field(
        None,
        alias="auto.offset.reset",
        description="Where to begin where the group has committed nothing: `latest` (default) or `earliest`.",
    )
    auto_commit_enable: bool | str | None = Field(
        None,
        alias="auto.commit.enable",
        description="Commit what earlier polls have answered, every 5 seconds of polling, before a partition is given "
        "up and at the end. Default: `false`.",
    )
    fetch_min_bytes: int | str | None = Field(
        None, alias="fetch.min.bytes", description=f"Wait for so many bytes, -1 to 10000000. {_NUMBER}"
    )
    response_min_bytes: int | str | None = Field(
        None, alias="responseMinBytes", description="Older name of fetch.min.bytes."
    )
    consumer_request_timeout_ms: int | str | None = Field(
        None, alias="consumer.request.timeout.ms", description=f"How long a poll waits. {_NUMBER}"
    )
    request_wait_ms: int | str | None = Field(
        None, alias="requestWaitMs", description="Older name of consumer.request.timeout.ms."
    )
    isolation_level: str | None = Field(
        None, alias="isolation.level", description="`read_uncommitted` (default) or `read_committed`."
    )

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "c1", "format": "json", "auto.offset.reset": "earliest"}]}
    )


class CreatedInstance(Answer):
    """Later requests may go to `base_uri`, or to the same path at any other address of the store."""

    instance_id: str = Field(examples=["c1"])
    base_uri: str = Field(examples=["http://127.0.0.1:8082/consumers/billing/instances/c1"])


class InstancePartition(Request):
    topic: str = Field(examples=["clicks"])
    partition: Int32


class InstancePartitions(Request):
    partitions: list[InstancePartition] = Field(max_length=100_000)


class InstanceOffset(InstancePartition):
    offset: Int64
    metadata: str | None = Field(
        None, description=f"Text of the consumer's own, at most {OFFSET_METADATA_BYTES_MAX} bytes in UTF-8."
    )


class InstanceTimestamp(InstancePartition):
    timestamp: str = Field(description="ISO 8601, UTC unless it says its offset.", examples=["2026-11-21T08:00:00Z"])
    metadata: str | None = None


class SubscriptionRequest(Request):
    """Either topics or a pattern. Another one of the same kind takes the place of the one before."""

    topics: list[str] | None = Field(None, min_length=1, max_length=10_000, examples=[["clicks"]])
    topic_pattern: str | None = Field(
        None,
        min_length=1,
        max_length=1_000,
        description="A regular expression (RE2) for whole names.",
    )

    model_config = ConfigDict(json_schema_extra={"examples": [{"topics": ["clicks"]}]})


class Subscription(Answer):
    topics: list[str] = Field(examples=[["clicks"]])


class AssignedPartition(Answer):
    topic: str
    partition: Int32


class InstanceAssignments(Answer):
    partitions: list[AssignedPartition]


class PositionsRequest(Request):
    """Offsets to go on from, and times: of a time the first record that is not older, or the end."""

    offsets: list[InstanceOffset] | None = Field(None, max_length=100_000)
    timestamps: list[InstanceTimestamp] | None = Field(None, max_length=100_000)

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offsets": [{"topic": "clicks", "partition": 0, "offset": 17}]}]}
    )


class InstanceRecord(InstanceOffset):
    offset: Annotated[int, Field(ge=0, le=INT64_MAX - 1, json_schema_extra={"format": "int64"})]


class InstanceCommitRequest(Request):
    offsets: list[InstanceRecord] = Field(
        max_length=100_000, description="The last records that are done: the group's offset becomes `offset` + 1."
    )


#: A field cannot be named ``async`` in a class.
_ASYNC: dict[str, Any] = {
    "async": (
        Literal["true", "false"],
        Field("false", description="Taken for clients that send it: the answer always tells of what is durable."),
    )
}
InstanceCommitQuery = create_model("InstanceCommitQuery", __base__=Request, **_ASYNC)


class InstanceCommitted(Answer):
    """`consumed` is the last record that is done, `committed` the group's offset behind it."""

    topic: str
    partition: Int32
    consumed: int
    committed: Int64


class InstanceCommittedOffset(Answer):
    topic: str
    partition: Int32
    offset: Int64 = Field(description="The next offset to read.")
    metadata: str


class InstanceCommittedOffsets(Answer):
    """The group's committed offsets, for the partitions that have one."""

    offsets: list[InstanceCommittedOffset]
