"""``logstore consume``: records of a topic as lines on stdout."""

import base64
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from logstore.cli.command_group import fail
from logstore.cli.options import CLIENT_ID, ClientIdOption, UrlOption, reachable_url

if TYPE_CHECKING:
    from logstore.client.consumer import Consumer, FetchedBatch, Record, Start

EXAMPLES = """\b
Examples:
  logstore consume events                              all that is there
  logstore consume events --follow                     what comes from now on, as Kafka's console consumer
  logstore consume events --from-beginning --follow
  logstore consume events --partition 0 --offset 1000 --max 10 --json
  logstore consume events --from-timestamp 1735689600000 | jq .user
"""
# How long one wait for new records takes: Ctrl-C ends it at once all the same.
_POLL_SECONDS = 1.0


class Format(StrEnum):
    value = "value"
    key_value = "key-value"
    json = "json"
    base64 = "base64"


def consume(
    ctx: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated.")
    ] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="From the first record.")] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", min=0, help="From this offset; with several partitions name one.")
    ] = None,
    from_timestamp: Annotated[
        int | None, typer.Option("--from-timestamp", metavar="MS", help="From this time on: ms since 1970, UTC.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records until Ctrl-C.")] = False,
    max_records: Annotated[
        int | None, typer.Option("--max", "-n", min=1, help="Stop after this many records.", metavar="N")
    ] = None,
    format: Annotated[
        Format,
        typer.Option(
            help="value: its bytes; key-value: key, TAB, value; json: an object a line with key and value as text; "
            "base64: the same with both as base64."
        ),
    ] = Format.value,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    client_id: ClientIdOption = CLIENT_ID,
    url: UrlOption = None,
) -> None:
    """Print the records of a topic, one a line.

    Without --follow it stops at what is the end when it starts, and begins with the first record unless told otherwise.
    With --follow it begins at the end. Order holds within each partition. A null is printed as 'null'.
    """
    from logstore.client.consumer import Consumer

    if sum((from_beginning, offset is not None, from_timestamp is not None)) > 1:
        raise typer.BadParameter("give one of --from-beginning, --offset and --from-timestamp")
    write = _WRITERS[Format.json if json else format]
    with Consumer(reachable_url(ctx, url), client_id=client_id) as consumer:
        start: Start = "earliest" if from_beginning or not follow else "latest"
        consumer.assign(topic, partition, start=start, start_timestamp_ms=from_timestamp)
        if offset is not None:
            _seek(consumer, topic, offset)
        _print_records(consumer, topic, write, follow=follow, remaining=max_records)


def _seek(consumer: "Consumer", topic: str, offset: int) -> None:
    assigned = consumer.assignment()
    if len(assigned) > 1:
        raise typer.BadParameter(
            f"topic {topic} has {len(assigned)} partitions: name one with --partition", param_hint="--offset"
        )
    ends = consumer.offsets(topic, assigned[0][1])
    if not ends.beginning_offset <= offset <= ends.end_offset:
        fail(
            f"Offset {offset} is outside partition {assigned[0][1]} of topic {topic}: "
            f"it has {ends.beginning_offset} to {ends.end_offset}"
        )
    consumer.seek(topic, assigned[0][1], offset)


def _print_records(
    consumer: "Consumer", topic: str, write: Callable[["FetchedBatch"], None], *, follow: bool, remaining: int | None
) -> None:
    ends = {} if follow else {p: consumer.offsets(topic, p).end_offset for _, p in consumer.assignment()}
    _drop_finished(consumer, topic, ends)
    while consumer.assignment():
        fetched = consumer.poll(_POLL_SECONDS)
        if fetched is not None:
            fetched = fetched.before(ends.get(fetched.partition), remaining)
            write(fetched)
            # A pipe gets whole batches, and at once: who follows wants to see them.
            sys.stdout.buffer.flush()
            if remaining is not None:
                remaining -= len(fetched)
                if not remaining:
                    return
        _drop_finished(consumer, topic, ends)


def _drop_finished(consumer: "Consumer", topic: str, ends: dict[int, int]) -> None:
    for partition in [p for p, end in ends.items() if consumer.position(topic, p) >= end]:
        consumer.unassign(topic, partition)
        del ends[partition]


def _write_values(fetched: "FetchedBatch") -> None:
    values = fetched.batch.column("value").to_pylist()
    sys.stdout.buffer.write(b"".join([(b"null" if value is None else value) + b"\n" for value in values]))


def _write_keys_and_values(fetched: "FetchedBatch") -> None:
    columns = (fetched.batch.column(name).to_pylist() for name in ("key", "value"))
    lines = [
        b"%b\t%b\n" % (b"null" if key is None else key, b"null" if value is None else value)
        for key, value in zip(*columns, strict=True)
    ]
    sys.stdout.buffer.write(b"".join(lines))


def _write_objects(text_of: Callable[["Record", str, bytes], str]) -> Callable[["FetchedBatch"], None]:
    def write(fetched: "FetchedBatch") -> None:
        import msgspec

        encode = msgspec.json.Encoder().encode_lines
        objects = [
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp_ms,
                "key": None if record.key is None else text_of(record, "key", record.key),
                "value": None if record.value is None else text_of(record, "value", record.value),
                "headers": [
                    {"key": key, "value": None if value is None else base64.b64encode(value).decode()}
                    for key, value in record.headers
                ],
            }
            for record in fetched.records()
        ]
        sys.stdout.buffer.write(encode(objects))

    return write


def _utf8(record: "Record", what: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        where = f"offset {record.offset} of partition {record.partition}"
        fail(f"The {what} at {where} is not UTF-8 text: use --format base64")


def _base64(_record: "Record", _what: str, content: bytes) -> str:
    return base64.b64encode(content).decode()


_WRITERS: dict[Format, Callable[["FetchedBatch"], None]] = {
    Format.value: _write_values,
    Format.key_value: _write_keys_and_values,
    Format.json: _write_objects(_utf8),
    Format.base64: _write_objects(_base64),
}
