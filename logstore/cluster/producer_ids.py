"""Ids of producers, in blocks of 1,000 that brokers take from ``/producer_ids`` (C17).

Invariant: an id is given once in the cluster's life. A block is taken by compare-and-set before its first id is given;
the rest of it is never given once the broker stops.
"""

import asyncio
from typing import Final

from logstore.cluster import znodes
from logstore.cluster.znodes import ProducerIds
from logstore.cluster.zookeeper import NodeExistsError, NoNodeError, VersionConflictError, ZooKeeper
from logstore.errors import ClusterStateError
from logstore.records.batch_identity import first_producer_id

BLOCK: Final = 1_000


class ProducerIdBlocks:
    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper
        #: The ids that this broker has and has not given.
        self._free = range(0)
        #: Ids below this one may have been given, as far as this broker knows.
        self.known_end = 0
        self._lock = asyncio.Lock()

    async def start(self, last_leader_epoch: int) -> None:
        """Create the node in a new cluster: ids begin above those that a store of one node could have given."""
        first = ProducerIds(first_producer_id(max(last_leader_epoch, 0) + 1))
        try:
            await self._zookeeper.create(znodes.PRODUCER_IDS, znodes.encode(znodes.PRODUCER_IDS, first))
            self.known_end = first.next
        except NodeExistsError:
            await self.refresh()

    async def refresh(self) -> None:
        """Learn which blocks other brokers have taken. Raises ZooKeeperUnavailableError."""
        await self._read()

    async def _read(self) -> tuple[int, int]:
        """Return the first id of the next block, and the version of the node."""
        node = await self._zookeeper.get(znodes.PRODUCER_IDS)
        if node is None:
            raise ClusterStateError(f"ZooKeeper has no node {znodes.PRODUCER_IDS}: it was removed by hand.")
        found = znodes.decode(znodes.PRODUCER_IDS, node.data, ProducerIds).next
        self.known_end = max(self.known_end, found)
        return found, node.version

    async def new(self) -> int:
        """Return a new id. Raises ClusterStateError, and ZooKeeperUnavailableError when the block is used up."""
        async with self._lock:
            if not self._free:
                self._free = await self._take_block()
            producer_id, self._free = self._free[0], self._free[1:]
            return producer_id

    async def _take_block(self) -> range:
        while True:
            begin, version = await self._read()
            data = znodes.encode(znodes.PRODUCER_IDS, ProducerIds(begin + BLOCK))
            try:
                await self._zookeeper.write(znodes.PRODUCER_IDS, data, version)
            except (VersionConflictError, NoNodeError):
                continue
            self.known_end = max(self.known_end, begin + BLOCK)
            return range(begin, begin + BLOCK)

    def is_given(self, producer_id: int) -> bool:
        """Return True if the id may have been given, as far as this broker knows. Call ``refresh`` before relying on
        False.
        """
        return 0 <= producer_id < self.known_end and producer_id not in self._free
