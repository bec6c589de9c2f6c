"""Python workers of Spark: the packages that they need, the beginning of a task, errors as one line."""

import gc
import os
import platform
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec

#: Modules needed by every worker that reads or writes topics: executors, and the workers in which Spark plans.
NEEDED = ("numpy", "pyarrow", "msgspec", "cachetools", "google_crc32c")
# A worker has few, and the connection to Spark is one of the first.
_DESCRIPTORS = 64


def require_packages() -> None:
    """Raise ImportError in one line if this Python lacks a package."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        _hide_traceback()
        raise ImportError(
            f'format("logstore") needs {", ".join(missing)}, which {sys.executable} on {platform.node()} lacks: '
            "pip install 'delta-logstore[delta]' where executors run and where the driver runs, or name another Python "
            "for Spark's workers in PYSPARK_PYTHON"
        )


def begin_task() -> None:
    """Prepare this worker for a task; call it before the task reads its input. Outside a worker it does nothing."""
    if not _is_worker():
        return
    _spare_modules()
    _acknowledge_input()


def _spare_modules() -> None:
    """Exclude the objects of imported modules from garbage collection, once in the life of a worker.

    A worker of Spark 4.2 collects garbage after each task: that takes 80 ms of CPU, which the next steps of the query
    lack, if the modules are scanned each time.
    """
    if gc.get_freeze_count():
        return
    for name in NEEDED:
        import_module(name)
    gc.freeze()


def _acknowledge_input() -> None:
    """Acknowledge at once what Spark has sent to this worker so far.

    Spark 4.2 sends a task over TCP in two small pieces, its command and its input. The second one waits until the first
    is acknowledged (Nagle's algorithm), and by default Linux does that 40 ms later.
    """
    quick_ack = getattr(socket, "TCP_QUICKACK", None)  # Linux has it
    if quick_ack is None:
        return
    for descriptor in range(_DESCRIPTORS):
        with suppress(OSError):
            # ``fromfd`` of anything but a socket leaves a descriptor open.
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, quick_ack, 1)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End a worker on our own error with its message alone, without Python's traceback."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] == "logstore":
            _hide_traceback()
        raise


def _is_worker() -> bool:
    from pyspark import SparkFiles

    return bool(SparkFiles._is_running_on_worker)  # noqa: SLF001 - no public name


def _hide_traceback() -> None:
    if _is_worker():
        # Spark reads this when it reports the error, after which this process ends.
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
