"""``logstore produce``: lines of a file or of stdin, or rows of CSV and Parquet files, become records."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from logstore.cli.command_group import INTERRUPTED, fail
from logstore.cli.options import CLIENT_ID, ClientIdOption, JsonOption, TopicArgument, UrlOption, reachable_url
from logstore.cli.output import bytes_text, counted, print_json

if TYPE_CHECKING:
    import numpy as np

    from logstore.cli.table_reader import Fields
    from logstore.client.delivery import BatchDelivery
    from logstore.client.producer import Producer

EXAMPLES = """\b
Examples:
  logstore produce events < lines.txt
  tail -F app.log | logstore produce logs
  logstore produce flights flights.ndjson --key-field tailnum
  logstore produce flights flights.csv --key-field tailnum --timestamp-field time_hour
  logstore produce copy events.parquet --partition-field partition
  zstdcat big.ndjson.zst | logstore produce events --format ndjson --compression zstd --rate 10000 --progress
"""
# After a failure or Ctrl-C: how long what was sent may still take to be answered.
_SETTLE_SECONDS = 10.0
_BUFFER_BYTES = 64 * 1024 * 1024

# With --rate: how many batches a second.
_BATCHES_PER_SECOND = 20

Report = Callable[[int, int], None]


class Format(StrEnum):
    lines = "lines"
    ndjson = "ndjson"
    csv = "csv"
    parquet = "parquet"


_SUFFIXES = {".ndjson": Format.ndjson, ".jsonl": Format.ndjson, ".csv": Format.csv, ".parquet": Format.parquet}
_TABLES = (Format.csv, Format.parquet)


def produce(
    ctx: typer.Context,
    topic: TopicArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Read this file; stdin without it, or with -.")
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            help="lines: any text; ndjson: refuse lines that are not JSON; csv (with names first), parquet: rows. "
            "[default: as FILE ends, else lines]",
            show_default=False,
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="FIELD",
            help="Every line or row is a JSON object, and this field's JSON text is the key (a text keeps its quotes, "
            "as when posted as JSON). In a file of records: the column of the keys [default: key].",
        ),
    ] = None,
    key_raw: Annotated[
        bool,
        typer.Option("--key-raw", help="With --key-field: a text key without its quotes."),
    ] = False,
    value_field: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="CSV, Parquet: the column of the values [default: value]. A file without it has a JSON object a row.",
        ),
    ] = None,
    timestamp_field: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN", help="CSV, Parquet: when (ms since 1970, or a time). In a file of records: timestamp."
        ),
    ] = None,
    headers_field: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Parquet: the headers. In a file of records: headers.")
    ] = None,
    partition_field: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="CSV, Parquet: each row to the partition of this column.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="All records to this partition.")
    ] = None,
    acks: Annotated[Literal["all", "1", "0"], typer.Option(help="When a record counts as stored.")] = "all",
    compression: Annotated[
        Literal["none", "lz4", "zstd"], typer.Option(help="Of batches, on the way and in the journal.")
    ] = "none",
    batch_bytes: Annotated[
        int, typer.Option("--batch-bytes", min=1, max=16 * 1024 * 1024, help="Bytes of lines in one request.")
    ] = 1024 * 1024,
    rate: Annotated[
        float | None, typer.Option(min=0.1, metavar="N", help="Send no more than this many records a second.")
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option(
            "--progress/--no-progress", help="A bar on stderr. [default: on a terminal, but not with --quiet]"
        ),
    ] = None,
    client_id: ClientIdOption = CLIENT_ID,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Send lines to a topic: each line that is not empty is a record, its bytes the value. Or rows of a table.

    Memory is bounded whatever the input's size. Stops at the first record that is refused, says which line or row it
    was, and how many records are stored; exit code 1 then.
    """
    if key_raw and key_field is None:
        raise typer.BadParameter("needs --key-field", param_hint="--key-raw")
    chosen = format or (_SUFFIXES.get(file.suffix, Format.lines) if file is not None else Format.lines)
    if chosen not in _TABLES and (value_field or timestamp_field or headers_field or partition_field):
        raise typer.BadParameter(f"lines have no columns: the format is {chosen}", param_hint="--...-field")
    if partition is not None and partition_field is not None:
        raise typer.BadParameter("give one of --partition and --partition-field")
    with ExitStack() as stack:
        stream, size = _open(file, stack, seekable=chosen is Format.parquet)
        from logstore.client.producer import Producer

        producer = Producer(
            reachable_url(ctx, url),
            client_id=client_id,
            acks="all" if acks == "all" else 1 if acks == "1" else 0,
            compression_type=compression,
            buffer_memory=_BUFFER_BYTES,
        )
        by_itself = not quiet and sys.stderr.isatty() and not stream.isatty()
        report = stack.enter_context(_progress(size, shown=by_itself if progress is None else progress))
        run = _Run(topic, producer, report, "row" if chosen in _TABLES else "line")
        if chosen in _TABLES:
            from logstore.cli.table_reader import Fields

            fields = Fields(key_field, value_field, timestamp_field, headers_field, partition_field, key_raw=key_raw)
            blocks = _row_blocks(stream, file, chosen, batch_bytes, fields)
        else:
            blocks = _line_blocks(stream, batch_bytes, key_field, ndjson=chosen is Format.ndjson, key_raw=key_raw)
        if partition is not None:
            blocks = _all_to(partition, blocks)
        if rate is not None:
            blocks = _no_faster(rate, blocks)
        interrupted, problem = run.send_all(blocks)
        if size is not None and not interrupted and not problem:
            # A record's bytes are not quite what it takes in the file: all of that was read.
            report(size - run.bytes, 0)
    _summarize(run, problem, json=json, quiet=quiet)
    if problem:
        fail(problem)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


