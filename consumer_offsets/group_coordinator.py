"""The group coordinator: commit and read offsets, read the lag, list, describe and delete groups.

Invariants: a committed offset names a partition that exists, in [0, high watermark] at the time of the commit. The
offset belongs to the topic, not to its name: when a topic is deleted its offsets are gone at once, also if a topic of
the same name is made again. A request is committed as a whole or refused as a whole.
"""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields
from typing import Self

from consumer_offsets.committed_offsets import NO_PRODUCER_ID, TopicPartition
from consumer_offsets.followed_topics import FollowedTopics
from consumer_offsets.group_members import GroupMembers
from consumer_offsets.group_shards import GroupShards, answered
from consumer_offsets.groups import events
from consumer_offsets.groups.description import GroupDescription, MemberDescription
from consumer_offsets.groups.group import Group
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups_machine import OWN_REQUEST, CommitOffsets, DeleteGroup, GroupsMachine, TopicsChanged
from consumer_offsets.instances.consumer_instances import ConsumerInstances
from consumer_offsets.instances.instance_home import InstanceHome
from consumer_offsets.offset_cleanup import OffsetCleanup
from consumer_offsets.offsets import CommittingMember
from consumer_offsets.offsets import OffsetToCommit as OffsetToCommit  # noqa: PLC0414 (given on)
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.topic_ids import require_topic_id
from logstore.clock import Clock, SystemClock
from logstore.errors import (
    InvalidRequestError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
    QuarantinedError,
    UnknownGroupError,
    UnknownTopicError,
    UnstableOffsetCommitError,
)
from logstore.limits import GROUP_NAME_LENGTH_MAX, OFFSET_METADATA_BYTES_MAX
from logstore.protocol.assignors.registry import SERVER_ASSIGNORS
from logstore.protocol.consumer_protocol import PROTOCOL_TYPE, decode_assignment
from logstore.records.offset_record import NO_GENERATION, NO_LEADER_EPOCH, InstanceKey, OffsetCommit

