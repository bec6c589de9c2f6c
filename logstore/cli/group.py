"""``logstore group ...``: the members and committed offsets of consumer groups, over HTTP."""

import csv
import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from logstore.cli.output import counted, print_json, print_table
from logstore.command_line.command_group import FAILED, confirm
from logstore.command_line.options import (
    GroupArgument,
    JsonOption,
    UrlOption,
    admin_of,
    complete_groups,
    complete_topics,
    given_path,
    read_text,
    time_ms,
)
from logstore.quantities import TIME_FORMS

if TYPE_CHECKING:
    from logstore.protocol.messages.groups import GroupLag

_NUMBER = re.compile(r"[0-9]{1,18}")

app = typer.Typer(
    no_args_is_help=True, help="Look at, reset and delete the offsets of consumer groups.", rich_markup_mode=None
)


@app.command(
    "list",
    epilog="""\b
Examples:
  logstore group list
  logstore group list --state Stable --state PreparingRebalance
  logstore group list --json | jq -r '.[] | select(.total_lag > 1000) | .group'
""",
)
def list_groups(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only groups in this state; may be repeated."),
    ] = None,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """List the groups that have members or committed offsets, with their state, members and lag.

    The lag is that of all partitions of the topics that the group has committed to or reads.
    """
    with admin_of(ctx, url) as admin:
        groups = admin.list_groups(states=state or ())
    if json:
        print_json(groups)
    elif groups:
        print_table(
            ["group", "kind", "state", "members", "partitions", "lag", "max lag"],
            [
                (
                    _printable(each.group),
                    each.kind or "-",
                    each.state,
                    each.members,
                    each.partitions,
                    each.total_lag,
                    each.max_lag,
                )
                for each in groups
            ],
        )
    elif state:
        typer.echo(f"No group is {' or '.join(state)}.", err=True)
    else:
        typer.echo("There is no group yet: none has members or committed offsets.", err=True)


