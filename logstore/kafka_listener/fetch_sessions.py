"""Fetch sessions (KIP-227): a client names its partitions once, and then only changes; the responses have only
partitions with news.

Owns the cache of sessions. As in Kafka, a new session replaces one that was not used for two minutes, or a smaller one
that is older than two minutes; if there is none, the client gets no session, and continues with full fetches.
Invariant: all sessions together have at most ``partitions_max`` partitions. No I/O, and no own clock.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from logstore.clock import Clock
from logstore.entropy import random_bits
from logstore.errors import FetchSessionNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError
from logstore.kafka_protocol.messages import ZERO_UUID, FetchRequest, FetchResponse

#: Kafka's ``max.incremental.fetch.session.cache.slots``.
SESSIONS_MAX: Final = 1_000
#: Each partition takes about 400 bytes.
PARTITIONS_MAX: Final = 200_000
#: Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS.
EVICTION_S: Final = 120.0

_NO_SESSION: Final = 0
_INITIAL_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1

#: The topic as the request names it, by its id (bytes) or its name, and the partition.
Key = tuple[bytes | str, int]
Asked = FetchRequest.FetchPartition
PartitionResponse = FetchResponse.PartitionData


def next_epoch(epoch: int) -> int:
    """Return the epoch of a session's fetch after that with ``epoch``."""
    return 1 if epoch == _EPOCH_MAX else epoch + 1


