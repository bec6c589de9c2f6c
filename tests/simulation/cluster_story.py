"""Short stories of the simulated cluster: clients append, a fault strikes, and all is well again.

In the first story (``kill``) the leader is killed, another leads, and the killed one comes back into the ISR. In the
others a fault of the network or of ZooKeeper strikes, and is healed. ``python -m tests.simulation.cluster_story SEED
[FAULT]`` tells one, and prints what it has seen as one line of JSON.
"""

import asyncio
import itertools
import json
import logging
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog

from logstore import entropy
from logstore.broker.context import INTERNAL
from logstore.errors import LogStoreError
from logstore.node import Store
from logstore.threads import replaced
from tests.faults.bench.records import Record, rows_of_table
from tests.simulation.clients import CLIENT, _decoded
from tests.simulation.cluster import Cluster
from tests.simulation.history import History
from tests.simulation.loop import PlayedThreads, SimulatedLoop
from tests.simulation.node import ConnectionLostError, NoConnectionError, Node

_TOPIC = "events"
_BEFORE = 50
_SHM = Path("/dev/shm")  # a file system in memory


@dataclass(slots=True)
class Outcome:
    seed: int
    fault: str
    digest: str = ""
    events: int = 0
    #: Simulated seconds that the fault lasted, and until all replicas were in the ISR again.
    fault_seconds: float = 0.0
    return_seconds: float = 0.0
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    acknowledged: int = 0
    anomalies: list[str] = field(default_factory=list)


Fault = Callable[[Cluster, Node, random.Random], Awaitable[None]]


async def _kill(cluster: Cluster, leader: Node, _: random.Random) -> None:
    leader.kill()
    await cluster.eventually(lambda: cluster.leader(_TOPIC, 0) is not None, "nobody leads")


async def _power_cut(cluster: Cluster, leader: Node, _: random.Random) -> None:
    leader.power_cut(strict=False)
    await cluster.eventually(lambda: cluster.leader(_TOPIC, 0) is not None, "nobody leads")


async def _cut_off(cluster: Cluster, leader: Node, rng: random.Random) -> None:
    """The leader reaches nobody, and nobody reaches it."""
    for name in _others(cluster, leader):
        cluster.network.cut(leader.name, name)
    cluster.zookeeper.cut(leader.name)
    await asyncio.sleep(rng.uniform(0, 15))


async def _cut_from_brokers(cluster: Cluster, leader: Node, rng: random.Random) -> None:
    """In one direction, from one of the others or from both."""
    for name in _others(cluster, leader)[rng.randrange(2) :]:
        cluster.network.cut(*rng.sample([leader.name, name], 2), both_ways=rng.random() < 0.5)
    await asyncio.sleep(rng.uniform(0, 45))


async def _cut_from_zookeeper(cluster: Cluster, leader: Node, rng: random.Random) -> None:
    ways = rng.choice([(True, True), (True, False), (False, True)])
    cluster.zookeeper.cut(leader.name, requests=ways[0], answers=ways[1])
    await asyncio.sleep(rng.uniform(0, 12))


async def _break_connections(cluster: Cluster, leader: Node, rng: random.Random) -> None:
    for _ in range(10):
        cluster.network.break_connections(leader.name, rng.choice(_others(cluster, leader)))
        await asyncio.sleep(rng.uniform(0, 0.5))


async def _zookeeper_down(cluster: Cluster, _: Node, rng: random.Random) -> None:
    cluster.zookeeper.stop()
    await asyncio.sleep(rng.uniform(0, 10))


async def _zookeeper_elects(cluster: Cluster, _: Node, rng: random.Random) -> None:
    for _ in range(3):
        cluster.zookeeper.elect()
        await asyncio.sleep(rng.uniform(0, 1))


async def _zookeeper_splits(cluster: Cluster, _: Node, rng: random.Random) -> None:
    """A server of ZooKeeper shows what it had, and its clients with it."""
    for number in rng.sample(range(3), 2):
        cluster.zookeeper.isolate(number)
    await asyncio.sleep(rng.uniform(0, 10))


