"""The context of a job: its session, clock, progress and options."""

from dataclasses import dataclass

from compaction_jobs.applications import SparkApplication
from compaction_jobs.report import Progress
from compaction_jobs.throttle import Throttle
from logstore.clock import Clock
from logstore.limits import MIB
from logstore.table_files import TableFiles

#: A topic with more planned bytes than this is compacted by Spark.
HERE_BYTES_MAX = 16 * 1024 * MIB


@dataclass(frozen=True, slots=True)
class JobContext:
    """The context. With ``full``, vacuum also deletes foreign files that no commit names. A topic with more planned
    bytes than ``here_bytes_max`` is compacted by Spark. ``throttle`` bounds reads and writes of data files together.
    """

    spark: SparkApplication
    progress: Progress
    clock: Clock
    dry_run: bool = False
    full: bool = False
    here_bytes_max: int = HERE_BYTES_MAX
    throttle: Throttle | None = None

    def paced(self, files: TableFiles) -> TableFiles:
        """Return ``files``, throttled to the speed of the job."""
        return files if self.throttle is None else files.paced(self.throttle)

    @property
    def pace_of_tasks(self) -> float | None:
        """Bytes per second for each of Spark's tasks, one per core. Raises SparkStartError."""
        if self.throttle is None:
            return None
        return self.throttle.bytes_per_second / self.spark.session.sparkContext.defaultParallelism
