"""The group coordinator commits and resets offsets, and deletes groups; ``group_queries`` reads them.

Invariants: a committed offset names a partition that exists. The offset belongs to the topic, not to its name: when a
topic is deleted its offsets disappear at once, even if a topic of the same name is created again. With ``commit`` and
``reset`` it is in [0, high watermark], which the partition's leader reports at the time of the commit, whichever broker
that is; without a report nothing is refused. These requests are committed or refused as a whole. Kafka's clients commit
each offset by itself (``commit_each``), also outside of the log, and to groups of any name.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields
from typing import Self

from consumer_offsets.committed_offsets import NO_PRODUCER_ID, TopicPartition
from consumer_offsets.followed_topics import FollowedTopics
from consumer_offsets.group_members import GroupMembers
from consumer_offsets.group_queries import GroupQueries
from consumer_offsets.group_shards import GroupShard, GroupShards, answered, check_group_name
from consumer_offsets.groups import events
from consumer_offsets.groups.group import Group
from consumer_offsets.groups.group_config import GroupConfig
from consumer_offsets.groups_machine import (
    OWN_REQUEST,
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    GroupsMachine,
    TopicsChanged,
)
from consumer_offsets.instances.consumer_instances import ConsumerInstances
from consumer_offsets.instances.instance_home import InstanceHome
from consumer_offsets.offset_cleanup import OffsetCleanup
from consumer_offsets.offset_reset import ResetTarget, ResetTo, reset_offset
from consumer_offsets.offsets import OffsetToCommit
from consumer_offsets.steps import in_steps
from logstore.broker.authorizer import Operation, ResourceType, refusal
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL, Forwarding, RequestContext
from logstore.broker.elsewhere.partition_offsets import NOTHING_ELSEWHERE, OffsetsElsewhere, PartitionOffsets, known_end
from logstore.broker.topics.ids import require_topic_id
from logstore.clock import Clock, SystemClock
from logstore.errors import (
    GroupSubscribedToTopicError,
    InvalidRequestError,
    LogStoreError,
    NonEmptyGroupError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
)
from logstore.limits import OFFSET_METADATA_BYTES_MAX
from logstore.log.partition_log import PartitionLog
from logstore.protocol.assignors.registry import SERVER_ASSIGNORS
from logstore.protocol.members.identity import MemberIdentity
from logstore.protocol.messages.groups import OffsetReset
from logstore.records.offset_record import NO_GENERATION, NO_LEADER_EPOCH, OFFSETS_TOPIC, InstanceKey, OffsetCommit

_TIMEOUT_MS = 30_000
_DELETED_AT_ONCE = 500
#: The session time-out of consumer instances.
_SESSION_TIMEOUT_MS = 45_000


class GroupCoordinator(GroupQueries):
    """Runs on the broker's event loop. It is started after the broker. Its shards are the only writers of its topic.

    ``members`` takes the requests of members, ``instances`` has the consumers that the store holds for clients.
    """

    def __init__(self, broker: Broker, clock: Clock) -> None:
        config = GroupConfig(**{each.name: getattr(broker.settings, each.name) for each in fields(GroupConfig)})
        self._topics = FollowedTopics(broker, self._topics_changed)
        shards = GroupShards(
            broker,
            clock,
            lambda: GroupsMachine(
                lambda group: Group(group, config, SERVER_ASSIGNORS, self._topics.topics), self._topics.changed
            ),
        )
        super().__init__(broker, shards)
        self._clock = clock
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
        """Run a coordinator from ``start`` to ``close`` around a block."""
        coordinator = await cls.start(broker, clock=clock)
        try:
            yield coordinator
        finally:
            await coordinator.close()

    @classmethod
    async def start(cls, broker: Broker, *, clock: Clock | None = None) -> Self:
        """Load the groups, and follow topics and leaders.

        Groups that cannot be read are refused until a restart finds the topic repaired; other groups are served.
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

    def _topics_changed(self, changed: TopicsChanged) -> None:
        for shard in self._shards.active():
            shard.apply(changed)
        self.instances.topics_changed()

    def coordinator_of(self, context: RequestContext, group: str) -> int:
        """Return the id of the group's coordinator; -1 while it has none, or before there are any groups.

        Raises GroupAuthorizationError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        return self._shards.coordinator_of(group)

    async def until_there(self, context: RequestContext, group: str) -> None:
        """Make sure that the topic of groups exists in a cluster, before the first request of a group, whose
        coordinator is not known earlier. Errors are left to the request.
        """
        if self._shards.has_topic or self._broker.elsewhere.is_alone:
            return
        with contextlib.suppress(LogStoreError):
            if self._broker.is_controller:
                await self._shards.make_topic()
            elif not context.is_forwarded:
                await self._broker.elsewhere.make_topic_of_groups(context, group)
                await self._broker.elsewhere.until_known([OFFSETS_TOPIC])

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
        """Commit offsets, which may be lower than before, and return when they are durable.

        A commit with ``member_id``, ``group_instance_id`` or ``generation`` (of a classic group, or the member's epoch)
        is accepted from a member of that generation only. Raises UnknownMemberIdError or IllegalGenerationError
        otherwise. Raises InvalidRequestError for a commit in a transaction (``producer_id``, ``producer_epoch``,
        ``transactional_id``).

        Raises GroupAuthorizationError, TopicAuthorizationError (for one of the topics), InvalidGroupError,
        InvalidRequestError (no offsets, or a partition twice), OffsetMetadataTooLargeError, UnknownTopicError,
        UnknownTopicIdError, UnknownPartitionError, OffsetOutOfRangeError; RequestTimedOutError (the outcome is
        unknown); BrokerNotReadyError, ThrottledError, StorageFullError, StorageError.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        check_group_name(group, may_be_empty=True)
        _check_transaction(producer_id, producer_epoch, transactional_id)
        elsewhere = await self._check_commit(context, offsets, generation)
        by = MemberIdentity(member_id, generation, group_instance_id)
        await self._commit(group, offsets, by, None, elsewhere, timeout_ms)

    async def commit_each(
        self,
        context: RequestContext,
        group: str,
        offsets: Sequence[OffsetToCommit],
        by: MemberIdentity,
        *,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> dict[TopicPartition, LogStoreError | None]:
        """Commit each offset that can be committed, as Kafka's OffsetCommit does, also outside of the log, in a group
        of any name.

        Return the error of each partition, or None. Of two offsets for a partition the last counts. Raises what
        ``commit`` raises about the group and the append.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        names = list(dict.fromkeys(asked.topic for asked in offsets))
        permitted = set(self._authorizer.authorize(context, Operation.READ, ResourceType.TOPIC, names))
        await self._broker.elsewhere.until_known(permitted)
        outcomes: dict[TopicPartition, LogStoreError | None] = {}
        accepted: dict[TopicPartition, OffsetToCommit] = {}
        async for asked in in_steps(offsets):
            place = TopicPartition(asked.topic, asked.partition)
            outcomes[place] = None
            accepted[place] = asked
            try:
                if asked.topic not in permitted:
                    raise refusal(context, Operation.READ, ResourceType.TOPIC, asked.topic)
                log, _ = self._commit_of(asked, by.generation, 0)
                if asked.offset < 0:
                    raise OffsetOutOfRangeError(
                        f"Cannot commit offset {asked.offset} of {asked.topic}-{asked.partition}: send 0 or more.",
                        log_start_offset=log.log_start_offset,
                        high_watermark=log.high_watermark,
                    )
            except LogStoreError as error:
                outcomes[place] = error
                del accepted[place]
        shard = await self._shards.wait_for_shard(group, timeout_ms)
        # Check once more: a topic may have been deleted meanwhile. From here to the append nothing awaits.
        commits: dict[TopicPartition, OffsetCommit] = {}
        now = self._clock.now_ms()
        for place, asked in accepted.items():
            try:
                _, commits[place] = self._commit_of(asked, by.generation, now)
            except LogStoreError as error:
                outcomes[place] = error
        if commits:
            member = events.CommitOffsets(OWN_REQUEST, by.member_id, by.generation, by.group_instance_id)
            await answered(
                group, shard.request(lambda request: CommitOffsets(request, group, commits, member)), timeout_ms
            )
        return outcomes

    async def commit_of_instance(
        self,
        context: RequestContext,
        key: InstanceKey,
        id: str,
        offsets: Sequence[OffsetToCommit],
        member: MemberIdentity,
    ) -> None:
        """Commit offsets of the consumer instance with that id, as ``commit`` does.

        The same frame forgets where the instance began to read. An offset may be beyond the end, as in REST Proxy and
        Kafka. It also raises UnknownInstanceError.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, key.group)
        elsewhere = await self._check_commit(context, offsets, member.generation, bounded=False)
        await self._commit(key.group, offsets, member, (key, id), elsewhere, _TIMEOUT_MS)

    async def _commit(
        self,
        group: str,
        offsets: Sequence[OffsetToCommit],
        by: MemberIdentity,
        instance: tuple[InstanceKey, str] | None,
        elsewhere: OffsetsElsewhere | None,
        timeout_ms: int,
    ) -> None:
        shard = await self._shards.wait_for_shard(group, timeout_ms)
        await self._append(shard, group, offsets, by, instance, elsewhere, timeout_ms)

    async def reset(
        self,
        context: RequestContext,
        group: str,
        target: ResetTarget | Sequence[OffsetToCommit],
        topics: Mapping[str, Sequence[int]] | None = None,
        *,
        dry_run: bool = False,
        timeout_ms: int = _TIMEOUT_MS,
    ) -> list[OffsetReset]:
        """Commit the ``target``, or given offsets, for a group without members: all or none. A group that does not
        exist is made. With ``dry_run`` nothing is committed.

        ``topics`` has the partitions of each topic, an empty list for all of them. None means all topics that the group
        has committed to; then a shift takes only the partitions with a commit. Raises what ``commit`` and
        ``offset_reset.reset_offset`` raise, UnknownGroupError, NonEmptyGroupError.
        """
        self._authorizer.require(context, Operation.READ, ResourceType.GROUP, group)
        check_group_name(group, may_be_empty=True)
        self._require_empty(group)
        committed = {key: commit.offset for key, commit in self._current(group).items()}
        offsets: Sequence[OffsetToCommit]
        if isinstance(target, ResetTarget):
            if topics is None:
                topics = self._reset_topics(group, target)
            offsets = await self._targets(context, target, topics, committed)
        else:
            offsets = target
        elsewhere = await self._check_commit(context, offsets, NO_GENERATION)
        if not dry_run:
            shard = await self._shards.wait_for_shard(group, timeout_ms)
            # A member may have joined meanwhile.
            self._require_empty(group)
            await self._append(shard, group, offsets, MemberIdentity(), None, elsewhere, timeout_ms)
        return [
            OffsetReset(
                each.topic, each.partition, each.offset, committed.get(TopicPartition(each.topic, each.partition))
            )
            for each in offsets
        ]

    def _reset_topics(self, group: str, target: ResetTarget) -> dict[str, Sequence[int]]:
        """Return all topics that the group has committed to. A shift begins at a commit, so it takes the partitions
        with one.
        """
        known: dict[str, list[int]] = {}
        for key, _ in self._known(group):
            known.setdefault(key.topic, []).append(key.partition)
        return {name: numbers if target.to is ResetTo.SHIFT else () for name, numbers in known.items()}

    async def _targets(
        self,
        context: RequestContext,
        target: ResetTarget,
        topics: Mapping[str, Sequence[int]],
        committed: Mapping[TopicPartition, int],
    ) -> list[OffsetToCommit]:
        offsets = []
        for name, numbers in sorted(topics.items()):
            topic = self._broker.topics.served.topic(context, name, Operation.READ)
            elsewhere = await self._broker.elsewhere.offsets(topic.partitions)
            for number in sorted(set(numbers)) or range(len(topic.partitions)):
                log = topic.partition(number)
                ends = PartitionOffsets.of(log, elsewhere)
                found = await reset_offset(
                    self._broker, topic, log, ends, target, committed.get(TopicPartition(name, number))
                )
                offsets.append(OffsetToCommit(name, number, found, topic_id=str(topic.topic_id)))
        return offsets

    async def _check_commit(
        self, context: RequestContext, offsets: Sequence[OffsetToCommit], generation: int, *, bounded: bool = True
    ) -> OffsetsElsewhere | None:
        """Check everything that can be refused, and return the ends that other leaders know. None if not ``bounded``:
        then offsets may be beyond the end.
        """
        _check_request(offsets)
        for name in dict.fromkeys(asked.topic for asked in offsets):
            self._authorizer.require(context, Operation.READ, ResourceType.TOPIC, name)
        await self._broker.elsewhere.until_known(asked.topic for asked in offsets)
        self._check_offsets(offsets, generation, NOTHING_ELSEWHERE if bounded else None)
        if not bounded:
            return None
        logs = [self._broker.topics.served.topic(INTERNAL, asked.topic).partition(asked.partition) for asked in offsets]
        elsewhere = await self._broker.elsewhere.ends_in_doubt(
            zip(logs, (asked.offset for asked in offsets), strict=True)
        )
        if elsewhere:
            self._check_offsets(offsets, generation, elsewhere)
        return elsewhere

    async def _append(
        self,
        shard: GroupShard,
        group: str,
        offsets: Sequence[OffsetToCommit],
        by: MemberIdentity,
        instance: tuple[InstanceKey, str] | None,
        elsewhere: OffsetsElsewhere | None,
        timeout_ms: int,
    ) -> None:
        # Check again: a topic may have been deleted, or made again, meanwhile. From here to the append nothing awaits.
        commits = self._check_offsets(offsets, by.generation, elsewhere)
        member = events.CommitOffsets(OWN_REQUEST, by.member_id, by.generation, by.group_instance_id)
        answer = shard.request(lambda request: CommitOffsets(request, group, commits, member, instance))
        await answered(group, answer, timeout_ms)

    async def delete(self, context: RequestContext, group: str, *, timeout_ms: int = _TIMEOUT_MS) -> None:
        """Delete a group without members, and all its committed offsets.

        Raises GroupAuthorizationError, UnknownGroupError, NonEmptyGroupError, and what ``commit`` raises if it fails.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.GROUP, group)
        self._known(group)
        shard = await self._shards.wait_for_shard(group, timeout_ms)
        await answered(group, shard.request(lambda request: DeleteGroup(request, group)), timeout_ms)

    async def delete_offsets(
        self, context: RequestContext, group: str, places: Sequence[TopicPartition], *, timeout_ms: int = _TIMEOUT_MS
    ) -> dict[TopicPartition, LogStoreError | None]:
        """Delete committed offsets of topics that no member is subscribed to (KIP-496).

        Return for each of ``places`` None, or TopicAuthorizationError, UnknownTopicError, UnknownPartitionError,
        GroupSubscribedToTopicError. Raises GroupAuthorizationError, UnknownGroupError, NonEmptyGroupError (nobody can
        read the members' subscriptions), and what ``commit`` raises if it fails.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.GROUP, group)
        names = list(dict.fromkeys(place.topic for place in places))
        permitted = set(self._authorizer.authorize(context, Operation.READ, ResourceType.TOPIC, names))
        await self._broker.elsewhere.until_known(permitted)
        self._known(group)
        outcomes: dict[TopicPartition, LogStoreError | None] = {}
        async for place in in_steps(places):
            outcomes[place] = None
            try:
                if place.topic not in permitted:
                    raise refusal(context, Operation.READ, ResourceType.TOPIC, place.topic)
                self._broker.topics.served.topic(INTERNAL, place.topic).partition(place.partition)
            except LogStoreError as error:
                outcomes[place] = error
        shard = await self._shards.wait_for_shard(group, timeout_ms)
        # From here to the append nothing awaits, so that nobody subscribes meanwhile.
        subscribed = shard.machine.subscribed_topics(group)
        is_subscribed = GroupSubscribedToTopicError(f"Members of group {group} are subscribed to the topic: stop them.")
        for place, outcome in outcomes.items():
            if outcome is None and (subscribed is None or place.topic in subscribed):
                outcomes[place] = is_subscribed
        gone = [place for place in shard.machine.keys(group) if place in outcomes and outcomes[place] is None]
        await answered(group, shard.request(lambda request: DeleteOffsets(request, group, gone)), timeout_ms)
        return outcomes

    async def delete_groups(
        self, context: RequestContext, groups: Sequence[str], *, timeout_ms: int = _TIMEOUT_MS
    ) -> dict[str, LogStoreError | None]:
        """Delete several groups, each as ``delete`` does. Return the error of each name, or None."""
        names = list(dict.fromkeys(groups))
        outcomes: dict[str, LogStoreError | None] = {}
        if context.forwarding is Forwarding.ALLOWED:
            outcomes.update(await self._elsewhere.delete(context, names))
        here = [name for name in names if name not in outcomes]
        # Groups are deleted in chunks, so that the event loop does other work in between.
        for at in range(0, len(here), _DELETED_AT_ONCE):
            some = here[at : at + _DELETED_AT_ONCE]
            answers = await asyncio.gather(
                *(self.delete(context, name, timeout_ms=timeout_ms) for name in some), return_exceptions=True
            )
            for name, answer in zip(some, answers, strict=True):
                if answer is not None and not isinstance(answer, LogStoreError):
                    raise answer
                outcomes[name] = answer
        return {name: outcomes[name] for name in names}

    def _require_empty(self, group: str) -> None:
        if not self._shards.get_machine(group).is_empty(group):
            found = self._described(group)
            members = "1 member" if len(found.members) == 1 else f"{len(found.members)} members"
            raise NonEmptyGroupError(
                f"The offsets of group {group} cannot be reset: it is {found.state} with {members}. Stop them first."
            )

    def _check_offsets(
        self, offsets: Sequence[OffsetToCommit], generation: int, elsewhere: OffsetsElsewhere | None
    ) -> dict[TopicPartition, OffsetCommit]:
        """Check every offset, and return the commits to append. With ``elsewhere`` None an offset may be beyond the
        end.
        """
        now = self._clock.now_ms()
        commits: dict[TopicPartition, OffsetCommit] = {}
        for asked in offsets:
            partition_log, commit = self._commit_of(asked, generation, now)
            end = None if elsewhere is None else known_end(partition_log, elsewhere)
            if asked.offset < 0 or (end is not None and asked.offset > end):
                end = partition_log.high_watermark if end is None else end
                raise OffsetOutOfRangeError(
                    f"Cannot commit offset {asked.offset} of {asked.topic}-{asked.partition}: "
                    f"send the offset to read next, 0 to {end}.",
                    log_start_offset=partition_log.log_start_offset,
                    high_watermark=end,
                )
            commits[TopicPartition(asked.topic, asked.partition)] = commit
        return commits

    def _commit_of(self, asked: OffsetToCommit, generation: int, now_ms: int) -> tuple[PartitionLog, OffsetCommit]:
        """Return the partition's log and the commit to append. Raises what ``commit`` raises about topics and
        partitions.
        """
        topic = self._broker.topics.served.topic(INTERNAL, asked.topic)
        require_topic_id(topic, asked.topic_id)
        log = topic.partition(asked.partition)
        log.require_served()
        epoch = asked.leader_epoch
        if epoch is None:
            epoch = log.state.leader_epochs.epoch_of(asked.offset - 1)
        return log, OffsetCommit(
            asked.offset,
            NO_LEADER_EPOCH if epoch is None else max(NO_LEADER_EPOCH, epoch),
            asked.metadata,
            max(NO_GENERATION, generation),
            str(topic.topic_id),
            now_ms,
        )


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
