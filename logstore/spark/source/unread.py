"""The unread records of a streaming query, and those that it has lost. Pure functions; no Spark, no store.

As in Spark's Kafka source, a partition that is new to the query is read from its log start offset, which is 0 unless
records were lost. A topic that was deleted and created again is another topic: it is new, and its earlier records are
lost. Gaps above the log start offset are no loss: compaction and aborted transactions make them. A missing topic or
partition keeps its position: it may only be out of sight, and continues there if it comes back with the same id.

Invariant: a position never goes back. A store that shows less than before (it was restarted, or another broker leads)
will have these offsets again, because they were acknowledged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from logstore.spark.offset_ranges import LogBounds
from logstore.spark.source.offset_json import TopicPartition
from logstore.spark.source.slices import TopicRange
from logstore.spark.source.stream_offset import StreamOffset
from logstore.spark.source.topics import SourceTopic


@dataclass(frozen=True, slots=True)
class Unread:
    """Offsets ``start <= offset < end`` of a partition that a query has not read."""

    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Look:
    """A query's unread offsets in the current topics, with a sentence for each loss."""

    unread: dict[TopicPartition, Unread] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    #: Positions in missing partitions.
    absent: dict[TopicPartition, int] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)


def look(position: StreamOffset, topics: Sequence[SourceTopic]) -> Look:
    """Return the unread offsets for a query at ``position``."""
    found = Look(topic_ids={topic.topic: topic.topic_id for topic in topics})
    found.losses += _gone(position, topics)
    for topic in topics:
        is_same = position.is_of(topic.topic, topic.topic_id)
        for bounds in topic.bounds:
            place = (topic.topic, bounds.partition)
            log_start, start = bounds.log_start_offset, position.offsets.get(place)
            if start is not None and is_same:
                if start < log_start:
                    found.losses.append(_overtaken(place, start, log_start))
                start = max(start, log_start)
            else:
                if start is None and is_same and log_start > 0:
                    found.losses.append(
                        f"topic {place[0]}, partition {place[1]} is new to the query and starts at offset {log_start} "
                        "instead of 0"
                    )
                start = log_start
            found.unread[place] = Unread(start, max(start, bounds.end_offset))
    for place, start in position.offsets.items():
        topic_id = found.topic_ids.get(place[0])
        if place not in found.unread and (topic_id is None or position.is_of(place[0], topic_id)):
            found.absent[place] = start
    found.topic_ids = dict(position.topic_ids) | found.topic_ids
    return found


def _gone(position: StreamOffset, topics: Sequence[SourceTopic]) -> Iterable[str]:
    """Yield a sentence for each topic, or partition, that was read and is missing now."""
    there = {topic.topic: topic for topic in topics}
    for name in sorted({topic for topic, _ in position.offsets}):
        topic = there.get(name)
        if topic is None:
            yield f"topic {name} is gone: it was deleted, or the query does not read it any more"
        elif not position.is_of(name, topic.topic_id):
            yield (
                f"topic {name} was deleted and made again (its id is {topic.topic_id}, and was "
                f"{position.topic_ids[name]}): the new topic is read from its earliest offset"
            )
        else:
            partitions = {bounds.partition for bounds in topic.bounds}
            for partition in sorted(p for t, p in position.offsets if t == name and p not in partitions):
                yield f"topic {name}, partition {partition} is gone, or the query does not read it any more"


def _overtaken(place: TopicPartition, start: int, log_start: int) -> str:
    return (
        f"topic {place[0]}, partition {place[1]}: the query is at offset {start}, and the log starts at {log_start}: "
        f"offsets {start} to {log_start - 1} were removed, by retention or delete-records, before they were read"
    )


def planned(
    start: StreamOffset, end: StreamOffset, topics: Sequence[SourceTopic]
) -> tuple[list[TopicRange], Sequence[str]]:
    """Return the ranges of a batch, without empty ones, and a sentence for each loss.

    A batch that Spark repeats may meet other topics, or other log start offsets, than when it was made.
    """
    found = look(start, topics)
    ranges, losses = [], found.losses
    for (topic, partition), until in sorted(end.offsets.items()):
        unread = found.unread.get((topic, partition))
        if unread is None and found.absent.get((topic, partition)) == until:
            continue
        if unread is None or not end.is_of(topic, found.topic_ids[topic]):
            losses.append(f"topic {topic}, partition {partition}: a batch up to offset {until} is gone with its topic")
        elif unread.start < until:
            ranges.append(TopicRange(topic, found.topic_ids[topic], partition, unread.start, until))
    return ranges, losses


def capped(topics: Sequence[SourceTopic], target: Sequence[SourceTopic]) -> list[SourceTopic]:
    """Return ``topics`` without the records that came after ``target`` was taken."""
    ends = {(t.topic, t.topic_id, b.partition): b.end_offset for t in target for b in t.bounds}

    def cap(topic: SourceTopic, bounds: LogBounds) -> LogBounds:
        end = ends.get((topic.topic, topic.topic_id, bounds.partition), 0)
        return replace(bounds, end_offset=max(bounds.log_start_offset, min(bounds.end_offset, end)))

    return [replace(topic, bounds=tuple(cap(topic, bounds) for bounds in topic.bounds)) for topic in topics]


def latest(topics: Sequence[SourceTopic]) -> Mapping[TopicPartition, int]:
    return {(topic.topic, bounds.partition): bounds.end_offset for topic in topics for bounds in topic.bounds}
