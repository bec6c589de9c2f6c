"""``python -m benchmarks.spark_reads``: topics read by Spark, beside Spark's own Kafka source, in one session.

The same records are in both: unkeyed, 2 partitions, in Kafka's log, in a store's journal (the tail) and in another
store's Parquet (sealed). Each query goes through all rows of all columns; then through one offset in a hundred. Rounds
alternate; servers that are not asked stand still. "delta" is Spark's bare scan of the table: the least that reading
sealed records can take. Spark's start and one round to warm up do not count. With several numbers of segments the same
records are in a sealed store for each, and reads of the others are compared with reads of the first.
"""

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.kafka import find_kafka, find_spark_source
from benchmarks.ours import NO_ROLL, TOPIC, filled_store
from benchmarks.rivals import filled_topic
from benchmarks.run import Peers, Stage
from benchmarks.server import ROOT, BenchmarkError, Server, Store
from benchmarks.workload import Workload, values
from logstore.client.producer import Producer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
#: Pairs of queries to compare: the rows per second of the first divided by those of the second.
RATIOS = (
    ("read_offsets, sealed", "kafka"),
    ("read_offsets, tail", "kafka"),
    ("logstore, sealed", "kafka"),
    ("logstore, tail", "kafka"),
    ("read_offsets, sealed", "delta"),
    ("logstore, sealed", "delta"),
)
RANGES = ("read_offsets, sealed", "read_offsets, tail", "logstore, sealed", "logstore, tail")

