"""Erasures over HTTP: how they begin, how they are followed, and when they are refused."""

import asyncio
import base64
import time

import msgspec
import pytest

from logstore.client.metadata import decode
from logstore.limits import ERASED_KEYS_MAX
from logstore.protocol.messages.erasures import ErasureReport
from logstore.protocol.messages.erasures import ErasureReport as ReportOfClient
from tests.api.api_client import assert_error
from tests.api.test_where import read_all

pytestmark = pytest.mark.anyio


async def followed(api, begun):
    """Wait until the erasure is over, and return its report."""
    deadline = time.monotonic() + 60
    while begun["state"] not in ("erased", "counted", "failed"):
        assert time.monotonic() < deadline, begun
        await asyncio.sleep(0.01)
        begun = (await api.get(f"/topics/t/erasures/{begun['erasure']}")).json()
    return begun


@pytest.mark.parametrize(
    ("keys", "key_format", "erased"),
    [
        (["ada"], None, 2),
        (["ada"], "string", 1),
        (["ada"], "json", 1),
        ([base64.b64encode(b"ada").decode()], "binary", 1),
        (["eve"], None, 0),
    ],
)
async def test_keys_are_named_as_text_json_or_bytes(api, keys, key_format, erased):
    await api.create_topic("t")
    records = {"records": [{"key": "ada", "value": 1}, {"key": "bob", "value": 2}]}
    await api.post("/topics/t", json=records)
    await api.post("/topics/t", params={"key_format": "string"}, json=records)
    body = {"keys": keys} if key_format is None else {"keys": keys, "key_format": key_format}
    counted = await api.post("/topics/t/erasures", json={**body, "dry_run": True})
    assert counted.status_code == 202
    assert (await followed(api, counted.json()))["records"] == erased
    assert (await api.get("/topics/t/erasures")).json() == {"erasures": []}

    begun = await api.post("/topics/t/erasures", json=body)
    msgspec.convert(begun.json(), ErasureReport)
    report = await followed(api, begun.json())
    assert (report["state"], report["records"], report["dry_run"]) == ("erased", erased, False)
    assert decode((await api.get(f"/topics/t/erasures/{report['erasure']}")).content, ReportOfClient).is_over
    assert (await api.get("/topics/t/erasures")).json() == {"erasures": [report]}
    read = (await api.get("/topics/t/partitions/0/records?offset=0")).json()
    assert len(read) == 4 - erased


@pytest.mark.parametrize(
    ("keys", "key_format"),
    [
        (["a/b<+\u00fc"], None),
        (["a/b<+\u00fc"], "json"),
        ([base64.b64encode(rb'"a\/b\u003c+\u00fc"').decode()], "binary"),
    ],
)
async def test_every_json_text_of_a_key_is_found_and_erased(api, keys, key_format):
    """Send the texts that the encoders of PHP, Go, .NET and Python write, some to the table and some to the journal."""
    await api.create_topic("t")
    texts = [
        '"a/b<+\u00fc"',
        r'"a\/b<+\u00fc"',
        r'"a/b\u003c+\u00fc"',
        r'"a/b\u003C\u002B\u00FC"',
        r'"\u0061\/b<+\u00fc"',
    ]  # fmt: skip
    for round_ in range(2):
        for text in (*texts, r'"a\/c"'):
            body = f'{{"records": [{{"key": {text}, "value": 1}}]}}'.encode()
            sent = await api.post("/topics/t/partitions/0", content=body, headers={"Content-Type": "application/json"})
            assert sent.status_code == 200, sent.text
        if not round_:
            await api.post("/topics/t/roll")
    for selects in ({"key": "a/b<+\u00fc"}, {"where": 'key == "a/b<+\u00fc"'}):
        found, _ = await read_all(api, **selects)
        assert len(found) == 2 * len(texts)
    report = await followed(
        api, (await api.post("/topics/t/erasures", json={"keys": keys, "key_format": key_format})).json()
    )
    assert (report["state"], report["records"]) == ("erased", 2 * len(texts))
    left, _ = await read_all(api)
    assert [record["key"] for record in left] == ["a/c"] * 2


async def test_keys_are_counted_as_they_are_given(api):
    await api.create_topic("t")
    body = {"keys": [f"\u00fc{number}" for number in range(ERASED_KEYS_MAX)], "dry_run": True}
    assert (await api.post("/topics/t/erasures", json=body)).status_code == 202
    body["keys"].append("ada")
    assert "10000" in assert_error(await api.post("/topics/t/erasures", json=body), 422)


async def test_an_expression_names_the_records(api):
    await api.create_topic("t")
    await api.post("/topics/t", json={"records": [{"value": {"user": user}} for user in ("ada", "bob")]})
    report = await followed(api, (await api.post("/topics/t/erasures", json={"where": '$.user == "ada"'})).json())
    assert (report["state"], report["records"], report["dry_run"], report["keys"]) == ("erased", 1, False, [])
    for body in ({"where": "$.user =="}, {"where": "true", "keys": ["a"]}):
        assert_error(await api.post("/topics/t/erasures", json=body), 422)


async def test_bad_requests_change_nothing(api):
    await api.create_topic("t")
    for body in ({"keys": []}, {"keys": "ada"}, {"keys": ["a"], "key_format": "avro"}, {"keys": [1]}, {}):
        assert_error(await api.post("/topics/t/erasures", json=body), 422)
    bad = {"keys": ["?"], "key_format": "binary"}
    assert "key 0" in assert_error(await api.post("/topics/t/erasures", json=bad), 422, 42206)
    assert_error(await api.post("/topics/absent/erasures", json={"keys": ["a"]}), 404, 40401)
    assert_error(await api.get("/topics/t/erasures/absent"), 404, 40408)
    assert (await api.get("/topics/t/erasures")).json() == {"erasures": []}
    await followed(api, (await api.post("/topics/t/erasures", json={"keys": ["a"]})).json())
    assert_error(await api.post("/topics/__erasures/erasures", json={"keys": ["a"]}), 400, 40002)
    assert (await api.get("/topics")).json() == ["t"]
