"""Consumer groups in REST Proxy v3's shapes, with members and without; lists, resets and deletions of groups."""

import jsonschema
import msgspec
import pytest

from logstore.protocol.messages import consumer_groups as schemas
from logstore.protocol.messages.administration import ClusterReplicaList, PartitionWithOffsets, TopicConfigList
from logstore.protocol.messages.groups import DeletedGroups, GroupListings, ResetOffsets
from logstore.topic_config import CONFIG_KEYS
from tests.api.api_client import ApiClient, assert_error

pytestmark = pytest.mark.anyio

MEMBER = {"member_epoch": 0, "rebalance_timeout_ms": 60_000, "owned": []}


@pytest.fixture
async def filled(api: ApiClient) -> ApiClient:
    """Fill topics ``t`` and ``u``: member ``m`` of group ``g`` reads ``t`` (two partitions of five records, one
    committed at 2), and group ``simple`` has committed an offset of ``u``.
    """
    for topic in ("t", "u"):
        await api.create_topic(topic, partitions=2)
        for partition in range(2):
            await api.produce(topic, [1, 2, 3, 4, 5], partition=partition)
    for group, place in (
        ("g", {"topic": "t", "partition": 1, "offset": 2}),
        ("simple", {"topic": "u", "partition": 0, "offset": 5}),
    ):
        answer = await api.post(f"/groups/{group}/offsets", json={"offsets": [place]})
        assert answer.status_code == 200, answer.text
    await beat(api, member_id="m", member_epoch=0, subscribed_topics=["t"])
    return api


async def beat(api: ApiClient, **given: object) -> None:
    headers = {"Logstore-Client-Id": "billing"}
    answer = await api.post("/groups/g/consumer-heartbeat", json={**MEMBER, **given}, headers=headers)
    assert answer.status_code == 200, answer.text


def groups_url(api: ApiClient) -> str:
    return f"/v3/clusters/{api.broker.cluster_id}/consumer-groups"


async def test_groups_link_to_all_that_is_known_of_them(filled):
    (cluster,) = (await filled.get("/v3/clusters")).json()["data"]
    listed = await filled.get(cluster["consumer_groups"]["related"])
    msgspec.json.decode(listed.content, type=schemas.ConsumerGroupList)
    group, simple = listed.json()["data"]
    assert (simple["consumer_group_id"], simple["is_simple"], simple["type"]) == ("simple", True, "CLASSIC")
    assert (simple["state"], simple["partition_assignor"]) == ("EMPTY", "")
    assert (group["consumer_group_id"], group["is_simple"], group["type"]) == ("g", False, "CONSUMER")
    assert (group["state"], group["partition_assignor"]) == ("STABLE", "uniform")
    assert group["metadata"]["resource_name"] == f"crn:///kafka={filled.broker.cluster_id}/consumer-group=g"
    assert (await filled.get(group["metadata"]["self"])).json() == group
    assert (await filled.get(group["coordinator"]["related"])).json()["kind"] == "KafkaBroker"

    consumers = await filled.get(group["consumers"]["related"])
    msgspec.json.decode(consumers.content, type=schemas.ConsumerList)
    (consumer,) = consumers.json()["data"]
    assert (consumer["consumer_id"], consumer["instance_id"], consumer["client_id"]) == ("m", None, "billing")
    assert (await filled.get(consumer["metadata"]["self"])).json() == consumer

    assignments = await filled.get(consumer["assignments"]["related"])
    msgspec.json.decode(assignments.content, type=schemas.ConsumerAssignmentList)
    assert [(each["topic_name"], each["partition_id"]) for each in assignments.json()["data"]] == [("t", 0), ("t", 1)]
    for each in assignments.json()["data"]:
        assert (await filled.get(each["metadata"]["self"])).json() == each
        assert (await filled.get(each["partition"]["related"])).json()["partition_id"] == each["partition_id"]
        lag = (await filled.get(each["lag"]["related"])).json()
        assert (lag["partition_id"], lag["consumer_id"]) == (each["partition_id"], "m")


async def test_lags_are_of_all_partitions(filled):
    url = f"{groups_url(filled)}/g"
    listed = await filled.get(f"{url}/lags")
    msgspec.json.decode(listed.content, type=schemas.ConsumerLagList)
    rows = [
        (each["partition_id"], each["current_offset"], each["log_end_offset"], each["lag"])
        for each in listed.json()["data"]
    ]
    assert rows == [(0, 0, 5, 5), (1, 2, 5, 3)]
    for each in listed.json()["data"]:
        assert (await filled.get(each["metadata"]["self"])).json() == each
    answer = await filled.get(f"{url}/lag-summary")
    msgspec.json.decode(answer.content, type=schemas.ConsumerGroupLagSummary)
    summary = answer.json()
    assert (summary["max_lag"], summary["total_lag"]) == (5, 8)
    assert (summary["max_lag_topic_name"], summary["max_lag_partition_id"]) == ("t", 0)
    assert (summary["max_lag_consumer_id"], summary["max_lag_client_id"]) == ("m", "billing")
    assert (await filled.get(summary["max_lag_consumer"]["related"])).json()["consumer_id"] == "m"
    assert (await filled.get(summary["max_lag_partition"]["related"])).json()["partition_id"] == 0
    unread = (await filled.get(f"{groups_url(filled)}/simple/lag-summary")).json()
    assert (unread["max_lag_consumer_id"], unread["total_lag"]) == ("", 5)
    assert (await filled.get(unread["max_lag_consumer"]["related"])).json()["data"] == []


