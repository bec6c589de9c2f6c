"""Committed offsets and lag of consumer groups."""

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ingest_api.schemas.base import Answer, Int32, Int64, Request, TopicId
from logstore.limits import OFFSET_METADATA_BYTES_MAX


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


class GroupLag(Answer):
    group: str
    total_lag: Int64
    max_lag: Int64 = Field(description="Of the partition that is furthest behind.")
    partitions: list[PartitionLag]
