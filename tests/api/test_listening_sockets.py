"""The service manager holds a socket: one store after another answers on it, and no connection is refused."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from logstore import listening_sockets
from logstore.errors import InvalidConfigError
from logstore.listening_sockets import SocketBuffers, listening_socket, url_of

# Starts a service as systemd does: the socket is descriptor 3, and the variables name the process that is to take it.
_ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3, inheritable=True)
os.environ |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
os.execv(sys.argv[2], sys.argv[2:])
"""


def serve_on(listener: socket.socket, data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _ACTIVATE, str(listener.fileno()), str(Path(sys.executable).with_name("logstore"))]
    return subprocess.Popen(
        [*command, "serve", "--data", str(data)],
        pass_fds=[listener.fileno()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(60)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.system
@pytest.mark.system
def test_no_connection_is_refused_while_one_store_follows_another_on_a_socket(tmp_path):
    with listening_socket("127.0.0.1", 0) as listener, ThreadPoolExecutor(1) as pool:
        url = url_of(listener, "127.0.0.1")
        first = serve_on(listener, tmp_path / "data")
        try:
            assert first.stdout.readline() == f"listening on {url}\n"
            cluster = httpx.get(f"{url}/v3/clusters").json()["data"][0]["cluster_id"]
        finally:
            assert ended(first) == 0
        # No process accepts the connection, so it waits.
        waiting = pool.submit(httpx.get, f"{url}/health/live", timeout=60)
        second = serve_on(listener, tmp_path / "data")
        try:
            assert waiting.result().status_code == 200
            assert second.stdout.readline() == f"listening on {url}\n"
            assert httpx.get(f"{url}/v3/clusters").json()["data"][0]["cluster_id"] == cluster
        finally:
            assert ended(second) == 0


def test_variables_for_another_process_are_not_ours_and_are_not_handed_on():
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDNAMES": "x", "HOME": "/"}
    with listening_socket("127.0.0.1", 0, environment) as listener:
        assert listener.getsockname()[1] > 0
    assert environment == {"HOME": "/"}


def test_a_missing_socket_is_reported_as_the_service_managers(monkeypatch):
    """Check that the message does not blame the port of the settings, which no code tried."""
    closed = os.open(os.devnull, os.O_RDONLY)
    os.close(closed)
    monkeypatch.setattr(listening_sockets, "_FIRST_INHERITED", closed)
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    with pytest.raises(InvalidConfigError, match=f"file descriptor {closed} is no socket: Bad file descriptor"):
        listening_socket("127.0.0.1", 0, environment)


def test_more_than_one_socket_is_refused():
    environment = {"LISTEN_FDS": "2", "LISTEN_PID": str(os.getpid())}
    with pytest.raises(InvalidConfigError, match="handed over 2 sockets: give one ListenStream"):
        listening_socket("127.0.0.1", 0, environment)


@pytest.mark.system
@pytest.mark.system
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(socket.SOCK_DGRAM, id="datagrams", marks=pytest.mark.long),
        pytest.param(socket.SOCK_STREAM, id="does not listen"),
    ],
)
def test_a_socket_that_listens_to_no_tcp_port_is_refused_in_one_line(tmp_path, kind):
    with socket.socket(type=kind) as wrong:
        process = serve_on(wrong, tmp_path / "data")
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error.splitlines() == [
        "cannot listen: the service manager's socket listens to no TCP port: give it a ListenStream=port."
    ]
    assert not (tmp_path / "data").exists()


def test_a_listening_socket_has_the_buffers_that_are_set():
    with listening_socket("127.0.0.1", 0, buffers=SocketBuffers(send=40_000, receive=50_000)) as listener:
        # Linux doubles the requested size.
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in {40_000, 80_000}
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) in {50_000, 100_000}
        with socket.create_connection(listener.getsockname()):
            listener.setblocking(True)
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) in {40_000, 80_000}
