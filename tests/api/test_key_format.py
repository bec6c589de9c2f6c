"""Keys in JSON: how requests and topics decide how they are stored, and how each stored key and value is read."""

import asyncio
import json
from base64 import b64encode

import httpx
import pytest

from logstore.broker.context import INTERNAL
from tests.api.api_client import ARROW, BINARY_V2, JSON_V2, NDJSON, assert_error
from tests.api.listening import listening

pytestmark = pytest.mark.anyio

KEYS = ["ada", 'a "quoted" é', "", "null", 17, {"a": 1}, None]
JSON_TEXTS = [b'"ada"', b'"a \\"quoted\\" \xc3\xa9"', b'""', b'"null"', b"17", b'{"a":1}', None]
STRINGS = [b"ada", 'a "quoted" é'.encode(), b"", b"null", b"17", b'{"a":1}', None]


def body(*keys: object, **fields: object) -> bytes:
    records = [{"key": key, "value": None, **fields} for key in keys]
    return json.dumps({"records": records}, ensure_ascii=False, separators=(",", ":")).encode()


def base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


async def keys_in(api, topic: str) -> list[bytes | None]:
    result = await api.broker.fetch.partition(
        INTERNAL, api.broker.topics.served.topic(INTERNAL, topic), 0, 0, max_bytes=1 << 20, min_bytes=0, max_wait_ms=0
    )
    return result.records.column("key").to_pylist()


@pytest.mark.parametrize("path", ["/topics/{}", "/topics/{}/partitions/0"])
@pytest.mark.parametrize("content_type", [JSON_V2, "application/json"])
@pytest.mark.parametrize("fields", [{}, {"timestamp": 1}], ids=["plain", "more"])
async def test_the_request_says_it_else_the_topic_else_it_is_json(api, path, content_type, fields):
    await api.create_topic("plain")
    await api.create_topic("strings", key_format="string")
    for topic, query, expected in (
        ("plain", {}, JSON_TEXTS),
        ("plain", {"key_format": "string"}, STRINGS),
        ("strings", {}, STRINGS),
        ("strings", {"key_format": "json"}, JSON_TEXTS),
    ):
        before = len(await keys_in(api, topic))
        answer = await api.post(
            path.format(topic), content=body(*KEYS, **fields), params=query, headers={"Content-Type": content_type}
        )
        assert answer.status_code == 200, answer.text
        assert (await keys_in(api, topic))[before:] == expected, (topic, query)


async def test_short_requests_that_come_together_keep_their_own_key_formats(api):
    """Send requests over a socket, so that they bypass the application, also after a change of the topic's default."""
    await api.create_topic("t")
    async with listening(api.app) as (port, _), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

        async def post(key: str, query: str) -> None:
            headers = {"Content-Type": JSON_V2}
            answer = await client.post(f"/topics/t{query}", content=body(key), headers=headers)
            assert answer.status_code == 200, answer.text

        queries = ["", "?key_format=string", "?key_format=json"]
        await asyncio.gather(*(post(f"{query}{n}", query) for n in range(10) for query in queries))
        expected = {f'"{n}"' for n in range(10)} | {f"?key_format=string{n}" for n in range(10)}
        expected |= {f'"?key_format=json{n}"' for n in range(10)}
        assert {key.decode() for key in await keys_in(api, "t")} == expected
        await api.broker.topics.changes.alter_configs(INTERNAL, "t", {"key.format": "string"})
        await post("now", "")
        await post("still", "?key_format=json")
    assert (await keys_in(api, "t"))[-2:] == [b"now", b'"still"']


async def test_a_string_key_and_the_same_bytes_of_a_kafka_client_meet_in_one_partition(api):
    await api.create_topic("t", partitions=16, key_format="string")
    for n in range(20):
        places = []
        for content_type, key in ((JSON_V2, f"k{n}"), (BINARY_V2, base64(f"k{n}".encode()))):
            answer = await api.post("/topics/t", content=body(key), headers={"Content-Type": content_type})
            places += answer.json()["offsets"]
        assert places[0]["partition"] == places[1]["partition"]


async def test_another_key_format_is_refused_and_so_is_one_where_no_key_is_json(api):
    await api.create_topic("t")
    for content_type, query in (
        (JSON_V2, "key_format=raw"),
        (JSON_V2, "key_format=json&key_format=json"),
        (BINARY_V2, "key_format=string"),
        (NDJSON, "key_format=json"),
        (ARROW, "key_format=string"),
    ):
        answer = await api.post(f"/topics/t?{query}", content=b"{}", headers={"Content-Type": content_type})
        assert "key_format" in assert_error(answer, 422, 422)
    answer = await api.post(
        api.topics_url, json={"topic_name": "u", "configs": [{"name": "key.format", "value": "raw"}]}
    )
    assert "one of json, string" in assert_error(answer, 400, 40002)


async def produce_bytes(api, *stored: bytes | None) -> None:
    records = [{"key": base64(data), "value": base64(data)} for data in stored]
    answer = await api.post("/topics/t", json={"records": records}, headers={"Content-Type": BINARY_V2})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/*", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"]
)
async def test_an_accept_without_a_json_type_shows_every_record(api, accept):
    await api.create_topic("t")
    await produce_bytes(api, b'{"a":1}', b"ada", b"\xff", None)
    answer = await api.get("/topics/t/partitions/0/records", headers={"Accept": accept})
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, JSON_V2)
    shown = [{k: v for k, v in record.items() if k.startswith(("key", "value"))} for record in answer.json()]
    assert shown == [
        {"key": {"a": 1}, "value": {"a": 1}},
        {"key": "ada", "value": "ada", "key_format": "string", "value_format": "string"},
        {"key": "/w==", "value": "/w==", "key_format": "binary", "value_format": "binary"},
        {"key": None, "value": None},
    ]


@pytest.mark.parametrize("accept", [JSON_V2, "application/json", "application/json, text/plain, */*"])
async def test_a_client_that_asks_for_json_gets_json_or_an_error(api, accept):
    await api.create_topic("t")
    await produce_bytes(api, b'{"a":1}', b"ada")
    assert "offset 1 of t-0 is not JSON" in assert_error(await api.fetch("t", accept=accept), 422, 42207)
    await api.create_topic("strings", key_format="string")
    await api.post("/topics/strings", json={"records": [{"key": "ada", "value": 1}, {"key": 17, "value": 2}]})
    answer = await api.fetch("strings", accept=accept)
    assert [record["key"] for record in answer.json()] == ["ada", "17"]
    assert not any("key_format" in record for record in answer.json())
