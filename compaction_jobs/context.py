"""What a job works with."""

from dataclasses import dataclass

from compaction_jobs.applications import SparkApplication
from compaction_jobs.report import Progress
from logstore.clock import Clock


@dataclass(frozen=True, slots=True)
class JobContext:
    """``full`` is vacuum's: orphans, too."""

    spark: SparkApplication
    progress: Progress
    clock: Clock
    dry_run: bool = False
    full: bool = False
