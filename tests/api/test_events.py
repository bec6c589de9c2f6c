"""``GET /topics/{topic}/events`` over a socket: what is sent, in which form, and how a stream begins and ends."""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator

import httpx
import pytest

from ingest_api import event_hub, event_stream
from logstore.broker.context import INTERNAL
from logstore.observability import EVENT_STREAMS, EVENT_STREAMS_CUT, EVENTS_SENT
from tests.api.api_client import ApiClient, running_api
from tests.api.listening import listening
from tests.support.authorizer_views import Denied
from tests.support.event_client import Event, streaming
from tests.support.eventually import eventually_async
from tests.support.raw_client import RawClient
from tests.support.running_broker import records

pytestmark = pytest.mark.anyio

SETTINGS = {"max_event_streams": 3, "event_stream_keepalive_ms": 200}


@pytest.fixture
async def api(tmp_path, anyio_backend) -> AsyncIterator[ApiClient]:
    async with running_api(tmp_path / "data", **SETTINGS) as client:
        await client.create_topic("t", partitions=2)
        yield client


@pytest.fixture
async def url(api) -> AsyncIterator[str]:
    async with listening(api.app) as (port, _):
        yield f"http://127.0.0.1:{port}"


async def append(
    api: ApiClient, values: list[bytes | None], keys: list[bytes | None] | None = None, partition: int = 0
) -> None:
    topic = api.broker.topics.served.topic(INTERNAL, "t")
    made = records(values, keys=keys, timestamp=1_700_000_000_000)
    (await api.broker.produce.records.produce(INTERNAL, topic, made, partition=partition)).require_stored()


def places(events: list[Event]) -> list[tuple[int, int]]:
    return [(event.json["partition"], event.json["offset"]) for event in events]


async def refused(url: str, query: str = "", **headers: str) -> tuple[int, int]:
    """Return the status and error code of a stream that is refused before it begins."""
    async with (
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
        http.stream("GET", f"/topics/t/events{query}", headers=headers) as answer,
    ):
        assert answer.headers["content-type"] == "application/json"
        return answer.status_code, json.loads(await answer.aread())["error_code"]


