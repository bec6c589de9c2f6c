"""The follower's side of replication: one connection to a leader, one fetch outstanding, for all partitions it leads.

A round: ask with the durable ends of the partitions that have changed, append all frames of the response to the journal
as one group, wait until they are durable, ask again. So each request acknowledges the response before it.

Invariants: a response is applied only to a log that still follows the epoch, and whose end has not moved since the
request (C7). A log is truncated by epochs, never to the high watermark. Frames that the leader's journal no longer has
come from the topic's table (``replica_bootstrap``).
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from logstore.errors import (
    CorruptionError,
    FencedLeaderEpochError,
    LogStoreError,
    NotLeaderOrFollowerError,
    OffsetMovedToTieredStorageError,
    StorageFullError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
)
from logstore.filesystem import Buffer
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.log.following import require_follows, truncation_end
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.log.truncation import truncate
from logstore.replication.protocol import (
    Body,
    Fetch,
    FetchedRow,
    FetchRow,
    MessageType,
    decode_fetched,
    encode_fetch,
    split_frames,
)

log = structlog.stdlib.get_logger(__name__)

_MOVED: Final = OffsetMovedToTieredStorageError.kafka_code
#: The leader and this broker learn of epochs and topics from ZooKeeper in any order.
_NOT_HEARD_YET: Final = frozenset(
    error.kafka_code
    for error in (FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderOrFollowerError, UnknownTopicIdError)
)
_NOT_HEARD_YET_S: Final = 0.05


class Connection(Protocol):
    """A connection to the leader; see ``PeerConnection``."""

    async def request(self, message_type: MessageType, body: Body = b"", timeout_s: float | None = None) -> Buffer: ...

    @property
    def is_stale(self) -> bool:
        """True if this broker has registered again since: the leader must learn which registration asks (KIP-903)."""
        ...

    def close(self) -> None: ...


#: Begins a log again at the end of its table; returns whether that was done.
Reset = Callable[[Topic, PartitionLog, Callable[[], bool]], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class FetcherSettings:
    """Kafka's ``replica.*``, in bytes and seconds."""

    wait_max_ms: int
    partition_bytes_max: int
    response_bytes_max: int
    backoff_s: float
    timeout_s: float


class _Followed:
    """A partition that is fetched here."""

    __slots__ = ("asked", "epoch", "index", "log", "not_before", "topic")

    def __init__(self, index: int, topic: Topic, partition_log: PartitionLog, epoch: int) -> None:
        self.index = index
        self.topic = topic
        self.log = partition_log
        self.epoch = epoch
        #: The end and its epoch last sent to the leader; None if they have to be sent.
        self.asked: tuple[int, int] | None = None
        #: The earliest time of the next request, by the loop's clock.
        self.not_before = 0.0

    @property
    def is_wanted(self) -> bool:
        """True if the log still follows the epoch."""
        log = self.log
        return not log.is_leader and log.leader_epoch == self.epoch and log.closed is None

    @property
    def end(self) -> tuple[int, int]:
        return self.log.log_end_offset, self.log.last_epoch

    @property
    def is_as_asked(self) -> bool:
        """True if a response may be applied (C7)."""
        return self.is_wanted and self.asked == self.end


#: Frames of a partition on their way to the journal, and the response row that they came with.
_Appended = tuple[_Followed, FetchedRow, list[Frame]]


