"""What every test starts from: none of this machine's own settings."""

import logging
import os

import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# What the store logs is only of interest where a test asks for it.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith("LOGSTORE_"):
            monkeypatch.delenv(variable)


# What takes longest begins first; the many short ones fill what is left of the processes' time.
_FIRST = ("tests/spark/", "tests/faults/", "tests/concurrency/", "tests/stateful/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def turn(item: pytest.Item) -> int:
        return next((at for at, folder in enumerate(_FIRST) if item.nodeid.startswith(folder)), len(_FIRST))

    items.sort(key=turn)


class Scheduling(LoadFileScheduling):
    """Of several processes one gets a whole file, with the servers that its tests share, and one all of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    config.option.loadscopereorder = False  # by number of tests, which says little of their time
    return Scheduling(config, log)