async def told_to_come_back(url: str) -> int:
    """Return the milliseconds after which an EventSource reconnects; any status but 200 would end it for ever."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        answer = await http.get("/topics/t/events", headers={"Accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    (wait_ms,) = re.fullmatch(r"retry: (\d+)\n\n", answer.text).groups()
    return int(wait_ms)


# ---- what is sent ---------------------------------------------------------------------------------------------------


async def test_a_record_is_an_event_whose_id_is_the_position_behind_it(api, url):
    await append(api, [b'{"x": 1}'], [b'"alice"'], partition=1)
    tag = str(api.broker.topics.served.topic(INTERNAL, "t").topic_id)[:8]
    async with streaming(url, from_="earliest") as client:
        (event,) = await client.take(1)
        assert event.kind == "message"  # EventSource.onmessage
        assert event.last_id == f"{tag}.0:0,1:1"
        assert event.json == {
            "topic": "t",
            "key": "alice",
            "value": {"x": 1},
            "partition": 1,
            "offset": 0,
            "timestamp": 1_700_000_000_000,
        }
        assert client.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert client.response.headers["cache-control"] == "no-store"
        assert client.response.headers["x-accel-buffering"] == "no"
        assert "content-length" not in client.response.headers
        assert client.response.headers["logstore-topic-id"].startswith(tag)
        assert 1_000 <= client.parser.retry_ms <= 2_000


async def test_bytes_that_are_no_json_are_shown_as_the_records_endpoint_shows_them(api, url):
    await append(api, [b"plain", b"\xff", None], [b"a", None, b'"b"'])
    async with streaming(url, from_="earliest", accept="*/*") as client:
        found = [event.json for event in await client.take(3)]
    assert found == (await api.fetch("t", accept="*/*")).json()
    assert found[0]["value_format"] == "string"
    async with streaming(url, from_="earliest", format="binary") as client:
        values = [event.json["value"] for event in await client.take(3)]
    assert values == [base64.b64encode(b"plain").decode(), base64.b64encode(b"\xff").decode(), None]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n", b"\n\n"])
async def test_line_ends_between_the_tokens_of_a_stored_text_stay_in_one_event(api, url, end):
    text = b"{" + end + b'"x": [1,' + end + b"2]}" + end
    await append(api, [text, b"7"])
    async with streaming(url, from_="earliest") as client:
        first, second = await client.take(2)
    assert first.json["value"] == {"x": [1, 2]}
    assert second.json["value"] == 7


async def test_records_come_when_they_are_produced_and_partitions_that_are_added_come_along(api, url):
    async with streaming(url) as client:
        await client.began()
        await append(api, [b"1"], partition=1)
        assert places(await client.take(1)) == [(1, 0)]
        await api.broker.topics.changes.add_partitions(INTERNAL, "t", 3)
        await append(api, [b"2", b"3"], partition=2)
        assert places(await client.take(2)) == [(2, 0), (2, 1)]
        assert client.last_id.endswith(".0:0,1:1,2:2")


async def test_partitions_are_chosen_by_number(api, url):
    for partition in (0, 1):
        await append(api, [b"1"], partition=partition)
    async with streaming(url, from_="earliest", partition="1") as client:
        await append(api, [b"2"], partition=0)
        await append(api, [b"3"], partition=1)
        assert places(await client.take(2)) == [(1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ({"key": "alice"}, [0, 4]),  # JSON by the topic's key.format
        ({"key": '"alice"'}, [0, 4]),
        ({"key": "alice", "key_format": "string"}, [1]),
        ({"key": "17"}, [2]),
        ({"key": '"17"'}, [3]),
        ({"key": base64.b64encode(b"alice").decode(), "format": "binary"}, [1]),
    ],
)
async def test_a_key_is_named_as_it_is_produced_in_history_and_as_records_come(api, url, query, offsets):
    keys = [b'"alice"', b"alice", b"17", b'"17"', b'"alice"', None]
    await append(api, [b"1"] * 6, keys)
    async with streaming(url, from_="earliest", **query) as client:
        found = await client.take(len(offsets))
        await append(api, [b"2"] * 6, keys)
        found += await client.take(len(offsets))
        # The position goes past the records that are left out, so that they are not read again.
        await client.until(lambda: client.last_id.endswith(".0:12,1:0"))
    assert [event.json["offset"] for event in found] == [*offsets, *(6 + offset for offset in offsets)]


# ---- where it begins ------------------------------------------------------------------------------------------------


async def test_a_stream_continues_after_the_last_event_by_header_or_query(api, url):
    await append(api, [b"%d" % number for number in range(4)])
    async with streaming(url, from_="earliest") as client:
        await client.take(2)
        last_id = client.last_id
    await append(api, [b"4"])
    async with streaming(url, from_="earliest", last_id=last_id) as client:
        assert places(await client.take(3)) == [(0, 2), (0, 3), (0, 4)]
    async with streaming(url, from_=last_id) as client:
        assert places(await client.take(3)) == [(0, 2), (0, 3), (0, 4)]
    async with streaming(url, from_="0:4") as client:
        assert places(await client.take(1)) == [(0, 4)]


async def test_a_stream_from_latest_that_broke_off_before_its_first_event_misses_nothing(api, url):
    await append(api, [b"1"])
    async with streaming(url) as client:
        await client.began()
    await append(api, [b"2"])
    async with streaming(url, last_id=client.last_id) as client:
        assert places(await client.take(1)) == [(0, 1)]


async def test_a_stream_that_cannot_be_is_refused_before_it_begins(api, url):
    await append(api, [b"1", b"2", b"3"])
    topic = api.broker.topics.served.topic(INTERNAL, "t")
    await api.broker.topics.tables.delete_records(INTERNAL, topic, 0, 2)
    tag = str(topic.topic_id)[:8]
    assert await refused(url, "?from=sometimes") == (422, 422)
    assert await refused(url, "?from=0:4") == (416, 41601)
    assert await refused(url, "?from=0:1") == (416, 41601)
    assert await refused(url, **{"Last-Event-ID": f"{tag}.0:1,1:0"}) == (416, 41601)
    assert await refused(url, **{"Last-Event-ID": "nonsense"}) == (422, 422)
    assert await refused(url, **{"Last-Event-ID": "00000000.0:1,1:0"}) == (404, 40406)
    assert await refused(url, **{"Logstore-Topic-Id": "00000000-0000-0000-0000-000000000000"}) == (404, 40406)
    assert await refused(url, "?partition=2") == (404, 40402)
    assert await refused(url, "?partition=one") == (404, 40402)
    assert await refused(url, "?partition=0&from=1:0") == (422, 422)
    assert await refused(url, "?format=avro") == (422, 422)
    assert await refused(url, "?isolation_level=2") == (422, 422)
    assert await refused(url, "?format=binary&key=no-base64") == (422, 422)
    assert await refused(url, "?key_format=string") == (422, 422)
    assert await refused(url, "?offset=1") == (422, 422)
    assert await refused(url, Accept="application/json") == (406, 406)
    assert EVENT_STREAMS._value.get() == 0


async def test_the_setting_limits_the_streams(api, url):
    async with contextlib.AsyncExitStack() as open_streams:
        # The list keeps the clients alive, because an EventClient closes its connection when it is collected.
        clients = [await open_streams.enter_async_context(streaming(url)) for _ in range(3)]
        for client in clients:
            await client.began()
        assert await refused(url) == (429, 42901)
        assert await told_to_come_back(url) >= 2_000
        assert EVENT_STREAMS._value.get() == 3
    await eventually_async(lambda: EVENT_STREAMS._value.get() == 0, "a stream outlives its client")
    assert not api.app.state.api.events._broadcasts
    async with streaming(url) as client:
        await client.began()


async def test_a_browser_over_its_quota_comes_again(api, url, monkeypatch):
    def charge(*_: object) -> float:
        return 7.0

    monkeypatch.setattr(api.app.guard.quotas, "charge", charge)
    assert await refused(url) == (429, 42901)
    assert 8_000 <= await told_to_come_back(url) <= 9_000


async def test_head_has_no_body_and_opens_no_stream(api, url):
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        answer = await http.head("/topics/t/events")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert EVENT_STREAMS._value.get() == 0


# ---- while nothing comes, and how it ends ---------------------------------------------------------------------------


async def test_a_silent_stream_sends_comments(api, url):
    async with streaming(url) as client:
        await client.until(lambda: len(client.parser.comments) >= 2)
    assert set(client.parser.comments) == {"keep-alive"}


async def test_the_deletion_of_the_topic_is_the_last_event(api, url):
    async with streaming(url) as client:
        await client.began()
        await append(api, [b"1"])
        await client.take(1)
        await api.broker.topics.changes.delete(INTERNAL, "t")
        (event,) = await client.rest()
    assert event.kind == "error"
    assert event.json["error_code"] == 40401
    assert set(event.json) == {"error_code", "message"}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        answer = await http.get("/topics/t/events", headers={"Last-Event-ID": client.last_id})
    assert answer.json()["error_code"] == 40401


async def test_retention_that_overtakes_a_client_is_reported_and_so_is_its_next_try(api, url):
    topic = api.broker.topics.served.topic(INTERNAL, "t")
    # This is more than the connection takes, so that the stream has to continue reading later.
    for _ in range(8):
        await append(api, [b'"' + b"x" * 400_000 + b'"'])
    async with streaming(url, from_="earliest") as client:
        await client.take(1)
        last_id = client.last_id
        await api.broker.topics.tables.delete_records(INTERNAL, topic, 0, 8)
        *before, event = await client.rest()
    assert event.kind == "error"
    assert event.json["error_code"] == 41601
    assert places(before) == [(0, offset) for offset in range(1, len(before) + 1)]
    assert len(before) < 7
    assert await refused(url, **{"Last-Event-ID": last_id}) == (416, 41601)


async def test_a_permission_that_is_taken_away_ends_the_stream(api, url):
    async with streaming(url) as client:
        await client.began()
        api.broker.authorizer.replace(Denied({"t"}))
        await append(api, [b"1"])
        (event,) = await client.rest()
    assert (event.kind, event.json["error_code"]) == ("error", 40301)


async def test_a_stop_ends_streams_with_a_comment(api, url):
    async with streaming(url) as client:
        await client.began()
        api.app.stop_waiting()
        assert await client.rest() == []
    assert client.parser.comments == ["the store is stopping: connect again"]


async def test_a_client_that_takes_nothing_is_cut_at_the_stop(api, monkeypatch):
    monkeypatch.setattr(event_stream, "_STOP_SECONDS", 0.2)
    async with listening(api.app) as (port, state), stuck(api, port):
        api.app.stop_waiting()
        await eventually_async(lambda: not state.connections, "the connection stays")
    assert EVENT_STREAMS._value.get() == 0


@contextlib.asynccontextmanager
async def stuck(api: ApiClient, port: int) -> AsyncIterator[RawClient]:
    """Yield a client that takes nothing from a stream that has much for it."""
    for _ in range(20):
        await append(api, [b'"' + b"x" * 400_000 + b'"'])
    async with RawClient.connected(port, receive_bytes=4096) as client:
        await client.send(b"GET /topics/t/events?from=earliest HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await eventually_async(lambda: EVENT_STREAMS._value.get() == 1, "the stream does not begin")
        sent = -1.0
        while sent != (sent := EVENTS_SENT._value.get()):  # noqa: ASYNC110 - a counter tells nobody
            await asyncio.sleep(0.2)
        yield client


async def test_a_client_that_takes_nothing_is_paused_holds_little_and_is_cut(api, monkeypatch):
    cut = EVENT_STREAMS_CUT._value.get()
    sent = EVENTS_SENT._value.get()
    # The kernel adds no backpressure here: this test counts what the store holds.
    async with listening(api.app, answer_seconds=1.0) as (port, state), stuck(api, port):
        assert EVENTS_SENT._value.get() - sent <= 3
        assert api.broker.admission.answers.reserved <= 2_000_000
        (connection,) = state.connections
        assert connection.transport.get_write_buffer_size() <= 64 * 1024 + 500_000
        await eventually_async(lambda: not state.connections, "the client is not cut")
        await eventually_async(lambda: EVENT_STREAMS._value.get() == 0, "the stream outlives its connection")
    assert EVENT_STREAMS_CUT._value.get() == cut + 1
    assert not api.broker.admission.answers.reserved


async def test_a_client_that_is_too_slow_for_what_is_kept_reads_on_by_itself(api, monkeypatch):
    monkeypatch.setattr(event_hub, "_KEPT_OF_ONE_BYTES", 1)
    async with listening(api.app) as (port, _), streaming(f"http://127.0.0.1:{port}") as client:
        await client.began()
        for number in range(60):
            await append(api, [b'"%03d' % number + b"x" * 30_000 + b'"'])
        found = await client.take(60)
    assert [event.json["value"][:3] for event in found] == [f"{number:03}" for number in range(60)]


async def test_records_are_encoded_once_for_all_clients(api, url, monkeypatch):
    fetched = 0
    fetch = api.broker.fetch.records

    async def counted(*given, **options):
        nonlocal fetched
        answer = await fetch(*given, **options)
        fetched += any(not isinstance(one, Exception) and one.count for one in answer.answers.values())
        return answer

    monkeypatch.setattr(api.broker.fetch, "records", counted)
    async with contextlib.AsyncExitStack() as open_streams:
        clients = [await open_streams.enter_async_context(streaming(url, **query)) for query in ({}, {}, {"key": "a"})]
        for client in clients:
            await client.began()
        await append(api, [b"1"], [b'"a"'])
        found = [await client.take(1) for client in clients]
    assert found[0] == found[1] == found[2]
    assert fetched == 1
