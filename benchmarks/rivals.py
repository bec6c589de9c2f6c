"""Kafka's clients: its own performance tools (Java) and confluent-kafka (Python over librdkafka).

They are on Kafka's side of the comparisons; with ``ours`` they use our store's Kafka listener instead of a broker. With
``fsync`` the topic has flush.messages=1, so that the broker syncs before it acknowledges, as our store always does.
"""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cluster import MIN_IN_SYNC
from benchmarks.kafka import KafkaServer, ListeningStore
from benchmarks.measure import Sample
from benchmarks.ours import NO_ROLL, check_stored
from benchmarks.run import Stage
from benchmarks.server import BenchmarkError, Result, Turn, allow_open_files, run_load, turn_of
from benchmarks.workload import Workload, values

_BATCH_BYTES = 262_144
_BUFFER_BYTES = 67_108_864
_BYTES_MIN = 50_000_000
PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .* (\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th"
)


@dataclass(frozen=True, slots=True)
class JavaProduce:
    """ProducerPerformance with acks=all, without keys (it has none), and values drawn from the same ones as ours.

    It sends a number of records, not for a time: as many as its best turn so far sent in that time, and at least enough
    to outweigh the warm-up of its JVM. With ``defaults`` its batches are the producer's default, else 256 KiB within 5
    ms.
    """

    workload: Workload
    fsync: bool = False
    compression: str = "none"
    defaults: bool = False
    name: str = "kafka"
    needs: tuple[str, ...] = ("kafka",)
    #: Use three brokers with three replicas and min.insync.replicas 2.
    replicated: bool = False
    ours: bool = False

    def start(self, stage: Stage) -> Turn:
        broker: KafkaServer = stage.kafka_cluster() if self.replicated else server_of(stage, self.name, ours=self.ours)
        topic = topic_of(broker, self.name, self.workload.partitions, fsync=self.fsync)
        payload = stage.directory / f"{topic}.payload"
        payload.write_bytes(b"\n".join(values(self.workload, 10_000)) + b"\n")
        rate = 20_000_000 / (100 + self.workload.value_bytes) / (10 if self.fsync else 1)
        batching = (
            [] if self.defaults else [f"batch.size={_BATCH_BYTES}", "linger.ms=5", f"buffer.memory={_BUFFER_BYTES}"]
        )
        warm = False
        acknowledged = 0

        def load(seconds: float) -> Result:
            nonlocal rate, warm, acknowledged
            records = max(_BYTES_MIN // self.workload.value_bytes, round(rate * seconds))
            output = broker.kafka.tool(
                "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
                "--payload-file", str(payload), "--throughput", "-1", "--producer-props",
                f"bootstrap.servers={broker.bootstrap}", "acks=all", f"compression.type={self.compression}", *batching,
                timeout=20 * seconds + 300,
            )  # fmt: skip
            found = PRODUCED.findall(output)
            if not found or int(found[-1][0]) != records:
                raise BenchmarkError(f"ProducerPerformance did not send {records} records:\n{output[-1000:]}")
            acknowledged += records
            if isinstance(broker, ListeningStore):
                check_stored(broker, acknowledged, topic)
            rate = max(rate, float(found[-1][1])) if warm else float(found[-1][1])
            warm = True
            p50, p99, p999 = map(float, found[-1][2:])
            return Result(records, records / float(found[-1][1]), p50_ms=p50, p99_ms=p99, p999_ms=p999)

        return turn_of(broker, self.workload.value_bytes, load, _roll_of(broker, topic))


@dataclass(frozen=True, slots=True)
class JavaConsume:
    """ConsumerPerformance over the whole topic; only its fetches count, without the time of joining its group."""

    workload: Workload
    records: int
    name: str = "kafka"
    needs: tuple[str, ...] = ("kafka",)
    ours: bool = False
    #: Read from Parquet instead of the journal; only for ours.
    sealed: bool = False

    def start(self, stage: Stage) -> Turn:
        broker = server_of(stage, self.name, ours=self.ours)
        topic = filled_topic(stage, broker, self.workload, self.records, sealed=self.sealed)

        def load(seconds: float) -> Result:
            output = broker.kafka.tool(
                "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", broker.bootstrap, "--topic", topic,
                "--messages", str(self.records), "--hide-header", timeout=20 * seconds + 300,
            )  # fmt: skip
            fields = output.strip().splitlines()[-1].split(", ")
            if int(fields[4]) < self.records:
                raise BenchmarkError(
                    f"ConsumerPerformance read {fields[4]} of {self.records} records:\n{output[-1000:]}"
                )
            return Result(int(fields[4]), float(fields[7]) / 1000)

        return turn_of(broker, self.workload.value_bytes, load)


@dataclass(frozen=True, slots=True)
class Confluent:
    """confluent-kafka in Python. ``call`` is produce (a loop, keyed), latency (a fixed rate, linger 0) or consume."""

    workload: Workload
    call: str = "produce"
    fsync: bool = False
    compression: str = "none"
    records: int = 0
    rate: int = 1_000
    name: str = "confluent"
    needs: tuple[str, ...] = ("kafka", "confluent")
    ours: bool = False

    def start(self, stage: Stage) -> Turn:
        broker = server_of(stage, self.name, ours=self.ours)
        if self.call == "consume":
            topic = filled_topic(stage, broker, self.workload, self.records)
        else:
            topic = topic_of(broker, self.name, self.workload.partitions, fsync=self.fsync)
        payload = stage.directory / f"{self.name.replace(' ', '-')}.payload"
        payload.write_bytes(b"\n".join(values(self.workload, 10_000)))
        specification = {
            "bootstrap": broker.bootstrap, "topic": topic, "call": self.call, "payload": str(payload),
            "keyed": self.workload.keyed, "compression": self.compression, "batch_bytes": _BATCH_BYTES,
            "buffer_bytes": _BUFFER_BYTES, "partitions": self.workload.partitions, "records": self.records,
            "rate": self.rate,
        }  # fmt: skip
        python = stage.peers.confluent
        assert python is not None
        return turn_of(
            broker,
            self.workload.record_bytes,
            lambda seconds: run_load("confluent_client", {**specification, "seconds": seconds}, python=python),
            _roll_of(broker, topic) if self.call == "produce" else None,
        )


@dataclass(frozen=True, slots=True)
class IdleConsumers:
    """Consumers that wait at the end of all partitions, each with a fetch session: the server's load."""

    consumers: int = 1_000
    partitions: int = 4
    max_wait_ms: int = 500
    name: str = "kafka"
    needs: tuple[str, ...] = ("kafka",)
    ours: bool = False

    def start(self, stage: Stage) -> Turn:
        allow_open_files(2 * self.consumers + 200)
        broker = server_of(stage, self.name, ours=self.ours)
        topic = topic_of(broker, self.name, self.partitions, fsync=False)
        host, _, port = broker.bootstrap.rpartition(":")
        specification = {"host": host, "port": int(port), "topic": topic, "consumers": self.consumers}
        specification |= {"max_wait_ms": self.max_wait_ms}

        def turn(seconds: float) -> Sample:
            # By then each consumer has asked several times, and all have joined.
            seconds = max(10.0, seconds, 2 * self.max_wait_ms / 1000)
            with broker.awake():
                result = run_load("idle_consumers", {**specification, "pids": list(broker.pids), "seconds": seconds})
                resident_mb = broker.resident_mb
            if not result.records:
                raise BenchmarkError(f"no fetch was answered within {result.seconds:.1f} s")
            return Sample(rest_percent=result.rest_percent, resident_mb=resident_mb)

        return turn


_numbers = itertools.count()


def server_of(stage: Stage, name: str, *, ours: bool) -> KafkaServer:
    """Return the paused server for a contender's clients."""
    return stage.listening_store(name) if ours else stage.broker()


def topic_of(broker: KafkaServer, name: str, partitions: int, *, fsync: bool) -> str:
    """Create a new topic for one contender; return its name."""
    topic = f"{name.replace(' ', '-').replace(',', '')}-{next(_numbers)}"
    configs = {"flush.messages": "1"} if fsync else {}
    if broker.replicas > 1:
        configs["min.insync.replicas"] = str(MIN_IN_SYNC)
    broker.create_topic(topic, partitions, configs)
    return topic


def _roll_of(broker: KafkaServer, topic: str) -> Callable[[], None]:
    """Return the roll that ends a turn; Kafka has none."""
    return (lambda: broker.roll(topic)) if isinstance(broker, ListeningStore) else (lambda: None)


def filled_topic(stage: Stage, broker: KafkaServer, workload: Workload, records: int, *, sealed: bool = False) -> str:
    """Return a topic with this many records, sent by Kafka's producer; all readers share it.

    Ours has them in the journal, or ``sealed``.
    """
    if broker.filled is None:
        broker.filled = "filled"
        broker.create_topic(broker.filled, workload.partitions, NO_ROLL if isinstance(broker, ListeningStore) else {})
        payload = stage.directory / f"{broker.filled}.payload"
        payload.write_bytes(b"\n".join(values(workload, 10_000)) + b"\n")
        with broker.awake():
            broker.kafka.tool(
                "org.apache.kafka.tools.ProducerPerformance", "--topic", broker.filled, "--num-records", str(records),
                "--payload-file", str(payload), "--throughput", "-1", "--producer-props",
                f"bootstrap.servers={broker.bootstrap}", "acks=all", f"batch.size={_BATCH_BYTES}", "linger.ms=5",
                timeout=300,
            )  # fmt: skip
            if isinstance(broker, ListeningStore):
                check_stored(broker, records, broker.filled)
                if sealed:
                    broker.roll(broker.filled)
    return broker.filled
