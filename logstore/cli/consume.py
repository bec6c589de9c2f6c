"""``logstore consume``: records of a topic on stdout or into a file."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.command_group import fail
from logstore.cli.options import CLIENT_ID, ClientIdOption, UrlOption, reachable_url
from logstore.cli.output import bytes_text, counted
from logstore.cli.record_writers import Format, RecordWriter, record_writer

if TYPE_CHECKING:
    from logstore.client.consumer import Consumer
    from logstore.client.metadata import TopicPartition

EXAMPLES = """\b
Examples:
  logstore consume events                              all that is there
  logstore consume events --follow                     what comes from now on, as Kafka's console consumer
  logstore consume events --from-beginning --follow
  logstore consume events --partition 0 --offset 1000 --max 10 --json
  logstore consume events --from-timestamp 1735689600000 | jq .user
  logstore consume events --group nightly --output new.parquet --progress
"""
# How long one wait for new records takes: Ctrl-C ends it at once all the same.
_POLL_SECONDS = 1.0
# How often a group's offsets are committed, as Kafka's auto.commit.interval.ms.
_COMMIT_SECONDS = 5.0
_PROGRESS_SECONDS = 1.0
_SUFFIXES = {
    ".csv": Format.csv,
    ".parquet": Format.parquet,
    ".ndjson": Format.json,
    ".jsonl": Format.json,
    ".txt": Format.value,
}


def consume(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record; with --group, where it has no offset.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="From this offset; with several partitions name one.")
    ] = None,
    from_timestamp: Annotated[
        int | None, typer.Option("--from-timestamp", metavar="MS", help="From this time on: ms since 1970, UTC.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Go on where this consumer group was, and commit what was written.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")] = False,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.", metavar="N")
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            help="value: its bytes; key-value: key, TAB, value; json: an object a line with key and value as text; "
            "base64: the same with both as base64; csv and parquet: columns. [default: value, or as --output ends]",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout.")
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Records and rate on stderr. [default: with --output]"),
    ] = None,
    client_id: ClientIdOption = CLIENT_ID,
    url: UrlOption = None,
) -> None:
    """Print the records of a topic, one a line, or write them to a file.

    Without --follow it stops at what is the end when it starts, and begins with the first record unless told otherwise.
    With --follow it begins at the end. Order holds within each partition. A null is printed as 'null'.
    """
    from logstore.client.consumer import Consumer

    if sum((from_beginning, offset is not None, from_timestamp is not None)) > 1:
        raise typer.BadParameter("give one of --from-beginning, --offset and --from-timestamp")
    chosen = _format(output, format, json=json)
    if chosen is Format.parquet and output is None and sys.stdout.isatty():
        raise typer.BadParameter("a terminal cannot show parquet: give --output FILE", param_hint="--format")
    with Consumer(
        reachable_url(ctx, url),
        group_id=group,
        client_id=client_id,
        auto_offset_reset="earliest" if from_beginning or not follow else "latest",
        enable_auto_commit=False,
    ) as consumer:
        _assign(consumer, topic, partition, offset, from_timestamp)
        ends = None if follow else consumer.end_offsets(consumer.assignment())
        written = _Written(consumer, commits=group is not None)
        try:
            with ExitStack() as stack:
                sink = stack.enter_context(output.open("wb")) if output is not None else sys.stdout.buffer
                writer = stack.enter_context(record_writer(chosen, sink))
                meter = stack.enter_context(_meter(shown=output is not None if progress is None else progress))
                _write_records(consumer, writer, meter, written, ends=ends, remaining=max_records)
        except KeyboardInterrupt:
            # The output is complete as far as it goes.
            written.commit()
            raise
        written.commit()


def _format(output: Path | None, given: Format | None, *, json: bool) -> Format:
    if json:
        return Format.json
    if given or output is None or not output.suffix:
        return given or Format.value
    if output.suffix not in _SUFFIXES:
        raise typer.BadParameter(
            f"{output.suffix} is no ending that says how to write: use {', '.join(_SUFFIXES)}, or give --format",
            param_hint="--output",
        )
    return _SUFFIXES[output.suffix]


def _assign(
    consumer: "Consumer", topic: str, partitions: list[int] | None, offset: int | None, timestamp_ms: int | None
) -> None:
    from logstore.client.metadata import TopicPartition

    known = consumer.partitions_for(topic)
    chosen = known if partitions is None else [TopicPartition(topic, partition) for partition in partitions]
    if missing := set(chosen) - set(known):
        fail(f"Partition {min(missing).partition} not found: topic {topic} has partitions 0 to {len(known) - 1}")
    consumer.assign(chosen)
    if offset is not None:
        _seek(consumer, topic, offset)
    if timestamp_ms is not None:
        found = consumer.offsets_for_times(dict.fromkeys(chosen, timestamp_ms))
        for assigned, at in found.items():
            if at is None:
                consumer.seek_to_end([assigned])
            else:
                consumer.seek(assigned, at.offset)


def _seek(consumer: "Consumer", topic: str, offset: int) -> None:
    assigned = sorted(consumer.assignment())
    if len(assigned) > 1:
        raise typer.BadParameter(
            f"topic {topic} has {len(assigned)} partitions: name one with --partition", param_hint="--offset"
        )
    (first,) = consumer.beginning_offsets(assigned).values()
    (end,) = consumer.end_offsets(assigned).values()
    if not first <= offset <= end:
        fail(f"Offset {offset} is outside partition {assigned[0].partition} of topic {topic}: it has {first} to {end}")
    consumer.seek(assigned[0], offset)


@dataclass(slots=True)
class _Written:
    """How far each partition is in the output; with ``commits`` the group gets to know."""

    consumer: "Consumer"
    commits: bool
    next_offsets: dict["TopicPartition", int] = field(default_factory=dict)
    due: float = field(default_factory=lambda: time.monotonic() + _COMMIT_SECONDS)

    def commit_when_due(self) -> None:
        if time.monotonic() >= self.due:
            self.commit()

    def commit(self) -> None:
        if self.commits and self.next_offsets:
            self.consumer.commit(self.next_offsets)
        self.due = time.monotonic() + _COMMIT_SECONDS


def _write_records(
    consumer: "Consumer",
    writer: RecordWriter,
    meter: "_Meter",
    written: _Written,
    *,
    ends: dict["TopicPartition", int] | None,
    remaining: int | None,
) -> None:
    from logstore.client.metadata import TopicPartition

    while ends is None or _drop_finished(consumer, ends):
        fetched = consumer.poll_arrow(max_records=remaining, timeout_s=_POLL_SECONDS)
        if fetched is not None:
            at = TopicPartition(fetched.topic, fetched.partition)
            if ends is not None:
                fetched = fetched.before(ends[at])
            writer.write(fetched)
            # A pipe gets whole batches, and at once: who follows wants to see them.
            writer.flush()
            if len(fetched):
                written.next_offsets[at] = fetched.next_offset
            meter.add(len(fetched), fetched.batch.nbytes)
            if remaining is not None:
                remaining -= len(fetched)
                if not remaining:
                    return
        meter.show()
        if not writer.complete_at_close:
            written.commit_when_due()


def _drop_finished(consumer: "Consumer", ends: dict["TopicPartition", int]) -> bool:
    """Stop reading partitions that are at their ends; whether any is left."""
    finished = {partition for partition, end in ends.items() if consumer.position(partition) >= end}
    if finished:
        for partition in finished:
            del ends[partition]
        consumer.assign(consumer.assignment() - finished)
    return bool(ends)


@dataclass(slots=True)
class _Meter:
    """How many records came, and how fast: one line on stderr, on a terminal always the same one."""

    shown: bool
    began: float = field(default_factory=time.monotonic)
    due: float = field(default_factory=lambda: time.monotonic() + _PROGRESS_SECONDS)
    records: int = 0
    bytes: int = 0

    def add(self, records: int, size: int) -> None:
        self.records += records
        self.bytes += size

    def show(self, *, last: bool = False) -> None:
        now = time.monotonic()
        if not self.shown or (now < self.due and not last):
            return
        self.due = now + _PROGRESS_SECONDS
        seconds = max(now - self.began, 1e-3)
        rate = f"{self.records / seconds:,.0f} records/s, {bytes_text(self.bytes / seconds)}/s"
        line = f"Consumed {counted(self.records, 'record')} ({bytes_text(self.bytes)}) in {seconds:,.1f} s: {rate}"
        start, end = ("\r", "\n" if last else "\x1b[K") if sys.stderr.isatty() else ("", "\n")
        sys.stderr.write(f"{start}{line}{end}")
        sys.stderr.flush()


@contextmanager
def _meter(*, shown: bool) -> Iterator[_Meter]:
    meter = _Meter(shown)
    try:
        yield meter
    finally:
        meter.show(last=True)