@dataclass(frozen=True, slots=True)
class _Block:
    """Records, where they stand in the input (from 1), and how many bytes of it they took."""

    columns: dict[str, Any]
    numbers: "np.ndarray"
    size: int


@dataclass(slots=True)
class _Stored:
    """Of one partition. Offsets are -1 with acks=0."""

    partition: int
    records: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class _Run:
    """Keeps account of what was sent: only what the store acknowledged counts as stored."""

    topic: str
    producer: "Producer"
    report: Report
    unit: str
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    records: int = 0
    bytes: int = 0
    partitions: dict[int, _Stored] = field(default_factory=dict)
    waiting: deque[tuple[_Block, "BatchDelivery"]] = field(default_factory=deque)

    def send_all(self, blocks: Iterator[_Block]) -> tuple[bool, str | None]:
        """Whether Ctrl-C ended it, and what went wrong."""
        from logstore.errors import LogStoreError

        problem: str | None = None
        interrupted = False
        try:
            for block in blocks:
                self.waiting.append((block, self._send(block)))
                problem = self._collect(wait=False)
                if problem:
                    break
        except KeyboardInterrupt:
            interrupted = True
        except LogStoreError as error:
            problem = error.message
        hurry = interrupted or problem is not None
        try:
            self.producer.close(_SETTLE_SECONDS if hurry else None)
        except KeyboardInterrupt:
            interrupted = True
        except LogStoreError as error:
            problem = problem or (error.message if hurry else None)
        failure = self._collect(wait=True)
        problem = problem or failure
        self.seconds = time.monotonic() - self.began
        return interrupted, problem

    def _collect(self, *, wait: bool) -> str | None:
        """Take over what is settled; the first failure, with its line."""
        problem = None
        while self.waiting and (wait or self.waiting[0][1].done()):
            block, delivery = self.waiting.popleft()
            if not delivery.done():
                # Closed, and its answer is still out.
                problem = problem or (
                    f"{self.unit} {block.numbers[0]} and on: no answer came, they may or may not be stored"
                )
                continue
            for rows, error in delivery.failures()[:1]:
                problem = problem or f"{self.unit} {block.numbers[rows[0]]}: {error.message}"
            self._count(block, delivery)
        return problem

    def _send(self, block: _Block) -> "BatchDelivery":
        from logstore.errors import InvalidRequestError

        try:
            return self.producer.send_batch(self.topic, block.columns)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"{self.unit} {block.numbers[0]} and on: {error.message}") from error

    def _count(self, block: _Block, delivery: "BatchDelivery") -> None:
        import numpy as np

        stored = np.ones(len(block.numbers), bool)
        for rows, _ in delivery.failures():
            stored[rows] = False
        if not stored.any():
            return
        where = delivery.places()
        for partition in np.unique(where.partitions[stored]).tolist():
            offsets = where.offsets[stored & (where.partitions == partition)]
            seen = self.partitions.setdefault(partition, _Stored(partition, 0, int(offsets[0]), int(offsets[-1])))
            seen.records += len(offsets)
            seen.last_offset = int(offsets[-1])
        self.records += int(stored.sum())
        self.bytes += block.size
        self.report(block.size, int(stored.sum()))