class ReplicaFetcher:
    """Fetches from one leader. ``connect`` opens a connection to the leader's current address."""

    def __init__(
        self,
        leader: int,
        connect: Callable[[], Awaitable[Connection]],
        journal: Journal,
        reset: Reset,
        settings: FetcherSettings,
    ) -> None:
        self._leader = leader
        self._connect = connect
        self._journal = journal
        self._reset = reset
        self._settings = settings
        self._followed: dict[PartitionKey, _Followed] = {}
        self._by_index: dict[int, _Followed] = {}
        #: Partitions to be named in the next request.
        self._changed: dict[int, _Followed] = {}
        self._forgotten: list[int] = []
        self._next_index = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_unreachable = False

    # ---- partitions -------------------------------------------------------------------------------------------------

    def follow(self, topic: Topic, partition_log: PartitionLog, epoch: int) -> None:
        """Fetch the partition from this leader in its epoch."""
        self.unfollow((partition_log.topic_id, partition_log.partition))
        followed = _Followed(self._next_index, topic, partition_log, epoch)
        self._next_index += 1
        self._followed[partition_log.topic_id, partition_log.partition] = followed
        self._by_index[followed.index] = followed
        self._ask(followed)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"fetch from broker {self._leader}")

    def unfollow(self, key: PartitionKey) -> None:
        """Stop fetching the partition."""
        if (followed := self._followed.pop(key, None)) is not None:
            del self._by_index[followed.index]
            self._changed.pop(followed.index, None)
            self._forgotten.append(followed.index)
            followed.asked = None  # a response for it is under way, or being applied

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _ask(self, followed: _Followed, delay_s: float = 0.0) -> None:
        """Name the partition in the next request, or in one after ``delay_s``.

        A partition that was followed again while a response was applied is left out: the leader would wake a row that
        it forgets.
        """
        if self._by_index.get(followed.index) is not followed:
            return
        followed.asked = None
        self._changed[followed.index] = followed
        if delay_s:
            loop = asyncio.get_running_loop()
            followed.not_before = loop.time() + delay_s
            loop.call_later(delay_s, self._wake.set)
        else:
            followed.not_before = 0.0
            self._wake.set()

    # ---- the connection ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            while not self._followed:
                self._wake.clear()
                await self._wake.wait()
            try:
                connection = await self._connect()
                try:
                    self._is_unreachable = False
                    await self._fetch(connection)
                    continue
                finally:
                    connection.close()
            except (LogStoreError, OSError) as error:
                if not self._is_unreachable:
                    self._is_unreachable = True
                    log.warning("replica.leader_unreachable", leader=self._leader, why=str(error))
            except Exception:
                # A follower that stops is worse than one that begins its session again.
                log.exception("replica.fetcher_failed", leader=self._leader)
            await asyncio.sleep(self._settings.backoff_s)

    async def _fetch(self, connection: Connection) -> None:
        """Run a session until it is stale. It begins with all partitions. Raises the errors of ``connection``."""
        self._forgotten.clear()
        for followed in self._by_index.values():
            self._ask(followed)
        settings = self._settings
        in_session: set[int] = set()
        while not connection.is_stale:
            rows = self._rows()
            in_session.update(row.session_index for row in rows)
            in_session.difference_update(self._forgotten)
            if not in_session and not self._forgotten:
                self._wake.clear()
                await self._wake.wait()
                continue
            # Unfollowed partitions are reported at once, so that a leader that is cut off from ZooKeeper learns of the
            # change.
            wait_ms = self._wait_ms() if in_session else 0
            fetch = Fetch(wait_ms, 1, settings.response_bytes_max, rows, self._forgotten)
            self._forgotten = []
            body = await connection.request(
                MessageType.FETCH, encode_fetch(fetch), settings.timeout_s + settings.wait_max_ms / 1000
            )
            await self._apply(decode_fetched(body))

    def _wait_ms(self) -> int:
        """Return how long the leader may wait for records: not longer than until the next partition is due."""
        wait_ms = self._settings.wait_max_ms
        if self._changed:
            soonest = min(followed.not_before for followed in self._changed.values())
            wait_ms = min(wait_ms, max(1, math.ceil((soonest - asyncio.get_running_loop().time()) * 1000)))
        return wait_ms

    def _rows(self) -> list[FetchRow]:
        """Return rows of the partitions whose end has changed since the last request."""
        now = asyncio.get_running_loop().time()
        rows = []
        for index, followed in list(self._changed.items()):
            if not followed.is_wanted:
                del self._changed[index]
                continue
            if followed.not_before > now:
                continue
            if not followed.log.is_quiet:  # appends of this broker's own leadership are still being written
                self._ask(followed, delay_s=0.001)
                continue
            del self._changed[index]
            followed.asked = end, last_epoch = followed.end
            rows.append(
                FetchRow(
                    index,
                    followed.log.topic_id,
                    followed.log.partition,
                    followed.epoch,
                    end,
                    last_epoch,
                    self._settings.partition_bytes_max,
                )
            )
        return rows

    # ---- an answer --------------------------------------------------------------------------------------------------

    async def _apply(self, answers: Sequence[tuple[FetchedRow, memoryview]]) -> None:
        """Hand the frames of all partitions to the journal before any ``await``, so that the checks still hold."""
        appended: list[_Appended] = []
        others: list[tuple[_Followed, FetchedRow]] = []
        for row, data in answers:
            followed = self._by_index.get(row.session_index)
            if followed is None or not followed.is_as_asked:
                continue  # it now follows another leader
            if row.error or row.diverging_end_offset >= 0:
                others.append((followed, row))
            elif len(data):
                try:
                    frames = split_frames(data)
                    require_follows(followed.log, frames)
                except CorruptionError as error:
                    log.error("replica.bad_frames", leader=self._leader, partition=str(followed.log), why=str(error))
                    self._ask(followed, self._settings.backoff_s)
                    continue
                if followed.log.is_quiet:
                    appended.append((followed, row, frames))
            else:
                self._follow_leader(followed, row)
        stored = self._store(appended) if appended else None
        for followed, row in others:
            if not followed.is_as_asked:
                continue
            if row.error:
                await self._answered_with_error(followed, row.error)
            else:
                await self._truncate(followed, row)
        if stored is not None:
            self._stored(appended, await stored)

    def _store(self, appended: Sequence[_Appended]) -> "asyncio.Future[LogStoreError | None]":
        """Append frames of all partitions as one group. The future has the outcome once they are durable."""
        stored: asyncio.Future[LogStoreError | None] = asyncio.get_running_loop().create_future()

        def outcome(locations: Sequence[FrameLocation], error: LogStoreError | None) -> None:
            if error is None:
                at = 0
                for followed, _, frames in appended:
                    for frame in frames:
                        followed.log.stored(frame, locations[at])
                        at += 1
            else:
                for followed, _, frames in appended:
                    for frame in frames:
                        followed.log.failed(frame, error)
            if not stored.done():  # the fetcher was stopped, so no task waits any more
                stored.set_result(error)

        for followed, _, frames in appended:
            followed.log.track_replicated(frames)
        self._journal.store([frame for _, _, frames in appended for frame in frames], outcome)
        return stored

    def _stored(self, appended: Sequence[_Appended], error: LogStoreError | None) -> None:
        """Acknowledge the frames with the next request. Raises ``error``, except for a full disk."""
        for followed, row, _ in appended:
            if error is None:
                self._follow_leader(followed, row)
                self._ask(followed)
            else:
                self._ask(followed, self._settings.backoff_s)
        if error is not None and not isinstance(error, StorageFullError):
            raise error

    def _follow_leader(self, followed: _Followed, row: FetchedRow) -> None:
        partition_log = followed.log
        if followed.is_wanted and row.high_watermark >= 0:
            before = partition_log.sealed_offset
            partition_log.follow_leader(row.high_watermark, row.sealed_offset, row.log_start_offset)
            if partition_log.sealed_offset > before:
                self._journal.release(partition_log.topic_id, partition_log.partition, partition_log.sealed_offset)

    async def _truncate(self, followed: _Followed, row: FetchedRow) -> None:
        partition_log = followed.log
        end = truncation_end(partition_log, row.diverging_epoch, row.diverging_end_offset)
        log.info(
            "replica.truncated",
            partition=f"{partition_log.topic}-{partition_log.partition}",
            leader_epoch=followed.epoch,
            before=partition_log.log_end_offset,
            end=end,
        )
        if end < partition_log.sealed_offset:
            await self._begin_anew(followed)
            return
        try:
            await truncate(self._journal, partition_log, end, followed.epoch)
        except StorageFullError:
            self._ask(followed, self._settings.backoff_s)
        else:
            self._ask(followed)

    async def _answered_with_error(self, followed: _Followed, error: int) -> None:
        if error == _MOVED:
            await self._begin_anew(followed)
            return
        self._ask(followed, _NOT_HEARD_YET_S if error in _NOT_HEARD_YET else self._settings.backoff_s)

    async def _begin_anew(self, followed: _Followed) -> None:
        """Begin the log again at the end of the topic's table."""
        before = followed.end
        try:
            done = await self._reset(
                followed.topic,
                followed.log,
                lambda: followed.is_as_asked and followed.log.is_quiet,
            )
        except LogStoreError as error:
            log.warning("replica.not_reset", partition=str(followed.log), why=str(error))
            done = False
        # A leader that repeats the same response would be asked without a pause.
        self._ask(followed, 0.0 if done and followed.end != before else self._settings.backoff_s)
