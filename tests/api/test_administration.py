import asyncio

import msgspec
import pytest

from logstore.protocol.messages.administration import (
    Cluster,
    ClusterList,
    ClusterTopic,
    ClusterTopicList,
    TopicConfigEntry,
    TopicConfigList,
)
from logstore.topic_config import CONFIG_KEYS
from tests.api.api_client import assert_error, running_api

pytestmark = pytest.mark.anyio


async def test_the_cluster_is_found_by_its_id(api):
    body = (await api.get("/v3/clusters")).json()
    msgspec.convert(body, ClusterList)
    (cluster,) = body["data"]
    assert cluster["cluster_id"] == api.broker.cluster_id
    one = await api.get(cluster["metadata"]["self"])
    msgspec.json.decode(one.content, type=Cluster)
    assert one.json() == cluster


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/topics"),
        ("POST", "/topics"),
        ("GET", "/topics/t"),
        ("DELETE", "/topics/t"),
        ("GET", "/topics/t/configs"),
        ("POST", "/topics/t/configs:alter"),
        ("PUT", "/topics/t/configs/retention.ms"),
    ],
)
async def test_another_cluster_is_not_found(api, method, path):
    await api.create_topic("t")
    message = assert_error(await api.request(method, f"/v3/clusters/other{path}"), 404, 404)
    assert "GET /v3/clusters" in message
    assert (await api.get("/topics")).json() == ["t"]


async def test_a_topic_is_created_described_and_deleted(api):
    body = {
        "topic_name": "t",
        "partitions_count": 4,
        "replication_factor": 1,
        "configs": [{"name": "retention.ms", "value": "5"}, {"name": "segment.ms", "value": None}],
    }
    answer = await api.post(api.topics_url, json=body)
    assert answer.status_code == 201
    msgspec.json.decode(answer.content, type=ClusterTopic)
    assert answer.json()["partitions_count"] == 4
    assert answer.headers["Location"] == answer.json()["metadata"]["self"]
    assert (await api.get(answer.headers["Location"])).json() == answer.json()
    assert len((await api.get(answer.json()["partitions"]["related"])).json()["data"]) == 4
    listed = (await api.get(api.topics_url)).json()
    msgspec.convert(listed, ClusterTopicList)
    assert listed["data"] == [answer.json()]

    deleted = await api.delete(f"{api.topics_url}/t")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert_error(await api.get(f"{api.topics_url}/t"), 404, 40401)
    assert_error(await api.get("/topics/t"), 404, 40401)
    assert_error(await api.delete(f"{api.topics_url}/t"), 404, 40401)


async def test_partitions_default_to_num_partitions(tmp_path):
    async with running_api(tmp_path / "data", num_partitions=3) as api:
        answer = await api.post(api.topics_url, json={"topic_name": "t"})
        assert answer.json()["partitions_count"] == 3


async def test_validate_only_changes_nothing(api):
    await api.create_topic("t")
    good = await api.post(api.topics_url, json={"topic_name": "u", "partitions_count": 2, "validate_only": True})
    assert (good.status_code, good.json()["partitions_count"], good.json()["topic_id"]) == (200, 2, None)
    bad = await api.post(api.topics_url, json={"topic_name": "t", "validate_only": True})
    assert_error(bad, 400, 40002)
    assert (await api.get("/topics")).json() == ["t"]

    change = {"data": [{"name": "retention.ms", "value": "5"}], "validate_only": True}
    assert (await api.post(f"{api.topics_url}/t/configs:alter", json=change)).status_code == 204
    change["data"].append({"name": "retention.bytes", "value": "many"})
    assert_error(await api.post(f"{api.topics_url}/t/configs:alter", json=change), 400, 40002)
    assert (await api.get("/topics/t")).json()["configs"]["retention.ms"] == "-1"


