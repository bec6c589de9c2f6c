"""A cluster of our store on this machine: a ZooKeeper, and brokers that ``logstore cluster start`` runs.

Every topic has three replicas, and ``min.insync.replicas`` is 2. A cluster that takes turns with others is paused for
minutes, which must not count as a failure: hence the times of ``_PATIENT``. A cluster that loses a broker in its case
has its own ``session_timeout_ms``, and is never paused.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.server import (
    ROOT,
    BenchmarkError,
    Storage,
    address_of,
    cpu_s_of,
    first_line,
    spawn,
)
from benchmarks.workload import Workload
from logstore.client.admin import Admin
from logstore.cluster.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServerError
from logstore.cluster_processes.control import ask_to_start
from logstore.cluster_processes.record import Directory
from logstore.errors import LogStoreError
from logstore.protocol.messages.cluster import PartitionReplicas

REPLICAS = 3
MIN_IN_SYNC = 2
_HOUR_MS = 3_600_000
_PATIENT = {
    "ZOOKEEPER_SESSION_TIMEOUT_MS": str(_HOUR_MS),
    "REPLICA_LAG_TIME_MAX_MS": str(_HOUR_MS),
    "REPLICA_SOCKET_TIMEOUT_MS": str(_HOUR_MS),
}
#: ZooKeeper grants up to 20 of its ticks.
_PATIENT_TICK_MS = _HOUR_MS // 20
_TICK_MS = 2_000
_IN_SYNC_SECONDS = 120.0
_END_SECONDS = 60.0
_LOOK_SECONDS = 0.02


class Cluster(Storage):
    """A cluster of ``brokers`` with the ids 1, 2, ... ``settings`` has names of LOGSTORE_* without that prefix."""

    def __init__(
        self,
        data: Path,
        brokers: int = REPLICAS,
        settings: Mapping[str, str] | None = None,
        *,
        session_timeout_ms: int | None = None,
    ) -> None:
        self.data = data
        self.urls: dict[int, str] = {}
        #: Brokers with the same role, by the measure of a sample that has their mean CPU time.
        self.roles: Mapping[str, Sequence[int]] = {}
        self._pids: dict[int, int] = {}
        self._log = data.parent / f"{data.name}.log"
        own = _PATIENT if session_timeout_ms is None else {"ZOOKEEPER_SESSION_TIMEOUT_MS": str(session_timeout_ms)}
        wanted = {
            "DEFAULT_REPLICATION_FACTOR": str(REPLICAS),
            "MIN_INSYNC_REPLICAS": str(MIN_IN_SYNC),
            "AUTO_LEADER_REBALANCE_ENABLE": "false",
            **own,
            **(settings or {}),
        }
        tick_ms = _PATIENT_TICK_MS if session_timeout_ms is None else _TICK_MS
        self._zookeeper = ZooKeeperEnsemble(data.parent / f"{data.name}-zookeeper", tick_ms=tick_ms)
        try:
            self._zookeeper.start()
        except ZooKeeperServerError as error:
            raise BenchmarkError(error.message) from None
        command = ["cluster", "start", "--brokers", str(brokers), "--data", str(data), "--json"]
        self._process = spawn(
            [*command, "--zookeeper", self._zookeeper.connect],
            directory=data.parent,
            log=self._log,
            settings={f"LOGSTORE_{name}": value for name, value in wanted.items()},
            checkout=ROOT,
        )
        try:
            line = first_line(self._process)
            if not line.startswith("{"):
                raise BenchmarkError(f"the cluster did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            for broker in json.loads(line)["brokers"]:
                self.urls[broker["id"]], self._pids[broker["id"]] = broker["url"], broker["pid"]
        except BaseException:
            self.kill()
            raise
        self.url = ",".join(self.urls.values())

    # ---- processes --------------------------------------------------------------------------------------------------

    @property
    def pids(self) -> Sequence[int]:
        return (*(server.pid for server in self._zookeeper.servers), *self._pids.values())

    @property
    def cpu_s_by_measure(self) -> Mapping[str, float]:
        """CPU seconds: ``server_cpu_us`` of all brokers and ZooKeeper, for each of ``roles`` its brokers' mean."""
        own = {measure: sum(map(self.cpu_s_of, brokers)) / len(brokers) for measure, brokers in self.roles.items()}
        return {**super().cpu_s_by_measure, **own}

    def cpu_s_of(self, broker: int) -> float:
        return cpu_s_of(self._pids[broker])

    def kill(self) -> None:
        pids = [*self._pids.values()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._await_end(pids)
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._zookeeper.stop()

    def kill_broker(self, broker: int) -> None:
        """Kill a broker with ``kill -9``."""
        os.kill(self._pids[broker], signal.SIGKILL)

    def stop_broker(self, broker: int) -> None:
        """Send SIGTERM, and wait for the end of the broker."""
        os.kill(self._pids[broker], signal.SIGTERM)
        self._await_end([self._pids[broker]])

    def _await_end(self, pids: Sequence[int]) -> None:
        # They are children of ``logstore cluster start``.
        await_that(lambda: not any(map(_is_running, pids)), _END_SECONDS, f"the processes {pids} have ended")

    def start_broker(self, broker: int) -> None:
        """Start a broker that has ended; return when it is ready."""
        self._await_end([self._pids[broker]])
        try:
            self._pids[broker] = ask_to_start(Directory(self.data), broker).pid
        except LogStoreError as error:
            raise BenchmarkError(error.message) from None

    @property
    def controller(self) -> int | None:
        """The broker that decides which replicas lead."""
        with Admin(self.url) as admin:
            return admin.describe_cluster().controller_id

    # ---- topics -----------------------------------------------------------------------------------------------------

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        with Admin(self.url, request_timeout_ms=120_000) as admin:
            admin.create_topic(topic, partitions=partitions, configs=configs)
        self.await_in_sync(topic, partitions)

    def await_in_sync(self, topic: str, partitions: int) -> None:
        """Wait until every broker knows that all partitions have a leader, and all of their replicas are in sync.

        Raises BenchmarkError after two minutes.
        """
        for broker in self.urls:
            await_that(
                lambda broker=broker: self._in_sync(broker, topic) == partitions,  # type: ignore[misc]
                _IN_SYNC_SECONDS,
                f"broker {broker} knows that all replicas of {topic} are in sync",
            )

    def _in_sync(self, broker: int, topic: str) -> int:
        """Return how many partitions have a leader and all replicas in sync, according to a broker."""
        found = self.replicas(topic, broker)
        return sum(one.leader >= 0 and len(one.in_sync_replicas) == len(one.replicas) for one in found)

    def replicas(self, topic: str, broker: int | None = None) -> list[PartitionReplicas]:
        """Return the replicas by partition, according to a broker, or to any."""
        with Admin(self.url if broker is None else self.urls[broker], request_timeout_ms=60_000) as admin:
            return [found for found in admin.partition_replicas() if found.topic == topic]

    def servers(self, topic: str, workload: Workload) -> list[dict[str, Any]]:
        """Return servers: requests to one partition go to its leader, those to all partitions to brokers in turn."""
        if workload.spread:
            return [{**address_of(url), "paths": workload.paths(topic)} for url in self.urls.values()]
        paths: dict[int, list[str]] = {}
        for found, path in zip(self.replicas(topic), workload.paths(topic), strict=True):
            paths.setdefault(found.leader, []).append(path)
        return [{**address_of(self.urls[leader]), "paths": led} for leader, led in sorted(paths.items())]


def await_that(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    """Look again and again until ``is_so``. Raises BenchmarkError with ``what`` after that time."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise BenchmarkError(f"after {seconds:.0f} s it is not so that {what}")
        time.sleep(_LOOK_SECONDS)


def _is_running(pid: int) -> bool:
    """Return True if the process runs; one that is not reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
