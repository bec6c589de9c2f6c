"""The logging of this process, which a test may set up and must restore for the tests after it."""

import contextlib
import logging
from collections.abc import Iterator

import structlog


@contextlib.contextmanager
def logging_put_back() -> Iterator[None]:
    """Restore structlog and every logger of the standard library after the block.

    Handlers of pytest come and go by themselves, with their original formatters: pytest adds them to loggers that do
    not propagate, and PySpark's own loggers give each handler another formatter. A new logger keeps only handlers that
    do nothing.
    """
    before = {logger: _state(logger) for logger in _loggers()}
    formatters = {handler: handler.formatter for handler in filter(_is_pytests, logging.root.handlers)}
    config = structlog.get_config()
    try:
        yield
    finally:
        structlog.configure(**config)
        for logger in _loggers():
            silent = [handler for handler in logger.handlers if isinstance(handler, logging.NullHandler)]
            handlers, logger.level, logger.propagate, logger.disabled = before.get(
                logger, (silent, logging.NOTSET, True, False)
            )
            logger.handlers[:] = [*filter(_is_pytests, logger.handlers), *handlers]
        for handler, formatter in formatters.items():
            handler.setFormatter(formatter)
        logging.root.manager._clear_cache()  # type: ignore[attr-defined]  # what is enabled, by level


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(logger for logger in known if isinstance(logger, logging.Logger))]


def _state(logger: logging.Logger) -> tuple[list[logging.Handler], int, bool, bool]:
    handlers = [handler for handler in logger.handlers if not _is_pytests(handler)]
    return handlers, logger.level, logger.propagate, logger.disabled


def _is_pytests(handler: logging.Handler) -> bool:
    return type(handler).__module__.startswith("_pytest")
