"""Queries of consumer groups: their committed offsets, lags, members, and lists of groups.

In a cluster each broker knows the groups that it coordinates, and asks the other brokers for theirs
(``groups_elsewhere``). All results are durable, except for ``GroupQueries.describe``. The authorizer is asked for each
name of a group or topic.
"""

import asyncio
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.group_shards import GroupShards
from consumer_offsets.groups.description import GroupDescription, MemberDescription
from consumer_offsets.groups_elsewhere import GroupsElsewhere
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL, Forwarding, RequestContext
from logstore.broker.elsewhere.partition_offsets import NOTHING_ELSEWHERE, OffsetsElsewhere, PartitionOffsets
from logstore.broker.fetch.fetching import FetchLimits, FetchPartition
from logstore.errors import (
    CoordinatorLoadInProgressError,
    LogStoreError,
    NotCoordinatorError,
    QuarantinedError,
    UnknownGroupError,
    UnknownTopicError,
    UnstableOffsetCommitError,
)
from logstore.limits import FETCH_BYTES_MAX, SHOWN_NAME_LENGTH_MAX
from logstore.log.log_reader import FetchResult
from logstore.log.topic import Topic
from logstore.protocol.messages.groups import GroupListing, GroupListings, GroupOffset
from logstore.records.log_batches import int64_values
from logstore.records.offset_record import NO_GENERATION, OffsetCommit

#: The partitions in a page of groups, and those between two turns of the event loop.
_PAGE_PARTITIONS = 100_000
_STEP = 2_000
#: In a group, the oldest record behind is read for this many partitions at most.
_TIMED_PARTITIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """``lag`` is the number of offsets from ``committed_offset``, or from ``log_start_offset`` if that is None, to
    ``high_watermark``. ``member`` reads the partition.

    ``records_behind`` of these offsets have a record, and the timestamp of the first one is ``lag_ms`` ago. Both are
    None if they were not requested, or cannot be known.
    """

    topic: str
    partition: int
    committed_offset: int | None
    log_start_offset: int
    high_watermark: int
    lag: int
    member: MemberDescription | None
    records_behind: int | None = None
    lag_ms: int | None = None


