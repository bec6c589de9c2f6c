"""The positions of a consumer instance in its partitions: memory beyond its record.

Invariants: a position moves when its records were handed to the client's connection, and only if it was not moved
meanwhile; ``handed`` are partitions with a position.
"""

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from consumer_offsets.instances.instance_starts import Position
from consumer_offsets.offsets import OffsetToCommit
from logstore.protocol.members.identity import TopicPartition


class InstancePositions:
    """``changed`` is called when the positions change by anything but a poll or a stream."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._positions: dict[TopicPartition, Position] = {}
        #: The offset behind the last record that was handed out, for partitions where it is not committed.
        self.handed: dict[TopicPartition, int] = {}
        #: The partitions with a position; a new object when they change.
        self.reading: tuple[TopicPartition, ...] = ()
        #: Returns the positions that the stream which reads has reached.
        self.streamed: Callable[[], Mapping[TopicPartition, int]] | None = None
        #: The generation in which positions were given up, with them and what was handed out.
        self._aside: tuple[int, dict[TopicPartition, tuple[Position, int | None]]] | None = None
        self._turns = itertools.count()

    def __contains__(self, at: object) -> bool:
        return at in self._positions

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._positions)

    def __len__(self) -> int:
        return len(self._positions)

    def get(self, at: TopicPartition) -> Position | None:
        return self._positions.get(at)

    def items(self) -> list[tuple[TopicPartition, Position]]:
        return list(self._positions.items())

    def in_turn(self) -> list[tuple[TopicPartition, Position]]:
        """Return all positions. Each call begins with another partition, so that a busy one does not block the
        others.
        """
        positions = sorted(self._positions.items(), key=lambda item: item[0])
        first = next(self._turns) % len(positions) if positions else 0
        return positions[first:] + positions[:first]

    # ---- changes ----------------------------------------------------------------------------------------------------

    def put(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Set the positions of new or present partitions."""
        self._positions |= positions

    def seek(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Set the positions that the client has chosen."""
        self._positions |= positions
        for at in positions:
            self.handed.pop(at, None)
        self._changed()

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        for at in list(partitions):
            self._positions.pop(at, None)
            self.handed.pop(at, None)
        self.show()

    def show(self) -> None:
        """Notify the reader if the partitions to read have changed."""
        reading = tuple(sorted(self._positions))
        if reading != self.reading:
            self.reading = reading
            self._changed()

    def move(self, moved: Iterable[tuple[TopicPartition, Position, int, bool]]) -> None:
        """Move positions. Each entry has the position that was read from, the offset behind, and whether there were
        records in between.
        """
        for at, position, offset, has_records in moved:
            if self._positions.get(at) is position and offset > position.offset:
                self._positions[at] = Position(position.topic_id, offset)
                if has_records:
                    self.handed[at] = offset

    def absorb(self) -> None:
        """Take over the positions that the stream has reached."""
        for at, offset in self.streamed().items() if self.streamed is not None else ():
            position = self._positions.get(at)
            if position is not None and offset > position.offset:
                self._positions[at] = Position(position.topic_id, offset)
                self.handed[at] = offset

    def committed(self, offsets: Iterable[OffsetToCommit]) -> None:
        """Mark records that were handed out below these offsets as committed."""
        for one in offsets:
            at = TopicPartition(one.topic, one.partition)
            if self.handed.get(at, one.offset + 1) <= one.offset:
                del self.handed[at]

    # ---- a rebalance ------------------------------------------------------------------------------------------------

    def lay_aside(self, generation: int | None, partitions: Iterable[TopicPartition]) -> None:
        """Keep positions for the next generation; None: keep none.

        An eager assignor takes everything away for a rebalance, and gives most of it back. A partition that comes back
        in the next generation had no owner in between, and continues at its position.
        """
        self._aside = None
        if generation is not None:
            places = {at: (self._positions[at], self.handed.get(at)) for at in partitions if at in self._positions}
            self._aside = generation, places

    def take_back(
        self,
        generation: int | None,
        assigned: Container[TopicPartition],
        topic_id: Callable[[TopicPartition], str | None],
    ) -> None:
        """Restore the positions of ``assigned`` that were laid aside in the previous generation, if the topics are the
        same.
        """
        aside, self._aside = self._aside, None
        if aside is None or generation != aside[0] + 1:
            return
        for at, (position, handed) in aside[1].items():
            if at in assigned and topic_id(at) == position.topic_id:
                self._positions[at] = position
                if handed is not None:
                    self.handed[at] = handed
