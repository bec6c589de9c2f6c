"""``logstore topic verify``, ``rebuild`` and ``take-feature-back``: a topic's table on the disk, without a store."""

import shlex
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import msgspec
import typer

from logstore.cli.data_directory import (
    given_data,
    is_of_cluster,
    journals_in,
    log_directories,
    observed_journal,
    require_no_journal,
    require_topics,
    stopped_store,
    topic_names,
)
from logstore.cli.output import bytes_text, counted, print_json, print_table
from logstore.command_line.command_group import FAILED, confirm, fail
from logstore.command_line.options import ConfigOption, JsonOption, existing_path, given_path, parse_configs

if TYPE_CHECKING:
    from logstore.errors import LogStoreError
    from logstore.inspection.table_check import Finding, Journals, Tails, TopicReport
    from logstore.inspection.table_rebuild import RebuildPlan
    from logstore.table_files import TableFiles

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", parser=given_path, help="The data directory. Default: the setting data (data)."
    ),
]
LogDirectoryOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--log-directory",
        metavar="DIR",
        parser=existing_path,
        help="A broker's log.dirs, if it is not where the broker has recorded it; may be repeated.",
    ),
]


_REFRESH_TIMEOUT_MS = 10_000

VERIFY_EXAMPLES = """\b
Examples:
  logstore topic verify                     all topics of ./data
  logstore topic verify events --data /srv/log
  logstore topic verify --quick --json | jq '.topics[].problems'
"""


def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Topics; without a name all of them.")
    ] = None,
    data: DataOption = None,
    log_directory: LogDirectoryOption = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read the ends of files only: neither their records nor all their bytes.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Check topics on the disk.

    The Delta log, every file that it names, and the journal. Looks at a data directory, not at a store: it changes
    nothing, takes no lock, and works even while the store runs. Exit code 1 if anything is damaged, with a list. Files
    of other writers are listed, and are no damage where they hold rewritten rows below the sealed offset.

    In a cluster the journal of each broker is compared with the tables.
    """
    from logstore.inspection.table_check import newest_tails, verify_topic
    from logstore.table_root import open_root

    directory = given_data(data)
    # The journals come first: a table that is read after them cannot be behind them.
    journals, damages = read_journals(log_directories(directory, log_directory or ()))
    root = open_root(directory)
    topics = require_topics(directory, names or [])
    lost = {} if names else _records_without_table(directory, newest_tails(journals.values()))
    reports = [verify_topic(root.open(name), journals, quick=quick) for name in topics]
    checked = bool(journals or damages)
    if json:
        print_json(
            {
                "data": str(directory),
                "journal": {
                    "checked": checked,
                    "damage": damages[0].message if damages else None,
                    "without_table": lost,
                },
                "topics": reports,
            }
        )
    else:
        _print_reports(reports, journal=checked)
    for damage in damages:
        typer.echo(f"logstore: {damage.message} The tables were not compared with it.", err=True)
    for report in reports:
        for finding in report.problems:
            typer.echo(f"logstore: {finding_text(report.topic, finding)}", err=True)
    for topic_id, count in lost.items():
        records = counted(count, "record")
        typer.echo(f"logstore: the journal has {records} of topic id {topic_id}, which no table here is", err=True)
    if damages or lost or any(report.problems for report in reports):
        raise typer.Exit(FAILED)


def _records_without_table(data: Path, tails: "Tails") -> dict[str, int]:
    """Return by topic id the unsealed records in the journal of topics that have no table and were not deleted."""
    from logstore.table_root import open_root

    known = topic_names(data).keys() | {str(topic_id) for topic_id in open_root(data).removed()}
    found: dict[str, int] = {}
    for (topic_id, _), tail in tails.items():
        count = tail.index.offsets_from(tail.sealed_offset)
        if count and str(topic_id) not in known:
            found[str(topic_id)] = found.get(str(topic_id), 0) + count
    return found


def read_journals(homes: Sequence[Path]) -> "tuple[Journals, list[LogStoreError]]":
    """Return the content of the journals for each partition, by log directory, and the damages of the others."""
    from logstore.errors import LogStoreError
    from logstore.log.journal_tail import collect_tails

    journals: dict[str, Tails] = {}
    damages = []
    for home in homes:
        try:
            found = journals_in([home])
            if not found:
                require_no_journal(home)
            for journal in found:
                journals[str(home)] = collect_tails(observed_journal(journal).frames())
        except LogStoreError as error:
            damages.append(error)
    return journals, damages


def _all_log_directories(data: Path, named: Sequence[Path]) -> list[Path]:
    """Return the log directories of all brokers.

    One that is out of reach may have the newest replica, so the user must name it or give it up.
    """
    from logstore.cluster.log_directory_record import RECORD, broker_directories

    found = broker_directories(data, named)
    for one in found:
        if one.out_of_reach is not None:
            record = data / "brokers" / one.broker / RECORD
            fail(f"{one.out_of_reach}. Name it with --log-directory; or, if it is lost for good, remove {record}")
    return [one.path for one in found]


def _newest_tails(data: Path, homes: Sequence[Path]) -> "Tails":
    """Return the newest replica's content for each partition. Raises the damage of a journal."""
    from logstore.inspection.table_check import newest_tails

    journals, damages = read_journals(homes)
    if damages:
        raise damages[0]
    if not journals and is_of_cluster(data):
        fail(f"No journal of the cluster is in {data}: name the log.dirs of all brokers with --log-directory")
    return newest_tails(journals.values())


