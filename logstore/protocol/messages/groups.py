"""Committed offsets and lag of consumer groups; lists, resets and deletions of groups."""

from typing import Annotated, Literal, Self

from msgspec import Meta

from logstore.limits import OFFSET_METADATA_BYTES_MAX, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MIN
from logstore.protocol.messages.base import INT64_MAX, NOT_SENT_BEFORE, Int32, Int64, Query, Request, Response, TopicId

#: The most groups that one request may delete.
DELETED_GROUPS_MAX = 1_000
_SIGNED_INT64 = Meta(ge=-INT64_MAX, le=INT64_MAX, extra_json_schema={"format": "int64"})


class OffsetToCommit(Request, frozen=True):
    topic: str
    partition: Int32
    offset: Annotated[
        Int64, Meta(description="The next offset to read: the offset of the last processed record, plus 1.")
    ]
    topic_id: TopicId = None
    metadata: Annotated[
        str | None, Meta(description=f"The consumer's own text, at most {OFFSET_METADATA_BYTES_MAX} bytes in UTF-8.")
    ] = None


class CommitOffsetsRequest(Request, frozen=True):
    offsets: Annotated[tuple[OffsetToCommit, ...], Meta(min_length=1)]
    member_id: Annotated[
        str, Meta(max_length=400, description="The member that commits. If it is left out, the group has to be empty.")
    ] = ""
    generation: Annotated[
        int, Meta(ge=-1, le=2**31 - 1, description="The member's generation, or its epoch in a consumer group.")
    ] = -1
    group_instance_id: Annotated[str, Meta(min_length=1, max_length=249)] | None = None


class CommittedOffset(Response, frozen=True):
    topic: str
    partition: Int32
    offset: Int64
    metadata: str


class CommittedOffsets(Response, frozen=True):
    """The committed offsets, in the order of the request."""

    offsets: tuple[CommittedOffset, ...]


class GroupOffsetsQuery(Query, frozen=True):
    topic: Annotated[
        Annotated[str, Meta(min_length=1)] | None, Meta(description="Return only the offsets of this topic.")
    ] = None


class GroupOffset(CommittedOffset, frozen=True):
    leader_epoch: Annotated[
        int, Meta(description="The leader epoch of the record before the offset; -1 if it is not known.")
    ]
    timestamp: Annotated[int, Meta(description="The time of the commit, in milliseconds since 1970-01-01T00:00:00Z.")]


class GroupOffsets(Response, frozen=True):
    """The committed offsets, by topic and partition."""

    offsets: tuple[GroupOffset, ...]


class PartitionLag(Response, frozen=True):
    """`lag` is `high_watermark` - `committed_offset`, or `high_watermark` - `log_start_offset` if nothing is committed
    (null). Records below `log_start_offset` are gone.
    """

    topic: str
    partition: Int32
    committed_offset: Int64 | None
    log_start_offset: Int64
    high_watermark: Int64
    lag: Int64
    records_behind: Annotated[
        Int64 | None,
        Meta(
            description="The number of records at these offsets: fewer than `lag` if compaction, retention or a "
            "deletion has removed some. Null if they cannot be counted."
        ),
    ] = NOT_SENT_BEFORE
    lag_ms: Annotated[
        Int64 | None,
        Meta(
            description="Milliseconds since the timestamp of the oldest of these records; 0 if there is none. "
            "Null if the client may not READ the topic, or the record cannot be read."
        ),
    ] = NOT_SENT_BEFORE


class GroupLag(Response, frozen=True, kw_only=True):
    group: str
    total_lag: Int64
    max_lag: Annotated[Int64, Meta(description="The lag of the partition that is furthest behind.")]
    records_behind: Annotated[
        Int64,
        Meta(description="The sum for all partitions. A partition whose records cannot be counted adds its offsets."),
    ] = NOT_SENT_BEFORE
    max_lag_ms: Annotated[Int64 | None, Meta(description="The largest `lag_ms`; null if no partition has one.")] = (
        NOT_SENT_BEFORE
    )
    partitions: tuple[PartitionLag, ...]


class GroupListingsQuery(Query, frozen=True):
    after: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Only groups whose names come after this one: `next` of the previous page."),
    ] = None
    limit: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="The most groups, 1 to 10000 (default: 1000).", examples=["100"]),
    ] = None
    states: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(
            description="Only groups in one of these states, separated by commas: Empty, PreparingRebalance, "
            "CompletingRebalance, Assigning, Reconciling, Stable.",
            examples=["Stable,Empty"],
        ),
    ] = None


