"""``logstore consume`` writes records of a topic to stdout or into a file."""

import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.meter import Meter, metered
from logstore.cli.output import problem_text
from logstore.cli.positions import Place, newest, reset_beyond_ends, seek
from logstore.cli.record_lines import LineEncoder
from logstore.cli.record_writers import Format, RecordWriter, parse_format, record_writer
from logstore.command_line.command_group import Interrupts, fail, waking
from logstore.command_line.options import (
    CLIENT_ID,
    ClientIdOption,
    KeyOption,
    TopicArgument,
    UrlOption,
    WhereOption,
    admin_of,
    given_path,
    reachable_url,
    selection,
    time_ms,
)
from logstore.command_line.profiles import chosen_name
from logstore.quantities import TIME_FORMS

if TYPE_CHECKING:
    from logstore.client.consumer import Consumer
    from logstore.client.metadata import TopicPartition

EXAMPLES = """\b
Examples:
  logstore consume events                              all records
  logstore consume events --follow                     new records only, as Kafka's console consumer
  logstore consume events --from-beginning --follow
  logstore consume events --tail 10 --follow           the last 10, then new ones
  logstore consume events --partition 0 --offset 1000 --max 10 --pretty
  logstore consume events --from-timestamp yesterday --to-timestamp today | jq .user
  logstore consume events --from-timestamp -1h -f '%T %p/%o %k=%s'
  logstore consume events --key ada
  logstore consume events --where '$.user == "ada" and $.amount > 100' --pretty
  logstore consume events --group nightly --output new.parquet --progress
"""
# Seconds that one wait for new records takes. Ctrl-C ends it at once.
_POLL_SECONDS = 1.0
# Seconds between commits of a group's offsets, as Kafka's auto.commit.interval.ms.
_COMMIT_SECONDS = 5.0
_SUFFIXES = {
    ".csv": Format.csv,
    ".parquet": Format.parquet,
    ".ndjson": Format.json,
    ".jsonl": Format.json,
    ".txt": Format.value,
}