def _line_blocks(
    stream: BinaryIO, batch_bytes: int, key_field: str | None, *, ndjson: bool, key_raw: bool
) -> Iterator[_Block]:
    from logstore.cli.line_reader import JsonLines, read_lines

    json_lines = JsonLines(key_field, key_raw=key_raw) if ndjson or key_field is not None else None
    for block in read_lines(stream, batch_bytes):
        lines, keys, problem = json_lines.check(block) if json_lines else (block, None, None)
        if len(lines.values):
            columns: dict[str, Any] = {"value": lines.values}
            if keys is not None:
                columns["key"] = keys
            yield _Block(columns, lines.numbers, lines.size)
        if problem:
            raise problem


def _row_blocks(
    stream: BinaryIO, file: Path | None, format: Format, batch_bytes: int, fields: "Fields"
) -> Iterator[_Block]:
    from logstore.cli.table_reader import read_csv, read_parquet

    if format is Format.csv:
        rows = read_csv(stream, batch_bytes, fields)
    else:
        assert file is not None
        rows = read_parquet(file, batch_bytes, fields)
    for part in rows:
        if len(part.numbers):
            yield _Block(part.columns, part.numbers, part.size)


def _all_to(partition: int, blocks: Iterator[_Block]) -> Iterator[_Block]:
    import numpy as np

    for block in blocks:
        partitions = np.full(len(block.numbers), partition, np.int32)
        yield _Block({**block.columns, "partition": partitions}, block.numbers, block.size)


def _no_faster(rate: float, blocks: Iterator[_Block]) -> Iterator[_Block]:
    """Blocks in parts, each not before its records are due."""
    began = time.monotonic()
    sent = 0
    rows = max(1, int(rate / _BATCHES_PER_SECOND))
    for block in blocks:
        count = len(block.numbers)
        for start in range(0, count, rows):
            end = min(start + rows, count)
            time.sleep(max(0.0, began + sent / rate - time.monotonic()))
            columns = {name: column[start:end] for name, column in block.columns.items()}
            size = block.size * end // count - block.size * start // count
            yield _Block(columns, block.numbers[start:end], size)
            sent += end - start


def _summarize(run: _Run, problem: str | None, *, json: bool, quiet: bool) -> None:
    partitions = [run.partitions[partition] for partition in sorted(run.partitions)]
    if json:
        print_json(
            {
                "topic": run.topic,
                "records": run.records,
                "bytes": run.bytes,
                "seconds": round(run.seconds, 3),
                "partitions": partitions,
                "error": problem,
            }
        )
    elif not quiet:
        rate = run.records / max(run.seconds, 1e-3)
        print(
            f"Produced {counted(run.records, 'record')} ({bytes_text(run.bytes)}) to topic {run.topic}, "
            f"{counted(len(partitions), 'partition')}, in {run.seconds:.1f} s ({rate:,.0f} records/s)"
        )


def _open(file: Path | None, stack: ExitStack, *, seekable: bool) -> tuple[BinaryIO, int | None]:
    """The stream, and its size where that is known."""
    if file is None or str(file) == "-":
        if seekable:
            raise typer.BadParameter("Parquet is read from its end: give a file, not stdin", param_hint="FILE")
        if sys.stdin.isatty():
            typer.echo("Type one record a line; Ctrl-D ends.", err=True)
        return sys.stdin.buffer, None
    if file.is_dir():
        raise typer.BadParameter(f"{file} is a directory", param_hint="FILE")
    stream = stack.enter_context(file.open("rb"))
    return stream, file.stat().st_size or None


@contextmanager
def _progress(size: int | None, *, shown: bool) -> Iterator[Report]:
    """A bar on stderr; ``report(bytes, records)`` moves it."""
    if not shown:
        yield lambda _bytes, _records: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = [
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[records]:,} records"),
    ]
    if size is not None:
        columns.append(TimeRemainingColumn())
    console = Console(stderr=True)
    # Where nothing can be overwritten, what stays is the last state.
    with Progress(*columns, console=console, transient=console.is_terminal) as progress:
        task = progress.add_task("", total=size, records=0)
        sent = 0

        def report(size: int, records: int) -> None:
            nonlocal sent
            sent += records
            progress.update(task, advance=size, records=sent)

        yield report