async def test_two_creations_at_once_make_one_topic(api):
    answers = await asyncio.gather(*(api.post(api.topics_url, json={"topic_name": "t"}) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 400, 400, 400, 400]
    assert (await api.get("/topics")).json() == ["t"]


async def test_partitions_can_be_added_never_removed(api):
    await api.create_topic("t", partitions=2)
    await api.produce("t", [1], partition=1)
    grown = await api.patch(f"{api.topics_url}/t", json={"partitions_count": 4})
    assert (grown.status_code, grown.json()["partitions_count"]) == (200, 4)
    await api.produce("t", [2], partition=3)
    assert (await api.patch(f"{api.topics_url}/t", json={"partitions_count": 4})).status_code == 200
    for count in (3, 0, -1, 10_001, 2**31, 10**400):
        assert_error(await api.patch(f"{api.topics_url}/t", json={"partitions_count": count}), range(400, 423))
    assert [await api.values("t", partition) for partition in range(4)] == [[], [1], [], [2]]


async def test_every_configuration_key_is_listed_with_its_source(tmp_path):
    of_store = {"log.retention.hours": "1", "log.retention.ms": "3", "log.cleanup.policy": "compact"}
    async with running_api(tmp_path / "data", topic_defaults={"segment.ms": "7"}, broker_defaults=of_store) as api:
        await api.create_topic("t", retention_ms="5")
        body = (await api.get(f"{api.topics_url}/t/configs")).json()
        msgspec.convert(body, TopicConfigList)
        found = {entry["name"]: entry for entry in body["data"]}
        assert list(found) == [key.name for key in CONFIG_KEYS]
        assert {(e["value"], e["source"], e["is_default"]) for e in map(found.get, ["retention.ms"])} == {
            ("5", "DYNAMIC_TOPIC_CONFIG", False)
        }
        assert [(s["name"], s["value"], s["source"]) for s in found["retention.ms"]["synonyms"]] == [
            ("retention.ms", "5", "DYNAMIC_TOPIC_CONFIG"),
            ("log.retention.ms", "3", "STATIC_BROKER_CONFIG"),
            ("log.retention.hours", "1", "STATIC_BROKER_CONFIG"),
            ("retention.ms", "-1", "DEFAULT_CONFIG"),
        ]
        policy = found["cleanup.policy"]
        assert (policy["value"], policy["source"]) == ("compact", "STATIC_BROKER_CONFIG")
        assert (found["segment.ms"]["value"], found["segment.ms"]["source"]) == ("7", "STATIC_BROKER_CONFIG")
        assert (found["retention.bytes"]["source"], found["retention.bytes"]["is_default"]) == ("DEFAULT_CONFIG", True)
        one = await api.get(f"{api.topics_url}/t/configs/segment.ms")
        msgspec.json.decode(one.content, type=TopicConfigEntry)
        assert one.json() == found["segment.ms"]


async def test_configuration_is_altered_one_by_one_and_together(api):
    await api.create_topic("t")
    url = f"{api.topics_url}/t/configs"

    async def value(name: str) -> tuple[str, bool]:
        entry = (await api.get(f"{url}/{name}")).json()
        return entry["value"], entry["is_default"]

    assert (await api.put(f"{url}/retention.ms", json={"value": "9"})).status_code == 204
    assert await value("retention.ms") == ("9", False)
    changes = [{"name": "retention.ms", "operation": "DELETE"}, {"name": "max.message.bytes", "value": "10"}]
    assert (await api.post(f"{url}:alter", json={"data": changes})).status_code == 204
    assert await value("retention.ms") == ("-1", True)
    assert await value("max.message.bytes") == ("10", False)
    too_large = await api.post("/topics/t", json={"records": [{"value": "x" * 11}]})
    assert_error(too_large, 413, 41302)

    assert (await api.delete(f"{url}/max.message.bytes")).status_code == 204
    assert await value("max.message.bytes") == ("1048576", True)
    assert (await api.put(f"{url}/retention.ms", json={"value": "9"})).status_code == 204
    assert (await api.put(f"{url}/retention.ms", json={"value": None})).status_code == 204
    assert await value("retention.ms") == ("-1", True)
    await api.produce("t", ["x" * 11])


async def test_altering_is_all_or_nothing(api):
    await api.create_topic("t")
    changes = [{"name": "retention.ms", "value": "9"}, {"name": "retention.byte", "value": "9"}]
    message = assert_error(await api.post(f"{api.topics_url}/t/configs:alter", json={"data": changes}), 400, 40002)
    assert "retention.bytes" in message
    assert (await api.get(f"{api.topics_url}/t/configs/retention.ms")).json()["is_default"]


@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", {"value": "1"}), ("DELETE", None)])
async def test_an_unknown_configuration_is_not_found_and_names_the_nearest(api, method, body):
    await api.create_topic("t")
    answer = await api.request(method, f"{api.topics_url}/t/configs/retention.mss", json=body)
    assert "retention.ms" in assert_error(answer, 404, 404)


@pytest.mark.parametrize(
    "configs",
    [
        [{"name": "nonsense", "value": "1"}],
        [{"name": "retention.ms", "value": "soon"}],
        [{"name": "retention.ms", "value": "-2"}],
        [{"name": "retention.ms", "value": "1"}, {"name": "retention.ms", "value": "2"}],
        [{"name": "cleanup.policy", "value": "shred"}],
        [{"name": "partitions", "value": "3"}],
    ],
)
async def test_bad_configuration_creates_no_topic(api, configs):
    assert_error(await api.post(api.topics_url, json={"topic_name": "t", "configs": configs}), 400, 40002)
    assert (await api.get("/topics")).json() == []


ILLEGAL_NAMES = ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "__consumer_offsets", "A.B", "a_b", "*", "a\x00", "a\n"]
DELTAS_NAMES = ["_delta_log", "_change_data", "_symlink_format_manifest", "_DELTA_LOG"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "ä",
        "x" * 250,
        "__consumer_offsets",
        "A.B",
        "a_b",
        "*",
        "a\x00",
        "a\n",
        *DELTAS_NAMES,
    ],
)
async def test_bad_and_colliding_names_create_no_topic(api, name):
    await api.create_topic("a.b")
    assert_error(await api.post(api.topics_url, json={"topic_name": name}), 400, 40002)
    assert (await api.get("/topics")).json() == ["a.b"]


async def test_the_longest_name_is_allowed(api):
    await api.create_topic("x" * 249)
    await api.produce("x" * 249, [1])
    assert (await api.post(f"/topics/{'x' * 249}/roll")).status_code == 200


@pytest.mark.parametrize("replication_factor", [0, 2, 2**31, -2])
async def test_more_replicas_than_brokers_are_refused(api, replication_factor):
    body = {"topic_name": "t", "replication_factor": replication_factor}
    assert_error(await api.post(api.topics_url, json=body), 400, 40002)