def finding_text(topic: str, finding: "Finding") -> str:
    where = topic if finding.partition is None else f"{topic}-{finding.partition}"
    return f"{where}: {finding.check}: {finding.text}"


def _print_reports(reports: "list[TopicReport]", *, journal: bool) -> None:
    print_table(
        ["topic", "version", "partitions", "files", "records", "bytes", "state"],
        [
            (
                report.topic,
                "-" if report.version is None else report.version,
                report.partitions or "-",
                report.files,
                report.records,
                bytes_text(report.bytes),
                counted(len(report.problems), "problem") if report.problems else "good",
            )
            for report in reports
        ],
    )
    for report in reports:
        for finding in report.notes:
            print(f"note: {finding_text(report.topic, finding)}")
        if report.unnamed_files:
            files = counted(report.unnamed_files, "file")
            print(f"note: {report.topic}: {files} on disk not in the table; a vacuum deletes what is old enough")
    if not journal:
        print("note: there is no journal: records that are not in Delta yet were not looked for")


REBUILD_EXAMPLES = """\b
Examples:
  logstore topic rebuild events --dry-run
  logstore topic rebuild events --data /srv/log
  logstore topic rebuild events --topic-id 6ba7b810-9dad-11d1-80b4-00c04fd430c8 --config cleanup.policy=compact
"""


