"""Dropping the end of a partition log, in the journal and in memory (C8)."""

from logstore.journal.journal import Journal
from logstore.log.partition_log import PartitionLog


async def truncate(journal: Journal, log: PartitionLog, offset: int, leader_epoch: int) -> int:
    """Drop the records from ``offset`` on, and those that share a frame with it; the new log end offset.

    See ``PartitionLog.truncation``. Returns when it is durable; raises as ``Journal.append``, and then nothing changed.
    """
    frame = log.truncation(offset, leader_epoch)
    durable = journal.append([frame])
    log.track(frame, durable, 0)
    await durable
    log.complete_appends()
    journal.truncate(log.topic_id, log.partition, log.log_end_offset)
    return log.log_end_offset
