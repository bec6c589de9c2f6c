"""``logstore topic copy`` copies the records of a topic into another one."""

import contextlib
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from logstore.cli.meter import Meter, metered
from logstore.cli.output import counted, print_json
from logstore.cli.positions import Place, reset_beyond_ends, seek
from logstore.command_line.command_group import INTERRUPTED, fail, waking
from logstore.command_line.options import (
    CLIENT_ID,
    JsonOption,
    KeyOption,
    UrlOption,
    WhereOption,
    admin_of,
    complete_topics,
    reachable_url,
    selection,
    time_ms,
)
from logstore.quantities import TIME_FORMS

if TYPE_CHECKING:
    from logstore.client.consumer import Consumer
    from logstore.client.consumer.records import FetchedBatch
    from logstore.client.metadata import TopicPartition
    from logstore.client.producer import Producer
    from logstore.client.producer.delivery import BatchDelivery
    from logstore.command_line.command_group import Interrupts

EXAMPLES = """\b
Examples:
  logstore topic copy events events-2
  logstore topic copy events last-week --from-timestamp -7d
  logstore topic copy events of-ada --where '$.user == "ada"'
  logstore topic copy events events-2 --group copy-of-events      go on where an earlier run was stopped
"""
# The source of configurations set on the topic; the others are the store's.
_OF_TOPIC = "DYNAMIC_TOPIC_CONFIG"
_POLL_SECONDS = 1.0
_COMMIT_SECONDS = 5.0
# The bytes that were sent and are not acknowledged: half of what the producer may hold, so that sending does not wait.
_SENT_BYTES_MAX = 32 * 1024 * 1024
# Seconds that an interrupted copy waits for the responses to what was sent.
_CLOSE_SECONDS = 10.0
_BUFFER_BYTES = 64 * 1024 * 1024


def copy(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The topic to read.", autocompletion=complete_topics)],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The topic to write. If there is none, it is created with SOURCE's partitions and configuration.",
            autocompletion=complete_topics,
        ),
    ],
    from_timestamp: Annotated[
        str | None, typer.Option("--from-timestamp", metavar="TIME", help=f"Begin at this time: {TIME_FORMS}.")
    ] = None,
    key: KeyOption = None,
    where: WhereOption = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="GROUP",
            help="Commit the progress of the copy for this consumer group, and continue there.",
        ),
    ] = None,
    progress: Annotated[
        bool | None, typer.Option("--progress/--no-progress", help="Show progress on stderr. [default: on a terminal]")
    ] = None,
    json: JsonOption = False,
    url: UrlOption = None,
) -> None:
    """Copy the records that a topic has now into another one of the same store.

    Key, value, headers and timestamp are kept. With as many partitions in TARGET a record keeps its partition, else
    its key says which. Offsets are new. A run that is stopped says how many records are copied; another run copies them
    again, unless both have the same --group: it goes on behind them. After a kill it may repeat those of the last
    seconds.
    """
    from logstore.client.consumer import Consumer
    from logstore.client.producer import Producer
    from logstore.errors import LogStoreError

    if source == target:
        raise typer.BadParameter(f"{source} would be copied into itself", param_hint="TARGET")
    begin = Place(timestamp_ms=time_ms(from_timestamp, "--from-timestamp"))
    selected = selection(key, where)
    store = reachable_url(ctx, url)
    same_partitions = _prepare_target(ctx, url, source, target, quiet=json)
    with Consumer(
        store,
        group_id=group,
        client_id=CLIENT_ID,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        where=selected,
    ) as consumer:
        partitions = consumer.partitions_for(source)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        starts = begin.find(consumer, "--from-timestamp") if begin.given else consumer.beginning_offsets(partitions)
        if begin.given:
            committed = consumer.committed(partitions) if group is not None else {}
            seek(consumer, {at: offset for at, offset in starts.items() if committed.get(at) is None})
        if group is not None:
            reset_beyond_ends(consumer, group, starts)
        producer = Producer(store, client_id=CLIENT_ID, buffer_memory=_BUFFER_BYTES)
        copying = _Copy(consumer, producer, target, ends, same_partitions, group is not None)
        shown = sys.stderr.isatty() if progress is None else progress
        interrupted = False
        try:
            with metered(shown=shown, verb="Copied") as meter, waking(consumer.wakeup) as interrupts:
                copying.run(meter, interrupts)
        except KeyboardInterrupt:
            interrupted = True
        except LogStoreError as error:
            copying.problem = error.message
        problem = copying.finish(_CLOSE_SECONDS if interrupted else None)
    if json:
        print_json({"source": source, "target": target, "records": copying.stored, "error": problem})
    else:
        print(f"Copied {counted(copying.stored, 'record')} of topic {source} to topic {target}")
    if problem:
        fail(problem)
    if interrupted:
        if group is None and not json:
            typer.echo("Stopped: another run begins again, and copies these records twice", err=True)
        raise typer.Exit(INTERRUPTED)