def rebuild(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    data: DataOption = None,
    log_directory: LogDirectoryOption = None,
    topic_id: Annotated[
        str | None,
        typer.Option("--topic-id", metavar="ID", help="The topic's id, if nothing else tells it; 'new' for a new one."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="The number of partitions, if it was larger.")
    ] = None,
    config: ConfigOption = None,
    log_start: Annotated[
        list[str] | None,
        typer.Option(
            "--log-start",
            metavar="PARTITION=OFFSET",
            help="Records of a partition below this offset were deleted; may be repeated.",
        ),
    ] = None,
    give_up_missing: Annotated[
        bool, typer.Option("--give-up-missing", help="Go on without records that no file has any more.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Make a new Delta log from a topic's files.

    For a log that is lost or beyond repair. The store, in a cluster every broker, must be stopped. Shows the plan, and
    asks first.

    The files decide, with all that can still be read of the old log: of files for the same offsets the newest ones
    count, so that what retention, compaction and merge took out stays out. The old log is kept beside the new one. In a
    cluster the journal counts whose replica is the newest: name the log directories of all brokers.
    """
    from logstore.inspection.table_rebuild import Known, carry_out, plan_rebuild
    from logstore.table_root import open_root
    from logstore.topic_config import validate_overrides

    directory = given_data(data)
    require_topics(directory, [name])
    known = Known(
        topic_id=_uuid(topic_id),
        new_topic_id=topic_id == "new",
        partitions=partitions,
        configs=validate_overrides(parse_configs(config)),
        log_starts=_log_starts(log_start),
        give_up_missing=give_up_missing,
    )
    homes = _all_log_directories(directory, log_directory or ())
    with stopped_store(directory, journals_in(homes)):
        root = open_root(directory)
        files = root.open(name)
        if (aside := root.log_set_aside(name)) is not None:
            if dry_run:
                fail(f"An earlier rebuild of topic {name} was cut short: run it again, without --dry-run")
            files.put_back(aside)
        _require_damage(files)
        tails = _newest_tails(directory, homes)
        if (other := topic_names(directory).get(str(known.topic_id), name)) != name:
            fail(f"{known.topic_id} is the id of topic {other}")
        plan = plan_rebuild(
            files,
            tails,
            known,
            _orphans(directory, name, tails),
            only_one_lost={*require_topics(directory, [])} - {*topic_names(directory).values()} <= {name},
        )
        if not json:
            _print_plan(plan)
        done = not dry_run and not plan.refusals
        if done and not yes:
            confirm(f"Rebuild the Delta log of topic {name} so?", otherwise="Nothing was changed.")
        kept = carry_out(root, plan) if done else None
        report = _verified(directory, homes, name) if done else None
    if json:
        print_json({"topic": name, "rebuilt": done, "old_log": kept, "plan": plan, "problems": report or []})
    elif done:
        print(f"Rebuilt topic {name}. The old log: {files.where(kept) if kept else 'there was none'}")
    for text in plan.refusals if not dry_run or not json else ():
        typer.echo(f"logstore: {name}: {text}", err=True)
    if plan.candidates and not json:
        options = [*chain.from_iterable(("--config", text) for text in config or ())]
        options += chain.from_iterable(("--log-start", text) for text in log_start or ())
        options += [] if partitions is None else ["--partitions", str(partitions)]
        options += [flag for flag, given in (("--give-up-missing", give_up_missing), ("--dry-run", dry_run)) if given]
        for candidate in plan.candidates:
            words = [name, "--data", str(directory), "--topic-id", str(candidate), *options]
            typer.echo(f"  logstore topic rebuild {shlex.join(words)}", err=True)
    for finding in report or ():
        typer.echo(f"logstore: {finding_text(name, finding)}", err=True)
    if plan.refusals or report:
        raise typer.Exit(FAILED)


def _uuid(text: str | None) -> UUID | None:
    if text in (None, "new"):
        return None
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no id, and not 'new'", param_hint="--topic-id") from None


def _log_starts(given: list[str] | None) -> dict[int, int]:
    found: dict[int, int] = {}
    for text in given or ():
        partition, _, offset = text.partition("=")
        if not (partition.isdecimal() and offset.isdecimal()):
            raise typer.BadParameter(f"{text!r} is not PARTITION=OFFSET", param_hint="--log-start")
        if int(partition) in found:
            raise typer.BadParameter(f"partition {partition} is given twice", param_hint="--log-start")
        found[int(partition)] = int(offset)
    return found


def _require_damage(files: "TableFiles") -> None:
    """End the command if the log can be read: it is the truth, and nothing must be rebuilt from less than it has."""
    from logstore.delta.log_check import observed_snapshot, read_remains
    from logstore.errors import LogStoreError

    if read_remains(files).problems:
        return
    try:
        observed_snapshot(files)
    except LogStoreError:
        return
    fail(f"The Delta log of topic {files.name} is whole: there is nothing to rebuild. See: logstore topic verify")


def _orphans(data: Path, name: str, tails: "Tails") -> dict[UUID, str]:
    """Return topics with records in the journal that are not another table's and were not deleted."""
    from logstore.table_root import open_root

    others = {UUID(topic_id) for topic_id, other in topic_names(data).items() if other != name}
    others |= open_root(data).removed()
    found: dict[UUID, str] = {}
    for topic_id in sorted({topic_id for topic_id, _ in tails} - others):
        ends = {partition: tail.end_offset for (found_id, partition), tail in tails.items() if found_id == topic_id}
        found[topic_id] = ", ".join(f"partition {p} up to offset {end}" for p, end in sorted(ends.items()))
    return found


def _print_plan(plan: "RebuildPlan") -> None:
    topic_id = "not known" if plan.candidates else "new" if plan.has_new_id else str(plan.topic_id)
    print(f"Topic {plan.topic}, id {topic_id}, {counted(len(plan.partitions), 'partition')}")
    print_table(
        ["partition", "log start", "sealed", "clean point", "epoch", "files", "records", "bytes", "superseded", "gaps"],
        [
            (
                part.partition,
                part.log_start,
                part.sealed,
                part.cleaned,
                part.leader_epoch,
                len(part.files),
                sum(file.num_records for file in part.files),
                bytes_text(sum(file.size for file in part.files)),
                len(part.superseded),
                ", ".join(f"{start} to {end - 1}" for start, end in part.gaps) or "-",
            )
            for part in plan.partitions
        ],
    )
    for text in plan.warnings:
        print(f"note: {text}")


def _verified(data: Path, homes: Sequence[Path], name: str) -> "list[Finding]":
    """Return the problems of the rebuilt topic."""
    from logstore.inspection.table_check import verify_topic
    from logstore.table_root import open_root

    return verify_topic(open_root(data).open(name), read_journals(homes)[0]).problems


TAKE_BACK_EXAMPLES = """\b
Examples:
  logstore topic take-feature-back events
  logstore topic take-feature-back events --feature deletionVectors
  logstore topic take-feature-back events --data /srv/log --json | jq -r .features[]
"""


def take_feature_back(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The topic.")],
    feature: Annotated[
        str | None,
        typer.Option(
            "--feature",
            metavar="FEATURE",
            help="One feature, as Delta's protocol names it, with those that need it. [default: all but appendOnly]",
        ),
    ] = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Take Delta features back.

    Features that another writer has turned on for the topic's table: the table goes back to reader version 1 and writer
    version 2, or to what its other features ask for. Readers see the same records before and after. The
    command works on a data directory, also while the store runs.

    Files with deletion vectors are rewritten without the deleted rows. What a feature has left in the table's
    properties and columns goes: with column defaults, constraints, generated and identity columns, and row ids.
    """
    from logstore.clock import SystemClock
    from logstore.delta.topic_table import TopicTable
    from logstore.inspection.feature_removal import take_back
    from logstore.settings import load_settings
    from logstore.table_root import open_root
    from logstore.topic_config import TopicConfig

    directory = given_data(data)
    require_topics(directory, [name])
    defaults = load_settings().topic_defaults
    taken = take_back(
        TopicTable(open_root(directory).open(name)),
        name,
        feature,
        lambda snapshot: TopicConfig.parse(snapshot.config_overrides, defaults),
        SystemClock().now_ms(),
    )
    told = _refreshed(directory, name)
    if json:
        print_json({"topic": name, **msgspec.to_builtins(taken)})
        return
    if not taken.features:
        print(f"The table of topic {name} has {'no table features' if feature is None else f'no feature {feature}'}")
        return
    print(f"Took {', '.join(taken.features)} back from topic {name}: Delta version {taken.version}")
    if taken.rewritten_files:
        print(f"Rewrote {counted(taken.rewritten_files, 'file')} with deletion vectors")
    if not told:
        print("No running store was notified; one that runs notices the change by itself")


def _refreshed(data: Path, name: str) -> bool:
    """Make the store that runs on ``data`` read the table; return True if one did."""
    from logstore.cli.data_directory import url_of_data
    from logstore.client.admin import Admin
    from logstore.errors import LogStoreError

    url = url_of_data(data)
    if url is None:
        return False
    try:
        with Admin(url, request_timeout_ms=_REFRESH_TIMEOUT_MS, default_api_timeout_ms=0) as admin:
            admin.refresh(name)
    except LogStoreError:
        return False
    return True
