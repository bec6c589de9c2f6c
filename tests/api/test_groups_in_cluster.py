"""A group's coordinator need not lead the partitions that it reads: ends and offsets are those of the leaders."""

from pathlib import Path

import pytest

from tests.api.instance_client import create
from tests.api.test_relay import fill, group_of
from tests.support.relaying import relaying_cluster

pytestmark = pytest.mark.anyio


async def test_a_commit_is_checked_against_the_leader_wherever_the_coordinator_is(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, partitions=2) as cluster:
        await fill(cluster, 3, partitions=2)
        for coordinator in (1, 2):
            path, http = f"/groups/{group_of(cluster, coordinator)}/offsets", cluster.running[1].http
            for partition in (0, 1):
                at = {"topic": "t", "partition": partition}
                assert (await http.post(path, json={"offsets": [{**at, "offset": 3}]})).status_code == 200
                answer = await http.post(path, json={"offsets": [{**at, "offset": 4}]})
                assert (answer.status_code, answer.json()["error_code"]) == (416, 41601)
                assert answer.headers["Logstore-High-Watermark"] == "3"


async def test_a_leader_that_is_away_refuses_no_commit(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, partitions=2) as cluster:
        await fill(cluster, 3, partitions=2)
        group = group_of(cluster, 1)
        await cluster.end(2)
        offsets = {"offsets": [{"topic": "t", "partition": 1, "offset": 4}]}
        answer = await cluster.running[1].http.post(f"/groups/{group}/offsets", json=offsets)
        assert answer.status_code == 200, answer.text


async def test_an_instance_begins_and_seeks_at_the_ends_that_leaders_report(tmp_path: Path):
    async with relaying_cluster(tmp_path, 1, 2, partitions=2) as cluster:
        await fill(cluster, 3, partitions=2)
        for coordinator in (1, 2):
            http = cluster.running[coordinator].http
            instance = await create(http, group=group_of(cluster, coordinator), auto_offset_reset="latest")
            await instance.assign(0, 1)
            body = {"records": [{"value": f"new-{partition}", "partition": partition} for partition in (0, 1)]}
            assert (await http.post("/topics/t", json=body)).status_code == 200
            assert sorted(await instance.values(2)) == ["new-0", "new-1"]
            end = 3 + coordinator
            for partition in (0, 1):
                at = {"topic": "t", "partition": partition}
                await instance.did("/positions", {"offsets": [{**at, "offset": end - 1}]})
                assert await instance.values(1) == [f"new-{partition}"]
                await instance.did("/positions/beginning", {"partitions": [at]})
                assert (await instance.values(end))[:3] == [0, 1, 2]
                await instance.did("/positions/end", {"partitions": [at]})
                assert await instance.poll(wait_ms=0) == []
                # Offsets beyond the end are taken, as in Kafka's protocol.
                beyond = await instance.post("/offsets", {"offsets": [{**at, "offset": end}]})
                assert beyond.status_code == 200, beyond.text
                await instance.did("/positions", {"offsets": [{**at, "offset": end + 1}]})
                await instance.did("/positions/end", {"partitions": [at]})
                assert await instance.commit((partition, end - 1))
