"""Runs `logstore job retention|compact|vacuum` on a schedule: one DAG per job, one mapped task per glob of topic names.

Invariants: this file imports nothing of logstore. The jobs run as commands of the store's own environment, so the two
environments need nothing in common. Airflow's variables are read only when a task runs, never when this file is parsed.
Their values reach the shell as environment variables, never as text of the command. docs/airflow.md has the variables,
and the rules for jobs that meet.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param, Variable, task
from airflow.sdk.exceptions import AirflowFailException

JOBS = {
    "retention": ("*/15 * * * *", timedelta(hours=1), "Remove what retention or delete-records let go."),
    "compact": ("5 * * * *", timedelta(hours=6), "Keep the latest value of each key of compacted topics."),
    "vacuum": ("35 3 * * *", timedelta(hours=6), "Delete files that no reader needs any more."),
}

# `exec`: a task that is stopped or timed out ends the job itself, not a shell around it.
COMMAND = 'exec "$JOB_COMMAND" job {job} --data "$JOB_DATA" --topic "$JOB_TOPIC" ${{JOB_URL:+--url "$JOB_URL"}} --json'


@task
def environments(params: dict[str, Any]) -> list[dict[str, str]]:
    """The environment of each glob's command."""
    data = Variable.get("logstore_data", default=None)
    if not data:
        raise AirflowFailException("no data directory: set the Airflow variable logstore_data")
    topics = params["topics"] or Variable.get("logstore_topics", default=["*"], deserialize_json=True)
    if not (isinstance(topics, list) and topics and all(isinstance(topic, str) for topic in topics)):
        raise AirflowFailException(f'the Airflow variable logstore_topics is {topics!r}, not a list like ["a-*", "b"]')
    command, url = Variable.get("logstore_command", default="logstore"), Variable.get("logstore_url", default="")
    return [{"JOB_COMMAND": command, "JOB_DATA": data, "JOB_URL": url, "JOB_TOPIC": topic} for topic in topics]


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
        # Each is a Spark application of its own.
        max_active_tasks=2,
        tags=["logstore"],
        params={
            "topics": Param(
                None,
                type=["null", "array"],
                items={"type": "string"},
                description="Globs of topic names, for this run; none: those of the Airflow variable logstore_topics.",
            )
        },
    ):
        BashOperator.partial(
            task_id=job,
            bash_command=COMMAND.format(job=job),
            append_env=True,
            do_xcom_push=False,
            map_index_template="{{ task.env['JOB_TOPIC'] }}",
            execution_timeout=timeout,
        ).expand(env=environments())
