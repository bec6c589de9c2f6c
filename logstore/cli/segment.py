"""``logstore segment dump``: the footer, row groups and records of one Parquet file of a topic."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from logstore.cli.command_group import fail
from logstore.cli.options import JsonOption
from logstore.cli.output import bytes_text, counted, print_json, print_table

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.segments.reader import RowGroup
    from logstore.table_files import TableFiles

app = typer.Typer(no_args_is_help=True, help="Look at segment files.", rich_markup_mode=None)

_SHOWN_CHARACTERS = 60


@app.callback()
def _segment() -> None:
    """Look at segment files."""


@app.command(
    epilog="""\b
Examples:
  logstore segment dump data/topics/events/partition=0/00000000000000000000-1-*.parquet
  logstore segment dump FILE --records 10 --json
"""
)
def dump(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A Parquet file below <data>/topics/<topic>.")],
    records: Annotated[int, typer.Option("--records", "-n", min=0, help="Also print this many records.")] = 0,
    json: JsonOption = False,
) -> None:
    """Print a segment's footer, its row groups, and records. The table cuts texts short; --json has them whole."""
    from logstore.segments.reader import read_footer, row_groups
    from logstore.table_files import find_file

    if not file.is_file():
        fail(f"There is no file {file}")
    files, name = find_file(file)
    footer, groups = read_footer(files, name), row_groups(files, name)
    shown = _first_records(files, name, groups, records)
    size = files.head(name).size
    if json:
        print_json(
            {
                "file": str(file),
                "size_bytes": size,
                "footer": asdict(footer),
                "row_groups": groups,
                "records": [_json_record(record) for record in shown],
            }
        )
        return
    count = sum(group.num_rows for group in groups)
    print(
        f"{file.name}: partition {footer.partition}, offsets {footer.base_offset} to {footer.end_offset} (exclusive), "
        f"{counted(count, 'record')}, {bytes_text(size)}"
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
                _time_text(group.min_timestamp_ms),
                _time_text(group.max_timestamp_ms),
            )
            for group in groups
        ],
    )
    if shown:
        print()
        print_table(
            ["offset", "timestamp", "key", "value", "headers"],
            [
                (
                    record["offset"],
                    _time_text(record["timestamp"]),
                    _short(record["key"]),
                    _short(record["value"]),
                    len(record["headers"] or ()),
                )
                for record in shown
            ],
        )


def _first_records(files: "TableFiles", name: str, groups: "tuple[RowGroup, ...]", count: int) -> list[dict[str, Any]]:
    from logstore.segments.reader import read_row_group

    found: list[dict[str, Any]] = []
    for group in groups:
        if len(found) >= count:
            break
        found += _rows(read_row_group(files, name, group.index).slice(0, count - len(found)))
    return found


def _rows(batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    import pyarrow as pa

    timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    rows = batch.drop_columns(["timestamp"]).to_pylist()
    return [{**row, "timestamp": timestamp} for row, timestamp in zip(rows, timestamps, strict=True)]


def _json_record(record: dict[str, Any]) -> dict[str, Any]:
    """Bytes become base64 text when they are encoded."""
    return {name: record[name] for name in ("offset", "timestamp", "key", "value", "headers")}


def _time_text(timestamp_ms: int) -> str:
    """ISO 8601, UTC. Not ``fromtimestamp``: that refuses years that a table may hold."""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(content: bytes | None) -> str:
    if content is None:
        return "null"
    text = content[: 4 * _SHOWN_CHARACTERS].decode("utf-8", "backslashreplace").replace("\n", "\\n")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
