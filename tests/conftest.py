"""What every test starts from: none of this machine's own settings."""

import logging
import os

import pytest
import structlog

# What the store logs is only of interest where a test asks for it.
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@pytest.fixture(autouse=True)
def no_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith("LOGSTORE_"):
            monkeypatch.delenv(variable)