def consume(
    ctx: typer.Context,
    topic: TopicArgument,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, metavar="N", help="Only this partition; may be repeated."),
    ] = None,
    from_beginning: Annotated[
        bool,
        typer.Option(
            "--from-beginning",
            help="Begin at the first record; with --group, only in partitions without a committed offset.",
        ),
    ] = False,
    offset: Annotated[
        int | None,
        typer.Option(
            "--offset",
            metavar="N",
            help="Begin at this offset of one partition; -N: N before the end of each.",
        ),
    ] = None,
    from_timestamp: Annotated[
        str | None, typer.Option("--from-timestamp", metavar="TIME", help=f"Begin at this time: {TIME_FORMS}.")
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", min=0, metavar="N", help="Print the last N records of all partitions, by timestamp."),
    ] = None,
    to_offset: Annotated[
        int | None,
        typer.Option("--to-offset", metavar="N", help="Stop before this offset; -N as with --offset."),
    ] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option("--to-timestamp", metavar="TIME", help="Stop before the first record of this time or later."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Continue at this consumer group's offsets, and commit those of printed records.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Wait for new records until Ctrl-C or SIGTERM.")
    ] = False,
    key: KeyOption = None,
    where: WhereOption = None,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.", metavar="N")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="value: its bytes; key-value: key, TAB, value; json: an object a line, keys and values as JSON where "
            "they are; record: the same for produce --format record, which stores each record as it was; pretty: json "
            "over several lines; base64: the same with both as base64; csv and parquet: columns; or a text as kcat's: "
            "%t topic, %p partition, %o offset, %k key, %s value, %h headers, %T timestamp in ms, %K %S bytes of key "
            r"and value, %%, \n \t. [default: value, or by the ending of --output]",
            show_default=False,
            autocompletion=lambda incomplete: [name for name in Format if name.startswith(incomplete)],
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    pretty: Annotated[bool, typer.Option("--pretty", help="The same as --format pretty.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", parser=given_path, help="Write to this file, not to stdout."),
    ] = None,
    progress: Annotated[
        bool | None,
        typer.Option("--progress/--no-progress", help="Show records and rate on stderr. [default: with --output]"),
    ] = None,
    client_id: ClientIdOption = CLIENT_ID,
    url: UrlOption = None,
) -> None:
    """Print the records of a topic.

    One record a line on stdout, or all of them to a file.

    Without --follow it reads from the first record (unless an option says otherwise) to the end at its start.
    With --follow it begins at the end. Order holds within each partition. A null is printed as 'null'.
    """
    from logstore.client.consumer import Consumer

    begin = Place(offset, time_ms(from_timestamp, "--from-timestamp"))
    end = Place(to_offset, time_ms(to_timestamp, "--to-timestamp"))
    if sum((from_beginning, offset is not None, from_timestamp is not None, tail is not None)) > 1:
        raise typer.BadParameter("give one of --from-beginning, --offset, --from-timestamp and --tail")
    if to_offset is not None and to_timestamp is not None:
        raise typer.BadParameter("give one of --to-offset and --to-timestamp")
    if follow and end.given:
        raise typer.BadParameter("--follow has no end: leave it out, or --to-offset and --to-timestamp")
    if tail is not None and (key is not None or where is not None):
        raise typer.BadParameter(
            "the store finds the last records by their offsets, not by their contents: give --from-timestamp or "
            "--offset -N instead of --tail"
        )
    selected = selection(key, where)
    if json and pretty:
        raise typer.BadParameter("give one of --json and --pretty")
    source = ctx.get_parameter_source("format")
    hint = "--format"
    if source is not None and source.name == "DEFAULT_MAP":
        hint = f"format of profile {chosen_name(ctx.find_root().params.get('profile'))}"
        if output is not None:
            format = None  # noqa: A001 - the file's name says more than the profile
    chosen = _format(output, "json" if json else "pretty" if pretty else format, hint)
    if chosen is Format.parquet and output is None and sys.stdout.isatty():
        raise typer.BadParameter("a terminal cannot show parquet: give --output FILE", param_hint="--format")
    store = reachable_url(ctx, url)
    _refuse_quarantined(ctx, url, topic, partition)
    string_keys = chosen in (Format.json, Format.record, Format.pretty) and _has_string_keys(ctx, url, topic)
    with Consumer(
        store,
        group_id=group,
        client_id=client_id,
        auto_offset_reset="earliest" if from_beginning or not follow else "latest",
        enable_auto_commit=False,
        where=selected,
    ) as consumer:
        _assign(consumer, topic, partition)
        ends = consumer.end_offsets(consumer.assignment())
        if end.given:
            ends = end.find(consumer, "--to-offset")
        if tail is not None:
            seek(consumer, newest(consumer, tail, ends))
        elif begin.given:
            seek(consumer, begin.find(consumer, "--offset"))
        elif group is not None:
            starts = consumer.end_offsets if follow and not from_beginning else consumer.beginning_offsets
            reset_beyond_ends(consumer, group, starts(consumer.assignment()))
        written = _Written(consumer, commits=group is not None)
        try:
            with ExitStack() as stack:
                interrupts = stack.enter_context(waking(consumer.wakeup))
                written.begin()
                sink = stack.enter_context(output.open("wb")) if output is not None else sys.stdout.buffer
                writer = stack.enter_context(record_writer(chosen, sink, string_keys=string_keys))
                meter = stack.enter_context(metered(shown=output is not None if progress is None else progress))
                _write_records(
                    consumer,
                    writer,
                    meter,
                    written,
                    interrupts,
                    ends=None if follow else ends,
                    remaining=max_records,
                )
        except KeyboardInterrupt:
            # Every record up to here is in the output.
            written.commit()
            raise
        written.commit()


