"""Commits the offsets of one group.

Invariant: commits reach the store one at a time in the order in which they were asked for, so that an earlier one that
was slow never goes over a later one.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from logstore.client.admin import Admin
from logstore.client.metadata import TopicPartition
from logstore.errors import LogStoreError, OffsetOutOfRangeError

Offsets = Mapping[TopicPartition, int]
CommitCallback = Callable[[Offsets, LogStoreError | None], None]


class OffsetCommitter:
    """``interval_s``: how often ``commit_when_due`` commits; None for never."""

    def __init__(self, admin: Admin, group_id: str, *, interval_s: float | None) -> None:
        self._admin = admin
        self._group_id = group_id
        self._interval_s = interval_s
        self._due = time.monotonic() + (interval_s or 0)
        self._committed: dict[TopicPartition, int] = {}
        self._automatic: Future[None] | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="logstore-commit")

    @property
    def automatic(self) -> bool:
        return self._interval_s is not None

    def commit(self, offsets: Offsets, metadata: str = "", callback: CommitCallback | None = None) -> Future[None]:
        """Begin to commit; the future has the outcome, which ``callback`` is given too, in another thread."""
        return self._worker.submit(self._commit, dict(offsets), metadata, callback)

    def commit_when_due(self, positions: Callable[[], Offsets]) -> None:
        """Begin to commit ``positions()`` if it is time. Raises why the commit before failed, unless it was a failure
        that passes: then the next one makes up for it.
        """
        now = time.monotonic()
        if self._interval_s is None or now < self._due or (self._automatic and not self._automatic.done()):
            return
        self._due = now + self._interval_s
        last, self._automatic = self._automatic, None
        if offsets := self.uncommitted(positions()):
            self._automatic = self.commit(offsets)
        # A position beyond the end of a topic that was made anew is about to be reset.
        error = last.exception() if last else None
        if error and not isinstance(error, OffsetOutOfRangeError) and not getattr(error, "retriable", False):
            raise error

    def uncommitted(self, offsets: Offsets) -> Offsets:
        """Those that are not what was committed last."""
        return {partition: offset for partition, offset in offsets.items() if self._committed.get(partition) != offset}

    def close(self, *, cancel: bool) -> None:
        """Wait for the commits that were asked for; with ``cancel`` only for the one under way."""
        self._worker.shutdown(cancel_futures=cancel)

    def _commit(self, offsets: Offsets, metadata: str, callback: CommitCallback | None) -> None:
        failure: LogStoreError | None = None
        try:
            if offsets:
                self._admin.commit_offsets(self._group_id, offsets, metadata=metadata)
            self._committed.update(offsets)
        except LogStoreError as error:
            failure = error
            raise
        finally:
            if callback is not None:
                callback(offsets, failure)
