"""The leader epoch of each range of offsets of a partition (KIP-101).

Owns a rising list of (epoch, start offset). Invariant: both rise strictly; an epoch is listed only if it wrote a
record.
"""

from collections.abc import Iterable


class LeaderEpochs:
    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def last(self) -> int:
        """The newest epoch that wrote a record; -1 without one."""
        return self._entries[-1][0] if self._entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Let ``epoch`` begin at ``start_offset``. Epochs that began at or after it are dropped, because none of their
        records is left.
        """
        if self._entries and self._entries[-1][0] >= epoch:
            return
        while self._entries and self._entries[-1][1] >= start_offset:
            self._entries.pop()
        self._entries.append((epoch, start_offset))

    def truncate(self, end_offset: int) -> None:
        """Drop the epochs that began at or after ``end_offset``, as the records from there on are dropped."""
        while self._entries and self._entries[-1][1] >= end_offset:
            self._entries.pop()

    def up_to(self, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Return the history of the offsets below ``end_offset``."""
        return tuple(entry for entry in self._entries if entry[1] < end_offset)

    def end_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the newest epoch that is at most ``epoch``, and the offset at which it ends; (-1, the first epoch's
        start) if all are newer (KIP-101, KIP-320).
        """
        end = log_end_offset
        for known, start in reversed(self._entries):
            if known <= epoch:
                return known, end
            end = start
        return -1, end

    def epoch_of(self, offset: int) -> int | None:
        """Return the epoch that wrote ``offset``; None if it is not known."""
        return next((epoch for epoch, start in reversed(self._entries) if start <= offset), None)

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._entries)
