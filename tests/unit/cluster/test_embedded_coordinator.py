"""The embedded coordinator: one cluster id for ever, a leader epoch that only rises."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from logstore.cluster import checked_file
from logstore.cluster.coordinator import BrokerEndpoint, KnownTopic, PartitionState
from logstore.cluster.embedded_coordinator import EmbeddedCoordinator
from logstore.errors import DataDirectoryError, IneligibleReplicaError
from logstore.filesystem import FileSystem

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.asynccontextmanager
async def started(data: Path) -> AsyncIterator[EmbeddedCoordinator]:
    coordinator = EmbeddedCoordinator(data, 0, FileSystem())
    await coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.stop()


def known(topic_id: UUID, *leader_epochs: int) -> KnownTopic:
    return KnownTopic(topic_id.hex, topic_id, leader_epochs)


async def elected(data: Path, above: int) -> int:
    async with started(data) as coordinator:
        return await leader_epoch(coordinator, above)


async def leader_epoch(coordinator: EmbeddedCoordinator, above: int) -> int:
    topic_id = uuid4()
    await coordinator.find_leaders([known(topic_id, above)])
    return coordinator.partition_state(topic_id, 0).leader_epoch


async def test_the_cluster_keeps_its_id(tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        async with started(tmp_path) as coordinator:
            ids.append(coordinator.cluster_id)
    assert ids[0] == ids[1] != ""


async def test_every_start_leads_with_a_higher_epoch(tmp_path: Path) -> None:
    assert [await elected(tmp_path, 0) for _ in range(3)] == [1, 2, 3]


async def test_an_epoch_is_above_all_that_the_tables_have_seen(tmp_path: Path) -> None:
    # The broker's own directory may be lost; the tables remember who led.
    assert await elected(tmp_path, 41) == 42
    assert await elected(tmp_path, 0) == 43


async def test_one_broker_leads_and_holds_every_partition_that_is_known(tmp_path: Path) -> None:
    topic_id = uuid4()
    async with started(tmp_path) as coordinator:
        await coordinator.find_leaders([known(topic_id, 6, 2)])
        assert coordinator.partition_state(topic_id, 1) == PartitionState(0, 7, (0,), (0,))
        for unknown in ((topic_id, 2), (uuid4(), 0)):
            assert coordinator.partition_state(*unknown) == PartitionState(-1, -1, (), ())
        assert coordinator.brokers == (0,)
        assert coordinator.brokers_by_id == {0: BrokerEndpoint(0, None, None)}


async def test_a_listener_hears_of_all_partitions_and_of_each_new_one_once(tmp_path: Path) -> None:
    first, second = uuid4(), uuid4()
    told: list[tuple[UUID, int, PartitionState]] = []
    async with started(tmp_path) as coordinator:
        await coordinator.find_leaders([known(first, 0, 0)])
        coordinator.listen(lambda *event: told.append(event))
        led = PartitionState(0, 1, (0,), (0,))
        assert told == [(first, 0, led), (first, 1, led)]
        coordinator.set_partitions(known(second, 0))
        coordinator.set_partitions(known(first, 0, 0, 0))
        coordinator.set_partitions(known(first, 0, 0, 0))
        assert told[2:] == [(second, 0, led), (first, 2, led)]
        coordinator.forget_topic(first)
        assert coordinator.partition_state(first, 0).leader == -1


async def test_a_data_directory_has_one_coordinator_until_it_stops(tmp_path: Path) -> None:
    async with started(tmp_path) as first:
        assert all(lock.held for lock in first.locks)
        with pytest.raises(DataDirectoryError, match="Another process is serving"):
            await EmbeddedCoordinator(tmp_path, 0, FileSystem()).start()
    async with started(tmp_path) as second:
        assert second.cluster_id == first.cluster_id


async def test_a_producer_id_is_issued_once_and_above_those_of_earlier_starts(tmp_path: Path) -> None:
    issued: list[int] = []
    for _ in range(2):
        async with started(tmp_path) as coordinator:
            await leader_epoch(coordinator, 0)
            issued += [await coordinator.new_producer_id() for _ in range(3)]
            assert all(coordinator.is_issued(one) for one in issued)
            assert not coordinator.is_issued(issued[-1] + 1)
    assert issued == sorted(set(issued))


async def test_a_directory_of_version_1_is_taken_over_and_earlier_releases_refuse_it_then(
    tmp_path: Path,
) -> None:
    cluster_file = tmp_path / "cluster.json"
    cluster_file.write_bytes(checked_file.encode({"cluster_id": "kept", "format_version": 1}))
    for _ in range(2):
        async with started(tmp_path) as coordinator:
            assert coordinator.cluster_id == "kept"
        # Releases of version 1 compare this number first, and refuse any other.
        assert json.loads(cluster_file.read_text())["format_version"] == 2


@pytest.mark.parametrize("content", ['{"cluster_id": "x", "format_version": 99}', "{", "[]"])
async def test_a_directory_of_another_kind_is_refused_and_let_go(tmp_path: Path, content: str) -> None:
    cluster_file = tmp_path / "cluster.json"
    cluster_file.write_text(content)
    with pytest.raises(DataDirectoryError):
        await elected(tmp_path, 0)
    cluster_file.unlink()
    assert await elected(tmp_path, 0) == 1


async def test_a_directory_of_a_cluster_is_not_one_nodes(tmp_path: Path) -> None:
    content = {"cluster_id": "c", "format_version": 2, "coordinator": "zookeeper"}
    (tmp_path / "cluster.json").write_bytes(checked_file.encode(content))
    with pytest.raises(DataDirectoryError, match=r"belongs to a cluster.*zookeeper\.connect"):
        await EmbeddedCoordinator(tmp_path, 0, FileSystem()).start()


async def test_one_node_is_its_own_controller_and_only_replica(tmp_path: Path) -> None:
    topic_id = uuid4()
    async with started(tmp_path) as coordinator:
        await coordinator.find_leaders([known(topic_id, 0)])
        state = coordinator.partition_state(topic_id, 0)
        assert (coordinator.controller_id, coordinator.has_lease) == (0, True)
        assert await coordinator.alter_partition(topic_id, 0, state, [0], broker_epochs={}) == state
        with pytest.raises(IneligibleReplicaError):
            await coordinator.alter_partition(topic_id, 0, state, [0, 1], broker_epochs={1: 1})


async def test_a_broker_whose_start_was_refused_owns_nothing(tmp_path: Path) -> None:
    """Such as one of a cluster that found no ZooKeeper: its lock file stays."""
    other = tmp_path / "brokers" / "4"
    other.mkdir(parents=True)
    (other / "lock").touch()
    async with started(tmp_path):
        pass
    (other / "journal").mkdir()
    with pytest.raises(DataDirectoryError, match=r"set broker\.id to 4"):
        async with started(tmp_path):
            pass
