"""Streams of events of a real server: nothing is lost or doubled, whatever happens to the server or its clients."""

import asyncio
import contextlib
import hashlib
import json
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Self

import httpx
import pytest

from benchmarks.free_port import free_port
from tests.support.event_client import EventClient, streaming
from tests.support.eventually import eventually, eventually_async
from tests.support.raw_client import RawClient
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.system

LARGE = "x" * 100_000


def create_topic(url: str, name: str = "t", partitions: int = 1) -> None:
    cluster = httpx.get(f"{url}/v3/clusters", timeout=60).json()["data"][0]["cluster_id"]
    body = {"topic_name": name, "partitions_count": partitions}
    assert httpx.post(f"{url}/v3/clusters/{cluster}/topics", json=body, timeout=60).status_code == 201


class Producer:
    """Numbers produced one after the other, over kills of the server, each once."""

    def __init__(self, url: str, padding: str = "") -> None:
        self._url = url
        self._padding = padding
        self.count = 0

    async def run(self, count: int, *, rate: float = 1_000.0) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=30, trust_env=False) as http:
            for number in range(self.count, self.count + count):
                body = {"records": [{"value": f"{number} {self._padding}"}]}
                headers = {"Idempotency-Key": f"record-{number}"}
                while True:
                    with contextlib.suppress(httpx.TransportError):
                        answer = await http.post("/topics/t/partitions/0", json=body, headers=headers)
                        if answer.status_code == 200:
                            break
                    await asyncio.sleep(0.05)
                self.count += 1
                await asyncio.sleep(1 / rate)


async def read_over_breaks(url: str, count: int) -> tuple[list[int], int]:
    """Return the numbers that one client gets that reconnects as a browser does, and how often it reconnected."""
    found: list[int] = []
    last_id, connections = "", 0
    while len(found) < count:
        with contextlib.suppress(httpx.TransportError):
            async with streaming(url, last_id=last_id, from_="earliest") as client:
                connections += 1
                while client.response.status_code == 200 and len(found) < count and (taken := await client.take(1)):
                    found.append(int(taken[0].json["value"].split()[0]))
                    last_id = client.last_id
        await asyncio.sleep(0.05)
    return found, connections


@pytest.mark.long
def test_a_client_that_comes_back_has_every_record_once_over_kills_of_the_server(tmp_path: Path) -> None:
    async def schedule(server: ServerProcess) -> None:
        producer = Producer(server.url)
        reading = [asyncio.create_task(read_over_breaks(server.url, 120)) for _ in range(3)]
        producing = asyncio.create_task(producer.run(120, rate=100))
        for kill in range(2):
            await eventually_async(lambda least=40 * (kill + 1): producer.count >= least)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await producing
        for found, connections in await asyncio.wait_for(asyncio.gather(*reading), 60):
            assert found == list(range(120))
            assert connections >= 2, "no stream was broken off"

    with ServerProcess(tmp_path / "data", port=free_port()) as server:
        create_topic(server.url)
        asyncio.run(schedule(server))


