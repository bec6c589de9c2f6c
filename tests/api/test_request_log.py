import asyncio
import contextlib
import json
import re

import httpx
import pytest

from ingest_api.request_log import RequestLog
from logstore.observability import CLIENT_LABELS_MAX, configure_logging
from tests.api.api_client import assert_error
from tests.support.eventually import loop_turns

pytestmark = pytest.mark.anyio


def metric(text: str, name: str, **labels: str) -> float:
    """Return the sum of the samples that have all these labels."""
    total = 0.0
    for line in text.splitlines():
        if found := re.fullmatch(rf"{name}(?:{{(.*)}})? (\S+)", line):
            has = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
            if labels.items() <= has.items():
                total += float(found[2])
    return total


@pytest.mark.parametrize("request_id", ["a", "x" * 128, "with space and ~!", "f3a9-77"])
async def test_a_sane_request_id_is_echoed(shared_api, request_id):
    answer = await shared_api.get("/health/live", headers={"X-Request-Id": request_id})
    assert answer.headers["X-Request-Id"] == request_id
    assert_error(await shared_api.get("/nothing", headers={"X-Request-Id": request_id}), 404)


@pytest.mark.parametrize("request_id", ["", " ", "x" * 129, "a\tb", "é", "a\x7f", "a\x00b"])
async def test_any_other_is_replaced(shared_api, request_id):
    answer = await shared_api.get("/health/live", headers=[(b"X-Request-Id", request_id.encode())])
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["X-Request-Id"])


async def test_two_request_ids_are_none(shared_api):
    answer = await shared_api.get("/health/live", headers=[("X-Request-Id", "a"), ("X-Request-Id", "b")])
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["X-Request-Id"])


async def test_made_ids_differ(shared_api):
    ids = {(await shared_api.get("/health/live")).headers["X-Request-Id"] for _ in range(5)}
    assert len(ids) == 5


async def test_log_lines_carry_the_request_and_client_id_and_no_raw_path(api, capsys):
    configure_logging("debug", "json")
    headers = {"X-Request-Id": "find-me", "Logstore-Client-Id": "loader-7"}
    await api.post(api.topics_url, json={"topic_name": "t"}, headers=headers)
    await api.get("/topics/%1b%5b31m%0a", headers=headers)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    ours = [line for line in lines if line.get("request_id") == "find-me"]
    assert {"topic.created", "http.answered"} <= {line["event"] for line in ours}
    assert {line["client_id"] for line in ours} == {"loader-7"}
    answered = [line for line in ours if line["event"] == "http.answered"]
    assert [(line["method"], line["status"], line["level"]) for line in answered] == [
        ("POST", 201, "debug"),
        ("GET", 404, "info"),
    ]
    assert answered[1]["path"] == "/topics/%1b%5b31m%0a"


@pytest.mark.parametrize(
    ("method", "path", "sent", "levels"),
    [
        ("GET", "/topics/t/partitions/0/records", b"", ["debug"]),
        ("POST", "/fetch", b'{"partitions":[{"topic":"t","partition":0,"offset":0}],"max_wait_ms":60000}', ["debug"]),
        ("POST", "/topics/t", None, ["info"]),
    ],
)
async def test_a_client_that_stops_reading_is_no_news_one_that_stops_in_a_request_is(
    api, capsys, method, path, sent, levels
):
    await api.create_topic("t")
    configure_logging("debug", "json")
    messages = asyncio.Queue()
    if sent is not None:
        messages.put_nowait({"type": "http.request", "body": sent, "more_body": False})
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"offset=0&max_wait_ms=60000" if method == "GET" else b"",
        "headers": [(b"content-type", b"application/json")],
    }
    asking = asyncio.create_task(api.app(scope, messages.get, None))
    await loop_turns()
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(asking, 30)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines if line.get("status") == 499] == levels


async def test_every_answer_with_a_body_has_its_length(api):
    await api.create_topic("t")
    await api.produce("t", [1])
    paths = ["/topics", "/topics/t", "/topics/t/partitions", "/topics/t/partitions/0", "/topics/t/partitions/0/offsets"]
    paths += ["/topics/t/partitions/0/records", "/v3/clusters", api.topics_url, f"{api.topics_url}/t/configs"]
    paths += ["/health/live", "/health/ready", "/metrics", "/openapi.json", "/nothing"]
    for path in paths:
        answer = await api.get(path)
        assert int(answer.headers["Content-Length"]) == len(answer.content) > 0, path


