"""The batches of one topic between ``send`` and a request: open, closed, split by partition, on their way.

Invariants:

- A batch's parts are queued after those of the batches before it, so that the parts of a partition are in the order of
  ``send``.
- A partition with a request under way gives out nothing, so that its records reach the store in order even if the
  request is sent again.
- Such a partition holds up no other: the parts of each partition wait in a separate queue.
- A request is for one broker, the leader of all its partitions.

The lock of ``RecordAccumulator`` must be held.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from logstore.client.metadata import TopicPartitions
from logstore.client.producer.delivery import Outcome
from logstore.client.producer.producer_batch import BATCHES_PER_PARTITION_MAX, ProducerBatch
from logstore.client.producer.record_columns import RecordList
from logstore.limits import REQUEST_RECORDS_MAX

# More batches of one partition than the store can recognise are joined into one, so only small ones.
_JOINED_BYTES_MAX = 64 * 1024
# The partitions of a request are listed in a header.
_PARTITIONS_PER_REQUEST_MAX = 1_000
# Batches of one request share its outcome, so their deadlines are close together.
_DEADLINE_SPREAD_SECONDS = 1.0


ColumnsAndPartitions: TypeAlias = tuple[pa.RecordBatch, np.ndarray | None]


class OpenBatch(RecordList):
    """A batch that more records may join: ``room`` bytes are left of the ``reserved`` ones."""

    __slots__ = ("outcome", "reserved", "room", "since")

    def __init__(self, topic: str, reserved: int, since: float) -> None:
        super().__init__()
        self.outcome = Outcome(topic)
        self.reserved = self.room = reserved
        self.since = since

    def give_back_room(self) -> int:
        """Give back the bytes that are left. The next record finds no room, so its thread closes the batch."""
        room, self.room = self.room, 0
        self.reserved -= room
        return room


@dataclass(slots=True, eq=False)
class ClosedBatch:
    """A closed batch. ``columns`` returns a WIRE_SCHEMA batch and the partitions that records name; ``deadline`` is
    monotonic.

    ``partitions`` are those known when it was closed. If they are known, the thread that closed the batch splits it,
    else the thread that looks them up. ``claimed`` is set while a thread splits it. ``parts`` is None until it is
    split.
    """

    outcome: Outcome
    columns: Callable[[], ColumnsAndPartitions]
    deadline: float
    partitions: TopicPartitions | None
    claimed: bool = field(init=False)
    parts: list[ProducerBatch] | None = None

    def __post_init__(self) -> None:
        self.claimed = self.partitions is not None


class TopicQueue:
    """The queue of topic ``name``. ``partitions`` is None until they are known, and old after ``ask_again``
    (monotonic). ``asking`` is set while a thread looks them up.
    """

    def __init__(self, name: str, delivery_timeout_s: float) -> None:
        self.name = name
        self._delivery_timeout_s = delivery_timeout_s
        self.open: OpenBatch | None = None
        self.closed: deque[ClosedBatch] = deque()
        self.partitions: TopicPartitions | None = None
        self.ask_again = 0.0
        self.asking = False
        self._waiting: dict[int, deque[ProducerBatch]] = {}
        self._on_their_way: set[int] = set()

    @property
    def is_unsplit(self) -> bool:
        """True if there are closed batches whose partitions are not known yet."""
        return bool(self.closed)

    @property
    def has_waiting(self) -> bool:
        """True if there are parts that have not left."""
        return bool(self._waiting)

    @property
    def has_free_partition(self) -> bool:
        """True if there is a partition without a request under way."""
        return self.partitions is not None and len(self._on_their_way) < self.partitions.count

    @property
    def unsplit(self) -> ClosedBatch | None:
        """The first batch that no thread splits."""
        return next((batch for batch in self.closed if not batch.claimed), None)

    def enqueue(self, outcome: Outcome, columns: Callable[[], ColumnsAndPartitions], since: float) -> ClosedBatch:
        """Add a closed batch that was opened at ``since`` (monotonic)."""
        batch = ClosedBatch(outcome, columns, since + self._delivery_timeout_s, self.partitions)
        self.closed.append(batch)
        return batch

    def split(self, batch: ClosedBatch, parts: list[ProducerBatch]) -> None:
        """Take the ``parts`` of ``batch``: they may be sent once all batches before it are split."""
        batch.parts = parts
        while self.closed and self.closed[0].parts is not None:
            for part in self.closed.popleft().parts or ():
                self._waiting.setdefault(part.partition, deque()).append(part)

    def take_request(
        self, max_bytes: int, leaders: Sequence[int] | None, has_room: Callable[[int | None], bool]
    ) -> tuple[int | None, list[ProducerBatch]]:
        """Return the leader of some partitions, one that ``has_room``, and parts for one request to it.

        The parts have at most ``max_bytes`` (or are one part), and those of a partition are adjacent. ``leaders`` is
        from ``ClusterMetadata``.
        """
        taken: list[ProducerBatch] = []
        to: int | None = None
        size = partitions = 0
        give_up = 0.0
        for partition in list(self._waiting):
            if partition in self._on_their_way:
                continue
            leader = None if leaders is None or partition >= len(leaders) else leaders[partition]
            if not (leader == to if taken else has_room(leader)):
                continue
            to = leader
            parts = self._waiting[partition]
            among, own_size, own_records = parts[0].chosen_among, 0, 0
            for count in range(len(parts)):
                part = parts[0]
                if taken and (size + part.message.size > max_bytes or part.deadline > give_up):
                    break
                if count and part.chosen_among != among:
                    break
                own_size += part.message.size
                own_records += len(part.rows)
                if count >= BATCHES_PER_PARTITION_MAX and (
                    own_size > _JOINED_BYTES_MAX or own_records > REQUEST_RECORDS_MAX
                ):
                    break
                give_up = give_up or part.deadline + _DEADLINE_SPREAD_SECONDS
                taken.append(parts.popleft())
                size += part.message.size
            if taken and taken[-1].partition == partition:
                partitions += 1
                self._on_their_way.add(partition)
                del self._waiting[partition]
                if parts:
                    # Put it at the end, so that the others come first next time.
                    self._waiting[partition] = parts
            if size >= max_bytes or partitions >= _PARTITIONS_PER_REQUEST_MAX:
                break
        return to, taken

    def release(self, partitions: Iterable[int]) -> None:
        """Release these partitions, because the requests for them are done."""
        self._on_their_way.difference_update(partitions)

    def drop_all(self) -> tuple[list[ClosedBatch], list[ProducerBatch]]:
        """Take out all batches that were not sent, except those that a thread is splitting."""
        unsplit = [batch for batch in self.closed if not batch.claimed]
        parts = [part for waiting in self._waiting.values() for part in waiting]
        for batch in self.closed:
            parts += batch.parts or ()
        self.closed.clear()
        self._waiting.clear()
        return unsplit, parts
