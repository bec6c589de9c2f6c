"""Positions at which ``consume`` begins and stops: offsets, offsets from the end, times, a topic's last records."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from logstore.command_line.command_group import fail

if TYPE_CHECKING:
    from logstore.client.consumer import Consumer
    from logstore.client.metadata import TopicPartition

# Used while the newest records are looked for: the store has responded just before.
_POLL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a partition: an ``offset`` (negative: counted from the end) or a time in ms."""

    offset: int | None = None
    timestamp_ms: int | None = None

    @property
    def given(self) -> bool:
        return self.offset is not None or self.timestamp_ms is not None

    def find(self, consumer: "Consumer", option: str) -> dict["TopicPartition", int]:
        """Return the offset in each assigned partition; raise a usage error for one offset in several."""
        partitions = sorted(consumer.assignment())
        ends = consumer.end_offsets(partitions)
        if self.timestamp_ms is not None:
            found = consumer.offsets_for_times(dict.fromkeys(partitions, self.timestamp_ms))
            return {at: ends[at] if first is None else first.offset for at, first in found.items()}
        assert self.offset is not None
        starts = consumer.beginning_offsets(partitions)
        if self.offset < 0:
            return {at: max(starts[at], ends[at] + self.offset) for at in partitions}
        if len(partitions) > 1:
            raise typer.BadParameter(
                f"topic {partitions[0].topic} has {len(partitions)} partitions: name one with --partition",
                param_hint=option,
            )
        (only,) = partitions
        if not starts[only] <= self.offset <= ends[only]:
            fail(
                f"Offset {self.offset} is outside partition {only.partition} of topic {only.topic}: "
                f"it has {starts[only]} to {ends[only]}"
            )
        return {only: self.offset}


def seek(consumer: "Consumer", offsets: Mapping["TopicPartition", int]) -> None:
    for partition, offset in offsets.items():
        consumer.seek(partition, offset)


def reset_beyond_ends(consumer: "Consumer", group: str, starts: Mapping["TopicPartition", int]) -> None:
    """Continue at ``starts`` where the group's committed offset is beyond the end of the log, and say so on stderr.

    A consumer notices such an offset when it fetches there, but a command that reads to the end does not fetch then.
    """
    positions = {at: consumer.position(at) for at in consumer.assignment()}
    # The ends are asked for after the commits: another member of the group may just have committed.
    ends = consumer.end_offsets(positions)
    for at in sorted(at for at, position in positions.items() if position > ends[at]):
        typer.echo(
            f"logstore: warning: group {group} has committed offset {positions[at]} of {at.topic}-{at.partition}, "
            f"which ends at {ends[at]}: reading from offset {starts[at]}",
            err=True,
        )
        consumer.seek(at, starts[at])


def newest(consumer: "Consumer", count: int, ends: Mapping["TopicPartition", int]) -> dict["TopicPartition", int]:
    """Return the offsets at which the last ``count`` records before ``ends`` begin, of all these partitions together.

    The order is by timestamp, and in each partition by offset. Offsets that compaction removed count.
    """
    starts = consumer.beginning_offsets(ends)
    first = {at: max(starts[at], end - count) for at, end in ends.items()}
    if len(ends) == 1 or sum(ends[at] - first[at] for at in ends) <= count:
        return first
    import numpy as np

    partitions = sorted(ends)
    offsets, times, owners = [], [], []
    for number, partition in enumerate(partitions):
        found_offsets, found_times = _timestamps(consumer, partition, first[partition], ends[partition])
        offsets.append(found_offsets)
        # A record is among the last ones only with all its followers, so it counts as the oldest of them.
        times.append(np.minimum.accumulate(found_times[::-1])[::-1])
        owners.append(np.full(len(found_offsets), number))
    owner = np.concatenate(owners)
    # Among equal times the later offset comes last, so that the beginning of a partition is cut off.
    order = np.lexsort((np.concatenate(offsets), np.concatenate(times)))
    taken = np.bincount(owner[order[-count:]], minlength=len(partitions)).tolist()
    return {
        partition: int(offsets[number][-taken[number]]) if taken[number] else ends[partition]
        for number, partition in enumerate(partitions)
    }


def _timestamps(consumer: "Consumer", partition: "TopicPartition", start: int, end: int) -> tuple[Any, Any]:
    """Return offsets and timestamps (ms) of [start, end)."""
    import numpy as np
    import pyarrow as pa

    assigned = consumer.assignment()
    consumer.assign([partition])
    consumer.seek(partition, start)
    columns: list[list[Any]] = []
    while consumer.position(partition) < end:
        fetched = consumer.poll_arrow(timeout_s=_POLL_SECONDS)
        if fetched is not None:
            batch = fetched.before(end).batch
            columns.append([batch.column("offset").to_numpy(), batch.column("timestamp").cast(pa.int64()).to_numpy()])
    consumer.assign(assigned)
    if not columns:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    offsets, times = map(np.concatenate, zip(*columns, strict=True))
    return offsets, times