_TIMEOUT_MS = 30_000
#: Of consumer instances.
_SESSION_TIMEOUT_MS = 45_000


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


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """``member_epoch`` is -1 in a classic group. ``partitions`` are assigned to it, as (topic, partition)."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    partitions: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """As ``groups.description.GroupDescription``, with the partitions of members."""

    group: str
    kind: str
    state: str
    generation: int
    protocol_type: str | None
    protocol: str | None
    members: list[DescribedMember]


class GroupCoordinator:
    """Runs on the broker's event loop. ``start`` it after the broker. Its shards are the only writers of its topic.

    ``members`` takes the requests of members, ``instances`` has the consumers that the store holds for clients.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._authorizer = broker.authorizer
        self._clock = clock
        config = GroupConfig(**{each.name: getattr(broker.settings, each.name) for each in fields(GroupConfig)})
        self._topics = FollowedTopics(broker, self._tell_of_topics)
        self._shards = GroupShards(
            broker,
            clock,
            lambda: GroupsMachine(
                lambda group: Group(group, config, SERVER_ASSIGNORS, self._topics.topics), self._topics.changed
            ),
        )
        self.members = GroupMembers(self._authorizer, self._shards, self._topics)
        self.cleanup = OffsetCleanup(broker, clock, self._shards)
        home = InstanceHome(
            broker,
            self.members,
            self._topics,
            clock,
            self.commit_of_instance,
            self._current,
            min(max(_SESSION_TIMEOUT_MS, config.group_min_session_timeout_ms), config.group_max_session_timeout_ms),
            broker.settings.consumer_max_poll_interval_ms,
        )
        self.instances = ConsumerInstances(home, self._shards)

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
        """Load the groups, and follow topics and leaders.

        Groups that cannot be read are refused until a restart finds the topic mended; others are served.
        """
        coordinator = cls(broker, clock or SystemClock())
        coordinator.instances.start()
        await coordinator._shards.start()
        await coordinator.cleanup.start()
        coordinator._topics.start()
        return coordinator

    async def close(self) -> None:
        """Stop following the broker. Commits under way still finish."""
        self._topics.close()
        await self.instances.close()
        await self.cleanup.close()
        await self._shards.close()

    def _tell_of_topics(self, changed: TopicsChanged) -> None:
        for shard in self._shards.active():
            shard.apply(changed)
        self.instances.topics_changed()

    # ---- requests of groups -----------------------------------------------------------------------------------------

    async def commit(
        self,
        context: RequestContext,
        group: str,
        offsets: Sequence[OffsetToCommit],
        *,
        member_id: str = "",
        generation: int = NO_GENERATION,
        group_instance_id: str | None = None,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = -1,
        transactional_id: str | None = None,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> None:
        """Commit offsets, lower ones than before too; returns when that is durable.

        A commit with ``member_id``, ``group_instance_id`` or ``generation`` (of a classic group, or the member's epoch)
        is taken from a member of that generation only: UnknownMemberIdError, IllegalGenerationError. One of a
        transaction (``producer_id``, ``producer_epoch``, ``transactional_id``) is refused: InvalidRequestError.

        Raises GroupAuthorizationError, TopicAuthorizationError (of one of the topics), InvalidGroupError,
        InvalidRequestError (none, or a partition twice), OffsetMetadataTooLargeError, UnknownTopicError,
        UnknownTopicIdError, UnknownPartitionError, OffsetOutOfRangeError; RequestTimedOutError (it may or may not be
        committed); BrokerNotReadyError, ThrottledError, StorageFullError, StorageError.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        _check_request(offsets)
        _check_transaction(producer_id, producer_epoch, transactional_id)
        for name in dict.fromkeys(asked.topic for asked in offsets):
            self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, name)
        self._check_offsets(offsets, generation)
        await self._commit(group, offsets, CommittingMember(member_id, generation, group_instance_id), None, timeout_ms)

    async def commit_of_instance(
        self,
        context: RequestContext,
        key: InstanceKey,
        id: str,
        offsets: Sequence[OffsetToCommit],
        member: CommittingMember,
    ) -> None:
        """As ``commit``, by the consumer instance of that id: where it began to read is forgotten in the same frame.
        Raises UnknownInstanceError, too.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, key.group)
        _check_request(offsets)
        for name in dict.fromkeys(asked.topic for asked in offsets):
            self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, name)
        self._check_offsets(offsets, member.generation)
        await self._commit(key.group, offsets, member, (key, id), _TIMEOUT_MS)

    async def _commit(
        self,
        group: str,
        offsets: Sequence[OffsetToCommit],
        by: CommittingMember,
        instance: tuple[InstanceKey, str] | None,
        timeout_ms: int,
    ) -> None:
        shard = await self._shards.of(group, timeout_ms)
        # Check again: a topic may have been deleted, or made again, meanwhile. From here to the append nothing awaits.
        commits = self._check_offsets(offsets, by.generation)
        member = events.CommitOffsets(OWN_REQUEST, by.member_id, by.generation, by.instance_id)
        answer = shard.request(lambda request: CommitOffsets(request, group, commits, member, instance))
        await answered(group, answer, timeout_ms)

    def groups(self, context: RequestContext) -> list[str]:
        """Names of the groups with members or committed offsets that the principal may describe, sorted."""
        topic_ids = self._topic_ids()
        names = sorted(
            group
            for machine in self._shards.machines()
            for group in {*machine.offsets.current(topic_ids), *machine.groups()}
        )
        return self._authorizer.authorize(context, Operation.DESCRIBE, ResourceType.GROUP, names)

    def committed(
        self, context: RequestContext, group: str, topic: str | None = None, *, require_stable: bool = False
    ) -> list[CommittedOffset]:
        """Committed offsets, by topic and partition: of ``topic``, or of all topics that the principal may describe.

        Raises GroupAuthorizationError, UnknownGroupError; for ``topic`` TopicAuthorizationError, UnknownTopicError;
        with ``require_stable`` UnstableOffsetCommitError if an open transaction has committed one of them;
        NotCoordinatorError, CoordinatorLoadInProgressError, QuarantinedError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        if topic is not None:
            self._broker.topic(context, topic)
        if require_stable:
            for pending in self._shards.machine(group).offsets.pending(group):
                if topic in (None, pending.topic):
                    raise UnstableOffsetCommitError(
                        f"The offset of group {group!r} for {pending.topic}-{pending.partition} is that of an open "
                        "transaction: ask again when it has ended."
                    )
        known = self._known(group)
        shown = self._authorizer.described(context, [key.topic for key, _ in known])
        return [
            CommittedOffset(*key, commit.offset, commit.metadata, commit.leader_epoch, commit.commit_timestamp)
            for key, commit in known
            if key.topic in shown and topic in (None, key.topic)
        ]

    def lag(self, context: RequestContext, group: str) -> list[PartitionLag]:
        """The lag in all partitions of the topics that the group has committed to, or that are assigned to its members,
        and that the principal may describe, in order.

        Raises GroupAuthorizationError, UnknownGroupError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        committed = {key: commit.offset for key, commit in self._known(group)}
        lags = []
        members = self.describe(context, group).members
        topics = {key.topic for key in committed} | {topic for member in members for topic, _ in member.partitions}
        for name in sorted(self._authorizer.described(context, sorted(topics & self._topic_ids().keys()))):
            for log in self._broker.topic(INTERNAL, name).partitions:
                offset = committed.get(TopicPartition(name, log.partition))
                begin = log.log_start_offset if offset is None else offset
                lag = max(0, log.high_watermark - begin)
                lags.append(PartitionLag(name, log.partition, offset, log.log_start_offset, log.high_watermark, lag))
        return lags

    def describe(self, context: RequestContext, group: str) -> DescribedGroup:
        """The group and its members. GroupAuthorizationError, UnknownGroupError, and as ``committed``."""
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        self._known(group)
        found = self._shards.machine(group).describe(group) or GroupDescription(group, "", "Empty", NO_GENERATION)
        return DescribedGroup(
            found.group,
            found.kind,
            found.state,
            found.generation,
            found.protocol_type,
            found.protocol,
            [
                DescribedMember(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.member_epoch,
                    _partitions_of(member, found.protocol_type),
                )
                for member in found.members
            ],
        )

    async def delete(self, context: RequestContext, group: str, *, timeout_ms: int = _TIMEOUT_MS) -> None:
        """Delete a group without members, and all its committed offsets.

        Raises GroupAuthorizationError, UnknownGroupError, NonEmptyGroupError, and as ``commit`` when it cannot.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.GROUP, group)
        self._known(group)
        shard = await self._shards.of(group, timeout_ms)
        await answered(group, shard.request(lambda request: DeleteGroup(request, group)), timeout_ms)

    # ---- groups and topics ------------------------------------------------------------------------------------------

    def _known(self, group: str) -> list[tuple[TopicPartition, OffsetCommit]]:
        current = self._current(group)
        if not current and self._shards.machine(group).describe(group) is None:
            raise UnknownGroupError(
                f"Group {group[:GROUP_NAME_LENGTH_MAX]!r} not found: it has no members, and has committed no offsets."
            )
        return sorted(current.items())

    def _current(self, group: str) -> dict[TopicPartition, OffsetCommit]:
        """Commits whose topics are still the ones that they were made to."""
        commits = self._shards.machine(group).offsets.commits(group)
        return {key: commit for key, commit in commits.items() if self._is_current(key, commit)}

    def _topic_ids(self) -> dict[str, str]:
        return {topic.name: str(topic.topic_id) for topic in self._broker.topics(INTERNAL, include_internal=True)}

    def _is_current(self, key: TopicPartition, commit: OffsetCommit) -> bool:
        try:
            return str(self._broker.topic(INTERNAL, key.topic).topic_id) == commit.topic_id
        except (UnknownTopicError, QuarantinedError):
            return False

    def _check_offsets(self, offsets: Sequence[OffsetToCommit], generation: int) -> dict[TopicPartition, OffsetCommit]:
        """The commits to append, once every offset is checked."""
        now = self._clock.now_ms()
        commits: dict[TopicPartition, OffsetCommit] = {}
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
                generation,
                str(topic.topic_id),
                now,
            )
        return commits


def _partitions_of(member: MemberDescription, protocol_type: str | None) -> list[tuple[str, int]]:
    if protocol_type != PROTOCOL_TYPE or not member.assignment:
        return [(entry.topic, partition) for entry in member.assigned for partition in entry.partitions]
    try:
        return sorted(decode_assignment(member.assignment).partitions)
    except InvalidRequestError:
        return []  # bytes of a client's own


def _check_transaction(producer_id: int, producer_epoch: int, transactional_id: str | None) -> None:
    if producer_id != NO_PRODUCER_ID or producer_epoch != -1 or transactional_id is not None:
        raise InvalidRequestError(
            "Offsets cannot be committed in a transaction: commit them without producer id, epoch and transactional id."
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
