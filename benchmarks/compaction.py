"""``python -m benchmarks.compaction``: key compaction beside Kafka's own log cleaner, on the same records, in one run.

Two partitions, two threads on each side (Kafka cleans a partition with one thread). First everything is dirty, then one
record in a hundred is written again. Kafka's seconds are those that its cleaner logs, ours those of the job from its
first look at the table to its commit: neither the start of the broker nor that of Python is in them, and ours has done
a small job before. The other side stands still meanwhile. On a machine that others use, compare CPU seconds. Rates are
of record data, keys and values, so that a ratio of rates is one of seconds.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.kafka import Broker, Kafka, find_kafka
from benchmarks.server import ROOT, BenchmarkError

PARTITIONS = 2
KEYS = 100_000
VALUE_BYTES = 100
KEY_BYTES = 14
RECORD_BYTES = KEY_BYTES + VALUE_BYTES
TOPIC = "users"
#: Records that are generated at once, and such batches per segment of ours: as many rolls as Kafka would have segments.
_BLOCK = 100_000
_SEGMENT_BLOCKS = 10
_CLEANED = re.compile(r"cleaned log (\S+)-(\d+) .*?processed in ([\d.,]+) seconds", re.DOTALL)
_WAIT_SECONDS = 300


def keys_of(numbers: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Return keys of 14 bytes, such as ``key-0000012345``."""
    digits = (numbers[:, None] // 10 ** np.arange(9, -1, -1)) % 10 + ord("0")
    text = np.hstack([np.tile(np.frombuffer(b"key-", np.uint8), (len(numbers), 1)), digits.astype(np.uint8)])
    return _fixed(text)


def _fixed(rows: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    count, width = rows.shape
    offsets = np.arange(0, count * width + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())])


