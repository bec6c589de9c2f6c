"""Commits the offsets of one group.

Invariants: commits reach the store one at a time in the order in which they were asked for, so that an earlier one that
was slow never goes over a later one. Each names the topics that its offsets are of: none is committed to a topic that
took another's name.
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
        # The offset, and the id of the topic that it is of.
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
        """Begin to commit; the future has the outcome, which ``callback`` is given too, in another thread.

        ``topic_ids``, by name: of topics that are not there the offset counts for whichever has the name.
        """
        return self._worker.submit(self._commit, dict(offsets), dict(topic_ids), metadata, callback)

    def commit_automatically(self, positions: Offsets, topic_ids: Mapping[str, str]) -> Future[None]:
        """Begin to commit those that are not what was committed last, but for topics that were made again."""
        return self._worker.submit(self._commit_current, self._uncommitted(positions, topic_ids), dict(topic_ids))

    def commit_when_due(self, positions: Callable[[], tuple[Offsets, Mapping[str, str]]]) -> None:
        """Begin to commit ``positions()``, with the topics' ids, if it is time. Raises why the commit before failed,
        unless it was a failure that passes: then the next one makes up for it.
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
        """Wait for the commits that were asked for; with ``cancel`` only for the one under way."""
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
            # All or none were to be committed.
            self._send(self._without_replaced(offsets, topic_ids), topic_ids)

    def _send(self, offsets: Offsets, topic_ids: Mapping[str, str], metadata: str = "") -> None:
        if offsets:
            self._admin.commit_offsets(self._group_id, offsets, metadata=metadata, topic_ids=topic_ids)
            self._committed.update({p: (offset, topic_ids.get(p.topic)) for p, offset in offsets.items()})

    def _without_replaced(self, offsets: Offsets, topic_ids: Mapping[str, str]) -> Offsets:
        """Without topics that were made again: they are ``replaced``."""
        names = {partition.topic for partition in offsets} & topic_ids.keys()
        replaced = {found for name in names if self._is_replaced(found := TopicIdentity(name, topic_ids[name]))}
        self._replaced |= replaced
        left_out = {topic.name for topic in replaced}
        return {partition: offset for partition, offset in offsets.items() if partition.topic not in left_out}

    def _is_replaced(self, topic: TopicIdentity) -> bool:
        try:
            return self._admin.describe_topic(topic.name).topic_id != topic.topic_id
        except UnknownTopicError:
            return False  # it may be once there is one again
