"""Requests for a topic's Delta table: roll, refresh, delete records, drop foreign files."""

from collections.abc import Callable

import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.errors import OffsetOutOfRangeError
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
        """``rolled`` takes the outcome of each roll: why it failed, or None."""
        self._roller = roller
        self._rolled = rolled
        self._admission = admission
        self._authorizer = authorizer

    async def roll(self, context: RequestContext, topic: Topic) -> RollResult:
        """Seal all that is acknowledged; returns when the Delta commit is durable. See ``Roller.roll``."""
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
        """Read the commits of others to the topic's table; the version that every read from here on sees.

        Raises as ``Roller.refresh``.
        """
        self._authorizer.require(context, Operation.ALTER, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        await self._roller.refresh(topic)
        return topic.version

    async def delete_records(self, context: RequestContext, topic: Topic, partition: int, before_offset: int) -> int:
        """Move the log start offset up to ``before_offset`` (-1: the last stable offset); the new log start offset.

        Readers of this project stop seeing the records below at once; the files follow with the retention job. Raises
        OffsetOutOfRangeError beyond the last stable offset or below -1, TopicAuthorizationError, UnknownPartitionError,
        InvalidTopicError, NotLeaderOrFollowerError.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        topic.require_not_internal()
        partition_log = topic.partition(partition)
        partition_log.require_served()
        epoch = partition_log.require_leader().epoch
        end = partition_log.rollable_end
        target = end if before_offset == -1 else before_offset
        if not 0 <= target <= end:
            raise OffsetOutOfRangeError(
                f"Cannot delete the records of {topic.name}-{partition} before offset {before_offset}: "
                f"send an offset of {partition_log.log_start_offset} to {end}, or -1 for all.",
                log_start_offset=partition_log.log_start_offset,
                high_watermark=partition_log.high_watermark,
            )
        if target > partition_log.sealed_offset:
            await self._roller.roll(topic, lambda p: p is partition_log)
        if target > partition_log.log_start_offset:
            await self._roller.commit(
                topic,
                lambda: topic.table.advance_log_start({partition: target}, {partition: epoch}),
            )
        return partition_log.log_start_offset

    async def drop_foreign_files(self, context: RequestContext, topic: Topic) -> tuple[str, ...]:
        """Take files that other writers added out of the topic's table, and serve its partitions again; their paths.

        The files stay on disk. Raises TopicAuthorizationError, BrokerNotReadyError, InvalidTopicError, and as
        ``Roller.commit``.
        """
        self._authorizer.require(context, Operation.ALTER, ResourceType.TOPIC, topic.name)
        self._admission.require_ready()
        topic.require_not_internal()
        dropped = await self._roller.commit(topic, topic.table.drop_foreign_files)
        log.info("topic.foreign_files_dropped", topic=topic.name, files=dropped)
        return dropped
