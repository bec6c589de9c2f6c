"""``logstore journal ...``: look at journals, and give up the damaged end of one."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import msgspec
import typer

from logstore.cli.data_directory import (
    data_of,
    journal_directories,
    journals_in,
    log_directories,
    log_directory_of,
    require_no_journal,
    topic_names,
)
from logstore.cli.journal_repair import REPAIR_EXAMPLES, repair
from logstore.cli.output import bytes_text, counted, print_json, print_json_line, print_table
from logstore.cli.record_dump import (
    FromOption,
    RecordFormatOption,
    RecordSelection,
    RecordsOption,
    ToOption,
    print_records,
    require_records,
    selected_records,
)
from logstore.command_line.command_group import FAILED, fail
from logstore.command_line.options import JsonOption, given_path
from logstore.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.inspection.journal import DumpRow, VerifyReport
    from logstore.journal.errors import JournalDiffersError
    from logstore.journal.frame import FrameHeader

app = typer.Typer(no_args_is_help=True, help="Look at a journal, check it, repair it.", rich_markup_mode=None)

DirectoryArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="DIR", parser=given_path, help="A data directory, a broker's log directory, or a journal itself."
    ),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        parser=given_path,
        help="A data directory, for the journals of all its brokers, also those in other places (log.dirs). "
        "Default: the setting data (data).",
    ),
]
_DUMP_LINE = "{:>14} {:>10} {:11} {:36} {:>9} {:>12} {:>8} {:>6}  {}"


@app.command(
    epilog="""\b
Examples:
  logstore journal dump
  logstore journal dump data/brokers/0/journal/0 --limit 100 --json
  logstore journal dump --records --topic events --partition 0 --from 1000 --to 1010
"""
)
def dump(
    directory: DirectoryArgument = None,
    data: DataOption = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", min=1, help="The most frames to print; with --records, the most records."),
    ] = None,
    records: RecordsOption = False,
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only frames of this topic, by its name or id.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Only of this partition.")
    ] = None,
    start: FromOption = None,
    end: ToOption = None,
    format: RecordFormatOption = None,
    json: JsonOption = False,
) -> None:
    """Print the frames, or with --records the records in them, oldest first.

    Records come in the order of the journal, including copies that were relocated and records that a truncation
    removed. Changes nothing, and works while the store runs.

    In a cluster each broker has its own journal, and they are shown one after the other. Records are shown of one.
    """
    from logstore.inspection import journal as inspect

    require_records(records, **{"from": start, "to": end, "format": format})
    if records:
        wanted = selected_records(start=start, end=end, limit=limit, format=format, json=json)
        if len(journals := journal_directories(directory, data)) > 1:
            fail(f"There are journals of {len(journals)} brokers: name the one whose records are wanted: {journals[0]}")
        names = _topic_names(journals[0], directory or data)
        print_records(_records(journals[0], names, topic, partition, wanted), wanted)
        return
    remaining = limit
    journals = journal_directories(directory, data)
    for journal in journals:
        names = _topic_names(journal, directory or data)
        ids = _topic_ids(names, topic)
        found = (
            row
            for row in inspect.dump(journal)
            if (ids is None or row.topic_id in ids) and partition in (None, row.partition)
        )
        rows = _limited(found, remaining)
        if len(journals) > 1 and not json:
            print(f"{'' if journal is journals[0] else chr(10)}Journal {journal}")
        shown = _print_rows(journal, rows) if json else _print_lines(rows, names)
        if remaining is not None:
            remaining -= shown
            if not remaining:
                return


def _limited(rows: "Iterable[DumpRow]", limit: int | None) -> "Iterable[DumpRow]":
    for count, row in enumerate(rows, 1):
        yield row
        if count == limit:
            return


def _print_rows(journal: Path, rows: "Iterable[DumpRow]") -> int:
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 (the number of rows)
        print_json_line({"journal": str(journal), **msgspec.to_builtins(row)})
    return count


def _topic_names(journal: Path, given: Path | None) -> dict[str, str]:
    """Return names by topic id, from the data directory to which the journal belongs."""
    data = data_of(journal, given)
    return {} if data is None else topic_names(data)


def _topic_ids(names: dict[str, str], topic: str | None) -> set[UUID] | None:
    """Return the id of a topic, given by name or id; None for all topics. Raises a usage error if it is neither."""
    if topic is None:
        return None
    named = {UUID(topic_id) for topic_id, name in names.items() if name == topic}
    if named:
        return named
    try:
        return {UUID(topic)}
    except ValueError:
        known = ", ".join(sorted(names.values())) or "none that can be read"
        raise typer.BadParameter(f"{topic!r} is neither a topic ({known}) nor an id", param_hint="--topic") from None


def _records(
    journal: Path, names: dict[str, str], topic: str | None, partition: int | None, wanted: RecordSelection
) -> "Iterator[tuple[str, int, pa.RecordBatch]]":
    from logstore.inspection.observed_journal import ObservedJournal
    from logstore.log.frame_records import frame_records

    ids = _topic_ids(names, topic)

    def is_wanted(header: "FrameHeader") -> bool:
        return (
            (ids is None or header.topic_id in ids)
            and partition in (None, header.partition)
            and wanted.holds_any(header.base_offset, header.end_offset)
        )

    for frame in ObservedJournal(journal).records(is_wanted):
        for batch in frame_records([frame]):
            yield names.get(str(frame.header.topic_id), str(frame.header.topic_id)), frame.header.partition, batch


def _print_lines(rows: "Iterable[DumpRow]", names: dict[str, str]) -> int:
    print(_DUMP_LINE.format("position", "bytes", "type", "topic", "partition", "offset", "records", "epoch", "notes"))
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007 (the number of rows)
        topic = names.get(str(row.topic_id), str(row.topic_id))
        print(
            _DUMP_LINE.format(
                row.position,
                row.length,
                row.type.lower(),
                topic,
                row.partition,
                row.base_offset,
                row.record_count,
                row.leader_epoch,
                ", ".join(_notes(row)),
            ).rstrip()
        )
    return count


def _notes(row: "DumpRow") -> list[str]:
    flags = (
        ("refused by this release", not row.honoured),
        ("relocated", row.relocated),
        ("append time", row.log_append_time),
        ("transactional", row.transactional),
    )
    notes = [note for note, holds in flags if holds]
    if row.type == "TRUNCATE":
        notes.append(f"the log ends at {row.base_offset}")
    if row.control is not None:
        notes.append(f"{row.control.type} coordinator epoch {row.control.coordinator_epoch}")
    if row.snapshot is not None:
        notes.append(f"sealed {row.snapshot.sealed_offset}")
        remembered = (
            (len({batch.owner for batch in row.snapshot.producers}), "producer"),
            (len({batch.owner for batch in row.snapshot.idempotency_keys}), "idempotency key"),
            (len(row.snapshot.open_transactions), "open transaction"),
            (len(row.snapshot.markers), "transaction marker"),
        )
        notes += [counted(count, what) for count, what in remembered if count]
    if row.identity is not None and row.identity.is_keys:
        notes.append(f"idempotency key {row.identity.owner:016x}")
    elif row.identity is not None:
        sequence = "" if row.control is not None else f" sequence {row.identity.sequence}"
        notes.append(f"producer {row.identity.owner} epoch {row.identity.epoch}{sequence}")
    return notes


@app.command(
    epilog="""\b
