"""The records of one topic between ``send`` and a request: open, closed, cut into partitions, on their way.

Invariants:

- A batch is cut after those before it, so that a partition's pieces are in the order of ``send``.
- A partition with a piece on its way gives out no other: its records reach the store in order, whatever is sent again.

Used under the producer's lock.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from logstore.client.delivery import Outcome
from logstore.client.partition_choice import PartitionChoice
from logstore.client.record_columns import RecordList
from logstore.client.record_messages import Piece

# The store remembers the last five batches of a producer in each partition (KIP-98): a request of more could not be
# told from others when it is sent again.
_PIECES_PER_PARTITION_MAX = 5
# The names of a request's partitions stand in a header.
_PARTITIONS_PER_REQUEST_MAX = 1_000
# Pieces of one request stand or fall together, so they began at about the same time.
_DEADLINE_SPREAD_SECONDS = 1.0


ColumnsAndPartitions: TypeAlias = tuple[pa.RecordBatch, np.ndarray | None]


class OpenBatch(RecordList):
    """Records that more may join: ``room`` bytes are left of the ``reserved`` ones."""

    __slots__ = ("outcome", "reserved", "room", "since")

    def __init__(self, topic: str, reserved: int, since: float) -> None:
        super().__init__()
        self.outcome = Outcome(topic)
        self.reserved = self.room = reserved
        self.since = since


@dataclass(slots=True, eq=False)
class ClosedBatch:
    """``columns`` gives a WIRE_SCHEMA batch and the partitions that records name. ``pieces``: None until it is cut.

    ``partition_count``: what was known of the topic then. If it was, the thread that closed the batch cuts it; else one
    that finds out does. ``claimed``: a thread cuts it.
    """

    outcome: Outcome
    columns: Callable[[], ColumnsAndPartitions]
    deadline: float
    partition_count: int
    claimed: bool = field(init=False)
    pieces: list[Piece] | None = None

    def __post_init__(self) -> None:
        self.claimed = self.partition_count > 0


class TopicQueue:
    """One topic. ``partition_count`` is 0 until it is known; ``ask_again``: monotonic."""

    def __init__(self, name: str, choice: PartitionChoice) -> None:
        self.name = name
        self.choice = choice
        self.open: OpenBatch | None = None
        self.closed: deque[ClosedBatch] = deque()
        self.partition_count = 0
        self.ask_again = 0.0
        self.asking = False
        self._waiting: dict[int, deque[Piece]] = {}
        self._on_their_way: set[int] = set()

    @property
    def backed_up(self) -> bool:
        """Whether a batch closed now would wait behind others that have not left."""
        return bool(self.closed or self._waiting)

    def cut(self, batch: ClosedBatch, pieces: list[Piece]) -> None:
        """``batch`` has become ``pieces``: they may leave once all batches before it are cut."""
        batch.pieces = pieces
        while self.closed and self.closed[0].pieces is not None:
            for piece in self.closed.popleft().pieces or ():
                self._waiting.setdefault(piece.partition, deque()).append(piece)

    def take_request(self, max_bytes: int) -> list[Piece]:
        """Pieces for one request, of at most ``max_bytes`` (or one piece), those of a partition next to each other."""
        taken: list[Piece] = []
        size = partitions = 0
        give_up = 0.0
        for partition in list(self._waiting):
            if partition in self._on_their_way:
                continue
            pieces = self._waiting[partition]
            for _ in range(min(len(pieces), _PIECES_PER_PARTITION_MAX)):
                piece = pieces[0]
                if taken and (size + piece.message.size > max_bytes or piece.deadline > give_up):
                    break
                give_up = give_up or piece.deadline + _DEADLINE_SPREAD_SECONDS
                taken.append(pieces.popleft())
                size += piece.message.size
            if taken and taken[-1].partition == partition:
                partitions += 1
                self._on_their_way.add(partition)
                del self._waiting[partition]
                if pieces:
                    # To the end: next time the others come first.
                    self._waiting[partition] = pieces
            if size >= max_bytes or partitions >= _PARTITIONS_PER_REQUEST_MAX:
                break
        return taken

    def answered(self, pieces: list[Piece]) -> None:
        """A request is settled."""
        self._on_their_way.difference_update(piece.partition for piece in pieces)

    def drop_all(self) -> tuple[list[ClosedBatch], list[Piece]]:
        """Take out all that has not left."""
        batches = [batch for batch in self.closed if not batch.claimed]
        pieces = [piece for waiting in self._waiting.values() for piece in waiting]
        for batch in self.closed:
            pieces += batch.pieces or ()
        self.closed.clear()
        self._waiting.clear()
        return [batch for batch in batches if batch.pieces is None], pieces
