"""``logstore segment ...``: footer, row groups and records of a topic's Parquet files, and whether they are whole."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.data_directory import given_data, require_topics
from logstore.cli.output import bytes_text, counted, print_json, print_table, time_text
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

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.delta.log_check import LogRemains
    from logstore.table_files import TableFiles

app = typer.Typer(no_args_is_help=True, help="Look at segment files, and check them.", rich_markup_mode=None)

FilesArgument = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FILE", parser=given_path, help="Parquet files below <data>/topics/<topic>."),
]
TopicOption = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="All files in the table of this topic.")
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="With --topic: only of this partition.")
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        parser=given_path,
        help="With --topic: the data directory. Default: the setting data (data).",
    ),
]


@app.command(
    epilog="""\b
Examples:
  logstore segment dump data/topics/events/partition=0/00000000000000000000-*.parquet
  logstore segment dump FILE --records --limit 10 --json
  logstore segment dump --topic events --partition 0 --records --from 1000 --to 1010
"""
)
def dump(
    files: FilesArgument = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    data: DataOption = None,
    records: RecordsOption = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="The most records to print.")] = None,
    start: FromOption = None,
    end: ToOption = None,
    format: RecordFormatOption = None,
    json: JsonOption = False,
) -> None:
    """Print the footer and the row groups of segments, or with --records their records.

    Changes nothing, and works while the store runs. The table cuts long keys and values short; --json and --format
    print all of them.
    """
    require_records(records, **{"from": start, "to": end, "format": format, "limit": limit})
    chosen = _chosen(files, topic, partition, data)
    if records:
        wanted = selected_records(start=start, end=end, limit=limit, format=format, json=json)
        print_records(_records(chosen, wanted), wanted)
        return
    for number, found in enumerate(chosen):
        if number and not json:
            print()
        _dump_one(found, json=json)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    files: "TableFiles"
    name: str


def _chosen(paths: list[Path] | None, topic: str | None, partition: int | None, data: Path | None) -> list[_File]:
    """Return the files that the arguments name, those of a topic by partition and offset. Raises usage errors."""
    from logstore.segments.names import known_segment_name
    from logstore.table_files import find_file
    from logstore.table_root import open_root

    if bool(paths) == (topic is not None):
        raise typer.BadParameter("name files, or a topic with --topic")
    if paths:
        if partition is not None or data is not None:
            raise typer.BadParameter("--partition and --data go with --topic")
        for path in paths:
            if not path.is_file():
                fail(f"There is no file {path}")
        return [_File(path, *find_file(path)) for path in paths]
    assert topic is not None
    directory = given_data(data)
    require_topics(directory, [topic])
    from logstore.delta.log_check import observed_snapshot

    table = open_root(directory).open(topic)
    snapshot = observed_snapshot(table)
    if partition is not None and partition >= snapshot.num_partitions:
        fail(f"Partition {partition} not found: topic {topic} has partitions 0 to {snapshot.num_partitions - 1}")

    def place(name: str) -> tuple[int, int, str]:
        known = known_segment_name(name)
        if known is not None:
            return known.partition, known.base_offset, name
        number, base, _ = snapshot.ranges().get(name, (-1, -1, -1))
        return number, base, name

    places = sorted(map(place, snapshot.paths))
    return [
        _File(Path(table.where(name)), table, name)
        for number, _, name in places
        if partition is None or number == partition
    ]


def _records(chosen: Sequence[_File], wanted: RecordSelection) -> "Iterator[tuple[str, int, pa.RecordBatch]]":
    from logstore.segments.reader import read_footer, row_group_batches, row_groups

    for found in chosen:
        footer = read_footer(found.files, found.name)
        if not wanted.holds_any(footer.base_offset, footer.end_offset):
            continue
        for group in row_groups(found.files, found.name):
            if wanted.holds_any(group.first_offset, group.last_offset + 1):
                for batch in row_group_batches(found.files, found.name, group):
                    yield found.files.name, footer.partition, batch


def _dump_one(file: _File, *, json: bool) -> None:
    from logstore.segments.reader import read_footer, row_groups

    footer, groups = read_footer(file.files, file.name), row_groups(file.files, file.name)
    size = file.files.head(file.name).size
    if json:
        print_json({"file": str(file.path), "size_bytes": size, "footer": asdict(footer), "row_groups": groups})
        return
    count = sum(group.num_rows for group in groups)
    print(
        f"{file.path.name}: partition {footer.partition}, offsets {footer.base_offset} to {footer.end_offset} "
        f"(exclusive), {counted(count, 'record')}, {bytes_text(size)}"
    )
    epochs = ", ".join(f"{epoch} from offset {start}" for epoch, start in footer.leader_epochs)
    print(f"Leader epoch {footer.leader_epoch}; epochs so far: {epochs or 'none'}")
    producers = len({batch.owner for batch in footer.producers})
    print(
        f"Remembered at its end: {counted(producers, 'producer')}, "
        f"{counted(len({batch.owner for batch in footer.idempotency_keys}), 'idempotency key')}\n"
    )
    print_table(
        ["row group", "first offset", "last offset", "records", "bytes", "first timestamp", "last timestamp"],
        [
            (
                group.index,
                group.first_offset,
                group.last_offset,
                group.num_rows,
                bytes_text(group.encoded_bytes),
                time_text(group.min_timestamp_ms),
                time_text(group.max_timestamp_ms),
            )
            for group in groups
        ],
    )


@app.command(
    epilog="""\b
