"""The message of a task to the driver: the places of its records."""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True, slots=True)
class WrittenRange:
    """``records`` in a partition, from ``first_offset`` to ``last_offset``; other writers' may lie between them."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


@dataclass(frozen=True)
class RecordsWritten(WriterCommitMessage):
    """All records of one task. An earlier try of the task had stored ``replayed`` of its ``requests``."""

    ranges: tuple[WrittenRange, ...] = ()
    requests: int = 0
    replayed: int = 0

    @property
    def records(self) -> int:
        return sum(written.records for written in self.ranges)

    @property
    def topics(self) -> int:
        return len({written.topic for written in self.ranges})


def joined(messages: Iterable[RecordsWritten | None]) -> RecordsWritten:
    """Join the messages of several tasks, or requests; None is that of a failed task."""
    given = [message for message in messages if message is not None]
    ranges: dict[tuple[str, int], WrittenRange] = {}
    for written in (each for message in given for each in message.ranges):
        place = written.topic, written.partition
        known = ranges.get(place, written)
        ranges[place] = WrittenRange(
            *place,
            min(known.first_offset, written.first_offset),
            max(known.last_offset, written.last_offset),
            written.records + (known.records if place in ranges else 0),
        )
    return RecordsWritten(
        tuple(ranges[place] for place in sorted(ranges)),
        sum(message.requests for message in given),
        sum(message.replayed for message in given),
    )
