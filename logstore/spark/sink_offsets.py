"""Offsets of a group in a Delta sink, as a commit of the sink records them. Pure; no Spark, no store.

Invariants:

- A commit carries the position of **every** partition that the group has ever written to the sink: for this batch its
  ranges, for other partitions an empty range at their end. The newest commit is therefore complete.
- Positions belong to topic ids, not to names. Positions in a topic that was created again do not count.
- Transaction versions of a group in a sink go up by one with each commit. A commit follows only the one that it was
  planned with, because Delta accepts a version once.
- Positions only rise: a range begins at the position of the commit before, or above it if retention has removed the
  records between.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import msgspec

from logstore.errors import InvalidRequestError
from logstore.spark.offset_ranges import GroupRange
from logstore.spark.sink_commits import SinkOffsetsUnknownError


class TopicRanges(msgspec.Struct, frozen=True, rename="camel"):
    """Ranges [start, end) of a topic by partition."""

    topic: str
    topic_id: str
    ranges: dict[int, tuple[int, int]]


class GroupCommit(msgspec.Struct, frozen=True, rename="camel"):
    """A commit of the sink that holds a batch of the group; ``writer`` is unique to the run that made it."""

    APP_ID_KEY: ClassVar[str] = "group"
    WAY_ON: ClassVar[str] = "continue under another group, whose offsets you set before (logstore group reset)"

    group: str
    txn_version: int = 0
    writer: str = ""
    topics: tuple[TopicRanges, ...] = ()

    @property
    def app_id(self) -> str:
        return self.group

    @property
    def positions(self) -> dict[tuple[str, int], int]:
        """The next offset of the group by topic id and partition."""
        return {(t.topic_id, p): end for t in self.topics for p, (_, end) in t.ranges.items()}


class _MirrorMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of an offset in ``consumer_offsets`` that mirrors a sink."""

    delta_table_id: str
    txn_version: int


@dataclass(frozen=True, slots=True)
class MirroredOffset:
    """A committed offset of the group, with the metadata of its commit."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    metadata: str


def next_commit(
    last: GroupCommit, ranges: Iterable[GroupRange], topic_ids: Mapping[str, str], writer: str
) -> GroupCommit:
    """Return the commit that follows ``last`` with a batch of ``ranges``."""
    batch: dict[str, TopicRanges] = {}
    for r in ranges:
        topic = batch.setdefault(r.topic, TopicRanges(r.topic, topic_ids[r.topic], {}))
        topic.ranges[r.partition] = (r.start, r.end)
    carried = []
    for known in last.topics:
        ends = {p: (end, end) for p, (_, end) in known.ranges.items()}
        found = batch.get(known.topic)
        if found is not None and found.topic_id == known.topic_id:
            batch[known.topic] = TopicRanges(found.topic, found.topic_id, ends | found.ranges)
        else:
            carried.append(TopicRanges(known.topic, known.topic_id, ends))
    return GroupCommit(last.group, last.txn_version + 1, writer, (*batch.values(), *carried))


def with_empty_batch(last: GroupCommit, ranges: Iterable[GroupRange], topic_ids: Mapping[str, str]) -> GroupCommit:
    """Return ``last`` with the positions of an empty batch after it: a partition may be new since."""
    return msgspec.structs.replace(next_commit(last, ranges, topic_ids, last.writer), txn_version=last.txn_version)


def remaining(last: GroupCommit, ranges: Sequence[GroupRange], topic_ids: Mapping[str, str]) -> list[GroupRange]:
    """Return the ranges of a batch, planned without the sink, that the sink does not have yet.

    Raises InvalidRequestError if records between the sink and the batch would be left out.
    """
    positions = last.positions
    left = []
    for r in ranges:
        position = positions.get((topic_ids[r.topic], r.partition), r.start)
        if position < r.start and position != r.committed:
            raise InvalidRequestError(
                f"topic {r.topic}, partition {r.partition}: this batch begins at {r.start}, and the sink has the "
                f"records of group {last.group} up to {position} only; to continue from there, give sink= to "
                "group_read"
            )
        start = max(r.start, position)
        left.append(replace(r, start=start, end=max(r.end, start)))
    return left


def mirror_metadata(table_id: str, txn_version: int) -> str:
    """Return the metadata of the committed offsets that mirror a commit of the sink."""
    return msgspec.json.encode(_MirrorMetadata(table_id, txn_version)).decode()


def commit_of_mirror(group: str, table_id: str, offsets: Sequence[MirroredOffset]) -> GroupCommit:
    """Return the newest commit of the sink from the group's committed offsets, if the sink's log no longer has it.

    Delta still knows the true transaction version then, and refuses a commit if there was a later one. If no committed
    offset mirrors this sink, there was no commit: the result has transaction version 0, and Delta decides again. Raises
    SinkOffsetsUnknownError if only some offsets are those of one commit of the sink.
    """
    versions = {_mirrored_version(found, table_id) for found in offsets}
    if versions <= {None}:
        return GroupCommit(group)
    if len(versions) > 1:
        raise SinkOffsetsUnknownError(
            f"the Delta log of the sink no longer has the commits of group {group}, and some of the group's committed "
            f"offsets have been set since; {GroupCommit.WAY_ON}"
        )
    topics: dict[str, TopicRanges] = {}
    for found in offsets:
        topic = topics.setdefault(found.topic_id, TopicRanges(found.topic, found.topic_id, {}))
        topic.ranges[found.partition] = (found.offset, found.offset)
    return GroupCommit(group, versions.pop() or 0, "", tuple(topics.values()))


def _mirrored_version(found: MirroredOffset, table_id: str) -> int | None:
    try:
        metadata = msgspec.json.decode(found.metadata, type=_MirrorMetadata)
    except msgspec.MsgspecError:
        return None
    return metadata.txn_version if metadata.delta_table_id == table_id else None
