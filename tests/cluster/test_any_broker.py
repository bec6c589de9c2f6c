"""Any broker answers any request: three real processes share a ZooKeeper and one data directory."""

import asyncio
import itertools
import json
import time
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from logstore.protocol.fetch_response import read_fetch_response
from tests.cluster.test_serve import environment, started
from tests.support.cluster_states import Brokers

pytestmark = [pytest.mark.anyio, pytest.mark.system]


async def until_ok(http: httpx.AsyncClient, method: str, path: str, **options) -> httpx.Response:
    """Repeat a request while leaders are elected and groups are loaded, also if its outcome is unknown (504, a leader
    changed meanwhile). After that 409 on a create and 404 on a delete count as success.
    """
    done: set[int] = set()
    deadline = time.monotonic() + 60
    while True:
        answer = await http.request(method, path, **options)
        if answer.status_code == 504:
            done = {404} if method == "DELETE" else {409}
        elif answer.status_code != 503:
            break
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    assert answer.is_success or answer.status_code in done, answer.text
    return answer


async def instance_reads_all(clients: list[httpx.AsyncClient], group: str, poller: httpx.AsyncClient) -> None:
    """Poll an instance at one broker, while its coordinator and the leaders of its partitions are any brokers."""
    instance = f"/consumers/{group}/instances/one"
    await until_ok(clients[0], "POST", f"/consumers/{group}", json={"name": "one", "auto.offset.reset": "earliest"})
    partitions = [{"topic": "produced-0", "partition": number} for number in range(3)]
    await until_ok(clients[1], "POST", f"{instance}/assignments", json={"partitions": partitions})
    times = [one | {"timestamp": "1970-01-01T00:00:00Z"} for one in partitions]
    await until_ok(clients[2], "POST", f"{instance}/positions", json={"timestamps": times})
    read: set[tuple[int, int]] = set()
    deadline = time.monotonic() + 60
    while len({partition for partition, _ in read}) < 3:
        answer = await poller.get(f"{instance}/records?timeout=5000")
        assert answer.status_code == 200, answer.text
        assert time.monotonic() < deadline, read
        read |= {(one["partition"], one["offset"]) for one in answer.json()}
    await until_ok(poller, "DELETE", instance)


async def subscriptions_make_topics(clients: list[httpx.AsyncClient]) -> None:
    """Subscribe at any broker, for groups with any coordinator; the controller creates the topic."""
    for number, http in itertools.product(range(4), clients):
        name = f"subscribed-{clients.index(http)}-{number}"
        await until_ok(http, "POST", f"/consumers/{name}", json={"name": "one"})
        await until_ok(http, "POST", f"/consumers/{name}/instances/one/subscription", json={"topics": [name]})
        assert len((await until_ok(http, "GET", f"/topics/{name}")).json()["partitions"]) == 3
        await until_ok(http, "DELETE", f"/consumers/{name}/instances/one")


async def fetched_where(http: httpx.AsyncClient, where: str) -> set[bytes]:
    """Fetch the values that the expression selects from all partitions of ``produced-0``, on any leader."""
    partitions = [{"topic": "produced-0", "partition": number, "offset": 0} for number in range(3)]
    body = {"partitions": partitions, "where": where, "max_wait_ms": 0}
    answer = await http.post("/fetch", json=body)
    assert answer.status_code == 200, answer.text
    found = set()
    for response in read_fetch_response(pa.py_buffer(answer.content)):
        assert response.error is None
        assert response.next_offset == response.high_watermark
        found |= {value for batch in response.records(0) for value in batch.column("value").to_pylist()}
    return found


async def lag_is_in_records_and_time(http: httpx.AsyncClient) -> None:
    lag = (await until_ok(http, "GET", "/groups/a/lag")).json()
    assert lag["records_behind"] == lag["total_lag"] >= 29
    assert all(each["lag_ms"] is not None for each in lag["partitions"])


