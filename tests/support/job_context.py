"""The context of a job in a test: with the test's clock, and without output."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.report import Progress
from tests.support.manual_clock import ManualClock


@contextmanager
def job_context(now_ms: int, **options: Any) -> Iterator[JobContext]:
    progress = Progress(Console(file=io.StringIO()))
    with SparkApplication("test") as spark:
        yield JobContext(spark, progress, ManualClock(now_ms), **options)
