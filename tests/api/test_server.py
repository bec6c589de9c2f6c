"""The process: how it starts, refuses to start, and stops."""

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest

from logstore.filesystem import FileSystem
from logstore.listening_sockets import listening_socket, url_of
from logstore.node import run, serve
from logstore.settings import Settings
from tests.api.api_client import assert_error, running_api
from tests.api.real_server import RealServer
from tests.support.eventually import eventually


@pytest.mark.system
def test_a_store_says_where_it_listens_once_it_does(tmp_path):
    server = RealServer(tmp_path / "data")
    try:
        assert server.wait_until_listening() == f"listening on http://127.0.0.1:{server.port}\n"
        assert httpx.get(f"{server.url}/health/ready").json() == {"status": "ready", "problems": []}
        endpoint = tmp_path / "data" / "brokers" / "0" / "endpoint.json"
        assert json.loads(endpoint.read_bytes()) == {"url": server.url, "pid": server.process.pid}
        server.process.send_signal(signal.SIGINT)
        out, _ = server.process.communicate(timeout=60)
        assert server.process.returncode == 0
        assert out == "", "one line on stdout, and no more"
        assert not endpoint.exists()
    finally:
        server.process.kill()
        server.process.wait()


class HeldRecovery(FileSystem):
    """A file system on which recovery waits at the first table until ``going_on`` is set."""

    def __init__(self) -> None:
        self.going_on = threading.Event()

    def sync_file(self, path: Path) -> None:
        if "_delta_log" in path.parts:
            assert self.going_on.wait(60)
        super().sync_file(path)


class StartingServer:
    def __init__(self, data: Path, disk: HeldRecovery) -> None:
        self.data, self.disk = data, disk
        listener = listening_socket("127.0.0.1", 0)
        self.http = httpx.AsyncClient(base_url=url_of(listener, "127.0.0.1"), timeout=60)
        self.task = asyncio.create_task(run(Settings(data=data), listener))


@pytest.fixture
async def starting(
    tmp_path: Path, anyio_backend: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StartingServer]:
    async with running_api(tmp_path / "data") as api:
        await api.create_topic("t")
        await api.produce("t", ["before"])
    disk = HeldRecovery()
    monkeypatch.setattr("logstore.filesystem._local", disk)
    server = StartingServer(tmp_path / "data", disk)
    async with server.http:
        yield server
        disk.going_on.set()
        if not server.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await server.task


@pytest.mark.anyio
async def test_a_store_that_starts_says_that_it_lives_and_is_not_ready(starting, capfd):
    http = starting.http
    assert (await http.get("/health/live")).json() == {"status": "live"}
    assert "logstore_http_requests_total" in (await http.get("/metrics")).text
    described = (await http.get("/openapi.json")).json()["paths"]
    paths = [path for path, methods in described.items() if "get" in methods]
    for path in set(paths) - {"/health/live", "/metrics"}:
        answer = await http.get(path.replace("{partition_id}", "0").replace("{partition}", "0"))
        assert "the store is starting" in assert_error(answer, 503, 50301), path
        assert answer.headers["Retry-After"] == "1"
    for path in ("/topics/t/events", "/consumers/g/instances/i/events"):
        answer = await http.get(path, headers={"Accept": "text/event-stream"})
        assert answer.status_code == 200, "an EventSource gives up on anything else"
        assert re.fullmatch(r"retry: \d+\n\n", answer.text)
        assert answer.headers["Content-Type"].startswith("text/event-stream")
    for _ in range(3):  # also as a short request
        answer = await http.post("/topics/t", json={"records": [{"value": "during"}]})
        assert_error(answer, 503, 50301)
    assert capfd.readouterr().out == "", "nobody is told yet that it listens"
    assert not (starting.data / "brokers" / "0" / "endpoint.json").exists()
    starting.disk.going_on.set()
    while (await http.get("/health/ready")).status_code != 200:
        pass
    answer = await http.post("/topics/t", json={"records": [{"value": "after"}]})
    assert answer.json()["offsets"][0]["offset"] == 1
    assert capfd.readouterr().out == f"listening on {str(http.base_url).rstrip('/')}\n"


