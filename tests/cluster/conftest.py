"""A ZooKeeper for all tests of a file, and a fresh cluster of brokers for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from logstore.cluster.zookeeper_server import ZooKeeperEnsemble
from tests.support.cluster_states import TICK_MS, Brokers, brokers_on


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Run a ZooKeeper of one server."""
    alone = ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), tick_ms=TICK_MS)
    alone.start()
    yield alone
    alone.stop()


@pytest.fixture
async def brokers(ensemble: ZooKeeperEnsemble, tmp_path: Path) -> AsyncIterator[Brokers]:
    async with brokers_on(ensemble.connect, tmp_path) as found:
        yield found
