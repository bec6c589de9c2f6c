"""The wait of a fetch that finds nothing new, without a task around it.

A consumer at the end of its partitions sends fetches that name nothing: they repeat the request of their session
(KIP-227). A task for each of a thousand such fetches, with its coroutines and all that it has found, is memory that is
cold when the time is over, and most of the cost of an idle fetch. Invariants: the session learns of the fetch when it
comes, and the fetch gets one response; a wait ends when anything happens to one of the partitions, or when its time is
over.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from logstore.broker.context import RequestContext
from logstore.broker.fetch.purgatory import Permissions, WantedPartition, refuse
from logstore.broker.quotas import QuotaKind
from logstore.errors import LogStoreError
from logstore.kafka_listener.fetch import TOPIC_IDS_VERSION, topic_of
from logstore.kafka_listener.fetch_sessions import CachedPartition, Fetching, Session
from logstore.kafka_listener.leader_epochs import UNDEFINED
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.messages import FetchRequest
from logstore.log.delayed_fetch import DelayedFetch, Source, end_of_wait
from logstore.log.isolation import ISOLATION_LEVELS, Isolation
from logstore.log.topic import Topic

#: A session with more partitions does not wait here, because their state would take too much memory.
_PARTITIONS_MAX: Final = 200


class _Watched(NamedTuple):
    """A partition of a session, and what its client asked for and got last."""

    wanted: WantedPartition
    cached: CachedPartition
    leader_epoch: int

    @property
    def is_idle(self) -> bool:
        """True if there is nothing to report."""
        wanted = self.wanted
        log = wanted.log
        return (
            not wanted.may_have_changed
            and self.leader_epoch in (UNDEFINED, log.leader_epoch)
            and self.cached.has_sent(log.high_watermark, log.log_start_offset)
        )


class IdleFetch:
    """The wait for the fetches of one connection, one at a time.

    ``ended(fetching, has_news)`` is called when a wait is over: the fetch then gets its response, with its partitions
    if there may be news, or with none.
    """

    def __init__(self, store: KafkaStore, ended: Callable[[Fetching, bool], None]) -> None:
        self._store = store
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        # The last wait's partitions, the state of their session, and the isolation level. They are kept for the next
        # fetch, unless something has happened.
        self._watched: Sequence[_Watched] = ()
        self._sources: Sequence[Source] = ()
        self._permissions: Permissions | None = None
        self._state: object = None
        self._isolation_level = -1
        # The present wait.
        self._fetching: Fetching | None = None
        self._delayed: DelayedFetch | None = None
        self._end = 0.0

    def begin(self, request: FetchRequest, version: int, context: RequestContext) -> bool:
        """Wait, if the request is the fetch of a session that names nothing, and there is nothing to report. Otherwise
        return False: the fetch has not begun.
        """
        waits = False
        try:
            waits = self._begin(request, version, context)
        except Exception:  # noqa: BLE001 - the handler of the fetch meets it, and reports it
            return False
        finally:
            if not waits:
                self.cancel()
                self._forget()
        return waits

    def _begin(self, request: FetchRequest, version: int, context: RequestContext) -> bool:
        if request.topics or request.forgotten_topics_data or request.max_wait_ms <= 0:
            return False
        by_id = version >= TOPIC_IDS_VERSION
        sessions = self._store.fetch_sessions
        session = sessions.find(request, by_id=by_id)
        if session is None or not 0 < len(session.partitions) <= _PARTITIONS_MAX:
            return False
        self._store.broker.admission.require_quota(context, QuotaKind.FETCHED_BYTES)
        level = request.isolation_level
        if not (self._is_watched(session, level) or self._watch(session, level, context)) or not self._is_idle:
            return False
        self._fetching = sessions.begin(request, by_id=by_id)
        self._wait(request.max_wait_ms / 1000)
        return True

    def _is_watched(self, session: Session, isolation_level: int) -> bool:
        return (
            session.state is self._state
            and isolation_level == self._isolation_level
            and self._permissions is not None
            and self._permissions.are_all_given
        )

    def _watch(self, session: Session, isolation_level: int, context: RequestContext) -> bool:
        """Look up the partitions of the session, and return whether all can be read."""
        if isolation_level not in ISOLATION_LEVELS:
            return False
        isolation = Isolation(isolation_level)
        topics: dict[bytes | str, Topic] = {}
        watched = []
        try:
            for (name, partition), cached in session.partitions.items():
                if cached.asked.last_fetched_epoch != UNDEFINED:
                    return False  # The history of the partition may also be news.
                if (topic := topics.get(name)) is None:
                    topic = topics[name] = topic_of(self._store, context, name)
                wanted = WantedPartition(topic, topic.partition(partition), cached.asked.fetch_offset, isolation)
                watched.append(_Watched(wanted, cached, cached.asked.current_leader_epoch))
        except LogStoreError:
            return False
        permissions = Permissions(self._store.broker.authorizer, context)
        if refuse([one.wanted for one in watched], permissions):
            return False
        self._state, self._isolation_level = session.state, isolation_level
        self._watched, self._permissions = watched, permissions
        self._sources = [permissions, *(one.wanted.log for one in watched)]
        return True

    def _forget(self) -> None:
        self._watched, self._sources, self._permissions, self._state = (), (), None, None

    @property
    def _is_idle(self) -> bool:
        return all(one.is_idle for one in self._watched)

    # ---- the wait ---------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        now = self._loop.time()
        self._end = now + seconds
        self._delayed = DelayedFetch(self._sources, end_of_wait(now, self._end))
        self._delayed.news.add_done_callback(self._over)

    def _over(self, news: "asyncio.Future[bool]") -> None:
        fetching = self._fetching
        if fetching is None or self._delayed is None or news is not self._delayed.news:
            return
        has_news = True
        try:
            has_news = news.result() or not self._is_idle  # A new log start wakes nobody.
        finally:
            self.cancel()
            if has_news:
                self._forget()
            self._ended(fetching, has_news)

    @property
    def ms_left(self) -> int:
        """The milliseconds left of the wait that has ended."""
        return max(0, math.ceil((self._end - self._loop.time()) * 1000))

    def cancel(self) -> None:
        """Wait no longer; ``ended`` is not called."""
        if self._delayed is not None:
            self._delayed.cancel()
        self._fetching = self._delayed = None
