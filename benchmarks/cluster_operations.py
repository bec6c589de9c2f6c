"""Operations of a cluster alone: failover, rolling restarts, replicas that catch up, work by role. Contenders like
those of ``ours``. If brokers end in a case, its cluster is never paused, and it is the only contender.
"""

import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.cluster import REPLICAS, Cluster, await_that
from benchmarks.measure import Sample
from benchmarks.ours import NO_ROLL, TOPIC, fill, http_specification
from benchmarks.run import Stage
from benchmarks.server import BenchmarkError, Turn, address_of, run_load, turn_of
from benchmarks.workload import Form, Workload
from logstore.client.producer import Producer

ZOOKEEPER = ("zookeeper",)
#: A history takes this many times its bytes while it is made: journals of the replicas, files in the table.
_SPACE = 4
_LOAD_SECONDS_MAX = 600
_BEFORE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Roles:
    """CPU time per record by role: all requests go to one partition, through its leader, or through a broker that has
    no replica of it (``forwarded``).
    """

    workload: Workload
    form: Form
    forwarded: bool
    name: str = "ours"
    needs: tuple[str, ...] = ZOOKEEPER

    def start(self, stage: Stage) -> Turn:
        if self.workload.partitions != 1:
            raise BenchmarkError("roles are those of one partition")
        cluster = stage.cluster(self.name, REPLICAS + 1)
        cluster.create_topic(TOPIC, 1)
        (found,) = cluster.replicas(TOPIC)
        (without,) = set(cluster.urls) - set(found.replicas)
        followers = [broker for broker in found.replicas if broker != found.leader]
        cluster.roles = {"leader_cpu_us": [found.leader], "follower_cpu_us": followers}
        if self.forwarded:
            cluster.roles["forwarder_cpu_us"] = [without]
        specification = http_specification(stage, cluster, self.workload, self.form)
        asked = address_of(cluster.urls[without if self.forwarded else found.leader])
        specification["servers"] = [{**asked, "paths": self.workload.paths(TOPIC)}]
        cluster.pause()
        return turn_of(
            cluster,
            self.workload.record_bytes,
            lambda seconds: run_load("http_produce", {**specification, "seconds": seconds}),
        )


@dataclass(frozen=True, slots=True)
class LeaderKilled:
    """``kill -9`` of the leader of all partitions, which is also the controller: the time until the Python producer,
    which was already running, has an acknowledgement of a record for each partition.
    """

    partitions: int
    session_timeout_ms: int
    name: str = "ours"
    needs: tuple[str, ...] = ZOOKEEPER

    def start(self, stage: Stage) -> Turn:
        cluster = stage.cluster(self.name, session_timeout_ms=self.session_timeout_ms)
        cluster.create_topic(TOPIC, self.partitions, NO_ROLL)

        def turn(_seconds: float) -> Sample:
            leader = self._elect_one(cluster)
            with Producer(cluster.url) as producer:
                self._send_to_all(producer)
                cluster.kill_broker(leader)
                began = time.monotonic()
                self._send_to_all(producer)
                outage_s = time.monotonic() - began
            cluster.start_broker(leader)
            cluster.await_in_sync(TOPIC, self.partitions)
            return Sample(outage_s=outage_s)

        return turn

    def _elect_one(self, cluster: Cluster) -> int:
        """Make one broker lead everything: the others stop, and come back as followers."""
        leader, *others = cluster.urls
        for broker in others:
            cluster.stop_broker(broker)
        for broker in others:
            cluster.start_broker(broker)
        cluster.await_in_sync(TOPIC, self.partitions)
        if any(found.leader != leader for found in cluster.replicas(TOPIC)):
            raise BenchmarkError(f"broker {leader} does not lead all partitions")
        return leader

    def _send_to_all(self, producer: Producer) -> None:
        """Send a record to each partition; return when all are acknowledged."""
        sent = [producer.send(TOPIC, b"a record", partition=number) for number in range(self.partitions)]
        for delivery in sent:
            delivery.result(120)


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """SIGTERM and start of one broker after the other, each when all replicas are in sync, the controller last, while
    the Python client produces ``rate`` records/s and reads them in a group.
    """

    partitions: int
    rate: int
    name: str = "ours"
    needs: tuple[str, ...] = ZOOKEEPER

    def start(self, stage: Stage) -> Turn:
        cluster = stage.cluster(self.name, session_timeout_ms=18_000)
        cluster.create_topic(TOPIC, self.partitions)

        def turn(_seconds: float) -> Sample:
            done = stage.directory / f"restarted-{time.monotonic_ns()}"
            specification = {
                "url": cluster.url,
                "topic": TOPIC,
                "partitions": self.partitions,
                "rate": self.rate,
                "seconds": _LOAD_SECONDS_MAX,
                "until": str(done),
            }
            with ThreadPoolExecutor(1) as loading:
                load = loading.submit(run_load, "available_client", specification)
                try:
                    time.sleep(_BEFORE_SECONDS)
                    self._restart_all(cluster)
                    time.sleep(_BEFORE_SECONDS)
                finally:
                    done.touch()
                result = load.result()
            if result.first_error is not None:
                print(f"{self.name}: the first error of a client: {result.first_error}", file=sys.stderr)
            return Sample(
                records_s=result.records / result.seconds,
                p50_ms=result.p50_ms,
                p99_ms=result.p99_ms,
                p999_ms=result.p999_ms,
                longest_ms=result.longest_ms,
                errors=result.errors,
            )

        return turn

    def _restart_all(self, cluster: Cluster) -> None:
        controller = cluster.controller
        for broker in sorted(cluster.urls, key=lambda one: one == controller):
            cluster.stop_broker(broker)
            cluster.start_broker(broker)
            cluster.await_in_sync(TOPIC, self.partitions)


@dataclass(frozen=True, slots=True)
class EmptyReplica:
    """A broker whose log directory is gone takes its place again, in a topic of one partition with a history in the
    table, without other load. Measured are the seconds from the start of its process until it is in the ISR, and its
    CPU time until then. Other load of the machine affects only the seconds.
    """

    workload: Workload
    gigabytes: int
    name: str = "ours"
    needs: tuple[str, ...] = ZOOKEEPER

    def start(self, stage: Stage) -> Turn:
        size = self.gigabytes * 1_000_000_000
        free = shutil.disk_usage(stage.directory).free
        if free < _SPACE * size:
            raise BenchmarkError(
                f"{_SPACE * self.gigabytes} GB are needed below {stage.directory}, {free / 1e9:.0f} GB are free: "
                "name another disk with --directory, or take the case with less history"
            )
        cluster = stage.cluster(self.name, session_timeout_ms=18_000)
        cluster.create_topic(TOPIC, 1)
        fill(stage, cluster, self.workload, size // self.workload.record_bytes)
        cluster.roll(TOPIC)
        (found,) = cluster.replicas(TOPIC)
        follower = next(broker for broker in found.replicas if broker != found.leader)

        def turn(_seconds: float) -> Sample:
            cluster.stop_broker(follower)
            shutil.rmtree(cluster.data / "brokers" / str(follower))
            began = time.monotonic()
            cluster.start_broker(follower)
            ready_s = time.monotonic() - began
            await_that(lambda: follower in cluster.replicas(TOPIC)[0].in_sync_replicas, 120, "the replica is in sync")
            joined_s, joined_cpu_s = time.monotonic() - began, cluster.cpu_s_of(follower)
            cluster.await_in_sync(TOPIC, 1)
            return Sample(ready_s=ready_s, joined_s=joined_s, joined_cpu_s=joined_cpu_s)

        return turn
