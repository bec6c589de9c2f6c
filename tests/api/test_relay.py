"""Any broker answers any request: what a client sees does not depend on the broker that it asks."""

import asyncio
import json
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from logstore.broker.context import INTERNAL
from logstore.cluster.cluster_state import PartitionState
from logstore.errors import LeaderNotAvailableError
from logstore.protocol.fetch_response import read_fetch_response
from logstore.protocol.headers import RELAYED_CONTEXT
from logstore.records.murmur2 import partition_for
from tests.api.api_client import ARROW, BINARY_V2, JSON_V2
from tests.support.eventually import eventually_async
from tests.support.relaying import RelayingCluster, relaying_cluster

pytestmark = pytest.mark.anyio

#: Headers that depend on the connection, or on the moment.
_OWN = {"date", "x-request-id"}


async def seen(cluster: RelayingCluster, method: str, path: str, **options) -> dict[int, tuple]:
    """Return the status, headers and body of each broker's answer."""
    headers = {"X-Request-Id": "r", "Host": "localhost", **options.pop("headers", {})}
    found = {}
    for number, running in cluster.running.items():
        answer = await running.http.request(method, path, headers=headers, **options)
        assert answer.headers["x-request-id"] == "r"
        shown = sorted((name, value) for name, value in answer.headers.multi_items() if name not in _OWN)
        found[number] = (answer.status_code, shown, answer.content)
    return found


async def same(cluster: RelayingCluster, method: str, path: str, **options) -> tuple[int, bytes]:
    """Return the status and body of the answer, after checking that it is the same at every broker."""
    found = await seen(cluster, method, path, **options)
    assert len({str(one) for one in found.values()}) == 1, found
    status, _, body = next(iter(found.values()))
    return status, body


async def fill(cluster: RelayingCluster, count: int = 3, partitions: int = 3) -> None:
    """Append ``count`` records to each partition of ``t``."""
    body = {"records": [{"key": "k", "value": n, "partition": p} for n in range(count) for p in range(partitions)]}
    answer = await cluster.running[1].http.post("/topics/t", json=body)
    assert answer.status_code == 200, answer.text
    assert {one["error_code"] for one in answer.json()["offsets"]} == {None}


def group_of(cluster: RelayingCluster, broker: int) -> str:
    """Return a group that ``broker`` coordinates."""
    at = sorted(cluster.running).index(broker)
    return next(name for n in range(100) if partition_for(name := f"g{n}", len(cluster.running)) == at)


