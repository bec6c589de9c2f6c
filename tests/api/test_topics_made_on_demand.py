"""A consumer's request makes a topic if ``auto.create.topics.enable`` is set, as Kafka's Metadata does."""

from pathlib import Path

import pytest

from logstore.broker.authorizer import Operation
from logstore.broker.context import INTERNAL
from logstore.client.consumer.consumer import Consumer
from logstore.client.metadata import TopicPartition
from logstore.errors import UnknownTopicError
from tests.api.api_client import ApiClient, assert_error, running_api
from tests.api.instance_client import create
from tests.api.real_server import RealServer
from tests.support.authorizer_views import DeniedOperations

pytestmark = pytest.mark.anyio

ON = {"auto_create_topics_enable": True, "num_partitions": 2, "group_initial_rebalance_delay_ms": 0}


def made(api: ApiClient) -> list[str]:
    return [topic.name for topic in api.broker.topics.served.all(INTERNAL)]


async def codes(api: ApiClient, query: str) -> dict[str, int | None]:
    topics = (await api.get(f"/metadata?{query}")).json()["topics"]
    return {topic["name"]: topic["error_code"] for topic in topics}


async def test_metadata_and_reads_of_records_make_a_topic(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        assert await codes(api, "topics=a,b") == {"a": None, "b": None}
        read = await api.get("/topics/c/partitions/1/records?max_wait_ms=0")
        assert (read.status_code, read.json()) == (200, [])
        # A new topic has no record at that offset.
        assert_error(await api.get("/topics/d/events?partition=1&from=1:5"), 416, 41601)
        assert made(api) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("path", "accept", "status"),
    [
        ("partitions/2/records", "*/*", 404),
        ("partitions/one/records", "*/*", 404),
        ("partitions/0/records", "text/html", 406),
        ("events?partition=0,9", "*/*", 404),
        ("events?partition=one", "*/*", 404),
        ("events", "text/html", 406),
        ("events?format=binary&key=no-base64", "*/*", 422),
        ("events?key_format=string", "*/*", 422),
    ],
)
async def test_a_read_that_is_refused_makes_none(tmp_path: Path, path: str, accept: str, status: int):
    async with running_api(tmp_path / "data", **ON) as api:
        assert_error(await api.get(f"/topics/typo/{path}", headers={"Accept": accept}), status)
        assert made(api) == []


async def test_an_assignment_of_a_partition_that_a_new_topic_would_not_have_makes_none(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        instance = await create(api)
        refused = await instance.post("/assignments", {"partitions": [{"topic": "typo", "partition": 2}]})
        assert_error(refused, 404, 40402)
        assert made(api) == []


async def test_subscriptions_and_assignments_of_instances_make_a_topic(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        subscribed = await create(api)
        await subscribed.subscribe("s")
        assert made(api) == ["s"]
        assigned = await create(api, "other")
        await assigned.assign(0, 1, topic="a")
        assert await assigned.assigned() == [("a", 0), ("a", 1)]
        assert made(api) == ["a", "s"]


async def test_other_requests_make_none(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        assert await codes(api, "topics=t&allow_auto_topic_creation=false") == {"t": 40401}
        refused = await api.get("/metadata?topics=t&allow_auto_topic_creation=perhaps")
        assert refused.status_code in (400, 422), refused.text
        for path in ("/topics/t", "/topics/t/partitions/0/offsets", "/topics/t/partitions"):
            assert_error(await api.get(path), 404, 40401)
        told = "00000000-0000-0000-0000-000000000000"
        for path in ("/topics/t/partitions/0/records", "/topics/t/events"):
            assert_error(await api.get(path, headers={"Logstore-Topic-Id": told}), 404)
        assert made(api) == []


async def test_names_that_no_topic_can_have_are_refused(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        codes_of = await codes(api, "topics=__Audit,a%20b,_delta_log")
        assert set(codes_of.values()) == {40002}, codes_of
        assert made(api) == []


async def test_readers_of_an_internal_topic_wait_until_the_store_makes_it(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        assert await codes(api, "topics=__audit,__erasures") == {"__audit": 40401, "__erasures": 40401}
        assert_error(await api.get("/topics/__consumer_offsets/partitions/0/records"), 404, 40401)
        assert_error(await api.post("/topics/__audit", json={"records": [{"value": 1}]}), 400, 40002)
        assert api.broker.topics.served.all(INTERNAL, include_internal=True) == []


async def test_other_names_with_the_prefix_are_names_of_users_topics(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        name = "__debezium-heartbeat.srv1"
        await api.produce(name, [1])
        assert (await api.get("/topics")).json() == [name]
        assert (await api.get(f"/topics/{name}")).json()["is_internal"] is False
        subscribed = await create(api)
        await subscribed.did("/subscription", {"topic_pattern": "__.*"})
        assert await subscribed.values(1) == [1]
        assert (await api.delete(f"{api.topics_url}/{name}")).status_code == 204
        assert made(api) == []


async def test_a_topic_is_made_for_who_may_create_it(tmp_path: Path):
    async with running_api(tmp_path / "data", **ON) as api:
        refused = {(Operation.CREATE, "t"), (Operation.CREATE, "kafka-cluster")}
        api.app.guard.authorizer.replace(DeniedOperations(refused))
        assert await codes(api, "topics=t") == {"t": 40301}
        assert_error(await api.get("/topics/t/partitions/0/records"), 403, 40301)
        instance = await create(api)
        assert_error(await instance.post("/subscription", {"topics": ["t"]}), 403, 40301)
        # A client may describe and create a topic without being allowed to write to it.
        api.app.guard.authorizer.replace(DeniedOperations({(Operation.WRITE, "t")}, 2))
        assert made(api) == []
        assert await codes(api, "topics=t") == {"t": None}


async def test_nothing_is_made_unless_the_store_makes_topics(tmp_path: Path):
    async with running_api(tmp_path / "data") as api:
        assert await codes(api, "topics=t") == {"t": 40401}
        for path in ("/topics/t/partitions/0/records", "/topics/t/events"):
            assert_error(await api.get(path), 404, 40401)
        instance = await create(api)
        await instance.subscribe("t")
        assert made(api) == []


@pytest.mark.long
@pytest.mark.system
def test_pythons_consumer_makes_the_topics_that_it_reads(tmp_path: Path):
    with RealServer(tmp_path / "data", **ON) as server:
        with Consumer(server.url) as consumer:
            consumer.subscribe(["alone"])
            assert consumer.poll(timeout_s=5) == []
            assert consumer.assignment() == {TopicPartition("alone", 0), TopicPartition("alone", 1)}
            consumer.assign([TopicPartition("assigned", 1)])
            assert consumer.position(TopicPartition("assigned", 1)) == 0
            assert len(consumer.partitions_for("asked")) == 2
            with pytest.raises(UnknownTopicError):
                consumer.end_offsets([TopicPartition("ends", 0)])
            with pytest.raises(UnknownTopicError):
                consumer._admin.find_partitions(["administered"])
        for protocol in ("classic", "consumer"):
            with Consumer(server.url, group_id=protocol, group_protocol=protocol) as member:
                member.subscribe([f"of-{protocol}"])
                for _ in range(20):
                    member.poll(timeout_s=0.5)
                    if member.assignment():
                        break
                assert len(member.assignment()) == 2
        with Consumer(server.url) as consumer:
            names = {topic.topic_name for topic in consumer._admin.topics()}
    assert names == {"alone", "assigned", "asked", "of-classic", "of-consumer"}