class GroupQueries:
    """The queries of groups that this broker coordinates."""

    def __init__(self, broker: Broker, shards: GroupShards) -> None:
        self._broker = broker
        self._authorizer = broker.authorizer
        self._shards = shards
        self._elsewhere = GroupsElsewhere(broker.elsewhere)

    def groups(self, context: RequestContext) -> list[str]:
        """Return the names of the groups with members or committed offsets that the principal may describe, sorted."""
        return self._authorizer.authorize(context, Operation.DESCRIBE, ResourceType.GROUP, self._names())

    async def all_groups(self, context: RequestContext) -> list[str]:
        """Return ``groups`` of all brokers. Raises CoordinatorNotAvailableError."""
        elsewhere = await self._elsewhere.names(context) if context.forwarding is Forwarding.ALLOWED else ()
        return sorted([*self.groups(context), *elsewhere])

    async def list_all_groups(
        self, context: RequestContext, *, after: str | None = None, limit: int, states: Collection[str] | None = None
    ) -> GroupListings:
        """Return ``list_groups`` of all brokers. Raises CoordinatorNotAvailableError."""
        here = await self.list_groups(context, after=after, limit=limit, states=states)
        if context.forwarding is not Forwarding.ALLOWED:
            return here  # another broker asks all of them
        elsewhere = await self._elsewhere.listings(context, after=after, limit=limit, states=states)
        return _merged([here, *elsewhere], limit) if elsewhere else here

    async def list_groups(
        self, context: RequestContext, *, after: str | None = None, limit: int, states: Container[str] | None = None
    ) -> GroupListings:
        """Return the groups that ``groups`` names, in order of their names, at most ``limit`` whose name comes
        ``after``; only groups in one of the ``states``. A page with many partitions has fewer groups.
        """
        found: list[GroupListing] = []
        looked_at, rest = 0, 0
        elsewhere = await self._offsets_elsewhere([topic.name for topic in self._broker.topics.served.all(INTERNAL)])
        for name in self._names(after):
            # No page ends with the group whose name is empty: nothing could come after it in a query.
            if after and (len(found) >= limit or looked_at + rest > _PAGE_PARTITIONS):
                return GroupListings(tuple(found), after)
            if rest > _STEP:
                looked_at, rest = looked_at + rest, 0
                await asyncio.sleep(0)
            after = name
            rest += 1
            if not self._authorizer.authorize(context, Operation.DESCRIBE, ResourceType.GROUP, (name,)):
                continue
            try:
                committed, described = dict(self._known(name)), self._described(name)
            except (UnknownGroupError, NotCoordinatorError, CoordinatorLoadInProgressError, QuarantinedError):
                continue  # The group was deleted, or has moved, meanwhile.
            if states is not None and described.state not in states:
                continue
            lags = [each.lag for each in self._lags(context, described, committed, elsewhere)]
            rest += len(lags)
            found.append(
                GroupListing(
                    name,
                    described.kind,
                    described.state,
                    described.protocol_type,
                    described.protocol,
                    described.generation,
                    len(described.members),
                    len(lags),
                    sum(lags),
                    max(lags, default=0),
                )
            )
        return GroupListings(tuple(found), None)

    async def overview(self, context: RequestContext) -> list[GroupDescription]:
        """Return the groups that ``groups`` names, without their members.

        Raises CoordinatorLoadInProgressError if this broker has not loaded all groups that it coordinates.
        """
        self._shards.require_loaded()
        found = []
        for number, name in enumerate(self.groups(context), start=1):
            if number % _STEP == 0:
                await asyncio.sleep(0)
            try:
                found.append(self._described(name, with_members=False))
            except (NotCoordinatorError, CoordinatorLoadInProgressError, QuarantinedError):
                continue  # The group has moved meanwhile.
        return found

    def pending(self, context: RequestContext, group: str) -> frozenset[TopicPartition]:
        """Return the partitions for which an open transaction has committed an offset.

        Raises GroupAuthorizationError, and what ``committed`` raises.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        return frozenset(self._shards.get_machine(group).offsets.pending(group))

    def check_fetch(self, context: RequestContext, group: str, member_id: str, member_epoch: int) -> None:
        """Check a member of a group of KIP-848 (OffsetFetch version 9).

        Raises UnknownMemberIdError or StaleMemberEpochError if it is not a member, GroupAuthorizationError, and what
        ``committed`` raises.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        self._shards.get_machine(group).check_fetch(group, member_id, member_epoch)

    def committed(
        self, context: RequestContext, group: str, topic: str | None = None, *, require_stable: bool = False
    ) -> list[GroupOffset]:
        """Return the committed offsets, by topic and partition: of ``topic``, or of all topics that the principal may
        describe.

        Raises GroupAuthorizationError, UnknownGroupError; for ``topic`` TopicAuthorizationError, UnknownTopicError;
        with ``require_stable`` UnstableOffsetCommitError if an open transaction has committed one of them;
        NotCoordinatorError, CoordinatorLoadInProgressError, QuarantinedError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        if topic is not None:
            self._broker.topics.served.topic(context, topic)
        if require_stable:
            for pending in self._shards.get_machine(group).offsets.pending(group):
                if topic in (None, pending.topic):
                    raise UnstableOffsetCommitError(
                        f"The offset of group {group!r} for {pending.topic}-{pending.partition} is that of an open "
                        "transaction: ask again when it has ended."
                    )
        known = self._known(group)
        shown = self._authorizer.described(context, [key.topic for key, _ in known])
        return [
            GroupOffset(*key, commit.offset, commit.metadata, commit.leader_epoch, commit.commit_timestamp)
            for key, commit in known
            if key.topic in shown and topic in (None, key.topic)
        ]

    def lag(
        self, context: RequestContext, group: str, elsewhere: OffsetsElsewhere = NOTHING_ELSEWHERE
    ) -> list[PartitionLag]:
        """Return the lag in all partitions of the topics that the group has committed to, or that are assigned to its
        members, and that the principal may describe, in order.

        ``elsewhere`` has the offsets of partitions that other brokers lead; a partition without them is left out.
        Raises GroupAuthorizationError, UnknownGroupError.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        committed = dict(self._known(group))
        return list(self._lags(context, self._described(group), committed, elsewhere))

    async def fetch_lag(self, context: RequestContext, group: str) -> list[PartitionLag]:
        """Return ``lag`` with the offsets that the leaders of all partitions report now."""
        topics = {each.topic for each in self.lag(context, group)}
        return self.lag(context, group, await self._offsets_elsewhere(topics))

    async def fetch_lag_in_records(self, context: RequestContext, group: str) -> list[PartitionLag]:
        """Return ``fetch_lag`` with ``records_behind``, and with ``lag_ms`` where the principal may read the topic."""
        lags = [await self._in_records(context, lag) for lag in await self.fetch_lag(context, group)]
        behind = [at for at, lag in enumerate(lags) if lag.records_behind != 0][:_TIMED_PARTITIONS_MAX]
        times = await self._times(context, [lags[at] for at in behind])
        now_ms = self._broker.clock.now_ms()
        for at, time_ms in zip(behind, times, strict=True):
            lags[at] = replace(lags[at], lag_ms=None if time_ms is None else max(0, now_ms - time_ms))
        return [replace(lag, lag_ms=0) if lag.records_behind == 0 else lag for lag in lags]

    async def _in_records(self, context: RequestContext, lag: PartitionLag) -> PartitionLag:
        topic = self._served(lag.topic)
        if topic is None or not lag.lag:
            return replace(lag, records_behind=0)
        try:
            count = await self._broker.fetch.count_records(
                context, topic, lag.partition, _begin(lag), lag.high_watermark
            )
        except LogStoreError:
            return lag  # A segment is damaged: its readers get the reason.
        return replace(lag, records_behind=count)

    async def _times(self, context: RequestContext, lags: Sequence[PartitionLag]) -> list[int | None]:
        """Return the timestamps in ms of the first records that the group has still to read."""
        if not lags:
            return []
        wanted = [FetchPartition(lag.topic, lag.partition, _begin(lag)) for lag in lags]
        limits = FetchLimits(FETCH_BYTES_MAX, 1, 0, 0)
        try:
            fetched = await self._broker.fetch.records(context.answered_here(), wanted, limits)
        except LogStoreError:
            return [None] * len(lags)  # The request is over a quota: the lag in records is known all the same.
        fetched.reservation.release()
        times: list[int | None] = [None] * len(lags)
        for at, answer in fetched.answers.items():
            if isinstance(answer, FetchResult) and answer.records.num_rows:
                times[at] = int(int64_values(answer.records.column("timestamp").chunk(0))[0])
        return times

    async def _offsets_elsewhere(self, topics: Iterable[str]) -> OffsetsElsewhere:
        served = [topic for name in topics if (topic := self._served(name)) is not None]
        return await self._broker.elsewhere.offsets([log for topic in served for log in topic.partitions])

    def describe(self, context: RequestContext, group: str) -> GroupDescription:
        """Return the group and its members. Raises GroupAuthorizationError, UnknownGroupError, and what ``committed``
        raises.
        """
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group)
        self._known(group)
        return self._described(group)

    # ---- groups and topics ------------------------------------------------------------------------------------------

    def _names(self, after: str | None = None) -> list[str]:
        """Return the groups with members or committed offsets whose name comes ``after``, sorted."""
        topic_ids = {
            topic.name: str(topic.topic_id) for topic in self._broker.topics.served.all(INTERNAL, include_internal=True)
        }
        machines = self._shards.machines()
        names = (each for machine in machines for each in {*machine.offsets.current(topic_ids), *machine.groups()})
        return sorted(name for name in names if after is None or name > after)

    def _described(self, group: str, *, with_members: bool = True) -> GroupDescription:
        now_ms = self._broker.clock.now_ms()
        found = self._shards.get_machine(group).describe(group, with_members=with_members, now_ms=now_ms)
        return found or GroupDescription(group, "", "Empty", NO_GENERATION)

    def _lags(
        self,
        context: RequestContext,
        described: GroupDescription,
        committed: Mapping[TopicPartition, OffsetCommit],
        elsewhere: OffsetsElsewhere,
    ) -> Iterator[PartitionLag]:
        owners = described.owners()
        topics = {place.topic for place in (*committed, *owners)}
        for name in sorted(self._authorizer.described(context, list(topics))):
            topic = self._served(name)
            for log in () if topic is None else topic.partitions:
                place = TopicPartition(name, log.partition)
                ends = PartitionOffsets.of(log, elsewhere)
                if ends.high_watermark < 0:
                    continue
                offset = committed[place].offset if place in committed else None
                begin = ends.log_start_offset if offset is None else offset
                lag = max(0, ends.high_watermark - begin)
                yield PartitionLag(*place, offset, ends.log_start_offset, ends.high_watermark, lag, owners.get(place))

    def _known(self, group: str) -> list[tuple[TopicPartition, OffsetCommit]]:
        current = self._current(group)
        if not current and not self._shards.get_machine(group).is_known(group):
            raise UnknownGroupError(
                f"Group {group[:SHOWN_NAME_LENGTH_MAX]!r} not found: it has no members, and has committed no offsets."
            )
        return sorted(current.items())

    def _current(self, group: str) -> dict[TopicPartition, OffsetCommit]:
        """Return the commits whose topics are still the ones that they were made to."""
        commits = self._shards.get_machine(group).offsets.commits(group)
        return {key: commit for key, commit in commits.items() if self._is_current(key, commit)}

    def _is_current(self, key: TopicPartition, commit: OffsetCommit) -> bool:
        topic = self._served(key.topic)
        return topic is not None and str(topic.topic_id) == commit.topic_id

    def _served(self, name: str) -> Topic | None:
        try:
            return self._broker.topics.served.topic(INTERNAL, name)
        except (UnknownTopicError, QuarantinedError):
            return None


def _begin(lag: PartitionLag) -> int:
    return max(lag.log_start_offset, lag.committed_offset or 0)


def _merged(pages: Sequence[GroupListings], limit: int) -> GroupListings:
    """Merge pages that begin behind the same name, as far as all of them reach, and at most ``limit`` groups."""
    end = min((page.next for page in pages if page.next is not None), default=None)
    groups = sorted((one for page in pages for one in page.groups), key=lambda one: one.group)
    reached = [one for one in groups if end is None or one.group <= end]
    if reached and not reached[0].group:
        limit += 1  # A page of one broker also lets the empty name not count.
    if len(reached) <= limit:
        return GroupListings(tuple(reached), end)
    return GroupListings(tuple(reached[:limit]), reached[limit - 1].group)
