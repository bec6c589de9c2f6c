"""The HTTP interface takes groups whose names are any text that Kafka's protocol takes."""

from pathlib import Path
from urllib.parse import quote

import pytest

from logstore.broker.authorizer import Operation
from logstore.client.admin import Admin
from logstore.client.consumer.consumer import Consumer
from logstore.client.metadata import TopicPartition
from tests.api.api_client import ApiClient, assert_error
from tests.api.real_server import RealServer
from tests.support.authorizer_views import DeniedOperations
from tests.support.relaying import relaying_cluster

pytestmark = pytest.mark.anyio

NAMES = (
    "dc-1/pending",
    "a:b@c",
    "..",
    ".",
    "-",
    " ",
    "größe 大",
    "a?b#c%2F&d=e+f;g",
    '"\\',
    "line\nend",
    "x/../y",
    "/",
    "%2e%2e",
    "(other)",
    "\0",
    "",
)
#: The ways to write a name in a path, each with its path segment and its query.
WAYS = {
    "escaped": lambda name: (quote(name, safe="").replace(".", "%2E"), ""),
    "in the query": lambda name: ("-", f"group={quote(name, safe='')}"),
}


async def ask(api: ApiClient, method: str, template: str, name: str, way: str, **options):
    """Send a request whose ``template`` has ``{}`` for the name. httpx leaves the path, with its dots, as it is
    written.
    """
    segment, query = WAYS[way](name)
    path, _, rest = template.partition("?")
    both = "&".join(filter(None, (rest, query)))
    return await api.request(method, path.replace("{}", segment) + (f"?{both}" if both else ""), **options)


@pytest.fixture
async def filled(api: ApiClient) -> ApiClient:
    await api.create_topic("t", partitions=1)
    await api.produce("t", [0, 1, 2])
    return api


@pytest.mark.parametrize("way", WAYS)
async def test_a_group_of_any_name_is_committed_to_described_reset_and_deleted(filled: ApiClient, way: str):
    for name in NAMES:
        if name or way == "in the query":  # an empty segment is no segment
            await _use_group(filled, name, way)


async def _use_group(filled: ApiClient, name: str, way: str) -> None:
    offsets = [{"topic": "t", "partition": 0, "offset": 1}]
    committed = await ask(filled, "POST", "/groups/{}/offsets", name, way, json={"offsets": offsets})
    assert committed.status_code == 200, committed.text
    read = (await ask(filled, "GET", "/groups/{}/offsets?topic=t", name, way)).json()["offsets"]
    assert [(one["topic"], one["offset"]) for one in read] == [("t", 1)]
    assert (await ask(filled, "GET", "/groups/{}/lag", name, way)).json()["group"] == name
    assert (await ask(filled, "GET", "/groups/{}", name, way)).json()["group"] == name
    assert (await filled.get("/groups")).json() == [name]
    assert [one["group"] for one in (await filled.get("/group-listings?limit=1")).json()["groups"]] == [name]
    reset = await ask(filled, "POST", "/groups/{}/reset-offsets", name, way, json={"to": "earliest"})
    assert reset.json()["offsets"][0]["offset"] == 0

    groups = f"/v3/clusters/{filled.broker.cluster_id}/consumer-groups"
    (listed,) = (await filled.get(groups)).json()["data"]
    assert listed["consumer_group_id"] == name
    for link in (listed["metadata"]["self"], listed["lag_summary"]["related"], listed["consumers"]["related"]):
        assert (await filled.get(link)).status_code == 200, link
    assert (await ask(filled, "GET", f"{groups}/{{}}/lags", name, way)).json()["data"][0]["lag"] == 3

    text = (await filled.get("/metrics")).text
    escaped = name.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    assert f'logstore_group_lag{{group="{escaped}",topic="t",partition="0"}} 3\n' in text

    assert (await ask(filled, "DELETE", "/groups/{}", name, way)).status_code == 204
    assert (await filled.get("/groups")).json() == []


