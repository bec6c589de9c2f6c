"""Commits the offsets of one group.

Invariants: commits reach the store one at a time in the order in which they were asked for, so that a slow earlier
commit never overwrites a later one. Each names the ids of its topics: no offset is committed to a topic that took
another's name.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from logstore.client.admin import Admin
from logstore.client.metadata import TopicIdentity, TopicPartition
from logstore.errors import LogStoreError, OffsetOutOfRangeError, UnknownTopicError, UnknownTopicIdError

Offsets = Mapping[TopicPartition, int]
CommitCallback = Callable[[Offsets, LogStoreError | None], None]


class OffsetCommitter:
    """``interval_s``: how often ``commit_when_due`` commits; None for never."""

    def __init__(self, admin: Admin, group_id: str, *, interval_s: float | None) -> None:
        self._admin = admin
        self._group_id = group_id
        self._interval_s = interval_s
        self._due = time.monotonic() + (interval_s or 0)
        # By partition: the offset that was committed last, and its topic's id.
        self._committed: dict[TopicPartition, tuple[int, str | None]] = {}
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
        """Begin to commit; the future has the outcome. ``callback`` gets it too, in another thread.

        ``topic_ids`` are by name; without an id the offset is for whichever topic has the name.
        """
        return self._worker.submit(self._commit, dict(offsets), dict(topic_ids), metadata, callback)

    def commit_automatically(self, positions: Offsets, topic_ids: Mapping[str, str]) -> Future[None]:
        """Begin to commit the positions that have changed since the last commit, without those in topics that were made
        again.
        """
        return self._worker.submit(self._commit_current, self._uncommitted(positions, topic_ids), dict(topic_ids))

    def commit_when_due(self, positions: Callable[[], tuple[Offsets, Mapping[str, str]]]) -> None:
        """Begin to commit ``positions()``, with the topics' ids, if it is time. Raises the error of the commit before,
        unless a later commit may succeed.
        """
        now = time.monotonic()
        if self._interval_s is None or now < self._due or (self._automatic and not self._automatic.done()):
            return
        self._due = now + self._interval_s
        last, self._automatic = self._automatic, self.commit_automatically(*positions())
        # A position beyond the end of its partition, or in a topic that was made again, is about to be reset.
        passing = (OffsetOutOfRangeError, UnknownTopicIdError)
        error = last.exception() if last else None
        if error and not isinstance(error, passing) and not getattr(error, "retriable", False):
            raise error

    def replaced(self) -> set[TopicIdentity]:
        """The topics of commits that were found, since the last call, to have been deleted and made again."""
        found = set()
        while self._replaced:
            found.add(self._replaced.pop())
        return found

    def close(self, *, cancel: bool) -> None:
        """Wait for all queued commits; with ``cancel`` only for the one under way."""
        self._worker.shutdown(cancel_futures=cancel)

    def _uncommitted(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        return {
            partition: offset
            for partition, offset in offsets.items()
            if self._committed.get(partition) != (offset, topic_ids.get(partition.topic))
        }

    # ---- in the thread ----------------------------------------------------------------------------------------------

    def _commit(
        self, offsets: Offsets, topic_ids: Mapping[str, str], metadata: str, callback: CommitCallback | None
    ) -> None:
        failure: LogStoreError | None = None
        try:
            self._send(offsets, topic_ids, metadata)
        except LogStoreError as error:
            failure = error
            if isinstance(error, UnknownTopicIdError):
                self._without_replaced(offsets, topic_ids)
            raise
        finally:
            if callback is not None:
                callback(offsets, failure)

    def _commit_current(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> None:
        try:
            self._send(offsets, topic_ids)
        except UnknownTopicIdError:
            # A commit is all or nothing: send it again without the topics that were made again.
            self._send(self._without_replaced(offsets, topic_ids), topic_ids)

    def _send(self, offsets: Offsets, topic_ids: Mapping[str, str], metadata: str = "") -> None:
        if offsets:
            self._admin.commit_offsets(self._group_id, offsets, metadata=metadata, topic_ids=topic_ids)
            self._committed.update({p: (offset, topic_ids.get(p.topic)) for p, offset in offsets.items()})

    def _without_replaced(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        """The offsets without those of topics that were made again, which become ``replaced``."""
        names = {partition.topic for partition in offsets} & topic_ids.keys()
        replaced = {found for name in names if self._is_replaced(found := TopicIdentity(name, topic_ids[name]))}
        self._replaced |= replaced
        left_out = {topic.name for topic in replaced}
        return {partition: offset for partition, offset in offsets.items() if partition.topic not in left_out}

    def _is_replaced(self, topic: TopicIdentity) -> bool:
        try:
            return self._admin.describe_topic(topic.name).topic_id != topic.topic_id
        except UnknownTopicError:
            return False  # no topic of the name; one may be made again