class CachedPartition:
    """A partition of a session, with its client's request and the ends that the client got last."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: Asked, high_watermark: int = -1, log_start_offset: int = -1) -> None:
        self.asked = asked
        self.high_watermark = high_watermark
        self.log_start_offset = log_start_offset

    def has_sent(self, high_watermark: int, log_start_offset: int) -> bool:
        """Return whether these are the ends that the client got last."""
        return high_watermark == self.high_watermark and log_start_offset == self.log_start_offset

    def must_send(self, response: PartitionResponse) -> bool:
        """Return whether the client has to get the result, and record that it did. An error has the ends -1, so the
        next result is always sent.
        """
        has_sent = self.has_sent(response.high_watermark, response.log_start_offset)
        self.high_watermark, self.log_start_offset = response.high_watermark, response.log_start_offset
        return (
            bool(response.error_code) or bool(response.records) or not has_sent or response.diverging_epoch.epoch >= 0
        )


class Session:
    """``partitions`` are in the order in which they are read."""

    def __init__(self, session_id: int, partitions: dict[Key, CachedPartition], now: float, *, by_id: bool) -> None:
        self.id = session_id
        self.partitions = partitions
        self.by_id = by_id
        self.epoch = next_epoch(_INITIAL_EPOCH)
        self.created = now
        self.used = now
        #: The number of partitions as the cache counts it.
        self.size = len(partitions)
        #: Identifies the requested partitions: another object after each change.
        self.state = object()


class Fetching:
    """One fetch: its partitions in the order in which they are read, and its response."""

    def __init__(
        self, sessions: "FetchSessions", partitions: dict[Key, Asked], *, by_id: bool, wants_session: bool
    ) -> None:
        self._sessions = sessions
        self._asked = partitions
        self._by_id = by_id
        self._wants_session = wants_session

    @property
    def partitions(self) -> Iterable[tuple[Key, Asked]]:
        return self._asked.items()

    def has_sent(self, key: Key, high_watermark: int, log_start_offset: int) -> bool:  # noqa: ARG002 - nothing yet
        """Return whether the client of a session got these ends of the partition last: then only records and errors are
        sent.
        """
        return False

    def response(self, responses: Iterable[tuple[Key, PartitionResponse]], throttle_ms: int = 0) -> FetchResponse:
        """Return the response. ``responses`` are those of all partitions, in order; those that it ``has_sent`` may
        be left out.
        """
        sent = list(responses)
        session_id = _NO_SESSION
        if self._wants_session:
            cached = {
                key: CachedPartition(self._asked[key], response.high_watermark, response.log_start_offset)
                for key, response in sent
            }
            session_id = self._sessions.add(cached, by_id=self._by_id)
        return _response(session_id, sent, throttle_ms)

    def throttled(self, throttle_ms: int) -> FetchResponse:
        """Return the response without a partition, which makes the client wait."""
        return FetchResponse(throttle_time_ms=throttle_ms)


class _IncrementalFetching(Fetching):
    def __init__(self, sessions: "FetchSessions", session: Session) -> None:
        super().__init__(sessions, {}, by_id=session.by_id, wants_session=False)
        self._session = session
        self._epoch = session.epoch

    @property
    def partitions(self) -> Iterator[tuple[Key, Asked]]:
        return ((key, cached.asked) for key, cached in self._session.partitions.items())

    def has_sent(self, key: Key, high_watermark: int, log_start_offset: int) -> bool:
        cached = self._session.partitions.get(key)  # It is None if another fetch has come and removed it.
        return cached is not None and cached.has_sent(high_watermark, log_start_offset)

    def response(self, responses: Iterable[tuple[Key, PartitionResponse]], throttle_ms: int = 0) -> FetchResponse:
        session = self._session
        if session.epoch != self._epoch:
            return self._came_twice()
        sent = []
        for key, response in responses:
            cached = session.partitions[key]
            if cached.must_send(response):
                sent.append((key, response))
                if response.records:  # The other partitions come first the next time.
                    del session.partitions[key]
                    session.partitions[key] = cached
        return _response(session.id, sent, throttle_ms)

    def throttled(self, throttle_ms: int) -> FetchResponse:
        if self._session.epoch != self._epoch:
            return self._came_twice()
        return FetchResponse(session_id=self._session.id, throttle_time_ms=throttle_ms)

    def _came_twice(self) -> FetchResponse:
        """Return the response if another fetch of the session has begun meanwhile."""
        return FetchResponse(session_id=self._session.id, error_code=InvalidFetchSessionEpochError.kafka_code)


class FetchSessions:
    def __init__(self, clock: Clock, *, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX) -> None:
        self._clock = clock
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        #: The session that was used last comes last.
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self.num_partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, *, by_id: bool) -> Fetching:
        """Return the fetch of ``request``. With ``by_id`` it names topics by their ids.

        Raises FetchSessionNotFoundError, InvalidFetchSessionEpochError, FetchSessionTopicIdError.
        """
        asked = {
            (topic.topic_id if by_id else topic.topic, one.partition): one
            for topic in request.topics
            for one in topic.partitions
        }
        if request.session_epoch in (_INITIAL_EPOCH, _FINAL_EPOCH):
            self._remove(request.session_id)
            return Fetching(self, asked, by_id=by_id, wants_session=request.session_epoch == _INITIAL_EPOCH)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionNotFoundError(f"There is no fetch session {request.session_id}: fetch all partitions.")
        if session.epoch != request.session_epoch:
            raise InvalidFetchSessionEpochError(
                f"Fetch session {session.id} is at epoch {session.epoch}, not {request.session_epoch}."
            )
        if session.by_id != by_id:
            raise FetchSessionTopicIdError(f"Fetch session {session.id} names topics in another way: begin a new one.")
        return self._next_of(session, request, asked)

    def find(self, request: FetchRequest, *, by_id: bool) -> Session | None:
        """Return the session whose next fetch is ``request``; None if it has none, or ``begin`` would refuse it.
        Nothing is changed.
        """
        session = self._sessions.get(request.session_id)
        if session is None or session.epoch != request.session_epoch or session.by_id != by_id:
            return None
        return session

    def _next_of(self, session: Session, request: FetchRequest, asked: dict[Key, Asked]) -> Fetching:
        # An earlier fetch that has no response yet has lost its turn, even if the session ends here.
        session.epoch = next_epoch(session.epoch)
        partitions = session.partitions
        if asked or request.forgotten_topics_data:
            session.state = object()
        for key, one in asked.items():
            if (cached := partitions.get(key)) is None:
                partitions[key] = CachedPartition(one)
            else:
                cached.asked = one
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if session.by_id else topic.topic
            for partition in topic.partitions:
                partitions.pop((name, partition), None)
        if not partitions:
            self._remove(session.id)
            return Fetching(self, asked, by_id=session.by_id, wants_session=False)
        self.num_partitions += len(partitions) - session.size
        session.size = len(partitions)
        session.used = self._clock.monotonic()
        self._sessions.move_to_end(session.id)
        if self.num_partitions > self._partitions_max:
            self._remove(session.id)
            raise FetchSessionNotFoundError(
                f"Fetch sessions have {self._partitions_max} partitions together at the most: fetch all partitions."
            )
        return _IncrementalFetching(self, session)

    def add(self, partitions: dict[Key, CachedPartition], *, by_id: bool) -> int:
        """Return the id of a new session; 0 if there is no room for it."""
        now = self._clock.monotonic()
        if not self._make_room(len(partitions), now):
            return _NO_SESSION
        session_id = 0
        while session_id == _NO_SESSION or session_id in self._sessions:
            session_id = random_bits(31)
        self._sessions[session_id] = Session(session_id, partitions, now, by_id=by_id)
        self.num_partitions += len(partitions)
        return session_id

    def _make_room(self, size: int, now: float) -> bool:
        if size > self._partitions_max:
            return False
        while len(self._sessions) >= self._sessions_max or self.num_partitions + size > self._partitions_max:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used > EVICTION_S:
                self._remove(oldest.id)
                continue
            old = [one for one in self._sessions.values() if now - one.created > EVICTION_S]
            smallest = min(old, key=lambda one: one.size, default=None)
            if smallest is None or smallest.size >= size:
                return False
            self._remove(smallest.id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.num_partitions -= session.size


def _response(session_id: int, responses: Iterable[tuple[Key, PartitionResponse]], throttle_ms: int) -> FetchResponse:
    """Return the response. Adjacent partitions of one topic are grouped."""
    topics: list[FetchResponse.FetchableTopicResponse] = []
    before: bytes | str | None = None
    partitions: list[PartitionResponse] = []
    for (topic, _), response in responses:
        if topic != before:
            before, partitions = topic, []
            name, topic_id = (topic, ZERO_UUID) if isinstance(topic, str) else ("", topic)
            topics.append(FetchResponse.FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions))
        partitions.append(response)
    return FetchResponse(throttle_time_ms=throttle_ms, session_id=session_id, responses=topics)
