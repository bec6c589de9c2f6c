"""The metadata by which clients find brokers: the answers of one node, and of a cluster."""

import pytest
from jsonschema import Draft202012Validator

from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import BrokerEndpoint, PartitionState
from tests.support.authorizer_views import Denied

pytestmark = pytest.mark.anyio


async def test_one_node_leads_everything_at_the_address_that_was_asked(api):
    topic = await api.broker.topics.changes.create(INTERNAL, "t", partitions=2)
    answer = await api.get("/metadata?topics=t,missing,t")
    document = (await api.get("/openapi.json")).json()
    schema = document["paths"]["/metadata"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}).validate(answer.json())
    told = answer.json()["topics"][1]["message"]
    assert told.startswith("Topic 'missing' not found")
    epoch = topic.partition(0).leader_epoch
    assert answer.json() == {
        "cluster_id": api.broker.cluster_id,
        "controller_id": 0,
        "brokers": [{"broker_id": 0, "url": None, "rack": None}],
        "topics": [
            {
                "name": "t",
                "topic_id": str(topic.topic_id),
                "error_code": None,
                "message": None,
                "partitions": [{"partition": n, "leader": 0, "leader_epoch": epoch} for n in (0, 1)],
            },
            {
                "name": "missing",
                "topic_id": None,
                "error_code": 40401,
                "message": told,
                "partitions": [],
            },
        ],
        "coordinator_id": None,
    }


async def test_without_topics_it_returns_only_the_brokers(api):
    answer = (await api.get("/metadata")).json()
    assert (answer["topics"], [broker["broker_id"] for broker in answer["brokers"]]) == ([], [0])


async def test_brokers_leaders_and_coordinator_are_those_of_the_view(api, monkeypatch):
    topic = await api.broker.topics.changes.create(INTERNAL, "t", partitions=3)
    await api.post("/groups/g/offsets", json={"offsets": [{"topic": "t", "partition": 0, "offset": 0}]})
    cluster_state = api.broker._cluster_state
    endpoints = {n: BrokerEndpoint(n, f"http://b{n}:8082", "r1") for n in (4, 7)}
    states = [
        PartitionState(4, 9, (4, 7), (4, 7)),
        PartitionState(-1, 11, (7,), (7,)),
        PartitionState(7, 8, (7,), (7,)),
    ]
    monkeypatch.setattr(type(cluster_state), "brokers_by_id", endpoints)
    monkeypatch.setattr(type(cluster_state), "controller_id", -1)
    monkeypatch.setattr(
        cluster_state,
        "partition_state",
        lambda topic_id, partition: states[partition] if topic_id == topic.topic_id else states[2],
    )
    answer = (await api.get("/metadata?topics=t&group=g")).json()
    assert answer["brokers"] == [{"broker_id": n, "url": f"http://b{n}:8082", "rack": "r1"} for n in (4, 7)]
    leaders = [(p["leader"], p["leader_epoch"]) for p in answer["topics"][0]["partitions"]]
    assert leaders == [(4, 9), (-1, 11), (7, 8)]
    assert (answer["controller_id"], answer["coordinator_id"]) == (-1, 7)


async def test_a_group_has_no_coordinator_before_there_are_groups_and_names_are_checked(api):
    assert (await api.get("/metadata?group=g")).json()["coordinator_id"] == -1
    refused = await api.get(f"/metadata?group={'x' * 32_768}")
    assert (refused.status_code, refused.json()["error_code"]) == (422, 42206)


async def test_topics_that_may_not_be_described_have_that_error(api):
    await api.broker.topics.changes.create(INTERNAL, "t", partitions=1)
    api.broker.authorizer.replace(Denied({"t"}, 1))
    (topic,) = (await api.get("/metadata?topics=t")).json()["topics"]
    assert (topic["error_code"], topic["topic_id"], topic["partitions"]) == (40301, None, [])
