"""``logstore topic erase`` and ``erasures``: erase records for good, and show the reports of that."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from logstore.cli.output import counted, print_json, print_table, time_text
from logstore.command_line.command_group import FAILED, confirm, fail
from logstore.command_line.options import JsonOption, TopicArgument, UrlOption, admin_of, given_path, read_text

if TYPE_CHECKING:
    from logstore.client.admin import Admin
    from logstore.protocol.messages.erasures import ErasureReport

ERASE_EXAMPLES = """\b
Examples:
  logstore topic erase events --key ada --dry-run           counts the records
  logstore topic erase events --key ada --key bob
  logstore topic erase events --where '$.user == "ada" and timestamp < "2026-01-01"'
  logstore topic erase events --keys-file keys.txt --yes --json > report.json
"""
ERASURES_EXAMPLES = """\b
Examples:
  logstore topic erasures events
"""
_STEPS = {
    "": "waiting",
    "rolling": "rolling the topic",
    "looking": "looking through files",
    "rewriting": "rewriting files",
    "journals": "renewing journals",
    "deleting": "deleting old files",
}


def erase(
    ctx: typer.Context,
    name: TopicArgument,
    key: Annotated[
        list[str] | None, typer.Option("--key", "-k", metavar="KEY", help="A key, as text; may be repeated.")
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(
            "--keys-file",
            metavar="FILE",
            parser=given_path,
            help="A file with a key on each line, or - for standard input.",
        ),
    ] = None,
    key_json: Annotated[
        bool, typer.Option("--key-json", help='Only records whose key is the JSON text: "ada" with its quotes.')
    ] = False,
    key_base64: Annotated[bool, typer.Option("--key-base64", help="The keys are given as base64.")] = False,
    where: Annotated[
        str | None,
        typer.Option("--where", metavar="EXPR", help="Instead of keys: erase the records that an expression selects."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the records, and erase nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Erase records for good: from the table, its old files and every journal.

    A key is meant as text and as its JSON text, however its records were sent. Records that come later are new ones
    and stay. Consumers do not see the records any more, and the offsets of others do not change. The report, which
    names keys by hashes, is kept in the topic __erasures.

    The erasure goes on without this command. The exit code is 1 while brokers that are not there still have to erase.
    """
    from logstore.errors import StoreUnreachableError

    if key_json and key_base64:
        raise typer.BadParameter("give --key-json or --key-base64", param_hint="--key-json")
    texts = [*(key or ()), *_lines(keys_file)]
    if not texts and where is None:
        raise typer.BadParameter("name the records: --key KEY, --keys-file FILE or --where EXPR", param_hint="--key")
    if texts and where is not None:
        raise typer.BadParameter(
            "give keys, or an expression that has them: key == 'ada' and ...", param_hint="--where"
        )
    key_format: Literal["json", "binary"] | None = "json" if key_json else "binary" if key_base64 else None
    try:
        with admin_of(ctx, url) as admin:
            if dry_run or not yes:
                count = admin.erase(name, texts, where=where, key_format=key_format, dry_run=True, wait=False)
                found = _followed(admin, count)
                if found.state == "failed":
                    fail(f"cannot count the records: {found.waiting}")
                if dry_run:
                    _print_count(found, as_json=json)
                    return
                confirm(f"Erase {_found_text(found)} of topic {name} for good?", otherwise="Nothing was erased.")
            begun = admin.erase(name, texts, where=where, key_format=key_format, wait=False)
            report = _followed(admin, begun)
            if report.state == "failed":
                fail(f"nothing was erased: {report.waiting}")
    except StoreUnreachableError as error:
        fail(f"{error.message} Records are erased by the running store: start it with logstore serve, then try again")
    if json:
        print_json(report)
    else:
        _print_report(report)
    if report.state != "erased":
        raise typer.Exit(FAILED)


def erasures(ctx: typer.Context, name: TopicArgument, json: JsonOption = False, url: UrlOption = None) -> None:
    """List the erasures of a topic: their reports, oldest first."""
    with admin_of(ctx, url) as admin:
        reports = admin.erasures(name)
    if json:
        print_json(reports)
    elif not reports:
        typer.echo(f"Nothing was erased from topic {name}", err=True)
    else:
        print_table(
            ["erasure", "state", "requested", "erased", "records", "pending brokers"],
            [
                (
                    one.erasure,
                    one.state,
                    time_text(one.requested_ms),
                    "-" if one.erased_ms is None else time_text(one.erased_ms),
                    one.records,
                    ", ".join(map(str, one.pending)) or "-",
                )
                for one in reports
            ],
        )


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    # Other characters that end lines, such as U+2028, may be part of a key.
    lines = read_text(file, "--keys-file").split("\n")
    return [line for line in (line.removesuffix("\r") for line in lines) if line]


def _followed(admin: "Admin", report: "ErasureReport") -> "ErasureReport":
    """Wait until the erasure is over, or waits only for brokers that are down; return the report."""
    shown = ""
    while not report.is_over and not (report.pending and report.waiting):
        progress = report.progress
        line = _STEPS.get(progress.step, progress.step)
        if progress.files and progress.step in ("looking", "rewriting", "deleting"):
            line += f": {progress.files_done:,} of {progress.files:,}"
        if report.waiting:
            line += f" ({report.waiting})"
        if line != shown and sys.stderr.isatty():
            sys.stderr.write(f"\r{line}\x1b[K")
            sys.stderr.flush()
            shown = line
        time.sleep(0.1)
        report = admin.erasure(report.topic, report.erasure)
    if shown:
        sys.stderr.write("\r\x1b[K")
    return report


def _print_count(report: "ErasureReport", *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": report.topic, "records": report.records, "files": report.rewritten_files})
    else:
        print(f"{_found_text(report)} of topic {report.topic} would be erased")


def _found_text(report: "ErasureReport") -> str:
    return f"{counted(report.records, 'record')} in {counted(report.rewritten_files, 'file')}"


def _print_report(report: "ErasureReport") -> None:
    print(f"Erasure {report.erasure} of topic {report.topic}: {report.state}")
    print(
        f"{counted(report.records, 'record')} left the table; {counted(report.rewritten_files, 'file')} rewritten, "
        f"{report.deleted_files_count:,} deleted"
    )
    for broker in report.brokers:
        print(f"Broker {broker.broker}: its journal has had none of the records since {time_text(broker.erased_ms)}")
    if report.pending:
        brokers = ", ".join(map(str, report.pending))
        print(f"Pending: brokers {brokers} are not running; each erases the records before it serves again")
        print(f"Look again with: logstore topic erasures {report.topic}")
    if report.erased_ms is not None:
        print(f"The last byte was deleted at {time_text(report.erased_ms)}")
    print("Not reached:")
    for text in report.not_reached:
        print(f"  {text}")
