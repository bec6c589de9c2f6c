"""The process of ``logstore serve --jobs``: ``python -m compaction_jobs.background``, started by ``background_jobs``.

It reads one line (``JobsOptions``) and writes a line (``JobRun``) for each pass of a job. All other output, including
Spark's, goes to stderr. It works until its input ends: the store has ended, in whatever way, or wants it to end. Jobs
can be interrupted anywhere, so those under way get only a moment.

Two kinds of work run side by side, with Kafka's pauses: retention and vacuum 30 s after the start, and then every
``log.retention.check.interval.ms``; key compaction of the dirtiest topics, ``log.cleaner.threads`` at once, until none
is dirty enough, and again after ``log.cleaner.backoff.ms``.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import BinaryIO, Final

import msgspec
import structlog
from rich.console import Console

from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.due_topics import DueTopics, OpenTopics, dirtiest_first
from compaction_jobs.jobs import JOBS, run_job
from compaction_jobs.report import Progress, TopicReport
from compaction_jobs.storage_clock import StorageClock
from compaction_jobs.throttle import Throttle
from compaction_jobs.topics import JobTopic
from logstore.background_jobs import JobRun, JobsOptions
from logstore.errors import LogStoreError
from logstore.observability import configure_logging
from logstore.table_root import open_root

log = structlog.stdlib.get_logger(__name__)

#: Kafka's default of log.initial.task.delay.ms. The first pass then sees what a store rolls after its start.
INITIAL_DELAY_S: Final = 30.0
#: A tenth of the weight of the store's threads, so that jobs still progress under full load of the store.
_NICENESS: Final = 10
#: Seconds that jobs under way get to end properly.
_LAST_WORK_S: Final = 2.0
#: The order matters: vacuum deletes what retention removes, unless a delay keeps it. The store merges by itself.
_UPKEEP: Final = ("retention", "vacuum")

#: A due topic with the mark of its log.
_Due = tuple[JobTopic, int | None]


class BackgroundJobs:
    """The passes over a store's topics. ``report`` receives the result of each; ``stopping`` cuts them short."""

    def __init__(self, options: JobsOptions, report: Callable[[JobRun], None], stopping: threading.Event) -> None:
        self._options = options
        self._report = report
        self._stopping = stopping
        self._root = open_root(options.data)
        self._clock = StorageClock(self._root)
        topics = OpenTopics(self._root, options.topic_defaults)
        self._due = {job: DueTopics(topics) for job in JOBS}
        self._spark = _SharedSpark()
        rate = options.io_max_bytes_per_second
        self._throttle = None if rate is None else Throttle(rate)

    def keep_up(self) -> None:
        """Run retention and vacuum until ``stopping``."""
        interval_s = self._options.retention_check_interval_ms / 1000
        pause_s = min(INITIAL_DELAY_S, interval_s)
        while not self._stopping.wait(pause_s):
            for job in _UPKEEP:
                self.upkeep_pass(job)
            pause_s = interval_s

    def clean(self) -> None:
        """Run key compaction until ``stopping``."""
        while not self._stopping.is_set():
            if not self.cleaner_pass():
                self._stopping.wait(self._options.cleaner_backoff_ms / 1000)

    def upkeep_pass(self, job: str) -> JobRun:
        """Run a job on each topic that is due."""
        began = time.monotonic()
        with self._spark.used() as spark:
            reports = [self._run(job, found, spark) for found in self._take(job)]
        return self._finish(job, began, reports)

    def cleaner_pass(self) -> bool:
        """Compact the dirtiest topics, as many as there are threads; return True if any changed."""
        began = time.monotonic()
        dirty, clean = dirtiest_first(self._take("compact"), self._clock.now_ms())
        dirtiest = dirty[: self._options.cleaner_threads]
        with self._spark.used() as spark, ThreadPoolExecutor(self._options.cleaner_threads) as threads:
            reports = [self._run("compact", found, spark) for found in clean]
            reports += threads.map(lambda found: self._run("compact", found, spark), dirtiest)
        return bool(self._finish("compact", began, reports).changed)

    def _take(self, job: str) -> list[_Due]:
        try:
            return self._due[job].take(self._clock.now_ms())
        except (LogStoreError, OSError) as error:
            self._report(JobRun(job, 0.0, failed={"(all)": str(error)}))
            return []

    def _run(self, job: str, found: _Due, spark: SparkApplication) -> TopicReport | None:
        topic, mark = found
        if self._stopping.is_set():
            return None
        context = JobContext(spark, Progress(Console(file=sys.stderr)), self._clock, throttle=self._throttle)
        try:
            reports = run_job(job, [topic], context, self._options.url).topics
        except Exception as error:  # a fault in one topic must not stop the work on others
            log.exception("job.unforeseen", job=job, topic=topic.name)
            reports = (TopicReport(topic.name, error=f"{type(error).__name__}: {error}"),)
        report = reports[0] if reports else None
        self._due[job].ran(topic, mark, report, self._clock.now_ms())
        return report

    def _finish(self, job: str, began: float, reports: Sequence[TopicReport | None]) -> JobRun:
        done = [report for report in reports if report]
        run = JobRun(
            job,
            round(time.monotonic() - began, 3),
            tuple(
                report.topic for report in done if report.error is None and (report.versions or report.deleted_files)
            ),
            {report.topic: report.error for report in done if report.error is not None},
        )
        self._report(run)
        return run


class _SharedSpark:
    """One Spark application shared by all current work. It ends with the last user, which frees its JVM's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._application = SparkApplication("jobs")

    @contextmanager
    def used(self) -> Iterator[SparkApplication]:
        with self._lock:
            self._users += 1
        try:
            yield self._application
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._application.__exit__(None, None, None)
                    self._application = SparkApplication("jobs")


def main() -> None:
    output = _own_output()
    line = sys.stdin.buffer.readline()
    if not line:
        return
    options = msgspec.json.decode(line, type=JobsOptions)
    os.nice(_NICENESS)
    configure_logging("warning", "console")
    writing, stopping = threading.Lock(), threading.Event()

    def report(run: JobRun) -> None:
        with writing:
            output.write(msgspec.json.encode(run) + b"\n")
            output.flush()

    jobs = BackgroundJobs(options, report, stopping)
    work = [jobs.keep_up, *([jobs.clean] if options.cleaner_enable else [])]
    threading.excepthook = _end_all
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    sys.stdin.buffer.read()  # until the store closes it, or is gone
    stopping.set()
    end = time.monotonic() + _LAST_WORK_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    os._exit(0)  # do not wait for threads of jobs under way; a JVM ends with its input


def _end_all(fault: threading.ExceptHookArgs) -> None:
    """End the process after a thread's fault, which would leave its jobs undone; the store starts it again."""
    threading.__excepthook__(fault)
    os._exit(1)


def _own_output() -> BinaryIO:
    """Return standard output for this module only: other output, including the JVM's, goes to stderr."""
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return output


if __name__ == "__main__":
    main()
