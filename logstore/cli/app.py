"""The commands by name."""

from typing import Annotated

import typer

from compaction_jobs import commands as job_commands
from logstore import __version__
from logstore.cli import (
    cluster,
    cluster_adopt,
    consume,
    doctor,
    group,
    journal,
    produce,
    profile,
    segment,
    serve,
    status,
    topic,
    topic_columns,
    topic_copy,
    topic_erase,
    topic_reassign,
    topic_table,
)
from logstore.command_line.command_group import CommandGroup
from logstore.command_line.options import ProfileOption, UrlOption
from logstore.command_line.profiles import chosen_profile, option_defaults

app = typer.Typer(
    name="logstore",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from logstore.cli.distributions import installation

        found = installation()
        typer.echo(f"logstore {__version__} ({found.own})")
        if found.warning is not None:
            typer.echo(f"logstore: warning: {found.warning}; mend it with {found.remedy}", err=True)
        raise typer.Exit


@app.callback(
    epilog="""\b
First steps:
  logstore serve                                      run a store on ./data
  logstore topic create events --partitions 4
  echo '{"user": "ann"}' | logstore produce events --key-field user
  logstore consume events
  logstore doctor                                     check this machine and the store
"""
)
def _logstore(
    ctx: typer.Context,
    url: UrlOption = None,  # noqa: ARG001 - read off the context
    profile: ProfileOption = None,
    version: Annotated[  # noqa: ARG001 - its callback ends the program
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run and use a log store with Kafka's model, in which every topic is a plain Delta table."""
    if ctx.invoked_subcommand in ("produce", "consume"):
        ctx.default_map = option_defaults(chosen_profile(profile))


app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=status.EXAMPLES)(status.status)
# These work on files. The other commands of `topic` talk to a store, and need no extra.
topic.app.command(epilog=topic_table.VERIFY_EXAMPLES)(topic_table.verify)
topic.app.command(epilog=topic_table.TAKE_BACK_EXAMPLES)(topic_table.take_feature_back)
topic.app.command(epilog=topic_table.REBUILD_EXAMPLES)(topic_table.rebuild)
topic.app.command(epilog=topic_copy.EXAMPLES)(topic_copy.copy)
topic.app.command(epilog=topic_erase.ERASE_EXAMPLES)(topic_erase.erase)
topic.app.command(epilog=topic_erase.ERASURES_EXAMPLES)(topic_erase.erasures)
topic.app.add_typer(topic_columns.app, name="columns")
topic.app.add_typer(topic_reassign.app, name="reassign")
app.add_typer(topic.app, name="topic")
app.command(epilog=produce.EXAMPLES)(produce.produce)
app.command(epilog=consume.EXAMPLES)(consume.consume)
app.add_typer(group.app, name="group")
cluster.app.command(epilog=cluster_adopt.EXAMPLES)(cluster_adopt.adopt)
app.add_typer(cluster.app, name="cluster")
app.add_typer(profile.app, name="profile")
app.add_typer(job_commands.app, name="job")
app.add_typer(journal.app, name="journal")
app.add_typer(segment.app, name="segment")
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
