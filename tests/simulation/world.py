"""A run of the simulated world: its nodes, its clients and its nemesis, and the check of their history."""

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
from typing import Any, TypeVar
from unittest import mock

from logstore import entropy
from logstore.broker.context import INTERNAL
from logstore.errors import LogStoreError, TopicExistsError
from logstore.journal.journal import AppendFuture
from logstore.node import Store
from logstore.records.offset_record import OFFSETS_TOPIC
from logstore.threads import replaced
from tests.faults.bench.checker import check
from tests.faults.bench.delta_observer import READERS, committed_offsets, read_version
from tests.simulation.clients import Client, Producer, Reader, TopicSpec
from tests.simulation.cluster import Cluster
from tests.simulation.erasing import Eraser
from tests.simulation.foreign import Stranger
from tests.simulation.history import History
from tests.simulation.http_clients import HttpProducer, HttpReader, HttpSite
from tests.simulation.jobs import Jobs
from tests.simulation.kafka_classic_members import ClassicMember
from tests.simulation.kafka_clients import KafkaProducer, KafkaReader, KafkaSite
from tests.simulation.kafka_members import GROUP_SETTINGS, PATIENCE_S, Group, KafkaMember
from tests.simulation.loop import PlayedThreads, SimulatedLoop
from tests.simulation.nemesis import Nemesis, Strand
from tests.simulation.network import Network
from tests.simulation.node import ConnectionLostError, NoConnectionError, Node
from tests.simulation.site import CONTROLLER, Log, Site
from tests.simulation.topics import Administrator
from tests.support.faulty_filesystem import FaultyFileSystem

C = TypeVar("C", bound=Client)

#: The configuration of all topics; idempotent producers retry for this long.
_CONFIGS = {"idempotency.window.ms": str(24 * 3_600_000)}
_TOPICS = (
    TopicSpec("events", 2, {"segment.bytes": "20000", "segment.ms": "700"}),
    TopicSpec(
        "clicks",
        1,
        {
            "message.timestamp.type": "LogAppendTime",
            "segment.ms": "1500",
            "merge.target.bytes": "40000",
            "retention.bytes": "60000",
        },
    ),
    TopicSpec("users", 1, {"cleanup.policy": "compact", "segment.ms": "900", "min.cleanable.dirty.ratio": "0.1"}),
)
#: A topic that only the members of the group read; its records are never deleted.
_SHARED = TopicSpec("orders", 2, {"segment.bytes": "20000", "segment.ms": "1500"})
_ALL = (*_TOPICS, _SHARED)
_SETTINGS: dict[str, object] = {"journal_max_bytes": 32 * 1024 * 1024, **GROUP_SETTINGS}
#: Records per second of all producers together.
_RECORDS_S = 100
#: Simulated seconds within which a healed store does everything that it is asked for.
_PATIENCE_S = 60.0
#: Simulated seconds within which work that began under faults ends.
_FINISHED_S = 240.0
#: How often the remaining tasks are cancelled at the end of a world.
_ENDS_MAX = 20
_GROUPS = ("group-0", "group-1")
_MEMBERS = "members"
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
    #: The numbers of the faults that struck.
    struck: list[int] = field(default_factory=list)


