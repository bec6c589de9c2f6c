"""``python -m benchmarks.erasure``: ``logstore topic erase`` of 1,000 keys beside a key compaction of the same topic.

Both work on the same files (hard links, for no file of a table is ever changed), in turns, each in a process of its
own. Every file has records that go, in both: a record that a later one of its key replaces, or one of an erased key.
Seconds are those from the request to the report that says ``erased``, and those of the job from its first look at the
table to its commit; neither the start of the store nor that of Python is in them. On a machine that others use, compare
CPU seconds.
"""

import argparse
import asyncio
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.compaction import keys_of
from benchmarks.server import ROOT, BenchmarkError

PARTITIONS = 4
TOPIC = "users"
ERASED_KEYS = 1_000
RECORD_BYTES = 1_000
#: Records of a segment: about 100 MB.
_SEGMENT = 100_000
_PART = 10_000


def values_of(count: int, chance: np.random.Generator) -> pa.BinaryArray:
    """Return JSON objects that a codec halves: random hexadecimal digits in a frame of text."""
    head, tail = (
        b'{"event":"view","session":"',
        b'","page":"/products/list","referrer":"https://example.org/","ok":true}',
    )
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)[
        chance.integers(0, 16, (count, RECORD_BYTES - 14 - len(head) - len(tail)), dtype=np.uint8)
    ]
    parts = [np.tile(np.frombuffer(text, np.uint8), (count, 1)) for text in (head, tail)]
    rows = np.hstack([parts[0], digits, parts[1]])
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())])


def write_segment(data: Path, partition: int, base: int, keys: npt.NDArray[np.int64]) -> dict[str, object]:
    """Write one file, in a separate process; return its fields."""
    from dataclasses import asdict

    from logstore.records.schema import LOG_SCHEMA
    from logstore.segments.writer import SegmentWriter
    from logstore.table_root import open_root

    chance, now_ms = np.random.default_rng((partition, base)), time.time_ns() // 1_000_000
    with SegmentWriter(open_root(data).open(TOPIC), partition, base, base + len(keys), 0) as writer:
        for at in range(0, len(keys), _PART):
            part = keys[at : at + _PART]
            offsets = pa.array(np.arange(base + at, base + at + len(part)))
            times = pa.array(np.full(len(part), now_ms), pa.timestamp("ms", "UTC"))
            headers = pa.nulls(len(part), LOG_SCHEMA.field("headers").type)
            columns = [offsets, times, keys_of(part), values_of(len(part), chance), headers]
            writer.write(pa.RecordBatch.from_arrays(columns, schema=LOG_SCHEMA))
        return asdict(writer.finish(((0, 0),)))


