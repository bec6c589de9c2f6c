"""``logstore produce``: lines of a file or of stdin become records."""

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from logstore.cli.command_group import INTERRUPTED, fail
from logstore.cli.options import CLIENT_ID, ClientIdOption, JsonOption, UrlOption, reachable_url
from logstore.cli.output import bytes_text, counted, print_json

if TYPE_CHECKING:
    from logstore.cli.line_reader import Lines
    from logstore.client.delivery import BatchDelivery
    from logstore.client.producer import Producer

EXAMPLES = """\b
Examples:
  logstore produce events < lines.txt
  tail -F app.log | logstore produce logs
  logstore produce flights flights.ndjson --ndjson --key-field tailnum
  zstdcat big.ndjson.zst | logstore produce events --ndjson --compression zstd
"""
# After a failure or Ctrl-C: how long what was sent may still take to be answered.
_SETTLE_SECONDS = 10.0
_BUFFER_BYTES = 64 * 1024 * 1024

Report = Callable[[int, int], None]


def produce(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Read this file; stdin without it, or with -.")
    ] = None,
    ndjson: Annotated[bool, typer.Option("--ndjson", help="Refuse lines that are not JSON.")] = False,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="FIELD",
            help="Every line is a JSON object, and this field's JSON text is the key (a text keeps its quotes, "
            "as when posted as JSON).",
        ),
    ] = None,
    key_raw: Annotated[
        bool,
        typer.Option("--key-raw", help="With --key-field: a text key without its quotes."),
    ] = False,
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
    client_id: ClientIdOption = CLIENT_ID,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Send lines to a topic: each line that is not empty is a record, its bytes the value.

    Memory is bounded whatever the input's size. Stops at the first record that is refused, says which line it was, and
    how many records are stored; exit code 1 then.
    """
    if key_raw and key_field is None:
        raise typer.BadParameter("needs --key-field", param_hint="--key-raw")
    with ExitStack() as stack:
        stream, size = _open(file, stack)
        from logstore.client.producer import Producer

        producer = Producer(
            reachable_url(ctx, url),
            client_id=client_id,
            acks="all" if acks == "all" else 1 if acks == "1" else 0,
            compression=None if compression == "none" else compression,
            buffer_bytes=_BUFFER_BYTES,
        )
        report = stack.enter_context(_progress(size, shown=not quiet and sys.stderr.isatty() and not (stream.isatty())))
        run = _Run(topic, producer, report)
        blocks = _blocks(stream, batch_bytes, partition, key_field, ndjson=ndjson, key_raw=key_raw)
        interrupted, problem = run.send_all(blocks)
    _summarize(run, problem, json=json, quiet=quiet)
    if problem:
        fail(problem)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


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
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    records: int = 0
    bytes: int = 0
    partitions: dict[int, _Stored] = field(default_factory=dict)
    waiting: deque[tuple["Lines", "BatchDelivery"]] = field(default_factory=deque)

    def send_all(self, blocks: Iterator[tuple["Lines", dict[str, Any]]]) -> tuple[bool, str | None]:
        """Whether Ctrl-C ended it, and what went wrong."""
        from logstore.errors import LogStoreError

        problem: str | None = None
        interrupted = False
        try:
            for lines, columns in blocks:
                self.waiting.append((lines, self.producer.send_batch(self.topic, columns)))
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
        problem = problem or self._collect(wait=True)
        self.seconds = time.monotonic() - self.began
        return interrupted, problem

    def _collect(self, *, wait: bool) -> str | None:
        """Take over what is settled; the first failure, with its line."""
        problem = None
        while self.waiting and (wait or self.waiting[0][1].done()):
            lines, delivery = self.waiting.popleft()
            if not delivery.done():
                # Closed, and its answer is still out.
                problem = problem or f"line {lines.numbers[0]} and on: no answer came, they may or may not be stored"
                continue
            for first, _, error in delivery.failures()[:1]:
                problem = problem or f"line {lines.numbers[min(first, len(lines.numbers) - 1)]}: {error.message}"
            self._count(lines, delivery)
        return problem

    def _count(self, lines: "Lines", delivery: "BatchDelivery") -> None:
        import numpy as np

        stored = np.ones(len(lines.numbers), bool)
        for first, end, _ in delivery.failures():
            stored[first:end] = False
        if not stored.any():
            return
        where = delivery.places()
        for partition in np.unique(where.partitions[stored]).tolist():
            offsets = where.offsets[stored & (where.partitions == partition)]
            seen = self.partitions.setdefault(partition, _Stored(partition, 0, int(offsets[0]), int(offsets[-1])))
            seen.records += len(offsets)
            seen.last_offset = int(offsets[-1])
        self.records += int(stored.sum())
        self.bytes += lines.size
        self.report(lines.size, int(stored.sum()))


def _blocks(
    stream: BinaryIO, batch_bytes: int, partition: int | None, key_field: str | None, *, ndjson: bool, key_raw: bool
) -> Iterator[tuple["Lines", dict[str, Any]]]:
    import numpy as np

    from logstore.cli.line_reader import JsonLines, read_lines

    json_lines = JsonLines(key_field, key_raw=key_raw) if ndjson or key_field is not None else None
    for lines in read_lines(stream, batch_bytes):
        if not len(lines.values):
            continue
        columns: dict[str, Any] = {"value": lines.values}
        if json_lines and (keys := json_lines.keys(lines)) is not None:
            columns["key"] = keys
        if partition is not None:
            columns["partition"] = np.full(len(lines.values), partition, np.int32)
        yield lines, columns


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


def _open(file: Path | None, stack: ExitStack) -> tuple[BinaryIO, int | None]:
    """The stream, and its size where that is known."""
    if file is None or str(file) == "-":
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
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=size, records=0)
        sent = 0

        def report(size: int, records: int) -> None:
            nonlocal sent
            sent += records
            progress.update(task, advance=size, records=sent)

        yield report
