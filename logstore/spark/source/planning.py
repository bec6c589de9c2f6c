"""Divides offset ranges into slices, one for each task of Spark.

History is cut by bytes, so that no task is much longer than the others, and both history and tail by the options
``minPartitions`` and ``maxRecordsPerPartition``. As in Spark's Kafka source, a partition is otherwise one slice; here
it is one for its history and one for its tail.

Invariants: slices cover each offset of the ranges once. History is below the sealed offset of one snapshot of the table
(rule R8), and the leader serves everything else, including sealed records. A plan names no file of a version that is
older than the plan: another writer may have deleted or updated records since. A plan that names no file may use an
older snapshot; a newer one only saves the leader work.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from logstore.errors import UnknownTopicError, UnknownTopicIdError
from logstore.limits import MIB
from logstore.spark.offset_ranges import OffsetRange
from logstore.spark.read_plan import stored_share
from logstore.spark.source.data_loss import beyond_history, report_data_loss
from logstore.spark.source.options import ReadOptions
from logstore.spark.source.slices import Slice, TimeRange, TopicRange
from logstore.spark.source.topics import connect_store
from logstore.spark.topic_view import MISSING_REMEDY, TopicView, view_of_storage, view_through_store

if TYPE_CHECKING:
    from logstore.delta.snapshot import SegmentFile

#: Stored bytes of history that one task reads, about.
SLICE_BYTES = 64 * MIB
#: Up to this many offsets past a snapshot are fetched from the leader without reading the table's log again.
_BEYOND_SNAPSHOT_MAX = 50_000


class Planner:
    """Plans reads by ``options``; it keeps the newest snapshot of each topic's table for the next plan of a stream."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._views: dict[str, TopicView] = {}

    def slices(self, ranges: Sequence[TopicRange], times: TimeRange | None = None) -> list[Slice]:
        """Return input partitions for Spark that cover ``ranges``, each offset once; none for empty ranges.

        Files of the history without a record of ``times`` are left out; Spark has to filter the rest. Raises
        UnknownTopicError or UnknownTopicIdError for a topic that was deleted or created again (a warning without
        failOnDataLoss), DataLossError, DataDirectoryError, and as ``view_through_store``.
        """
        ranges = [r for r in ranges if r.start < r.end]
        topics = {r.topic for r in ranges}
        views = {}
        for topic in topics:
            try:
                views[topic] = self._view(topic, [r for r in ranges if r.topic == topic])
            except UnknownTopicError as error:
                # It existed when the ranges were chosen.
                if self._options.fail_on_data_loss:
                    raise
                report_data_loss(error.message, fail=False)
        return plan_slices(views, [r for r in ranges if r.topic in views], self._options, times)

    def _view(self, topic: str, ranges: Sequence[TopicRange]) -> TopicView:
        view = self._views.get(topic)
        if view is None or view.topic_id != ranges[0].topic_id or not _serves(view, ranges):
            view = self._views[topic] = self._look(topic)
        if view.topic_id != ranges[0].topic_id:
            raise UnknownTopicIdError(
                f"topic {topic} was deleted and made again: its id is {view.topic_id}, not {ranges[0].topic_id}"
            )
        return view

    def _look(self, topic: str) -> TopicView:
        if self._options.storage:
            return view_of_storage(self._options.storage, topic)
        with connect_store(self._options) as store:
            return view_through_store(store, topic)


def _serves(view: TopicView, ranges: Sequence[TopicRange]) -> bool:
    """Return True if an earlier view serves for ``ranges``. A query that is not behind needs no look at the log."""
    if any(_is_far_beyond(view, r) for r in ranges):
        return False
    return all(r.start >= view.snapshot.partitions[r.partition].sealed for r in ranges) or view.is_newest()


def _is_far_beyond(view: TopicView, wanted: TopicRange) -> bool:
    state = view.snapshot.partitions.get(wanted.partition)
    return state is None or not view.urls or wanted.end - max(wanted.start, state.sealed) > _BEYOND_SNAPSHOT_MAX


# ---- parts and slices; without a look at a store or a table ---------------------------------------------------------


def plan_slices(
    views: Mapping[str, TopicView], ranges: Sequence[TopicRange], options: ReadOptions, times: TimeRange | None = None
) -> list[Slice]:
    """Return slices as ``Planner.slices`` does, with the views of the topics by name. Raises DataLossError."""
    ranges = [r for r in ranges if r.start < r.end]
    for topic, view in views.items():
        of_topic = [r for r in ranges if r.topic == topic]
        for r in of_topic:
            _report_removed(view, r, fail=options.fail_on_data_loss)
            _report_beyond(view, r, fail=options.fail_on_data_loss)
        _report_missing(view, of_topic, fail=options.fail_on_data_loss)
    whole = [part for r in ranges for part in _parts(views[r.topic], r, times)]
    return divide(whole, options.min_partitions, options.max_records_per_partition)


def _report_removed(view: TopicView, wanted: TopicRange, *, fail: bool) -> None:
    """Report offsets that retention removed by a commit to the table, of which the store may not know yet."""
    state = view.snapshot.partitions[wanted.partition]
    if state.log_start <= wanted.start:
        return
    left = (file.base_offset for file in view.snapshot.segments(wanted.partition) if file.end_offset > wanted.start)
    until = min(next(left, state.sealed), state.log_start, wanted.end)
    if until > wanted.start:
        report_data_loss(
            f"topic {wanted.topic}, partition {wanted.partition}: offsets {wanted.start} to {until - 1} were "
            f"removed by retention (the log starts at {state.log_start})",
            fail=fail,
        )


