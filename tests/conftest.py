"""What every test starts from: none of this machine's own settings."""

import logging
import os
from pathlib import Path

import pytest
import structlog

SPARK_TESTS = Path(__file__).parent / "spark"

# What the store logs is only of interest where a test asks for it.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith("LOGSTORE_"):
            monkeypatch.delenv(variable)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of several processes one gets a whole file, with the servers that its tests share, and one all of Spark."""
    group = "spark" if SPARK_TESTS in item.path.parents else item.path.name
    item.add_marker(pytest.mark.xdist_group(group))