@pytest.mark.long
def test_a_slow_reader_is_cut_and_continues_where_it_was_while_memory_stays(tmp_path: Path) -> None:
    async def schedule(server: ServerProcess) -> None:
        producer = Producer(server.url, LARGE)
        async with RawClient.connected(int(server.url.rpartition(":")[2]), receive_bytes=4096) as slow:
            await slow.send(b"GET /topics/t/events?from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # The client reads the first events, and then nothing while 20 MB come.
            head = await slow.take(200)
            assert b"200 OK" in head
            before = resident_bytes(server)
            await producer.run(200)
            assert resident_bytes(server) - before < 40_000_000
            # A client that reads again before it is cut would no longer be slow.
            await eventually_async(lambda: metric(server, "logstore_event_streams_cut_total") == 1)
            # The bytes that the kernels hold of it may still be read.
            rest = await asyncio.wait_for(slow.rest(), 30)
        assert rest.count(b"\ndata: ") < 100
        assert metric(server, "logstore_event_streams") == 0
        last_id = (head + rest).rpartition(b"\n\n")[0].rpartition(b"\nid: ")[2].split(b"\n")[0].decode()
        whole = [line for line in (head + rest).rpartition(b"\n\n")[0].split(b"\n") if line.startswith(b"data: ")]
        async with streaming(server.url, last_id=last_id) as client:
            found = await client.take(200 - len(whole))
        numbers = [int(json.loads(line[6:])["value"].split()[0]) for line in whole]
        numbers += [int(event.json["value"].split()[0]) for event in found]
        assert numbers == list(range(200))

    environment = {"LOGSTORE_RESPONSE_TIMEOUT_MS": "5000"}
    with ServerProcess(tmp_path / "data", environment=environment) as server:
        create_topic(server.url)
        asyncio.run(schedule(server))


@pytest.mark.long
def test_a_stop_ends_all_streams_even_of_clients_that_take_nothing(tmp_path: Path) -> None:
    async def schedule(server: ServerProcess) -> None:
        await Producer(server.url, LARGE).run(200)
        port = int(server.url.rpartition(":")[2])
        async with (
            RawClient.connected(port, receive_bytes=4096) as stuck,
            streams(server.url, 5) as clients,
        ):
            await stuck.send(b"GET /topics/t/events?from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await stuck.take(100)
            await asyncio.sleep(1)  # all buffers on the way fill up
            assert await asyncio.to_thread(server.stop) == 0
            for client in clients:
                assert await client.rest() == []
                assert client.parser.comments[-1].startswith("the store is stopping")

    with ServerProcess(tmp_path / "data") as server:
        create_topic(server.url)
        asyncio.run(schedule(server))
    # uvicorn logs this when requests were cut after the ten seconds that they have.
    assert "graceful shutdown exceeded" not in server.log
    assert "Traceback" not in server.log


@pytest.mark.long
@pytest.mark.parametrize("count", [50, pytest.param(1_000, marks=pytest.mark.long)])
def test_many_clients_have_every_record_in_one_order(tmp_path: Path, count: int) -> None:
    async def schedule(server: ServerProcess) -> None:
        async with streams(server.url, count) as clients:
            reading = [asyncio.create_task(hash_of(client, 100)) for client in clients]
            await Producer(server.url).run(100, rate=100)
            hashes = await asyncio.wait_for(asyncio.gather(*reading), 240)
        assert len(set(hashes)) == 1
        assert resident_bytes(server) < 300_000_000
        await eventually_async(lambda: metric(server, "logstore_event_streams") == 0)
        assert metric(server, "logstore_events_sent_total") == 100 * count

    with ServerProcess(tmp_path / "data") as server:
        create_topic(server.url)
        asyncio.run(schedule(server))


async def hash_of(client: EventClient, count: int) -> str:
    events = await client.take(count)
    assert [int(event.json["value"].split()[0]) for event in events] == list(range(count))
    return hashlib.sha256("\n".join(event.data + event.last_id for event in events).encode()).hexdigest()


@contextlib.asynccontextmanager
async def streams(url: str, count: int) -> AsyncIterator[list[EventClient]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(count):
            clients.append(await stack.enter_async_context(streaming(url)))
            await clients[-1].began()
        yield clients


def metric(server: ServerProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


# ---- a browser ------------------------------------------------------------------------------------------------------

_PAGE = """<!doctype html><script>
const source = new EventSource("%s/topics/t/events?from=earliest");
source.onmessage = (event) => fetch("/shown", {method: "POST", body: event.lastEventId + " " + event.data});
</script>"""
_CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


class PageServer:
    """Serves one page, and keeps the texts that its script posts, in the order of their arrival."""

    def __init__(self, page: str) -> None:
        self.posted: list[str] = []
        posted = self.posted

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(page.encode())

            def do_POST(self) -> None:
                posted.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self._answer(b"")

            def _answer(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def browsing(url: str, directory: Path) -> Iterator[None]:
    # The page is not the store's own: without --disable-web-security the browser withholds the store's answers from it.
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-web-security", f"--user-data-dir={directory}")
    browser = subprocess.Popen(
        [_CHROMIUM, *options, "--remote-debugging-port=0", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        browser.terminate()
        browser.wait(60)


@pytest.mark.long
@pytest.mark.skipif(not _CHROMIUM, reason="needs chromium: apt-get install chromium")
def test_a_browser_has_every_record_once_over_a_kill_of_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", port=free_port()) as server:
        create_topic(server.url)
        producer = Producer(server.url)
        asyncio.run(producer.run(3))
        with PageServer(_PAGE % server.url) as page, browsing(page.url, tmp_path / "browser"):
            eventually(lambda: len(page.posted) >= 3, "the page shows no records", seconds=120)
            server.kill()
            server.start()
            asyncio.run(producer.run(3))
            eventually(lambda: len(page.posted) >= 6, "the page did not resume", seconds=120)
    shown = sorted(page.posted)  # posts may overtake each other
    assert [line.split(" ")[0].rpartition(":")[2] for line in shown] == ["1", "2", "3", "4", "5", "6"]
    assert [json.loads(line.partition(" ")[2])["offset"] for line in shown] == list(range(6))