class World:
    def __init__(self, seed: str, brokers: int, directory: Path, only: frozenset[int] | None, kind: str | None) -> None:
        self.outcome = Outcome(seed)
        self._seed = seed
        self._loop = SimulatedLoop(random.Random(f"{seed} loop"))
        self.history = History(self._loop)
        self.site = self._build(brokers, directory)
        root = self.site.nodes[0].data.parent
        beside = FaultyFileSystem(root, "beside")
        self.eraser = self._client(Eraser, 0)
        self.stranger = self._client(Stranger, 0, data=root / "data", disk=beside)
        jobs_rng = random.Random(f"{seed} jobs")
        self.jobs = Jobs(self.history, beside, root / "data", self.site.nodes[0].clock, self.history.note, jobs_rng)
        self.administrator = Administrator(self.site, self.history, random.Random(f"{seed} administrator"))
        self.strands: list[Nemesis] = []
        for strand in Strand:
            Nemesis(self.site, self.history, _ALL, f"{seed} nemesis", only, kind, strand, self.strands)
        self.nemesis = self.strands[Strand.PROCESSES]

    def _build(self, brokers: int, directory: Path) -> Site:
        rng, note = random.Random(f"{self._seed} site"), self.history.note
        if brokers > 1:
            cluster = Cluster(
                self._loop, directory / "cluster", self._seed, note, brokers=brokers, settings=GROUP_SETTINGS
            )
            return Site(list(cluster.nodes.values()), cluster, cluster.network, rng)
        network = Network(self._loop, random.Random(f"{self._seed} network"))
        node = Node(self._loop, directory / "0", random.Random(f"{self._seed} node"), _SETTINGS, note, network)
        return Site([node], None, network, rng)

    def run(self, virtual_seconds: float, events: int | None) -> Outcome:
        outcome = self.outcome
        began = time.monotonic()
        try:
            self._loop.run_until_complete(self._run(virtual_seconds, events))
        except Exception as error:  # noqa: BLE001 - a run looks for errors of the store that its code does not expect
            outcome.anomalies.append(f"the run broke off: {error!r}")
        finally:
            self._loop.run_until_complete(self._end())
            self._loop.close()
            for node in self.site.nodes:
                outcome.injected += Counter(" ".join(one.split(" ")[:2]) for one in node.disk.injected)
                node.remove()
        outcome.anomalies += [
            *(broken for strand in self.strands for broken in strand.broken),
            *self.eraser.broken,
            *self.administrator.broken,
            *dict.fromkeys(self.site.unforeseen),
            *self._loop.errors,
        ]
        outcome.anomalies += [str(anomaly) for anomaly in check(self.history.events)]
        outcome.faults = sum((strand.faults for strand in self.strands), Counter())
        outcome.digest, outcome.events = self.history.digest, self.history.count
        outcome.history, outcome.struck = self.history.events, [n for one in self.strands for n in one.struck]
        outcome.acknowledged = sum(
            sum(place is not None for place in event.get("places", ()))
            for event in self.history.events
            if event["op"] == "produce"
        )
        outcome.virtual_seconds = round(self._loop.time(), 3)
        outcome.wall_seconds = round(time.monotonic() - began, 3)
        return outcome

    async def _run(self, virtual_seconds: float, events: int | None) -> None:
        await self.nemesis.start()
        for topic in _ALL:
            await self._create(topic)
        working = [asyncio.create_task(work) for work in self._clients()]
        ending = [asyncio.create_task(work) for work in self._finishing()]
        striking = [asyncio.create_task(one.run()) for one in self.strands]
        group = Group(_MEMBERS, _SHARED, self.site, self.history)
        members = [asyncio.create_task(member.run()) for member in self._members(group)]
        end = self._loop.time() + virtual_seconds
        while self._loop.time() < end and (events is None or self.history.count < events):
            await asyncio.sleep(0.5)
            for task in (*striking, *working, *ending, *members):
                if task.done():
                    task.result()
        for one in (*self.strands, self.eraser, self.stranger, self.jobs, self.administrator, group):
            one.is_ending = True
        await asyncio.gather(*striking)
        await self.nemesis.restart()
        await self.nemesis.heal()
        await asyncio.sleep(5 if self.site.cluster is None else 12)  # waiting requests are retried and answered
        _, unfinished = await asyncio.wait(ending, timeout=_FINISHED_S)
        assert not unfinished, f"not finished {_FINISHED_S} s after all was healed: {unfinished}"
        for task in ending:
            task.result()
        for task in working:
            task.cancel()
        await asyncio.wait(working)
        await asyncio.sleep(2)  # the store finishes the requests that they had sent
        await self._read_all(group, members)

    async def _end(self) -> None:
        """End all remaining tasks, including those of killed processes."""
        for node in self.site.nodes:
            node.kill()
        # The appends of a dead process never complete, so here they can be cancelled.
        with mock.patch.object(AppendFuture, "cancel", asyncio.Future.cancel):
            for _ in range(_ENDS_MAX):  # uvicorn answers a cancelled request, and may wait for its client
                (_, *tasks) = sorted(asyncio.all_tasks(), key=lambda task: task is not asyncio.current_task())
                for task in tasks:
                    task.cancel()
                if not tasks:
                    return
                await asyncio.wait(tasks, timeout=1)
        raise AssertionError(f"tasks do not end: {tasks}")

    def _client(self, kind: type[C], number: int, **options: Any) -> C:
        name = f"{kind.__name__.lower()}-{number}"
        rng = random.Random(f"{self._seed} {name}")
        return kind(self.site, self.history, name, rng, records_s=_RECORDS_S / 3, **options)

    def _finishing(self) -> list[Coroutine[Any, Any, None]]:
        """Return the work that stops on request, after finishing what it has begun."""
        return [
            self.eraser.run_erasures(_TOPICS),
            self.stranger.run_statements(_TOPICS),
            self.jobs.run(),
            self.administrator.run_changes(_TOPICS),
        ]

    def _clients(self) -> list[Coroutine[Any, Any, None]]:
        """Return a producer for each way to the store, and readers for two of the ways.

        The seed decides their order; the producers after the first use sequence numbers.
        """

        def client(kind: type[Client], number: int) -> Any:
            name = f"{kind.__name__.lower()}-{number}"
            rng = random.Random(f"{self._seed} {name}")
            site = ways[kind](self.site, name, rng) if kind in ways else self.site
            return kind(site, self.history, name, rng, records_s=_RECORDS_S / 3)

        ways = {HttpProducer: HttpSite, HttpReader: HttpSite, KafkaProducer: KafkaSite, KafkaReader: KafkaSite}
        chance = random.Random(f"{self._seed} clients")
        producers = chance.sample([Producer, HttpProducer, KafkaProducer], 3)
        readers = chance.sample([Reader, HttpReader, KafkaReader], 2)
        return [
            *(client(kind, n).run(_ALL, sequenced=n > 0) for n, kind in enumerate(producers)),
            *(client(kind, n).run(_TOPICS, _GROUPS[n]) for n, kind in enumerate(readers)),
        ]

    def _members(self, group: Group) -> list[KafkaMember]:
        names = [f"member-{number}" for number in range(2)]
        chance = {name: random.Random(f"{self._seed} {name}") for name in names}
        sites = {name: KafkaSite(self.site, name, chance[name], patience_s=PATIENCE_S) for name in names}
        kinds = {name: chance[name].choice([KafkaMember, ClassicMember]) for name in names}
        return [kinds[name](sites[name], self.history, name, chance[name], group) for name in names]

    async def _create(self, topic: TopicSpec) -> None:
        configs = {**_CONFIGS, **topic.configs}
        if self.site.cluster is not None:
            configs["min.insync.replicas"] = "2"

        async def create(store: Store) -> None:
            await store.broker.topics.changes.create(INTERNAL, topic.name, partitions=topic.partitions, configs=configs)

        async def try_to() -> bool:
            with contextlib.suppress(TopicExistsError):  # the response to an earlier attempt was lost
                await self.site.call(create, CONTROLLER)
            return True

        await self._eventually(try_to, f"topic {topic.name} is not made")
        made = {"partitions": topic.partitions, "configs": configs, "now_ms": self.site.now_ms()}
        self.history.tell("bench", "topic", topic=topic.name, **made)

    async def _eventually(self, tried: Callable[[], Awaitable[bool]], what: str) -> None:
        """Retry for a minute, as clients do."""
        deadline, why = self._loop.time() + _PATIENCE_S, "nobody knows where"
        while self._loop.time() < deadline:
            try:
                if await tried():
                    return
            except (LogStoreError, NoConnectionError, ConnectionLostError) as error:
                why = repr(error)
            await asyncio.sleep(0.2)
        raise AssertionError(f"{what} for {_PATIENCE_S} s after all was healed: {why}")

    async def _read_all(self, shared: Group, members: list[asyncio.Task[None]]) -> None:
        """Read everything for the last time: through the store, by the group's members, and from the tables."""
        for node in self.site.nodes:
            node.lost_answers = 0.0
        await self._eventually(self._is_whole, "a replica is not in the ISR")
        client = Reader(self.site, self.history, "final", random.Random(f"{self._seed} final"))
        for topic, partition in [(each, p) for each in _ALL for p in range(each.partitions)]:

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
        await self._eventually(shared.is_settled, f"the members of {shared.name} do not settle")
        for task in members:
            task.cancel()
        await asyncio.wait(members)
        commits = [*itertools.product(_TOPICS, _GROUPS), (_SHARED, _MEMBERS)]
        for topic, group in commits:

            async def committed(name: str = topic.name, of: str = group) -> bool:
                phase, told = await client.committed(of, name)
                if phase == "ok":
                    self.history.tell("final", "final_commits", group=of, topic=name, **told)
                return phase == "ok"

            await self._eventually(committed, f"offsets of {group} are not told")
        await self.administrator.finish()
        self.eraser.look_at_disks(self.site.nodes[0].data)
        for node in self.site.nodes:
            if error := await node.stop():
                raise AssertionError(f"SIGTERM ended a healed node with {error!r}")
        self.administrator.look_at_tables(self.site.nodes[0].data)
        tables = self.site.nodes[0].data / "topics"
        for topic, reader in itertools.product(_ALL, READERS):
            told = read_version(tables / topic.name, None, reader=reader, partitions=topic.partitions)
            self.history.tell(f"final-{reader}", "final_delta", topic=topic.name, **told)
        in_table = committed_offsets(tables / OFFSETS_TOPIC)
        for topic, group in commits:
            offsets = in_table.get((group, topic.name), {})
            self.history.tell("final-delta-rs", "final_commits", group=group, topic=topic.name, offsets=offsets)

    async def _is_whole(self) -> bool:
        return self.site.cluster is None or self.site.cluster.is_whole()

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
    """Run the world of a seed for this many simulated seconds, or until ``events`` have happened.

    ``brokers``: 1 is a store of one node, more are a cluster. ``only``: the numbers of the faults that strike, None for
    all.
    ``kind``: the method of ``Nemesis`` whose faults strike, None for all.
    """
    # Garbage of earlier runs is collected now, because when it is freed must not change the history.
    gc.collect()
    with (
        tempfile.TemporaryDirectory(prefix="simulated-", dir=_SHM if _SHM.is_dir() else None) as directory,
        entropy.seeded(random.Random(f"{seed} chance")),
        replaced(PlayedThreads()),
    ):
        return World(seed, brokers, Path(directory), only, kind).run(virtual_seconds, events)
