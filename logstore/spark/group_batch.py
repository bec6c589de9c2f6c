"""A batch of a group: its records, and the two ways to commit it: by itself, or with a Delta sink.

Invariants of a batch with a sink:

- **The sink decides.** The group's positions are those in the sink's newest commit of the group. ``consumer_offsets``
  is a mirror of them, written after it: it may be behind or ahead, and readers that know the sink do not go by it.
- A batch begins where the sink ends, and its commit follows from the commit that it was planned with. Of two runs that
  planned the same, one commits, and the other finds out.
- What is mirrored is what the log of the sink says after the write, whoever wrote it.
- So a crash at any point leaves the batch in the sink with its offsets, or neither. In ``consumer_offsets`` it is at
  most seen late.

Without a sink, nothing is committed before the block that works on the batch has ended well.
"""

import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from logstore.client.admin import Admin
from logstore.errors import InvalidRequestError, UnknownGroupError, UnknownTopicError, UnknownTopicIdError
from logstore.spark import delta_sink
from logstore.spark.delta_sink import DeltaSink, SaveMode, check_write
from logstore.spark.offset_ranges import GroupRange
from logstore.spark.sink_offsets import (
    GroupCommit,
    MirroredOffset,
    TopicRanges,
    commit_of_mirror,
    mirror_metadata,
    next_commit,
    remaining,
)
from logstore.spark.topic_frame import client_id
from logstore.spark.topic_view import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


class SinkState(NamedTuple):
    """A sink and the group's newest commit in it, which says where the group is."""

    sink: DeltaSink
    table_id: str | None
    last: GroupCommit


class GroupBatch:
    """A group's next batch: ``df``, made of ``ranges``; a context manager that commits when its block ends without an
    error.
    """

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
        # One for all attempts: a second one after an error then knows what the first has written.
        self._writer = uuid.uuid4().hex
        self._is_committed = False

    @property
    def is_empty(self) -> bool:
        """Whether there are no offsets left to read."""
        return all(r.start == r.end for r in self.ranges)

    def commit(self) -> None:
        """Commit the ends of ``ranges``; returns when that is durable. Once is enough: later calls do nothing.

        Raises InvalidRequestError for a batch from storage alone, or with records that are not in its sink,
        UnknownTopicIdError if a topic was deleted and made again, and the errors of ``logstore.client`` for a store
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
        if ends:
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
        """Write the batch to a Delta table, exactly once, and commit its offsets with it. Whether this call wrote it.

        The table's own commit says which offsets it holds (``userMetadata``); then the group's committed offsets are
        set to that. False if there was nothing to write, or another run of the group has written: this batch is not in
        the table then, and what it has beyond the other's is in the next batch.

        ``path_or_table`` may be left out where ``group_read`` had ``sink=``. ``df`` is written in the place of
        ``batch.df``, and must be made of it; it needs ``sink=``. ``mode`` "overwrite" replaces the rows of the table.
        ``options`` are those of Spark's Delta writer, ``{"mergeSchema": "true"}`` for example.

        Raises InvalidRequestError for arguments that cannot be, or a batch that does not begin where the table ends;
        SinkOffsetsUnknownError, CommitStateUnknownError; what Spark raises for a write that fails; and the errors of
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
        newest, is_own = state.sink.write_once(self.df if df is None else df, commit, mode, options)
        delta_sink.reached("found")
        if not is_own:
            log.warning(
                "group %s: another run has written to %s; this batch was left out, and the next one goes on from there",
                self.group,
                state.sink.name,
            )
        self._mirror(state.sink, state.table_id, newest)
        delta_sink.reached("mirrored")
        return is_own

    def _state_of(self, path_or_table: str | os.PathLike[str] | None, df: "DataFrame | None") -> SinkState:
        """The state of a sink that the batch was planned without; what the sink has already leaves the batch."""
        if path_or_table is None or df is not None:
            reason = "write_delta needs a sink" if df is None else "a batch with df= must begin where the sink ends"
            raise InvalidRequestError(f"group {self.group}: {reason}: give sink= to group_read")
        # From here on the end of the block commits nothing by itself.
        sink = self._sink = DeltaSink(self.df.sparkSession, path_or_table)
        state = sink_state(sink, self.group)
        if self._bootstrap and state.table_id is not None and not state.last.txn_version:
            with connect(self._bootstrap, client_id(self.df.sparkSession)) as store:
                state = mirrored_state(state, store)
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
                    _commit_positions(store, self.group, commit.topics, metadata)
            except Exception as error:
                error.add_note(
                    f"The records of group {self.group} are in {sink.name}; only the group's committed offsets could "
                    "not be set. The next batch goes on from the sink."
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


def sink_state(sink: DeltaSink, group: str) -> SinkState:
    """What the sink's log says. Transaction version 0: nothing."""
    table_id = sink.table_id()
    commits = sink.commits(group) if table_id is not None else []
    return SinkState(sink, table_id, commits[0] if commits else GroupCommit(group))


def mirrored_state(state: SinkState, store: Admin) -> SinkState:
    """The state of a sink whose log says nothing, by what the group's committed offsets say of the sink."""
    group = state.last.group
    try:
        offsets = store.group_offsets(group)
    except UnknownGroupError:
        return state
    topic_ids = {topic: store.describe_topic(topic).topic_id for topic in {o.topic for o in offsets}}
    found = [MirroredOffset(o.topic, topic_ids[o.topic], o.partition, o.offset, o.metadata) for o in offsets]
    return state._replace(last=commit_of_mirror(group, state.table_id or "", found))


def _commit_positions(store: Admin, group: str, topics: Sequence[TopicRanges], metadata: str) -> None:
    """One request, so that the mirror is that of one commit. Topics that are no more have no offsets."""

    def commit(living: Iterable[TopicRanges]) -> None:
        ends = {(t.topic, p): end for t in living for p, (_, end) in t.ranges.items()}
        if ends:
            store.commit_offsets(group, ends, metadata=metadata, topic_ids={t.topic: t.topic_id for t in living})

    try:
        if len({t.topic for t in topics}) == len(topics):
            return commit(topics)
    except UnknownTopicError as error:
        log.warning("group %s: committed offsets of a topic that was deleted are left out: %s", group, error)
    return commit([t for t in topics if _is_there(store, t)])


def _is_there(store: Admin, topic: TopicRanges) -> bool:
    try:
        return store.describe_topic(topic.topic).topic_id == topic.topic_id
    except UnknownTopicError:
        return False
