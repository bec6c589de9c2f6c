"""Limits in time, shortened: clients send nothing or a little, or stop in the middle."""

import asyncio
import re
import time

import pytest

from tests.api.api_client import running_api
from tests.api.listening import connected, listening, read_nothing
from tests.support.eventually import eventually_async, loop_turns

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("transport")]

POST = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


async def test_a_connection_that_sends_nothing_is_closed_without_a_word(api):
    async with listening(api.app, idle_seconds=0.05) as (port, _), connected(port) as (reader, _):
        assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_a_head_that_does_not_end_is_408(api):
    async with listening(api.app, head_seconds=0.05) as (port, _), connected(port) as (reader, writer):
        writer.write(b"GET /topics HTTP/1.1\r\nX: ")
        answer = await asyncio.wait_for(reader.read(), 30)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"error_code":408' in answer


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_head_that_came_while_the_server_stood_still_is_read(api):
    """Stop the loop, as if the process was stopped or its machine asleep: the timer is overdue when bytes come."""
    async with listening(api.app, head_seconds=0.3) as (port, state), connected(port) as (reader, writer):
        writer.write(b"GET /health/live HTTP/1.1\r\nHost")
        await eventually_async(lambda: any(connection._in_head for connection in state.connections))
        (connection,) = state.connections
        connection.transport.pause_reading()
        writer.write(b": localhost\r\n\r\n")
        # The loop does nothing meanwhile. asyncio then reads before it looks at timers; other loops read after.
        time.sleep(1)  # noqa: ASYNC251
        asyncio.get_running_loop().call_later(0.02, connection.transport.resume_reading)
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 200")


async def test_a_body_that_stops_is_408_and_gives_its_bytes_back(tmp_path):
    async with running_api(tmp_path / "data", request_body_timeout_ms=50) as api:
        await api.create_topic("t")
        async with listening(api.app) as (port, _), connected(port) as (reader, writer):
            writer.write(POST % 500 + b'{"records"')
            answer = await asyncio.wait_for(reader.read(), 30)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in answer
        assert api.app.state.api.requests.reserved == 0
        assert api.end_offsets("t") == [0]


async def test_a_slow_body_that_does_not_stop_is_read(tmp_path):
    body = b'{"records":[{"value":1}]}'.ljust(10_000)
    async with running_api(tmp_path / "data", request_body_timeout_ms=3_000) as api:
        await api.create_topic("t")
        async with listening(api.app) as (port, _), connected(port) as (reader, writer):
            writer.write(POST % len(body))
            for start in range(0, len(body), 1_000):
                # Sending all pieces takes 3.5 s, longer than one interval; no pause is an eighth of one.
                await asyncio.sleep(0.35)
                writer.write(body[start : start + 1_000])
            assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 200")


async def test_a_client_that_stops_reading_its_answer_is_cut_and_gives_its_bytes_back(api):
    await api.create_topic("t", max_message_bytes=str(16 << 20))
    for _ in range(2):
        assert (await api.produce("t", ["x" * (8 << 20)])).status_code == 200
    answers = api.app.state.api.answers
    async with listening(api.app, answer_seconds=0.2) as (port, _), connected(port) as (_, writer):
        read_nothing(writer)
        path = b"/topics/t/partitions/0/records?max_bytes=20000000"
        writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
        await eventually_async(lambda: answers.reserved > 0)
        await eventually_async(lambda: answers.reserved == 0)


@pytest.mark.parametrize("header", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
async def test_a_client_that_takes_nothing_of_a_short_answer_is_cut(api, header):
    """Ask for an answer so short that the application finishes it at once."""
    await api.create_topic("t")
    await api.produce("t", ["x" * 50_000])
    async with (
        listening(api.app, answer_seconds=0.2, idle_seconds=0.2) as (port, state),
        connected(port, receive_buffer=4096) as (_, writer),
    ):
        await eventually_async(lambda: len(state.connections) == 1)
        read_nothing(writer)
        writer.write(b"GET /topics/t/partitions/0/records HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % header)
        await eventually_async(lambda: len(state.connections) == 0)


async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(api):
    await api.create_topic("t")
    await api.produce("t", ["x" * 500_000])
    async with (
        listening(api.app, answer_seconds=0.2) as (port, _),
        connected(port, receive_buffer=4096) as (reader, writer),
    ):
        path = b"/topics/t/partitions/0/records"
        writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path)
        size = 0
        async with asyncio.timeout(60):
            while piece := await reader.read(4096):
                size += len(piece)
                await asyncio.sleep(0.005)
    assert size > 500_000


async def test_a_request_that_is_cancelled_is_answered_504_not_with_silence(api):
    await api.create_topic("t")
    sent = []

    async def send(message):
        sent.append(message)

    first = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if not first:
            await asyncio.Event().wait()
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
    await loop_turns()
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    assert sent[0]["status"] == 504
    assert b"unknown" in sent[1]["body"]


@pytest.mark.parametrize(
    ("accept", "says"),
    [
        (b"text/event-stream", rb"HTTP/1.1 200 .*\r\n\r\nretry: \d+\n\n"),
        (b"*/*", rb"HTTP/1.1 503 .*max\.connections.*"),
    ],
)
async def test_a_connection_beyond_the_bound_is_refused_so_that_a_browser_comes_again(api, accept, says):
    async with listening(api.app, max_connections=1) as (port, _), connected(port) as first:
        async with connected(port) as (reader, writer):
            for piece in (b"GET /topics/t/events?a=1 HTTP/1.1\r\nHost: localhost\r\nAcc", b"ept: %b\r\n\r\n" % accept):
                writer.write(piece)
                await asyncio.sleep(0.01)
            answer = await asyncio.wait_for(reader.read(), 30)
        assert re.fullmatch(says, answer, re.DOTALL), answer
        assert b"connection: close" in answer
        first[1].write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(first[0].readline(), 30)).startswith(b"HTTP/1.1 200")


async def test_connections_beyond_the_bound_are_refused_even_without_requests(api, monkeypatch):
    monkeypatch.setattr("ingest_api.protocol._SURPLUS_MAX", 1)
    async with listening(api.app, max_connections=0) as (port, state), connected(port) as (silent, _):
        await eventually_async(lambda: len(state.connections) == 1)
        async with connected(port) as (second, _):  # more than the server listens to
            assert (await asyncio.wait_for(second.read(), 30)).startswith(b"HTTP/1.1 503")
            assert not silent.at_eof()
        assert (await asyncio.wait_for(silent.read(), 30)).startswith(b"HTTP/1.1 503")
