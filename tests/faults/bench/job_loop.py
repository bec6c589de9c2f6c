"""Retention and key compaction in a loop, in a process that may be killed; all runs share one Spark.

``python -m tests.faults.bench.job_loop DATA HISTORY --job retention --job compact`` runs the jobs on all topics, one
after the other, until its standard input is closed; then twice more, as ``final-jobs``: the second run removes the
tombstones that the first has kept. Compaction is done by Spark and by the job itself, in turns. After each round it
prints a line ``{job: {topic: commits}}``.
"""

import argparse
import io
import itertools
import json
import select
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from compaction_jobs.applications import SparkApplication
from compaction_jobs.context import JobContext
from compaction_jobs.jobs import run_job, topics_of
from compaction_jobs.report import Progress
from logstore.clock import SystemClock
from logstore.spark import session
from logstore.table_root import open_root
from tests.faults.bench.history import Recorder
from tests.support import faulty_server

_FINAL_ROUNDS = 2
#: Small jobs spend most of their time on compilation: the JVM's quick compiler is enough for them.
QUICK = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("history", type=Path)
    parser.add_argument("--job", action="append", required=True)
    parser.add_argument("--pause", type=float, default=0.5)
    given = parser.parse_args()
    # Files that the jobs sync survive a power cut.
    faulty_server.install(given.data.absolute())
    if "compact" in given.job:
        session(app_name="bench", master="local[2]", config=QUICK)
    commits: dict[str, Counter[str]] = {job: Counter() for job in given.job}
    with SparkApplication("bench") as spark, Recorder(given.history) as recorder:
        here = JobContext(spark, Progress(Console(file=io.StringIO())), SystemClock())
        by_spark = replace(here, here_bytes_max=0)
        turns = itertools.cycle((by_spark, here))
        process, final = "jobs", 0
        while final < _FINAL_ROUNDS:
            context = next(turns)
            if final or select.select([sys.stdin], [], [], given.pause)[0]:
                process, final = "final-jobs", final + 1
            for job in given.job:
                run_once(process, job, given.data, context, recorder, commits[job])
            print(json.dumps(commits), flush=True)


def run_once(
    process: str, job: str, data: Path, context: JobContext, recorder: Recorder, commits: Counter[str]
) -> None:
    """Run one job on all topics. A topic that fails is ``info``, because earlier commits of the job remain."""
    number = recorder.invoke(process, "job", job=job)
    report = run_job(job, topics_of(job, open_root(data), [], {}), context)
    errors = {}
    for topic in report.topics:
        commits[topic.topic] += len(topic.versions)
        if topic.error is not None:
            errors[topic.topic] = topic.error
    recorder.complete(
        number,
        process,
        "job",
        "info" if errors else "ok",
        job=job,
        versions={topic.topic: list(topic.versions) for topic in report.topics},
        errors=errors,
    )


if __name__ == "__main__":
    main()
