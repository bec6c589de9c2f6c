"""``logstore serve --jobs`` runs a real store with its process of jobs."""

import os
import signal
import time
from collections import defaultdict
from pathlib import Path

import httpx
import psutil
import pytest

from logstore import Admin, Producer
from logstore.delta.topic_table import TopicTable
from logstore.table_files import open_table
from tests.support.eventually import eventually
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.system

QUICK = {
    "LOGSTORE_JOBS_ENABLE": "true",
    "LOGSTORE_LOG_RETENTION_CHECK_INTERVAL_MS": "200",
    "LOGSTORE_LOG_CLEANER_BACKOFF_MS": "200",
    "LOGSTORE_LOG_RETENTION_BYTES": "0",
}


def process_of_jobs(server: ServerProcess) -> psutil.Process:
    def found() -> list[psutil.Process]:
        children = psutil.Process(server.process.pid).children()
        return [child for child in children if "compaction_jobs.background" in child.cmdline()]

    return eventually(lambda: next(iter(found()), None))


def metrics(server: ServerProcess) -> dict[str, float]:
    """Return the job metrics by name; one that does not exist yet is 0."""
    lines = [line for line in httpx.get(f"{server.url}/metrics").text.splitlines() if line.startswith("logstore_job")]
    return defaultdict(float, {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)})


def load(server: ServerProcess, name: str, **configs: str) -> None:
    with Admin(server.url) as admin, Producer(server.url) as producer:
        admin.create_topic(name, configs=configs)
        for n in range(10):
            producer.send(name, f"value {n}", "key")
        producer.flush()
        admin.roll(name)


def log_start(server: ServerProcess, name: str) -> int:
    with Admin(server.url) as admin:
        return admin.describe_topic(name).partitions[0].log_start_offset


def count(server: ServerProcess, name: str) -> int:
    """Return the number of records in the table."""
    snapshot = TopicTable(open_table(server.data / "topics" / name)).snapshot()
    return sum(file.num_records for p in snapshot.partitions for file in snapshot.segments(p))


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def modules_of(process: psutil.Process) -> str:
    return Path(f"/proc/{process.pid}/maps").read_text()


def test_jobs_run_beside_the_store_and_end_with_it(tmp_path: Path):
    with ServerProcess(tmp_path / "data", environment=QUICK) as server:
        jobs = process_of_jobs(server)
        load(server, "events")
        # The store's default configuration applies, and the job notifies the store at once.
        eventually(lambda: log_start(server, "events") == 10)
        load(server, "users", **{"cleanup.policy": "compact"})
        eventually(lambda: count(server, "users") == 1)
        assert jobs.nice() > psutil.Process(server.process.pid).nice()
        eventually(lambda: 'logstore_job_last_run_timestamp_seconds{operation="retention"}' in metrics(server))
        eventually(lambda: metrics(server)['logstore_job_topics_total{operation="retention",outcome="changed"}'] == 1)
        assert "job=retention" in server.log
        assert "libjvm" not in modules_of(psutil.Process(server.process.pid))
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 60
        eventually(lambda: is_gone(jobs))
        assert "jobs.process_ended" not in server.log


@pytest.mark.long
def test_a_killed_store_leaves_no_jobs_behind(tmp_path: Path):
    server = ServerProcess(tmp_path / "data", environment=QUICK)
    jobs = process_of_jobs(server)
    eventually(lambda: "logstore_jobs_process_ended_total" in metrics(server))
    server.kill()
    eventually(lambda: is_gone(jobs))


@pytest.mark.long
def test_the_failure_of_a_job_is_reported_and_the_store_continues(tmp_path: Path):
    with ServerProcess(tmp_path / "data", environment=QUICK) as server:
        first = process_of_jobs(server)
        load(server, "events")
        eventually(lambda: log_start(server, "events") == 10)
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: metrics(server)["logstore_jobs_process_ended_total"] == 1)
        assert "jobs.process_ended" in server.log
        second = eventually(lambda: other if (other := process_of_jobs(server)).pid != first.pid else None)
        load(server, "more")
        eventually(lambda: log_start(server, "more") == 10)
        # ALTER TABLE sets it behind the store's back.
        TopicTable(open_table(tmp_path / "data/topics/more")).alter_config({"retention.ms": "soon"})
        eventually(lambda: metrics(server)['logstore_job_topics_total{operation="retention",outcome="failed"}'] >= 1)
        assert "job.failed" in server.log
        assert not is_gone(second)
        assert httpx.get(f"{server.url}/health/ready").status_code == 200
        load(server, "third")
