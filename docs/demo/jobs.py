"""``logstore job compact`` and ``logstore job retention`` on one topic, in the Spark session that runs already."""

from pathlib import Path

from rich.console import Console

from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import Progress, Totals
from docs.demo.flights import DemoError
from logstore.clock import SystemClock
from logstore.settings import load_settings
from logstore.table_root import open_root


def run(job: str, data: Path, topic: str, url: str, logs: Path) -> Totals:
    """Run a job and return its totals; its output goes to ``logs``. Raises DemoError if it failed."""
    with (logs / "jobs.log").open("a") as log, SparkApplication(job) as spark:
        context = JobContext(spark, Progress(Console(file=log)), SystemClock())
        topics = topics_of(job, open_root(data), [topic], load_settings(data=data).topic_defaults)
        report = run_job(job, topics, context, url).topics[0]
    if report.error:
        raise DemoError(f"logstore job {job} --topic {topic}: {report.error}")
    return (report.before or Totals()) - (report.after or Totals())