@app.command(
    epilog="""\b
Examples:
  logstore group describe billing
  logstore group describe billing --json | jq .total_lag
"""
)
def describe(ctx: typer.Context, group: GroupArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """Show a group's members, committed offsets and lag.

    Per partition of its topics: committed (the next offset to read;
    '-' for none), start (log start offset; earlier records are gone), high watermark (readers see the records below
    it), lag (offsets from committed, or from start, to the high watermark), records (only the offsets that still have
    one: compaction and deletions leave gaps), behind (the time since the oldest of these records, by its timestamp),
    and the member that reads it. Per member the time since its last heartbeat and its last poll; '-' for a poll of
    Kafka's clients, which do not report it.
    """
    with admin_of(ctx, url) as admin:
        commits = {(found.topic, found.partition): found for found in admin.group_offsets(group)}
        lag = admin.group_lag(group)
        described = admin.describe_group(group)
    owners = {(each.topic, each.partition): member for member in described.members for each in member.assignment}
    rows = [(found, commits.get((found.topic, found.partition))) for found in lag.partitions]
    if json:
        partitions = [
            {
                "topic": found.topic,
                "partition": found.partition,
                "committed_offset": found.committed_offset,
                "log_start_offset": found.log_start_offset,
                "high_watermark": found.high_watermark,
                "lag": found.lag,
                "records_behind": found.records_behind,
                "lag_ms": found.lag_ms,
                "leader_epoch": None if commit is None else commit.leader_epoch,
                "metadata": None if commit is None else commit.metadata,
                "timestamp": None if commit is None else commit.timestamp,
                "member_id": owners[place].member_id if (place := (found.topic, found.partition)) in owners else None,
            }
            for found, commit in rows
        ]
        of_group = {"kind": described.kind, "state": described.state, "generation": described.generation}
        of_group |= {"assignor": described.protocol, "members": described.members}
        behind = {
            "total_lag": lag.total_lag,
            "max_lag": lag.max_lag,
            "records_behind": lag.records_behind,
            "max_lag_ms": lag.max_lag_ms,
            "partitions": partitions,
        }
        print_json({"group": group, **of_group, **behind})
        return
    print(
        f"Group {_printable(group)}: {described.state}, {counted(len(described.members), 'member')}, "
        f"{counted(len(rows), 'partition')}, {_behind(lag)}"
    )
    if described.kind:
        called = "epoch" if described.kind == "consumer" else "generation"
        print(f"Protocol {described.kind}, assignor {described.protocol or '-'}, {called} {described.generation}")
    if described.members:
        print()
        print_table(
            ["member", "instance", "client", "host", "partitions", "heartbeat", "poll"],
            [
                (
                    member.member_id,
                    member.group_instance_id or "-",
                    member.client_id or "-",
                    member.client_host or "-",
                    len(member.assignment),
                    _ago(member.since_heartbeat_ms),
                    _ago(member.since_poll_ms),
                )
                for member in described.members
            ],
        )
    print()
    print_table(
        [
            "topic",
            "partition",
            "committed",
            "start",
            "high watermark",
            "lag",
            "records",
            "behind",
            "committed at",
            "member",
            "metadata",
        ],
        [
            (
                found.topic,
                found.partition,
                "-" if found.committed_offset is None else found.committed_offset,
                found.log_start_offset,
                found.high_watermark,
                found.lag,
                "-" if found.records_behind is None else found.records_behind,
                _seconds(found.lag_ms),
                "-" if commit is None else _time(commit.timestamp),
                owners[place].member_id if (place := (found.topic, found.partition)) in owners else "-",
                "" if commit is None else _printable(commit.metadata),
            )
            for found, commit in rows
        ],
    )


def _behind(lag: "GroupLag") -> str:
    # An earlier store does not send the number.
    records = lag.total_lag if lag.records_behind is None else lag.records_behind  # type: ignore[redundant-expr]
    return f"{counted(records, 'record')} behind" + (f", {_seconds(lag.max_lag_ms)}" if lag.max_lag_ms else "")


def _seconds(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / 1000:,.1f} s"


def _ago(milliseconds: int | None) -> str:
    return "-" if milliseconds is None else f"{_seconds(milliseconds)} ago"


@app.command(
    epilog="""\b
Examples:
  logstore group reset billing --topic orders --to-earliest --dry-run
  logstore group reset billing --topic orders:0,3 --to-offset 1200
  logstore group reset billing --topic orders --to-offset -100          the last 100 of each partition again
  logstore group reset billing --topic orders --to-timestamp 2026-11-21T08:00:00Z
  logstore group reset billing --all-topics --to-timestamp -1h
  logstore group reset billing --all-topics --shift-by -10
  logstore group reset billing --all-topics --to-current --dry-run --export > offsets.csv
  logstore group reset billing-2 --from-file offsets.csv
"""
)
def reset(
    ctx: typer.Context,
    group: GroupArgument,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="NAME[:N,N]",
            help="A topic, or some of its partitions; may be repeated.",
            autocompletion=complete_topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that the group has committed to.")
    ] = False,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="A partition of one --topic; may be repeated. [default: all]"),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the log start offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the high watermark.")] = False,
    to_current: Annotated[
        bool,
        typer.Option(
            "--to-current",
            help="Keep the committed offset, or reset to the high watermark if there is none, or one beyond it.",
        ),
    ] = False,
    to_offset: Annotated[
        int | None,
        typer.Option("--to-offset", metavar="N", help="Reset to this offset; -N: N before the high watermark."),
    ] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            "--to-timestamp",
            metavar="TIME",
            help=f"Reset to the first record of this time or later, or else to the high watermark: {TIME_FORMS}.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by",
            metavar="N",
            help="Move the committed offset by N, or back by -N, at most to the ends of the log.",
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="FILE",
            parser=given_path,
            help="Reset to the offsets in this file (-: stdin), as --export writes it.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be committed; commit nothing.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print lines of CSV: topic,partition,offset.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Commit the offsets where a group reads next, of all partitions or none.

    A group with members is refused: stop them first. A group that does not exist is created.
    """
    targets = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-current": to_current,
        "--to-offset": to_offset is not None,
        "--to-timestamp": to_timestamp is not None,
        "--shift-by": shift_by is not None,
        "--from-file": from_file is not None,
    }
    if sum(targets.values()) != 1:
        raise typer.BadParameter(f"give exactly one of {', '.join(targets)}")
    if export and json:
        raise typer.BadParameter("give one of --export and --json")
    timestamp = time_ms(to_timestamp, "--to-timestamp")
    topics = _topics(topic or (), all_topics, partition or (), from_file is not None)
    offsets = None if from_file is None else _read_offsets(read_text(from_file, "--from-file"))
    to: Literal["earliest", "latest", "current"] | None = None
    if to_earliest or to_latest or to_current:
        to = "earliest" if to_earliest else "latest" if to_latest else "current"
    with admin_of(ctx, url) as admin:
        done = admin.reset_offsets(
            group,
            to=to,
            to_offset=to_offset,
            to_timestamp_ms=timestamp,
            shift_by=shift_by,
            offsets=offsets,
            topics=topics,
            dry_run=dry_run,
        )
    for each in done if to_current else ():
        if each.previous_offset is not None and each.previous_offset > each.offset:
            typer.echo(
                f"logstore: warning: the committed offset {each.previous_offset} of {each.topic}-{each.partition} is "
                f"beyond its end: {each.offset} is taken instead",
                err=True,
            )
    if json:
        print_json({"group": group, "dry_run": dry_run, "offsets": done})
        return
    if export:
        for each in done:
            print(f"{each.topic},{each.partition},{each.offset}")
        return
    print(f"{'Would reset' if dry_run else 'Reset'} group {group} in {counted(len(done), 'partition')}")
    print()
    print_table(
        ["topic", "partition", "before", "after"],
        [
            (each.topic, each.partition, "-" if each.previous_offset is None else each.previous_offset, each.offset)
            for each in done
        ],
    )


@app.command(
    epilog="""\b
