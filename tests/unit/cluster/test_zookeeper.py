"""``zookeeper.connect``, and this machine's ZooKeeper; ``tests/cluster`` has the rest, on a real one."""

import asyncio
import dataclasses
import socket
from pathlib import Path

import pytest

from logstore.cluster import zookeeper_server
from logstore.cluster.zookeeper import Servers, ZooKeeper
from logstore.cluster.zookeeper_server import Ports, ZooKeeperEnsemble, ZooKeeperServerError
from logstore.errors import InvalidConfigError, ZooKeeperUnavailableError


@pytest.mark.parametrize(
    ("connect", "hosts", "chroot"),
    [
        ("zk:2181", "zk:2181", ""),
        (" a,b:1,[::1]:2181/one/two ", "a,b:1,[::1]:2181", "/one/two"),
        ("10.0.0.1:2181/logstore", "10.0.0.1:2181", "/logstore"),
    ],
)
def test_servers_and_chroot(connect, hosts, chroot):
    assert Servers.parse(connect) == Servers(hosts, chroot)
    assert str(Servers.parse(connect)) == hosts + chroot


@pytest.mark.parametrize("connect", ["", "a,,b", "a:0", "a:65536", "a:x", "http://a:1", "a b", ":2181"])
def test_a_bad_server_is_named(connect):
    with pytest.raises(InvalidConfigError, match=r"^zookeeper\.connect names the server '.*host:port"):
        Servers.parse(connect)


@pytest.mark.parametrize("connect", ["a/", "a//b", "a/b/", "a/../b"])
def test_a_bad_chroot_is_named(connect):
    with pytest.raises(InvalidConfigError, match=r"^zookeeper\.connect ends in the path '/.*'"):
        Servers.parse(connect)


def test_a_zookeeper_that_cannot_run_here_is_one_error(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ZooKeeperServerError, match="needs Java 17"):
        ZooKeeperEnsemble(tmp_path / "z").start()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch()
    monkeypatch.setattr(zookeeper_server.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ZooKeeperServerError, match=r"pip install 'delta-logstore\[spark\]'"):
        ZooKeeperEnsemble(tmp_path / "z").start()


@pytest.mark.anyio
async def test_a_server_that_never_answers_does_not_cost_a_whole_session():
    """Connect again: ZooKeeper never answers connections that came while it read its data, but answers the next one."""
    taken: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(ZooKeeperUnavailableError, match="does not answer"):
            await ZooKeeper(Servers.parse(f"127.0.0.1:{port}"), session_timeout_ms=3_000).start()
        assert len(taken) > 1
        for writer in taken:
            writer.close()


@pytest.mark.system
def test_a_port_that_somebody_takes_before_the_start_is_another_one_then(tmp_path: Path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = Ports(busy.getsockname()[1], *dataclasses.astuple(Ports.free())[1:])
        chosen = [taken, Ports.free()]
        monkeypatch.setattr(Ports, "free", lambda: chosen.pop(0))
        ensemble = ZooKeeperEnsemble(tmp_path / "z")
        ensemble.start()
        try:
            assert ensemble.servers[0].mode == "standalone"
            assert not chosen
        finally:
            ensemble.stop()
