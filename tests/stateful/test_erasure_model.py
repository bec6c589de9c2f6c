"""Erasures beside everything else that rewrites a topic, by a seed: rolls, merges, compactions, other writers, restarts
and kills. Erased records are in no file and no response, and nothing else is lost.
"""

import asyncio
import contextlib
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from deltalake import DeltaTable

from logstore.broker import upkeep
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.delta.topic_table import TopicTable
from logstore.errors import LogStoreError
from logstore.log.topic import Topic
from logstore.table_files import open_table
from tests.support.data_directory import copy_of_one_moment
from tests.support.eventually import eventually_async
from tests.support.keyed_topics import KeyedTopic
from tests.support.local_jobs import compact
from tests.support.running_broker import CLIENT, read_all, records, running_broker
from tests.support.virtual_time import run

KEYS = [b"ada", b"bob", b"cy", b"dan"]
PARTITIONS = 2


@dataclass
class Model:
    """The appended values by key, and the erased values."""

    random: random.Random
    is_compacted: bool
    values: dict[bytes, list[bytes]] = field(default_factory=lambda: {key: [] for key in KEYS})
    erased: set[bytes] = field(default_factory=set)
    began: list[str] = field(default_factory=list)

    def left(self) -> set[bytes]:
        return {value for values in self.values.values() for value in values} - self.erased

    def last(self) -> set[bytes]:
        """Return the values that compaction keeps."""
        return {values[-1] for values in self.values.values() if values} - self.erased


class Store:
    """A broker on ``data``, and jobs and other writers on the same table."""

    def __init__(self, data: Path, model: Model) -> None:
        self.data, self.model = data, model
        self._end = contextlib.AsyncExitStack()
        self._jobs: list[asyncio.Task[None]] = []
        self.broker: Broker | None = None

    async def start(self) -> None:
        self.broker = await self._end.enter_async_context(running_broker(self.data))
        if not self.broker.topics.served.all(INTERNAL):
            policy = "compact,delete" if self.model.is_compacted else "delete"
            configs = {"cleanup.policy": policy, "min.cleanable.dirty.ratio": "0", "segment.ms": "3600000"}
            await self.broker.topics.changes.create(INTERNAL, "t", partitions=PARTITIONS, configs=configs)

    @property
    def topic(self) -> Topic:
        assert self.broker is not None
        return self.broker.topics.served.topic(INTERNAL, "t")

    async def stop(self) -> None:
        await asyncio.gather(*self._jobs)
        self._jobs.clear()
        await self._end.aclose()

    async def produce(self) -> None:
        assert self.broker is not None
        for key in self.model.random.choices(KEYS, k=3):
            value = b"%032x" % self.model.random.getrandbits(128)
            partition = KEYS.index(key) % PARTITIONS
            result = await self.broker.produce.records.produce(
                INTERNAL, self.topic, records([value], keys=[key]), partition=partition
            )
            result.require_stored()
            self.model.values[key].append(value)

    async def roll(self) -> None:
        assert self.broker is not None
        await self.broker.topics.tables.roll(INTERNAL, self.topic)

    async def merge(self) -> None:
        assert self.broker is not None
        spared = mock.patch("logstore.log.merge.NEWEST_KEPT", 0), mock.patch.object(upkeep, "MERGE_AT", 1)
        with spared[0], spared[1], contextlib.suppress(LogStoreError):
            await self.broker._upkeep.merge(self.topic)

    async def erase(self) -> None:
        assert self.broker is not None
        key = self.model.random.choice(KEYS)
        # Values that are appended from here on may come before or after the end offset that the store takes for this
        # erasure.
        self.model.erased.update(self.model.values[key])
        self.model.began.append(await self.broker.erasing.begin(CLIENT, self.topic, [key]))

    async def compact(self) -> None:
        """Start a compaction, which runs while the next steps happen."""
        if not self.model.is_compacted:
            return
        table = TopicTable.open(open_table(self.data / "topics" / "t"))
        topic = KeyedTopic(self.data, "t", table)

        async def work() -> None:
            with contextlib.suppress(AssertionError):  # other commits overtook it too often; a later run compacts
                await asyncio.to_thread(compact, topic, 10**13)

        self._jobs.append(asyncio.create_task(work()))

    async def optimize(self) -> None:
        # delta-rs does not notice that another commit has rewritten the same files, and would double the rows.
        await asyncio.gather(*self._jobs)
        async with self.topic.commit_lock:
            with contextlib.suppress(Exception):  # an erasure or a merge has committed first
                await asyncio.to_thread(DeltaTable(str(self.data / "topics" / "t")).optimize.compact)
        await self.refresh()

    async def restore(self) -> None:
        """Restore a version whose files still exist."""

        def back() -> None:
            table = DeltaTable(str(self.data / "topics" / "t"))
            table.restore(self.model.random.randint(max(0, table.version() - 3), table.version()))

        with contextlib.suppress(Exception):
            await asyncio.to_thread(back)
        await self.refresh()

    async def refresh(self) -> None:
        assert self.broker is not None
        await self.broker.topics.tables.refresh(INTERNAL, self.topic)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def kill(self) -> None:
        """Start a new process on what the disk has at this moment."""
        killed = self.data.with_name("killed")
        copy_of_one_moment(self.data, killed)
        await self.stop()
        shutil.rmtree(self.data)
        killed.rename(self.data)
        await self.start()

    def waiting(self) -> list[str | None]:
        """Return for each unfinished erasure what it waits for."""
        assert self.broker is not None
        erasing = self.broker.erasing
        reports = [one for one in erasing.reports(self.topic) if one.state != "erased"]
        return [erasing.report(self.topic, one.id)[2] for one in reports]

    async def check(self) -> None:
        assert self.broker is not None
        await asyncio.gather(*self._jobs)

        try:
            await eventually_async(lambda: not self.waiting(), seconds=60)
        except AssertionError:
            raise AssertionError(f"erasures are not over: {self.waiting()}") from None
        await self.refresh()
        found = {value for p in range(PARTITIONS) for _, value in await read_all(self.broker, self.topic, p) if value}
        assert not found & self.model.erased, "an erased record is served"
        left = self.model.last() if self.model.is_compacted else self.model.left()
        assert left <= found <= self.model.left(), "a record is lost"
        self.topic.partitions[0].check()
        for file in (file for file in self.data.rglob("*") if file.is_file()):
            content = file.read_bytes()
            assert not [value for value in self.model.erased if value in content], file


STEPS = ["produce"] * 6 + ["roll"] * 3 + ["erase"] * 2 + ["merge", "compact", "optimize", "restore", "restart", "kill"]


async def history(directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = Store(directory / "data", Model(chance, is_compacted=bool(seed % 2)))
    await store.start()
    try:
        for step in chance.choices(STEPS, k=40):
            await getattr(store, step)()
            if chance.random() < 0.1:
                await store.check()
        await store.erase()
        await store.check()
    finally:
        await store.stop()


@pytest.mark.parametrize("seed", range(2))
def test_histories(tmp_path: Path, seed: int) -> None:
    run(history(tmp_path, seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 142))
def test_more_histories(tmp_path: Path, seed: int) -> None:
    run(history(tmp_path, seed))
