"""The positions of a consumer instance in its partitions: memory beyond what its record has.

Invariants: a position moves when its records were handed to the client's connection, and only if it was not moved
meanwhile; ``handed`` are partitions with a position.
"""

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from consumer_offsets.instances.instance_starts import Position
from consumer_offsets.offsets import OffsetToCommit
from logstore.protocol.members.identity import TopicPartition


class InstancePositions:
    """``changed`` is called when they change by anything but a poll or a stream."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._positions: dict[TopicPartition, Position] = {}
        #: Of partitions with records that were handed out and are not committed: the offset behind the last one.
        self.handed: dict[TopicPartition, int] = {}
        #: Partitions with a position; a new object when there are others.
        self.reading: tuple[TopicPartition, ...] = ()
        #: Of the stream that reads: how far it has come.
        self.streamed: Callable[[], Mapping[TopicPartition, int]] | None = None
        #: Positions that were given up in a generation, with what was handed out.
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
        """All of them; each time another partition is the first, so that a busy one keeps no other out."""
        positions = sorted(self._positions.items(), key=lambda item: item[0])
        first = next(self._turns) % len(positions) if positions else 0
        return positions[first:] + positions[:first]

    # ---- changes ----------------------------------------------------------------------------------------------------

    def put(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Of more partitions, or others of the same."""
        self._positions |= positions

    def seek(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Where the client has sent the instance to."""
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
        """Tell if there are others to read by now."""
        reading = tuple(sorted(self._positions))
        if reading != self.reading:
            self.reading = reading
            self._changed()

    def move(self, moved: Iterable[tuple[TopicPartition, Position, int, bool]]) -> None:
        """Positions as they were read from, the offsets behind, and whether there were records in between."""
        for at, position, offset, has_records in moved:
            if self._positions.get(at) is position and offset > position.offset:
                self._positions[at] = Position(position.topic_id, offset)
                if has_records:
                    self.handed[at] = offset

    def absorb(self) -> None:
        """Take over how far the stream has come."""
        for at, offset in self.streamed().items() if self.streamed is not None else ():
            position = self._positions.get(at)
            if position is not None and offset > position.offset:
                self._positions[at] = Position(position.topic_id, offset)
                self.handed[at] = offset

    def committed(self, offsets: Iterable[OffsetToCommit]) -> None:
        """What was handed out below these is done."""
        for one in offsets:
            at = TopicPartition(one.topic, one.partition)
            if self.handed.get(at, one.offset + 1) <= one.offset:
                del self.handed[at]

    # ---- a rebalance ------------------------------------------------------------------------------------------------

    def lay_aside(self, generation: int | None, partitions: Iterable[TopicPartition]) -> None:
        """An eager assignor takes everything away for a rebalance, and gives most of it back. What comes back in the
        next generation was nobody's in between, and goes on where it was. None: nothing does.
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
        """Those of ``assigned`` that were laid aside in the generation before, if they are of the same topics."""
        aside, self._aside = self._aside, None
        if aside is None or generation != aside[0] + 1:
            return
        for at, (position, handed) in aside[1].items():
            if at in assigned and topic_id(at) == position.topic_id:
                self._positions[at] = position
                if handed is not None:
                    self.handed[at] = handed
