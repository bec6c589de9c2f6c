"""The brokers that the demo starts, kills and starts again: ``logstore cluster start``, as a user runs it."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from docs.demo.flights import DemoError
from docs.demo.store import environment
from logstore.cluster.watched_process import watched
from logstore.cluster_processes.broker_process import BrokerEntry
from logstore.cluster_processes.control import ask_to_start
from logstore.cluster_processes.record import Directory
from logstore.cluster_processes.running_cluster import ClusterEntry

BROKERS = 3
#: The partitions of a killed broker have no leader for this time, and up to half of it more.
SESSION_TIMEOUT_MS = 6_000
_START_SECONDS = 180
#: ``logstore cluster start`` gives the brokers 45 of these seconds.
_STOP_SECONDS = 60


@dataclass(slots=True)
class DemoCluster:
    """A running cluster; ``brokers`` are the running ones, by id."""

    data: Path
    brokers: dict[int, BrokerEntry]

    @property
    def urls(self) -> list[str]:
        return [broker.url for broker in self.brokers.values()]

    def kill(self, broker_id: int) -> None:
        os.kill(self.brokers.pop(broker_id).pid, signal.SIGKILL)

    def start_again(self, broker_id: int) -> None:
        """Start a broker again and wait until it is ready. Raises ClusterProcessesError."""
        self.brokers[broker_id] = ask_to_start(Directory(self.data), broker_id)


@contextmanager
def cluster_on(data: Path, log: Path) -> Iterator[DemoCluster]:
    """Run a ZooKeeper and three brokers on ``data``. They end with the block, and with this process however it ends.

    Their common output goes to the file ``log``; the brokers' own logs are in ``data``. Raises DemoError if they cannot
    be started, or did not stop by themselves.
    """
    start = [sys.executable, "-m", "logstore.cli", "cluster", "start", "--data", str(data), "--json"]
    start += ["--brokers", str(BROKERS)]
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 (our own command)
            watched(start, str(data)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment() | {"LOGSTORE_ZOOKEEPER_SESSION_TIMEOUT_MS": str(SESSION_TIMEOUT_MS)},
            start_new_session=True,  # Ctrl-C is for the demo, which stops them
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        line = process.stdout.readline() if ready else b""
        if not line:
            reason = (log.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
            raise DemoError(f"the cluster did not start: {reason} (its log is {log})")
        entry = msgspec.json.decode(line, type=ClusterEntry)
        yield DemoCluster(data, {broker.id: broker for broker in entry.brokers})
    finally:
        code = _stop(process)
        process.stdin.close()
        process.stdout.close()
    if code != 0:
        raise DemoError(f"the cluster did not stop cleanly: exit code {code} (its log is {log})")


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Stop the cluster and return the exit code. All its processes end with this one, even if it is killed."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        if process.poll() is None:
            process.terminate()
        return process.wait(_STOP_SECONDS)
    process.kill()
    return process.wait()
