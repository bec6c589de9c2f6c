"""Removals of topics. Until a removal is durable a power cut may bring the topic back, so the journal keeps its
records.

Invariant: once a removal is durable, the journal forgets the topic, listeners are called, and only then can another
topic of its name be made.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from logstore.broker.roll_schedule import RETRY_MAX_S, RETRY_S
from logstore.broker.topics.catalog import TopicCatalog, names_collide
from logstore.journal.journal import Journal
from logstore.log.topic import Topic

log = structlog.stdlib.get_logger(__name__)


class Removals:
    """Removes topics. The caller holds ``lock``: one change of the catalogue at a time."""

    def __init__(self, catalog: TopicCatalog, journal: Journal, lock: asyncio.Lock) -> None:
        #: Called, and awaited, with each topic that was deleted, before another of its name can be made.
        self.listeners: list[Callable[[Topic], Awaitable[None]]] = []
        self.unfinished: list[Topic] = []
        self._catalog = catalog
        self._journal = journal
        self._lock = lock
        self._retrying: asyncio.Task[None] | None = None

    async def begin(self, topic: Topic) -> None:
        """Finish the removal of a topic that is out of the catalogue; after an error try again later. Raises
        StorageError.
        """
        self.unfinished.append(topic)
        try:
            await self._finish(topic)
        except BaseException:
            if self._retrying is None or self._retrying.done():
                self._retrying = asyncio.create_task(self._finish_all())
            raise

    async def make_way(self, name: str) -> None:
        """Finish removals of topics of that name, as a power cut could bring one back beside the new. Raises
        StorageError.
        """
        for topic in [t for t in self.unfinished if names_collide(t.name, name)]:
            await self._finish(topic)

    def stop(self) -> None:
        """Stop retrying; the next start finishes the rest."""
        if self._retrying is not None:
            self._retrying.cancel()

    async def _finish(self, topic: Topic) -> None:
        """Finish the removal after a topic is out of the catalogue; after an error call it again. Raises
        StorageError.
        """
        await asyncio.to_thread(self._catalog.sync_removal, topic.name)
        # This comes after the sync: a topic that a power cut brings back needs its records in the journal.
        self._journal.forget(topic.topic_id)
        for listener in self.listeners:
            await listener(topic)
        self.unfinished.remove(topic)
        log.info("topic.deleted", topic=topic.name)
        await asyncio.to_thread(self._catalog.purge)

    async def _finish_all(self) -> None:
        """Try again what ``begin`` could not finish, until nothing is left."""
        pause = RETRY_S
        while self.unfinished:
            await asyncio.sleep(pause)
            pause = min(RETRY_MAX_S, 2 * pause)
            async with self._lock:
                for topic in list(self.unfinished):
                    try:
                        await self._finish(topic)
                    except Exception as error:  # noqa: BLE001 - a listener's, too: nobody else would try again
                        log.error("topic.removal_unfinished", topic=topic.name, error=str(error))