async def test_records_are_produced_and_read_at_every_broker(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        for number, running in cluster.running.items():
            body = {"records": [{"value": f"{number}-{p}", "partition": p} for p in range(3)]}
            answer = await running.http.post("/topics/t", json=body)
            assert answer.status_code == 200, answer.text
            places = [(one["partition"], one["offset"]) for one in answer.json()["offsets"]]
            assert places == [(p, number - 1) for p in range(3)]
        for partition in range(3):
            status, body = await same(cluster, "GET", f"/topics/t/partitions/{partition}/records")
            assert status == 200
            assert [one["value"] for one in json.loads(body)] == [f"{number}-{partition}" for number in (1, 2, 3)]


READS = {
    "JSON": ("GET", "/topics/t/partitions/{p}/records", {"Accept": JSON_V2}, 200),
    "binary": ("GET", "/topics/t/partitions/{p}/records?offset=1&max_bytes=1", {"Accept": BINARY_V2}, 200),
    "Arrow": ("GET", "/topics/t/partitions/{p}/records?offset=0", {"Accept": ARROW}, 200),
    "head": ("HEAD", "/topics/t/partitions/{p}/records", {}, 200),
    "the end": ("GET", "/topics/t/partitions/{p}/records?offset=3&max_wait_ms=1", {}, 200),
    "beyond the end": ("GET", "/topics/t/partitions/{p}/records?offset=99", {}, 416),
    "offsets": ("GET", "/topics/t/partitions/{p}/offsets?timestamp=0", {}, 200),
    "offsets, v3": ("GET", "/v3/clusters/memory/topics/t/partitions/{p}/offset", {}, 200),
    "no such partition": ("GET", "/topics/t/partitions/77/records", {}, 404),
    "not a partition": ("GET", "/topics/t/partitions/+1/records", {}, 404),
    "no such topic": ("GET", "/topics/nowhere/partitions/{p}/records", {}, 404),
    "a bad parameter": ("GET", "/topics/t/partitions/{p}/records?offset=x", {}, 422),
    "an unknown parameter": ("GET", "/topics/t/partitions/{p}/records?%C3%A9=%20", {}, 422),
    "nothing acceptable": ("GET", "/topics/t/partitions/{p}/records", {"Accept": "image/png"}, 406),
    "another topic of the name": (
        "GET",
        "/topics/t/partitions/{p}/records",
        {"Logstore-Topic-Id": "00000000-0000-0000-0000-000000000001"},
        404,
    ),
    "a method that is not allowed": ("PUT", "/topics/t/partitions/{p}/records", {}, 405),
    "settings of a broker": ("GET", "/v3/clusters/memory/brokers/2/configs/broker.id", {}, 200),
}


async def test_every_broker_answers_a_read_as_the_leader(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster)
        for name, (method, path, headers, status) in READS.items():
            for partition in range(3):
                found, body = await same(cluster, method, path.format(p=partition), headers=headers)
                assert found == status, (name, body)
        _, body = await same(cluster, "GET", "/v3/clusters/memory/brokers/2/configs/broker.id")
        assert json.loads(body)["value"] == "2"
        status, body = await same(cluster, "POST", "/topics/t/partitions/1/delete-records", json={"before_offset": 2})
        assert (status, json.loads(body)) == (200, {"log_start_offset": 2})


async def test_groups_are_answered_by_their_coordinators(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster)
        for broker in cluster.running:
            group = group_of(cluster, broker)
            offsets = {"offsets": [{"topic": "t", "partition": broker - 1, "offset": 2}]}
            status, body = await same(cluster, "POST", f"/groups/{group}/offsets", json=offsets)
            assert status == 200, body
            status, body = await same(cluster, "GET", f"/groups/{group}/offsets")
            assert json.loads(body)["offsets"][0]["offset"] == 2
        status, _ = await same(cluster, "GET", "/groups/nobody/offsets")
        assert status == 404


async def test_a_fetch_of_several_leaders_waits_for_as_many_bytes_as_it_asks_for(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        http = cluster.running[1].http
        body = {
            "partitions": [{"topic": "t", "partition": p, "offset": 0} for p in range(3)],
            "max_wait_ms": 30_000,
            "min_bytes": 25_000,
            "max_bytes": 1_000_000,
        }
        waiting = asyncio.create_task(http.post("/fetch", json=body))
        for partition in (0, 1, 2):
            await asyncio.sleep(0.2)
            assert not waiting.done(), partition
            record = {"value": "x" * 10_000, "partition": partition}
            assert (await http.post("/topics/t", json={"records": [record]})).status_code == 200
        found = {one.index: one for one in read_fetch_response(pa.py_buffer((await waiting).content))}
        assert sorted(found) == [0, 1, 2], "all that there is"
        assert all(one.error is None for one in found.values())
        # When the wait ends, the answer has the records that exist.
        body |= {"min_bytes": 500_000, "max_wait_ms": 50}
        assert len(list(read_fetch_response(pa.py_buffer((await http.post("/fetch", json=body)).content)))) == 3


async def test_members_and_instances_reach_their_coordinator_through_any_broker(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster)
        one, two, three = (cluster.running[number].http for number in (1, 2, 3))
        group = group_of(cluster, 3)
        made = await one.post(
            f"/consumers/{group}", json={"name": "c", "auto.offset.reset": "earliest", "format": "json"}
        )
        assert made.status_code == 200, made.text
        assert made.json()["base_uri"].startswith(str(one.base_url))
        path = f"/consumers/{group}/instances/c"
        assert (await two.post(f"{path}/assignments", json={"partitions": [{"topic": "t", "partition": 2}]})).is_success
        records = await two.get(f"{path}/records", headers={"Accept": JSON_V2})
        assert records.status_code == 200, records.text
        assert [record["value"] for record in records.json()] == [0, 1, 2]
        assert (await three.delete(path)).status_code == 204


async def test_a_request_that_is_not_to_be_forwarded_names_the_leader(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster)
        one = cluster.running[1].http
        never = {"Logstore-Forward": "never"}
        answer = await one.get("/topics/t/partitions/1/records", headers=never)
        assert answer.status_code == 421
        body = answer.json()
        assert (body["error_code"], body["broker_id"], body["url"]) == (42102, 2, cluster.urls[2])
        assert (await one.get("/topics/t/partitions/0/records", headers=never)).status_code == 200
        group = group_of(cluster, 2)
        assert (await one.get(f"/groups/{group}/offsets", headers=never)).json()["broker_id"] == 2
        answer = await one.post("/topics/t/partitions/1", json={"records": [{"value": 1}]}, headers=never)
        assert (answer.status_code, answer.json()["broker_id"]) == (421, 2)
        both = {"records": [{"value": 1, "partition": p} for p in (0, 1)]}
        answer = await one.post("/topics/t", json=both, headers=never)
        assert [place["error_code"] for place in answer.json()["offsets"]] == [None, 42102]
        keys = [next(k for k in map(str, range(99)) if partition_for(f'"{k}"', 3) == p) for p in (0, 1)]
        both = {"records": [{"key": key, "value": 1} for key in keys]}
        answer = await one.post("/topics/t", json=both, headers=never)
        assert [place["error_code"] for place in answer.json()["offsets"]] == [None, 42102]
        answer = await one.get("/topics/t/partitions/0/records", headers={"Logstore-Forward": "always"})
        assert answer.status_code == 422


async def test_a_relayed_request_is_not_relayed_again(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster)
        log = cluster.topic("t", 2).partition(1)
        log.resign(9)
        # Broker 1 says that broker 2 leads, and broker 2 says that broker 1 does.
        view = cluster.cluster_states[2]
        other = PartitionState(1, 9, (1,), (1,))
        view.partition_state = lambda topic_id, partition: (
            other if (topic_id, partition) == (log.topic_id, 1) else cluster.states[topic_id, partition]
        )
        answer = await cluster.running[1].http.get("/topics/t/partitions/1/records")
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50304)
        answer = await cluster.running[1].http.post("/topics/t/partitions/1", json={"records": [{"value": 1}]})
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50304)


