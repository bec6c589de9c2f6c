"""Records of journals and segments, printed by the writers of ``consume`` (``journal dump``, ``segment dump``)."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.output import time_text
from logstore.cli.record_lines import LineEncoder
from logstore.cli.record_writers import Format, parse_format, record_writer

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.client.consumer.records import FetchedBatch

# Records that are printed at a time, because each becomes a few objects.
_ROWS = 1_000
_SHOWN_CHARACTERS = 60
_LINE = "{:>9} {:>14}  {:24}  {:24}  {:60}  {}"

RecordsOption = Annotated[bool, typer.Option("--records", "-r", help="Print the records, decompressed and decoded.")]
RecordFormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="With --records: a format of `logstore consume`, such as base64, csv or '%p/%o %k=%s'. [default: a table]",
        show_default=False,
    ),
]
FromOption = Annotated[
    int | None, typer.Option("--from", min=0, metavar="OFFSET", help="With --records: from this offset on.")
]
ToOption = Annotated[
    int | None, typer.Option("--to", min=0, metavar="OFFSET", help="With --records: up to this offset, without it.")
]


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Offsets [start, end) of records, at most ``limit`` records; ``format`` is that of ``--format``, or ``json``."""

    start: int | None
    end: int | None
    limit: int | None
    format: Format | LineEncoder

    def holds_any(self, base_offset: int, end_offset: int) -> bool:
        """Return True if a range of offsets has any wanted ones."""
        return (self.start is None or end_offset > self.start) and (self.end is None or base_offset < self.end)


def selected_records(
    *, start: int | None, end: int | None, limit: int | None, format: str | None, json: bool
) -> RecordSelection:
    """Combine the options. Raises a usage error for an empty range or an unknown format."""
    if start is not None and end is not None and end <= start:
        raise typer.BadParameter(f"it is not above --from {start}", param_hint="--to")
    if json and format is not None:
        raise typer.BadParameter("give one of --json and --format")
    if format is None:
        return RecordSelection(start, end, limit, Format.json if json else table_lines)
    try:
        chosen = parse_format(format)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--format") from None
    if chosen is Format.parquet:
        raise typer.BadParameter("a dump is text: parquet is for consume --output", param_hint="--format")
    return RecordSelection(start, end, limit, chosen)


def require_records(asked: bool, **others: object) -> None:
    """Raise a usage error for options of ``--records`` without it."""
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if given and not asked:
        raise typer.BadParameter(f"{', '.join(given)} is for records: also give --records")


def print_records(batches: "Iterable[tuple[str, int, pa.RecordBatch]]", wanted: RecordSelection) -> None:
    """Print batches of LOG_SCHEMA with their topics and partitions; a thousand records are in memory at a time."""
    from logstore.client.consumer.records import FetchedBatch

    left = wanted.limit
    if wanted.format is table_lines:
        print(_LINE.format("partition", "offset", "timestamp", "key", "value", "headers"))
    sys.stdout.flush()
    with record_writer(wanted.format, sys.stdout.buffer) as writer:
        for topic, partition, batch in batches:
            for fetched in _slices(FetchedBatch(topic, partition, batch, -1, -1, -1), wanted):
                part = fetched if left is None else fetched.slice(0, left)
                writer.write(part)
                if left is not None and (left := left - len(part)) <= 0:
                    return


def _slices(fetched: "FetchedBatch", wanted: RecordSelection) -> "Iterator[FetchedBatch]":
    if wanted.end is not None:
        fetched = fetched.before(wanted.end)
    first = 0 if wanted.start is None else len(fetched.before(wanted.start))
    for at in range(first, len(fetched), _ROWS):
        yield fetched.slice(at, at + _ROWS)


def table_lines(fetched: "FetchedBatch") -> bytes:
    """Return lines for people: long keys and values are truncated."""
    lines = [
        _LINE.format(
            record.partition,
            record.offset,
            time_text(record.timestamp_ms),
            _short(record.key, 24),
            _short(record.value, _SHOWN_CHARACTERS),
            ", ".join(f"{name}={_short(value, _SHOWN_CHARACTERS)}" for name, value in record.headers),
        ).rstrip()
        + "\n"
        for record in fetched.records()
    ]
    return "".join(lines).encode(errors="backslashreplace")


def _short(content: bytes | None, characters: int) -> str:
    if content is None:
        return "null"
    text = content[: 4 * characters].decode("utf-8", "backslashreplace")
    shown = "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
    return shown if len(shown) <= characters else f"{shown[: characters - 3]}..."
