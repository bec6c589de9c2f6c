"""``logstore topic columns``: the columns that a topic's table has beside the bytes."""

from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.output import counted, print_json, print_table
from logstore.command_line.options import JsonOption, TopicArgument, UrlOption, admin_of

if TYPE_CHECKING:
    from logstore.protocol.messages.columns import ChangedColumns, ColumnProposal, TopicColumns

app = typer.Typer(
    no_args_is_help=True,
    help="Declare the columns that a topic's table has beside the bytes.",
    rich_markup_mode=None,
)

_NEXT = "Files from before are filled as they are merged, or at once by: logstore job columns"

DeclarationArgument = Annotated[
    str,
    typer.Argument(metavar="COLUMNS", help="Name, type and field of each: 'month BIGINT, city STRING FROM user.city'."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")]


@app.command(
    epilog="""\b
Examples:
  logstore topic columns show flights
  logstore topic columns show flights --json | jq -r .ddl
"""
)
def show(ctx: typer.Context, name: TopicArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """Show the declared columns, and how many records have them."""
    with admin_of(ctx, url) as admin:
        found = admin.columns(name)
    if json:
        print_json(found)
        return
    if not found.columns:
        print(f"Topic {name} has no declared columns. See what it could have: logstore topic columns propose {name}")
        return
    print_table(
        ["column", "type", "field", ""],
        [(one.name, one.conversion.upper(), one.field, "retired" if one.retired else "") for one in found.columns],
    )
    print()
    for line in lines_of(found):
        print(line)


def lines_of(found: "TopicColumns") -> list[str]:
    """Return what is to say about a topic's columns besides their names."""
    lines = []
    if found.mode == "none":
        lines.append("They are not derived now: table.columns.mode is none")
    lines.append(f"{counted(found.misfits, 'record')} did not fit, with the reason in value_error")
    if found.unfilled_files:
        files = counted(found.unfilled_files, "file")
        lines.append(
            f"{files} with {counted(found.unfilled_records, 'record')} from before a column was declared, or from "
            "another writer: to be filled by a merge, or by logstore job columns"
        )
    return [*lines, *found.problems]


@app.command(
    epilog="""\b
Examples:
  logstore topic columns set flights "carrier STRING, dep_delay DOUBLE, time_hour TIMESTAMP"
  logstore topic columns set flights "$(logstore topic columns propose flights --json | jq -r .ddl)"

A type is BOOLEAN, BIGINT, DOUBLE, DECIMAL(p,s), STRING, TIMESTAMP (RFC 3339), EPOCH_S, EPOCH_MS, EPOCH_US
(a number that becomes a timestamp), DATE, STRUCT<name: type, ...> or ARRAY<type>. FROM names the path of the
field, if that is not the column's name: city STRING FROM user.city
"""
)
def set(  # noqa: A001 - the name of the command
    ctx: typer.Context,
    name: TopicArgument,
    columns: DeclarationArgument,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Declare these columns, and retire all others."""
    with admin_of(ctx, url) as admin:
        _print(admin.set_columns(name, columns, dry_run=dry_run), dry_run=dry_run, as_json=json)


@app.command(
    epilog="""\b
Examples:
  logstore topic columns add flights "air_time DOUBLE"
  logstore topic columns add flights "city STRING FROM user.city, at EPOCH_MS FROM sent"
"""
)
def add(
    ctx: typer.Context,
    name: TopicArgument,
    columns: DeclarationArgument,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Declare columns beside those that are there, also while records flow."""
    with admin_of(ctx, url) as admin:
        _print(admin.add_columns(name, columns, dry_run=dry_run), dry_run=dry_run, as_json=json)


@app.command(
    epilog="""\b
Examples:
  logstore topic columns retire flights air_time
"""
)
def retire(
    ctx: typer.Context,
    name: TopicArgument,
    columns: Annotated[list[str], typer.Argument(metavar="COLUMN...", help="Names of columns.")],
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Stop filling columns.

    What they have stays. Their names and types stay taken: they can only be declared again as they were.
    """
    with admin_of(ctx, url) as admin:
        _print(admin.retire_columns(name, columns, dry_run=dry_run), dry_run=dry_run, as_json=json)


@app.command(
    epilog="""\b
Examples:
  logstore topic columns propose flights
  logstore topic columns propose flights --records 1000 --json | jq -r .ddl
"""
)
def propose(
    ctx: typer.Context,
    name: TopicArgument,
    records: Annotated[
        int, typer.Option("--records", min=1, max=100_000, help="How many of the newest records to look at.")
    ] = 10_000,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Propose columns for the newest records. Nothing is declared."""
    with admin_of(ctx, url) as admin:
        found = admin.propose_columns(name, records=records)
    if json:
        print_json(found)
    else:
        print("\n".join(_proposal_lines(name, found)))


def _proposal_lines(name: str, found: "ColumnProposal") -> list[str]:
    if not found.ddl:
        why = "no field has a type" if found.left_out else "no value is a JSON object"
        return [f"No columns can be proposed from {counted(found.records, 'record')}: {why}", *_left_out(found)]
    of_all = max(found.records, 1)
    plain, typed = found.plain_bytes / of_all, found.typed_bytes / of_all
    fit = f"{found.fitting / of_all:.1%} of {counted(found.records, 'record')} fit"
    lines = [found.ddl, "", f"{fit}; a value takes {plain:.1f} bytes on disk, and {typed:.1f} with the columns"]
    lines += [f"  {one.records:,} do not fit: {one.reason}" for one in found.misfits]
    if found.left_out:
        lines += ["Left out:", *_left_out(found)]
    return [*lines, f'To declare them: logstore topic columns set {name} "..."']


def _left_out(found: "ColumnProposal") -> list[str]:
    return [f"  {one.field}: {one.reason}" for one in found.left_out]


def _print(changed: "ChangedColumns", *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json(changed)
        return
    would = "Would declare" if dry_run else "Declared"
    if changed.added:
        print(f"{would} {', '.join(changed.added)}")
    if changed.retired:
        print(f"{'Would retire' if dry_run else 'Retired'} {', '.join(changed.retired)}")
    if not changed.added and not changed.retired:
        print(f"Nothing to change: topic {changed.topic} has {changed.ddl or 'no columns'}")
    elif changed.added and not dry_run:
        print(_NEXT)