def _report_beyond(view: TopicView, wanted: TopicRange, *, fail: bool) -> None:
    """Report a sealed offset that another writer's commit has taken back: without a store nothing is above it."""
    sealed = view.snapshot.partitions[wanted.partition].sealed
    if not view.urls and sealed < wanted.end:
        report_data_loss(beyond_history(wanted.topic, wanted.partition, wanted.start, wanted.end, sealed), fail=fail)


def _report_missing(view: TopicView, wanted: Sequence[TopicRange], *, fail: bool) -> None:
    """Report records that another writer removed: the store refuses these offsets, and the files just lack them."""
    ranges = [OffsetRange(r.partition, r.start, r.end) for r in wanted]
    for partition, missing in view.missing(ranges).items():
        for part in missing:
            report_data_loss(f"{part.told(view.topic, partition)}. {MISSING_REMEDY}", fail=fail)


@dataclass(frozen=True, slots=True)
class Part:
    """A slice before it is divided. ``files`` are those of its history, empty for the tail."""

    slice: Slice
    files: tuple["SegmentFile", ...] = ()

    @property
    def offsets(self) -> int:
        return self.slice.end - self.slice.start

    @property
    def stored_bytes(self) -> int:
        return sum(_share(file, self.slice.start, self.slice.end) for file in self.files)


def _share(file: "SegmentFile", start: int, end: int) -> int:
    return stored_share(file.size, file.min_offset, file.max_offset, start, end)


def _parts(view: TopicView, wanted: TopicRange, times: TimeRange | None) -> Iterator[Part]:
    """Yield the history, in runs of relevant files, then the tail."""
    partition, snapshot = wanted.partition, view.snapshot
    timestamp_type = int(snapshot.config_overrides.get("message.timestamp.type") == "LogAppendTime")

    def part(start: int, end: int, files: Sequence["SegmentFile"] = ()) -> Part:
        where = (view.files.uri, tuple(file.path for file in files)) if files else ("", ())
        what = (wanted.topic, wanted.topic_id, partition, start, end, *where)
        return Part(Slice(*what, view.urls, timestamp_type, snapshot.version), tuple(files))

    border = min(max(snapshot.partitions[partition].sealed, wanted.start), wanted.end)
    run: list[SegmentFile] = []
    for file in snapshot.segments(partition):
        if not file.num_records or file.max_offset < wanted.start or file.min_offset >= border:
            continue
        if times is None or times.touches(file):
            run.append(file)
        elif run:
            yield part(max(wanted.start, run[0].min_offset), run[-1].max_offset + 1, run)
            run = []
    if run:
        yield part(max(wanted.start, run[0].min_offset), min(border, run[-1].max_offset + 1), run)
    if border < wanted.end and view.urls:
        yield part(border, wanted.end)


def divide(parts: Sequence[Part], slices_min: int | None, records_max: int | None) -> list[Slice]:
    """Return slices of about ``SLICE_BYTES`` and ``records_max`` offsets at most, and about ``slices_min`` at least."""
    counts = [
        max(1, -(-part.stored_bytes // SLICE_BYTES), -(-part.offsets // records_max) if records_max else 1)
        for part in parts
    ]
    if slices_min and sum(counts) < slices_min:
        total = sum(part.offsets for part in parts)
        counts = [
            max(count, min(part.offsets, round(slices_min * part.offsets / total)))
            for count, part in zip(counts, parts, strict=True)
        ]
    return [piece for part, count in zip(parts, counts, strict=True) for piece in _cut(part, count, records_max)]


def _cut(part: Part, count: int, records_max: int | None) -> Iterator[Slice]:
    if count == 1:
        yield part.slice
        return
    for start, end in pairwise(_bounds(part, count, records_max)):
        files = tuple(f.path for f in part.files if f.min_offset < end and f.max_offset >= start)
        if files or not part.files:
            yield replace(part.slice, start=start, end=end, files=files)


def _bounds(part: Part, count: int, records_max: int | None) -> list[int]:
    """Return rising offsets that cut a part into about ``count`` pieces of about the same size.

    The size is in stored bytes of its files, or in offsets. A piece with more than ``records_max`` offsets is cut
    further.
    """
    start, end = part.slice.start, part.slice.end
    offsets, reach = [start], [0]
    for file in part.files:
        offsets += [max(start, file.min_offset), min(end, file.max_offset + 1)]
        reach += [reach[-1], reach[-1] + _share(file, start, end)]
    if not reach[-1]:
        offsets, reach = [start, end], [0, end - start]
    cuts = np.interp(np.arange(1, count) * (reach[-1] / count), reach, offsets).astype(np.int64).tolist()
    bounds = sorted({start, *cuts, end})
    if records_max:
        more = (-(-(high - low) // records_max) for low, high in pairwise(bounds))
        bounds = [
            low + (high - low) * n // pieces
            for (low, high), pieces in zip(pairwise(bounds), more, strict=True)
            for n in range(pieces)
        ] + [end]
    return bounds
