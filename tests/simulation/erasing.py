"""A client of simulated worlds that erases its own records, and then looks for their bytes on the disks."""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from logstore.node import Store
from logstore.records.where.parser import parse_where
from tests.faults.bench.records import Record, stored
from tests.simulation.clients import CLIENT, Producer, TopicSpec
from tests.simulation.site import Log

#: Steps of an erasure between its first and its last record, at which a process may die.
STEPS = (
    "erase.recorded",
    "erase.rolled",
    "erase.written",
    "erase.committed",
    "erase.pending",
    "erase.journal",
    "erase.deleted",
    "erase.swept",
)
_LOOK_S = 0.3


@dataclass(frozen=True, slots=True)
class Erased:
    """Erased records of a key: their values contain ``words``, which no other value does."""

    topic: str
    words: str


class Eraser(Producer):
    """Stores records with their own key, and erases them by the key or by an expression."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Erasures that are reported as finished.
        self.erased: list[Erased] = []
        #: Anomalies that this client has found.
        self.broken: list[str] = []
        #: True if no further erasure begins.
        self.is_ending = False

    async def run_erasures(self, topics: Sequence[TopicSpec]) -> None:
        """Erase until ``is_ending``."""
        for number in itertools.count():
            await asyncio.sleep(self.rng.uniform(0.5, 4))
            if self.is_ending:
                return
            topic = self.rng.choice(topics)
            partition = self.rng.randrange(topic.partitions)
            key = f"{self._name}-key-{number}"
            words = f"words-of-{key}"
            records = [Record(f"{key}-{n}", key, f"{words}-{n}", None) for n in range(3)]
            phase, told = await self._produce(topic, partition, records, "all", None)
            if phase != "ok":
                continue  # their outcome is open, so they are not erased
            # Other clients may read the records meanwhile; the records may be in the table or only in the journal.
            await asyncio.sleep(self.rng.choice([0, 0.2, 2]))
            rows = [(at, 0, r.record_id, r.key, r.value) for (_, at), r in zip(told["places"], records, strict=True)]
            state = {"topic": topic.name, "partition": partition, "how": "erase", "rows": rows}
            statement = self.history.invoke(self.process, "statement", **state)
            version = await self._erase(topic.name, key, by_expression=self.rng.random() < 0.3)
            self.history.complete(statement, self.process, "statement", "ok", **state, version=version)
            erased = Erased(topic.name, words)
            self.broken += _left(self.site.nodes[0].data, [erased])
            self.erased.append(erased)

    async def _erase(self, topic: str, key: str, *, by_expression: bool) -> int:
        """Erase the records of a key, and return the last version that this committed, once the state is ``erased``.

        If no response says that an erasure has begun, another one is begun.
        """
        where = parse_where(f"key == x'{(stored(key) or b'').hex()}'") if by_expression else None
        keys = [] if where else [stored(key) or b""]

        async def begin(store: Store) -> str:
            broker = store.broker
            return await broker.erasing.begin(CLIENT, broker.topics.served.topic(CLIENT, topic), keys, where)

        while True:
            phase, erasure = await self._send(Log(topic, 0), begin)
            if phase != "ok":
                await asyncio.sleep(_LOOK_S)
                continue
            while (version := await self._version(topic, erasure)) is not None:
                if version >= 0:
                    return version
                await asyncio.sleep(_LOOK_S)

    async def _version(self, topic: str, erasure: str) -> int | None:
        """Return the last version of a finished erasure, -1 for an unfinished one, or None if no broker knows it."""

        async def look(store: Store) -> int | None:
            broker = store.broker
            found = broker.topics.served.topic(CLIENT, topic)
            if (count := broker.erasing.count(found, erasure)) is not None:
                return None if count.failure is not None else -1
            reports = {report.id: report for report in broker.erasing.reports(found)}
            if erasure not in reports:
                return None  # the broker that was searching for the records has ended
            is_over = reports[erasure].state == "erased"
            # An earlier erasure that got no response may have erased the records, or a commit of another kind may have.
            made = [version for one in reports.values() for version in one.versions]
            return max(made, default=found.table.snapshot().version) if is_over else -1

        phase, version = await self._send(Log(topic, 0), look)
        return version if phase == "ok" else -1

    def look_at_disks(self, data: Path) -> None:
        """Look for bytes of all erased records, which must not come back later either."""
        self.broken += _left(data, self.erased)


def _left(data: Path, erased: Sequence[Erased]) -> Iterator[str]:
    """Yield the files below ``data`` that still have erased bytes."""
    for path in sorted(path for path in data.rglob("*") if path.is_file()):
        content = path.read_bytes() + _values(path)
        if found := [one.words for one in erased if f"{one.words}-".encode() in content]:
            yield f"erased records are still in {path.relative_to(data)}: {found}"


def _values(path: Path) -> bytes:
    """Return the values in a Parquet file, which may be compressed."""
    if path.suffix == ".parquet":
        with contextlib.suppress(pa.ArrowInvalid):  # a power cut has left a part of the file, which no commit names
            return b"".join(filter(None, pq.ParquetFile(path).read(["value"])["value"].to_pylist()))
    return b""
