"""Offsets of partitions, whichever broker leads them: other leaders report theirs (DESCRIBE)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from logstore.errors import LeaderNotAvailableError, OffsetOutOfRangeError
from logstore.log.isolation import Isolation
from logstore.log.log_reader import require_in_range
from logstore.log.partition_log import PartitionLog


class PartitionOffsets(NamedTuple):
    """Offsets of a partition; -1 if its leader does not report them."""

    leader_epoch: int = -1
    log_start_offset: int = -1
    sealed_offset: int = -1
    high_watermark: int = -1
    log_end_offset: int = -1
    last_stable_offset: int = -1
    #: The bytes in the leader's journal.
    unsealed_bytes: int = -1

    @classmethod
    def of(cls, log: PartitionLog, elsewhere: "OffsetsElsewhere") -> "PartitionOffsets":
        """Return the offsets in ``elsewhere``, else as this broker has them. A leader that was elected just now does
        not report its own either: its end offsets may fall (C9).
        """
        if log.is_leader and not log.is_settled:
            return cls()
        if not log.is_leader and (found := elsewhere.get((log.topic_id, log.partition))) is not None:
            return found
        ends = log.log_start_offset, log.sealed_offset, log.high_watermark, log.log_end_offset, log.last_stable_offset
        return cls(log.leader_epoch, *ends, log.unsealed_bytes)

    def require_known(self, log: PartitionLog) -> None:
        """Raise LeaderNotAvailableError if the leader has not reported."""
        if self.high_watermark < 0:
            raise LeaderNotAvailableError(f"The leader of {log.topic}-{log.partition} does not answer: try again soon.")

    def readable_end(self, isolation: Isolation) -> int:
        """Return the readable end, as the partition log does."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.high_watermark

    def require_in_range(self, log: PartitionLog, offset: int) -> None:
        """Raise OffsetOutOfRangeError outside [log start, high watermark], or OffsetNotAvailableError."""
        if log.is_leader:
            require_in_range(log, offset)
        elif not self.log_start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"Offset {offset} is out of range in {log.topic}-{log.partition}: it has {self.log_start_offset} to "
                f"{self.high_watermark}.",
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
            )


Key = tuple[UUID, int]
#: The offsets of partitions that other brokers lead, by topic id and partition.
OffsetsElsewhere = Mapping[Key, PartitionOffsets]
NOTHING_ELSEWHERE: Final[OffsetsElsewhere] = MappingProxyType({})


def known_end(log: PartitionLog, elsewhere: OffsetsElsewhere) -> int | None:
    """Return the high watermark that the leader reports; None if it does not answer, or was elected just now."""
    if log.is_leader:
        return log.high_watermark if log.is_settled else None
    found = elsewhere.get((log.topic_id, log.partition))
    return None if found is None or found.high_watermark < 0 else found.high_watermark