Examples:
  logstore journal verify && logstore serve
"""
)
def verify(directory: DirectoryArgument = None, data: DataOption = None, json: JsonOption = False) -> None:
    """Check every byte, and change nothing.

    Reports whether a start would accept the journal; exit code 1 if not. Takes no lock, and works while the store runs.
    """
    from logstore.cluster.log_directory import journal_check
    from logstore.inspection import journal as inspect

    reports = [
        (journal, inspect.verify(journal, check=journal_check(log_directory_of(journal))))
        for journal in journal_directories(directory, data)
    ]
    if json:
        print_json(
            [
                {
                    "directory": str(journal),
                    "files": report.files,
                    "frames": report.frames,
                    "bytes": report.bytes,
                    "end_position": report.end_position,
                    "tail_bytes": report.tail_bytes,
                    "damage": report.damage and report.damage.message,
                }
                for journal, report in reports
            ]
        )
    else:
        print_table(
            ["journal", "files", "frames", "bytes", "end position", "un-synced tail", "state"],
            [
                (
                    journal,
                    report.files,
                    report.frames,
                    bytes_text(report.bytes),
                    report.end_position,
                    bytes_text(report.tail_bytes),
                    _state(report),
                )
                for journal, report in reports
            ],
        )
    for _, report in reports:
        if report.damage:
            typer.echo(f"logstore: {report.damage.message}", err=True)
    missing = _missing_journals(directory, data)
    for difference in missing:
        typer.echo(f"logstore: {difference.message}", err=True)
    if missing or any(report.damage for _, report in reports):
        raise typer.Exit(FAILED)


def _missing_journals(directory: Path | None, data: Path | None) -> "list[JournalDiffersError]":
    """Return the differences of the brokers that have lost their journal from the recorded one."""
    from logstore.journal.errors import JournalDiffersError
    from logstore.settings import load_settings

    found = []
    for home in log_directories(directory or data or load_settings().data, quiet=True):
        if not journals_in([home]):
            try:
                require_no_journal(home)
            except JournalDiffersError as difference:
                found.append(difference)
    return found


def _state(report: "VerifyReport") -> str:
    if report.damage is None:
        return "good"
    return "damaged" if isinstance(report.damage, CorruptionError) else "refused"


app.command(epilog=REPAIR_EXAMPLES)(repair)
