"""Bounds in time, shortened: clients that send nothing, or a little, or stop in the middle."""

import asyncio
import contextlib

import pytest
import uvicorn
from uvicorn.server import ServerState

from ingest_api import answers, bodies, protocol
from ingest_api.backpressure import InFlightBytes
from ingest_api.errors import ClientDisconnectedError

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def listening(app):
    """The application behind our protocol on a socket of this process: the port."""
    config = uvicorn.Config(app, http=protocol.HttpProtocol, ws="none", lifespan="off", log_config=None)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol.HttpProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await asyncio.gather(*state.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(port: int):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def test_a_connection_that_sends_nothing_is_closed_without_a_word(api, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.05)
    async with listening(api.app) as port, connected(port) as (reader, _):
        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_head_that_does_not_end_is_408(api, monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.05)
    async with listening(api.app) as port, connected(port) as (reader, writer):
        writer.write(b"GET /topics HTTP/1.1\r\nX: ")
        answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"error_code":408' in answer


async def test_a_body_that_stops_is_408_and_gives_its_bytes_back(api, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_IDLE_SECONDS", 0.05)
    await api.create_topic("t")
    async with listening(api.app) as port, connected(port) as (reader, writer):
        head = b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n"
        writer.write(head + b'{"records"')
        answer = await asyncio.wait_for(reader.readuntil(b"}"), 10)
    assert answer.startswith(b"HTTP/1.1 408")
    assert api.app.state.api.requests.reserved == 0
    assert api.end_offsets("t") == [0]


async def test_a_body_that_is_slow_but_goes_on_is_read(api, monkeypatch):
    monkeypatch.setattr(bodies, "BODY_IDLE_SECONDS", 0.5)
    await api.create_topic("t")
    body = b'{"records":[{"value":1}]}'
    async with listening(api.app) as port, connected(port) as (reader, writer):
        head = b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body))
        for start in range(0, len(body), 2):
            await asyncio.sleep(0.05)  # 0.65 s in all: longer than the pause that is allowed
            writer.write(body[start : start + 2])
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")


async def test_a_client_that_stops_reading_its_answer_is_given_up(monkeypatch):
    monkeypatch.setattr(answers, "_PIECE_SECONDS", 0.05)
    in_flight = InFlightBytes(1 << 20, what="answers", setting="x")
    response = answers.RecordsResponse(b"x" * 600_000, in_flight.reserve(600_000), media_type="a/b", headers={})
    pieces = []

    async def send(message):
        pieces.append(message)
        if len(pieces) == 3:
            await asyncio.sleep(60)

    with pytest.raises(ClientDisconnectedError):
        await response({}, None, send)
    assert in_flight.reserved == 0
    assert sum(len(piece.get("body", b"")) for piece in pieces) < 600_000


async def test_a_request_that_is_cancelled_is_answered_503_not_with_silence(api):
    await api.create_topic("t")
    sent = []

    async def send(message):
        sent.append(message)

    first = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if not first:
            await asyncio.sleep(60)
        return first.pop()

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/topics/t/partitions/0/records",
        "raw_path": b"/topics/t/partitions/0/records",
        "query_string": b"offset=0&max_wait_ms=60000",
        "headers": [],
        "scheme": "http",
        "http_version": "1.1",
    }
    polling = asyncio.create_task(api.app(scope, receive, send))
    await asyncio.sleep(0.05)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    assert sent[0]["status"] == 503
    assert b"unknown" in sent[1]["body"]
