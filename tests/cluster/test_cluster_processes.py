"""A cluster on one machine: its processes start together, one is started again, and all stop together."""

import contextlib
import functools
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from benchmarks.free_port import free_port
from logstore.client.admin import Admin
from logstore.cluster_processes import ports, zookeeper_process
from logstore.cluster_processes.control import ask_to_start_zookeeper
from logstore.cluster_processes.kafka_addresses import KafkaAddress, kafka_addresses
from logstore.cluster_processes.record import ClusterProcessesError, Directory, Record
from logstore.cluster_processes.running_cluster import ClusterOptions
from logstore.cluster_processes.running_cluster import run as run_cluster
from logstore.errors import LogStoreError, TopicExistsError
from logstore.filesystem import FileSystem
from logstore.listening_sockets import listening_socket
from logstore.lock_file import LockFile
from tests.support.cluster_processes import (
    ClusterProcess,
    command,
    descendants,
    environment,
    is_alive,
    zookeeper_pid,
)
from tests.support.eventually import eventually
from tests.support.server_process import ROOT
from tests.support.small_store import TOPIC, small_store

pytestmark = pytest.mark.system


def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    found = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=200, check=False
    )
    assert found.returncode == code, found.stderr
    return found


def gone(pids: set[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


def takes_all_again(urls: Sequence[str], topic: str) -> None:
    """Wait until the brokers have sessions and leases again: they create a topic, lead partitions, and take acks=1."""

    def made() -> bool:
        with Admin(",".join(urls)) as admin:
            try:
                admin.create_topic(topic, partitions=2, replication_factor=2)
            except TopicExistsError:  # an earlier try succeeded without a response
                return True
            except LogStoreError:
                return False
        return True

    def appended(url: str, partition: int) -> bool:
        sent = f"{url}/topics/{topic}/partitions/{partition}?acks=1"
        return httpx.post(sent, json={"records": [{"value": "x"}]}, timeout=30).is_success

    def is_ready(url: str) -> bool:
        return httpx.get(f"{url}/health/ready", timeout=30).is_success

    eventually(made, "no topic is made", every_s=0.1)
    for url in urls:
        for partition in range(2):
            eventually(functools.partial(appended, url, partition), "acks=1 is refused", every_s=0.1)
        eventually(functools.partial(is_ready, url), "a broker that takes records is not ready", every_s=0.1)


def test_a_cluster_from_its_start_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGSTORE_KAFKA_LISTENERS", "127.0.0.1:0")
    data = tmp_path / "data"
    start = ("cluster", "start", "--brokers", 2, "--data", data, "--json")
    with ClusterProcess(tmp_path, *start) as cluster:
        one, two = cluster.entry["brokers"]
        assert [one["id"], two["id"]] == [1, 2]
        zookeeper = cluster.entry["zookeeper"]
        kafka = kafka_addresses(data, [1, 2])
        assert len(set(kafka)) == 2
        with Admin(two["url"]) as admin:
            seen = admin.describe_cluster()
            assert [(found.broker_id, found.url) for found in seen.brokers] == [(1, one["url"]), (2, two["url"])]
            assert seen.controller_id in {1, 2}
        again = run(*start, code=1).stderr
        assert "Another process is running the cluster of" in again
        assert "--data" in again

        progress = cluster.log.read_text()
        for step in (
            f"starting ZooKeeper on {zookeeper}",
            "starting brokers 1, 2",
            f"broker 1 is ready at {one['url']}",
        ):
            assert f"{step}\n" in progress
        running = run("cluster", "start-broker", 2, "--data", data, code=1).stderr
        assert "Broker 2 is running" in running
        both = ("--url", f"{two['url']},{one['url']}")
        run("topic", "create", "t", "-p", 2, *both)
        os.kill(two["pid"], signal.SIGKILL)
        eventually(lambda: "broker 2 has ended, killed by SIGKILL" in cluster.log.read_text(), "its end is not told")
        eventually(lambda: "1 broker," in run("cluster", "describe", *both).stdout, "it is not known to be dead")

        def orphans() -> list[list[str]]:
            rows = [line.split() for line in run("topic", "describe", "t", *both).stdout.splitlines()[-2:]]
            return [row for row in rows if row[1:8] == ["none", "2", "2", "-", "-", "-", "-"]]

        (orphan,) = eventually(orphans, "its partition has a leader")
        chosen = ("--topic", "t", "--partition", orphan[0], *both)
        refused = run("topic", "elect-leaders", "--election-type", "preferred", *chosen, code=1).stdout
        assert refused.endswith("is not there: start it.\n")
        assert not is_alive(two["pid"])
        started = json.loads(run("cluster", "start-broker", 2, "--data", data, "--json").stdout)
        assert (started["id"], started["url"]) == (2, two["url"])
        assert kafka_addresses(data, [1, 2]) == kafka
        assert httpx.get(f"{started['url']}/health/ready", timeout=30).status_code == 200

        pid = zookeeper_pid(cluster.process.pid)
        with pytest.raises(ClusterProcessesError, match=f"ZooKeeper is running at {zookeeper}, with pid {pid}:"):
            ask_to_start_zookeeper(Directory(data))
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: "ZooKeeper has ended, killed by SIGKILL" in cluster.log.read_text(), "its end is not told")
        assert f"start it again with: logstore cluster start-zookeeper --data {data}\n" in cluster.log.read_text()
        again = json.loads(run("cluster", "start-zookeeper", "--data", data, "--json").stdout)
        assert again == {"zookeeper": zookeeper, "pid": zookeeper_pid(cluster.process.pid)}
        takes_all_again([one["url"], two["url"]], "u")

        pids = descendants(cluster.process.pid)
        assert {one["pid"], started["pid"]} < pids
        assert cluster.stop() == 0
        eventually(lambda: gone(pids), "processes outlive the one that was stopped")
    stopped = [(data / "cluster" / f"broker-{number}.log").read_text().rstrip().splitlines()[-1] for number in (1, 2)]
    assert all("broker.stopped" in line for line in stopped), stopped

    # The ports are the same, and no process outlives the killed one.
    with ClusterProcess(tmp_path, *start) as cluster:
        assert cluster.entry["zookeeper"] == zookeeper
        assert [broker["url"] for broker in cluster.entry["brokers"]] == [one["url"], two["url"]]
        assert kafka_addresses(data, [1, 2]) == kafka
        pids = descendants(cluster.process.pid)
        assert len([pid for pid in pids if is_alive(pid)]) >= 3
        cluster.kill()
        eventually(lambda: gone(pids), "processes outlive the one that was killed")


@pytest.mark.long
def test_a_store_of_one_node_becomes_a_cluster(tmp_path: Path):
    """Let its broker lead the existing partitions, and let another broker join; the next start has the same brokers."""
    data = tmp_path / "data"
    records = small_store(data)
    start = ("cluster", "start", "--brokers", 2, "--data", data, "--json")
    for _ in range(2):
        with ClusterProcess(tmp_path, *start) as cluster:
            assert [broker["id"] for broker in cluster.entry["brokers"]] == [0, 1]
            url = cluster.entry["brokers"][1]["url"]
            with Admin(url) as admin:
                states = [one for one in admin.partition_replicas() if one.topic == TOPIC]
                assert [(one.leader, one.replicas) for one in states] == [(0, (0,))] * len(records)
                ends = [one.high_watermark for one in admin.describe_by_leaders(TOPIC).partitions]
                assert ends == [len(records[number]) for number in range(len(records))]
            assert cluster.stop() == 0
    served = run("serve", "--data", data, "--port", 0, code=1).stderr
    assert f"{data} belongs to a cluster, whose brokers agree through ZooKeeper" in served


@pytest.mark.long
def test_a_cluster_that_is_ready_has_leaders_in_all_views(tmp_path: Path):
    """Slow the controller down while both brokers start: starting brokers give up leadership."""
    data = tmp_path / "data"
    small_store(data)
    start = ("cluster", "start", "--brokers", 2, "--data", data, "--json")
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(
        "import asyncio\n"
        "from logstore.cluster.controller import Controller\n"
        "decide = Controller._reconcile\n"
        "async def decide_slowly(self, *args):\n"
        "    while len(self._watched.view.brokers) < 2:\n"
        "        await asyncio.sleep(0.1)\n"
        "    await asyncio.sleep(5)\n"
        "    await decide(self, *args)\n"
        "Controller._reconcile = decide_slowly\n"
    )
    with ClusterProcess(tmp_path, *start, PYTHONPATH=f"{tmp_path / 'slow'}{os.pathsep}{ROOT}") as cluster:
        for broker in cluster.entry["brokers"]:
            with Admin(broker["url"]) as admin:
                assert [one.leader for one in admin.partition_replicas() if one.topic == TOPIC] == [0, 0]
        assert cluster.stop() == 0


def test_a_service_starts_its_zookeeper_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGSTORE_KAFKA_LISTENERS", "")
    port = free_port()
    with ClusterProcess(tmp_path, "serve", "--brokers", 2, "--data", tmp_path / "data", "--port", port) as serving:
        pid = zookeeper_pid(serving.process.pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: "ZooKeeper serves again" in serving.log.read_text(), "it is not started again")
        assert zookeeper_pid(serving.process.pid) != pid
        takes_all_again([f"http://127.0.0.1:{port + 1}", f"http://127.0.0.1:{port + 2}"], "t")


def test_a_service_ends_with_a_zookeeper_that_cannot_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """End the service without any broker."""
    monkeypatch.setattr(zookeeper_process, "_PAUSES_S", (0.0, 0.01))

    def end_zookeeper(*_: object) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        os.kill(zookeeper_pid(os.getpid(), directory.data), signal.SIGKILL)

    directory = Directory(tmp_path / "data")
    with pytest.raises(LogStoreError) as error:
        run_cluster(ClusterOptions(directory, [], is_service=True), end_zookeeper)
    assert error.value.message.startswith("ZooKeeper needs Java 17: install it, or set JAVA_HOME\n")
    assert f"keeps ending, so that everything was stopped: see {directory.zookeeper}" in error.value.message
    assert capsys.readouterr().err.splitlines() == [
        "ZooKeeper has ended, killed by SIGKILL; it is started again",
        "ZooKeeper needs Java 17: install it, or set JAVA_HOME; it is started again in 0 s",
    ]


@pytest.mark.long
def test_brokers_behind_one_port(tmp_path: Path):
    port = free_port()
    arguments = ("serve", "--brokers", 2, "--data", tmp_path / "data", "--port", port)
    with ClusterProcess(tmp_path, *arguments) as serving:
        url = f"http://127.0.0.1:{port}"
        assert serving.first_line == f"listening on {url}\n"

        def brokers(connections: int = 30) -> set[int]:
            found = set()
            for _ in range(connections):
                with contextlib.suppress(httpx.TransportError):  # its broker was killed just now
                    found.add(httpx.get(f"{url}/status", timeout=30).json()["broker_id"])
            return found

        assert brokers() == {0, 1}
        for broker_id in (0, 1):
            own = httpx.get(f"http://127.0.0.1:{port + 1 + broker_id}/status", timeout=30).json()
            assert own["broker_id"] == broker_id
        with Admin(url) as admin:
            assert [one.url for one in admin.describe_cluster().brokers] == [
                f"http://127.0.0.1:{port + 1}",
                f"http://127.0.0.1:{port + 2}",
            ]
        endpoint = json.loads((tmp_path / "data" / "brokers" / "1" / "endpoint.json").read_text())
        os.kill(endpoint["pid"], signal.SIGKILL)
        # Only a few connections are tried, because the broker is started again soon.
        eventually(lambda: brokers(10) == {0}, "connections go to a broker that has ended")
        eventually(lambda: brokers() == {0, 1}, "it is not started again", seconds=180)
        pids = descendants(serving.process.pid)
        assert serving.stop(signal.SIGINT) == 0
        eventually(lambda: gone(pids), "processes outlive the one that was stopped")


# ---- bad starts ------------------------------------------------------------------------------------------------------


def refused(tmp_path: Path, **wanted: object) -> str:
    with pytest.raises(LogStoreError) as error:
        run_cluster(ClusterOptions(Directory(tmp_path / "data"), [1], **wanted), lambda *_: None)
    return error.value.message


def test_java_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "ZooKeeper needs Java 17: install it, or set JAVA_HOME" in refused(tmp_path)


def test_the_store_of_one_node_that_is_to_become_a_cluster_runs(tmp_path: Path):
    log_directory = tmp_path / "data" / "brokers" / "0"
    log_directory.mkdir(parents=True)
    lock = LockFile.acquire(log_directory, FileSystem())
    try:
        assert "Another process is serving" in refused(tmp_path)
    finally:
        lock.release()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["brokers"]


def test_a_kept_port_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ports, "_WAIT_S", 0.1)
    directory = Directory(tmp_path / "data")
    directory.home.mkdir(parents=True)
    with listening_socket("127.0.0.1", 0, {}) as taken:
        port = taken.getsockname()[1]
        Record(None, None, {1: port}).write(directory)
        message = refused(tmp_path)
    assert f"Port {port} of broker 1 on 127.0.0.1 cannot be used" in message
    assert f"remove the port from {directory.record}" in message


