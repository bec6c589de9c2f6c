"""The topics of a cluster on each of its brokers: topics that others made appear here, topics that others deleted
disappear.

It compares the cluster state's registrations with what is served, one topic at a time, until both agree; after an error
it tries again later. So nothing depends on an event that came too early, or while the broker was away. The controller
does more: after its election, and now and then, it looks at the tables themselves, since a creator may have died
between table and registration; and it finishes deletions that were begun.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import ClassVar, Final, Protocol
from uuid import UUID

import structlog

from logstore.broker.elsewhere.nobody import Discovery
from logstore.cluster.cluster_state import ADOPT, ClusterState, RegisteredTopic
from logstore.errors import LogStoreError, unforeseen
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.names import is_legal_name

log = structlog.stdlib.get_logger(__name__)

#: Seconds before a retry: the first pause, doubled each time up to the second.
_RETRY_S: Final = 0.2
_RETRY_MAX_S: Final = 30.0
#: Seconds that a request waits for ZooKeeper's state of a topic, and then for an existing topic to be served.
_LOOK_FOR_S: Final = 2.0
_SERVED_S: Final = 10.0
#: Seconds that appends wait for a partition that this broker was elected to lead.
_LED_S: Final = 2.0
#: Seconds between two looks of the controller at all tables.
_LOOK_S: Final = 30.0


class ServedTopics(Protocol):
    """The topics that this broker serves; ``Topics``. Changes are made under its lock."""

    @property
    def lock(self) -> asyncio.Lock: ...

    def served(self, name: str) -> Topic | None: ...

    def is_known(self, name: str, partitions: int = 1) -> bool: ...

    def knows_id(self, topic_id: UUID) -> bool: ...

    def forget_gone(self) -> None:
        """Let the journal free the records of topics that are certainly deleted."""
        ...

    async def appear(self, name: str, topic_id: UUID) -> None:
        """Serve the topic by its table."""
        ...

    async def follow(self, topic: Topic) -> None:
        """Read the topic's table again."""
        ...

    async def look_at_start(self, topic: Topic) -> None:
        """Repair what the leaders of a topic repair after a start."""
        ...

    async def was_removed(self, topic: Topic) -> bool:
        """Return True if the topic's table was removed, as a deletion does."""
        ...

    def let_go(self, topic: Topic) -> None:
        """Stop leading the topic, and keep its records."""
        ...

    async def drop(self, topic: Topic) -> None:
        """Drop the topic, which another broker has deleted."""
        ...

    async def look_at_tables(self) -> None:
        """Report to the cluster state the tables that are not registered, and those that still have to be removed."""
        ...

    async def finish_deletion(self, name: str, topic_id: UUID) -> None:
        """Remove the table of a topic that is being deleted, if it still exists."""
        ...


