"""Converts the options for the start and the end of a read to offsets in the current topics. Pure functions.

As in Spark's Kafka source, a time means the first offset at or after it; offsets or times by partition name exactly the
partitions that are read. A stream that begins accepts partitions that were added since its options were written: they
are read from earliest, as by a running query.

Invariant: every returned offset is inside the bounds of its partition, except a start above the end of the log in a
batch, which ``batch_ranges`` refuses. Anything outside is data loss.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from logstore.errors import InvalidRequestError
from logstore.limits import PARTITIONS_PER_TOPIC_MAX
from logstore.spark.offset_ranges import LogBounds
from logstore.spark.source.data_loss import report_data_loss
from logstore.spark.source.offset_options import listed
from logstore.spark.source.options import EARLIEST, LATEST, Offsets, ReadOptions, Timestamps, TopicPartition
from logstore.spark.source.slices import TopicRange
from logstore.spark.source.topics import SourceTopic

log = logging.getLogger(__name__)

#: Maps each partition's time (ms) to its first offset at or after that time, None if there is none.
OffsetsOfTimes = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]]


def starting_offsets(
    options: ReadOptions, topics: Sequence[SourceTopic], offsets_of_times: OffsetsOfTimes, *, streaming: bool
) -> dict[TopicPartition, int]:
    """Return the first offset to read of every partition; without an option the latest in a stream, else the earliest.

    Raises InvalidRequestError (partitions left out, or not read; no record at or after a time), DataLossError.
    """
    bounds = bounds_of(topics)
    starting = options.starting or Offsets(every=LATEST if streaming else EARLIEST)
    added = _added(options, starting, bounds) if streaming else {}
    if isinstance(starting, Timestamps):
        bounds = {place: has for place, has in bounds.items() if place not in added}
        times = _every("startingOffsetsByTimestamp", starting, bounds)
        found = dict(offsets_of_times(times))
        for (topic, partition), offset in found.items():
            if offset is None and options.starting_timestamp_strategy == "error":
                raise InvalidRequestError(
                    f"No offset matched from request of topic-partition {topic}-{partition} and timestamp "
                    f"{times[topic, partition]}. To start from the latest offset then, set the option "
                    "startingOffsetsByTimestampStrategy to latest"
                )
        return _within_log(found, bounds) | added
    if added:
        starting = replace(starting, by_partition={**(starting.by_partition or {}), **added})
    offsets = _resolved(options, "startingOffsets", starting, topics, bounds, made_again=EARLIEST)
    for (topic, partition), offset in offsets.items():
        has = bounds[topic, partition]
        if offset < has.log_start_offset or (streaming and offset > has.end_offset):
            _report(options, "startingOffsets", topic, offset, has)
            offsets[topic, partition] = min(max(offset, has.log_start_offset), has.end_offset)
    return offsets


def ending_offsets(
    options: ReadOptions, topics: Sequence[SourceTopic], offsets_of_times: OffsetsOfTimes
) -> dict[TopicPartition, int]:
    """Return the exclusive end of every partition: the latest without an option, or with no record at or after a time.

    Raises InvalidRequestError (partitions left out, or not read), DataLossError.
    """
    bounds = bounds_of(topics)
    ending = options.ending or Offsets(every=LATEST)
    if isinstance(ending, Timestamps):
        return _within_log(offsets_of_times(_every("endingOffsetsByTimestamp", ending, bounds)), bounds)
    offsets = _resolved(options, "endingOffsets", ending, topics, bounds, made_again=LATEST)
    for (topic, partition), offset in offsets.items():
        has = bounds[topic, partition]
        if not has.log_start_offset <= offset <= has.end_offset:
            _report(options, "endingOffsets", topic, offset, has)
            offsets[topic, partition] = min(max(offset, has.log_start_offset), has.end_offset)
    return offsets


def batch_ranges(
    options: ReadOptions, topics: Sequence[SourceTopic], offsets_of_times: OffsetsOfTimes
) -> list[TopicRange]:
    """Return the ranges of a batch, by topic and partition.

    Raises as ``starting_offsets`` and ``ending_offsets``, and InvalidRequestError for a start above its end.
    """
    starts = starting_offsets(options, topics, offsets_of_times, streaming=False)
    ends = ending_offsets(options, topics, offsets_of_times)
    ranges = []
    for topic in topics:
        for has in topic.bounds:
            key = topic.topic, has.partition
            if starts[key] > ends[key]:
                raise InvalidRequestError(
                    f"The resolved start offset {starts[key]} is greater than the resolved end offset {ends[key]} for "
                    f"topic {topic.topic} partition {has.partition}: it has offsets {has.text}"
                )
            ranges.append(TopicRange(topic.topic, topic.topic_id, has.partition, starts[key], ends[key]))
    return ranges


def bounds_of(topics: Sequence[SourceTopic]) -> dict[TopicPartition, LogBounds]:
    return {(topic.topic, has.partition): has for topic in topics for has in topic.bounds}


def _resolved(
    options: ReadOptions,
    name: str,
    offsets: Offsets,
    topics: Sequence[SourceTopic],
    bounds: Mapping[TopicPartition, LogBounds],
    *,
    made_again: int,
) -> dict[TopicPartition, int]:
    """Resolve EARLIEST and LATEST, and keep other numbers; offsets of a topic that was created again mean nothing."""
    given = _every(name, offsets, bounds)
    for topic in topics:
        if offsets.topic_ids.get(topic.topic, topic.topic_id) != topic.topic_id:
            report_data_loss(
                f"{name}: topic {topic.topic} was deleted and made again since these offsets were taken (its id is "
                f"{topic.topic_id}, not {offsets.topic_ids[topic.topic]})",
                fail=options.fail_on_data_loss,
            )
            given |= {(topic.topic, has.partition): made_again for has in topic.bounds}
    words = {EARLIEST: "log_start_offset", LATEST: "end_offset"}
    return {key: getattr(bounds[key], words[offset]) if offset in words else offset for key, offset in given.items()}


def _added(
    options: ReadOptions, starting: Offsets | Timestamps, bounds: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, int]:
    """Return the log start offsets of partitions that were added after ``starting`` named each partition.

    These are the ones above the highest that is named, and new topics of a pattern. A query that fails before its first
    batch is recorded begins again, with the same options and other partitions.
    """
    if starting.by_partition is None or options.subscription.assigned is not None:
        return {}
    highest: dict[str, int] = {}
    for topic, partition in starting.by_partition:
        highest[topic] = max(partition, highest.get(topic, 0))
    unnamed = PARTITIONS_PER_TOPIC_MAX if not options.subscription.pattern else -1
    added = {place: has.log_start_offset for place, has in bounds.items() if place[1] > highest.get(place[0], unnamed)}
    if added:
        log.warning("%s were added since the starting offsets were written: they are read from earliest", listed(added))
    return added


def _every(
    name: str, given: Offsets | Timestamps, bounds: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, int]:
    """Return the number for every partition. Raises InvalidRequestError if numbers by partition name others."""
    if given.by_partition is None:
        assert given.every is not None
        return dict.fromkeys(bounds, given.every)
    if given.by_partition.keys() != bounds.keys():
        raise InvalidRequestError(
            f"Partitions specified for {name} don't match what are assigned: left out: "
            f"{listed(bounds.keys() - given.by_partition.keys())}; not assigned: "
            f"{listed(given.by_partition.keys() - bounds.keys())}. Specify all topic-partitions"
            + ("; use -1 for latest, -2 for earliest" if isinstance(given, Offsets) else "")
        )
    return dict(given.by_partition)


def _within_log(
    found: Mapping[TopicPartition, int | None], bounds: Mapping[TopicPartition, LogBounds]
) -> dict[TopicPartition, int]:
    """Return the offsets of times; the end if there is none. The log may have moved since its bounds were read."""
    offsets = {}
    for key, has in bounds.items():
        offset = found[key]
        offsets[key] = has.end_offset if offset is None else min(max(offset, has.log_start_offset), has.end_offset)
    return offsets


def _report(options: ReadOptions, name: str, topic: str, offset: int, has: LogBounds) -> None:
    report_data_loss(
        f"{name}: offset {offset} of topic-partition {topic}-{has.partition} is out of range; it has offsets "
        f"{has.text}",
        fail=options.fail_on_data_loss,
    )
