"""An administrator of a simulated store. It creates, changes, deletes and recreates topics; in a cluster it also moves
replicas and elects leaders.

Its topics are in no history, because the checker identifies a log by name. Their guarantees are checked here instead: a
topic has the records that were acknowledged for it, each once, from offset 0 on, and no record of an earlier topic with
its name; its configuration and number of partitions are those that were acknowledged.
"""

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import ElectionType
from logstore.errors import LogStoreError, TopicExistsError, UnknownTopicError, UnknownTopicIdError
from logstore.node import Store
from tests.faults.bench.delta_observer import read_version
from tests.faults.bench.records import Record, rows_of_table
from tests.simulation.clients import CLIENT, TopicSpec, decoded
from tests.simulation.history import History
from tests.simulation.node import ConnectionLostError, NoConnectionError
from tests.simulation.site import CONTROLLER, Log, Place, Site

#: Simulated seconds within which a change succeeds, whatever faults strike meanwhile.
_PATIENCE_S = 180.0
_AGAIN_S = 0.3
_NAMES = ("made-0", "made-1")


@dataclass(slots=True)
class _Life:
    """A topic from its creation to its deletion."""

    name: str
    number: int
    partitions: int
    topic_id: UUID
    configs: dict[str, str]
    #: The acknowledged values by partition and offset; ``sent`` has all values that were sent.
    acknowledged: dict[tuple[int, int], str] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)

    def contradictions(self, partition: int, rows: Sequence[Any]) -> list[str]:
        """Return what is wrong with ``rows``: all records of a partition, in the form of ``rows_of_table``."""
        found = {row[0]: str(row[4]) for row in rows}
        where = f"{self.name}-{partition}, made as number {self.number}"
        strange = [value for value in found.values() if value not in self.sent]
        lost = [at for (p, at), value in self.acknowledged.items() if p == partition and found.get(at) != value]
        wrong = []
        if strange:
            wrong.append(f"{where} has records that were never sent to it: {strange[:3]}")
        if lost:
            wrong.append(f"{where} lacks acknowledged records at {lost[:10]}")
        if len(set(found.values())) < len(rows) or list(found) != list(range(len(rows))):
            wrong.append(f"{where} has records twice, or holes: offsets {list(found)[:20]}")
        return wrong


