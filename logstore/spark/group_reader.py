"""Reads topics for a consumer group batch by batch, from its committed offsets to the ends, and then commits the ends.

Invariants: a batch goes from the group's positions to the ends of the logs at its start, however far they grow
meanwhile. Positions are the group's committed offsets, or those in the Delta sink that the batch is made for. A
position belongs to one topic, not to its name. ``group_batch`` decides what is committed and when.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from logstore.client.admin import Admin
from logstore.errors import (
    InvalidGroupError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownGroupError,
)
from logstore.names import GROUP_NAME_BYTES_MAX, is_group_name
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.spark.delta_sink import DeltaSink
from logstore.spark.group_batch import GroupBatch
from logstore.spark.offset_ranges import GroupRange, LogBounds, OffsetRange, limited, offsets_text
from logstore.spark.sink_state import SinkState
from logstore.spark.topic_frame import client_id, read_table, topic_frame
from logstore.spark.topic_view import (
    TopicView,
    check_source,
    connect,
    view_of_storage,
    view_through_store,
)
from logstore.table_root import open_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

AutoOffsetReset = Literal["earliest", "latest", "none"]


class NoCommittedOffsetError(LogStoreError):
    """Raised if the group has committed nothing for a partition, and ``auto_offset_reset`` is "none"."""


class _Committed(NamedTuple):
    """A committed offset, and the end of the log when it was looked up."""

    offset: int
    log_end: int


def group_read(
    spark: "SparkSession",
    topics: str | Sequence[str],
    group: str,
    bootstrap: str | None = None,
    storage: str | os.PathLike[str] | None = None,
    auto_offset_reset: AutoOffsetReset = "earliest",
    max_offsets_per_trigger: int | None = None,
    sink: str | os.PathLike[str] | None = None,
) -> GroupBatch:
    """Return the records of one or several topics that a consumer group has not read yet, for a ``with`` block.

    ``batch.df`` has the columns of ``read_offsets`` and goes from the committed offsets to the ends of the logs at the
    time of this call. The ends are committed when the block ends without an exception, or by ``batch.commit()``; after
    an exception nothing is, and the next batch begins where this one did.

    A partition without a committed offset begins at ``auto_offset_reset``: "earliest", "latest", or "none" for
    NoCommittedOffsetError. As in Kafka, a partition whose committed offset is outside the log (retention removed it,
    for example) begins there also, with a warning in the log; "none" raises OffsetOutOfRangeError then.

    ``max_offsets_per_trigger`` bounds a batch (about), divided among partitions in proportion to what they have, like
    maxOffsetsPerTrigger of Spark's Kafka source.

    ``sink`` is the Delta table that ``batch.write_delta`` writes to, by its path or its name. The batch then begins
    where the group's newest commit in that table ends, whatever the group's committed offsets are; if the table has
    nothing of the group, at the committed offsets.

    ``bootstrap`` and ``storage`` are as in ``read_offsets``. With ``storage``, committed offsets and records are those
    that are rolled into Delta, and nothing can be committed.

    Raises InvalidGroupError, and as ``read_offsets``; with ``sink``, OffsetOutOfRangeError if it has records beyond the
    end of a log, InvalidRequestError for a table that cannot be a sink, and SinkOffsetsUnknownError.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    _check_arguments(names, group, auto_offset_reset, max_offsets_per_trigger)
    check_source(bootstrap, storage)
    urls = ""
    # The sink comes first, so that its positions are within the bounds that are looked up afterwards.
    state = SinkState.of(DeltaSink(spark, sink), group) if sink is not None else None
    if storage is not None:
        views = [view_of_storage(storage, topic) for topic in names]
        committed = _committed_in_storage(spark, storage, group, views)
    else:
        with connect(bootstrap, client_id(spark)) as store:
            # Topics come first, then offsets: if a topic is created again between the two, offsets in the new one must
            # not be taken for offsets in the old one.
            views = [view_through_store(store, topic) for topic in names]
            committed = _committed_in_store(store, group)
            if state is not None and state.table_id is not None and not state.last.txn_version:
                state = state.by_mirror(store)
            urls = ",".join(store.urls)
    topic_ids = {view.topic: view.topic_id for view in views}
    positions = state.last.positions if state is not None else {}
    ranges = []
    for view in views:
        for bounds in view.bounds:
            found = committed.get((view.topic, bounds.partition))
            position = positions.get((view.topic_id, bounds.partition))
            if position is None:
                ranges.append(_to_read(view.topic, bounds, found, auto_offset_reset))
                continue
            if urls:
                _check_position(view.topic, bounds, position, sink)
            r = _to_read(view.topic, bounds, _Committed(position, log_end=position), auto_offset_reset)
            ranges.append(replace(r, committed=found and found.offset))
    if max_offsets_per_trigger is not None:
        sizes = limited([r.end - r.start for r in ranges], max_offsets_per_trigger)
        ranges = [replace(r, end=r.start + size) for r, size in zip(ranges, sizes, strict=True)]

    def frame(ranges: Sequence[GroupRange]) -> "DataFrame":
        frames = (
            topic_frame(
                spark, view, [OffsetRange(r.partition, r.start, r.end) for r in ranges if r.topic == view.topic]
            )
            for view in views
        )
        return reduce(lambda a, b: a.union(b), frames)

    return GroupBatch(group, frame, ranges, topic_ids, urls, state)


