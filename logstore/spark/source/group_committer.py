"""Commits the positions of a streaming query to a consumer group, so that its lag is visible like any consumer's.

The query has its position in its checkpoint, and never reads it from the group. So commits are best effort: a thread
makes them, the newest position wins, and an error is a warning, after which the next trigger tries again.

Invariant: only positions from the query are committed: ends of completed batches, in the order of the batches.
"""

import logging
import threading
from collections.abc import Callable

from logstore.client.admin import Admin
from logstore.errors import LogStoreError, UnknownGroupError
from logstore.spark.source.offset_json import TopicPartition
from logstore.spark.source.stream_offset import StreamOffset

log = logging.getLogger(__name__)


class GroupCommitter:
    """The committer of one query. ``connect`` opens a separate connection to the store; it may fail."""

    def __init__(self, group: str, connect: Callable[[], Admin]) -> None:
        self._group = group
        self._connect = connect
        self._admin: Admin | None = None
        self._changed = threading.Condition()
        self._offered: StreamOffset | None = None
        self._is_busy = False
        self._thread: threading.Thread | None = None
        # Used only by the thread: the group's committed offset and the topic's id, by partition.
        self._committed: dict[TopicPartition, tuple[int, str]] = {}
        # The kinds of errors logged since the last commit: True for a fault of this program.
        self._warned: set[bool] = set()

    def offer(self, position: StreamOffset) -> None:
        """Commit ``position`` soon, in place of one that has not been committed yet."""
        with self._changed:
            self._offered = position
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="logstore-group-commit", daemon=True)
                self._thread.start()

    def flush(self, seconds: float) -> None:
        """Wait until nothing is left to commit, at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._offered is None and not self._is_busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._offered is not None)
                position, self._offered, self._is_busy = self._offered, None, True
            assert position is not None
            try:
                self._commit(position)
                self._warned.clear()
            except Exception as error:  # noqa: BLE001 - the query goes on whatever it is, and so does this thread
                self._warn(error)

    def _commit(self, position: StreamOffset) -> None:
        wanted = {place: (offset, position.topic_ids.get(place[0], "")) for place, offset in position.offsets.items()}
        new = {place for place, value in wanted.items() if self._committed.get(place) != value}
        if not new:
            return
        if self._admin is None:
            self._admin = self._connect()
        is_deleted = bool(self._committed) and not self._exists(self._admin)
        if is_deleted:
            # A commit creates the group again. Without the other partitions it would seem to have read nothing of them.
            new = set(wanted)
        offsets = {place: wanted[place][0] for place in sorted(new)}
        self._admin.commit_offsets(self._group, offsets, topic_ids=position.topic_ids)
        if is_deleted:
            log.warning("group %s was deleted while a query commits its offsets to it; it is made again", self._group)
        self._committed = wanted

    def _exists(self, admin: Admin) -> bool:
        try:
            admin.group_offsets(self._group)
        except UnknownGroupError:
            return False
        return True

    def _warn(self, error: Exception) -> None:
        """Log a warning once until a commit succeeds.

        An error that comes neither from the store nor from the system is also logged once: it is a fault of this
        program, so its traceback is shown.
        """
        is_fault = not isinstance(error, (LogStoreError, OSError))
        if is_fault in self._warned:
            return
        self._warned.add(is_fault)
        log.warning(
            "offsets of a query are not committed to group %s: %s; the query continues, and each trigger tries again",
            self._group,
            error,
            exc_info=error if is_fault else None,
        )
