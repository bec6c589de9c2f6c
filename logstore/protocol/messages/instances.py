"""Consumer instances, as REST Proxy v2 has them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from logstore.limits import INSTANCE_NAME_LENGTH_MAX, OFFSET_METADATA_BYTES_MAX
from logstore.protocol.messages.base import INT64_MAX, Int32, Int64, Query, Request, Response
from logstore.protocol.messages.members import AssignedTopicPartition

_NUMBER = "A whole number, or its digits as text. -1: the store's default."


class CreateInstanceRequest(Request, frozen=True):
    """Numbers and booleans may also be given as texts."""

    name: Annotated[
        str | None,
        Meta(
            description=f"1 to {INSTANCE_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -; the store makes one if it is left out."
        ),
    ] = None
    id: Annotated[str | None, Meta(description="The same as `name`, which takes precedence.")] = None
    format: Annotated[str | None, Meta(description="The embedded format: `binary` (default) or `json`.")] = None
    auto_offset_reset: Annotated[
        str | None,
        Meta(description="Where to begin in a partition without a committed offset: `latest` (default) or `earliest`."),
    ] = field(name="auto.offset.reset", default=None)
    auto_commit_enable: Annotated[
        bool | str | None,
        Meta(
            description="Commit the records that earlier polls have returned: every 5 seconds of polling, before "
            "a partition is given up, and at the end. Default: `false`."
        ),
    ] = field(name="auto.commit.enable", default=None)
    fetch_min_bytes: Annotated[
        int | str | None, Meta(description=f"The bytes to wait for, -1 to 10000000. {_NUMBER}")
    ] = field(name="fetch.min.bytes", default=None)
    response_min_bytes: Annotated[int | str | None, Meta(description="The older name of fetch.min.bytes.")] = field(
        name="responseMinBytes", default=None
    )
    consumer_request_timeout_ms: Annotated[int | str | None, Meta(description=f"How long a poll waits. {_NUMBER}")] = (
        field(name="consumer.request.timeout.ms", default=None)
    )
    request_wait_ms: Annotated[int | str | None, Meta(description="The older name of consumer.request.timeout.ms.")] = (
        field(name="requestWaitMs", default=None)
    )
    isolation_level: Annotated[str | None, Meta(description="`read_uncommitted` (default) or `read_committed`.")] = (
        field(name="isolation.level", default=None)
    )

    examples = ({"name": "c1", "format": "json", "auto.offset.reset": "earliest"},)


class CreatedInstance(Response, frozen=True):
    """Later requests may go to `base_uri`, or to the same path at any other address of the store."""

    instance_id: Annotated[str, Meta(examples=["c1"])]
    base_uri: Annotated[str, Meta(examples=["http://127.0.0.1:8082/consumers/billing/instances/c1"])]


class InstancePartition(Request, frozen=True):
    topic: Annotated[str, Meta(examples=["clicks"])]
    partition: Int32


class InstancePartitions(Request, frozen=True):
    partitions: Annotated[tuple[InstancePartition, ...], Meta(max_length=100_000)]


class InstanceOffset(InstancePartition, frozen=True):
    offset: Int64
    metadata: Annotated[
        str | None, Meta(description=f"The consumer's own text, at most {OFFSET_METADATA_BYTES_MAX} bytes in UTF-8.")
    ] = None


class InstanceTimestamp(InstancePartition, frozen=True):
    timestamp: Annotated[
        str, Meta(description="ISO 8601, in UTC unless it has an offset.", examples=["2026-11-21T08:00:00Z"])
    ]
    metadata: str | None = None


class SubscriptionRequest(Request, frozen=True):
    """Either topics or a pattern. A further subscription of the same kind replaces the previous one."""

    topics: Annotated[
        Annotated[tuple[str, ...], Meta(min_length=1, max_length=10_000)] | None, Meta(examples=[["clicks"]])
    ] = None
    topic_pattern: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1_000)] | None,
        Meta(description="A regular expression (RE2) for whole names."),
    ] = None

    examples = ({"topics": ["clicks"]},)


class Subscription(Response, frozen=True):
    topics: Annotated[tuple[str, ...], Meta(examples=[["clicks"]])]


class InstanceAssignments(Response, frozen=True):
    partitions: tuple[AssignedTopicPartition, ...]


class PositionsRequest(Request, frozen=True):
    """Offsets to continue from, and times. A time stands for the first record that is not older, or for the end."""

    offsets: Annotated[tuple[InstanceOffset, ...], Meta(max_length=100_000)] | None = None
    timestamps: Annotated[tuple[InstanceTimestamp, ...], Meta(max_length=100_000)] | None = None

    examples = ({"offsets": [{"topic": "clicks", "partition": 0, "offset": 17}]},)


class InstanceRecord(InstanceOffset, frozen=True):
    offset: Annotated[int, Meta(ge=0, le=INT64_MAX - 1, extra_json_schema={"format": "int64"})]


class InstanceCommitRequest(Request, frozen=True):
    offsets: Annotated[
        tuple[InstanceRecord, ...],
        Meta(max_length=100_000, description="The last processed records: the group's offset becomes `offset` + 1."),
    ]


#: A field cannot be named ``async`` in a class.
InstanceCommitQuery = msgspec.defstruct(
    "InstanceCommitQuery",
    [
        (
            "async",
            Annotated[
                Literal["true", "false"],
                Meta(
                    description="Accepted for clients that send it. The response always comes when the commit is "
                    "durable."
                ),
            ],
            "false",
        )
    ],
    bases=(Query,),
    module=__name__,
)


class InstanceCommitted(Response, frozen=True):
    """`consumed` is the last processed record, `committed` the group's offset after it."""

    topic: str
    partition: Int32
    consumed: int
    committed: Int64


class InstanceCommittedOffset(Response, frozen=True):
    topic: str
    partition: Int32
    offset: Annotated[Int64, Meta(description="The next offset to read.")]
    metadata: str


class InstanceCommittedOffsets(Response, frozen=True):
    """The group's committed offsets, for the partitions that have one."""

    offsets: tuple[InstanceCommittedOffset, ...]
