"""The options for the start and the end of a read: offsets or times, for all partitions or by partition."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from logstore.errors import InvalidRequestError
from logstore.spark.option_values import OptionValues
from logstore.spark.source.offset_json import TopicPartition, read_offsets, read_times

#: As in Spark's Kafka source, in place of offsets.
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class Offsets:
    """EARLIEST or LATEST for ``every`` partition, or an offset (or one of these) by partition.

    ``topic_ids`` has by name the ids of the topics from which the offsets were taken, if known.
    """

    every: int | None = None
    by_partition: Mapping[TopicPartition, int] | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timestamps:
    """A time in ms for ``every`` partition, or by partition."""

    every: int | None = None
    by_partition: Mapping[TopicPartition, int] | None = None


def read_position(values: OptionValues, end: Literal["starting", "ending"]) -> Offsets | Timestamps | None:
    """Parse a position. As in Spark's source for Kafka, a time for all wins over times by partition, then offsets."""
    name = f"{end}Offsets"
    offsets = None
    if name in values:
        word = {"earliest": EARLIEST, "latest": LATEST}.get(values.text(name).lower())
        if word is None:
            by_partition, topic_ids = values.parsed(name, read_offsets)
            offsets = Offsets(by_partition=by_partition, topic_ids=topic_ids)
        else:
            offsets = Offsets(every=word)
    name, times = f"{end}OffsetsByTimestamp", None
    if name in values:
        times = Timestamps(by_partition=values.parsed(name, read_times))
    if f"{end}Timestamp" in values:
        times = Timestamps(every=values.time_ms(f"{end}Timestamp"))
    return times or offsets


def check_ends(starting: Offsets | Timestamps | None, ending: Offsets | Timestamps | None) -> None:
    """Raise InvalidRequestError for ends that no batch can have; a streaming query has no end at all."""
    if isinstance(ending, Offsets):
        if ending.every == EARLIEST:
            raise InvalidRequestError("endingOffsets: ending offset can't be earliest for batch queries")
        for (topic, partition), offset in (ending.by_partition or {}).items():
            if offset == EARLIEST:
                raise InvalidRequestError(f"ending offset for {topic}-{partition} can't be earliest for batch queries")
    if type(starting) is not type(ending) or starting is None or ending is None:
        return
    starts, ends = starting.by_partition, ending.by_partition
    if starts is None or ends is None:
        return
    if starts.keys() != ends.keys():
        raise InvalidRequestError(
            "The specified start offset and end offset should have the same topic-partitions. Topic-partitions for "
            f"start offset: {listed(starts)}, topic-partitions for end offset: {listed(ends)}"
        )
    kind = "offset" if isinstance(starting, Offsets) else "timestamp"
    for (topic, partition), start in starts.items():
        if 0 <= ends[topic, partition] < start:
            raise InvalidRequestError(
                f"The specified start {kind} {start} is greater than the end {kind} {ends[topic, partition]} for topic "
                f"{topic} partition {partition}"
            )


def listed(partitions: Iterable[TopicPartition]) -> str:
    """Return topic-partitions for a message, at most ten of them."""
    names = [f"{topic}-{partition}" for topic, partition in sorted(partitions)]
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "") or "none"
