"""The group coordinator: commit and read offsets, read the lag, list and delete groups.

Invariants: a committed offset names a partition that exists, in [0, high watermark] at the time of the commit. The
offset belongs to the topic, not to its name: when a topic is deleted its offsets are gone at once, also if a topic of
the same name is made again. A request is committed as a whole or refused as a whole.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Self

import structlog

from consumer_offsets.offset_log import OffsetLog, TopicPartition
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker, Topic
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.topic_ids import require_topic_id
from logstore.clock import Clock, SystemClock
from logstore.errors import (
    InvalidGroupError,
    InvalidRequestError,
    LogStoreError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    QuarantinedError,
    UnknownGroupError,
    UnknownTopicError,
)
from logstore.limits import GROUP_NAME_LENGTH_MAX, OFFSET_METADATA_BYTES_MAX
from logstore.names import is_legal_name
from logstore.records.offset_record import NO_GENERATION, NO_LEADER_EPOCH, OffsetCommit

log = structlog.stdlib.get_logger(__name__)

_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """``offset`` is the next one to read; ``metadata`` is the consumer's own text.

    ``topic_id`` is the id of the topic that was read; None: whichever topic has the name now.
    """

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """``leader_epoch`` is that of the record before ``offset`` (-1: not known), ``timestamp`` the commit's, in ms."""

    topic: str
    partition: int
    offset: int
    metadata: str
    leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``lag`` is the number of offsets from ``committed_offset``, or from ``log_start_offset`` without one (None), to
    ``high_watermark``.
    """

    topic: str
    partition: int
    committed_offset: int | None
    log_start_offset: int
    high_watermark: int
    lag: int


class GroupCoordinator:
    """Runs on the broker's event loop. ``start`` it after the broker. It is the only writer of its topic."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._authorizer = broker.authorizer
        self._clock = clock
        self._offsets = OffsetLog(broker)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, broker: Broker, *, clock: Clock | None = None) -> AsyncIterator[Self]:
        """``start`` and ``close`` around a block."""
        coordinator = await cls.start(broker, clock=clock)
        try:
            yield coordinator
        finally:
            await coordinator.close()

    @classmethod
    async def start(cls, broker: Broker, *, clock: Clock | None = None) -> Self:
        """Load the committed offsets, and follow the deletion of topics. CorruptionError if they cannot be read."""
        coordinator = cls(broker, clock or SystemClock())
        await coordinator._offsets.load()
        await coordinator._delete_orphans()
        broker.topic_deleted_listeners.append(coordinator._on_topic_deleted)
        return coordinator

    async def close(self) -> None:
        """Stop following the broker. Commits under way still finish."""
        self._broker.topic_deleted_listeners.remove(self._on_topic_deleted)
        await self._offsets.close()

    # ---- requests of groups -----------------------------------------------------------------------------------------

    async def commit(
        self, context: RequestContext, group: str, offsets: Sequence[OffsetToCommit], *, timeout_ms: int = _TIMEOUT_MS
    ) -> None:
        """Commit offsets, lower ones than before too; returns when that is durable.

        Raises GroupAuthorizationError, TopicAuthorizationError (of one of the topics), InvalidGroupError,
        InvalidRequestError (none, or a partition twice), OffsetMetadataTooLargeError, UnknownTopicError,
        UnknownTopicIdError, UnknownPartitionError, OffsetOutOfRangeError; RequestTimedOutError (it may or may not be
        committed); BrokerNotReadyError, ThrottledError, StorageFullError, StorageError.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        _check_group_name(group)
        _check_request(offsets)
        for name in dict.fromkeys(asked.topic for asked in offsets):
            self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, name)
        self._check_offsets(offsets)
        topic = await self._offsets.open_topic()
        # Check again: a topic may have been deleted, or made again, meanwhile. From here to the append nothing awaits.
        commits = self._check_offsets(offsets)
        await self._offsets.append(topic, group, commits, timeout_ms=timeout_ms)

    def groups(self, context: RequestContext) -> list[str]:
        """Names of the groups with committed offsets that the principal may describe, sorted."""
        names = sorted(group for group in self._offsets.groups() if self._has_current(group))
        return self._authorizer.authorize(context, Operation.DESCRIBE, ResourceType.GROUP, names)

    def committed(self, context: RequestContext, group: str, topic: str | None = None) -> list[CommittedOffset]:
        """Committed offsets, by topic and partition: of ``topic``, or of all topics that the principal may describe.

        Raises GroupAuthorizationError, UnknownGroupError; for ``topic`` TopicAuthorizationError, UnknownTopicError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        if topic is not None:
            self._broker.topic(context, topic)
        known = self._known(group)
        shown = self._authorizer.described(context, [key.topic for key, _ in known])
        return [
            CommittedOffset(*key, commit.offset, commit.metadata, commit.leader_epoch, commit.commit_timestamp)
            for key, commit in known
            if key.topic in shown and topic in (None, key.topic)
        ]

    def lag(self, context: RequestContext, group: str) -> list[PartitionLag]:
        """The lag in all partitions of the topics that the group has committed to and the principal may describe, in
        order.

        Raises GroupAuthorizationError, UnknownGroupError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        committed = {key: commit.offset for key, commit in self._known(group)}
        lags = []
        for name in sorted(self._authorizer.described(context, [key.topic for key in committed])):
            for log in self._broker.topic(INTERNAL, name).partitions:
                offset = committed.get(TopicPartition(name, log.partition))
                begin = log.log_start_offset if offset is None else offset
                lag = max(0, log.high_watermark - begin)
                lags.append(PartitionLag(name, log.partition, offset, log.log_start_offset, log.high_watermark, lag))
        return lags

    async def delete(self, context: RequestContext, group: str, *, timeout_ms: int = _TIMEOUT_MS) -> None:
        """Delete the group: all its committed offsets.

        Raises GroupAuthorizationError, UnknownGroupError, and as ``commit`` when it cannot.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.GROUP, group)
        self._known(group)
        topic = await self._offsets.open_topic()
        await self._offsets.append(topic, group, dict.fromkeys(self._offsets.keys(group)), timeout_ms=timeout_ms)

    # ---- groups and topics ------------------------------------------------------------------------------------------

    def _known(self, group: str) -> list[tuple[TopicPartition, OffsetCommit]]:
        current = self._current(group)
        if not current:
            raise UnknownGroupError(f"Group {group[:GROUP_NAME_LENGTH_MAX]!r} not found: it has committed no offsets.")
        return sorted(current.items())

    def _current(self, group: str) -> dict[TopicPartition, OffsetCommit]:
        """Commits whose topics are still the ones that they were made to."""
        commits = self._offsets.commits(group)
        return {key: commit for key, commit in commits.items() if self._is_current(key, commit)}

    def _has_current(self, group: str) -> bool:
        return any(self._is_current(key, commit) for key, commit in self._offsets.commits(group).items())

    def _is_current(self, key: TopicPartition, commit: OffsetCommit) -> bool:
        try:
            return self._broker.topic(INTERNAL, key.topic).topic_id == commit.topic_id
        except (UnknownTopicError, QuarantinedError):
            return False

    def _check_offsets(self, offsets: Sequence[OffsetToCommit]) -> dict[TopicPartition, OffsetCommit | None]:
        """The commits to append, once every offset is checked."""
        now = self._clock.now_ms()
        commits: dict[TopicPartition, OffsetCommit | None] = {}
        for asked in offsets:
            topic = self._broker.topic(INTERNAL, asked.topic)
            require_topic_id(topic, asked.topic_id)
            partition_log = topic.partition(asked.partition)
            partition_log.require_served()
            if not 0 <= asked.offset <= partition_log.high_watermark:
                raise OffsetOutOfRangeError(
                    f"Cannot commit offset {asked.offset} of {asked.topic}-{asked.partition}: "
                    f"send the offset to read next, 0 to {partition_log.high_watermark}.",
                    log_start_offset=partition_log.log_start_offset,
                    high_watermark=partition_log.high_watermark,
                )
            epoch = partition_log.state.leader_epochs.epoch_of(asked.offset - 1)
            commits[TopicPartition(asked.topic, asked.partition)] = OffsetCommit(
                asked.offset,
                NO_LEADER_EPOCH if epoch is None else epoch,
                asked.metadata,
                NO_GENERATION,
                topic.topic_id,
                now,
            )
        return commits

    async def _on_topic_deleted(self, deleted: Topic) -> None:
        await self._delete_unseen(lambda group: [key for key in self._offsets.keys(group) if key.topic == deleted.name])

    async def _delete_orphans(self) -> None:
        """Delete offsets of topics whose deletion a crash cut short. Offsets of a missing topic stay."""
        existing = {topic.name: topic.topic_id for topic in self._broker.topics(INTERNAL, include_internal=True)}

        def is_orphan(key: TopicPartition, commit: OffsetCommit) -> bool:
            made_again = existing.get(key.topic, commit.topic_id) != commit.topic_id
            return made_again or self._broker.was_deleted(INTERNAL, commit.topic_id)

        await self._delete_unseen(lambda group: [k for k, c in self._offsets.commits(group).items() if is_orphan(k, c)])

    async def _delete_unseen(self, keys_of: Callable[[str], list[TopicPartition]]) -> None:
        """Delete offsets that nobody sees any more. If that fails, the next start deletes them."""
        stale = {group: keys for group in self._offsets.groups() if (keys := keys_of(group))}
        if not stale:
            return
        # The topic exists, so this does not wait for the lock on the catalogue, which a deletion holds.
        topic = await self._offsets.open_topic()
        outcomes = await asyncio.gather(
            *(self._offsets.append(topic, g, dict.fromkeys(keys), timeout_ms=_TIMEOUT_MS) for g, keys in stale.items()),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, LogStoreError):
                log.warning("group_offsets.not_deleted", error=str(outcome))
            elif outcome is not None:
                raise outcome


def _check_group_name(group: str) -> None:
    if not is_legal_name(group, GROUP_NAME_LENGTH_MAX):
        shown = group if len(group) <= GROUP_NAME_LENGTH_MAX else group[:32] + "..."
        raise InvalidGroupError(
            f"Group name {shown!r} is not allowed: use 1 to {GROUP_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - "
            "(but not '.' or '..')."
        )


def _check_request(offsets: Sequence[OffsetToCommit]) -> None:
    if not offsets:
        raise InvalidRequestError("There are no offsets to commit: send at least one.")
    seen: set[tuple[str, int]] = set()
    for asked in offsets:
        if (asked.topic, asked.partition) in seen:
            raise InvalidRequestError(f"{asked.topic}-{asked.partition} is there twice: send one offset for it.")
        seen.add((asked.topic, asked.partition))
        num_bytes = len(asked.metadata.encode())
        if num_bytes > OFFSET_METADATA_BYTES_MAX:
            raise OffsetMetadataTooLargeError(
                f"The metadata of {asked.topic}-{asked.partition} has {num_bytes} bytes in UTF-8, "
                f"{OFFSET_METADATA_BYTES_MAX} are allowed: send less."
            )
