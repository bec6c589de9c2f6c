"""What every test starts from: none of this machine's own settings."""

import logging
import os
from pathlib import Path

import pytest
import structlog

SPARK = Path(__file__).parent / "spark"

# What the store logs is only of interest where a test asks for it.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With several processes, all tests with Spark run in one of them: they share a JVM."""
    for item in items:
        if item.path.is_relative_to(SPARK):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith("LOGSTORE_"):
            monkeypatch.delenv(variable)
