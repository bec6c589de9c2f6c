"""``logstore produce`` turns lines of a file or of stdin, or rows of CSV and Parquet files, into records."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from logstore.cli.produce_input import Format, InputOptions, format_of, unescaped
from logstore.cli.produce_run import Run, progress_bar, summarize
from logstore.cli.record_blocks import no_faster
from logstore.command_line.command_group import INTERRUPTED, fail
from logstore.command_line.options import (
    CLIENT_ID,
    ClientIdOption,
    JsonOption,
    TopicArgument,
    UrlOption,
    given_path,
    reachable_url,
)

EXAMPLES = """\b
Examples:
  logstore produce events < lines.txt
  echo login | logstore produce events --key ada --header source=web
  logstore produce events -K : < keys-and-values.txt
  echo | logstore produce last-events --key ada --tombstone
  logstore produce flights flights.ndjson --key-field tailnum
  logstore produce flights flights.csv --key-field tailnum --timestamp-field time_hour --dry-run
  logstore --url http://other:8082 consume events -f record | logstore produce events --format record
  logstore produce copy events.parquet --partition-field partition
  zstdcat big.ndjson.zst | logstore produce events --format ndjson --compression zstd --rate 10000 --progress
"""
_BUFFER_BYTES = 64 * 1024 * 1024


def produce(
    ctx: typer.Context,
    topic: TopicArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", parser=given_path, help="The file to read; stdin without it, or with -."),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            help="lines: any text; ndjson: refuse lines that are not JSON; record: "
            "what consume --format record wrote; csv (the first line has names), parquet: "
            "rows. [default: by FILE's ending, or lines]",
            show_default=False,
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="KEY", help="Give all records this key.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Each line is a key, this text (\\t: a tab), and a value."
        ),
    ] = None,
    key_field: Annotated[
        str | None,
        typer.Option(
            "--key-field",
            metavar="FIELD",
            help="Every line or row is a JSON object, and this field is the key. In a file of records: the column of "
            "the keys [default: key].",
        ),
    ] = None,
    key_json: Annotated[
        bool,
        typer.Option("--key-json", help='Store keys as JSON texts: "ada" with its quotes instead of ada.'),
    ] = False,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="Give all records this header; may be repeated."),
    ] = None,
    tombstone: Annotated[
        bool, typer.Option("--tombstone", "-Z", help="Send empty values as null, which deletes the key.")
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
            metavar="COLUMN",
            help="CSV, Parquet: the column of times (or ms since 1970). In a file of records: timestamp.",
        ),
    ] = None,
    headers_field: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Parquet: the column of headers. In a file of records: headers."),
    ] = None,
    partition_field: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="CSV, Parquet: the column of partitions.")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Send all records to this partition.")
    ] = None,
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="CSV: the separator of columns (\\t: a tab). [default: ,]")
    ] = None,
    types: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN=TYPE,...",
            help="CSV: types of columns in JSON objects, as count=int64,price=decimal(10,2). All others are text.",
        ),
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="CSV: take types from the first rows: 00123 becomes 123.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Send nothing: show the first records as they would be stored.")
    ] = False,
    acks: Annotated[Literal["all", "1", "0"], typer.Option(help="When a record counts as stored.")] = "all",
    compression: Annotated[
        Literal["none", "lz4", "zstd"],
        typer.Option(help="Compress batches, both when they are sent and in the journal."),
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
            "--progress/--no-progress", help="Show a bar on stderr. [default: on a terminal, but not with --quiet]"
        ),
    ] = None,
    client_id: ClientIdOption = CLIENT_ID,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")] = False,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Send lines, or rows of a file, to a topic.

    Each line that is not empty is a record, and its bytes are the value. Rows come from CSV and Parquet. Memory is
    bounded for any size of input. The command stops at the first refused record with exit code 1, and prints the line
    or row of that record and the number of stored records.
    """
    options = InputOptions(
        format=format or format_of(file),
        key=key,
        key_separator=unescaped(key_separator),
        key_field=key_field,
        key_json=key_json,
        headers=header or [],
        tombstone=tombstone,
        value_field=value_field,
        timestamp_field=timestamp_field,
        headers_field=headers_field,
        partition_field=partition_field,
        partition=partition,
        delimiter=unescaped(delimiter),
        types=types,
        infer=infer,
    )
    with ExitStack() as stack:
        stream, size = _open(file, stack, seekable=options.format is Format.parquet)
        blocks = options.blocks(stream, file, batch_bytes)
        if dry_run:
            from logstore.cli.dry_run import show_first

            show_first(blocks, options.unit, json=json)
            return
        if rate is not None:
            blocks = no_faster(rate, blocks)
        from logstore.client.producer import Producer

        producer = Producer(
            reachable_url(ctx, url),
            client_id=client_id,
            acks="all" if acks == "all" else 1 if acks == "1" else 0,
            compression_type=compression,
            buffer_memory=_BUFFER_BYTES,
        )
        by_itself = not quiet and sys.stderr.isatty() and not stream.isatty()
        report = stack.enter_context(progress_bar(size, shown=by_itself if progress is None else progress))
        run = Run(topic, producer, report, options.unit)
        interrupted, problem = run.send_all(blocks)
        if size is not None and not interrupted and not problem:
            # A record's bytes differ from its bytes in the file, so at the end the whole file counts as read.
            report(size - run.bytes, 0)
    summarize(run, problem, json=json, quiet=quiet)
    if problem:
        fail(problem)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _open(file: Path | None, stack: ExitStack, *, seekable: bool) -> tuple[BinaryIO, int | None]:
    """Open the input; return the stream, and its size if known."""
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
