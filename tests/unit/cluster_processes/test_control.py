"""A command asks the process of a running cluster to start a broker or ZooKeeper."""

import asyncio
import stat
from pathlib import Path

import pytest

from logstore.cluster_processes.broker_process import BrokerEntry
from logstore.cluster_processes.control import ask_to_start, ask_to_start_zookeeper, controlled
from logstore.cluster_processes.record import ClusterProcessesError, Directory
from logstore.cluster_processes.zookeeper_process import ZooKeeperEntry

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    # This path is longer than the name of a socket may be.
    found = Directory(tmp_path / ("d" * 120))
    found.home.mkdir(parents=True)
    return found


async def start(broker_id: int) -> BrokerEntry:
    if broker_id > 3:
        raise ClusterProcessesError(f"There is no broker {broker_id}.")
    return BrokerEntry(broker_id, f"http://h:{broker_id}", 1000 + broker_id)


async def start_zookeeper() -> ZooKeeperEntry:
    return ZooKeeperEntry("h:1", 1)


async def test_a_broker_is_asked_for(directory: Directory) -> None:
    directory.control.write_text("left by a process that was killed")
    async with controlled(directory.control, start, start_zookeeper):
        assert stat.S_IMODE(directory.control.stat().st_mode) == 0o600
        both = await asyncio.gather(*(asyncio.to_thread(ask_to_start, directory, number) for number in (1, 2)))
        assert both == [BrokerEntry(1, "http://h:1", 1001), BrokerEntry(2, "http://h:2", 1002)]
        with pytest.raises(ClusterProcessesError, match=r"There is no broker 7\."):
            await asyncio.to_thread(ask_to_start, directory, 7)
    assert not directory.control.exists()


async def test_zookeeper_is_asked_for(directory: Directory) -> None:
    answers = [ZooKeeperEntry("h:2181", 7), ClusterProcessesError("ZooKeeper is running.")]

    async def once() -> ZooKeeperEntry:
        answer = answers.pop(0)
        if isinstance(answer, ClusterProcessesError):
            raise answer
        return answer

    async with controlled(directory.control, start, once):
        assert await asyncio.to_thread(ask_to_start_zookeeper, directory) == ZooKeeperEntry("h:2181", 7)
        with pytest.raises(ClusterProcessesError, match=r"ZooKeeper is running\."):
            await asyncio.to_thread(ask_to_start_zookeeper, directory)


async def test_no_cluster_runs_here(directory: Directory, tmp_path: Path) -> None:
    for unknown in (directory, Directory(tmp_path / "nowhere")):
        with pytest.raises(ClusterProcessesError, match=r"No cluster runs on .*: start it with logstore cluster start"):
            await asyncio.to_thread(ask_to_start, unknown, 1)
        with pytest.raises(ClusterProcessesError, match="No cluster runs on"):
            await asyncio.to_thread(ask_to_start_zookeeper, unknown)


async def test_the_cluster_stops_while_a_broker_starts(directory: Directory) -> None:
    begun = asyncio.Event()

    async def never(_: int) -> BrokerEntry:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with controlled(directory.control, never, start_zookeeper):
        asking = asyncio.create_task(asyncio.to_thread(ask_to_start, directory, 1))
        await begun.wait()
    with pytest.raises(ClusterProcessesError, match="was stopped meanwhile"):
        await asking
