"""The embedded coordinator: one cluster id for ever, a leader epoch that only rises."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from logstore.broker.coordinator import EmbeddedCoordinator, PartitionState
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
        return await coordinator.elect(above=above)


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


async def test_one_broker_leads_and_holds_every_partition(tmp_path: Path) -> None:
    async with started(tmp_path) as coordinator:
        epoch = await coordinator.elect(above=6)
        assert coordinator.partition_state(uuid4(), 3) == PartitionState(0, epoch, (0,), (0,))
        assert coordinator.brokers == (0,)


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
            await coordinator.elect(above=0)
            issued += [await coordinator.new_producer_id() for _ in range(3)]
            assert all(coordinator.is_issued(one) for one in issued)
            assert not coordinator.is_issued(issued[-1] + 1)
    assert issued == sorted(set(issued))


@pytest.mark.parametrize("content", ['{"cluster_id": "x", "format_version": 99}', "{", "[]"])
async def test_a_directory_of_another_kind_is_refused_and_let_go(tmp_path: Path, content: str) -> None:
    cluster_file = tmp_path / "cluster.json"
    cluster_file.write_text(content)
    with pytest.raises(DataDirectoryError):
        await elected(tmp_path, 0)
    cluster_file.unlink()
    assert await elected(tmp_path, 0) == 1
