"""Consumer instances over restarts of the store, and a model of several that share a group."""

import asyncio
import random
from pathlib import Path

import pytest

from logstore.broker.context import INTERNAL
from tests.api.api_client import ApiClient, running_api
from tests.api.instance_client import InstanceClient, create

pytestmark = pytest.mark.anyio

SETTINGS = {"group_initial_rebalance_delay_ms": 0, "consumer_request_timeout_ms": 50}


def again(api: ApiClient, instance: InstanceClient) -> InstanceClient:
    return InstanceClient(api, instance.group, instance.name)


async def test_an_instance_goes_on_where_it_began_or_behind_its_last_commit(tmp_path: Path):
    async with running_api(tmp_path, **SETTINGS) as api:
        await api.create_topic("t", partitions=3)
        for partition in range(3):
            await api.produce("t", ["old"] * 2, partition=partition)
        instance = await create(api, auto_offset_reset="latest")
        await instance.assign(0, 1, 2)
        for partition in range(3):
            await api.produce("t", [f"{partition} a", f"{partition} b"], partition=partition)
        assert len(await instance.values(6)) == 6
        await instance.commit((1, 2))
        at = {"topic": "t", "partition": 2}
        await instance.did("/positions", {"offsets": [{**at, "offset": 1}]})
        await instance.commit((2, 3))
        await instance.did("/positions", {"offsets": [{**at, "offset": 3}]})
    async with running_api(tmp_path, **SETTINGS) as api:
        instance = again(api, instance)
        assert await instance.assigned() == [("t", 0), ("t", 1), ("t", 2)]
        # Where it began to read; behind its commit; where it was sent to last.
        assert sorted(await instance.values(4)) == ["0 a", "0 b", "1 b", "2 b"]
        assert (await api.post("/consumers/g", json={"name": "c"})).status_code == 409
        assert (await api.delete(instance.path)).status_code == 204
    async with running_api(tmp_path, **SETTINGS) as api:
        assert (await again(api, instance).get("/assignments")).status_code == 404


async def test_members_keep_their_partitions_over_a_restart_without_a_rebalance(tmp_path: Path):
    async with running_api(tmp_path, **SETTINGS) as api:
        await api.create_topic("t", partitions=2)
        both = [await create(api, name, auto_offset_reset="latest") for name in "ab"]
        for instance in both:
            await instance.subscribe("t")
        while [len(await instance.assigned()) for instance in both] != [1, 1]:
            await asyncio.gather(*(instance.poll(50) for instance in both))
        held = [await instance.assigned() for instance in both]
        generation = api.app.state.api.groups.describe(INTERNAL, "g").generation
        for partition in range(2):
            await api.produce("t", [partition], partition=partition)
    async with running_api(tmp_path, **SETTINGS) as api:
        both = [again(api, instance) for instance in both]
        # With latest and without a commit: where they began to read is in their records.
        values = [await instance.values(1) for instance in both]
        assert values == [[partition] for ((_, partition),) in held]
        assert [await instance.assigned() for instance in both] == held
        assert api.app.state.api.groups.describe(INTERNAL, "g").generation == generation
        await api.broker.add_partitions(INTERNAL, "t", 3)
        await api.produce("t", ["third"], partition=2)
        for _ in range(100):
            polled = await asyncio.gather(*(instance.poll(100) for instance in both))
            if any(record["value"] == "third" for records in polled for record in records):
                return
        raise AssertionError("a partition that was added is nobody's")


@pytest.mark.parametrize("seed", range(3))
async def test_several_instances_pass_over_no_record(tmp_path: Path, seed: int):
    """Instances come, go, read, commit and are left, over restarts. What was committed was read; all is read at last."""
    random_ = random.Random(seed)
    partitions, produced = 3, 0
    read: dict[int, set[int]] = {partition: set() for partition in range(partitions)}
    names: set[str] = set()
    for life in range(3):
        async with running_api(tmp_path, **SETTINGS, consumer_max_poll_interval_ms=5_000) as api:
            if life == 0:
                await api.create_topic("t", partitions=partitions)
            for _ in range(14):
                match random_.choice(["produce", "poll", "poll", "poll", "commit", "come", "go"]):
                    case "produce":
                        await api.produce("t", [produced] * 3, partition=random_.randrange(partitions))
                        produced += 1
                    case "come" if len(names) < 3:
                        name = f"i{life}-{random_.randrange(10**6)}"
                        await (await create(api, name)).subscribe("t")
                        names.add(name)
                    case "go" if names:
                        name = random_.choice(sorted(names))
                        names.discard(name)
                        assert (await api.delete(f"/consumers/g/instances/{name}")).status_code == 204
                    case "poll" if names:
                        polled = await asyncio.gather(*(InstanceClient(api, "g", n).poll(100) for n in sorted(names)))
                        for record in (record for records in polled for record in records):
                            read[record["partition"]].add(record["offset"])
                    case "commit" if names:
                        await InstanceClient(api, "g", random_.choice(sorted(names))).post("/offsets")
                committed = await committed_offsets(api)
                for partition, offset in committed.items():
                    missing = set(range(offset)) - read[partition]
                    assert not missing, f"committed and not read: {missing}"
    async with running_api(tmp_path, **SETTINGS) as api:
        for name in names:
            await api.delete(f"/consumers/g/instances/{name}")
        last = await create(api, "last")
        await last.subscribe("t")
        ends = api.end_offsets("t")
        for _ in range(60):
            if all(set(range(end)) <= read[partition] for partition, end in enumerate(ends)):
                return
            for record in await last.poll(300):
                read[record["partition"]].add(record["offset"])
        raise AssertionError((ends, read))


async def committed_offsets(api: ApiClient) -> dict[int, int]:
    answer = await api.get("/groups/g/offsets")
    return {entry["partition"]: entry["offset"] for entry in answer.json()["offsets"]} if answer.is_success else {}