async def test_missing_things_are_not_found(filled):
    url = groups_url(filled)
    for path, code in (
        (f"{url}/absent", 40405),
        (f"{url}/absent/consumers", 40405),
        (f"{url}/absent/lags", 40405),
        (f"{url}/absent/lag-summary", 40405),
        (f"{url}/g/consumers/absent", 404),
        (f"{url}/g/consumers/absent/assignments", 404),
        (f"{url}/g/consumers/m/assignments/u/partitions/0", 404),
        (f"{url}/g/consumers/m/assignments/t/partitions/2", 404),
        (f"{url}/g/lags/u/partitions/0", 404),
        (f"{url}/g/lags/t/partitions/x", 40402),
        ("/v3/clusters/other/consumer-groups", 404),
        ("/v3/clusters/other/consumer-groups/g/consumers/m", 404),
    ):
        assert_error(await filled.get(path), 404, code)
    for query in ("page_size=0", "page_size=1001", "page_size=x", "page=1", "page_size=1&page_size=1"):
        assert_error(await filled.get(f"{url}?{query}"), 422)


async def test_pages_lead_from_one_to_the_next(filled):
    for number in range(3):
        await filled.post(f"/groups/x{number}/offsets", json={"offsets": [{"topic": "t", "partition": 0, "offset": 0}]})
    found, url = [], f"{groups_url(filled)}?page_size=2"
    while url is not None:
        page = (await filled.get(url)).json()
        found += [group["consumer_group_id"] for group in page["data"]]
        url = page["metadata"]["next"]
    assert found == ["g", "simple", "x0", "x1", "x2"]


async def test_configs_of_all_topics(filled):
    url = f"{filled.topics_url}/-/configs"
    answer = await filled.get(url)
    msgspec.json.decode(answer.content, type=TopicConfigList)
    names = ["__consumer_offsets", "t", "u"]
    assert [(each["topic_name"], each["name"]) for each in answer.json()["data"]] == [
        (topic, key.name) for topic in names for key in CONFIG_KEYS
    ]
    one = answer.json()["data"][-1]
    assert (await filled.get(one["metadata"]["self"])).json() == one
    found, following = [], f"{url}?page_size={len(CONFIG_KEYS)}"
    while following is not None:
        page = (await filled.get(following)).json()
        assert len(page["data"]) == len(CONFIG_KEYS)
        found += page["data"]
        following = page["metadata"]["next"]
    assert found == answer.json()["data"]


async def test_offsets_replicas_and_reassignments_of_partitions(filled):
    await filled.post("/topics/t/partitions/1/delete-records", json={"before_offset": 3})
    answer = await filled.get(f"{filled.topics_url}/t/partitions/1/offset?offset_type=earliest_and_latest")
    msgspec.json.decode(answer.content, type=PartitionWithOffsets)
    assert (answer.json()["earliest_offset"], answer.json()["latest_offset"]) == (3, 5)
    assert_error(await filled.get(f"{filled.topics_url}/t/partitions/1/offset?offset_type=latest"), 422)
    (broker,) = (await filled.get(f"/v3/clusters/{filled.broker.cluster_id}/brokers")).json()["data"]
    whole = await filled.get(broker["partition_replicas"]["related"])
    msgspec.json.decode(whole.content, type=ClusterReplicaList)
    found, url = [], f"{broker['partition_replicas']['related']}?page_size=1"
    while url is not None:
        page = (await filled.get(url)).json()
        found += page["data"]
        url = page["metadata"]["next"]
    assert found == whole.json()["data"]
    assert {(each["topic_name"], each["partition_id"]) for each in found} >= {("t", 0), ("t", 1), ("u", 0), ("u", 1)}
    topic = (await filled.get(f"{filled.topics_url}/t")).json()
    (cluster,) = (await filled.get("/v3/clusters")).json()["data"]
    for resource in (topic, cluster):
        assert (await filled.get(resource["partition_reassignments"]["related"])).json()["data"] == []
    partition = (await filled.get(f"{filled.topics_url}/t/partitions/0")).json()
    assert "not being reassigned" in assert_error(await filled.get(partition["reassignment"]["related"]), 404, 40407)