def _check_arguments(topics: Sequence[str], group: str, auto_offset_reset: str, offsets_max: int | None) -> None:
    if not topics or len(set(topics)) < len(topics):
        raise InvalidRequestError(f"topics={list(topics)}: name at least one topic, and each one once")
    if not is_group_name(group):
        raise InvalidGroupError(f"{group!r} cannot be a group's name: 1 to {GROUP_NAME_BYTES_MAX} bytes of UTF-8")
    if auto_offset_reset not in get_args(AutoOffsetReset):
        raise InvalidRequestError(f'auto_offset_reset={auto_offset_reset!r}: give "earliest", "latest" or "none"')
    if offsets_max is not None and offsets_max < 1:
        raise InvalidRequestError(f"max_offsets_per_trigger={offsets_max}: give a number from 1")


def _committed_in_store(store: Admin, group: str) -> dict[tuple[str, int], _Committed]:
    try:
        lag = store.group_lag(group)
    except UnknownGroupError:
        return {}
    return {
        (p.topic, p.partition): _Committed(p.committed_offset, p.high_watermark)
        for p in lag.partitions
        if p.committed_offset is not None
    }


def _committed_in_storage(
    spark: "SparkSession", storage: str | os.PathLike[str], group: str, views: Sequence[TopicView]
) -> dict[tuple[str, int], _Committed]:
    """Return the latest row of each partition, unless it clears the offset or is for an earlier topic of that name."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    files = open_root(storage).open(OFFSETS_TOPIC)
    if not files.exists():
        return {}
    topic_id = F.get_json_object(F.col("value").cast("string"), "$.topic_id").alias("topic_id")
    # All rows of a group are in one partition of the table: their offsets are in the order of the commits.
    rows = (
        read_table(spark, files)
        .where((F.col("group") == group) & F.col("topic").isin([view.topic for view in views]))
        .groupBy("topic", "topic_partition")
        .agg(F.max_by(F.struct("committed_offset", topic_id), "offset").alias("latest"))
        .select("topic", "topic_partition", "latest.*")
        .collect()
    )
    topic_ids = {view.topic: view.topic_id for view in views}
    # Committed offsets were in the log at the commit; history may not have them yet.
    return {
        (row.topic, row.topic_partition): _Committed(row.committed_offset, log_end=row.committed_offset)
        for row in rows
        if row.topic_id == topic_ids[row.topic]
    }


def _to_read(
    topic: str, bounds: LogBounds, committed: _Committed | None, auto_offset_reset: AutoOffsetReset
) -> GroupRange:
    """Return the range from the committed offset, or from the ``auto_offset_reset`` position, to the end."""
    where = f"topic {topic}, partition {bounds.partition}"
    first, end = bounds.log_start_offset, bounds.end_offset
    start = first if auto_offset_reset == "earliest" else end
    if committed is None:
        if auto_offset_reset == "none":
            raise NoCommittedOffsetError(f'{where}: there is no committed offset, and auto_offset_reset is "none"')
        return GroupRange(topic, bounds.partition, start, end, None)
    offset, last = committed.offset, max(end, committed.log_end)
    if first <= offset <= last:
        return GroupRange(topic, bounds.partition, offset, max(offset, end), offset)
    reason = f"{where}: committed offset {offset} is out of range, valid are {offsets_text(first, last)}"
    if auto_offset_reset == "none":
        raise OffsetOutOfRangeError(
            f'{reason}; auto_offset_reset is "none"', log_start_offset=first, high_watermark=last
        )
    log.warning('%s; reading from %d, as auto_offset_reset="%s" says', reason, start, auto_offset_reset)
    return GroupRange(topic, bounds.partition, start, end, offset)


def _check_position(topic: str, bounds: LogBounds, position: int, sink: str | os.PathLike[str] | None) -> None:
    """Raise OffsetOutOfRangeError if the log has lost records of the sink: beginning again would write them twice."""
    if position > bounds.end_offset:
        raise OffsetOutOfRangeError(
            f"topic {topic}, partition {bounds.partition}: {sink} has the records up to {position}, and the log ends "
            f"at {bounds.end_offset}: the store has lost records; read it under another group",
            log_start_offset=bounds.log_start_offset,
            high_watermark=bounds.end_offset,
        )
