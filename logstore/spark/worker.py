"""What runs in Python workers of Spark: the packages it needs, and its errors as one line."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

#: Modules that every worker needs which reads or writes topics: executors, and the workers in which Spark plans.
NEEDED = ("numpy", "pyarrow", "msgspec", "cachetools", "google_crc32c")


def require_packages() -> None:
    """ImportError in one line if this Python lacks a package."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        _hide_traceback()
        raise ImportError(
            f'format("logstore") needs {", ".join(missing)}, which {sys.executable} on {platform.node()} lacks: '
            "pip install 'logstore[delta]' where executors run and where the driver runs, or name another Python for "
            "Spark's workers in PYSPARK_PYTHON"
        )


@contextmanager
def one_line_errors() -> Iterator[None]:
    """An error of ours ends a worker with its message alone, and without Python's traceback."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "logstore":
            _hide_traceback()
        raise


def _hide_traceback() -> None:
    from pyspark import SparkFiles

    if SparkFiles._is_running_on_worker:  # noqa: SLF001 - no public name
        # Spark looks at it when it tells the error, and this process ends with that.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