class GroupListing(Response, frozen=True):
    """`partitions` counts those of the topics that the group has committed to or reads; the lags cover all of them."""

    group: str
    kind: Annotated[str, Meta(description="`classic` or `consumer` (KIP-848); empty if the group never had a member.")]
    state: Annotated[str, Meta(description="Kafka's name of the state, such as Empty, PreparingRebalance or Stable.")]
    protocol_type: str | None
    protocol: Annotated[str | None, Meta(description="The assignor.")]
    generation: Annotated[
        int, Meta(description="The generation, or the group epoch; -1 if the group never had a member.")
    ]
    members: int
    partitions: int
    total_lag: Int64
    max_lag: Annotated[Int64, Meta(description="The lag of the partition that is furthest behind.")]


class GroupListings(Response, frozen=True):
    """A page of groups, by name. It may have fewer than `limit`."""

    groups: tuple[GroupListing, ...]
    next: Annotated[str | None, Meta(description="The `after` of the next page; null on the last page.")]


class TopicToReset(Request, frozen=True):
    topic: str
    partitions: Annotated[
        Annotated[tuple[Int32, ...], Meta(min_length=1)] | None,
        Meta(description="Default: all partitions of the topic."),
    ] = None


class OffsetToReset(Request, frozen=True):
    topic: str
    partition: Int32
    offset: Int64


class ResetOffsetsRequest(Request, frozen=True):
    """Exactly one of `to`, `to_offset`, `to_timestamp`, `shift_by` and `offsets`."""

    examples = (
        {"to": "earliest", "topics": [{"topic": "clicks", "partitions": [0]}], "dry_run": True},
        {"shift_by": -100},
        {"offsets": [{"topic": "clicks", "partition": 0, "offset": 17}]},
    )

    to: Annotated[
        Literal["earliest", "latest", "current"] | None,
        Meta(
            description="The log start, the high watermark, or the committed offset (the high watermark if none "
            "is committed)."
        ),
    ] = None
    to_offset: Annotated[
        Annotated[int, _SIGNED_INT64] | None, Meta(description="An offset; -n means n before the high watermark.")
    ] = None
    to_timestamp: Annotated[
        Annotated[int, Meta(ge=TIMESTAMP_MS_MIN, le=TIMESTAMP_MS_MAX)] | None,
        Meta(
            description="Milliseconds since 1970-01-01T00:00:00Z: the first record with this timestamp or a later "
            "one, else the high watermark."
        ),
    ] = None
    shift_by: Annotated[
        Annotated[int, _SIGNED_INT64] | None,
        Meta(description="The number of offsets to move the committed offset by, at most to the ends of the log."),
    ] = None
    offsets: Annotated[tuple[OffsetToReset, ...], Meta(min_length=1)] | None = None
    topics: Annotated[
        Annotated[tuple[TopicToReset, ...], Meta(min_length=1)] | None,
        Meta(description="Default: all topics that the group has committed to. Not together with `offsets`."),
    ] = None
    dry_run: Annotated[bool, Meta(description="Return what would be committed, and commit nothing.")] = False

    def check(self) -> Self:
        targets = (self.to, self.to_offset, self.to_timestamp, self.shift_by, self.offsets)
        if sum(target is not None for target in targets) != 1:
            raise ValueError("give exactly one of to, to_offset, to_timestamp, shift_by and offsets")
        if self.offsets is not None and self.topics is not None:
            raise ValueError("topics cannot stand beside offsets, which name theirs")
        names = [each.topic for each in self.topics or ()]
        if len(names) != len(set(names)):
            raise ValueError("a topic is there twice: name all of its partitions in one place")
        return self


class OffsetReset(Response, frozen=True):
    topic: str
    partition: Int32
    offset: Int64
    previous_offset: Annotated[Int64 | None, Meta(description="Null if the group had no offset there.")]


class ResetOffsets(Response, frozen=True):
    """The offsets, by topic and partition, or in the order of the request's `offsets`."""

    group: str
    dry_run: bool
    offsets: tuple[OffsetReset, ...]


class DeleteGroupsRequest(Request, frozen=True):
    examples = ({"groups": ["billing", "reports"]},)

    groups: Annotated[tuple[str, ...], Meta(min_length=1, max_length=DELETED_GROUPS_MAX)]


class DeletedGroup(Response, frozen=True):
    group: str
    error_code: Annotated[int | None, Meta(description="Null if the group was deleted.")]
    message: str | None


class DeletedGroups(Response, frozen=True):
    """The result for each group, which is deleted or refused independently."""

    groups: tuple[DeletedGroup, ...]
