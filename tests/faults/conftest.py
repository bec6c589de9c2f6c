"""A store for all tests of a module: starting a process costs more than most tests."""

from collections.abc import Iterator

import pytest

from benchmarks.free_port import free_port
from tests.support.served_topic import create_topic, delete_topic
from tests.support.server_process import FaultyServerProcess

QUEUED_BYTES_MAX = 8 << 20


@pytest.fixture(scope="module")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServerProcess]:
    data = tmp_path_factory.mktemp("store") / "data"
    size = str(QUEUED_BYTES_MAX)
    little = {"LOGSTORE_MAX_REQUEST_SIZE": size, "LOGSTORE_QUEUED_MAX_REQUEST_BYTES": size}
    with FaultyServerProcess(data, port=free_port(), environment=little) as server:
        yield server


@pytest.fixture
def store(_store: FaultyServerProcess) -> FaultyServerProcess:
    """Return the store, running whatever the test before has done to it, with an empty topic ``t`` that rolls on
    request.
    """
    if _store.process.poll() is not None:
        _store.start()
    _store.control("heal")
    delete_topic(_store.url)
    create_topic(_store.url, segment_ms="3600000")
    return _store
