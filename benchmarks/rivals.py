"""Kafka's side of the comparisons: its own performance tools (Java) and confluent-kafka (Python over librdkafka).

``fsync``: the topic has flush.messages=1, so that the broker syncs before it acknowledges, as our store always does.
"""

import itertools
import re
from dataclasses import dataclass

from benchmarks.cluster import MIN_IN_SYNC
from benchmarks.kafka import Broker, KafkaServer
from benchmarks.run import Stage
from benchmarks.server import BenchmarkError, Result, Turn, run_load, turn_of
from benchmarks.workload import Workload, values

_BATCH_BYTES = 262_144
_BUFFER_BYTES = 67_108_864
_BYTES_MIN = 50_000_000
PRODUCED = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .* (\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th"
)


@dataclass(frozen=True, slots=True)
class JavaProduce:
    """ProducerPerformance, acks=all, without keys (it knows none), values drawn from the same ones as ours.

    It sends a number of records, not for a time: as many as its best turn so far did in the time of this one, and so
    many at least that they outweigh the warm-up of its JVM.
    """

    workload: Workload
    fsync: bool = False
    compression: str = "none"
    batch_bytes: int = _BATCH_BYTES
    name: str = "kafka"
    needs: tuple[str, ...] = ("kafka",)
    #: Three brokers, and as many replicas; min.insync.replicas 2.
    replicated: bool = False

    def start(self, stage: Stage) -> Turn:
        broker: KafkaServer = stage.kafka_cluster() if self.replicated else stage.broker()
        topic = topic_of(broker, self.name, self.workload.partitions, fsync=self.fsync)
        payload = stage.directory / f"{topic}.payload"
        payload.write_bytes(b"\n".join(values(self.workload, 10_000)) + b"\n")
        rate = 20_000_000 / (100 + self.workload.value_bytes) / (10 if self.fsync else 1)
        warm = False

        def load(seconds: float) -> Result:
            nonlocal rate, warm
            records = max(_BYTES_MIN // self.workload.value_bytes, round(rate * seconds))
            output = broker.kafka.tool(
                "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
                "--payload-file", str(payload), "--throughput", "-1", "--producer-props",
                f"bootstrap.servers={broker.address}", "acks=all", f"batch.size={self.batch_bytes}", "linger.ms=5",
                f"buffer.memory={_BUFFER_BYTES}", f"compression.type={self.compression}",
                timeout=20 * seconds + 300,
            )  # fmt: skip
            found = PRODUCED.findall(output)
            if not found or int(found[-1][0]) != records:
                raise BenchmarkError(f"ProducerPerformance did not send {records} records:\n{output[-1000:]}")
            rate = max(rate, float(found[-1][1])) if warm else float(found[-1][1])
            warm = True
            p50, p99, p999 = map(float, found[-1][2:])
            return Result(records, records / float(found[-1][1]), p50_ms=p50, p99_ms=p99, p999_ms=p999)

        return turn_of(broker, self.workload.value_bytes, load)


@dataclass(frozen=True, slots=True)
class JavaConsume:
    """ConsumerPerformance over the whole topic; the time of its fetches alone, without that of joining its group."""

    workload: Workload
    records: int
    name: str = "kafka"
    needs: tuple[str, ...] = ("kafka",)

    def start(self, stage: Stage) -> Turn:
        broker = stage.broker()
        topic = filled_topic(stage, broker, self.workload, self.records)

        def load(seconds: float) -> Result:
            output = broker.kafka.tool(
                "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", broker.address, "--topic", topic,
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
    """confluent-kafka in Python. ``call``: produce (a loop, keyed), latency (a fixed rate, linger 0) or consume."""

    workload: Workload
    call: str = "produce"
    fsync: bool = False
    compression: str = "none"
    records: int = 0
    rate: int = 1_000
    name: str = "confluent"
    needs: tuple[str, ...] = ("kafka", "confluent")

    def start(self, stage: Stage) -> Turn:
        broker = stage.broker()
        if self.call == "consume":
            topic = filled_topic(stage, broker, self.workload, self.records)
        else:
            topic = topic_of(broker, self.name, self.workload.partitions, fsync=self.fsync)
        payload = stage.directory / f"{self.name.replace(' ', '-')}.payload"
        payload.write_bytes(b"\n".join(values(self.workload, 10_000)))
        specification = {
            "bootstrap": broker.address, "topic": topic, "call": self.call, "payload": str(payload),
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
        )


_numbers = itertools.count()


def topic_of(broker: KafkaServer, name: str, partitions: int, *, fsync: bool) -> str:
    """A new topic for one contender."""
    topic = f"{name.replace(' ', '-').replace(',', '')}-{next(_numbers)}"
    configs = {"flush.messages": "1"} if fsync else {}
    if broker.replicas > 1:
        configs["min.insync.replicas"] = str(MIN_IN_SYNC)
    broker.create_topic(topic, partitions, configs)
    return topic


def filled_topic(stage: Stage, broker: Broker, workload: Workload, records: int) -> str:
    """A topic with so many records; all that read it read the same one."""
    topic = "filled"
    if not (stage.directory / f"{topic}.payload").exists():
        broker.create_topic(topic, workload.partitions)
        payload = stage.directory / f"{topic}.payload"
        payload.write_bytes(b"\n".join(values(workload, 10_000)) + b"\n")
        with broker.awake():
            broker.kafka.tool(
                "org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", str(records),
                "--payload-file", str(payload), "--throughput", "-1", "--producer-props",
                f"bootstrap.servers={broker.address}", "acks=all", f"batch.size={_BATCH_BYTES}", "linger.ms=5",
                timeout=300,
            )  # fmt: skip
    return topic
