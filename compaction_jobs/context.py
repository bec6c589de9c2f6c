"""The context of a job: its session, clock, progress and options."""

from dataclasses import dataclass

from compaction_jobs.applications import SparkApplication
from compaction_jobs.report import Progress
from logstore.clock import Clock


@dataclass(frozen=True, slots=True)
class JobContext:
    """``full``: vacuum also deletes files that no commit ever named."""

    spark: SparkApplication
    progress: Progress
    clock: Clock
    dry_run: bool = False
    full: bool = False
