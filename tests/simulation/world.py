"""A run of the simulated world: a node, its clients and its nemesis, and the judgement of what they told."""

import asyncio
import contextlib
import gc
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from logstore import entropy
from logstore.broker.context import INTERNAL
from logstore.errors import LogStoreError, TopicExistsError
from logstore.node import Store
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.threads import replaced
from tests.faults.bench.checker import check
from tests.faults.bench.delta_observer import READERS, committed_offsets, read_version
from tests.simulation.clients import Client, Producer, Reader, TopicSpec
from tests.simulation.cluster import Cluster
from tests.simulation.history import History
from tests.simulation.loop import PlayedThreads, SimulatedLoop
from tests.simulation.nemesis import Nemesis
from tests.simulation.node import ConnectionLostError, NoConnectionError, Node
from tests.simulation.site import Log, Site

#: Idempotent producers send again for so long.
_CONFIGS = {"idempotency.window.ms": str(24 * 3_600_000)}
_TOPICS = (
    TopicSpec("events", 2, {"segment.bytes": "20000", "segment.ms": "700"}),
    TopicSpec(
        "clicks", 1, {"message.timestamp.type": "LogAppendTime", "segment.ms": "1500", "merge.target.bytes": "40000"}
    ),
)
_SETTINGS: dict[str, object] = {"journal_max_bytes": 64 * 1024 * 1024}
#: Records a second of all producers.
_RECORDS_S = 100
#: Simulated seconds in which a healed store does all that it is asked for.
_PATIENCE_S = 60.0
_GROUPS = ("group-0", "group-1")
_SHM = Path("/dev/shm")


@dataclass(slots=True)
class Outcome:
    seed: str
    digest: str = ""
    events: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    #: How often each fault of the disk struck.
    injected: Counter[str] = field(default_factory=Counter)
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    acknowledged: int = 0
    anomalies: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)
    #: The numbers of the faults.
    struck: list[int] = field(default_factory=list)