def blocks(records: int, seed: int) -> Iterator[tuple[pa.BinaryArray, pa.BinaryArray]]:
    """Yield keys and values of a partition, ``_BLOCK`` at a time; values are random bytes, which do not compress."""
    chance = np.random.default_rng(seed)
    for begin in range(0, records, _BLOCK):
        count = min(_BLOCK, records - begin)
        keys = keys_of(chance.integers(0, KEYS // PARTITIONS, count))
        yield keys, _fixed(chance.integers(0, 256, (count, VALUE_BYTES), dtype=np.uint8))


# ---- ours -----------------------------------------------------------------------------------------------------------


def make_table(data: Path) -> None:
    from logstore.delta.topic_table import TopicTable
    from logstore.table_root import open_root

    root = open_root(data)
    root.prepare()
    overrides = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    TopicTable.create(root, TOPIC, num_partitions=PARTITIONS, config_overrides=overrides)


def roll(data: Path, records: int, seed: int) -> None:
    """Append ``records`` to each partition, as rolls do."""
    from logstore.delta.topic_table import RollPart, TopicTable
    from logstore.records.schema import LOG_SCHEMA
    from logstore.segments.writer import SegmentWriter
    from logstore.table_root import open_root

    files = open_root(data).open(TOPIC)
    table = TopicTable.open(files)
    now_ms = time.time_ns() // 1_000_000
    for partition, state in table.snapshot().partitions.items():
        segments = []
        at = state.sealed
        source = blocks(records, seed + partition)
        while at < state.sealed + records:
            end = min(state.sealed + records, at + _BLOCK * _SEGMENT_BLOCKS)
            with SegmentWriter(files, partition, at, end, 0) as writer:
                while at < end:
                    keys, values = next(source)
                    offsets = pa.array(np.arange(at, at + len(keys)))
                    times = pa.array(np.full(len(keys), now_ms), pa.timestamp("ms", "UTC"))
                    headers = pa.nulls(len(keys), LOG_SCHEMA.field("headers").type)
                    writer.write(pa.RecordBatch.from_arrays([offsets, times, keys, values, headers], schema=LOG_SCHEMA))
                    at += len(keys)
                segments.append(writer.finish(((0, 0),)))
        part = RollPart(partition, state.sealed, state.sealed + records, 0, tuple(segments))
        if table.commit_roll([part]).refused:
            raise BenchmarkError("a roll was refused")


_JOB = """
import io, pathlib, sys, tempfile, time
from rich.console import Console
from benchmarks.compaction import make_table, roll
from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import Progress
from compaction_jobs.storage_clock import StorageClock
from logstore.table_root import open_root
root = open_root(sys.argv[1])
spark_starts = sys.argv[2] == "spark"
with SparkApplication("bench") as spark:
    if spark_starts:
        spark.session.range(1).count()
    progress, here_bytes_max = Progress(Console(file=io.StringIO())), 0 if spark_starts else 1 << 62
    context = JobContext(spark, progress, StorageClock(root), here_bytes_max=here_bytes_max)
    # A first job has modules to load; so has Kafka's cleaner, which has cleaned its own topics by now.
    with tempfile.TemporaryDirectory() as warm:
        make_table(pathlib.Path(warm))
        roll(pathlib.Path(warm), 1000, 7)
        run_job("compact", topics_of("compact", open_root(warm), [], {}), context)
    began, cpu = time.monotonic(), time.process_time()
    report = run_job("compact", topics_of("compact", root, [], {}), context)
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    (topic,) = report.topics
    print(took, cpu, topic.after and topic.after.records, topic.error)
"""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Seconds of a compaction by the clock, and of the processor."""

    seconds: float
    cpu_seconds: float


def run_ours(data: Path, *, spark: bool = False) -> Cleaned:
    """Run the job. Raises BenchmarkError if keys have several records left. CPU seconds exclude Spark's processes."""
    # Ours syncs what it writes, and would otherwise wait for Kafka's unsynced data.
    os.sync()
    ran = subprocess.run(
        [sys.executable, "-c", _JOB, str(data), "spark" if spark else "here"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=_WAIT_SECONDS * 4,
    )
    seconds, cpu, records, error = ran.stdout.splitlines()[-1].split(" ", 3)
    if error != "None" or int(records) > KEYS:
        raise BenchmarkError(f"{records} records are left; error: {error}")
    return Cleaned(float(seconds), float(cpu))


# ---- Kafka ----------------------------------------------------------------------------------------------------------


_LOAD = [sys.executable, "-m", "benchmarks.load.keyed_records"]


class Cleaner:
    """A broker whose log cleaner begins within a second."""

    def __init__(self, kafka: Kafka, directory: Path) -> None:
        self._log = directory / "broker.log"
        cleaner = {
            "log.cleaner.threads": str(PARTITIONS),
            "log.cleaner.backoff.ms": "500",
            "log.initial.task.delay.ms": "500",
        }
        self.broker = Broker(kafka, directory, properties=cleaner)
        self.broker.create_topic(TOPIC, PARTITIONS, {"min.cleanable.dirty.ratio": "0.0001"})

    def run(self, records: int, seed: int, confluent: str) -> Cleaned:
        """Load records and wait until both partitions are clean.

        Partitions are cleaned in parallel, so the longer one counts. CPU seconds are those of the broker after the
        load.
        """
        at = self._log.stat().st_size
        with self.broker.awake():
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.load.keyed_records",
                    self.broker.bootstrap,
                    TOPIC,
                    str(records),
                    str(seed),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{confluent}"},
                check=True,
                timeout=_WAIT_SECONDS * 4,
            )
            before, until = self.broker.cpu_s, time.monotonic() + _WAIT_SECONDS
            while len(found := self._cleaned(at)) < PARTITIONS:
                if time.monotonic() > until:
                    raise BenchmarkError(f"Kafka's cleaner did not clean {TOPIC}: {self._log}")
                time.sleep(0.1)
            return Cleaned(max(found.values()), self.broker.cpu_s - before)

    def _cleaned(self, at: int) -> dict[str, float]:
        """Return seconds by partition, from the log after position ``at``."""
        text = self._log.read_bytes()[at:].decode(errors="replace")
        found: dict[str, float] = {}
        for topic, partition, seconds in _CLEANED.findall(text):
            if topic == TOPIC:
                found[partition] = found.get(partition, 0.0) + float(seconds.replace(",", ""))
        return found


# ---- both -----------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compaction", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", action="store_true", help="ours without Kafka")
    parser.add_argument("--spark", action="store_true", help="ours by Spark, its start not counted")
    parser.add_argument("--confluent", default=str(ROOT / ".venv-bench"), help="an environment with confluent-kafka")
    parser.add_argument("--directory", type=Path, default=ROOT / ".cache/bench")
    given = parser.parse_args(arguments)
    directory: Path = given.directory.absolute() / f"compaction-{os.getpid()}"
    confluent = next((str(found) for found in Path(given.confluent).glob("lib/*/site-packages")), "")
    kafka = (
        "--alone"
        if given.alone
        else find_kafka()
        if confluent
        else "confluent-kafka is missing: conf/bootstrap.sh bench"
    )
    found: dict[str, list[Cleaned]] = {}
    try:
        for number in range(given.rounds):
            _round(directory / str(number), given.records, kafka, confluent, found, spark=given.spark)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _print(found, given.records, kafka)
    return 0


def _round(
    directory: Path, records: int, kafka: Kafka | str, confluent: str, found: dict[str, list[Cleaned]], *, spark: bool
) -> None:
    data = directory / "data"
    cleaner = None if isinstance(kafka, str) else Cleaner(kafka, directory / "kafka")
    try:
        make_table(data)
        for run, count, seed in (("all", records, 1), ("1 %", records // 100, 101)):
            roll(data, count // PARTITIONS, seed)
            found.setdefault(f"ours, {run}", []).append(run_ours(data, spark=spark))
            if cleaner is not None:
                found.setdefault(f"kafka, {run}", []).append(cleaner.run(count, seed, confluent))
    finally:
        if cleaner is not None:
            cleaner.broker.kill()
        shutil.rmtree(directory)


def _print(found: dict[str, list[Cleaned]], records: int, kafka: Kafka | str) -> None:
    print(f"{records:,} records of {RECORD_BYTES} B, {KEYS:,} keys, {PARTITIONS} partitions")
    middle = {name: statistics.median(run.seconds for run in runs) for name, runs in found.items()}
    for name, runs in found.items():
        cpu = statistics.median(run.cpu_seconds for run in runs)
        rate = f", {records * RECORD_BYTES / middle[name] / 1e6:,.0f} MB/s" if name.endswith("all") else ""
        each = " ".join(f"{run.seconds:.3f}" for run in runs)
        print(f"{name}: {middle[name]:.3f} s ({each}), CPU {cpu:.2f} s{rate}")
    work = {name: statistics.median(run.cpu_seconds for run in runs) for name, runs in found.items()}
    by_clock, by_cpu = (of["ours, all"] / of["ours, 1 %"] for of in (middle, work))
    print(f"1 % takes ours 1/{by_clock:.1f} of the first run, 1/{by_cpu:.1f} of its CPU")
    if isinstance(kafka, str):
        print(f"without Kafka: {kafka}")
        return
    for run in ("all", "1 %"):
        pairs = zip(found[f"kafka, {run}"], found[f"ours, {run}"], strict=True)
        ratio = statistics.median(theirs.seconds / ours.seconds for theirs, ours in pairs)
        cpu = work[f"kafka, {run}"] / work[f"ours, {run}"]
        print(f"kafka / ours, {run}: {ratio:.2f}, of CPU {cpu:.2f}")


if __name__ == "__main__":
    sys.exit(main())
