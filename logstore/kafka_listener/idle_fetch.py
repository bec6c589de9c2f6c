"""The wait of a fetch that finds nothing new, without a task around it.

The fetch of a session that names nothing asks again for what the one before asked for (KIP-227): all that a consumer at
the end of its partitions sends. The tasks of a thousand such fetches, each with all that it has found, are memory that
is cold when their time is over: most of what an idle fetch would cost. Invariants: nothing is answered, and nothing of
the session changes, before the wait ends; then the request is answered as if it had come at that moment.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from logstore.broker.context import RequestContext
from logstore.broker.purgatory import Permissions, WantedPartition, end_of_wait, refuse
from logstore.errors import LogStoreError
from logstore.kafka_listener.fetch import TOPIC_IDS_VERSION, topic_of
from logstore.kafka_listener.fetch_sessions import CachedPartition, Session
from logstore.kafka_listener.leader_epochs import UNDEFINED
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import FetchRequest
from logstore.log.isolation import ISOLATION_LEVELS, Isolation
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic

#: The session of a fetch that waits longer might be taken for one that is not used any more.
_WAIT_MS_MAX: Final = 60_000
#: A connection holds what it knows of so many partitions.
_PARTITIONS_MAX: Final = 200


class _Watched(NamedTuple):
    """A partition of the session, and what its client asked for and was told last."""

    wanted: WantedPartition
    cached: CachedPartition
    leader_epoch: int

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to be told."""
        wanted = self.wanted
        log = wanted.log
        return (
            not wanted.may_have_changed
            and self.leader_epoch in (UNDEFINED, log.leader_epoch)
            and self.cached.has_told(log.high_watermark, log.log_start_offset)
        )


class IdleFetch:
    """For the fetches of one connection, of which one waits at a time. ``ended`` is called when its wait is over, with
    whether there may be something to tell; then ``request`` is to be answered.
    """

    def __init__(self, store: KafkaStore, ended: Callable[[bool], None]) -> None:
        self._store = store
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        # The partitions of the fetch before, and of what session they are.
        self._watched: Sequence[_Watched] = ()
        self._session: Session | None = None
        self._changes = 0
        self._isolation_level = Isolation.READ_UNCOMMITTED.value
        self._permissions: Permissions | None = None
        # The wait.
        self._sources: Sequence[Permissions | PartitionLog] = ()
        self._news: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._end = 0.0

    def begin(self, request: FetchRequest, version: int, context_of: Callable[[], RequestContext]) -> bool:
        """Wait, if the request is a fetch that may find nothing until its time is over. Otherwise False, and nothing is
        done.
        """
        if request.topics or request.forgotten_topics_data or not 0 < request.max_wait_ms <= _WAIT_MS_MAX:
            return False
        session = self._store.fetch_sessions.unchanged(request, by_id=version >= TOPIC_IDS_VERSION)
        if session is None:
            return False
        level = request.isolation_level
        if not (self._is_watched(session, level) or self._watch(session, level, context_of())) or not self._is_idle:
            return False
        self._wait(request.max_wait_ms / 1000)
        return True

    def _is_watched(self, session: Session, isolation_level: int) -> bool:
        return (
            session is self._session
            and session.changes == self._changes
            and isolation_level == self._isolation_level
            and self._permissions is not None
            and self._permissions.are_all_given
        )

    def _watch(self, session: Session, isolation_level: int, context: RequestContext) -> bool:
        """Look the partitions of the session up; whether all can be read."""
        self._session = None
        if len(session.partitions) > _PARTITIONS_MAX or isolation_level not in ISOLATION_LEVELS:
            return False
        isolation = Isolation(isolation_level)
        topics: dict[bytes | str, Topic] = {}
        watched = []
        try:
            for (name, partition), cached in session.partitions.items():
                if cached.asked.last_fetched_epoch != UNDEFINED:
                    return False  # by its history, more than records may be news
                if (topic := topics.get(name)) is None:
                    topic = topics[name] = topic_of(self._store, context, name)
                wanted = WantedPartition(topic, topic.partition(partition), cached.asked.fetch_offset, isolation)
                watched.append(_Watched(wanted, cached, cached.asked.current_leader_epoch))
        except LogStoreError:
            return False  # the fetch tells it
        self._permissions = Permissions(self._store.broker.authorizer, context)
        if refuse([one.wanted for one in watched], self._permissions):
            return False
        self._session, self._changes, self._isolation_level = session, session.changes, isolation_level
        self._watched = watched
        self._sources = [self._permissions, *(one.wanted.log for one in watched)]
        return True

    @property
    def _is_idle(self) -> bool:
        assert self._permissions is not None
        return self._permissions.are_all_given and all(one.is_idle for one in self._watched)

    # ---- the wait ---------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        now = self._loop.time()
        self._end = now + seconds
        self._news = news = self._loop.create_future()
        news.add_done_callback(self._news_came)
        for source in self._sources:
            source.add_reader(news)
        self._timer = self._loop.call_at(end_of_wait(now, self._end), self._time_is_over)

    def _news_came(self, news: "asyncio.Future[bool]") -> None:
        if news is self._news:
            self.cancel()
            self._ended(True)

    def _time_is_over(self) -> None:
        self.cancel()
        # The log may have a new start, which wakes nobody.
        self._ended(not self._is_idle)

    @property
    def ms_left(self) -> int:
        """Of the wait that has ended."""
        return max(0, math.ceil((self._end - self._loop.time()) * 1000))

    def cancel(self) -> None:
        """Wait no longer; ``ended`` is not called."""
        if self._news is None:
            return
        for source in self._sources:
            source.remove_reader(self._news)
        self._news = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
