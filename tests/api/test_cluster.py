"""The cluster over HTTP: its brokers, partitions that lack something, elections and reassignments."""

from dataclasses import replace

import pytest

from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import BrokerEndpoint, PartitionState
from tests.api.api_client import ApiClient, assert_error

pytestmark = pytest.mark.anyio

WHOLE = PartitionState(0, 4, (0, 1, 2), (0, 1, 2))
SHRUNK = PartitionState(0, 4, (0, 1, 2), (0, 1))
ALONE = PartitionState(1, 5, (0, 1), (1,))
NO_LEADER = PartitionState(-1, 6, (0, 1), ())
MOVING = PartitionState(0, 7, (2, 0), (0,), adding_replicas=(2,), removing_replicas=(0,))


@pytest.fixture
async def cluster(api: ApiClient, monkeypatch: pytest.MonkeyPatch) -> ApiClient:
    """Return a broker 0 that sees two others and partitions in all states; topic ``a`` wants two replicas in sync."""
    states = {}
    for name, found in {"a": [WHOLE, SHRUNK, ALONE], "b": [NO_LEADER, MOVING]}.items():
        await api.create_topic(name, partitions=len(found), **({"min_insync_replicas": "2"} if name == "a" else {}))
        states |= {
            (api.broker.topics.served.topic(INTERNAL, name).topic_id, number): state
            for number, state in enumerate(found)
        }
    cluster_state = api.broker._cluster_state
    brokers = {
        0: BrokerEndpoint(0, "http://h0:80"),
        1: BrokerEndpoint(1, "http://h1:8082", "r"),
        2: BrokerEndpoint(2, "http://h2:1"),
    }
    monkeypatch.setattr(type(cluster_state), "brokers_by_id", property(lambda _: brokers))
    monkeypatch.setattr(type(cluster_state), "controller_id", property(lambda _: 1))
    monkeypatch.setattr(cluster_state, "partition_state", lambda topic_id, number: states[topic_id, number])
    return api


async def test_the_cluster_in_numbers(cluster):
    found = (await cluster.get("/cluster")).json()
    assert found.pop("brokers") == [
        {"broker_id": 0, "url": "http://h0:80", "rack": None, "replicas": 5, "leaders": 3},
        {"broker_id": 1, "url": "http://h1:8082", "rack": "r", "replicas": 4, "leaders": 1},
        {"broker_id": 2, "url": "http://h2:1", "rack": None, "replicas": 3, "leaders": 0},
    ]
    assert found == {
        "cluster_id": cluster.broker.cluster_id,
        "controller_id": 1,
        "partitions": 5,
        "under_replicated_partitions": 3,
        "unavailable_partitions": 1,
        # One of the two is b-0, because min.insync.replicas is 1 by default.
        "under_min_isr_partitions": 2,
    }


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (None, [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]),
        ("under-replicated", [("a", 1), ("a", 2), ("b", 0)]),
        ("unavailable", [("b", 0)]),
        ("under-min-isr", [("a", 2), ("b", 0)]),
    ],
)
async def test_partitions_in_a_state(cluster, state, wanted):
    query = "" if state is None else f"?state={state}"
    found = (await cluster.get(f"/cluster/partitions{query}")).json()
    assert [(one["topic"], one["partition"]) for one in found["partitions"]] == wanted
    assert found["next"] is None


async def test_partitions_come_in_pages_of_whole_topics(cluster):
    first = (await cluster.get("/cluster/partitions?page_size=1")).json()
    assert [(one["topic"], one["leader"]) for one in first["partitions"]] == [("a", 0), ("a", 0), ("a", 1)]
    second = (await cluster.get(f"/cluster/partitions?page_size=1&page_token={first['next']}")).json()
    assert second == {
        "partitions": [
            {
                "topic": "b",
                "partition": 0,
                "leader": -1,
                "leader_epoch": 6,
                "replicas": [0, 1],
                "in_sync_replicas": [],
                "adding_replicas": [],
                "removing_replicas": [],
            },
            {
                "topic": "b",
                "partition": 1,
                "leader": 0,
                "leader_epoch": 7,
                "replicas": [2, 0],
                "in_sync_replicas": [0],
                "adding_replicas": [2],
                "removing_replicas": [0],
            },
        ],
        "next": None,
    }


async def test_a_broker_counts_what_it_leads_and_the_controller_what_nobody_does(cluster, monkeypatch):
    def numbers(text: str) -> dict[str, str]:
        return dict(line.split(" ") for line in text.splitlines() if line.startswith("logstore_") and "{" not in line)

    found = numbers((await cluster.get("/metrics")).text)
    assert found["logstore_active_controller_count"] == "0"
    assert found["logstore_offline_partitions_count"] == "0"
    assert found["logstore_partition_count"] == "5"
    assert found["logstore_leader_count"] == "3"
    assert found["logstore_under_replicated_partitions"] == "1"
    assert found["logstore_under_min_isr_partition_count"] == "0"
    monkeypatch.setattr(type(cluster.broker._cluster_state), "controller_id", property(lambda _: 0))
    found = numbers((await cluster.get("/metrics")).text)
    assert (found["logstore_active_controller_count"], found["logstore_offline_partitions_count"]) == ("1", "1")


async def test_brokers_and_reassignments_in_rest_v3_shapes(cluster):
    v3 = f"/v3/clusters/{cluster.broker.cluster_id}"
    told = (await cluster.get(v3)).json()
    assert (await cluster.get(told["controller"]["related"])).json()["broker_id"] == 1
    brokers = (await cluster.get(told["brokers"]["related"])).json()["data"]
    assert [(one["broker_id"], one["host"], one["port"], one["rack"]) for one in brokers] == [
        (0, "h0", 80, None),
        (1, "h1", 8082, "r"),
        (2, "h2", 1, None),
    ]
    listed = (await cluster.get(told["partition_reassignments"]["related"])).json()["data"]
    assert [(one["topic_name"], one["partition_id"]) for one in listed] == [("b", 1)]
    assert (listed[0]["adding_replicas"], listed[0]["removing_replicas"]) == ([2], [0])
    assert (await cluster.get(listed[0]["metadata"]["self"])).json() == listed[0]
    assert (await cluster.get(f"{v3}/topics/b/partitions/-/reassignment")).json()["data"] == listed
    assert (await cluster.get(f"{v3}/topics/a/partitions/-/reassignment")).json()["data"] == []
    assert_error(await cluster.get(f"{v3}/topics/b/partitions/0/reassignment"), 404, 40407)
    partition = (await cluster.get(f"{v3}/topics/b/partitions/0")).json()
    assert partition["leader"] is None
    replicas = (await cluster.get(f"{v3}/topics/a/partitions/1/replicas")).json()["data"]
    assert [(one["broker_id"], one["is_leader"], one["is_in_sync"]) for one in replicas] == [
        (0, True, True),
        (1, False, True),
        (2, False, False),
    ]


async def test_a_partition_of_one_node_stays_where_it_is(api):
    await api.create_topic("t")
    url = f"{api.topics_url}/t/partitions/0/reassignment"
    assert (await api.put(url, json={"replicas": [0]})).status_code == 202
    assert_error(await api.put(url, json={"replicas": [1, 0]}), 400, 40002)
    assert_error(await api.delete(url), 404, 40407)


def test_added_replicas_of_a_reassignment_are_not_missed():
    assert not MOVING.is_under_replicated
    assert replace(MOVING, replicas=(2, 0, 1)).is_under_replicated
