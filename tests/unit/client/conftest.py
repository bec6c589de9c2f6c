"""One real store for the client's tests."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from logstore.client.admin import Admin
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a running store, in which the first member of a group gets its partitions at once."""
    environment = {"LOGSTORE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"}
    with ServerProcess(tmp_path_factory.mktemp("client") / "data", environment=environment) as server:
        yield server.url


@pytest.fixture
def admin(store: str) -> Iterator[Admin]:
    with Admin(store) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin) -> str:
    """Create a topic with four partitions, and return its name."""
    name = f"t-{uuid4().hex[:12]}"
    admin.create_topic(name, partitions=4)
    return name
