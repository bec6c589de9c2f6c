"""``logstore serve`` as a broker of a cluster: its start, its bad starts, its stop."""

import asyncio
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import httpx
import pytest

from logstore.cluster import checked_file
from tests.support.coordinators import SESSION_MS, Brokers
from tests.support.eventually import eventually_async
from tests.support.server_process import ROOT, NotStartedError, ServerProcess

pytestmark = [pytest.mark.anyio, pytest.mark.system]


def environment(brokers: Brokers, broker_id: int, **settings: str) -> dict[str, str]:
    found = {
        "zookeeper.connect": brokers.servers + brokers.chroot,
        "zookeeper.session.timeout.ms": str(SESSION_MS),
        "broker.id": str(broker_id),
        **settings,
    }
    return {f"LOGSTORE_{name.upper().replace('.', '_')}": value for name, value in found.items() if value}


async def started(data: Path, environment: dict[str, str]) -> ServerProcess:
    return await asyncio.to_thread(ServerProcess, data, environment=environment)


async def refused(data: Path, environment: dict[str, str]) -> str:
    """The last line of a start that ends with exit code 1."""
    with pytest.raises(NotStartedError) as ended:
        (await started(data, environment)).kill()
    assert ended.value.code == 1, ended.value
    assert "Traceback" not in "\n".join(ended.value.lines)
    return ended.value.lines[-1]


async def asked(server: ServerProcess, method: str, path: str, body: object = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        return await client.request(method, path, json=body)


async def create_topic(server: ServerProcess, name: str, **options: object) -> None:
    cluster = (await asked(server, "GET", "/v3/clusters")).json()["data"][0]["cluster_id"]
    body = {"topic_name": name, "partitions_count": 1, **options}
    answer = await asked(server, "POST", f"/v3/clusters/{cluster}/topics", body)
    assert answer.is_success, answer.text


async def test_a_start_and_its_bad_neighbours(brokers: Brokers, tmp_path: Path):
    data = tmp_path / "data"
    one = await started(data, environment(brokers, 1))
    try:
        assert (await asked(one, "GET", "/health/ready")).status_code == 200
        line = await refused(data, environment(brokers, 1))
        assert "cannot start: Another process is serving" in line
        line = await refused(data, environment(brokers, 2, **{"log.dirs": str(data / "brokers/1")}))
        assert "cannot start: Another process is serving" in line
        line = await refused(data, environment(brokers, 1, **{"log.dirs": str(tmp_path / "elsewhere")}))
        assert f"Broker 1 of the cluster is another process, at {one.url}" in line
        assert "broker.id" in line
    finally:
        one.kill()
    line = await refused(data, environment(brokers, 2, **{"log.dirs": str(data / "brokers/1")}))
    assert "log directory of broker 1, not of 2" in line
    line = await refused(data, {})
    assert "belongs to a cluster, whose brokers agree through ZooKeeper" in line
    line = await refused(data, environment(brokers, 1, **{"zookeeper.connect": f"{brokers.servers}/nowhere"}))
    assert "has no node /nowhere" in line
    assert "zookeeper.connect" in line


async def test_directories_and_zookeepers_that_do_not_belong_together(brokers: Brokers, tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    line = await refused(tmp_path / "a", environment(brokers, 1, **{"zookeeper.connect": f"127.0.0.1:{port}"}))
    assert f"ZooKeeper at 127.0.0.1:{port} (zookeeper.connect) does not answer" in line
    (tmp_path / "b").mkdir()
    identity = {"cluster_id": "x", "format_version": 2, "coordinator": "zookeeper"}
    (tmp_path / "b/cluster.json").write_bytes(checked_file.encode(identity))
    line = await refused(tmp_path / "b", environment(brokers, 1))
    assert "has no cluster" in line
    assert "correct zookeeper.connect" in line
    line = await refused(tmp_path / "c", environment(brokers, 1, **{"zookeeper.connect": "", "log.dirs": "/x"}))
    assert "log.dirs is for a broker of a cluster" in line


async def test_an_old_image_of_the_disk_leads_nothing(brokers: Brokers, tmp_path: Path):
    data, image = tmp_path / "data", tmp_path / "image"
    one = await started(data, environment(brokers, 1))
    one.stop()
    shutil.copytree(data / "brokers/1", image)
    one = await started(data, environment(brokers, 1))
    await create_topic(one, "t")
    one.stop()
    shutil.rmtree(data / "brokers/1")
    shutil.copytree(image, data / "brokers/1")
    one = await started(data, environment(brokers, 1))
    try:
        assert "cluster.journal_replaced" in one.log
        assert (await brokers.row("t")).isr == ()
        assert (await brokers.row("t")).leader == -1
    finally:
        one.stop()


async def test_a_stop_hands_over_while_the_broker_answers(brokers: Brokers, tmp_path: Path):
    data = tmp_path / "data"
    one, two = [await started(data, environment(brokers, broker_id)) for broker_id in (1, 2)]
    try:
        # Nobody can take it over: it answers, not ready, as long as it tries.
        await create_topic(one, "t", replication_factor=2)
        row = await brokers.row("t")
        led = {1: one, 2: two}.pop(row.leader)
        led.process.send_signal(signal.SIGTERM)
        await eventually_async(lambda: led.process.poll() is not None, "not stopped")
        now = await brokers.row("t")
        assert now.leader not in {row.leader, -1}
        assert led.process.returncode == 0
        assert "not_handed_over" not in led.log
    finally:
        one.stop()
        two.stop()


def test_one_node_imports_nothing_of_zookeeper(tmp_path: Path):
    code = (
        "import asyncio, sys\n"
        "from logstore import node\n"
        "from logstore.broker.authorizer import Authorizer\n"
        "from logstore.broker.quotas import Quotas\n"
        "from logstore.settings import Settings\n"
        "async def run():\n"
        f"    async with node.running_store(Settings(data={str(tmp_path / 'data')!r}), Authorizer(), Quotas()):\n"
        "        print([name for name in sys.modules if name.startswith(('kazoo', 'logstore.cluster.z'))])\n"
        "asyncio.run(run())\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "[]" in ran.stdout.splitlines()


def test_a_broker_without_kazoo_says_what_it_needs(tmp_path: Path):
    code = (
        "from tests.support.extras import hide_all_but\nhide_all_but('server')\n"
        "from logstore.cli import main\nimport sys\n"
        f"sys.argv = ['logstore', 'serve', '--port', '0', '--data', {str(tmp_path / uuid.uuid4().hex)!r}]\nmain()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"LOGSTORE_ZOOKEEPER_CONNECT": "127.0.0.1:1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    line = "cannot start: zookeeper.connect needs the package kazoo: pip install 'logstore[cluster]'"
    assert ran.stderr.splitlines()[-1] == line