async def _session_ends(cluster: Cluster, leader: Node, rng: random.Random) -> None:
    cluster.zookeeper.expire(leader.name)
    await asyncio.sleep(rng.uniform(0, 2))


async def _client_ends(cluster: Cluster, leader: Node, rng: random.Random) -> None:
    cluster.zookeeper.end_client(leader.name)
    await asyncio.sleep(rng.uniform(0, 8))


async def _answers_lost(cluster: Cluster, _: Node, rng: random.Random) -> None:
    """Requests of ZooKeeper are done, and their answers do not come; sessions end, so that there are requests."""
    cluster.zookeeper.lost_answers = 0.1
    for node in cluster.nodes.values():
        cluster.zookeeper.expire(node.name)
        await asyncio.sleep(rng.uniform(0, 5))
    cluster.zookeeper.lost_answers = 0.0


def _others(cluster: Cluster, leader: Node) -> list[str]:
    return [node.name for node in cluster.nodes.values() if node is not leader]


FAULTS: dict[str, Fault] = {
    "kill": _kill,
    "power_cut": _power_cut,
    "cut_off": _cut_off,
    "cut_from_brokers": _cut_from_brokers,
    "cut_from_zookeeper": _cut_from_zookeeper,
    "break_connections": _break_connections,
    "zookeeper_down": _zookeeper_down,
    "zookeeper_elects": _zookeeper_elects,
    "zookeeper_splits": _zookeeper_splits,
    "session_ends": _session_ends,
    "client_ends": _client_ends,
    "answers_lost": _answers_lost,
}


