"""The streaming side of the source: the next batch of a query, and its position.

One reader exists for each query, in a Python process beside the driver; tasks get a copy that only reads slices. The
position of a query is in Spark's checkpoint, so that a restart continues there and each offset is in one batch; the
reader keeps nothing that a restart needs.

Spark (4.2) calls ``latestOffset(start)`` when all batches up to ``start`` are complete, and once more at the end of a
run with ``Trigger.AvailableNow``; ``commit(end)`` comes later, after the next batch was made, and ``stop()`` does not
come when a query ends. So ``start`` is what is committed to the group.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from logstore.clock import Clock, SystemClock
from logstore.errors import LogStoreError
from logstore.spark.source.admission import TriggerDelay, admitted
from logstore.spark.source.data_loss import report_data_loss
from logstore.spark.source.group_committer import GroupCommitter
from logstore.spark.source.options import ReadOptions, check_stream
from logstore.spark.source.planning import Planner
from logstore.spark.source.positions import starting_offsets
from logstore.spark.source.slice_reader import read_slice
from logstore.spark.source.slices import Slice
from logstore.spark.source.stream_offset import StreamOffset
from logstore.spark.source.topics import SourceTopic, SourceTopics, connect_store
from logstore.spark.source.unread import capped, latest, look, planned
from logstore.spark.worker import one_line_errors

if TYPE_CHECKING:
    import pyarrow as pa

_CLOCK = SystemClock()
#: Seconds that the end of a run with Trigger.AvailableNow waits for the commit to the group.
_LAST_COMMIT_SECONDS = 5.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a query. Raises InvalidRequestError for options that only a batch accepts."""

    def __init__(self, options: ReadOptions, clock: Clock = _CLOCK) -> None:
        check_stream(options)
        self._options = options
        self._topics = SourceTopics(options)
        self._planner = Planner(options)
        self._delay = TriggerDelay(options.min_offsets_per_trigger, options.max_trigger_delay_ms, clock)
        self._committer = GroupCommitter(options.group, lambda: connect_store(options)) if options.group else None
        self._initial: StreamOffset | None = None
        self._no_initial: LogStoreError | None = None
        self._target: list[SourceTopic] | None = None
        self._seen: list[SourceTopic] = []
        # The losses reported for the last batch.
        self._reported: set[str] = set()
        # The batch made from the latest look at the topics.
        self._made: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task needs: it only reads slices."""
        return {"_options": self._options}

    # ---- where the query begins, and how far it may go ------------------------------------------------------------

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of the first batch.

        Spark asks twice before that batch, and again when it repeats it. The batch contains its start. So an error
        waits, behind an empty offset, for the first call that needs the position.
        """
        if self._initial is None and self._no_initial is None:
            try:
                topics = self._topics.look()
                offsets = starting_offsets(self._options, topics, self._topics.offsets_of_times, streaming=True)
            except LogStoreError as error:
                self._no_initial = error
            else:
                self._initial = StreamOffset(offsets, {topic.topic: topic.topic_id for topic in topics})
        return {} if self._initial is None else self._initial.json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a read limit. Spark takes only one; ``latestOffset`` knows the other."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @one_line_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._topics.look(missing_ok=True)

    @one_line_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch, or ``start`` itself if there is none.

        Raises DataLossError with failOnDataLoss. Without it, ``partitions`` warns, which is called once for each batch.
        """
        position = self._position(start)
        if self._committer:
            self._committer.offer(position)
        self._seen = self._topics.look(missing_ok=True)
        found = look(position, self._seen if self._target is None else capped(self._seen, self._target))
        if self._options.fail_on_data_loss:
            for loss in found.losses:
                report_data_loss(loss, fail=True)
        is_first = self._initial is not None and start == self._initial.json()
        if not is_first:
            # The repeated first batch is over, and its start has nothing to do with the current records.
            self._initial = None
        is_limited = not isinstance(limit, ReadAllAvailable)
        # A run with Trigger.AvailableNow reads only the current records, so it waits for no more.
        if is_limited and self._target is None and self._delay.holds(found.unread):
            return start
        ends = admitted(found.unread, limit.max_rows if isinstance(limit, ReadMaxRows) else None) | found.absent
        is_same = all(position.is_of(topic, topic_id) for topic, topic_id in found.topic_ids.items())
        if ends == position.offsets and is_same and not is_first:
            if self._target is not None and self._committer:
                self._committer.flush(_LAST_COMMIT_SECONDS)
            return start
        self._made = StreamOffset(ends, found.topic_ids, self._initial if is_first else None).json()
        return self._made

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the ends of the logs when the last batch was made, for ``lastProgress``."""
        if not self._seen:
            return None
        return StreamOffset(latest(self._seen), {topic.topic: topic.topic_id for topic in self._seen}).json()

    def _position(self, start: dict[str, Any]) -> StreamOffset:
        if not start and self._no_initial is not None:
            raise self._no_initial
        return StreamOffset.of(start)

    # ---- a batch ----------------------------------------------------------------------------------------------------

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Slice]:
        """Return the slices of a batch. Raises DataLossError with failOnDataLoss, and as ``Planner.slices``."""
        until = StreamOffset.of(end)
        if end != self._made:
            # The batch was made before a restart.
            self._seen = self._topics.look(missing_ok=True)
        ranges, losses = planned(until.initial or self._position(start), until, self._seen)
        for loss in losses:
            # A loss shows again in each batch.
            if loss not in self._reported:
                report_data_loss(loss, fail=self._options.fail_on_data_loss)
        self._reported = set(losses)
        return self._planner.slices(ranges)

    def read(self, partition: Slice) -> Iterator["pa.RecordBatch"]:  # type: ignore[override]
        return read_slice(partition, self._options)

    def stop(self) -> None:
        self._topics.close()
