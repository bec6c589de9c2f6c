"""The store's log during a block of a test."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import structlog


@contextmanager
def captured_logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """Yield the events logged in this block, of every level."""
    filtering = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(0))
    try:
        with structlog.testing.capture_logs() as logs:
            yield logs
    finally:
        structlog.configure(wrapper_class=filtering)
