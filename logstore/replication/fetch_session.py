"""The leader's side of replication: the fetches of one follower over one connection (KIP-227, KIP-595).

The connection is the session: a fetch names only partitions that are new or whose row has changed. A row is the
follower's acknowledgement, because its fetch offset is durable there. A fetch is answered when there is something to
send, together with what is being fsynced at that moment. Otherwise it is answered when its time is over; then changed
high watermarks are also sent.

Invariants: a position is believed only after it was compared with the leader's own history, in the leader's epoch (C7).
Only durable frames leave (C6), as they are stored.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from logstore.clock import Clock
from logstore.errors import (
    FencedLeaderEpochError,
    LogStoreError,
    OffsetMovedToTieredStorageError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
)
from logstore.filesystem import Buffer
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import FrameLocation
from logstore.journal.journal import Journal
from logstore.limits import KIB
from logstore.log.delayed_fetch import DelayedFetch
from logstore.log.following import diverged_at
from logstore.log.partition_log import PartitionLog
from logstore.replication.peer_listener import PeerSession
from logstore.replication.protocol import Body, Fetch, FetchedRow, FetchRow, Message, decode_fetch, encode_fetched

FindLog = Callable[[UUID, int], PartitionLog | None]
_NOT_SENT: Final = (-1, -1, -1)
# A response of at most this many bytes waits for frames that are being fsynced; a larger one costs more to send than a
# further round trip. It waits about as long as a round takes on a slow disk, so that a disk that hangs does not hold up
# stored frames.
_SMALL_BYTES: Final = 256 * KIB
_TOGETHER_S: Final = 0.005


class _Row:
    """A partition of the session."""

    __slots__ = ("asked", "log", "sent", "wake")

    def __init__(self, asked: FetchRow, log: PartitionLog, wake: Callable[[], None]) -> None:
        self.asked = asked
        self.log = log
        self.wake = wake
        #: High watermark, sealed offset and log start offset, as the follower knows them.
        self.sent = _NOT_SENT

    @property
    def ends(self) -> tuple[int, int, int]:
        return self.log.high_watermark, self.log.sealed_offset, self.log.log_start_offset

    @property
    def has_frames(self) -> bool:
        return self.log.log_end_offset > self.asked.fetch_offset

    def require_answerable(self) -> None:
        """Raise the error for the row if this broker does not lead in the epoch that the row names, or if its journal
        has freed what follows the position.
        """
        log, epoch = self.log, self.asked.leader_epoch
        if log.closed is not None:
            raise UnknownTopicIdError(f"The topic of {log.topic}-{log.partition} is gone.")
        if epoch < log.leader_epoch:
            raise FencedLeaderEpochError(f"Epoch {epoch} of {log.topic}-{log.partition} is over: {log.leader_epoch}.")
        if epoch > log.leader_epoch:
            raise UnknownLeaderEpochError(f"Epoch {epoch} of {log.topic}-{log.partition} is not known here yet.")
        log.require_leader()
        log.require_served()
        begin = log.sealed_offset if log.index.base_offset is None else log.index.base_offset
        if self.asked.fetch_offset < begin:
            raise OffsetMovedToTieredStorageError(
                f"Offsets below {begin} of {log.topic}-{log.partition} are in its table."
            )


class FetchSession:
    """Answers the fetches of one follower. ``find`` returns the partition log of a topic id and partition. ``followed``
    is called with each position.
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: int,
        journal: Journal,
        clock: Clock,
        find: FindLog,
        followed: Callable[[PartitionLog, int], None],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._journal = journal
        self._clock = clock
        self._find = find
        self._followed = followed
        self._rows: dict[int, _Row] = {}
        #: Session indexes of rows that may have news, in the order of their turns.
        self._dirty: dict[int, None] = {}
        #: The fetch that waits for news, or for the end of its time.
        self._delayed: DelayedFetch | None = None

    def close(self) -> None:
        """End the session, because the connection has ended."""
        for index in list(self._rows):
            self._drop(index)

    def _drop(self, index: int) -> None:
        row = self._rows.pop(index, None)
        self._dirty.pop(index, None)
        if row is not None:
            follower = row.log.followers.get(self._broker_id)
            if follower is not None and follower.wake is row.wake:
                follower.wake = None

    # ---- a fetch ----------------------------------------------------------------------------------------------------

    async def fetch(self, fetch: Fetch) -> list[Buffer]:
        """Return the body of the response. Raises StorageError if the journal cannot be read."""
        for index in fetch.forgotten:
            self._drop(index)
        answers: dict[int, FetchedRow] = {}
        for asked in fetch.rows:
            if (answer := self._update(asked)) is not None:
                answers[asked.session_index] = answer
        if not answers:
            await self._wait(fetch)
        sent = await self._take_frames(fetch.max_bytes, answers)
        return encode_fetched([*answers.values(), *(row for row, _ in sent)], [p for _, pieces in sent for p in pieces])

    def _update(self, asked: FetchRow) -> FetchedRow | None:
        """Apply a row of the request. Return a response row if it is an error or a divergence."""
        index = asked.session_index
        log = self._find(asked.topic_id, asked.partition)
        if log is None:
            self._drop(index)
            return _error(index, UnknownTopicIdError(f"No topic here has the id {asked.topic_id}."))
        row = self._rows.get(index)
        if row is None or row.log is not log:
            self._drop(index)
            row = self._rows[index] = _Row(asked, log, lambda: self._woken(index))
        row.asked = asked
        try:
            row.require_answerable()
            diverged = diverged_at(log, asked.fetch_offset, asked.last_fetched_epoch)
            if diverged is not None:
                row.sent = _NOT_SENT
                self._dirty.pop(index, None)  # frames in the same response would follow the diverging ones
                return FetchedRow(index, 0, *row.ends, *diverged, 0)
            follower = log.require_leader().fetched(
                self._broker_id, self._broker_epoch, asked.fetch_offset, self._clock.monotonic()
            )
        except LogStoreError as error:
            self._drop(index)
            return _error(index, error)
        follower.wake = row.wake
        self._dirty[index] = None
        self._followed(log, self._broker_id)
        return None

    def _woken(self, index: int) -> None:
        self._dirty[index] = None
        if self._delayed is not None:
            self._delayed.wake()

    async def _wait(self, fetch: Fetch) -> None:
        """Wait for frames or an error, at most until the fetch's time is over. Then rows whose offsets changed are also
        sent.
        """
        if not self._has_any_news() and not await self._news_within(fetch.max_wait_ms / 1000):
            # A row may also have frames: the wake-up may have gone to another session of the follower, whose connection
            # was ending.
            for index, row in self._rows.items():
                if row.sent != row.ends or row.has_frames:
                    self._dirty[index] = None
            return
        # Frames that are being written go with the stored ones: a response for them alone would cost both brokers
        # another round.
        if self._is_small and (reported := self._journal.group_reported()) is not None:
            await asyncio.wait((reported,), timeout=_TOGETHER_S)

    @property
    def _is_small(self) -> bool:
        """True if there is little to send."""
        rows = [self._rows[index] for index in self._dirty]
        return all(row.log.index.bytes_from(row.asked.fetch_offset) <= _SMALL_BYTES for row in rows)

    async def _news_within(self, seconds: float) -> bool:
        """Wait for news; False if there are none in time."""
        end = asyncio.get_running_loop().time() + seconds
        while True:
            self._delayed = delayed = DelayedFetch((), end)
            try:
                came = await delayed.news
            finally:
                delayed.cancel()
                self._delayed = None
            if self._has_any_news():
                return True
            if not came:
                return False

    def _has_any_news(self) -> bool:
        while self._dirty:
            index = next(iter(self._dirty))
            row = self._rows[index]
            if row.has_frames or not row.log.is_leader or row.log.leader_epoch != row.asked.leader_epoch:
                return True
            del self._dirty[index]
        return False

    async def _take_frames(
        self, max_bytes: int, answers: dict[int, FetchedRow]
    ) -> list[tuple[FetchedRow, list[memoryview]]]:
        """Return the dirty rows with their frames: up to ``max_bytes``, but at least one frame if there is any."""
        found: list[tuple[int, _Row, list[FrameLocation], tuple[int, int, int]]] = []
        left = max_bytes
        for index in list(self._dirty):
            row = self._rows[index]
            if left <= 0:
                break
            del self._dirty[index]
            try:
                row.require_answerable()
            except LogStoreError as error:
                self._drop(index)
                answers[index] = _error(index, error)
                continue
            locations = _next_frames(row, min(left, row.asked.partition_max_bytes), anyway=left == max_bytes)
            if not locations and row.has_frames:
                self._dirty[index] = None  # its turn comes with the next response
                continue
            ends = row.ends
            if locations or row.sent != ends:
                found.append((index, row, locations, ends))
                left -= sum([length for _, length in locations])
        pieces = await self._read([location for _, _, locations, _ in found for location in locations])
        sent: list[tuple[FetchedRow, list[memoryview]]] = []
        at = 0
        for index, row, locations, ends in found:
            frames = [piece for frame in pieces[at : at + len(locations)] for piece in frame or ()]
            at += len(locations)
            if locations and not frames:  # freed in the meantime: copied forward, or sealed
                self._woken(index)
                continue
            row.sent = ends
            sent.append((FetchedRow(index, 0, *ends, -1, -1, sum(map(len, frames))), frames))
        return sent

    async def _read(self, locations: list[FrameLocation]) -> list[list[memoryview] | None]:
        """Return the bytes of frames, from memory or else from files. Every entry is None if a frame in the files was
        freed.
        """
        pieces = [self._journal.recent_frame(location) for location in locations]
        missing = [at for at, piece in enumerate(pieces) if piece is None]
        if missing:
            try:
                stored = await asyncio.to_thread(self._journal.read_stored, [locations[at] for at in missing])
            except JournalRangeFreedError:
                return [None] * len(locations)
            for at, data in zip(missing, stored, strict=True):
                pieces[at] = [data]
        return pieces


