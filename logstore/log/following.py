"""A follower's log compared with its leader's: where they part, how far to truncate, and which frames may follow (C7).
Nothing is changed here; ``PartitionLog`` does that. The leader calls ``diverged_at``, the follower the others.
"""

from collections.abc import Sequence

from logstore.errors import CorruptionError
from logstore.journal.frame import Frame
from logstore.log.partition_log import PartitionLog


def diverged_at(log: PartitionLog, position: int, last_epoch: int) -> tuple[int, int] | None:
    """Return the epoch and offset from which a follower's log differs from the leader's ``log``; None if it does not
    (KIP-595).

    The follower's log ends at ``position``, and its last record is of ``last_epoch`` (-1: it has none).
    """
    if position == 0:
        return None
    epoch, end = log.state.leader_epochs.end_of(last_epoch, log.log_end_offset)
    if epoch < last_epoch or end < position:
        return epoch, end
    boundary = log.index.boundary(position)
    if boundary is not None and log.sealed_offset < position and boundary < position:
        return epoch, boundary
    return None


def truncation_end(log: PartitionLog, leader_epoch: int, end_offset: int) -> int:
    """Return the offset down to which the follower's ``log`` may match the leader's, if the leader's records of
    ``leader_epoch`` and before end at ``end_offset``. It is below the log end.
    """
    _, own_end = log.state.leader_epochs.end_of(leader_epoch, log.log_end_offset)
    return max(0, min(end_offset, own_end, log.log_end_offset - 1))


def require_follows(log: PartitionLog, frames: Sequence[Frame]) -> None:
    """Require that ``frames`` follow the end of ``log``, from leaders up to the one that is followed. Raises
    CorruptionError.
    """
    at, epoch = log.next_offset, log.last_epoch
    for frame in frames:
        header = frame.header
        begins = header.base_offset == at or (at == log.next_offset and log.begins_tail(header))
        if (
            not begins
            or not header.takes_offsets
            or not epoch <= header.leader_epoch <= log.leader_epoch
            or (header.topic_id, header.partition) != (log.topic_id, log.partition)
        ):
            raise CorruptionError(f"The leader of {log.topic}-{log.partition} sent {header}, and {log} is here.")
        at, epoch = header.end_offset, header.leader_epoch