async def test_a_clients_claims_about_itself_are_not_trusted(tmp_path: Path):
    forged = {RELAYED_CONTEXT.decode(): INTERNAL.encode().decode()}
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        await fill(cluster, partitions=2)
        offset = {"records": [{"value": "x", "partition": 0}]}
        for running in cluster.running.values():
            answer = await running.http.post("/topics/__consumer_offsets", json=offset, headers=forged)
            assert answer.status_code == 400, answer.text


async def test_a_large_answer_streams_through(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        value = "x" * 900_000
        for _ in range(10):
            body = {"records": [{"value": value, "partition": 1}]}
            assert (await cluster.running[1].http.post("/topics/t", json=body)).status_code == 200
        path = "/topics/t/partitions/1/records?max_bytes=20000000&min_bytes=9000000"
        status, body = await same(cluster, "GET", path)
        assert status == 200
        assert [one["value"] == value for one in json.loads(body)] == [True] * 10


async def test_a_long_poll_waits_at_the_leader_and_ends_with_its_client(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        one = cluster.running[1].http
        path = "/topics/t/partitions/1/records?offset=0&max_wait_ms=20000"
        polling = asyncio.create_task(one.get(path))
        under_way = cluster.running[2].listener._server.server_state.tasks
        await eventually_async(lambda: len(under_way) == 1, "the poll is not at the leader")
        assert (await one.post("/topics/t", json={"records": [{"value": 1, "partition": 1}]})).status_code == 200
        assert [record["value"] for record in (await polling).json()] == [1]
        left = asyncio.create_task(one.get(path.replace("offset=0", "offset=1")))
        await eventually_async(lambda: len(under_way) == 1, "the poll is not at the leader")
        left.cancel()
        await eventually_async(lambda: not under_way, "the poll goes on without its client")


async def test_a_leader_that_is_gone(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        await fill(cluster, partitions=2)
        one = cluster.running[1].http
        group = group_of(cluster, 2)
        await cluster.end(2)
        answer = await one.get("/topics/t/partitions/1/records")
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50309), answer.text
        answer = await one.post("/topics/t/partitions/1", json={"records": [{"value": 1}]})
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50309), answer.text
        answer = await one.get(f"/groups/{group}/offsets")
        assert (answer.status_code, answer.json()["error_code"]) == (503, 50306), answer.text
        both = {"records": [{"value": 1, "partition": p} for p in (0, 1)]}
        answer = await one.post("/topics/t", json=both)
        assert [place["error_code"] for place in answer.json()["offsets"]] == [None, 50309]


async def test_a_fetch_of_several_leaders_has_all_their_records(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster)
        asked = {"partitions": [{"topic": "t", "partition": p, "offset": p} for p in (2, 0, 1)], "max_wait_ms": 0}
        found = await seen(cluster, "POST", "/fetch", json=asked)
        for status, _, body in found.values():
            assert status == 200, body
            answers = list(read_fetch_response(pa.py_buffer(body)))
            assert [answer.index for answer in answers] == [0, 1, 2]
            for answer, (partition, offset) in zip(answers, [(2, 2), (0, 0), (1, 1)], strict=True):
                assert answer.error is None
                records = pa.Table.from_batches(answer.records(offset))
                assert records["offset"].to_pylist() == list(range(offset, 3))
                assert (answer.high_watermark, answer.next_offset) == (3, 3), partition


async def test_a_fetch_of_several_leaders_waits_for_the_first_record(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        one = cluster.running[1].http
        asked = {"partitions": [{"topic": "t", "partition": p, "offset": 0} for p in range(3)], "max_wait_ms": 20_000}
        for partition in range(3):
            fetching = asyncio.create_task(one.post("/fetch", json=asked))
            waiting = [running.listener._server.server_state.tasks for running in cluster.running.values()]
            await eventually_async(lambda it=waiting: all(it), "not all leaders are asked to wait")
            body = {"records": [{"value": 1, "partition": partition}]}
            assert (await cluster.running[2].http.post("/topics/t", json=body)).status_code == 200
            (answer,) = read_fetch_response(pa.py_buffer((await fetching).content))
            assert answer.index == partition
            assert answer.error is None
            asked["partitions"][partition]["offset"] = 1
            await eventually_async(lambda it=waiting: not any(it), "somebody waits on")
        assert cluster.brokers[1].admission.answers.reserved == 0


async def test_a_fetch_reports_the_leaders_that_cannot_be_asked(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        await fill(cluster, partitions=2)
        await cluster.end(2)
        asked = {"partitions": [{"topic": "t", "partition": p, "offset": 0} for p in (0, 1)], "max_wait_ms": 5_000}
        answer = await cluster.running[1].http.post("/fetch", json=asked)
        here, there = read_fetch_response(pa.py_buffer(answer.content))
        assert here.error is None
        assert isinstance(there.error, LeaderNotAvailableError)


async def test_offsets_of_a_topic_come_from_their_leaders(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster, 5)
        for path in ("/topics/t", "/topics/t/partitions", "/topics/t/partitions/1"):
            status, body = await same(cluster, "GET", path)
            assert status == 200, body
        found = json.loads(body)
        assert (found["leader"], found["high_watermark"], found["log_end_offset"]) == (2, 5, 5)
        await cluster.end(2)
        answer = await cluster.running[1].http.get("/topics/t/partitions")
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert [one["high_watermark"] for one in found] == [5, -1, 5]


async def test_lags_resets_and_times_of_partitions_with_several_leaders(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster, 4)
        group = group_of(cluster, 2)
        body = {"offsets": [{"topic": "t", "partition": p, "offset": p} for p in range(3)]}
        assert (await same(cluster, "POST", f"/groups/{group}/offsets", json=body))[0] == 200
        for status, _, found in (await seen(cluster, "GET", f"/groups/{group}/lag")).values():
            # The age of the oldest record differs from broker to broker, because each reads its own clock.
            partitions = json.loads(found)["partitions"]
            assert (status, [one["lag"] for one in partitions]) == (200, [4, 3, 2])
            assert [one["records_behind"] for one in partitions] == [4, 3, 2]
            assert all(one["lag_ms"] >= 0 for one in partitions)
        _, found = await same(cluster, "GET", f"/v3/clusters/memory/consumer-groups/{group}/lag-summary")
        assert json.loads(found)["total_lag"] == 9
        times = {"partitions": [{"partition": p, "timestamp": 0} for p in range(3)]}
        status, found = await same(cluster, "POST", "/topics/t/offsets-for-times", json=times)
        assert status == 200, found
        assert [one["offset"] for one in json.loads(found)["offsets"]] == [0, 0, 0]
        for target, ends in (({"to": "latest"}, 4), ({"to_timestamp": 0}, 0)):
            _, found = await same(cluster, "POST", f"/groups/{group}/reset-offsets", json={**target, "dry_run": True})
            assert [one["offset"] for one in json.loads(found)["offsets"]] == [ends] * 3, found


async def test_lists_of_groups_have_those_of_all_brokers(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster)
        names = [f"g{n:02}" for n in range(12)]
        for name in names:
            body = {"offsets": [{"topic": "t", "partition": 1, "offset": 1}]}
            assert (await cluster.running[1].http.post(f"/groups/{name}/offsets", json=body)).status_code == 200
        assert {partition_for(name, 3) for name in names} == {0, 1, 2}
        _, body = await same(cluster, "GET", "/groups")
        assert json.loads(body) == names
        listed, after = [], ""
        while after is not None:
            _, body = await same(cluster, "GET", f"/group-listings?limit=5{after and '&after=' + after}")
            page = json.loads(body)
            listed += [(one["group"], one["total_lag"]) for one in page["groups"]]
            after = page["next"]
        assert listed == [(name, 8) for name in names]
        _, body = await same(cluster, "GET", "/v3/clusters/memory/consumer-groups?page_size=100")
        assert [one["consumer_group_id"] for one in json.loads(body)["data"]] == names
        answer = await cluster.running[2].http.post("/delete-groups", json={"groups": [*names, "nobody"]})
        codes = [(one["group"], one["error_code"]) for one in answer.json()["groups"]]
        assert codes == [*((name, None) for name in names), ("nobody", 40405)]
        assert (await same(cluster, "GET", "/groups"))[1] == b"[]"


async def test_a_roll_seals_the_records_of_all_leaders(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        for number, running in cluster.running.items():
            await fill(cluster)
            answer = await running.http.post("/topics/t/roll")
            assert answer.status_code == 200, answer.text
            sealed = [(one["partition"], one["sealed_offset"]) for one in answer.json()["sealed_offsets"]]
            assert sealed == [(p, 3 * number) for p in range(3)]
            assert (await running.http.post("/topics/t/refresh")).json()["version"] >= answer.json()["version"]
        status, body = await same(cluster, "GET", "/topics/t/partitions/1/records?offset=6")
        assert (status, len(json.loads(body))) == (200, 3)


@pytest.mark.parametrize("begin", ["latest", "earliest"])
async def test_a_stream_of_events_has_the_records_of_all_leaders(tmp_path: Path, begin: str):
    async with relaying_cluster(tmp_path, 1, 2, 3) as cluster:
        await fill(cluster, 2)
        for running in cluster.running.values():
            seen_of: dict[int, list[int]] = {0: [], 1: [], 2: []}
            path = f"/topics/t/events?from={begin}"
            async with running.http.stream("GET", path, headers={"Accept": "text/event-stream"}) as stream:
                assert stream.status_code == 200
                lines = stream.aiter_lines()
                assert (await anext(lines)).startswith("retry:")
                before = [cluster.topic("t", p + 1).partition(p).high_watermark for p in range(3)]
                await fill(cluster, 1)
                firsts = [0, 0, 0] if begin == "earliest" else before
                while any(len(seen_of[p]) < before[p] + 1 - firsts[p] for p in range(3)):
                    line = await asyncio.wait_for(anext(lines), 10)
                    if line.startswith("data:"):
                        record = json.loads(line[5:])
                        seen_of[record["partition"]].append(record["offset"])
            assert seen_of == {p: list(range(firsts[p], before[p] + 1)) for p in range(3)}


async def test_a_body_that_is_refused_is_not_asked_for(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        url = httpx.URL(cluster.urls[1])
        reader, writer = await asyncio.open_connection(url.host, url.port)
        group = group_of(cluster, 2)
        head = f"POST /groups/{group}/offsets HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 9000000\r\nExpect: 100-continue\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert answer.startswith(b"HTTP/1.1 413 "), answer
        assert b"connection: close" in answer.lower()
        writer.close()
        reader, writer = await asyncio.open_connection(url.host, url.port)
        body = json.dumps({"offsets": [{"topic": "t", "partition": 1, "offset": 0}]}).encode()
        writer.write(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_connection_that_breaks_leaves_the_outcome_of_a_write_open(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2) as cluster:
        one = cluster.running[1].http
        join = {"member_id": "m", "protocols": [{"name": "range", "metadata": ""}], "session_timeout_ms": 6000}
        for method, path, body, status, code in (
            # A new group waits for more members before it answers the first.
            ("POST", f"/groups/{group_of(cluster, 2)}/join", join, 504, 50401),
            ("GET", "/topics/t/partitions/1/records?max_wait_ms=9000", None, 503, 50309),
        ):
            under_way = cluster.running[2].listener._server.server_state
            asking = asyncio.create_task(one.request(method, path, json=body))
            await eventually_async(lambda it=under_way: it.tasks, "the request is not there")
            await asyncio.sleep(0.1)
            for connection in list(under_way.connections):
                if connection.relaying_broker is not None:
                    connection.transport.abort()
            answer = await asking
            assert (answer.status_code, answer.json()["error_code"]) == (status, code), answer.text