async def test_head_is_get_without_the_body(api):
    await api.create_topic("t")
    await api.produce("t", [1])
    for path in ("/topics", "/topics/t/partitions/0/records?offset=0", "/health/live", "/openapi.json", "/nothing"):
        got, head = await api.get(path), await api.http.head(path)
        assert head.status_code == got.status_code
        assert head.content == b""
        assert head.headers["Content-Length"] == got.headers["Content-Length"]
        assert head.headers["Content-Type"] == got.headers["Content-Type"]
    assert (await api.http.head("/topics/t/roll")).status_code == 405


async def test_options_returns_the_methods(api):
    for path, methods in {
        "/topics/x": "GET, HEAD, OPTIONS, POST",
        "/topics/x/roll": "OPTIONS, POST",
        f"{api.topics_url}/x": "DELETE, GET, HEAD, OPTIONS, PATCH",
        "/openapi.json": "GET, HEAD, OPTIONS",
    }.items():
        answer = await api.http.options(path)
        assert (answer.status_code, answer.headers["Allow"]) == (204, methods), path
    assert_error(await api.http.options("/nothing"), 404, 404)


async def test_metrics_count_requests_by_route_never_by_path(api):
    await api.create_topic("counted", partitions=2)
    await api.post("/topics/counted/partitions/1", json={"records": [{"value": "four"}, {"value": 2}]})
    await api.fetch("counted", 1, offset=0)
    for n in range(3):
        await api.get(f"/unknown-{n}")
        await api.get(f"/topics/unknown-{n}")
    answer = await api.get("/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = answer.text
    assert "unknown-" not in text
    requests = {"name": "logstore_http_requests_total"}
    assert metric(text, **requests, route="/topics/{topic}/partitions/{partition}", method="POST", status="200") >= 1
    assert metric(text, **requests, route="/topics/{topic}", status="404") >= 3
    assert metric(text, **requests, route="none", status="404") >= 3
    assert metric(text, "logstore_http_request_seconds_count", route="/topics/{topic}") >= 3
    assert metric(text, "logstore_produced_records_total", topic="counted") == 2
    assert metric(text, "logstore_fetched_records_total", topic="counted") == 2
    await api.delete(f"{api.topics_url}/counted")
    assert 'topic="counted"' not in (await api.get("/metrics")).text


async def test_clients_name_themselves_in_metrics_up_to_a_bound(shared_api):
    for n in range(CLIENT_LABELS_MAX + 20):
        await shared_api.get("/health/live", headers={"Logstore-Client-Id": f"client-{n}"})
    await shared_api.get("/health/live", headers=[(b"Logstore-Client-Id", b"bad\x01name")])
    text = (await shared_api.get("/metrics")).text
    clients = set(re.findall(r'logstore_http_requests_total{client="([^"]*)"', text))
    assert "" in clients
    assert "client-0" in clients
    assert "other" in clients
    assert len(clients) <= CLIENT_LABELS_MAX + 2


async def test_the_application_is_the_same_through_any_asgi_server(api):
    """Check that no state of one request reaches the next: they share the connection, but have their own ids."""
    transport = httpx.ASGITransport(app=api.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:99") as other:
        answer = await other.get("/v3/clusters")
    assert answer.json()["metadata"]["self"] == "http://localhost:99/v3/clusters"


async def test_a_request_that_outlasts_the_shutdown_gets_an_unknown_outcome():
    """Check that the answer is not 503, which would say that nothing was stored and make a client send again."""
    sent = []

    async def never(*_):
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/topics/t", "raw_path": b"/topics/t", "headers": []}
    request = asyncio.create_task(RequestLog(never, lambda _: "id")(scope, None, send))
    await asyncio.sleep(0)
    request.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await request
    assert sent[0]["status"] == 504
    assert json.loads(sent[1]["body"])["error_code"] == 50401
