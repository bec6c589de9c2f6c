"""A batch of a group: its records, and the two ways to commit it, by itself or with a Delta sink.

Invariants of a batch with a sink:

- **The sink decides.** The group's positions are those in the sink's newest commit of the group. ``consumer_offsets``
  is a mirror of them, written afterwards: it may be behind or ahead, and readers that know the sink ignore it.
- A batch begins where the sink ends, and its commit follows the commit that it was planned with. Of two runs that
  planned the same batch, one commits, and the other notices.
- The mirror gets what the log of the sink has after the write, whichever run wrote it. An empty batch writes nothing,
  and mirrors the commit that it was planned with: the run that made it may have died before mirroring it.
- So a crash at any point leaves the batch in the sink with its offsets, or neither. In ``consumer_offsets`` it appears
  late at worst.

Without a sink, nothing is committed before the block that works on the batch has ended well.
"""

import logging
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from logstore.errors import InvalidRequestError, UnknownTopicIdError
from logstore.spark import delta_sink
from logstore.spark.delta_sink import DeltaSink, SaveMode, check_write
from logstore.spark.offset_ranges import GroupRange
from logstore.spark.sink_offsets import GroupCommit, mirror_metadata, next_commit, remaining, with_empty_batch
from logstore.spark.sink_state import SinkState, commit_positions
from logstore.spark.topic_frame import client_id
from logstore.spark.topic_view import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


