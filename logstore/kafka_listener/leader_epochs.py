"""Leader epochs in requests of Kafka's clients (KIP-101, KIP-320): checks that client and broker mean the same leader,
and finds the end of an epoch's records.
"""

from typing import Final

from logstore.errors import FencedLeaderEpochError, UnknownLeaderEpochError
from logstore.log.partition_log import PartitionLog

#: "Not known", as an epoch and as its end.
UNDEFINED: Final = -1


def require_leader(log: PartitionLog, current_leader_epoch: int) -> None:
    """Check the epoch of the partition's leader that the client knows, or UNDEFINED.

    Raises FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderOrFollowerError.
    """
    if current_leader_epoch not in (UNDEFINED, log.leader_epoch):
        told = (
            f"{log.topic}-{log.partition} has leader epoch {log.leader_epoch}, the client knows {current_leader_epoch}"
        )
        if current_leader_epoch < log.leader_epoch:
            raise FencedLeaderEpochError(f"{told}: look up the leader again.")
        raise UnknownLeaderEpochError(f"{told}: this broker has not heard of it yet; try again.")
    log.require_leader()


def epoch_end(log: PartitionLog, epoch: int) -> tuple[int, int]:
    """Return the newest epoch up to ``epoch``, and the offset at which it ends; UNDEFINED twice if ``epoch`` is not
    known.

    As in Kafka, an epoch below all known ones ends where the first of these begins. Raises NotLeaderOrFollowerError,
    OffsetNotAvailableError.
    """
    log.require_leader().require_settled()
    if not 0 <= epoch <= log.leader_epoch:
        return UNDEFINED, UNDEFINED
    if epoch == log.leader_epoch:
        return epoch, log.log_end_offset
    known, end = log.state.leader_epochs.end_of(epoch, log.log_end_offset)
    return (epoch if known == UNDEFINED else known), end


def epoch_of(log: PartitionLog, offset: int) -> int:
    """Return the epoch that wrote ``offset``, or UNDEFINED."""
    found = log.state.leader_epochs.epoch_of(offset)
    return UNDEFINED if found is None else found
