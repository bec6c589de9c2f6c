"""The process: how it starts, refuses to start, and stops."""

import json
import signal
import threading
import time

import httpx
import psutil
import pytest

from ingest_api.server import _url, serve
from logstore.settings import Settings
from tests.api.real_server import RealServer
from tests.support.watched_server import wait_until


def test_it_says_where_it_listens_once_it_does(tmp_path):
    server = RealServer(tmp_path / "data")
    try:
        assert server.wait_until_listening() == f"listening on http://127.0.0.1:{server.port}\n"
        assert httpx.get(f"{server.url}/health/ready").json() == {"status": "ready"}
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


@pytest.fixture
def stopping_server(tmp_path):
    with RealServer(tmp_path / "data") as running:
        running.create_topic("t")
        running.create_topic("idle")
        yield running


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
    wait_until(lambda: any(found.raddr for found in process.net_connections("tcp")), "the long poll does not begin")
    with server.connection() as connection:
        body = b'{"records":[{"value":2}]}'
        head = b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        connection.send(head % len(body) + body[:10])
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
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


def test_a_busy_port_is_one_clear_line(server, tmp_path):
    second = RealServer(tmp_path / "other", port=server.port)
    assert second.wait_until_listening() == ""
    assert second.stop() == 1
    (line,) = second.log_path.read_text().splitlines()
    assert line.startswith(f"cannot listen on 127.0.0.1:{server.port}: Address already in use")
    assert "make run PORT=8083" in line
    assert not (tmp_path / "other").exists(), "nothing is touched before the port is ours"


def test_a_data_directory_that_cannot_be_used_is_one_clear_line(tmp_path, capsys, own_logging):
    (tmp_path / "file").write_text("in the way")
    assert serve(Settings(data=tmp_path / "file" / "data", port=0)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"cannot use {tmp_path / 'file' / 'data'}")


def test_a_host_that_is_not_here_is_one_clear_line(tmp_path, capsys, own_logging):
    assert serve(Settings(data=tmp_path / "data", port=0, host="no.such.host.invalid")) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cannot listen on no.such.host.invalid:0")


def test_ipv6_addresses_are_bracketed():
    assert _url("::1", 80) == "http://[::1]:80"
