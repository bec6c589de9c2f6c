"""Finds the offset of each partition that a group is reset to (Kafka's ``kafka-consumer-groups --reset-offsets``).

Invariant: an offset that is found here is in [log start, high watermark] of its partition, at that time.
"""

from dataclasses import dataclass
from enum import StrEnum

from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.broker.elsewhere.partition_offsets import PartitionOffsets
from logstore.errors import InvalidRequestError, OffsetOutOfRangeError
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic


class ResetTo(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    #: The committed offset; the high watermark of a partition without a commit, or with one beyond it.
    CURRENT = "current"
    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    SHIFT = "shift"


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """``value`` is the offset (-n: n before the high watermark), the time in ms, or the number of offsets to shift."""

    to: ResetTo
    value: int = 0


async def reset_offset(
    broker: Broker,
    topic: Topic,
    log: PartitionLog,
    ends: PartitionOffsets,
    target: ResetTarget,
    committed: int | None,
) -> int:
    """Return the offset that ``target`` means in a partition where the group has ``committed``. The leader has reported
    ``ends``.

    Raises OffsetOutOfRangeError if OFFSET is outside the log, InvalidRequestError if SHIFT has no commit to begin at.
    SHIFT stops at the ends of the log.
    """
    log.require_served()
    start, end = ends.log_start_offset, ends.high_watermark
    ends.require_known(log)
    match target.to:
        case ResetTo.EARLIEST:
            return start
        case ResetTo.LATEST:
            return end
        case ResetTo.CURRENT:
            return end if committed is None else min(committed, end)
        case ResetTo.OFFSET if target.value < 0:
            return max(start, end + target.value)
        case ResetTo.OFFSET:
            if not start <= target.value <= end:
                raise OffsetOutOfRangeError(
                    f"Offset {target.value} is out of range in {topic.name}-{log.partition}: give {start} to {end}.",
                    log_start_offset=start,
                    high_watermark=end,
                )
            return target.value
        case ResetTo.TIMESTAMP:
            found = await broker.fetch.offset_for_timestamp(INTERNAL, topic, log.partition, target.value)
            return end if found is None else found[0]
        case ResetTo.SHIFT:
            if committed is None:
                raise InvalidRequestError(
                    f"The group has no offset of {topic.name}-{log.partition} to shift: give the offset, or leave the "
                    "partition out."
                )
            return min(max(start, committed + target.value), end)