def _prepare_target(ctx: typer.Context, url: str | None, source: str, target: str, *, quiet: bool) -> bool:
    """Create the topic if there is none; return True if it has the same number of partitions as ``source``."""
    from logstore.errors import UnknownTopicError

    with admin_of(ctx, url) as admin:
        original = admin.describe_topic(source)
        try:
            return len(admin.describe_topic(target).partitions) == len(original.partitions)
        except UnknownTopicError:
            pass
        configs = {entry.name: entry.value for entry in admin.topic_configs(source) if entry.source == _OF_TOPIC}
        count = len(original.partitions)
        admin.create_topic(
            target, partitions=count, replication_factor=len(original.partitions[0].replicas), configs=configs
        )
        if not quiet:
            print(f"Created topic {target} with {counted(count, 'partition')}")
    return True


class _Sent(NamedTuple):
    """A batch under way: the records of ``partition`` below ``next_offset``."""

    partition: "TopicPartition"
    next_offset: int
    records: int
    size: int
    delivery: "BatchDelivery"


@dataclass(slots=True)
class _Copy:
    """A run. Batches are acknowledged in any order but counted in the order of sending, so that only copied records are
    below a committed offset.
    """

    consumer: "Consumer"
    producer: "Producer"
    target: str
    #: The ends of the partitions that are not completely read.
    ends: "dict[TopicPartition, int]"
    keeps_partitions: bool
    commits: bool
    stored: int = 0
    problem: str | None = None
    next_offsets: "dict[TopicPartition, int]" = field(default_factory=dict)
    sent: "deque[_Sent]" = field(default_factory=deque)
    sent_bytes: int = 0
    commit_due: float = field(default_factory=lambda: time.monotonic() + _COMMIT_SECONDS)

    def run(self, meter: Meter, interrupts: "Interrupts") -> None:
        """Read to the ends, and send. Raises KeyboardInterrupt on the user's request, without losing any record."""
        from logstore.client.metadata import TopicPartition

        starts = self.consumer.beginning_offsets(self.ends)
        whole = sum(end - starts[at] for at, end in self.ends.items())
        targets = dict(self.ends)
        while self._drop_finished() and self.problem is None:
            fetched = self.consumer.poll_arrow(timeout_s=_POLL_SECONDS)
            if fetched is not None:
                at = TopicPartition(fetched.topic, fetched.partition)
                self._send(fetched.before(self.ends[at]))
                meter.add(len(fetched), fetched.batch.nbytes)
            left = sum(max(0, end - self.consumer.position(at)) for at, end in self.ends.items())
            meter.part = 1 - left / whole if whole else None
            meter.show()
            while self.sent_bytes > _SENT_BYTES_MAX and not interrupts.asked and self.problem is None:
                self._collect(wait_s=0.1)
            self._collect()
            self._commit_when_due()
        if self.problem is None:
            self.producer.flush()
            self._collect()
            self.next_offsets = targets

    def finish(self, timeout_s: float | None) -> str | None:
        """Wait for what is under way, at most ``timeout_s``, and commit; return the problem, if any."""
        from logstore.errors import LogStoreError

        try:
            self.producer.close(timeout_s)
        except LogStoreError as error:
            self.problem = self.problem or error.message
        self._collect()
        if self.commits and self.next_offsets:
            self.consumer.commit(self.next_offsets)
        return self.problem

    def _send(self, fetched: "FetchedBatch") -> None:
        if not len(fetched):
            return
        import pyarrow as pa

        names = ("timestamp", "key", "value", "headers")
        columns = {name: fetched.batch.column(name) for name in names}
        if self.keeps_partitions:
            columns["partition"] = pa.repeat(pa.scalar(fetched.partition, pa.int32()), len(fetched))
        size = fetched.batch.nbytes
        from logstore.client.metadata import TopicPartition

        delivery = self.producer.send_batch(self.target, columns)
        at = TopicPartition(fetched.topic, fetched.partition)
        self.sent.append(_Sent(at, fetched.next_offset, len(fetched), size, delivery))
        self.sent_bytes += size

    def _collect(self, wait_s: float = 0.0) -> None:
        """Count what is acknowledged, up to the first batch that is not."""
        from logstore.errors import RequestTimedOutError

        while self.sent:
            first = self.sent[0]
            if not first.delivery.done():
                with contextlib.suppress(RequestTimedOutError):
                    first.delivery.places(wait_s)
                if not first.delivery.done():
                    return
            self.sent.popleft()
            self.sent_bytes -= first.size
            failures = first.delivery.failures()
            self.stored += first.records - sum(len(rows) for rows, _ in failures)
            if failures:
                self.problem = self.problem or failures[0][1].message
            elif self.problem is None:
                self.next_offsets[first.partition] = first.next_offset

    def _commit_when_due(self) -> None:
        if self.commits and self.next_offsets and time.monotonic() >= self.commit_due:
            self.consumer.commit(self.next_offsets)
            self.commit_due = time.monotonic() + _COMMIT_SECONDS

    def _drop_finished(self) -> bool:
        """Stop reading partitions that are at their ends; return True if any is left."""
        finished = {at for at, end in self.ends.items() if self.consumer.position(at) >= end}
        if finished:
            for at in finished:
                del self.ends[at]
            self.consumer.assign(self.consumer.assignment() - finished)
        return bool(self.ends)
