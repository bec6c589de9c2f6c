"""Commits the offsets of one group.

Invariants: commits reach the store one at a time, in the order of the calls, so that a slow earlier commit never
overwrites a later one. Each names the ids of its topics: no offset is committed to a topic that took over another's
name. A member of the group commits only partitions that it has held from the call until the response.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from logstore.client.admin import Admin
from logstore.client.consumer.group_member import GroupMember
from logstore.client.metadata import TopicIdentity, TopicPartition
from logstore.errors import (
    CommitFailedError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from logstore.protocol.members.membership import Hold

Offsets = Mapping[TopicPartition, int]
CommitCallback = Callable[[Offsets, LogStoreError | None], None]


class OffsetCommitter:
    """The committer of one consumer. ``commit_when_due`` commits every ``interval_s`` seconds; None: never."""

    def __init__(self, admin: Admin, group_id: str, member: GroupMember, *, interval_s: float | None) -> None:
        self._admin = admin
        self._member = member
        self._group_id = group_id
        self._interval_s = interval_s
        self._due = time.monotonic() + (interval_s or 0)
        # For each partition: the offset committed last, its topic's id, and the generation since which it is held.
        self._committed: dict[TopicPartition, tuple[int, str | None, int | None]] = {}
        self._automatic: Future[None] | None = None
        self._replaced: set[TopicIdentity] = set()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="logstore-commit")

    @property
    def automatic(self) -> bool:
        return self._interval_s is not None

    def commit(
        self,
        offsets: Offsets,
        topic_ids: Mapping[str, str],
        metadata: str = "",
        callback: CommitCallback | None = None,
    ) -> Future[None]:
        """Begin to commit; the future has the outcome. ``callback`` also receives it, in another thread.

        ``topic_ids`` are by name; an offset without an id is for any topic of that name.
        """
        return self._worker.submit(
            self._commit, dict(offsets), dict(topic_ids), metadata, callback, self._hold(offsets)
        )

    def commit_automatically(self, positions: Offsets, topic_ids: Mapping[str, str]) -> Future[None]:
        """Begin to commit the positions that changed since the last commit, except in topics created again."""
        hold = self._hold(positions)
        if isinstance(hold, CommitFailedError):
            positions, hold = {}, None  # the next poll reports that the partitions are lost
        offsets = self._uncommitted(positions, topic_ids, hold)
        return self._worker.submit(self._commit_current, offsets, dict(topic_ids), hold)

    def commit_when_due(self, positions: Callable[[], tuple[Offsets, Mapping[str, str]]]) -> None:
        """Begin to commit ``positions()``, with the topics' ids, if it is time.

        Raises the error of the commit before, unless a later commit may succeed.
        """
        now = time.monotonic()
        if self._interval_s is None or now < self._due or (self._automatic and not self._automatic.done()):
            return
        self._due = now + self._interval_s
        last, self._automatic = self._automatic, self.commit_automatically(*positions())
        # A position beyond the end of its partition, or in a topic that was created again, is about to be reset. The
        # rebalance listener is notified of a commit that the group refuses.
        passing = (OffsetOutOfRangeError, UnknownTopicIdError, CommitFailedError)
        error = last.exception() if last else None
        if error and not isinstance(error, passing) and not getattr(error, "retriable", False):
            raise error

    def replaced(self) -> set[TopicIdentity]:
        """Return the topics of commits that were found, since the last call, to have been deleted and created again."""
        found = set()
        while self._replaced:
            found.add(self._replaced.pop())
        return found

    def close(self, *, cancel: bool) -> None:
        """Wait for all queued commits; with ``cancel`` only for the one under way."""
        self._worker.shutdown(cancel_futures=cancel)

    def _uncommitted(self, offsets: Offsets, topic_ids: Mapping[str, str], hold: Hold | None) -> Offsets:
        return {
            partition: offset
            for partition, offset in offsets.items()
            if self._committed.get(partition) != _commit_of(partition, offset, topic_ids, hold)
        }

    def _hold(self, offsets: Offsets) -> Hold | CommitFailedError | None:
        try:
            return self._member.hold(offsets)
        except CommitFailedError as error:
            return error

    # ---- in the thread ----------------------------------------------------------------------------------------------

    def _commit(
        self,
        offsets: Offsets,
        topic_ids: Mapping[str, str],
        metadata: str,
        callback: CommitCallback | None,
        hold: Hold | CommitFailedError | None,
    ) -> None:
        failure: LogStoreError | None = None
        try:
            if isinstance(hold, CommitFailedError):
                raise hold
            self._send(offsets, topic_ids, hold, metadata)
        except LogStoreError as error:
            failure = error
            if isinstance(error, UnknownTopicIdError):
                self._without_replaced(offsets, topic_ids)
            raise
        finally:
            if callback is not None:
                callback(offsets, failure)

    def _commit_current(self, offsets: Offsets, topic_ids: Mapping[str, str], hold: Hold | None) -> None:
        try:
            self._send(offsets, topic_ids, hold)
        except UnknownTopicIdError:
            # A commit is all or nothing, so send it again without the topics that were created again.
            self._send(self._without_replaced(offsets, topic_ids), topic_ids, hold)

    def _send(self, offsets: Offsets, topic_ids: Mapping[str, str], hold: Hold | None, metadata: str = "") -> None:
        if offsets:
            self._member.commit(
                hold,
                lambda member: self._admin.commit_offsets(
                    self._group_id, offsets, metadata=metadata, topic_ids=topic_ids, member=member
                ),
            )
            self._committed.update({p: _commit_of(p, offset, topic_ids, hold) for p, offset in offsets.items()})

    def _without_replaced(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        """Return the offsets without those of topics that were created again, and add these to ``replaced``."""
        names = {partition.topic for partition in offsets} & topic_ids.keys()
        replaced = {found for name in names if self._is_replaced(found := TopicIdentity(name, topic_ids[name]))}
        self._replaced |= replaced
        left_out = {topic.name for topic in replaced}
        return {partition: offset for partition, offset in offsets.items() if partition.topic not in left_out}

    def _is_replaced(self, topic: TopicIdentity) -> bool:
        try:
            return self._admin.describe_topic(topic.name).topic_id != topic.topic_id
        except UnknownTopicError:
            return False  # no topic has the name now; one may be created


def _commit_of(
    partition: TopicPartition, offset: int, topic_ids: Mapping[str, str], hold: Hold | None
) -> tuple[int, str | None, int | None]:
    return offset, topic_ids.get(partition.topic), None if hold is None else hold[partition]
