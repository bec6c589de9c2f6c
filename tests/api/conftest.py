from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api import listening
from tests.api.api_client import ApiClient, running_api
from tests.api.real_server import RealServer
from tests.support.virtual_time import ON_VIRTUAL_TIME


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ON_VIRTUAL_TIME


@pytest.fixture(params=["tcp", "tls"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test over each transport of ``listening``: plain TCP and TLS."""
    monkeypatch.setattr(listening, "over_tls", request.param == "tls")
    return request.param


@pytest.fixture
async def api(tmp_path: Path, anyio_backend: Any) -> AsyncIterator[ApiClient]:
    """Yield a client of a store that this test alone uses."""
    async with running_api(tmp_path / "data") as client:
        yield client


@pytest.fixture(scope="module")
async def shared_api(tmp_path_factory: pytest.TempPathFactory, anyio_backend: Any) -> AsyncIterator[ApiClient]:
    """Yield one store for all tests of a module; each leaves no trace, or has its own topic."""
    data = tmp_path_factory.mktemp("shared") / "data"
    async with running_api(data, max_request_size=8 << 20) as client:
        await client.create_topic("t", partitions=2, max_message_bytes="1000")
        await client.create_topic("compacted", cleanup_policy="compact")
        await client.create_topic("untouched")
        yield client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Yield a server in its own process, behind a real socket."""
    with RealServer(tmp_path_factory.mktemp("server") / "data", max_request_size=1_000_000) as running:
        running.create_topic("t")
        yield running
