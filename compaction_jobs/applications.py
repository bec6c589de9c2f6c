"""The Spark session of a job, started on first use, and the errors of a session.

Under ``spark-submit`` the session is the submitted application's, with its settings. Elsewhere
``logstore.spark.session`` creates one. A session that already runs in this process is used, and not stopped.
"""

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from logstore.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkApplication:
    """``with SparkApplication("retention") as spark: spark.session``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._session: SparkSession | None = None
        self._owned = False
        self._starting = threading.Lock()

    @property
    def session(self) -> "SparkSession":
        """The session. Raises SparkStartError, SparkJarsError."""
        with self._starting:
            if self._session is None:
                self._session, self._owned = _start(self._name)
                if self._owned:
                    _leave_interrupts_to_python()
            return self._session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None and self._owned:
            if isinstance(error, KeyboardInterrupt):
                # Messages of tasks that are stopped halfway are of no use.
                self._session.sparkContext.setLogLevel("OFF")
            self._session.stop()


def _start(name: str) -> "tuple[SparkSession, bool]":
    from logstore.spark.session import require_pyspark, session

    require_pyspark()
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        return active, False
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return _submitted(name), True
    return session(app_name=f"logstore {name}"), True


def _submitted(name: str) -> "SparkSession":
    from pyspark.sql import SparkSession

    from logstore.spark.shipping import ship_package

    spark = SparkSession.builder.appName(f"logstore {name}").getOrCreate()
    ship_package(spark.sparkContext)
    return spark


def _leave_interrupts_to_python() -> None:
    """Replace PySpark's handler of Ctrl-C, which calls the JVM within a call to it: pages of tracebacks, and no end."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # py4j need not log the KeyboardInterrupt again.
    logging.getLogger().addHandler(logging.NullHandler())


@contextmanager
def spark_errors(doing: str) -> Iterator[None]:
    """Turn every exception of Spark into a StorageError of one line; our own errors in executors keep their message."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise StorageError(f"{doing} failed: {_one_line(str(error))}") from error


def _one_line(text: str) -> str:
    # A Python traceback from an executor ends with the exception; Spark's own text has the reason in its first line,
    # which py4j puts after one of its own.
    found = re.findall(r"^(?:logstore\.errors\.\w+|\w*Error): (.+)$", text, re.MULTILINE)
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    reasons = found or [line for line in lines if line and not line.startswith("An error occurred while calling")]
    return reasons[0] if reasons else text.strip() or "no message"