Examples:
  logstore group delete billing
  logstore group delete billing reports --yes
"""
)
def delete(
    ctx: typer.Context,
    groups: Annotated[
        list[str], typer.Argument(metavar="GROUP...", help="Consumer groups.", autocompletion=complete_groups)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete groups without members, and all their committed offsets.

    Asks first; without a terminal it needs --yes. Each group is deleted or refused independently: exit code 1 if
    one is refused.
    """
    groups = list(dict.fromkeys(groups))
    if not yes:
        confirm(f"Delete {', '.join(groups)} with all committed offsets?", otherwise="Nothing was deleted.")
    with admin_of(ctx, url) as admin:
        errors = admin.delete_groups(groups)
    if len(groups) == 1 and errors:
        raise errors[groups[0]]
    if json:
        refused = {name: error.message for name, error in errors.items()}
        print_json([{"group": name, "deleted": name not in refused, "error": refused.get(name)} for name in groups])
    else:
        for name in groups:
            if name not in errors:
                print(f"Deleted group {name}")
            else:
                typer.echo(f"logstore: {errors[name].message}", err=True)
    if errors:
        raise typer.Exit(FAILED)


def _topics(
    given: Sequence[str], all_topics: bool, partitions: Sequence[int], from_file: bool
) -> dict[str, Sequence[int]] | None:
    """Return the partitions of each topic (empty: all); None for all topics, or those of a file."""
    if from_file and (given or all_topics or partitions):
        raise typer.BadParameter("--from-file names the topics and partitions: leave out what else names some")
    if not from_file and bool(given) == all_topics:
        raise typer.BadParameter("give either --topic or --all-topics")
    if partitions and (len(given) != 1 or ":" in given[0]):
        raise typer.BadParameter("--partition goes with one --topic; of several topics write --topic NAME:0,1")
    topics: dict[str, Sequence[int]] = {}
    for text in given:
        name, colon, numbers = text.partition(":")
        if colon and not all(_NUMBER.fullmatch(number) for number in numbers.split(",")):
            raise typer.BadParameter(f"{text!r} is not NAME or NAME:0,1", param_hint="--topic")
        if name in topics:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--topic")
        topics[name] = [int(number) for number in numbers.split(",")] if colon else partitions
    return topics or None


def _read_offsets(text: str) -> dict[tuple[str, int], int]:
    """Read lines of Kafka's CSV: topic, partition, offset. Empty lines are skipped."""
    offsets: dict[tuple[str, int], int] = {}
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), start=1):
            if not row:
                continue
            if len(row) != 3 or not all(_NUMBER.fullmatch(text.strip()) for text in row[1:]):
                raise typer.BadParameter(f"line {number} is not topic,partition,offset", param_hint="--from-file")
            topic, partition, offset = row[0].strip(), int(row[1]), int(row[2])
            if (topic, partition) in offsets:
                raise typer.BadParameter(f"line {number}: {topic}-{partition} is there twice", param_hint="--from-file")
            offsets[topic, partition] = offset
    except csv.Error as error:
        raise typer.BadParameter(f"this is no CSV: {error}", param_hint="--from-file") from None
    if not offsets:
        raise typer.BadParameter("there is no line topic,partition,offset", param_hint="--from-file")
    return offsets


def _printable(text: str) -> str:
    """Make a name or metadata printable: it may be any text, and control characters must not reach the terminal."""
    return text if text.isprintable() else repr(text)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