async def test_groups_in_numbers(filled):
    answer = await filled.get("/group-listings")
    msgspec.json.decode(answer.content, type=GroupListings)
    g, simple = answer.json()["groups"]
    assert (g["group"], g["kind"], g["state"], g["members"], g["partitions"]) == ("g", "consumer", "Stable", 1, 2)
    assert (g["total_lag"], g["max_lag"], g["protocol"]) == (8, 5, "uniform")
    assert (simple["group"], simple["kind"], simple["state"], simple["total_lag"]) == ("simple", "", "Empty", 5)
    assert answer.json()["next"] is None
    first = (await filled.get("/group-listings?limit=1")).json()
    assert ([each["group"] for each in first["groups"]], first["next"]) == (["g"], "g")
    rest = (await filled.get("/group-listings?limit=1&after=g")).json()
    assert ([each["group"] for each in rest["groups"]], rest["next"]) == (["simple"], None)
    by_state = (await filled.get("/group-listings?states=stable,Assigning")).json()["groups"]
    assert [each["group"] for each in by_state] == ["g"]
    for query in ("limit=0", "limit=10001", "limit=x", "states=Happy", "states=Stable,", "state=Stable"):
        assert_error(await filled.get(f"/group-listings?{query}"), 422)


async def test_a_reset(filled):
    url = "/groups/simple/reset-offsets"
    planned = await filled.post(url, json={"to": "earliest", "dry_run": True})
    msgspec.json.decode(planned.content, type=ResetOffsets)
    places = [("u", 0, 0, 5), ("u", 1, 0, None)]
    names = ("topic", "partition", "offset", "previous_offset")
    offsets = [dict(zip(names, place, strict=True)) for place in places]
    assert planned.json() == {"group": "simple", "dry_run": True, "offsets": offsets}
    assert (await filled.post(url, json={"to": "earliest"})).json()["offsets"] == offsets

    async def at(**body: object) -> list[int]:
        answer = await filled.post(url, json=body)
        assert answer.status_code == 200, answer.text
        return [each["offset"] for each in answer.json()["offsets"]]

    assert await at(shift_by=2) == [2, 2]
    assert await at(to_offset=-1, topics=[{"topic": "u", "partitions": [1]}]) == [4]
    assert await at(to="current", topics=[{"topic": "u"}, {"topic": "t", "partitions": None}]) == [5, 5, 2, 4]
    assert await at(to_timestamp=0) == [0, 0, 0, 0]
    assert await at(offsets=[{"topic": "u", "partition": 1, "offset": 3}]) == [3]
    assert_error(await filled.post("/groups/g/reset-offsets", json={"to": "latest"}), 409, 40924)
    for body, status, code in (
        ({}, 422, 42206),
        ({"to": "latest", "shift_by": 1}, 422, 42206),
        ({"to": "nowhere"}, 422, 42206),
        ({"to_offset": 1.5}, 422, 42206),
        ({"to": "latest", "topics": []}, 422, 42206),
        ({"to": "latest", "topics": [{"topic": "u"}, {"topic": "u"}]}, 422, 42206),
        ({"offsets": [], "dry_run": True}, 422, 42206),
        ({"offsets": [{"topic": "u", "partition": 1, "offset": 3}], "topics": [{"topic": "u"}]}, 422, 42206),
        ({"to": "latest", "topics": [{"topic": "absent"}]}, 404, 40401),
        ({"to": "latest", "topics": [{"topic": "u", "partitions": [2]}]}, 404, 40402),
        ({"to_offset": 6}, 416, 41601),
        ({"offsets": [{"topic": "u", "partition": 1, "offset": 6}]}, 416, 41601),
    ):
        assert_error(await filled.post(url, json=body), status, code)
    assert_error(await filled.post("/groups/absent/reset-offsets", json={"to": "latest"}), 404, 40405)
    assert_error(await filled.post("/groups/%20/reset-offsets", json={"to": "latest"}), 404, 40405)


async def test_several_groups_are_deleted_each_by_itself(filled):
    answer = await filled.post("/delete-groups", json={"groups": ["g", "simple", "absent", "simple"]})
    msgspec.json.decode(answer.content, type=DeletedGroups)
    assert {each["group"]: each["error_code"] for each in answer.json()["groups"]} == {
        "g": 40924,
        "simple": None,
        "absent": 40405,
    }
    assert (await filled.get("/groups")).json() == ["g"]
    assert_error(await filled.post("/delete-groups", json={"groups": []}), 422, 42206)
    assert_error(await filled.post("/delete-groups", json={"groups": ["x"] * 1001}), 422, 42206)


async def test_examples_are_of_their_schemas(api):
    models = (await api.get("/openapi.json")).json()["components"]["schemas"]
    checked = 0
    for name, model in models.items():
        for example in model.get("examples", ()):
            jsonschema.validate(example, {**model, "components": {"schemas": models}})
            checked += name.startswith(("Consumer", "ResetOffsets", "DeleteGroups"))
    assert checked >= 8