class Administrator:
    def __init__(self, site: Site, history: History, rng: random.Random) -> None:
        self._site, self._history, self._rng = site, history, rng
        #: Anomalies that the administrator has found.
        self.broken: list[str] = []
        #: True if no further change begins.
        self.is_ending = False
        self._lives: dict[str, _Life] = {}
        self._gone: list[UUID] = []

    async def run_changes(self, topics: Sequence[TopicSpec]) -> None:
        """Change its own topics, and move the replicas of ``topics``, until ``is_ending``."""
        for number in itertools.count():
            await asyncio.sleep(self._rng.uniform(0.2, 3))
            if self.is_ending:
                return
            what = self._rng.choice(["topic"] if self._site.cluster is None else ["topic", "move", "elect"])
            if what == "topic":
                await self._live(self._rng.choice(_NAMES), number)
            elif what == "move":
                await self._move(self._rng.choice(topics))
            else:
                await self._elect()

    # ---- topics -----------------------------------------------------------------------------------------------------

    async def _live(self, name: str, number: int) -> None:
        life = self._lives.pop(name, None)
        if life is not None:
            await self._check(life)
            await self._delete(life)
        life = await self._create(name, number)
        await self._produce(life)
        if self._rng.random() < 0.5:
            await self._add_partition(life)
            await self._produce(life)
        if self._rng.random() < 0.5:
            await self._alter(life)
        await self._check(life)
        self._lives[name] = life

    async def _create(self, name: str, number: int) -> _Life:
        partitions, configs = self._rng.randint(1, 2), {"segment.ms": "300"}
        if self._site.cluster is not None:
            configs["min.insync.replicas"] = "2"

        async def create(store: Store) -> UUID:
            broker = store.broker
            try:
                made = await broker.topics.changes.create(CLIENT, name, partitions=partitions, configs=configs)
            except TopicExistsError:  # an earlier attempt has created it, or the topic before it is not deleted yet
                made = broker.topics.served.topic(CLIENT, name)
                if made.topic_id in self._gone:
                    await broker.topics.changes.delete(CLIENT, name, made.topic_id)
                    raise
            assert made is not None
            return made.topic_id

        self._history.tell("administrator", "fault", kind="create", topic=name)
        topic_id = await self._insist(CONTROLLER, create, f"{name} is not made")
        return _Life(name, number, partitions, topic_id, configs)

    async def _delete(self, life: _Life) -> None:
        async def delete(store: Store) -> None:
            await store.broker.topics.changes.delete(CLIENT, life.name, life.topic_id)

        self._history.tell("administrator", "fault", kind="delete", topic=life.name)
        self._gone.append(life.topic_id)
        await self._insist(CONTROLLER, delete, f"{life.name} is not deleted", UnknownTopicError, UnknownTopicIdError)

    async def _add_partition(self, life: _Life) -> None:
        async def add(store: Store) -> None:
            await store.broker.topics.changes.add_partitions(CLIENT, life.name, life.partitions + 1)

        self._history.tell("administrator", "fault", kind="add_partition", topic=life.name)
        await self._insist(CONTROLLER, add, f"{life.name} gets no partition")
        life.partitions += 1

    async def _alter(self, life: _Life) -> None:
        life.configs["segment.ms"] = str(self._rng.choice([400, 800, 2_000]))

        async def alter(store: Store) -> None:
            await store.broker.topics.changes.alter_configs(
                CLIENT, life.name, {"segment.ms": life.configs["segment.ms"]}
            )

        self._history.tell("administrator", "fault", kind="alter", topic=life.name)
        await self._insist(CONTROLLER, alter, f"{life.name} is not altered")

    async def _produce(self, life: _Life) -> None:
        for _ in range(self._rng.randint(1, 4)):
            partition = self._rng.randrange(life.partitions)
            count = self._rng.randint(1, 5)
            values = [f"life-{life.number}-{len(life.sent) + n}" for n in range(count)]
            life.sent.update(values)
            records = [Record(value, None, value, None) for value in values]

            async def produce(store: Store, to: int = partition, records: Sequence[Record] = records) -> int:
                broker = store.broker
                topic = broker.topics.served.topic(CLIENT, life.name)
                if topic.topic_id != life.topic_id:
                    raise UnknownTopicIdError(f"{life.name} is another topic here")
                result = await broker.produce.records.produce(CLIENT, topic, decoded(records), partition=to, acks=-1)
                (part,) = result.partitions
                if part.error is not None:
                    raise part.error
                return part.base_offset

            try:
                base = await self._site.call(produce, Log(life.name, partition))
            except (LogStoreError, NoConnectionError, ConnectionLostError):
                await asyncio.sleep(_AGAIN_S)
            else:
                life.acknowledged.update({(partition, base + n): value for n, value in enumerate(values)})

    async def _check(self, life: _Life) -> None:
        """Read and check all records of a topic."""
        for partition in range(life.partitions):

            async def read(store: Store, of: int = partition) -> list[Any]:
                broker, rows, at = store.broker, [], 0
                topic = broker.topics.served.topic(CLIENT, life.name)
                if topic.topic_id != life.topic_id:
                    raise UnknownTopicIdError(f"{life.name} is another topic here")
                while True:
                    found = await broker.fetch.partition(
                        CLIENT, topic, of, at, max_bytes=100_000, min_bytes=1, max_wait_ms=0
                    )
                    rows += rows_of_table(found.records)
                    at = found.next_offset
                    if at >= found.high_watermark:
                        return rows

            rows = await self._insist(Log(life.name, partition), read, f"{life.name}-{partition} is not read")
            self.broken += life.contradictions(partition, rows)
        await self._insist(Log(life.name, 0), _require(life), f"{life.name} is not as it was altered")

    # ---- replicas and leaders ---------------------------------------------------------------------------------------

    async def _move(self, topic: TopicSpec) -> None:
        """Move replicas of a partition away from a broker, and back."""
        assert self._site.cluster is not None
        partition, brokers = self._rng.randrange(topic.partitions), list(self._site.cluster.nodes)
        self._history.tell("administrator", "fault", kind="move", topic=topic.name, moved=partition)
        for target in (self._rng.sample(brokers, 2), self._rng.sample(brokers, len(brokers))):

            async def move(store: Store, target: Sequence[int] = target) -> None:
                await store.broker.topics.leaders.reassign(
                    INTERNAL, store.broker.topics.served.topic(CLIENT, topic.name), {partition: target}
                )

            await self._insist(CONTROLLER, move, f"{topic.name}-{partition} is not moved")
            await asyncio.sleep(self._rng.uniform(0, 4))

    async def _elect(self) -> None:
        async def elect(store: Store) -> None:
            await store.broker.topics.leaders.elect_leaders(INTERNAL, ElectionType.PREFERRED)

        self._history.tell("administrator", "fault", kind="elect")
        await self._insist(CONTROLLER, elect, "no leader is elected")

    # ---- the end ----------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Read all remaining topics once more."""
        for life in self._lives.values():
            await self._check(life)

    def look_at_tables(self, data: Path) -> None:
        """Compare the tables with the acknowledged records, after all nodes have stopped."""
        for life in self._lives.values():
            told = read_version(data / "topics" / life.name, None, reader="delta-rs", partitions=life.partitions)
            for partition in range(life.partitions):
                self.broken += life.contradictions(partition, [row[1:] for row in told["rows"] if row[0] == partition])

    async def _insist(
        self, place: Place, work: Callable[[Store], Awaitable[Any]], what: str, *done: type[LogStoreError]
    ) -> Any:
        """Do ``work`` again until it succeeds. ``done`` are errors that mean that an earlier attempt succeeded."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _PATIENCE_S
        why: Exception
        while True:
            try:
                return await self._site.call(work, place)
            except done:
                return None
            except (LogStoreError, NoConnectionError, ConnectionLostError) as error:
                why = error
            except Exception as error:  # noqa: BLE001 - any other error is unforeseen, and reported
                self._site.unforeseen.append(f"a request met an unforeseen error: {error!r}")
                why = error
            if loop.time() > deadline:
                raise AssertionError(f"{what} for {_PATIENCE_S} s: {why!r}") from why
            await asyncio.sleep(_AGAIN_S)


def _require(life: _Life) -> Callable[[Store], Awaitable[None]]:
    async def as_altered(store: Store) -> None:
        topic = store.broker.topics.served.topic(CLIENT, life.name)
        shown = topic.snapshot.config_overrides
        if any(shown.get(name) != value for name, value in life.configs.items()):
            raise UnknownTopicError(f"{life.name} has {shown}, not yet {life.configs}")
        if len(topic.partitions) != life.partitions:
            raise UnknownTopicError(f"{life.name} has {len(topic.partitions)} partitions, not {life.partitions}")

    return as_altered