def keys_in(records: int, per_key: float) -> int:
    """Return the number of keys of each partition."""
    return max(1, int(records // PARTITIONS / per_key))


def make_topic(data: Path, records: int, per_key: float) -> None:
    """Create a compacted topic with ``per_key`` records of each key on average; nothing was compacted."""
    from logstore.delta.topic_table import RollPart, TopicTable
    from logstore.segments.writer import Segment
    from logstore.table_root import open_root

    root = open_root(data)
    root.prepare()
    overrides = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "604800000"}
    table = TopicTable.create(root, TOPIC, num_partitions=PARTITIONS, config_overrides=overrides)
    each = records // PARTITIONS
    chance = np.random.default_rng(1)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for partition in range(PARTITIONS):
            keys = chance.integers(0, keys_in(records, per_key), each) * PARTITIONS + partition
            made = [
                pool.submit(write_segment, data, partition, base, keys[base : base + _SEGMENT])
                for base in range(0, each, _SEGMENT)
            ]
            segments = tuple(Segment(**future.result()) for future in made)  # type: ignore[arg-type]
            if table.commit_roll([RollPart(partition, 0, each, 0, segments)]).refused:
                raise BenchmarkError("a roll was refused")


# ---- one turn, in a process of its own ------------------------------------------------------------------------------


def compact(data: Path, _: float) -> int:
    """Compact the topic; return the number of records that are left."""
    from rich.console import Console

    from compaction_jobs.applications import SparkApplication
    from compaction_jobs.context import JobContext
    from compaction_jobs.jobs import run_job, topics_of
    from compaction_jobs.report import Progress
    from compaction_jobs.storage_clock import StorageClock
    from logstore.table_root import open_root

    root = open_root(data)
    with SparkApplication("bench") as spark:
        context = JobContext(spark, Progress(Console(file=io.StringIO())), StorageClock(root), here_bytes_max=1 << 62)
        with timed():
            (topic,) = run_job("compact", topics_of("compact", root, [TOPIC], {}), context).topics
    if topic.error is not None or topic.after is None:
        raise BenchmarkError(f"the compaction failed: {topic.error}")
    return topic.after.records


def erase(data: Path, per_key: float) -> int:
    """Erase records; return how many were erased."""
    from logstore.broker.authorizer import Authorizer
    from logstore.broker.context import INTERNAL
    from logstore.broker.quotas import Quotas
    from logstore.node import running_store
    from logstore.settings import Settings

    wanted: dict[str, Any] = {"data": data}

    async def run() -> int:
        async with running_store(Settings(**wanted), Authorizer(), Quotas()) as store:
            topic = store.broker.topics.served.topic(INTERNAL, TOPIC)
            count = keys_in(topic.partitions[0].log_end_offset * PARTITIONS, per_key) * PARTITIONS
            keys = keys_of(np.linspace(0, count - 1, ERASED_KEYS).astype(np.int64)).to_pylist()
            with timed():
                erasure = await store.broker.erasing.begin(INTERNAL, topic, keys)
                while (report := store.broker.erasing.report(topic, erasure)[0]).state != "erased":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            return report.records

    return asyncio.run(run())


class timed:  # noqa: N801  it reads as a verb
    """Print the seconds of the block by the clock, and of the processor."""

    def __enter__(self) -> None:
        self._began, self._cpu = time.monotonic(), time.process_time()

    def __exit__(self, *_: object) -> None:
        print(json.dumps({"seconds": time.monotonic() - self._began, "cpu_seconds": time.process_time() - self._cpu}))


# ---- both -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Turn:
    seconds: float
    cpu_seconds: float
    records: int


def take_turn(name: str, made: Path, data: Path, per_key: float) -> Turn:
    shutil.copytree(made, data, copy_function=os.link)
    try:
        os.sync()
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.erasure", "--turn", name, "--directory", str(data)),
                *("--records-per-key", str(per_key)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={**os.environ, "LOGSTORE_LOG_LEVEL": "error"},
        )
        lines = [line for line in ran.stdout.splitlines() if line.startswith(("{", "records"))]
        took = json.loads(lines[-2])
        return Turn(took["seconds"], took["cpu_seconds"], int(lines[-1].split()[1]))
    finally:
        shutil.rmtree(data)


def turns(directory: Path, records: int, per_key: float, rounds: int) -> Iterator[tuple[str, Turn]]:
    made = directory / "made"
    try:
        make_topic(made, records, per_key)
        for number in range(rounds):
            # Both begin a round equally often.
            for name in ("compact", "erase") if number % 2 == 0 else ("erase", "compact"):
                yield name, take_turn(name, made, directory / name, per_key)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.erasure", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of keys and values (default: 2)")
    parser.add_argument(
        "--records-per-key",
        type=float,
        default=2.0,
        help="with 2 (default) a compaction keeps 43 %% of the records, with 0.2 it keeps 91 %%",
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--directory", type=Path, default=ROOT / ".cache/bench")
    parser.add_argument("--turn", choices=("compact", "erase"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.turn is not None:
        run = {"compact": compact, "erase": erase}[given.turn]
        print("records", run(given.directory, given.records_per_key))
        return 0
    records = int(given.gigabytes * 1e9) // RECORD_BYTES // PARTITIONS * PARTITIONS
    print(f"{records:,} records of {RECORD_BYTES:,} B in {PARTITIONS} partitions, {ERASED_KEYS:,} keys erased")
    found: dict[str, list[Turn]] = {}
    for name, turn in turns(
        given.directory.absolute() / f"erasure-{os.getpid()}", records, given.records_per_key, given.rounds
    ):
        found.setdefault(name, []).append(turn)
        print(f"{name}: {turn.seconds:.1f} s, CPU {turn.cpu_seconds:.1f} s, {turn.records:,} records", flush=True)
    pairs = list(zip(found["erase"], found["compact"], strict=True))
    by_clock = statistics.median(one.seconds / other.seconds for one, other in pairs)
    by_cpu = statistics.median(one.cpu_seconds / other.cpu_seconds for one, other in pairs)
    print(f"erase / compact: {by_clock:.2f}, of CPU {by_cpu:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