def _next_frames(row: _Row, max_bytes: int, *, anyway: bool) -> list[FrameLocation]:
    """Return frames after the row's position, up to ``max_bytes``. With ``anyway``, return at least one if there is
    any.
    """
    log = row.log
    taken = log.index.locations_by_length(row.asked.fetch_offset, log.log_end_offset, max_bytes)
    return [] if taken and not anyway and taken[0].length > max_bytes else taken


def _error(index: int, error: LogStoreError) -> FetchedRow:
    return FetchedRow(index, error.kafka_code, -1, -1, -1, -1, -1, 0)


class FetchHandler:
    """Holds the sessions of followers, one for each connection. ``make`` takes the follower's id and broker epoch."""

    def __init__(self, make: Callable[[int, int], FetchSession]) -> None:
        self._make = make
        self._sessions: dict[PeerSession, FetchSession] = {}

    async def fetch(self, session: PeerSession, message: Message) -> Body:
        """Return FETCHED for a FETCH. Raises MalformedMessageError, and the errors of ``FetchSession.fetch``."""
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = self._make(session.broker_id, session.broker_epoch)
            session.on_close(lambda: self._end(session))
        return await found.fetch(decode_fetch(message.body))

    def _end(self, session: PeerSession) -> None:
        self._sessions.pop(session).close()
