"""Runs `logstore job retention|compact|merge|vacuum` on a schedule, with one DAG per job. Its first task asks the job
which topics have work (`--dry-run`), and each of these gets its own mapped task.

Invariants: this file imports nothing of logstore. The jobs run as commands in the store's own environment, so the two
environments need nothing in common. Airflow's variables are read only when a task runs, never when this file is parsed.
Their values, and names of topics, are arguments of a command without a shell. A task that fails reports the reason in
the job's own words. docs/airflow.md has the variables, and the rules for jobs that meet.
"""

import json
import logging
import os
import signal
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param, Variable, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

JOBS = {
    "retention": ("*/15 * * * *", timedelta(hours=1), "Remove what retention or delete-records let go."),
    "compact": ("5 * * * *", timedelta(hours=6), "Keep the latest value of each key of compacted topics."),
    "merge": ("35 * * * *", timedelta(hours=6), "Join small segments that the store has not joined by itself."),
    "vacuum": ("35 3 * * *", timedelta(hours=6), "Delete files that no reader needs any more."),
}
#: The pool from which mapped tasks take slots. It must exist: airflow pools set logstore 2 "jobs of logstore".
POOL = os.environ.get("LOGSTORE_AIRFLOW_POOL", "default_pool")
#: Airflow allows 1,024 mapped tasks by default. More topics than this share tasks.
TASKS_MAX = 500
#: The exit code of a job for wrong arguments, after which a retry is of no use.
USAGE = 2

log = logging.getLogger(__name__)


class Job:
    """A command under way; its progress goes to the task's log, line by line."""

    def __init__(self, job: str, topics: list[str], *options: str) -> None:
        data = Variable.get("logstore_data", default=None)
        if not data:
            raise AirflowFailException("no data directory: set the Airflow variable logstore_data")
        command, url = Variable.get("logstore_command", default="logstore"), Variable.get("logstore_url", default="")
        names = [argument for topic in topics for argument in ("--topic", topic)]
        store = ["--url", url] if url else []
        self._arguments = [command, "job", job, "--data", data, *names, *store, *options, "--json"]
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> list[dict[str, Any]]:
        """Run the job; return the report of each topic.

        Raises AirflowFailException with the job's own line if the job refuses its arguments.
        """
        log.info("%s", " ".join(self._arguments))
        line = ""
        with tempfile.TemporaryFile("w+") as output:
            self._process = subprocess.Popen(  # noqa: S603 - the command is the operator's choice, and no shell reads it
                self._arguments, stdout=output, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            try:
                assert self._process.stderr
                for line in self._process.stderr:
                    log.info("%s", line.rstrip())
                code = self._process.wait()
            finally:
                self.stop()
            output.seek(0)
            text = output.read()
        if code == USAGE:
            raise AirflowFailException(line.strip())
        try:
            # If spark-submit runs the job, Spark's own lines come before the report.
            return json.loads(text[text.index("{\n") :])["topics"]
        except ValueError:
            raise AirflowException(f"the job ended with code {code} and without a report: {line.strip()}") from None

    def stop(self) -> None:
        """End the job and its JVM if it is under way: its topic is then as before or as after one of its commits."""
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


@task
def topics_with_work(job: str, params: dict[str, Any]) -> list[list[str]]:
    """Return the topics of each mapped task; none for a dry run, which ends here."""
    globs = params["topics"] or Variable.get("logstore_topics", default=["*"], deserialize_json=True)
    if not (isinstance(globs, list) and globs and all(isinstance(glob, str) for glob in globs)):
        raise AirflowFailException(f'the Airflow variable logstore_topics is {globs!r}, not a list like ["a-*", "b"]')
    reports = Job(job, globs, "--dry-run").run()
    names = []
    for report in reports:
        if report["error"] or report["partitions"] or report["deleted_files"]:
            log.info("%s would work on %s: %s", job, report["topic"], _summary(report))
        else:
            reasons = sorted({waiting["message"] for waiting in report["waiting"]})
            log.info("%s has nothing to do in %s: %s", job, report["topic"], "; ".join(reasons))
            if job != "vacuum":  # vacuum also makes the log remember removals for long enough
                continue
        names.append(report["topic"])
    size = -(-len(names) // TASKS_MAX)
    return [] if params["dry_run"] else [names[at : at + size] for at in range(0, len(names), size or 1)]


def _summary(report: dict[str, Any]) -> str:
    if report["error"]:
        return str(report["error"])
    if report["deleted_files"] is not None:
        return f"{report['deleted_files']} files of {report['deleted_bytes']} bytes"
    before, after = report["before"] or {}, report["after"] or {}
    numbers = (f"{before.get(name)} to {after.get(name, '?')} {name}" for name in ("segments", "records", "bytes"))
    return f"partitions {report['partitions']}, {', '.join(numbers)}"


class LogstoreJob(BaseOperator):
    """One run of a job on some topics."""

    def __init__(self, *, job: str, topics: list[str], **others: Any) -> None:
        super().__init__(**others)
        self.job, self.topics = job, topics
        self._running: Job | None = None

    def execute(self, context: Any) -> None:  # noqa: ARG002 - Airflow's signature
        """Run the job. Raises AirflowException with the job's own message for each topic that failed."""
        self._running = Job(self.job, self.topics)
        reports = self._running.run()
        for report in reports:
            log.info("%s of %s: %s", self.job, report["topic"], _summary(report))
        failed = [f"{report['topic']}: {report['error']}" for report in reports if report["error"]]
        if failed:
            raise AirflowException("; ".join(failed))

    def on_kill(self) -> None:
        """Stop the job when the task is stopped by hand or has timed out."""
        if self._running:
            self._running.stop()


for job, (schedule, timeout, description) in JOBS.items():
    with DAG(
        dag_id=f"logstore_{job}",
        description=description,
        schedule=schedule,
        start_date=datetime(2026, 1, 1, tzinfo=UTC),
        # A run works on the present state. A missed run needs no catching up, and two at a time would only overtake
        # each other.
        catchup=False,
        max_active_runs=1,
        # Each may start its own Spark.
        max_active_tasks=2,
        # The pause is Airflow's default_task_retry_delay.
        default_args={"retries": 2, "execution_timeout": timeout},
        tags=["logstore"],
        params={
            "topics": Param(
                None,
                type=["null", "array"],
                items={"type": "string"},
                title="Topics",
                description="Names and globs, for this run; none: those of the Airflow variable logstore_topics.",
            ),
            "dry_run": Param(
                default=False,
                type="boolean",
                title="Dry run",
                description="Only say in the log of topics_with_work what would be done.",
            ),
        },
    ):
        LogstoreJob.partial(task_id=job, job=job, pool=POOL, map_index_template="{{ ', '.join(task.topics) }}").expand(
            topics=topics_with_work(job)
        )