class TopicDiscovery(Discovery):
    """Makes the served topics agree with the registered ones. It is made before the tables are read, so that later
    changes are checked again.
    """

    leads_before_journal: ClassVar[bool] = False

    def __init__(self, topics: ServedTopics, cluster_state: ClusterState) -> None:
        self._topics = topics
        self._cluster_state = cluster_state
        self._lock = topics.lock
        #: The versions of the registrations that were seen.
        self._versions: dict[UUID, int] = {}
        #: The partitions that this broker has led since its start, and checked as their leader.
        self._looked_at: dict[UUID, set[int]] = {}
        self._unsettled: dict[str, None] = {}
        self._pauses_s: dict[str, float] = {}
        self._wake = asyncio.Event()
        #: Set at each change, for the tasks that wait for one.
        self._changed = asyncio.Event()
        #: Topics that requests have asked for; and the look at them that is under way.
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        cluster_state.listen_to_topics(self._registered)
        for name in self._unsettled:
            if (found := cluster_state.registered_topic(name)) is not None:
                self._versions[found.topic_id] = found.version
        cluster_state.on_election(self._elected)

    def start(self) -> None:
        self._started.set()
        self._tasks = [asyncio.create_task(self._settle_all()), asyncio.create_task(self._look_now_and_then())]

    def leadership_changed(self, topic: Topic) -> None:
        # After its start a broker of a cluster leads nothing yet.
        self._registered(topic.name)

    def is_adopted(self, name: str) -> bool:
        return self._cluster_state.registered_topic(name) is not None

    async def stop(self) -> None:
        tasks = self._tasks if self._looking is None else [*self._tasks, self._looking]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def until(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
        return reached()

    async def until_led(self, logs: Collection[PartitionLog]) -> None:
        def is_pending(log: PartitionLog) -> bool:
            if log.is_leader or log.is_closed:
                return False
            state = self._cluster_state.partition_state(log.topic_id, log.partition)
            return state.leader == self._cluster_state.broker_id

        if any(map(is_pending, logs)):
            await self.until(lambda: not any(map(is_pending, logs)), _LED_S)

    async def until_ids_known(self, topic_ids: Collection[UUID], timeout_s: float) -> None:
        await self.until(lambda: all(map(self._topics.knows_id, topic_ids)), timeout_s)

    async def until_known(self, name: str, partitions: int = 1) -> None:
        # If the cluster has the topic, it is served here within some seconds.
        if self._topics.is_known(name, partitions) or not is_legal_name(name, TOPIC_NAME_LENGTH_MAX):
            return
        with contextlib.suppress(TimeoutError, LogStoreError):
            async with asyncio.timeout(_LOOK_FOR_S):
                await self._look(name)

        def is_settled() -> bool:
            found = self._cluster_state.registered_topic(name)
            is_known = self._topics.is_known(name, partitions)
            return is_known or found is None or found.deleting or found.num_partitions < partitions

        await self.until(is_settled, _SERVED_S)

    async def _look(self, name: str) -> None:
        """Look for a topic; one look serves all requests that came before it."""
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.get_running_loop().create_future()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_at_asked())
        await asyncio.shield(asked)

    async def _look_at_asked(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                await self._cluster_state.refresh_topics(asked.keys())
            except LogStoreError as error:
                log.info("topic.not_looked_for", topics=sorted(asked)[:10], why=error.message)
            finally:
                for one in asked.values():
                    one.set_result(None)

    def _registered(self, name: str) -> None:
        self._unsettled[name] = None
        self._wake.set()
        self._changed.set()

    # ---- one topic at a time ----------------------------------------------------------------------------------------

    async def _settle_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._unsettled:
                await self._try(self._unsettled.popitem()[0])

    async def _try(self, name: str) -> None:
        try:
            await self._settle(name)
            self._pauses_s.pop(name, None)
        except Exception as error:
            pause = self._pauses_s[name] = min(_RETRY_MAX_S, 2 * self._pauses_s.get(name, _RETRY_S / 2))
            log.error("topic.not_followed", topic=name, error=str(error), exc_info=unforeseen(error))
            asyncio.get_running_loop().call_later(pause, self._registered, name)
        self._changed.set()

    async def _settle(self, name: str) -> None:
        async with self._lock:
            found = self._cluster_state.registered_topic(name)
            await self._drop_former(name, found)
            if found is None:
                self._topics.forget_gone()
                return
            if found.deleting:
                if self._is_controller:
                    await self._topics.finish_deletion(name, found.topic_id)
                return
            topic = self._topics.served(name)
            if topic is None:
                await self._topics.appear(name, found.topic_id)
        # A read of the table holds up no other topic.
        is_behind = topic is not None and found.num_partitions > len(topic.partitions)
        if topic is not None and (is_behind or self._versions.get(found.topic_id) != found.version):
            await self._topics.follow(topic)
        self._versions[found.topic_id] = found.version
        if topic is not None:
            await self._look_as_leader(topic)

    async def _look_as_leader(self, topic: Topic) -> None:
        led = {p.partition for p in topic.partitions if p.is_leader}
        if not led.issubset(looked_at := self._looked_at.setdefault(topic.topic_id, set())):
            await self._topics.look_at_start(topic)
            looked_at |= led

    async def _drop_former(self, name: str, found: RegisteredTopic | None) -> None:
        """Drop a topic whose registration was seen and is gone, or now belongs to another topic: it was deleted.

        A deletion removes the table before the registration. If the table still exists, a user has removed the
        registration by hand: the topic waits for its adoption.
        """
        topic = self._topics.served(name)
        if topic is None or topic.topic_id not in self._versions:
            return
        if found is not None and found.topic_id == topic.topic_id and not found.deleting:
            return
        if found is None and not await self._topics.was_removed(topic):
            log.error("topic.registration_lost", topic=name, remedy=f"run: {ADOPT.format(name)}")
            self._topics.let_go(topic)
            return
        await self._topics.drop(topic)
        del self._versions[topic.topic_id]
        self._looked_at.pop(topic.topic_id, None)

    # ---- the controller ---------------------------------------------------------------------------------------------

    @property
    def _is_controller(self) -> bool:
        return self._cluster_state.controller_id == self._cluster_state.broker_id

    async def _elected(self) -> None:
        """Report the tables before anything is decided, so that no registration is removed while its table exists.

        Deletions are finished afterwards, since they may wait for replicas, and these for the controller.
        """
        await self._started.wait()
        async with self._lock:
            await self._topics.look_at_tables()
        for name in self._cluster_state.registered_topics():
            self._registered(name)

    async def _look_now_and_then(self) -> None:
        """Look at the tables now and then: a replaced controller may have made one after this one's election, before it
        knew.
        """
        while True:
            await asyncio.sleep(_LOOK_S)
            if self._is_controller:
                await self._logged(self._elected)

    async def _logged(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            log.error("topic.tables_not_listed", error=str(error), exc_info=unforeseen(error))