class World:
    def __init__(self, seed: str, brokers: int, directory: Path, only: frozenset[int] | None, kind: str | None) -> None:
        self.outcome = Outcome(seed)
        self._seed = seed
        self._loop = SimulatedLoop(random.Random(f"{seed} loop"))
        self.history = History(self._loop)
        self.site = self._build(brokers, directory)
        self.nemesis = Nemesis(self.site, self.history, _TOPICS, f"{seed} nemesis", only, kind)

    def _build(self, brokers: int, directory: Path) -> Site:
        rng, note = random.Random(f"{self._seed} site"), self.history.note
        if brokers > 1:
            cluster = Cluster(self._loop, directory / "cluster", self._seed, note, brokers=brokers)
            return Site(list(cluster.nodes.values()), cluster, rng)
        node = Node(self._loop, directory / "0", random.Random(f"{self._seed} node"), _SETTINGS, note)
        return Site([node], None, rng)

    def run(self, virtual_seconds: float, events: int | None) -> Outcome:
        outcome = self.outcome
        began = time.monotonic()
        try:
            self._loop.run_until_complete(self._run(virtual_seconds, events))
        except Exception as error:  # noqa: BLE001 - an error of the store that nobody expects is what a run looks for
            outcome.anomalies.append(f"the run broke off: {error!r}")
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()
            for node in self.site.nodes:
                outcome.injected += Counter(" ".join(one.split(" ")[:2]) for one in node.disk.injected)
                node.remove()
        outcome.anomalies += [*self.nemesis.broken, *dict.fromkeys(self.site.unforeseen), *self._loop.errors]
        outcome.anomalies += [str(anomaly) for anomaly in check(self.history.events)]
        outcome.faults = self.nemesis.faults
        outcome.digest, outcome.events = self.history.digest, self.history.count
        outcome.history, outcome.struck = self.history.events, self.nemesis.struck
        outcome.acknowledged = sum(
            len(event.get("places", ())) for event in self.history.events if event["op"] == "produce"
        )
        outcome.virtual_seconds = round(self._loop.time(), 3)
        outcome.wall_seconds = round(time.monotonic() - began, 3)
        return outcome

    async def _run(self, virtual_seconds: float, events: int | None) -> None:
        await self.nemesis.start()
        for topic in _TOPICS:
            await self._create(topic)
        working = [asyncio.create_task(work) for work in self._clients()]
        striking = asyncio.create_task(self.nemesis.run())
        end = self._loop.time() + virtual_seconds
        while self._loop.time() < end and (events is None or self.history.count < events):
            await asyncio.sleep(0.5)
            if ended := [task for task in (striking, *working) if task.done()]:
                ended[0].result()
        self.nemesis.is_ending = True
        await striking
        await self.nemesis.restart()
        await self.nemesis.heal()
        await asyncio.sleep(3 if self.site.cluster is None else 12)  # what waits is taken, sent again and answered
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        await self._read_all()

    async def _end(self) -> None:
        """End all that is left, also of processes that were killed."""
        for node in self.site.nodes:
            node.kill()
        (_, *tasks) = sorted(asyncio.all_tasks(), key=lambda task: task is not asyncio.current_task())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        def client(kind: type[Client], number: int) -> Any:
            name = f"{kind.__name__.lower()}-{number}"
            rng = random.Random(f"{self._seed} {name}")
            return kind(self.site, self.history, name, rng, records_s=_RECORDS_S / 3)

        return [
            *(client(Producer, n).run(_TOPICS, sequenced=n > 0) for n in range(3)),
            *(client(Reader, n).run(_TOPICS, _GROUPS[n]) for n in range(2)),
        ]

    async def _create(self, topic: TopicSpec) -> None:
        configs = {**_CONFIGS, **topic.configs}
        if self.site.cluster is not None:
            configs["min.insync.replicas"] = "2"

        async def create(store: Store) -> None:
            await store.broker.topics.changes.create(INTERNAL, topic.name, partitions=topic.partitions, configs=configs)

        async def try_to() -> bool:
            cluster = self.site.cluster
            node = self.site.nodes[0] if cluster is None else cluster.controller()
            if node is None:
                return False
            with contextlib.suppress(TopicExistsError):  # the answer to the try before was lost
                await node.call(create)
            return True

        await self._eventually(try_to, f"topic {topic.name} is not made")
        made = {"partitions": topic.partitions, "configs": configs, "now_ms": self.site.now_ms()}
        self.history.tell("bench", "topic", topic=topic.name, **made)

    async def _eventually(self, tried: Callable[[], Awaitable[bool]], what: str) -> None:
        """Try again for a minute, as clients do."""
        deadline, why = self._loop.time() + _PATIENCE_S, "nobody knows where"
        while self._loop.time() < deadline:
            try:
                if await tried():
                    return
            except (LogStoreError, NoConnectionError, ConnectionLostError) as error:
                why = repr(error)
            await asyncio.sleep(0.2)
        raise AssertionError(f"{what} for {_PATIENCE_S} s after all was healed: {why}")

    async def _read_all(self) -> None:
        """The last word of the log: of readers over the store, and of those of the table."""
        for node in self.site.nodes:
            node.lost_answers = 0.0
        await self._eventually(self._all_in_sync, "a replica is not in the ISR")
        client = Reader(self.site, self.history, "final", random.Random(f"{self._seed} final"))
        for topic, partition in [(each, p) for each in _TOPICS for p in range(each.partitions)]:

            async def roll(name: str = topic.name, number: int = partition) -> bool:
                async def work(store: Store) -> bool:
                    found = store.broker.topics.served.topic(INTERNAL, name)
                    await store.broker.topics.tables.roll(INTERNAL, found)
                    log = found.partition(number)
                    return log.high_watermark == log.log_end_offset

                return await self.site.call(work, Log(name, number))

            await self._eventually(roll, f"{topic.name}-{partition} is not whole on its replicas")
            told = await self._read_log(client, topic, partition)
            self.history.tell("final", "final", topic=topic.name, partition=partition, **told)
        for topic, group in itertools.product(_TOPICS, _GROUPS):

            async def committed(name: str = topic.name, of: str = group) -> bool:
                phase, told = await client.committed(of, name)
                if phase == "ok":
                    self.history.tell("final", "final_commits", group=of, topic=name, **told)
                return phase == "ok"

            await self._eventually(committed, f"offsets of {group} are not told")
        for node in self.site.nodes:
            if error := await node.stop():
                raise AssertionError(f"SIGTERM ended a healed node with {error!r}")
        tables = self.site.nodes[0].data / "topics"
        for topic, reader in itertools.product(_TOPICS, READERS):
            told = read_version(tables / topic.name, None, reader=reader, partitions=topic.partitions)
            self.history.tell(f"final-{reader}", "final_delta", topic=topic.name, **told)
        in_table = committed_offsets(tables / OFFSETS_TOPIC)
        for group, topic in itertools.product(_GROUPS, _TOPICS):
            offsets = in_table.get((group, topic.name), {})
            self.history.tell("final-delta-rs", "final_commits", group=group, topic=topic.name, offsets=offsets)

    async def _all_in_sync(self) -> bool:
        if (cluster := self.site.cluster) is None:
            return True
        for topic, partition in [(each, p) for each in _TOPICS for p in range(each.partitions)]:
            leader = cluster.leader(topic.name, partition)
            state = None if leader is None else cluster.state(int(leader.name), topic.name, partition)
            if state is None or len(state.in_sync_replicas) < len(self.site.nodes):
                return False
        return True

    async def _read_log(self, client: Reader, topic: TopicSpec, partition: int) -> dict[str, Any]:
        rows: list[Any] = []
        start = await client.log_start(topic.name, partition)
        assert start is not None, f"the log start of {topic.name}-{partition} is not told"
        at = start
        while True:
            phase, told = await client.fetch(topic.name, partition, at)
            assert phase == "ok", f"reading {topic.name}-{partition} at {at}"
            rows += told["records"]
            at = told["next_offset"]
            if at >= told["high_watermark"]:
                return {"log_start": start, "high_watermark": told["high_watermark"], "rows": rows}


def simulate(
    seed: str,
    *,
    brokers: int = 1,
    virtual_seconds: float = 30.0,
    events: int | None = None,
    only: frozenset[int] | None = None,
    kind: str | None = None,
) -> Outcome:
    """Run the world of a seed for so many simulated seconds, or until ``events`` have happened.

    ``brokers``: 1 is a store of one node, more are a cluster. ``only``: the numbers of the faults that strike, None for
    all. ``kind``: the method of ``Nemesis`` whose faults strike, None for all.
    """
    # What is freed, and when, is part of no history.
    gc.collect()
    with (
        tempfile.TemporaryDirectory(prefix="simulated-", dir=_SHM if _SHM.is_dir() else None) as directory,
        entropy.seeded(random.Random(f"{seed} chance")),
        replaced(PlayedThreads()),
    ):
        return World(seed, brokers, Path(directory), only, kind).run(virtual_seconds, events)