@pytest.mark.long
@pytest.mark.anyio
async def test_a_stop_while_the_store_starts_is_a_clean_one(starting, capfd):
    assert (await starting.http.get("/health/live")).status_code == 200
    os.kill(os.getpid(), signal.SIGTERM)
    while not starting.task.done():
        try:
            await starting.http.get("/health/live")
        except httpx.TransportError:
            break
    starting.disk.going_on.set()
    await starting.task
    assert capfd.readouterr().out == ""
    async with running_api(starting.data) as api:
        assert await api.values("t") == ["before"]


@pytest.mark.system
def test_a_store_that_cannot_start_ends_with_one_clear_line(tmp_path):
    with RealServer(tmp_path / "data") as first:
        second = RealServer(tmp_path / "data")
        assert second.wait_until_listening() == ""
        assert second.stop() == 1
        (line,) = second.log_path.read_text().splitlines()[-1:]
        assert line.startswith("cannot start: ")
        assert httpx.get(f"{first.url}/health/ready").status_code == 200


@pytest.fixture
def stopping_server(tmp_path):
    with RealServer(tmp_path / "data") as running:
        running.create_topic("t")
        running.create_topic("idle")
        yield running


def is_ready(server: RealServer) -> bool:
    """Return whether the store is ready; False if nothing listens."""
    try:
        return httpx.get(f"{server.url}/health/ready", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.system
def test_a_stop_answers_what_is_under_way_seals_and_exits_with_0(stopping_server):
    server = stopping_server
    polled = []

    def poll() -> None:
        url = f"{server.url}/topics/idle/partitions/0/records?max_wait_ms=60000"
        polled.append(httpx.get(url, timeout=60))

    httpx.post(f"{server.url}/topics/t", json={"records": [{"value": 1}]}).raise_for_status()
    poller = threading.Thread(target=poll)
    poller.start()
    process = psutil.Process(server.process.pid)
    eventually(lambda: any(found.raddr for found in process.net_connections("tcp")), "the long poll does not begin")
    with server.connection() as connection:
        body = b'{"records":[{"value":2}]}'
        head = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += b"Content-Length: %d\r\n\r\n"
        connection.send(head % len(body) + body[:10])
        # The server answers this after it has read everything sent before.
        assert is_ready(server)
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: not is_ready(server))
        connection.send(body[10:])
        answer = connection.answer()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert json.loads(answer.body)["offsets"][0]["offset"] == 1
    poller.join(30)
    assert (polled[0].status_code, polled[0].json()) == (200, [])
    assert server.stop() == 0
    assert "Traceback" not in server.log_path.read_text()
    with RealServer(server.data) as again:
        partition = httpx.get(f"{again.url}/topics/t/partitions/0").json()
        assert (partition["sealed_offset"], partition["high_watermark"]) == (2, 2)


@pytest.mark.long
@pytest.mark.system
def test_a_busy_port_is_one_clear_line(server, tmp_path):
    second = RealServer(tmp_path / "other", port=server.port)
    assert second.wait_until_listening() == ""
    assert second.stop() == 1
    (line,) = second.log_path.read_text().splitlines()
    assert line.startswith(f"cannot listen on 127.0.0.1:{server.port}: Address already in use")
    assert "make run PORT=8083" in line
    assert not (tmp_path / "other").exists(), "nothing is touched before the port is ours"


def test_a_data_directory_that_cannot_be_used_is_one_clear_line(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    assert serve(Settings(data=tmp_path / "file" / "data", port=0)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cannot use {tmp_path / 'file' / 'data'}")
    assert serve(Settings(data=tmp_path / "file", port=0)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"cannot use {tmp_path / 'file'}: it is a file, and data has to be a directory"


def test_a_host_that_is_not_here_is_one_clear_line(tmp_path, capsys):
    assert serve(Settings(data=tmp_path / "data", port=0, host="no.such.host.invalid")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cannot listen on no.such.host.invalid:0")


def test_ipv6_addresses_are_bracketed():
    with listening_socket("::1", 0) as listener:
        assert url_of(listener, "::1") == f"http://[::1]:{listener.getsockname()[1]}"
