"""A consumer group reads topics batch by batch: from its committed offsets to the ends, and then commits these ends.

Invariants: nothing is committed before the block that works on a batch has ended well, so that after a failure the
batch is read again (at least once). The commit is of the exact ends of the batch, however far the logs have grown. A
committed offset belongs to one topic, not to its name.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, get_args

from logstore.client.admin import Admin
from logstore.errors import (
    InvalidGroupError,
    InvalidRequestError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownGroupError,
    UnknownTopicIdError,
)
from logstore.limits import GROUP_NAME_LENGTH_MAX
from logstore.names import is_legal_name
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.spark.offset_ranges import LogBounds, OffsetRange, limited
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
    """The group has committed nothing for a partition, and ``auto_offset_reset`` is "none"."""


class _Committed(NamedTuple):
    """A committed offset, and how far the log reached when it was looked up."""

    offset: int
    log_end: int


@dataclass(frozen=True, slots=True)
class GroupRange:
    """Offsets ``start <= offset < end`` of a partition; ``committed`` is the committed offset when the batch began."""

    topic: str
    partition: int
    start: int
    end: int
    committed: int | None


class GroupBatch:
    """A group's next batch: ``df``, made of ``ranges``; a context manager that commits when its block ends without an
    error.
    """

    def __init__(
        self, group: str, df: "DataFrame", ranges: Sequence[GroupRange], topic_ids: Mapping[str, str], bootstrap: str
    ) -> None:
        self.group = group
        self.df = df
        self.ranges = tuple(ranges)
        self._topic_ids = topic_ids
        self._bootstrap = bootstrap
        self._is_committed = False

    @property
    def is_empty(self) -> bool:
        """Whether there are no offsets left to read."""
        return all(r.start == r.end for r in self.ranges)

    def commit(self) -> None:
        """Commit the ends of ``ranges``; returns when that is durable. Once is enough: later calls do nothing.

        Raises InvalidRequestError for a batch from storage alone, UnknownTopicIdError if a topic was deleted and made
        again, and the errors of ``logstore.client`` for a store that cannot be reached.
        """
        if not self._bootstrap:
            raise InvalidRequestError(
                f"group {self.group}: a batch that was read from storage alone cannot be committed; to commit, "
                "give bootstrap="
            )
        ends = {(r.topic, r.partition): r.end for r in self.ranges if r.end != r.committed}
        if ends and not self._is_committed:
            with connect(self._bootstrap, client_id(self.df.sparkSession)) as store:
                try:
                    store.commit_offsets(self.group, ends, topic_ids=self._topic_ids)
                except UnknownTopicIdError as error:
                    raise UnknownTopicIdError(
                        f"group {self.group} cannot commit: a topic was deleted and made again since this batch was "
                        f"made; make another one ({error})"
                    ) from None
        self._is_committed = True

    def __enter__(self) -> Self:
        if not self._bootstrap:
            log.warning("group %s reads from storage alone: its offsets cannot be committed", self.group)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._bootstrap:
            self.commit()


def group_read(
    spark: "SparkSession",
    topics: str | Sequence[str],
    group: str,
    bootstrap: str | None = None,
    storage: str | os.PathLike[str] | None = None,
    auto_offset_reset: AutoOffsetReset = "earliest",
    max_offsets_per_trigger: int | None = None,
) -> GroupBatch:
    """The records of one topic or several that a consumer group has not read yet, for a ``with`` block that works on
    them.

    ``batch.df`` has the columns of ``read_offsets`` and goes from the committed offsets to the ends of the logs at the
    time of this call. The ends are committed when the block ends without an exception, or by ``batch.commit()``; after
    an exception nothing is, and the next batch begins where this one did.

    A partition without a committed offset begins at ``auto_offset_reset``: "earliest", "latest", or "none" for
    NoCommittedOffsetError. As in Kafka, a partition whose committed offset is outside the log (retention removed it,
    for example) begins there too, with a warning in the log; "none" is OffsetOutOfRangeError then.
    ``max_offsets_per_trigger`` bounds a batch (about), divided among partitions in proportion to what they have, as
    maxOffsetsPerTrigger of Spark's Kafka source.

    ``bootstrap`` and ``storage`` are as in ``read_offsets``. With ``storage``, committed offsets and records are
    those that are rolled into Delta, and nothing can be committed.

    Raises InvalidGroupError, and as ``read_offsets``.
    """
    names = [topics] if isinstance(topics, str) else list(topics)
    _check_arguments(names, group, auto_offset_reset, max_offsets_per_trigger)
    check_source(bootstrap, storage)
    urls = ""
    if storage is not None:
        views = [view_of_storage(storage, topic) for topic in names]
        committed = _committed_in_storage(spark, storage, group, views)
    else:
        with connect(bootstrap, client_id(spark)) as store:
            # Topics first, then offsets: offsets in a topic that is made again between the two do not pass for those in
            # the old one.
            views = [view_through_store(store, topic) for topic in names]
            committed = _committed_in_store(store, group)
            urls = ",".join(store.urls)
    ranges = [
        _to_read(view.topic, bounds, committed.get((view.topic, bounds.partition)), auto_offset_reset)
        for view in views
        for bounds in view.bounds
    ]
    if max_offsets_per_trigger is not None:
        sizes = limited([r.end - r.start for r in ranges], max_offsets_per_trigger)
        ranges = [replace(r, end=r.start + size) for r, size in zip(ranges, sizes, strict=True)]
    frames = (
        topic_frame(spark, view, [OffsetRange(r.partition, r.start, r.end) for r in ranges if r.topic == view.topic])
        for view in views
    )
    df = reduce(lambda a, b: a.union(b), frames)
    return GroupBatch(group, df, ranges, {view.topic: view.topic_id for view in views}, urls)


def _check_arguments(topics: Sequence[str], group: str, auto_offset_reset: str, offsets_max: int | None) -> None:
    if not topics or len(set(topics)) < len(topics):
        raise InvalidRequestError(f"topics={list(topics)}: name at least one topic, and each one once")
    if not is_legal_name(group, GROUP_NAME_LENGTH_MAX):
        raise InvalidGroupError(
            f"{group!r} cannot be a group's name: 1 to {GROUP_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ -, not . or .."
        )
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
    """The latest row of each partition, unless it takes the offset back or is of an earlier topic of that name."""
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
    """The range from the committed offset, or by ``auto_offset_reset``, to the end."""
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
    reason = f"{where}: committed offset {offset} is out of range, valid are {first} to {last}"
    if auto_offset_reset == "none":
        raise OffsetOutOfRangeError(
            f'{reason}; auto_offset_reset is "none"', log_start_offset=first, high_watermark=last
        )
    log.warning('%s; reading from %d, as auto_offset_reset="%s" says', reason, start, auto_offset_reset)
    return GroupRange(topic, bounds.partition, start, end, offset)
