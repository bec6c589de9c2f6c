"""A store with a file system in memory leaves no trace on the disk, and has everything again at its next start."""

import asyncio
import json
import random
from pathlib import Path

from logstore.broker.authorizer import Authorizer
from logstore.broker.context import INTERNAL
from logstore.broker.quotas import Quotas
from logstore.entropy import seeded
from logstore.node import running_store
from logstore.settings import Settings
from logstore.threads import replaced
from tests.simulation.loop import PlayedThreads, SimulatedLoop
from tests.support.manual_clock import ManualClock
from tests.support.memory_filesystem import MemoryFileSystem
from tests.support.running_broker import produce, read_all
from tests.support.virtual_time import run


async def two_starts(data: Path, clock: ManualClock, disk: MemoryFileSystem) -> None:
    stored: list[bytes] = []
    for number, values in enumerate(([b"a", b"b"], [b"c"])):
        async with running_store(Settings(data=data), Authorizer(), Quotas(), clock=clock, filesystem=disk) as store:
            broker = store.broker
            if number == 0:
                await broker.topics.changes.create(INTERNAL, "t", partitions=1, configs={})
            topic = broker.topics.served.topic(INTERNAL, "t")
            assert await read_all(broker, topic) == list(enumerate(stored))
            await produce(broker, topic, [*values])
            await broker.topics.tables.roll(INTERNAL, topic)
            stored += values
            assert await read_all(broker, topic) == list(enumerate(stored))
        clock.advance(1_000)


def test_a_store_touches_no_disk_but_through_its_file_system(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = MemoryFileSystem(clock)
    run(two_starts(tmp_path / "data", clock, disk))
    assert list(tmp_path.iterdir()) == []
    kinds = {Path(name).suffix or Path(name).name for name in disk.files()}
    assert {".parquet", ".json", ".log", "lock", "secret"} <= kinds


def test_commits_have_the_time_of_the_stores_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    disk = MemoryFileSystem(clock)
    first = clock.now_ms()
    run(two_starts(tmp_path / "data", clock, disk))
    entries = [content for name, content in disk.files().items() if "/topics/t/_delta_log/" in name]
    times = [json.loads(entry.splitlines()[0])["commitInfo"]["timestamp"] for entry in sorted(entries)]
    assert len(times) == 3
    assert set(times) == {first, first + 1_000}


def test_a_seed_gives_the_same_files_byte_for_byte(tmp_path: Path) -> None:
    def files(seed: int) -> dict[str, bytes]:
        clock = ManualClock()
        disk = MemoryFileSystem(clock)
        with (
            replaced(PlayedThreads()),
            seeded(random.Random(seed)),
            asyncio.Runner(loop_factory=lambda: SimulatedLoop(random.Random(1))) as runner,
        ):
            runner.run(asyncio.wait_for(two_starts(tmp_path / "data", clock, disk), 60))
        return disk.files()

    first = files(7)
    assert files(7) == first
    assert files(8).keys() != first.keys()