Query = Callable[[], "DataFrame"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_reads", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument(
        "--segments",
        type=int,
        nargs="+",
        default=[1],
        metavar="N",
        help="of each partition, never merged; a store for each N, compared with the first",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="ours without Kafka")
    parser.add_argument("--directory", type=Path, default=ROOT / ".cache/bench")
    given = parser.parse_args(arguments)
    if any(given.records % (PARTITIONS * number) for number in given.segments):
        parser.error("--records: not so many that each segment has as many")
    directory = given.directory.absolute() / "spark-reads"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        with ExitStack() as stack:
            _run(stack, directory, given)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _run(stack: ExitStack, directory: Path, given: argparse.Namespace) -> None:
    kafka = "--alone" if given.alone else find_kafka()
    jars = "--alone" if given.alone else find_spark_source()
    missing = next((found for found in (kafka, jars) if isinstance(found, str)), None)
    workload = Workload(value_bytes=given.value_bytes, partitions=PARTITIONS, keyed=False, batch=10_000)
    stage = Stage(directory, Peers(kafka=None if isinstance(kafka, str) else kafka), stack)
    names = {segments: f"sealed in {segments}" for segments in given.segments}
    names[given.segments[0]] = "sealed"
    sealed = {name: _sealed_store(stage, name, workload, given.records, number) for number, name in names.items()}
    tail = filled_store(stage, "tail", workload, given.records, sealed=False)
    spark = _session([] if isinstance(jars, str) else jars)
    stack.callback(spark.stop)
    servers: dict[str, Server] = {}
    queries: dict[str, Callable[[float], DataFrame]] = {}
    for name, store in (*sealed.items(), ("tail", tail)):
        servers[f"read_offsets, {name}"] = servers[f"logstore, {name}"] = store
        queries[f"read_offsets, {name}"] = _by_read_offsets(spark, store.url, given.records)
        queries[f"logstore, {name}"] = _by_source(
            spark, "logstore", {"bootstrap.servers": store.url, "subscribe": TOPIC}, TOPIC, given.records
        )
    for name, store in sealed.items():
        queries["delta" + name.removeprefix("sealed")] = _by_delta(spark, store.data / "topics" / TOPIC, given.records)
    if missing is None:
        broker = stage.broker()
        topic = filled_topic(stage, broker, workload, given.records)
        servers["kafka"] = broker
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
        queries["kafka"] = _by_source(spark, "kafka", options, topic, given.records)
    whole = _measure(queries, servers, 1.0, given.rounds, given.records)
    part = _measure(queries, servers, 0.01, given.rounds, given.records // 100)
    _print(whole, part, given, missing)


def _sealed_store(stage: Stage, name: str, workload: Workload, records: int, segments: int) -> Store:
    """Return a paused store with this many segments of each partition."""
    if segments == 1:
        return filled_store(stage, name, workload, records, sealed=True)
    store = stage.store(name)
    store.create_topic(TOPIC, workload.partitions, {**NO_ROLL, "merge.target.bytes": "1"})
    rows = records // segments
    columns = {"value": values(workload, rows), "partition": [n % workload.partitions for n in range(rows)]}
    with Producer(store.url) as producer:
        for _ in range(segments):
            producer.send_batch(TOPIC, columns).result()
            store.roll(TOPIC)
    store.pause()
    return store


def _session(jars: Sequence[Path]) -> "SparkSession":
    from logstore.spark import register, session

    spark = session(
        "spark-reads", "local[2]", {"spark.driver.memory": "4g", "spark.jars": ",".join(jar.as_uri() for jar in jars)}
    )
    register(spark)
    return spark


def _range(share: float, records: int) -> tuple[int, int]:
    """Return offsets of each partition, from its middle."""
    length = int(records * share / PARTITIONS)
    start = 0 if share == 1 else records // PARTITIONS // 2
    return start, start + length


def _by_read_offsets(spark: "SparkSession", url: str, records: int) -> Callable[[float], "DataFrame"]:
    from logstore.spark import read_offsets

    def query(share: float) -> "DataFrame":
        start, end = _range(share, records)
        starts, ends = dict.fromkeys(range(PARTITIONS), start), dict.fromkeys(range(PARTITIONS), end)
        # These are the columns that Spark's Kafka source has without headers.
        return read_offsets(spark, TOPIC, starts, ends, bootstrap=url).drop("headers")

    return query


def _by_source(
    spark: "SparkSession", name: str, options: dict[str, str], topic: str, records: int
) -> Callable[[float], "DataFrame"]:
    def query(share: float) -> "DataFrame":
        if share == 1:
            # Kafka's producer does not give each partition the same number of records, so no range of offsets is set.
            return spark.read.format(name).options(**options).load()
        start, end = _range(share, records)
        offsets = {
            option: json.dumps({topic: {str(p): offset for p in range(PARTITIONS)}})
            for option, offset in (("startingOffsets", start), ("endingOffsets", end))
        }
        return spark.read.format(name).options(**options, **offsets).load()

    return query


def _by_delta(spark: "SparkSession", path: Path, records: int) -> Callable[[float], "DataFrame"]:
    def query(share: float) -> "DataFrame":
        start, end = _range(share, records)
        table = spark.read.format("delta").load(str(path)).drop("headers")
        return table if share == 1 else table.where(f"offset >= {start} and offset < {end}")

    return query


def _measure(
    queries: dict[str, Callable[[float], "DataFrame"]],
    servers: dict[str, Server],
    share: float,
    rounds: int,
    records: int,
) -> dict[str, list[float]]:
    """Return the seconds of each query, from creating the DataFrame to its last row."""
    seconds: dict[str, list[float]] = {name: [] for name in queries}
    for number in range(rounds + 1):
        for name, query in queries.items():
            with ExitStack() as stack:
                if name in servers:
                    stack.enter_context(servers[name].awake())
                began = time.monotonic()
                query(share).write.format("noop").mode("overwrite").save()
                took = time.monotonic() - began
                if number == 0 and (found := query(share).count()) != records:
                    raise BenchmarkError(f"{name}: {found:,} records where {records:,} are")
            if number:
                seconds[name].append(took)
    return seconds


def _print(
    whole: dict[str, list[float]], part: dict[str, list[float]], given: argparse.Namespace, missing: str | None
) -> None:
    where = f"{PARTITIONS} partitions, {given.segments[0]} segments of each, local[2]"
    print(f"{given.records:,} records of {given.value_bytes} B, {where}")
    for name, seconds in whole.items():
        middle, one = statistics.median(seconds), statistics.median(part[name])
        print(f"{name}: {given.records / middle / 1e6:.2f} M records/s, 1 % in {one:.2f} s")
    for name, against in RATIOS:
        if against in whole:
            print(f"{name} / {against}, all: {_ratio(whole[against], whole[name])}")
    for name in RANGES:
        if "kafka" in part:
            print(f"{name} / kafka, time of 1 %: {_ratio(part[name], part['kafka'])}")
    for name, seconds in whole.items():
        first, found, number = name.partition(" in ")
        if found:
            all_of_it, hundredth = _ratio(seconds, whole[first]), _ratio(part[name], part[first])
            beside = f"{number} segments / {given.segments[0]}"
            print(f"{first}, {beside}, time of all: {all_of_it}, of 1 %: {hundredth}")
    if missing:
        print(f"without Kafka: {missing}")


def _ratio(of: Sequence[float], by: Sequence[float]) -> str:
    ratios = sorted(a / b for a, b in zip(of, by, strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