class GroupBatch:
    """A group's next batch: ``df``, made of ``ranges``. Its ``with`` block commits when it ends without an error."""

    def __init__(
        self,
        group: str,
        frame: "Callable[[Sequence[GroupRange]], DataFrame]",
        ranges: Sequence[GroupRange],
        topic_ids: Mapping[str, str],
        bootstrap: str,
        state: SinkState | None = None,
    ) -> None:
        self.group = group
        self.df = frame(ranges)
        self.ranges = tuple(ranges)
        self._frame = frame
        self._topic_ids = topic_ids
        self._bootstrap = bootstrap
        self._state = state
        self._sink = state.sink if state else None
        # All attempts share one, so that a second one after an error recognises what the first has written.
        self._writer = uuid.uuid4().hex
        self._is_committed = False

    @property
    def is_empty(self) -> bool:
        """True if there are no offsets left to read."""
        return all(r.start == r.end for r in self.ranges)

    def commit(self) -> None:
        """Commit the ends of ``ranges``; return when that is durable. Later calls do nothing.

        With a sink, this can only commit an empty batch: it sets the group's committed offsets to those in the sink, if
        they differ. ``write_delta`` commits any other batch.

        Raises InvalidRequestError for a batch read from storage alone, or with records that are not in its sink,
        UnknownTopicIdError if a topic was deleted and created again, and the errors of ``logstore.client`` for a store
        that cannot be reached.
        """
        if self._is_committed:
            return
        if not self._bootstrap:
            raise InvalidRequestError(
                f"group {self.group}: a batch that was read from storage alone cannot be committed; to commit, "
                "give bootstrap="
            )
        if self._sink is not None and not self.is_empty:
            raise InvalidRequestError(
                f"group {self.group}: the records of this batch are not in {self._sink.name}: write_delta commits them"
            )
        ends = {(r.topic, r.partition): r.end for r in self.ranges if r.end != r.committed}
        if ends and self._state is not None and self._state.last.txn_version:
            last = with_empty_batch(self._state.last, self.ranges, self._topic_ids)
            self._mirror(self._state.sink, self._state.table_id, last)
        elif ends:
            with connect(self._bootstrap, client_id(self.df.sparkSession)) as store:
                try:
                    store.commit_offsets(self.group, ends, topic_ids=self._topic_ids)
                except UnknownTopicIdError as error:
                    raise UnknownTopicIdError(
                        f"group {self.group} cannot commit: a topic was deleted and made again since this batch was "
                        f"made; make another one ({error})"
                    ) from None
        self._is_committed = True

    def write_delta(
        self,
        path_or_table: str | os.PathLike[str] | None = None,
        mode: SaveMode = "append",
        df: "DataFrame | None" = None,
        options: Mapping[str, str] | None = None,
    ) -> bool:
        """Write the batch to a Delta table, exactly once, and commit its offsets with it. Return True if this call
        wrote it.

        The table's commit contains the offsets (``userMetadata``); then the group's committed offsets are set to them.
        Returns False if there was nothing to write, or another run of the group has written: then this batch is not in
        the table, and any records that the other's lacks are in the next batch.

        ``path_or_table`` may be left out if ``group_read`` had ``sink=``. ``df`` is written in place of ``batch.df``,
        and must be derived from it; it needs ``sink=``. ``mode`` "overwrite" replaces the rows of the table.
        ``options`` are those of Spark's Delta writer, ``{"mergeSchema": "true"}`` for example.

        Raises InvalidRequestError for wrong arguments, or a batch that does not begin where the table ends;
        SinkOffsetsUnknownError, CommitStateUnknownError; Spark's error for a write that fails; and the errors of
        ``logstore.client`` if the batch is in the table and only the group's committed offsets could not be set.
        """
        check_write(mode, options)
        if self._is_committed:
            raise InvalidRequestError(f"group {self.group}: this batch was committed already; make another one")
        state = self._state or self._state_of(path_or_table, df)
        if path_or_table is not None and os.fspath(path_or_table) != state.sink.name:
            raise InvalidRequestError(
                f"group {self.group}: this batch was made for the sink {state.sink.name}, not for {path_or_table}"
            )
        if self.is_empty:
            return False
        commit = next_commit(state.last, self.ranges, self._topic_ids, self._writer)
        delta_sink.reached("planned")
        commits = state.sink.write_once(self.df if df is None else df, commit, mode, options)
        is_own = any(c.writer == commit.writer for c in commits)
        delta_sink.reached("found")
        if not is_own:
            log.warning(
                "group %s: another run has written to %s; this batch was left out, and the next one continues "
                "from there",
                self.group,
                state.sink.name,
            )
        self._mirror(state.sink, state.table_id, commits[0])
        delta_sink.reached("mirrored")
        return is_own

    def _state_of(self, path_or_table: str | os.PathLike[str] | None, df: "DataFrame | None") -> SinkState:
        """Return the state of a sink that the batch was planned without; records that the sink has leave the batch."""
        if path_or_table is None or df is not None:
            reason = "write_delta needs a sink" if df is None else "a batch with df= must begin where the sink ends"
            raise InvalidRequestError(f"group {self.group}: {reason}: give sink= to group_read")
        # From here on the end of the block commits nothing by itself.
        sink = self._sink = DeltaSink(self.df.sparkSession, path_or_table)
        state = SinkState.of(sink, self.group)
        if self._bootstrap and state.table_id is not None and not state.last.txn_version:
            with connect(self._bootstrap, client_id(self.df.sparkSession)) as store:
                state = state.by_mirror(store)
        ranges = tuple(remaining(state.last, self.ranges, self._topic_ids))
        if ranges != self.ranges:
            log.warning("group %s: %s has records of this batch already; they are left out", self.group, sink.name)
            self.ranges, self.df = ranges, self._frame(ranges)
            if self.is_empty:
                self._mirror(sink, state.table_id, state.last)
        return state

    def _mirror(self, sink: DeltaSink, table_id: str | None, commit: GroupCommit) -> None:
        """Set the group's committed offsets to those of a commit of the sink."""
        if self._bootstrap:
            try:
                metadata = mirror_metadata(table_id or sink.table_id() or "", commit.txn_version)
                with connect(self._bootstrap, client_id(self.df.sparkSession)) as store:
                    commit_positions(store, self.group, commit.topics, metadata)
            except Exception as error:
                error.add_note(
                    f"The records of group {self.group} are in {sink.name}; only the group's committed offsets "
                    "could not be set. The next batch continues from the sink."
                )
                raise
        self._is_committed = True

    def __enter__(self) -> Self:
        if not self._bootstrap and self._sink is None:
            log.warning("group %s reads from storage alone: its offsets cannot be committed", self.group)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None or not self._bootstrap or self._is_committed:
            return
        if self._sink is not None and not self.is_empty:
            log.warning("group %s: this batch was not written to %s: nothing is committed", self.group, self._sink.name)
            return
        self.commit()
