"""Committed offsets and lag of consumer groups; lists, resets and deletions of groups."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from ingest_api.schemas.base import INT64_MAX, Answer, Int32, Int64, Request, TopicId
from logstore.limits import OFFSET_METADATA_BYTES_MAX, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN

#: The most groups that one request may delete.
DELETED_GROUPS_MAX = 1_000
_SIGNED_INT64 = Field(ge=-INT64_MAX, le=INT64_MAX, json_schema_extra={"format": "int64"})


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
    member_id: str = Field("", max_length=400, description="Of a member. Without one the group has to be empty.")
    generation: int = Field(
        -1, ge=-1, le=2**31 - 1, description="The member's generation, or its epoch in a consumer group."
    )
    group_instance_id: str | None = Field(None, min_length=1, max_length=249)


class CommittedOffset(Answer):
    topic: str
    partition: Int32
    offset: Int64
    metadata: str


class CommittedOffsets(Answer):
    """The committed offsets, in the order of the request."""

    offsets: list[CommittedOffset]


class GroupOffsetsQuery(Request):
    topic: str | SkipJsonSchema[None] = Field(None, min_length=1, description="Answer for this topic alone.")


class GroupOffset(CommittedOffset):
    leader_epoch: int = Field(description="Of the record before the offset; -1: not known.")
    timestamp: int = Field(description="When it was committed, in milliseconds since 1970-01-01T00:00:00Z.")


class GroupOffsets(Answer):
    """The committed offsets, by topic and partition."""

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
    records_behind: Int64 | None = Field(
        description="The records at these offsets: fewer than `lag` where compaction, retention or a deletion has "
        "removed some. Null: they cannot be counted."
    )
    lag_ms: Int64 | None = Field(
        description="Milliseconds since the timestamp of the oldest of these records; 0 without one. Null: READ of the "
        "topic is needed, or the record cannot be read."
    )


class GroupLag(Answer):
    group: str
    total_lag: Int64
    max_lag: Int64 = Field(description="Of the partition that is furthest behind.")
    records_behind: Int64 = Field(description="Of all partitions; offsets where they cannot be counted.")
    max_lag_ms: Int64 | None = Field(description="The largest `lag_ms`; null without any.")
    partitions: list[PartitionLag]


class GroupListingsQuery(Request):
    after: str | SkipJsonSchema[None] = Field(
        None, min_length=1, description="Groups whose names come after this one: `next` of the page before."
    )
    limit: str | SkipJsonSchema[None] = Field(
        None, min_length=1, description="How many groups at most, 1 to 10000 (default: 1000).", examples=["100"]
    )
    states: str | SkipJsonSchema[None] = Field(
        None,
        min_length=1,
        description="Only groups in one of these states, separated by commas: Empty, PreparingRebalance, "
        "CompletingRebalance, Assigning, Reconciling, Stable.",
        examples=["Stable,Empty"],
    )


class GroupListing(Answer):
    """`partitions` are those of the topics that the group has committed to or reads; the lags are of all of these."""

    group: str
    kind: str = Field(description="`classic`, `consumer` (KIP-848), or empty: it never had a member.")
    state: str = Field(description="Kafka's name of it: Empty, PreparingRebalance, Stable for example.")
    protocol_type: str | None
    protocol: str | None = Field(description="The assignor.")
    generation: int = Field(description="Or the group epoch; -1: it never had a member.")
    members: int
    partitions: int
    total_lag: Int64
    max_lag: Int64 = Field(description="Of the partition that is furthest behind.")


class GroupListings(Answer):
    """Groups, by name; a page may have fewer than `limit`."""

    groups: list[GroupListing]
    next: str | None = Field(description="`after` of the next page; null: there are no more groups.")


class TopicToReset(Request):
    topic: str
    partitions: list[Int32] | None = Field(None, min_length=1, description="Left out, or null: all of the topic.")


class OffsetToReset(Request):
    topic: str
    partition: Int32
    offset: Int64


class ResetOffsetsRequest(Request):
    """Exactly one of `to`, `to_offset`, `to_timestamp`, `shift_by` and `offsets`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"to": "earliest", "topics": [{"topic": "clicks", "partitions": [0]}], "dry_run": True},
                {"shift_by": -100},
                {"offsets": [{"topic": "clicks", "partition": 0, "offset": 17}]},
            ]
        }
    )

    to: Literal["earliest", "latest", "current"] | None = Field(
        None,
        description="The log start, the high watermark, or where the group is (without a commit: the high watermark).",
    )
    to_offset: Annotated[int, _SIGNED_INT64] | None = Field(None, description="-n: n before the high watermark.")
    to_timestamp: Annotated[int, Field(ge=TIMESTAMP_MS_MIN, le=TIMESTAMP_MS_MAX)] | None = Field(
        None,
        description="In ms since 1970-01-01T00:00:00Z: the first record of this time or later, or else the high "
        "watermark.",
    )
    shift_by: Annotated[int, _SIGNED_INT64] | None = Field(
        None, description="From where the group is; not beyond the ends of the log."
    )
    offsets: list[OffsetToReset] | None = Field(None, min_length=1)
    topics: list[TopicToReset] | None = Field(
        None, min_length=1, description="Left out: all topics that the group has committed to. Not beside `offsets`."
    )
    dry_run: bool = Field(default=False, description="Answer what would be committed, and commit nothing.")

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        targets = (self.to, self.to_offset, self.to_timestamp, self.shift_by, self.offsets)
        if sum(target is not None for target in targets) != 1:
            raise ValueError("give exactly one of to, to_offset, to_timestamp, shift_by and offsets")
        if self.offsets is not None and self.topics is not None:
            raise ValueError("topics cannot stand beside offsets, which name theirs")
        names = [each.topic for each in self.topics or ()]
        if len(names) != len(set(names)):
            raise ValueError("a topic is there twice: name all of its partitions in one place")
        return self


class OffsetReset(Answer):
    topic: str
    partition: Int32
    offset: Int64
    previous_offset: Int64 | None = Field(description="Null: the group had no offset there.")


class ResetOffsets(Answer):
    """By topic and partition, or in the order of `offsets`."""

    group: str
    dry_run: bool
    offsets: list[OffsetReset]


class DeleteGroupsRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"groups": ["billing", "reports"]}]})

    groups: list[str] = Field(min_length=1, max_length=DELETED_GROUPS_MAX)


class DeletedGroup(Answer):
    group: str
    error_code: int | None = Field(description="Null: the group is deleted.")
    message: str | None


class DeletedGroups(Answer):
    """Each group is deleted or refused by itself."""

    groups: list[DeletedGroup]
