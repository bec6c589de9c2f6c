"""Consumer instances, as REST Proxy v2 has them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from logstore.limits import INSTANCE_NAME_LENGTH_MAX, OFFSET_METADATA_BYTES_MAX
from logstore.protocol.messages.base import INT64_MAX, Int32, Int64, Query, Request, Response
from logstore.protocol.messages.members import AssignedTopicPartition

_NUMBER = "A whole number; a text of its digits is taken, too. -1: the store's default."


class CreateInstanceRequest(Request, frozen=True):
    """Numbers and booleans may also be given as texts."""

    name: Annotated[
        str | None, Meta(description=f"1 to {INSTANCE_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -; made if it is left out.")
    ] = None
    id: Annotated[str | None, Meta(description="As `name`, which goes before it.")] = None
    format: Annotated[str | None, Meta(description="The embedded format: `binary` (default) or `json`.")] = None
    auto_offset_reset: Annotated[
        str | None,
        Meta(description="Where to begin where the group has committed nothing: `latest` (default) or `earliest`."),
    ] = field(name="auto.offset.reset", default=None)
    auto_commit_enable: Annotated[
        bool | str | None,
        Meta(
            description="Commit what earlier polls have answered, every 5 seconds of polling, before a partition is "
            "given up and at the end. Default: `false`."
        ),
    ] = field(name="auto.commit.enable", default=None)
    fetch_min_bytes: Annotated[
        int | str | None, Meta(description=f"Wait for so many bytes, -1 to 10000000. {_NUMBER}")
    ] = field(name="fetch.min.bytes", default=None)
    response_min_bytes: Annotated[int | str | None, Meta(description="Older name of fetch.min.bytes.")] = field(
        name="responseMinBytes", default=None
    )
    consumer_request_timeout_ms: Annotated[int | str | None, Meta(description=f"How long a poll waits. {_NUMBER}")] = (
        field(name="consumer.request.timeout.ms", default=None)
    )
    request_wait_ms: Annotated[int | str | None, Meta(description="Older name of consumer.request.timeout.ms.")] = (
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
        str | None, Meta(description=f"Text of the consumer's own, at most {OFFSET_METADATA_BYTES_MAX} bytes in UTF-8.")
    ] = None


class InstanceTimestamp(InstancePartition, frozen=True):
    timestamp: Annotated[
        str, Meta(description="ISO 8601, UTC unless it says its offset.", examples=["2026-11-21T08:00:00Z"])
    ]
    metadata: str | None = None


class SubscriptionRequest(Request, frozen=True):
    """Either topics or a pattern. Another one of the same kind takes the place of the one before."""

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
    """Offsets to go on from, and times: of a time the first record that is not older, or the end."""

    offsets: Annotated[tuple[InstanceOffset, ...], Meta(max_length=100_000)] | None = None
    timestamps: Annotated[tuple[InstanceTimestamp, ...], Meta(max_length=100_000)] | None = None

    examples = ({"offsets": [{"topic": "clicks", "partition": 0, "offset": 17}]},)


class InstanceRecord(InstanceOffset, frozen=True):
    offset: Annotated[int, Meta(ge=0, le=INT64_MAX - 1, extra_json_schema={"format": "int64"})]


class InstanceCommitRequest(Request, frozen=True):
    offsets: Annotated[
        tuple[InstanceRecord, ...],
        Meta(
            max_length=100_000, description="The last records that are done: the group's offset becomes `offset` + 1."
        ),
    ]


#: A field cannot be named ``async`` in a class.
InstanceCommitQuery = msgspec.defstruct(
    "InstanceCommitQuery",
    [
        (
            "async",
            Annotated[
                Literal["true", "false"],
                Meta(description="Taken for clients that send it: the answer always tells of what is durable."),
            ],
            "false",
        )
    ],
    bases=(Query,),
    module=__name__,
)


class InstanceCommitted(Response, frozen=True):
    """`consumed` is the last record that is done, `committed` the group's offset behind it."""

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
