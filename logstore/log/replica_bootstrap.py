"""Restarts a follower's log where the table ends, because the leader has no frames from before (KIP-405).

The history is in the table, which all brokers share, so nothing is copied. Two frames go to the journal in one append:
a truncation of the whole tail, and a snapshot of the state in the footers of segments (C16). A crash leaves the log as
before, or at the end of the table.
"""

import asyncio
from collections.abc import Callable, Sequence

from logstore.errors import LogStoreError
from logstore.journal.frame import Frame, FrameLocation
from logstore.journal.journal import Journal
from logstore.log.newest_footers import newest_footers
from logstore.log.partition_log import PartitionLog
from logstore.log.partition_log_state import PartitionLogState
from logstore.log.topic import Topic


async def reset_to_table(
    journal: Journal, topic: Topic, log: PartitionLog, producer_ids_begin: int, is_wanted: Callable[[], bool]
) -> bool:
    """Restart ``log`` at the sealed offset of the topic's newest snapshot; return whether that was done.

    It is not done if ``is_wanted`` returns false after the footers were read. Raises StorageError, and the errors of
    ``Journal.append``.
    """
    sealed = topic.snapshot.partitions[log.partition].sealed
    footers = await asyncio.to_thread(newest_footers, topic, log)
    if not is_wanted() or topic.snapshot.partitions[log.partition].sealed != sealed or sealed < log.sealed_offset:
        return False
    keys = log.state.idempotency_keys
    state = PartitionLogState("", clock=keys.clock, producer_id_expiration_ms=log.state.producers.remembered_ms)
    state.idempotency_keys.remembered_ms = keys.remembered_ms
    state.replace(footers, producer_ids_begin)
    if footers:
        log.recover_append_time(footers[0].append_time_ms)
    truncation = log.truncation(log.sealed_offset, max(log.leader_epoch, 0))
    snapshot = log.snapshot_of(state, sealed_offset=sealed, log_end_offset=sealed)
    durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_stored(locations: Sequence[FrameLocation], error: LogStoreError | None) -> None:
        if error is not None:
            log.failed(truncation, error)
            durable.set_exception(error)
            return
        before = log.sealed_offset
        log.stored(truncation, locations[0])
        log.state.replace(footers, producer_ids_begin)
        log.reset(sealed)
        journal.truncate(log.topic_id, log.partition, before)
        journal.release(log.topic_id, log.partition, sealed)
        durable.set_result(None)

    log.track(truncation)
    frames: list[Frame] = [truncation, snapshot]
    journal.store(frames, on_stored)
    await asyncio.shield(durable)
    return True
