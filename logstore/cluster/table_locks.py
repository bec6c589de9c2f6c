"""Locks of tables: one broker at a time repairs or checkpoints the log of a topic's table.

A lock is an ephemeral node and ends with its holder's session. A slow holder may therefore lose it during its work,
which is safe for every commit: the lock saves work, and is not what keeps a table whole.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator

from logstore.cluster import znodes
from logstore.cluster.znodes import LockHolder
from logstore.cluster.zookeeper import NodeExistsError, NoNodeError, ZooKeeper
from logstore.errors import ZooKeeperUnavailableError


class TableLocks:
    def __init__(self, zookeeper: ZooKeeper, broker_id: int) -> None:
        self._zookeeper = zookeeper
        self._broker_id = broker_id
        #: Locks among this broker's tasks, which ZooKeeper cannot distinguish.
        self._own: dict[str, asyncio.Lock] = {}

    @contextlib.asynccontextmanager
    async def hold(self, topic: str) -> AsyncIterator[None]:
        """Wait for the lock, and hold it as long as the block lasts. Raises ZooKeeperUnavailableError."""
        async with self._own.setdefault(topic, asyncio.Lock()):
            path = znodes.lock_path(topic)
            czxid = await self._take(path)
            try:
                yield
            finally:
                await self._release(path, czxid)

    async def _take(self, path: str) -> int:
        data = znodes.encode(path, LockHolder(self._broker_id))
        while True:
            try:
                return (await self._zookeeper.create(path, data, ephemeral=True)).czxid
            except NodeExistsError:
                changed = asyncio.Event()
                found = await self._zookeeper.exists(path, functools.partial(_set, changed))
            if found is None:
                continue
            if found.session_id == self._zookeeper.session_id:
                # An earlier try created it and lost the response: no other task of this broker gets here.
                return found.czxid
            await changed.wait()

    async def _release(self, path: str, czxid: int) -> None:
        """Release the lock. Without a connection it lasts until the session ends, or until the next task here takes it
        over.
        """
        with contextlib.suppress(ZooKeeperUnavailableError, NoNodeError):
            found = await self._zookeeper.exists(path)
            if found is not None and found.czxid == czxid:
                await self._zookeeper.delete(path)


def _set(event: asyncio.Event, _path: str) -> None:
    event.set()