Examples:
  logstore segment verify data/topics/events/partition=0/*.parquet
  logstore segment verify --topic events --json
"""
)
def verify(
    files: FilesArgument = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Check every byte and every record of segments, and compare them with the Delta log.

    Checks that checksums are right, offsets rise, statistics are true, and name, footer and add action agree. Exit code
    1 if a file is damaged. Changes nothing, and works while the store runs. A file that the Delta log does not name is
    not damage: a job has replaced it, or it comes from a crash.
    """
    from logstore.delta.log_check import read_remains

    chosen = _chosen(files, topic, partition, data)
    logs: dict[str, LogRemains] = {}
    checked: list[_Checked] = []
    for found in chosen:
        remains = logs.get(found.files.uri) or logs.setdefault(found.files.uri, read_remains(found.files))
        checked.append(_check(found, remains))
    if json:
        print_json(checked)
    else:
        print_table(
            ["file", "in the table", "records", "first offset", "last offset", "bytes", "state"],
            [
                (
                    Path(found.file).name,
                    found.in_table,
                    *("-" if value is None else value for value in (found.records, found.min_offset, found.max_offset)),
                    bytes_text(found.size_bytes),
                    "damaged" if found.problems else "another writer's" if found.foreign else "good",
                )
                for found in checked
            ],
        )
    for result in checked:
        for text in result.problems:
            typer.echo(f"logstore: {text}", err=True)
    if any(found.problems for found in checked):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class _Checked:
    """One result. ``in_table`` is ``active``, ``removed`` by a commit, or ``not named`` in the readable Delta log."""

    file: str
    in_table: str
    size_bytes: int
    foreign: bool
    records: int | None
    min_offset: int | None
    max_offset: int | None
    problems: list[str]


def _check(found: _File, remains: "LogRemains") -> _Checked:
    from logstore.delta.actions import Add
    from logstore.errors import LogStoreError
    from logstore.inspection.table_check import check_active
    from logstore.segments.checking import check_file

    problems: list[str] = []
    add: Add | None = remains.added.get(found.name)
    in_table = "active" if add else "removed" if found.name in remains.removed else "not named"
    try:
        size = found.files.head(found.name).size
    except FileNotFoundError:
        text = f"{found.path} is not there, and the Delta log names it"
        return _Checked(str(found.path), in_table, 0, False, None, None, None, [text])
    try:
        if add is None:
            checked = check_file(found.files, found.name)
        else:
            checked = check_active(found.files, add, lambda finding: problems.append(finding.text))
    except (LogStoreError, OSError) as error:
        return _Checked(str(found.path), in_table, size, False, None, None, None, [str(error)])
    return _Checked(
        str(found.path),
        in_table,
        size,
        checked.footer is None,
        checked.num_records,
        checked.min_offset,
        checked.max_offset,
        problems,
    )
