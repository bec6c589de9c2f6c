"""``logstore serve`` as a broker of a cluster: its start, its bad starts, its stop."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import httpx
import pytest

from logstore.cluster import checked_file
from tests.support.cluster_states import SESSION_MS, Brokers
from tests.support.eventually import eventually_async
from tests.support.server_process import ROOT, ServerProcess

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


#: A program that calls what ``logstore serve`` calls, for one start after another.
_STARTS = """
import json, sys
from logstore.node import serve
from logstore.settings import load_settings
for given in json.loads(sys.argv[1]):
    print("exit", serve(load_settings(port=0, **given)), file=sys.stderr, flush=True)
"""


async def refused(brokers: Brokers, *starts: dict[str, object]) -> list[str]:
    """Return the last line of each start; each must exit with code 1. Unless given, settings are those of broker 1."""
    mine = {
        "zookeeper_connect": brokers.servers + brokers.chroot,
        # A start waits for the end of the session that holds its id.
        "zookeeper_session_timeout_ms": 4_000,
        "broker_id": 1,
    }
    wanted = json.dumps([{**mine, **start} for start in starts])
    command = [sys.executable, "-c", _STARTS, wanted]
    ran = await asyncio.to_thread(
        subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert "Traceback" not in ran.stderr, ran.stderr
    *parts, rest = ran.stderr.split("exit 1\n")
    assert (len(parts), rest) == (len(starts), ""), ran.stderr
    return [part.splitlines()[-1] for part in parts]


async def asked(server: ServerProcess, method: str, path: str, body: object = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        return await client.request(method, path, json=body)


async def create_topic(server: ServerProcess, name: str, **options: object) -> None:
    cluster = (await asked(server, "GET", "/v3/clusters")).json()["data"][0]["cluster_id"]
    body = {"topic_name": name, "partitions_count": 1, **options}
    answer = await asked(server, "POST", f"/v3/clusters/{cluster}/topics", body)
    assert answer.is_success, answer.text


@pytest.mark.long
async def test_bad_starts_beside_a_broker_and_after_it(brokers: Brokers, tmp_path: Path):
    data = str(tmp_path / "data")
    one = await started(tmp_path / "data", environment(brokers, 1))
    try:
        assert (await asked(one, "GET", "/health/ready")).status_code == 200
        again, other, elsewhere = await refused(
            brokers,
            {"data": data},
            {"data": data, "broker_id": 2, "log_dirs": f"{data}/brokers/1"},
            {"data": data, "log_dirs": str(tmp_path / "elsewhere")},
        )
    finally:
        one.kill()
    assert again.startswith("cannot start: Another process is serving")
    assert other.startswith("cannot start: Another process is serving")
    assert f"Broker 1 of the cluster is another process, at {one.url}" in elsewhere
    assert "broker.id" in elsewhere
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    identity = {"cluster_id": "x", "format_version": 2, "coordinator": "zookeeper"}
    for name in ("b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cluster.json").write_bytes(checked_file.encode(identity))
    await brokers.zookeeper.create(brokers.path("/empty"), b"")
    others, alone, nowhere, unreachable, another, lost = await refused(
        brokers,
        {"data": data, "broker_id": 2, "log_dirs": f"{data}/brokers/1"},
        {"data": data, "zookeeper_connect": None},
        {"data": data, "zookeeper_connect": f"{brokers.servers}/nowhere"},
        {"data": str(tmp_path / "a"), "zookeeper_connect": f"127.0.0.1:{port}", "zookeeper_session_timeout_ms": 1000},
        {"data": str(tmp_path / "b")},
        {"data": str(tmp_path / "c"), "zookeeper_connect": f"{brokers.servers}{brokers.chroot}/empty"},
    )
    assert "log directory of broker 1, not of 2" in others
    assert "belongs to a cluster, whose brokers agree through ZooKeeper" in alone
    assert "has no node /nowhere, with which zookeeper.connect ends" in nowhere
    assert f"ZooKeeper at 127.0.0.1:{port} (zookeeper.connect) does not answer" in unreachable
    assert "belongs to the cluster x" in another
    assert "has no cluster" in lost
    assert "correct zookeeper.connect" in lost


@pytest.mark.long
async def test_directories_of_one_node_and_documents_that_were_edited(brokers: Brokers, tmp_path: Path):
    for name, home in (("alone", "0"), ("moved", "1")):
        (tmp_path / name / "brokers" / home / "journal").mkdir(parents=True)
        identity = checked_file.encode({"cluster_id": "x", "format_version": 2})
        (tmp_path / name / "cluster.json").write_bytes(identity)
    roots = {"id": "/cluster/id", "registry": "/brokers/registry/1", "producers": "/producer_ids"}
    for root, path in roots.items():
        made = brokers.path(f"/{root}")
        await brokers.zookeeper.create(made, b"")
        *parents, edited = path.strip("/").split("/")
        for parent in parents:
            made += f"/{parent}"
            await brokers.zookeeper.create(made, b"")
        await brokers.zookeeper.create(f"{made}/{edited}", b'{"by": "hand"}')
    found = await refused(
        brokers,
        {"data": str(tmp_path / "alone")},
        {"data": str(tmp_path / "moved"), "log_dirs": str(tmp_path / "elsewhere")},
        *(
            {"data": str(tmp_path / root), "zookeeper_connect": f"{brokers.servers}{brokers.chroot}/{root}"}
            for root in roots
        ),
    )
    assert "start the cluster with the broker whose broker.id is 0, and no other until it listens" in found[0]
    assert (
        f"move {tmp_path / 'moved' / 'brokers' / '1' / 'journal'} into {tmp_path / 'elsewhere'} (log.dirs)" in found[1]
    )
    for line, path in zip(found[2:], roots.values(), strict=True):
        assert f"cannot start: {path} in ZooKeeper is not what a broker of this release writes" in line
        assert "put its former content back" in line
    # The single node can still start.
    assert not (tmp_path / "elsewhere").exists()
    for name in ("alone", "moved"):
        assert (tmp_path / name / "cluster.json").read_bytes() == identity


@pytest.mark.long
async def test_any_broker_makes_a_topic_on_demand_and_hands_over_before_it_stops(brokers: Brokers, tmp_path: Path):
    data = tmp_path / "data"
    settings = {"auto.create.topics.enable": "true"}
    one, two = [await started(data, environment(brokers, broker_id, **settings)) for broker_id in (1, 2)]
    try:
        for server, name in ((one, "a"), (two, "b")):
            records = {"records": [{"value": name}]}
            answer = await asked(server, "POST", f"/topics/{name}", records)
            assert answer.is_success, answer.text
        for server, name in ((one, "c"), (two, "d")):
            read = await asked(server, "GET", f"/topics/{name}/partitions/0/records?max_wait_ms=0")
            assert (read.status_code, read.json()) == (200, []), read.text
            found = await asked(server, "GET", f"/metadata?topics={name}-too")
            assert found.json()["topics"][0]["error_code"] is None, found.text
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
    line = "cannot start: zookeeper.connect needs the package kazoo: pip install 'delta-logstore[cluster]'"
    assert ran.stderr.splitlines()[-1] == line