def test_a_port_for_kafkas_clients_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Refuse to start if a fixed port is taken; choose another port if port 0 was asked for."""
    monkeypatch.setattr(ports, "_WAIT_S", 0.1)
    directory = Directory(tmp_path / "data")
    directory.home.mkdir(parents=True)
    with listening_socket("127.0.0.1", 0, {}) as taken:
        port = taken.getsockname()[1]
        message = refused(tmp_path, kafka={1: KafkaAddress("127.0.0.1", port)})
        assert f"Port {port} of broker 1 for Kafka's clients on 127.0.0.1 cannot be used" in message
        assert "--kafka-port; 0: free ones" in message
        Record(None, None, {}, {1: port, 2: port}).write(directory)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # the start ends after the choice
        refused(tmp_path, kafka={1: KafkaAddress("127.0.0.1", 0), 2: KafkaAddress("127.0.0.1", 0)})
    record = Record.read(directory)
    assert record is not None
    told = capsys.readouterr().err
    for broker in (1, 2):
        chosen = record.kafka_ports[broker]
        assert chosen not in {0, port}
        line = f"port {port} of broker {broker} for Kafka's clients is taken by another process: it listens on"
        assert f"{line} 127.0.0.1:{chosen}\n" in told


@pytest.mark.long
def test_a_broker_that_starts_again_gives_way_at_its_port_for_kafkas_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Listen on the port with another process: the broker takes another port and keeps it."""
    monkeypatch.setenv("LOGSTORE_KAFKA_LISTENERS", "127.0.0.1:0")
    data = tmp_path / "data"
    with ClusterProcess(tmp_path, "cluster", "start", "--brokers", 1, "--data", data, "--json") as cluster:
        (broker,) = cluster.entry["brokers"]
        (former,) = kafka_addresses(data, [1])
        os.kill(broker["pid"], signal.SIGKILL)
        eventually(lambda: "broker 1 has ended" in cluster.log.read_text(), "its end is not told")
        with listening_socket("127.0.0.1", int(former.rpartition(":")[2]), {}):
            run("cluster", "start-broker", 1, "--data", data)
            (now,) = kafka_addresses(data, [1])
            assert now != former
            assert f"is taken by another process: it listens on {now}\n" in cluster.log.read_text()
    record = Record.read(Directory(data))
    assert record is not None
    assert record.kafka_ports == {1: int(now.rpartition(":")[2])}


@pytest.mark.long
def test_zookeeper_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGSTORE_ZOOKEEPER_SESSION_TIMEOUT_MS", "2000")
    message = refused(tmp_path, zookeeper="127.0.0.1:1")
    assert "Broker 1 did not start: cannot start: ZooKeeper at 127.0.0.1:1" in message
    assert "does not answer" in message
    assert str(tmp_path / "data" / "cluster" / "broker-1.log") in message
