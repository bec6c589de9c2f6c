"""Brokers, their settings, partitions and replicas in REST v3 shapes; brokers also in v2's."""

import httpx
import msgspec
import pytest

from logstore.protocol.messages.administration import (
    BrokerConfigList,
    ClusterBrokerList,
    ClusterPartitionList,
    ClusterReplicaList,
)
from logstore.settings import plain_settings
from tests.api.api_client import assert_error, running_api

pytestmark = pytest.mark.anyio


async def test_brokers(api):
    answer = await api.get("/brokers")
    assert answer.json() == {"brokers": [0]}
    assert answer.headers["Content-Type"] == "application/vnd.kafka.v2+json"
    (cluster,) = (await api.get("/v3/clusters")).json()["data"]
    listed = await api.get(cluster["brokers"]["related"])
    msgspec.json.decode(listed.content, type=ClusterBrokerList)
    (broker,) = listed.json()["data"]
    assert (broker["broker_id"], broker["rack"]) == (0, None)
    assert (await api.get(broker["metadata"]["self"])).json() == broker


@pytest.mark.parametrize(
    ("host", "told"),
    [("localhost:18082", ("localhost", 18082)), ("localhost", ("localhost", 80)), ("[::1]:81", ("[::1]", 81))],
)
async def test_a_broker_has_the_address_that_the_client_uses(api, host, told):
    answer = await api.get(f"/v3/clusters/{api.broker.cluster_id}/brokers/0", headers={"Host": host})
    assert (answer.json()["host"], answer.json()["port"]) == told
    assert httpx.URL(answer.json()["metadata"]["self"]).path.endswith("/brokers/0")


async def test_settings_of_a_broker_with_their_sources(tmp_path):
    async with running_api(tmp_path / "data", max_request_size=12345678) as api:
        url = f"/v3/clusters/{api.broker.cluster_id}/brokers/0/configs"
        listed = await api.get(url)
        msgspec.json.decode(listed.content, type=BrokerConfigList)
        by_name = {entry["name"]: entry for entry in listed.json()["data"]}
        assert by_name.keys() == plain_settings().keys()
        given = by_name["max.request.size"]
        assert (given["value"], given["is_default"], given["source"]) == ("12345678", False, "STATIC_BROKER_CONFIG")
        assert [synonym["source"] for synonym in given["synonyms"]] == ["STATIC_BROKER_CONFIG", "DEFAULT_CONFIG"]
        default = by_name["max.connections"]
        assert (default["is_default"], default["is_read_only"], default["source"]) == (True, True, "DEFAULT_CONFIG")
        assert default["value"] == default["synonyms"][0]["value"]
        assert (await api.get(given["metadata"]["self"])).json() == given


async def test_partitions_and_replicas(api):
    await api.create_topic("t", partitions=2)
    topic = (await api.get(f"{api.topics_url}/t")).json()
    listed = await api.get(topic["partitions"]["related"])
    msgspec.json.decode(listed.content, type=ClusterPartitionList)
    assert [partition["partition_id"] for partition in listed.json()["data"]] == [0, 1]
    second = listed.json()["data"][1]
    assert (await api.get(second["metadata"]["self"])).json() == second
    replicas = await api.get(second["replicas"]["related"])
    msgspec.json.decode(replicas.content, type=ClusterReplicaList)
    (replica,) = replicas.json()["data"]
    assert (replica["broker_id"], replica["is_leader"], replica["is_in_sync"]) == (0, True, True)
    assert (await api.get(second["leader"]["related"])).json() == replica
    assert (await api.get(replica["broker"]["related"])).json()["broker_id"] == 0


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("brokers/1", 404),
        ("brokers/x", 404),
        ("brokers/1/configs", 404),
        ("brokers/0/configs/no.such", 404),
        ("topics/none/partitions", 40401),
        ("topics/t/partitions/2", 40402),
        ("topics/t/partitions/x/replicas", 40402),
        ("topics/t/partitions/0/replicas/7", 404),
    ],
)
async def test_missing_things_are_not_found(shared_api, path, code):
    assert_error(await shared_api.get(f"/v3/clusters/{shared_api.broker.cluster_id}/{path}"), 404, code)