class Story:
    def __init__(self, seed: int, fault: str, directory: Path) -> None:
        self.outcome = Outcome(seed, fault)
        self._rng = random.Random(f"{seed} fault")
        self._loop = SimulatedLoop(random.Random(f"{seed} loop"))
        self._history = History(self._loop)
        self._cluster = Cluster(self._loop, directory / "cluster", seed, self._history.note)
        #: The offsets of what was acknowledged.
        self._acknowledged: dict[str, int] = {}

    def run(self) -> Outcome:
        began, outcome = time.monotonic(), self.outcome
        try:
            self._loop.run_until_complete(self._tell())
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()
            self._cluster.remove()
        outcome.anomalies += self._loop.errors
        outcome.digest, outcome.events = self._history.digest, self._history.count
        outcome.acknowledged = len(self._acknowledged)
        outcome.virtual_seconds = round(self._loop.time(), 3)
        outcome.wall_seconds = round(time.monotonic() - began, 3)
        return outcome

    async def _tell(self) -> None:
        cluster, loop = self._cluster, self._loop
        for error in await asyncio.gather(*(node.start() for node in cluster.nodes.values())):
            assert error is None, error
        await cluster.eventually(lambda: cluster.controller() is not None, "no controller")
        controller = cluster.controller()
        assert controller is not None
        configs = {"min.insync.replicas": "2"}
        controller.lost_answers = 0.0
        await controller.call(
            lambda store: store.broker.create_topic(INTERNAL, _TOPIC, partitions=1, configs=configs),
        )
        await cluster.eventually(lambda: self._in_sync() == 3, "not all are in the ISR")
        producers = [asyncio.create_task(self._produce(number)) for number in range(3)]
        await cluster.eventually(lambda: len(self._acknowledged) >= _BEFORE, "nothing is acknowledged")

        struck = cluster.leader(_TOPIC, 0)
        assert struck is not None
        self._history.note(self.outcome.fault, struck.name)
        began = loop.time()
        await FAULTS[self.outcome.fault](cluster, struck, self._rng)
        self.outcome.fault_seconds = round(loop.time() - began, 3)
        if not struck.is_up:
            count = len(self._acknowledged)
            await cluster.eventually(lambda: len(self._acknowledged) >= count + _BEFORE, "the new leader takes nothing")

        began = loop.time()
        cluster.heal()
        if not struck.is_up and (error := await struck.start()):
            raise AssertionError(f"the broker does not start again: {error!r}")
        await cluster.eventually(lambda: self._in_sync() == 3, "not all are in the ISR again")
        self.outcome.return_seconds = round(loop.time() - began, 3)
        count = len(self._acknowledged)
        await cluster.eventually(lambda: len(self._acknowledged) >= count + _BEFORE, "nothing is acknowledged any more")
        for producer in producers:
            producer.cancel()
        await asyncio.wait(producers)
        await asyncio.sleep(2)  # what was sent is done
        await self._judge()
        for node in cluster.nodes.values():
            if error := await node.stop():
                raise AssertionError(f"SIGTERM ended broker {node.name} with {error!r}")

    def _in_sync(self) -> int:
        leader = self._cluster.leader(_TOPIC, 0)
        state = None if leader is None else self._cluster.state(int(leader.name), _TOPIC, 0)
        return 0 if state is None else len(state.in_sync_replicas)

    async def _produce(self, number: int) -> None:
        rng = random.Random(f"{self.outcome.seed} producer {number}")
        at = 0
        while True:
            await asyncio.sleep(rng.expovariate(10))
            leader = self._cluster.leader(_TOPIC, 0)
            if leader is None:
                continue
            ids = [f"{number}-{at + n}" for n in range(rng.randint(1, 8))]
            at += len(ids)
            try:
                base = await leader.call(lambda store, ids=ids: _append(store, ids))
            except (ConnectionLostError, NoConnectionError, LogStoreError) as error:
                self._history.note("refused", ids, type(error).__name__)
                continue
            self._history.note("acknowledged", base, ids)
            self._acknowledged.update(zip(ids, itertools.count(base), strict=False))

    async def _judge(self) -> None:
        """Whether each broker's log has all that was acknowledged, and all have the same."""
        cluster = self._cluster
        leader = cluster.leader(_TOPIC, 0)
        assert leader is not None
        leader.lost_answers = 0.0
        rows: dict[int, str] = {}
        at = 0
        while True:
            found, at, end = await leader.call(lambda store, at=at: _fetch(store, at))
            rows.update(found)
            if at >= end:
                break
        for record_id, offset in self._acknowledged.items():
            if rows.get(offset) != record_id:
                self.outcome.anomalies.append(f"{record_id} was acknowledged at {offset}: {rows.get(offset)}")

        def ends() -> list[int]:
            logs = [node.store.broker.topic(INTERNAL, _TOPIC).partitions[0] for node in cluster.running if node.store]
            return [log.log_end_offset for log in logs]

        await cluster.eventually(lambda: ends() == [at] * 3, "the logs have different ends")

    async def _end(self) -> None:
        self._cluster.kill()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _append(store: Store, ids: Sequence[str]) -> int:
    broker = store.broker
    records = _decoded([Record(one, None, one, None) for one in ids])
    result = await broker.produce(CLIENT, broker.topic(CLIENT, _TOPIC), records, partition=0, acks=-1, identity=None)
    (part,) = result.partitions
    if part.error is not None:
        raise part.error
    return part.base_offset


async def _fetch(store: Store, offset: int) -> tuple[dict[Any, Any], int, int]:
    broker = store.broker
    found = await broker.fetch(
        CLIENT, broker.topic(CLIENT, _TOPIC), 0, offset, max_bytes=100_000, min_bytes=1, max_wait_ms=0
    )
    return {row[0]: row[2] for row in rows_of_table(found.records)}, found.next_offset, found.high_watermark


def tell(seed: int, fault: str = "kill") -> Outcome:
    """Tell the story of a seed, with one of ``FAULTS``."""
    with (
        tempfile.TemporaryDirectory(prefix="simulated-", dir=_SHM if _SHM.is_dir() else None) as directory,
        entropy.seeded(random.Random(f"{seed} chance")),
        replaced(PlayedThreads()),
    ):
        return Story(seed, fault, Path(directory)).run()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    sys.stdout.write(json.dumps(asdict(tell(int(sys.argv[1]), *sys.argv[2:]))) + "\n")