@pytest.mark.parametrize("name", ["dc-1/pending", "größe 大", "a:b@c"])
async def test_an_instance_of_such_a_group_is_used_by_its_base_uri(filled: ApiClient, name: str):
    made = await filled.post(
        f"/consumers/{quote(name, safe='')}", json={"name": "c", "format": "json", "auto.offset.reset": "earliest"}
    )
    base = made.json()["base_uri"]
    assert (await filled.post(f"{base}/subscription/", json={"topics": ["t"]})).status_code == 204
    found = []
    while not found:
        found = (await filled.get(f"{base}/records?timeout=2000")).json()
    assert [record["value"] for record in found] == [0, 1, 2]
    assert (await filled.post(f"{base}/offsets")).status_code == 200
    assert (await filled.http.delete(base)).status_code == 204
    assert (await filled.get("/groups")).json() == [name]


async def test_names_that_no_group_can_have(filled: ApiClient):
    offsets = {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]}
    assert_error(await filled.post("/groups/%FF/offsets", json=offsets), 404, 404)
    assert_error(await filled.post("/groups/-/offsets?group=%FF", json=offsets), 422, 422)
    assert_error(await filled.post("/groups/-/offsets?group=a&group=b", json=offsets), 422, 422)
    assert_error(await filled.post(f"/groups/{'x' * 32_768}/offsets", json=offsets), 422, 42206)
    assert_error(await filled.get("/groups/g/offsets?group=h"), 422, 422)
    assert_error(await filled.post("/groups/-/leave?group=", json={"members": [{"member_id": "m"}]}), 422, 42206)
    assert (await filled.get("/groups")).json() == []


@pytest.mark.parametrize("way", WAYS)
async def test_no_spelling_goes_around_the_authorizer(filled: ApiClient, way: str):
    offsets = {"offsets": [{"topic": "t", "partition": 0, "offset": 1}]}
    denied = [(operation, "a/b") for operation in (Operation.READ, Operation.DESCRIBE, Operation.DELETE)]
    filled.app.guard.authorizer.replace(DeniedOperations(denied, 1))
    for path in ("a%2Fb", "a%2fb", "%61%2F%62", "-", "%2D"):
        query = "?group=a%2Fb" if path in ("-", "%2D") else ""
        for slash in ("", "/"):
            assert_error(await filled.post(f"/groups/{path}/offsets{slash}{query}", json=offsets), 403, 40301)
            assert_error(await filled.get(f"/groups/{path}{slash}{query}"), 403, 40301)
            assert_error(await filled.delete(f"/groups/{path}{slash}{query}"), 403, 40301)
            assert_error(await filled.post(f"/consumers/{path}{slash}{query}", json={}), 403, 40301)


async def test_any_broker_answers_for_a_group_of_any_name(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        for name in ("dc-1/pending", "..", "größe 大", "a?b#c%2F&d"):
            offsets = {"offsets": [{"topic": "t", "partition": 0, "offset": 0}]}
            path, query = quote(name, safe="").replace(".", "%2E"), f"group={quote(name, safe='')}"
            for running in cluster.running.values():
                for url in (f"/groups/{path}/offsets", f"/groups/-/offsets?{query}"):
                    assert (await running.http.post(url, json=offsets)).status_code == 200, (name, url)
                for url in (f"/groups/{path}", f"/groups/-?{query}"):
                    assert (await running.http.get(url)).json()["group"] == name


@pytest.mark.long
@pytest.mark.system
def test_the_python_client_takes_any_name(tmp_path: Path):
    with RealServer(tmp_path / "data") as server, Admin(server.url) as admin:
        admin.create_topic("t", partitions=1)
        for name in NAMES:
            if name:
                with Consumer(server.url, group_id=name, enable_auto_commit=False) as consumer:
                    consumer.assign([TopicPartition("t", 0)])
                    consumer.commit({TopicPartition("t", 0): 0})
            else:
                admin.reset_offsets(name, to="earliest", topics={"t": []})
            assert [one.group for one in admin.list_groups()] == [name]
            assert [one.offset for one in admin.group_offsets(name)] == [0]
            assert admin.describe_group(name).group == name
            admin.delete_group(name)
        assert admin.list_groups() == ()
