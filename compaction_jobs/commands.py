"""``logstore job ...``: the jobs that keep topics small. They need the data directory, not the store."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from logstore.command_line.command_group import USAGE, CommandGroup, fail
from logstore.command_line.options import JsonOption, UrlOption, given_path, given_url

#: The exit code of a run that passed over a topic because another run of the job was working on it. All else was done.
BUSY = 3


class _JobGroup(CommandGroup):
    extra = "delta"
    extra_in_words = "the packages for tables"


# This is a complete application under spark-submit.
app = typer.Typer(
    cls=_JobGroup,
    add_completion=False,
    no_args_is_help=True,
    help="Run retention, compaction, merge, vacuum or columns on the storage.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        parser=given_path,
        help="The store's data directory. [default: the setting data]",
        show_default=False,
    ),
]
TopicOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", metavar="GLOB", help="A topic, or a glob such as 'web-*'; may be repeated. [default: all]"
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]


def _size(text: str) -> int:
    from logstore.quantities import size_bytes

    try:
        return int(text) if text.isdecimal() else size_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


RateOption = Annotated[
    int | None,
    typer.Option(
        "--max-bytes-per-second",
        metavar="SIZE",
        parser=_size,
        help="Bytes to read and write at most, such as 50MiB. [default: log.cleaner.io.max.bytes.per.second]",
        show_default=False,
    ),
]


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
    max_bytes_per_second: RateOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Remove old segments.

    retention.ms, retention.bytes and deleted records decide which.
    """
    _run(ctx, "retention", data, topic, url, dry_run=dry_run, json=json, rate=max_bytes_per_second)


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
    max_bytes_per_second: RateOption = None,
    spark_above: Annotated[
        int | None,
        typer.Option(
            "--spark-above",
            metavar="SIZE",
            parser=_size,
            help="Leave a topic with more bytes to compact to Spark. [default: 16GiB]",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Keep the latest record of each key.

    It works on topics whose cleanup.policy has compact.
    """
    _run(
        ctx,
        "compact",
        data,
        topic,
        url,
        dry_run=dry_run,
        json=json,
        rate=max_bytes_per_second,
        spark_above=spark_above,
    )


@app.command(
    epilog="""\b
Examples:
  logstore job merge --data ./data
  logstore job merge --data ./data --topic 'web-*' --dry-run
"""
)
def merge(
    ctx: typer.Context,
    data: DataOption = None,
    topic: TopicOption = None,
    max_bytes_per_second: RateOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Join small segments.

    They become files of merge.target.bytes. A running store does this by itself; the job is for a backlog.
    """
    _run(ctx, "merge", data, topic, url, dry_run=dry_run, json=json, rate=max_bytes_per_second)


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
        bool,
        typer.Option("--full", help="Also delete files of other writers that no commit names and that are 7 days old."),
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete files that left the table.

    They stay on disk for file.delete.delay.ms after that.
    """
    _run(ctx, "vacuum", data, topic, url, dry_run=dry_run, json=json, full=full)


@app.command(
    epilog="""\b
Examples:
  logstore job columns --data ./data --dry-run
  logstore job columns --data ./data --topic flights --max-bytes-per-second 50MiB
"""
)
def columns(
    ctx: typer.Context,
    data: DataOption = None,
    topic: TopicOption = None,
    max_bytes_per_second: RateOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Fill declared columns in files from before.

    The newest files come first. Files of other writers are derived again from their values.
    """
    _run(ctx, "columns", data, topic, url, dry_run=dry_run, json=json, rate=max_bytes_per_second)


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
    rate: int | None = None,
    spark_above: int | None = None,
) -> None:
    from rich.console import Console

    from compaction_jobs.applications import SparkApplication
    from compaction_jobs.context import HERE_BYTES_MAX, JobContext
    from compaction_jobs.jobs import run_job, topics_of
    from compaction_jobs.report import Progress, print_summary
    from compaction_jobs.storage_clock import StorageClock
    from compaction_jobs.throttle import Throttle
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
    rate = rate or settings.log_cleaner_io_max_bytes_per_second
    with SparkApplication(job) as spark:
        context = JobContext(
            spark,
            Progress(Console(stderr=True)),
            StorageClock(root),
            dry_run=dry_run,
            full=full,
            here_bytes_max=HERE_BYTES_MAX if spark_above is None else spark_above,
            throttle=Throttle(rate) if rate else None,
        )
        running = running_store(settings.data)
        report = run_job(job, topics, context, given_url(ctx, url) if running is None else running.url)
    if json:
        sys.stdout.write(f"{report.as_json()}\n")
    else:
        print_summary(report, Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000))
    if report.failed:
        raise typer.Exit(1)
    if report.busy:
        raise typer.Exit(BUSY)
