"""Yields the rows of a task, and raises an error if they end early.

When the stage before the writer fails, or Spark ends the task, Spark closes the stream of rows to the Python worker.
pyarrow takes that for the end of the stream, and the writer would see a task with fewer rows (Spark 4.2). It would
store the last of them as a request, and the next try of the task, with all rows, would find its key used for others.

After the last batch Spark's JVM sends an end mark to the worker, which PySpark reads when the writer has returned. So
there is another byte to read if the rows are complete, and none if they were cut off.
"""

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TypeVar

from logstore.errors import LogStoreError

T = TypeVar("T")

#: The function of ``pyspark.worker`` that serves a task, and its name for the stream from the JVM.
_MAIN, _STREAM = "main", "infile"


class RowsCutOffError(LogStoreError):
    """Raised if the rows of a task ended early: the task fails, and the failure before it is the reason."""


def whole(batches: Iterable[T]) -> Iterator[T]:
    """Yield ``batches``; raise RowsCutOffError after the last one if more should have come."""
    yield from batches
    if _is_cut_off():
        raise RowsCutOffError(
            "The rows of this task ended early: an earlier step of the task failed, or Spark ended the task"
        )


def _is_cut_off() -> bool:
    """Return True if nothing follows the rows; False outside a worker, or in one of another form."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - the stream is a local variable of PySpark's worker
    while frame is not None:
        if frame.f_code.co_name == _MAIN and _STREAM in frame.f_locals:
            peek = getattr(frame.f_locals[_STREAM], "peek", None)
            return peek is not None and not peek(1)
        frame = frame.f_back
    return False
