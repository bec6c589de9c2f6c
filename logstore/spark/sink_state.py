"""The position of a group in a Delta sink: the newest commit in the sink's log, or, if that has been cleaned, its
mirror in the group's committed offsets.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from logstore.client.admin import Admin
from logstore.errors import UnknownGroupError, UnknownTopicError
from logstore.spark.delta_sink import DeltaSink
from logstore.spark.sink_offsets import GroupCommit, MirroredOffset, TopicRanges, commit_of_mirror

log = logging.getLogger(__name__)


class SinkState(NamedTuple):
    """A sink and the group's newest commit in it, which has the group's position; transaction version 0 means none."""

    sink: DeltaSink
    table_id: str | None
    last: GroupCommit

    @classmethod
    def of(cls, sink: DeltaSink, group: str) -> Self:
        """Return the state that the sink's log shows. Raises as ``DeltaSink.table_id`` and ``commits``."""
        table_id = sink.table_id()
        commits = sink.commits(GroupCommit, group) if table_id is not None else []
        return cls(sink, table_id, commits[0] if commits else GroupCommit(group))

    def by_mirror(self, store: Admin) -> Self:
        """Return the state that the group's committed offsets show, for a sink whose log has no commit."""
        group = self.last.group
        try:
            offsets = store.group_offsets(group)
        except UnknownGroupError:
            return self
        topic_ids = {topic: store.describe_topic(topic).topic_id for topic in {o.topic for o in offsets}}
        found = [MirroredOffset(o.topic, topic_ids[o.topic], o.partition, o.offset, o.metadata) for o in offsets]
        return self._replace(last=commit_of_mirror(group, self.table_id or "", found))


def commit_positions(store: Admin, group: str, topics: Sequence[TopicRanges], metadata: str) -> None:
    """Commit in one request, so that the mirror is that of one commit. Topics that no longer exist are left out."""

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
