"""Requests for a topic's Delta table: roll, refresh, delete records, drop foreign files."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.errors import LogStoreError, OffsetOutOfRangeError, storage_error
from logstore.log.keyless_records import KeylessRecords, keyless_records
from logstore.log.partition_log import PartitionLog
from logstore.log.roller import Roller, RollResult
from logstore.log.topic import Topic

log = structlog.stdlib.get_logger(__name__)


class TopicTables:
    def __init__(
        self,
        roller: Roller,
        admission: Admission,
        authorizer: Authorizer,
        rolled: Callable[[Topic, str | None], None],
    ) -> None:
        """``rolled`` takes the outcome of each roll: the reason why it failed, or None."""
        self._roller = roller
        self._rolled = rolled
        self._admission = admission
        self._authorizer = authorizer

    async def roll(self, context: RequestContext, topic: Topic) -> RollResult:
        """Seal all that is acknowledged; return when the Delta commit is durable. See ``Roller.roll``."""
        self._authorizer.require(context, Operation.ALTER, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        try:
            result = await self._roller.roll(topic)
        except Exception as error:
            self._rolled(topic, str(error))
            raise
        self._rolled(topic, None)
        return result

    async def refresh(self, context: RequestContext, topic: Topic) -> int:
        """Read the commits of others to the topic's table. Return the version that every read from here on sees.

        Raises the errors of ``Roller.refresh``.
        """
        self._authorizer.require(context, Operation.ALTER, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        await self._roller.refresh(topic)
        return topic.version

    async def keyless_records(self, context: RequestContext, topic: Topic) -> list[KeylessRecords]:
        """Return records without a key in the topic's table, by partition, which a compaction removes. Records that are
        not rolled yet are left out. Raises TopicAuthorizationError, CorruptionError and StorageError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        try:
            return await asyncio.to_thread(keyless_records, topic.table.files, topic.snapshot)
        except OSError as error:
            raise storage_error(f"reading the table of topic {topic.name!r}", error) from error

    async def delete_records(self, context: RequestContext, topic: Topic, partition: int, before_offset: int) -> int:
        """Delete records of one partition as ``delete_all_records`` does. Return its log start offset; raise its
        error.
        """
        found = await self.delete_all_records(context, topic, {partition: before_offset})
        if isinstance(start := found[partition], LogStoreError):
            raise start
        return start

    async def delete_all_records(
        self, context: RequestContext, topic: Topic, before_offsets: Mapping[int, int]
    ) -> dict[int, int | LogStoreError]:
        """Move the log start offset of each partition up to the given one (-1: the last stable offset). Return the new
        log start offsets, or the errors. One roll and one commit serve all.

        Readers of this project stop seeing the records below at once; the files follow with the retention job. Errors
        of a partition: OffsetOutOfRangeError beyond the last stable offset or below -1, UnknownPartitionError,
        NotLeaderOrFollowerError, and those of ``Roller.roll`` and ``Roller.commit``. Raises TopicAuthorizationError,
        BrokerNotReadyError and InvalidTopicError.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        topic.require_not_internal()
        found: dict[int, int | LogStoreError] = {}
        targets: dict[int, int] = {}
        epochs: dict[int, int] = {}
        for partition, before_offset in before_offsets.items():
            try:
                partition_log = topic.partition(partition)
                partition_log.require_served()
                leadership = partition_log.require_leader()
                leadership.require_lease()  # the next leader would show the records for a while
                epochs[partition] = leadership.epoch
                targets[partition] = _new_start(partition_log, before_offset)
            except LogStoreError as error:
                found[partition] = error
        logs = topic.partitions
        try:
            unsealed = {one for one, target in targets.items() if target > logs[one].sealed_offset}
            if unsealed:
                await self._roller.roll(topic, lambda log: log.partition in unsealed)
            moved = {one: target for one, target in targets.items() if target > logs[one].log_start_offset}
            if moved:
                await self._roller.commit(topic, lambda: topic.table.advance_log_start(moved, epochs))
        except LogStoreError as error:
            return found | dict.fromkeys(targets, error)
        return found | {one: logs[one].log_start_offset for one in targets}

    async def drop_foreign_files(self, context: RequestContext, topic: Topic) -> tuple[str, ...]:
        """Take files that other writers added out of the topic's table, and serve its partitions again. Return their
        paths.

        The files stay on disk. Raises TopicAuthorizationError, BrokerNotReadyError, InvalidTopicError, and the errors
        of ``Roller.commit``.
        """
        self._authorizer.require(context, Operation.ALTER, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        topic.require_not_internal()
        dropped = await self._roller.commit(topic, topic.table.drop_foreign_files)
        log.info("topic.foreign_files_dropped", topic=topic.name, files=dropped)
        return dropped


def _new_start(log: PartitionLog, before_offset: int) -> int:
    end = log.rollable_end
    target = end if before_offset == -1 else before_offset
    if not 0 <= target <= end:
        raise OffsetOutOfRangeError(
            f"Cannot delete the records of {log.topic}-{log.partition} before offset {before_offset}: send an offset "
            f"of {log.log_start_offset} to {end}, or -1 for all.",
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
        )
    return target
