"""Dropping the end of a partition log, in the journal and in memory (C8)."""

import asyncio
from collections.abc import Sequence

from logstore.errors import LogStoreError
from logstore.journal.frame import FrameLocation
from logstore.journal.journal import Journal
from logstore.log.partition_log import PartitionLog


async def truncate(journal: Journal, log: PartitionLog, offset: int, leader_epoch: int) -> int:
    """Drop the records from ``offset`` on, and those that share a frame with it. Return the new log end offset.

    See ``PartitionLog.truncation``. It returns when the truncation is durable. Raises the errors of ``Journal.append``,
    and then nothing has changed.
    """
    frame = log.truncation(offset, leader_epoch)
    durable = asyncio.get_running_loop().create_future()

    def on_stored(locations: Sequence[FrameLocation], error: LogStoreError | None) -> None:
        if error is not None:
            log.failed(frame, error)
            durable.set_exception(error)
            return
        log.stored(frame, locations[0])
        durable.set_result(None)

    log.track(frame)
    journal.store([frame], on_stored)
    await asyncio.shield(durable)
    journal.truncate(log.topic_id, log.partition, log.log_end_offset)
    return log.log_end_offset
