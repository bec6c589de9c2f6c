"""``logstore job ...``: the Spark applications that keep topics small. They need the data directory, not the store."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from logstore.cli.command_group import USAGE, CommandGroup, fail
from logstore.cli.options import JsonOption, UrlOption, given_url


class _JobGroup(CommandGroup):
    extra = "spark"
    extra_in_words = "Spark"


# A whole application of its own under spark-submit.
app = typer.Typer(
    cls=_JobGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Run retention, compaction or vacuum with Spark.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", help="The store's data directory. [default: the setting data]", show_default=False
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", metavar="GLOB", help="A topic, or a glob such as 'web-*'; may be repeated. [default: all]"
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]


@app.command(
    epilog="""\b
Examples:
  logstore job retention --data ./data
  logstore job retention --data ./data --topic 'web-*' --dry-run
"""
)
def retention(
    ctx: typer.Context,
    data: DataOption = None,
    topic: TopicOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Remove old segments.

    retention.ms, retention.bytes and deleted records decide which.
    """
    _run(ctx, "retention", data, topic, url, dry_run=dry_run, json=json)


@app.command(
    epilog="""\b
Examples:
  logstore job compact --data ./data
  logstore job compact --data ./data --topic users --json
"""
)
def compact(
    ctx: typer.Context,
    data: DataOption = None,
    topic: TopicOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Keep the latest record of each key.

    It works on topics whose cleanup.policy has compact.
    """
    _run(ctx, "compact", data, topic, url, dry_run=dry_run, json=json)


@app.command(
    epilog="""\b
Examples:
  logstore job vacuum --data ./data
  logstore job vacuum --data ./data --full
"""
)
def vacuum(
    ctx: typer.Context,
    data: DataOption = None,
    topic: TopicOption = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also delete files older than 7 days that no commit ever named.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete files that left the table.

    They stay on disk for file.delete.delay.ms after that.
    """
    _run(ctx, "vacuum", data, topic, url, dry_run=dry_run, json=json, full=full)


def _run(
    ctx: typer.Context,
    job: str,
    data: Path | None,
    patterns: list[str] | None,
    url: str | None,
    *,
    dry_run: bool,
    json: bool,
    full: bool = False,
) -> None:
    from rich.console import Console

    from compaction_jobs.applications import SparkApplication
    from compaction_jobs.context import JobContext
    from compaction_jobs.jobs import run_job, topics_of
    from compaction_jobs.report import Progress, print_summary
    from compaction_jobs.storage_clock import StorageClock
    from logstore.client.local_store import running_store
    from logstore.errors import DataDirectoryError, InvalidConfigError, InvalidRequestError, UnknownTopicError
    from logstore.settings import load_settings
    from logstore.table_root import open_root

    try:
        settings = load_settings(data=data)
        root = open_root(settings.data)
        topics = topics_of(job, root, patterns or (), settings.topic_defaults)
    except (DataDirectoryError, InvalidConfigError, InvalidRequestError, UnknownTopicError) as error:
        fail(error.message, USAGE)
    with SparkApplication(job) as spark:
        context = JobContext(spark, Progress(Console(stderr=True)), StorageClock(root), dry_run=dry_run, full=full)
        report = run_job(job, topics, context, running_store(settings.data) or given_url(ctx, url))
    if json:
        sys.stdout.write(f"{report.as_json()}\n")
    else:
        print_summary(report, Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000))
    if report.failed:
        raise typer.Exit(1)
