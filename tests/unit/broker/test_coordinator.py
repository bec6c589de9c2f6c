"""The embedded coordinator: one cluster id for ever, a leader epoch that only rises."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from logstore.broker.coordinator import EmbeddedCoordinator, PartitionState, _encode
from logstore.errors import DataDirectoryError
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


async def elected(data: Path, above: int) -> int:
    async with started(data) as coordinator:
        return await leader_epoch(coordinator, above)


async def leader_epoch(coordinator: EmbeddedCoordinator, above: int) -> int:
    topic_id = uuid4()
    await coordinator.find_leaders({topic_id: [above]})
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
        await coordinator.find_leaders({topic_id: [6, 2]})
        assert coordinator.partition_state(topic_id, 1) == PartitionState(0, 7, (0,), (0,))
        for unknown in ((topic_id, 2), (uuid4(), 0)):
            assert coordinator.partition_state(*unknown) == PartitionState(-1, -1, (), ())
        assert coordinator.brokers == (0,)


async def test_a_listener_hears_of_all_partitions_and_of_each_new_one_once(tmp_path: Path) -> None:
    first, second = uuid4(), uuid4()
    told: list[tuple[UUID, int, PartitionState]] = []
    async with started(tmp_path) as coordinator:
        await coordinator.find_leaders({first: [0, 0]})
        coordinator.listen(lambda *event: told.append(event))
        led = PartitionState(0, 1, (0,), (0,))
        assert told == [(first, 0, led), (first, 1, led)]
        coordinator.set_partitions(second, 1)
        coordinator.set_partitions(first, 3)
        coordinator.set_partitions(first, 3)
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
    cluster_file.write_bytes(_encode({"cluster_id": "kept", "format_version": 1}))
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
