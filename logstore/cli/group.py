"""``logstore group ...``: the members and committed offsets of consumer groups, over HTTP."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.command_group import confirm
from logstore.cli.options import GroupArgument, JsonOption, UrlOption, admin_of, complete_topics, time_ms
from logstore.cli.output import counted, print_json, print_table
from logstore.quantities import TIME_FORMS

if TYPE_CHECKING:
    from logstore.client.admin import Admin

app = typer.Typer(
    no_args_is_help=True, help="Look at, reset and delete the offsets of consumer groups.", rich_markup_mode=None
)


@app.command(
    "list",
    epilog="""\b
Examples:
  logstore group list
  logstore group list --json | jq -r '.[].group'
""",
)
def list_groups(ctx: typer.Context, json: JsonOption = False, url: UrlOption = None) -> None:
    """List the groups that have members or committed offsets."""
    with admin_of(ctx, url) as admin:
        groups = admin.groups()
    if json:
        print_json([{"group": group} for group in groups])
    elif groups:
        print_table(["group"], [(group,) for group in groups])
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
    it), lag (records from committed, or from start, to the high watermark), and
    the member that reads it.
    """
    with admin_of(ctx, url) as admin:
        commits = {(found.topic, found.partition): found for found in admin.group_offsets(group)}
        lag = admin.group_lag(group)
        described = admin.describe_group(group)
    owners = {place: member for member in described.members for place in member.assignment}
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
                "leader_epoch": None if commit is None else commit.leader_epoch,
                "metadata": None if commit is None else commit.metadata,
                "timestamp": None if commit is None else commit.timestamp,
                "member_id": owners[place].member_id if (place := (found.topic, found.partition)) in owners else None,
            }
            for found, commit in rows
        ]
        members = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "assignment": [{"topic": topic, "partition": number} for topic, number in member.assignment],
            }
            for member in described.members
        ]
        of_group = {"kind": described.kind, "state": described.state, "generation": described.generation}
        of_group |= {"assignor": described.protocol, "members": members}
        behind = {"total_lag": lag.total_lag, "max_lag": lag.max_lag, "partitions": partitions}
        print_json({"group": group, **of_group, **behind})
        return
    print(
        f"Group {group}: {described.state}, {counted(len(described.members), 'member')}, "
        f"{counted(len(rows), 'partition')}, {counted(lag.total_lag, 'record')} behind"
    )
    if described.members:
        print()
        print_table(
            ["member", "instance", "client", "host", "partitions"],
            [
                (
                    member.member_id,
                    member.group_instance_id or "-",
                    member.client_id or "-",
                    member.client_host or "-",
                    len(member.assignment),
                )
                for member in described.members
            ],
        )
    print()
    print_table(
        ["topic", "partition", "committed", "start", "high watermark", "lag", "committed at", "member", "metadata"],
        [
            (
                found.topic,
                found.partition,
                "-" if found.committed_offset is None else found.committed_offset,
                found.log_start_offset,
                found.high_watermark,
                found.lag,
                "-" if commit is None else _time(commit.timestamp),
                owners[place].member_id if (place := (found.topic, found.partition)) in owners else "-",
                "" if commit is None else _printable(commit.metadata),
            )
            for found, commit in rows
        ],
    )


@app.command(
    epilog="""\b
Examples:
  logstore group reset billing --topic orders --to-earliest --dry-run
  logstore group reset billing --topic orders --partition 0 --to-offset 1200
  logstore group reset billing --topic orders --to-offset -100          the last 100 of each partition again
  logstore group reset billing --topic orders --to-timestamp 2026-11-21T08:00:00Z
  logstore group reset billing --topic orders --to-timestamp -1h
"""
)
def reset(
    ctx: typer.Context,
    group: GroupArgument,
    topic: Annotated[str, typer.Option("--topic", metavar="NAME", help="The topic.", autocompletion=complete_topics)],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="A partition; may be repeated. [default: all of the topic]"),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the high watermark.")] = False,
    to_offset: Annotated[
        int | None,
        typer.Option("--to-offset", metavar="N", help="To this offset; -N: N before the high watermark."),
    ] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            "--to-timestamp",
            metavar="TIME",
            help=f"To the first record of this time or later, or else the high watermark: {TIME_FORMS}.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be committed; commit nothing.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Commit offsets for a group: where it reads next. All partitions or none.

    A consumer that runs keeps its own position and commits over this: stop it first. A group that does not exist is
    made.
    """
    targets = {
        "--to-earliest": to_earliest,
        "--to-latest": to_latest,
        "--to-offset": to_offset is not None,
        "--to-timestamp": to_timestamp is not None,
    }
    if sum(targets.values()) != 1:
        raise typer.BadParameter(f"give exactly one of {', '.join(targets)}")
    timestamp = time_ms(to_timestamp, "--to-timestamp")
    with admin_of(ctx, url) as admin:
        before = _committed(admin, group, topic)
        after = {}
        there = admin.describe_topic(topic).partitions
        for found in sorted(set(partition or (each.partition for each in there))):
            ends = admin.offsets(topic, found, timestamp_ms=timestamp)
            if to_offset is not None and to_offset < 0:
                after[found] = max(ends.beginning_offset, ends.end_offset + to_offset)
            elif to_offset is not None:
                _check_offset(topic, found, to_offset, ends.beginning_offset, ends.end_offset)
                after[found] = to_offset
            elif to_earliest:
                after[found] = ends.beginning_offset
            else:
                after[found] = ends.end_offset if ends.offset is None else ends.offset
        if not dry_run:
            admin.commit_offsets(group, {(topic, found): offset for found, offset in after.items()})
    if json:
        offsets = [
            {"topic": topic, "partition": found, "offset": offset, "previous_offset": before.get(found)}
            for found, offset in after.items()
        ]
        print_json({"group": group, "dry_run": dry_run, "offsets": offsets})
        return
    print(f"{'Would reset' if dry_run else 'Reset'} group {group} in topic {topic}")
    print()
    print_table(
        ["partition", "before", "after"],
        [(found, before.get(found, "none"), offset) for found, offset in after.items()],
    )


@app.command(
    epilog="""\b
Examples:
  logstore group delete billing
  logstore group delete billing --yes
"""
)
def delete(
    ctx: typer.Context,
    group: GroupArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Delete a group and all its committed offsets. Asks first; without a terminal it needs --yes."""
    with admin_of(ctx, url) as admin:
        offsets = admin.group_offsets(group)
        if not yes:
            question = f"Delete group {group} and its {counted(len(offsets), 'offset')}?"
            confirm(question, otherwise="Nothing was deleted.")
        admin.delete_group(group)
    if json:
        print_json({"group": group, "deleted": True})
    else:
        print(f"Deleted group {group}")


def _committed(admin: "Admin", group: str, topic: str) -> Mapping[int, int]:
    """Offset by partition; empty for a group that has none yet."""
    from logstore.errors import UnknownGroupError

    try:
        return {found.partition: found.offset for found in admin.group_offsets(group, topic=topic)}
    except UnknownGroupError:
        return {}


def _check_offset(topic: str, partition: int, offset: int, start: int, end: int) -> None:
    from logstore.errors import OffsetOutOfRangeError

    if not start <= offset <= end:
        raise OffsetOutOfRangeError(
            f"Offset {offset} is out of range in {topic}-{partition}: give {start} to {end}.",
            log_start_offset=start,
            high_watermark=end,
        )


def _printable(metadata: str) -> str:
    """Metadata may be any text: control characters must not reach the terminal."""
    return metadata if metadata.isprintable() else repr(metadata)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