def _format(output: Path | None, given: str | None, hint: str) -> Format | LineEncoder:
    """Return the chosen format; ``hint`` names the option that ``given`` comes from."""
    if given is not None:
        try:
            return parse_format(given)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint=hint) from None
    if output is None or not output.suffix:
        return Format.value
    if output.suffix not in _SUFFIXES:
        raise typer.BadParameter(
            f"{output.suffix} names no format: use {', '.join(_SUFFIXES)}, or give --format",
            param_hint="--output",
        )
    return _SUFFIXES[output.suffix]


def _assign(consumer: "Consumer", topic: str, partitions: list[int] | None) -> None:
    from logstore.client.metadata import TopicPartition

    known = consumer.partitions_for(topic)
    chosen = known if partitions is None else [TopicPartition(topic, partition) for partition in partitions]
    if missing := set(chosen) - set(known):
        fail(f"Partition {min(missing).partition} not found: topic {topic} has partitions 0 to {len(known) - 1}")
    consumer.assign(chosen)


def _refuse_quarantined(ctx: typer.Context, url: str | None, topic: str, partitions: list[int] | None) -> None:
    """End the command if a partition is quarantined: it returns no records, and would look empty."""
    with admin_of(ctx, url) as admin:
        problems = admin.status().problems
    for found in problems:
        if (found.topic, found.state) == (topic, "quarantined"):
            if found.partition is None:
                fail(problem_text(found))
            if partitions is None or found.partition in partitions:
                fail(f"{problem_text(found)}; its other partitions can be read with --partition")


def _has_string_keys(ctx: typer.Context, url: str | None, topic: str) -> bool:
    with admin_of(ctx, url) as admin:
        return admin.describe_topic(topic).configs["key.format"] == "string"


@dataclass(slots=True)
class _Written:
    """The progress of each partition in the output; with ``commits`` it is committed for the group. Partitions without
    a record count also: a later run with --follow would begin at the end of an uncommitted partition, and miss the
    records in between.
    """

    consumer: "Consumer"
    commits: bool
    next_offsets: dict["TopicPartition", int] = field(default_factory=dict)
    due: float = field(default_factory=lambda: time.monotonic() + _COMMIT_SECONDS)

    def begin(self) -> None:
        """Note that all records that the consumer handed out are written."""
        if self.commits:
            self.next_offsets = {found: self.consumer.position(found) for found in self.consumer.assignment()}

    def reached(self, partition: "TopicPartition", offset: int) -> None:
        """Note that all records below ``offset`` are written."""
        self.next_offsets[partition] = max(offset, self.next_offsets.get(partition, 0))

    def commit_when_due(self) -> None:
        from logstore.errors import UnknownTopicIdError

        if time.monotonic() < self.due:
            return
        try:
            self.commit()
        except UnknownTopicIdError:
            # The topic was created again, and is read from its new beginning.
            self.begin()

    def commit(self) -> None:
        if self.commits and self.next_offsets:
            self.consumer.commit(self.next_offsets)
        self.due = time.monotonic() + _COMMIT_SECONDS


def _write_records(
    consumer: "Consumer",
    writer: RecordWriter,
    meter: Meter,
    written: _Written,
    interrupts: Interrupts,
    *,
    ends: dict["TopicPartition", int] | None,
    remaining: int | None,
) -> None:
    from logstore.client.metadata import TopicPartition

    while ends is None or _drop_finished(consumer, written, ends):
        fetched = consumer.poll_arrow(max_records=remaining, timeout_s=_POLL_SECONDS)
        if fetched is not None:
            at = TopicPartition(fetched.topic, fetched.partition)
            if ends is not None:
                fetched = fetched.before(ends[at])
            with interrupts.at_once():
                writer.write(fetched)
                # A pipe gets whole batches at once, so that followers see them.
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


def _drop_finished(consumer: "Consumer", written: _Written, ends: dict["TopicPartition", int]) -> bool:
    """Stop reading partitions that are at their ends; return True if any is left."""
    finished = {partition for partition, end in ends.items() if consumer.position(partition) >= end}
    if finished:
        for partition in finished:
            # Compaction may have removed the last records before the end.
            written.reached(partition, ends.pop(partition))
        consumer.assign(consumer.assignment() - finished)
    return bool(ends)
