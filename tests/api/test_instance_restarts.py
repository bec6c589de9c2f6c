"""Consumer instances survive restarts of the store; a model describes several that share a group."""

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


async def test_an_instance_continues_where_it_began_or_after_its_last_commit(tmp_path: Path):
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
        # It continues where it began, after its commit, and where a seek sent it last.
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
        # The instances have latest and no commit: their records in the log say where they began to read.
        values = [await instance.values(1) for instance in both]
        assert values == [[partition] for ((_, partition),) in held]
        assert [await instance.assigned() for instance in both] == held
        assert api.app.state.api.groups.describe(INTERNAL, "g").generation == generation
        await api.broker.topics.changes.add_partitions(INTERNAL, "t", 3)
        await api.produce("t", ["third"], partition=2)
        for _ in range(100):
            polled = await asyncio.gather(*(instance.poll(100) for instance in both))
            if any(record["value"] == "third" for records in polled for record in records):
                return
        raise AssertionError("a partition that was added is nobody's")


class Sharing:
    """A model of a group of instances: the offsets of each partition that some instance has read."""

    def __init__(self, seed: int, partitions: int) -> None:
        self.random = random.Random(seed)
        self.read: dict[int, set[int]] = {partition: set() for partition in range(partitions)}
        self.names: set[str] = set()
        self.produced = 0

    async def act(self, api: ApiClient) -> None:
        match self.random.choice(["produce", "poll", "poll", "poll", "commit", "come", "go"]):
            case "produce":
                await api.produce("t", [self.produced] * 3, partition=self.random.randrange(len(self.read)))
                self.produced += 1
            case "come" if len(self.names) < 3:
                name = f"i{self.random.randrange(10**9)}"
                await (await create(api, name)).subscribe("t")
                self.names.add(name)
            case "go" if self.names:
                name = self.random.choice(sorted(self.names))
                self.names.discard(name)
                assert (await api.delete(f"/consumers/g/instances/{name}")).status_code == 204
            case "poll" if self.names:
                await self.poll(*(InstanceClient(api, "g", name) for name in sorted(self.names)))
            case "commit" if self.names:
                await InstanceClient(api, "g", self.random.choice(sorted(self.names))).post("/offsets")

    async def poll(self, *instances: InstanceClient) -> None:
        for records in await asyncio.gather(*(instance.poll(100) for instance in instances)):
            for record in records:
                self.read[record["partition"]].add(record["offset"])

    def require_read(self, ends: dict[int, int]) -> None:
        missing = {partition: set(range(end)) - self.read[partition] for partition, end in ends.items()}
        assert not any(missing.values()), f"committed and not read: {missing}"


@pytest.mark.parametrize("seed", range(3))
async def test_several_instances_pass_over_no_record(tmp_path: Path, seed: int):
    """Let instances come, go, read and commit, over restarts. Committed records were read, and all are read at last."""
    sharing = Sharing(seed, partitions=3)
    for life in range(3):
        async with running_api(tmp_path, **SETTINGS) as api:
            if life == 0:
                await api.create_topic("t", partitions=3)
            for _ in range(14):
                await sharing.act(api)
                sharing.require_read(await committed_offsets(api))
    async with running_api(tmp_path, **SETTINGS) as api:
        for name in sharing.names:
            await api.delete(f"/consumers/g/instances/{name}")
        last = await create(api, "last")
        await last.subscribe("t")
        for _ in range(60):
            await sharing.poll(last)
            if all(set(range(end)) <= sharing.read[at] for at, end in enumerate(api.end_offsets("t"))):
                return
        raise AssertionError((api.end_offsets("t"), sharing.read))


async def committed_offsets(api: ApiClient) -> dict[int, int]:
    answer = await api.get("/groups/g/offsets")
    return {entry["partition"]: entry["offset"] for entry in answer.json()["offsets"]} if answer.is_success else {}
