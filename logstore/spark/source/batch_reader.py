"""A batch read of the source: offsets are fixed when Spark plans the query, and tasks read their slices.

Spark plans once for a DataFrame, however often it is evaluated, and slices name files. So each task first checks
whether another writer has changed records of the table since: then the DataFrame is refused, as those of
``read_offsets`` are.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from logstore.spark.history_check import HistoryReadError, KnownHistory, changed_records
from logstore.spark.source.options import ReadOptions, check_batch
from logstore.spark.source.planning import Planner
from logstore.spark.source.positions import batch_ranges
from logstore.spark.source.pushed_filters import PushedFilters, from_times
from logstore.spark.source.slice_reader import read_slice
from logstore.spark.source.slices import Slice, TopicRange
from logstore.spark.source.topics import SourceTopics
from logstore.spark.worker import one_line_errors


class BatchReader(DataSourceReader):
    """A reader for ``options``. Raises InvalidRequestError for those that a batch does not accept."""

    def __init__(self, options: ReadOptions) -> None:
        check_batch(options)
        self._options = options
        self._filters = PushedFilters()

    @one_line_errors()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices. Raises as ``SourceTopics``, ``batch_ranges`` and ``Planner.slices``."""
        return Planner(self._options).slices(self._ranges(), self._filters.times)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a slice with ``read_slice``. Raises HistoryReadError if another writer has changed the table since."""
        # Spark creates its own partition if there is none to read.
        if not isinstance(partition, Slice):
            return
        if partition.files:
            with one_line_errors():
                _require_unchanged(partition)
        yield from read_slice(partition, self._options)

    def _ranges(self) -> list[TopicRange]:
        topics = SourceTopics(self._options)
        try:
            ranges = batch_ranges(self._options, topics.look(), topics.offsets_of_times)
            ranges = self._filters.narrow(ranges)
            times = self._filters.times
            if times is not None and times.first_ms is not None:
                first = {(r.topic, r.partition): times.first_ms for r in ranges}
                ranges = from_times(ranges, topics.offsets_of_times(first))
            return ranges
        finally:
            topics.close()


def _require_unchanged(part: Slice) -> None:
    from logstore.delta.actions import OWN_PREFIX

    known = KnownHistory(part.topic, part.topic_id, part.table, part.version, False, OWN_PREFIX)
    if why := changed_records(known):
        raise HistoryReadError(f"{why} since this DataFrame was planned; make the DataFrame again")


class FilteredBatchReader(BatchReader):
    """A batch reader that Spark's filters narrow, with the option ``pushFilters``.

    Spark 4.2 keeps the narrowed read for every later query of the same ``load()``: ``df.where(...).count()`` and then
    ``df.count()`` return the same number. So this is for a DataFrame with one query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        return self._filters.push(filters)
