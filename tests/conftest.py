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


class Scheduling(LoadFileScheduling):
    """Of several processes one gets a whole file, with the servers that its tests share, and one all of Spark."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)
