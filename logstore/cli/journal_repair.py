"""``logstore journal repair`` ends a damaged journal before the damage, and reports what is lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from logstore.cli.data_directory import (
    data_of,
    given_data,
    is_of_cluster,
    journal_directories,
    journals_in,
    log_directories,
    log_directory_of,
    stopped_store,
)
from logstore.cli.output import counted, print_json, print_table
from logstore.command_line.command_group import confirm, fail
from logstore.command_line.options import JsonOption, given_path
from logstore.errors import LogStoreError

if TYPE_CHECKING:
    from logstore.inspection.journal import RepairReport
    from logstore.inspection.journal_loss import Table, TakenOut
    from logstore.journal.scan import RecoveredFrame

REPAIR_EXAMPLES = """\b
Examples:
  logstore journal verify data/brokers/0/journal/0
  logstore journal repair data/brokers/0/journal/0
  logstore journal repair /var/lib/logstore --data /srv/logstore
"""


def repair(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", parser=given_path, help="A journal, or the log directory of its broker.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            parser=given_path,
            help="The data directory with the tables. Default: the one that contains the journal, else the "
            "setting data, if the journal belongs to one of its brokers.",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """End a damaged journal before the damage.

    The store, which must be stopped for it, can then start again.

    Says first which records are lost: acknowledged ones behind the damage that are not in a table yet. A copy of every
    byte that is taken out stays beside the journal as *.corrupt. Restoring the damaged file from a copy is better, if
    there is one.

    In a cluster, remove the log directory instead: the broker copies its partitions from their leaders. A broker whose
    journal was repaired leaves its ISRs all the same.
    """
    from logstore.cluster.log_directory import (
        REPLICAS_ARE_COPIED,
        LogDirectory,
        accept_journal,
        give_up_journal,
        journal_check,
        read_directory,
    )
    from logstore.filesystem import local_filesystem
    from logstore.inspection import journal as inspect
    from logstore.journal.errors import JournalCorruptionError, JournalDiffersError

    if len(journals := journal_directories(directory, None)) > 1:
        fail(f"There are journals of {len(journals)} brokers in {directory}: name the one to repair: {journals[0]}")
    (journal,) = journals
    tables = data_of(journal, directory) if data is None else given_data(data)
    others = [] if tables is None else journals_in(log_directories(tables, quiet=True))
    with stopped_store(tables, [journal, *others]):
        home = log_directory_of(journal)
        damage = inspect.verify(journal, check=journal_check(home)).damage
        if isinstance(damage, JournalDiffersError):
            fail(damage.message)
        if damage is None:
            _print_json(journal, None, []) if json else print(f"The journal {journal} is good: nothing was changed")
            return
        found = _taken_out(journal, damage, tables)
        if not json:
            print(f"Damage: {damage.message}")
            _print_taken_out(found)
        stood, remains = read_directory(home), inspect.headed_journal(journal)
        difference = stood.expected.difference(remains) if stood is not None and remains is not None else None
        if difference is not None:
            typer.echo(
                f"The journal is also not the one that was here before: {difference}. Acknowledged records that "
                "it lacks are lost as well, and are not in this list.",
                err=True,
            )
        # A migration that was cut short leaves ``meta.json`` in a store of one node, which has the only copy.
        if isinstance(stood, LogDirectory) and (tables is None or is_of_cluster(tables)):
            typer.echo(
                f"This is the journal of a broker of a cluster. Remove the log directory {home} instead, and "
                f"start the broker: {REPLICAS_ARE_COPIED} A broker whose journal was repaired also leaves its "
                "ISRs.",
                err=True,
            )
        if not yes:
            confirm("Remove everything from the damage on?", otherwise="Nothing was changed.")
        if isinstance(damage, JournalCorruptionError):  # else the repair refuses
            # This comes before the repair: a start after a crash in between refuses the damage as before.
            give_up_journal(home, local_filesystem())
        report = inspect.repair(journal)
        if report is not None:
            accept_journal(home, local_filesystem(), inspect.found_journal(journal))
    if json:
        _print_json(journal, report, found)
    elif report is not None:
        print(f"The journal {journal} now ends at position {report.position}")
        print(f"Kept: {', '.join(map(str, report.copies))}")


def _taken_out(journal: Path, damage: LogStoreError, data: Path | None) -> "list[TakenOut]":
    from logstore.inspection import journal as inspect
    from logstore.inspection.journal_loss import taken_out
    from logstore.journal.errors import JournalCorruptionError
    from logstore.log.journal_tail import collect_tails
    from logstore.table_root import open_root

    if not isinstance(damage, JournalCorruptionError):
        return []
    ranges = inspect.lost_ranges(journal, damage.position)
    kept = collect_tails(_good_frames(journal))
    return taken_out(ranges, kept, {} if data is None else _tables(data), open_root(data).removed() if data else set())


def _good_frames(journal: Path) -> "Iterator[RecoveredFrame]":
    from logstore.inspection.observed_journal import ObservedJournal
    from logstore.journal.errors import JournalCorruptionError

    try:
        yield from ObservedJournal(journal).frames()
    except JournalCorruptionError:
        return


def _tables(data: Path) -> "dict[UUID, Table]":
    """Return the tables that can be read, by topic id."""
    from logstore.delta.log_check import observed_snapshot
    from logstore.inspection.journal_loss import Table
    from logstore.table_root import open_root

    root = open_root(data)
    tables = {}
    for name in root.tables():
        try:
            snapshot = observed_snapshot(root.open(name))
        except LogStoreError:
            # Its records then show with the topic's id, as lost unless the table is repaired.
            continue
        sealed = {partition: state.sealed for partition, state in snapshot.partitions.items()}
        tables[snapshot.topic_id] = Table(name, sealed)
    return tables


def _print_taken_out(found: "list[TakenOut]") -> None:
    if found:
        print_table(
            ["topic", "partition", "taken out", "in the table", "lost"],
            [
                (
                    one.topic or f"id {one.topic_id}",
                    one.partition,
                    f"offsets {one.first_offset} to {one.end_offset - 1}",
                    _in_the_table(one),
                    "-" if one.lost is None else f"offsets {one.lost[0]} to {one.lost[1] - 1}",
                )
                for one in found
            ],
        )
    lost = sum(one.lost[1] - one.lost[0] for one in found if one.lost is not None)
    if lost:
        print(f"Lost: {counted(lost, 'offset')}, as listed")
    else:
        print("Nothing is lost, as far as the damaged part can be read: its records are in the tables")


def _in_the_table(one: "TakenOut") -> str:
    if one.deleted:
        return "the topic was deleted"
    if one.sealed_offset is None:
        return "no table that can be read has this id"
    return f"all, sealed at {one.sealed_offset}" if one.lost is None else f"sealed at {one.sealed_offset}"


def _print_json(journal: Path, report: "RepairReport | None", found: "list[TakenOut]") -> None:
    """Print the report. ``taken_out`` is everything from the damage on, ``lost`` the part of it that no table has."""
    print_json(
        {
            "directory": str(journal),
            "repaired": report is not None,
            "position": report and report.position,
            "copies": [str(copy) for copy in report.copies] if report else [],
            "taken_out": [
                {
                    "topic": one.topic,
                    "topic_id": one.topic_id,
                    "partition": one.partition,
                    "first_offset": one.first_offset,
                    "end_offset": one.end_offset,
                    "sealed_offset": one.sealed_offset,
                }
                for one in found
            ],
            "lost": [
                {
                    "topic": one.topic,
                    "topic_id": one.topic_id,
                    "partition": one.partition,
                    "first_offset": one.lost[0],
                    "end_offset": one.lost[1],
                }
                for one in found
                if one.lost is not None
            ],
        }
    )
