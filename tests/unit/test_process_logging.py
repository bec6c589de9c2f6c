"""Logging that a test sets up in this process ends with the test."""

import logging
import logging.config

import pytest
import structlog
import uvicorn.config
from pyspark.logger import PySparkLogger

from logstore.observability import configure_logging
from tests.support.process_logging import logging_put_back


def test_logging_is_put_back() -> None:
    before = structlog.get_config()
    root = logging.getLogger()
    level, own = root.level, logging.NullHandler()
    root.addHandler(own)
    try:
        with logging_put_back():
            configure_logging("debug", "json")
            logging.config.dictConfig(uvicorn.config.LOGGING_CONFIG)
            logging.getLogger("new.of.this.test").addHandler(logging.StreamHandler())
            assert own not in root.handlers
        assert own in root.handlers
        assert (root.level, structlog.get_config()) == (level, before)
        assert not logging.getLogger("uvicorn").handlers
        assert logging.getLogger("uvicorn").propagate
        assert not logging.getLogger("new.of.this.test").handlers
    finally:
        root.removeHandler(own)


def test_handlers_of_pytest_keep_their_formatters(caplog: pytest.LogCaptureFixture) -> None:
    """Add a handler as when a query of Spark has failed and pytest has found the logger that reports it."""
    with logging_put_back():
        PySparkLogger("SQLQueryContextLogger").addHandler(caplog.handler)
    logging.getLogger("test").warning("%s for all", "one")
    assert caplog.text.startswith("WARNING"), "not JSON"


def test_a_test_that_sets_up_logging() -> None:
    configure_logging("debug", "json")


def test_logging_set_up_by_one_test_is_gone_in_the_next() -> None:
    assert not [handler for handler in logging.getLogger().handlers if type(handler) is logging.StreamHandler]
    assert structlog.get_config()["wrapper_class"] is not structlog.stdlib.BoundLogger