@pytest.mark.long
async def test_three_brokers_answer_as_one(brokers: Brokers, tmp_path: Path):
    settings = {"offsets.topic.num.partitions": "3", "num.partitions": "3", "auto.create.topics.enable": "true"}
    servers = [await started(tmp_path / "data", environment(brokers, number, **settings)) for number in (1, 2, 3)]
    clients = [httpx.AsyncClient(base_url=server.url, timeout=60) for server in servers]
    try:
        cluster = (await clients[0].get("/v3/clusters")).json()["data"][0]["cluster_id"]
        for number, http in enumerate(clients):
            body = {"topic_name": f"made-{number}", "partitions_count": 3}
            assert (await until_ok(http, "POST", f"/v3/clusters/{cluster}/topics", json=body)).status_code == 201
        for number, http in enumerate(clients):
            topic = f"produced-{number}"
            body = {"records": [{"key": f"k{n}", "value": n} for n in range(30)]}
            answer = await until_ok(http, "POST", f"/topics/{topic}", json=body)
            codes = {one["error_code"] for one in answer.json()["offsets"]}
            while codes != {None}:  # some partitions had no leader
                assert codes <= {None, 50309, 50304}, answer.text
                await asyncio.sleep(0.1)
                answer = await until_ok(http, "POST", f"/topics/{topic}", json=body)
                codes = {one["error_code"] for one in answer.json()["offsets"]}
        for http in clients:
            for number in range(3):
                found = (await until_ok(http, "GET", f"/topics/produced-{number}")).json()
                assert {one["leader"] for one in found["partitions"]} == {1, 2, 3}
                assert sum(one["high_watermark"] for one in found["partitions"]) >= 30
        path = "/topics/produced-0/partitions/{}/records?max_wait_ms=0"
        for partition in range(3):
            answers = [await http.get(path.format(partition)) for http in clients]
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.text for answer in answers}) == 1
        assert [await fetched_where(http, '$ >= 28 or key == "k3"') for http in clients] == [{b"3", b"28", b"29"}] * 3
        for number, http in enumerate(clients):
            await instance_reads_all(clients, f"instances-{number}", http)
        offsets = {"offsets": [{"topic": "produced-0", "partition": 0, "offset": 1}]}
        for group in ("a", "b", "c", "d"):
            for http in clients:
                await until_ok(http, "POST", f"/groups/{group}/offsets", json=offsets)
        for http in clients:
            assert (await until_ok(http, "GET", "/groups")).json() == ["a", "b", "c", "d"]
            await lag_is_in_records_and_time(http)
        await subscriptions_make_topics(clients)
        # A broker dies, and the others continue as soon as there are new leaders.
        servers[2].kill()
        survivors = clients[:2]
        body = {"records": [{"value": json.dumps("x"), "partition": p} for p in range(3)]}
        for http in survivors:
            answer = await http.post("/topics/produced-0", json=body)
            assert {one["error_code"] for one in answer.json()["offsets"]} <= {None, 50309, 50304}, answer.text
    finally:
        for http in clients:
            await http.aclose()
        for server in servers:
            server.kill()


@pytest.mark.long
async def test_every_broker_knows_a_topic_that_was_just_created(brokers: Brokers, tmp_path: Path):
    """Find a new topic, new partitions, and the offsets topic (created by the first group) at each broker without a
    retry.
    """
    settings = {"offsets.topic.num.partitions": "3", "offsets.topic.replication.factor": "5"}
    servers = [await started(tmp_path / "data", environment(brokers, number, **settings)) for number in (1, 2, 3)]
    clients = [httpx.AsyncClient(base_url=server.url, timeout=60) for server in servers]
    try:
        cluster = (await clients[0].get("/v3/clusters")).json()["data"][0]["cluster_id"]
        controller = (await clients[0].get("/cluster")).json()["controller_id"]
        others = [http for number, http in enumerate(clients, start=1) if number != controller]
        for name in ("one", "two", "three"):
            body = {"topic_name": name, "partitions_count": 3}
            assert (await until_ok(clients[0], "POST", f"/v3/clusters/{cluster}/topics", json=body)).status_code == 201
            answers = await asyncio.gather(
                *(
                    http.get(f"/topics/{name}/partitions/{p}/records?max_wait_ms=0")
                    for http in clients
                    for p in range(3)
                ),
                *(http.post(f"/topics/{name}", json={"records": [{"value": 1, "partition": 2}]}) for http in clients),
                *(http.get(f"/metadata?topics={name}") for http in clients),
            )
            assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
            assert {one["error_code"] for each in answers[9:12] for one in each.json()["offsets"]} == {None}
            assert {each.json()["topics"][0]["error_code"] for each in answers[12:]} == {None}
        offsets = {"offsets": [{"topic": "one", "partition": 0, "offset": 0}]}
        for group in ("a", "b", "c", "d"):
            answer = await others[0].post(f"/groups/{group}/offsets", json=offsets)
            assert answer.status_code == 200, answer.text
        absent = await others[0].get("/topics/none/partitions/0/records")
        assert (absent.status_code, absent.json()["error_code"]) == (404, 40401)
    finally:
        for http in clients:
            await http.aclose()
        for server in servers:
            server.kill()
