"""One consumer instance: its partitions, its positions in them, its polls and its commits.

Positions are memory, and the instance's record is not (``instance_table`` says what it has, and why no record is passed
over after a restart). Invariants:

* One poll or stream at a time reads; others wait for their turn. What is told to change (subscription, assignment,
  positions) changes at once, and a poll that waits goes on from there.
* Partitions are given up inside a poll, or when nothing that was handed out of them is still to be committed.
* A position moves when its records were handed to the client's connection, and only if it was not moved meanwhile.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final
from uuid import uuid4

import msgspec
import structlog

from consumer_offsets.followed_topics import compiled
from consumer_offsets.group_shards import GroupShard
from consumer_offsets.groups import events
from consumer_offsets.instances.instance_home import InstanceHome, Polled, PolledPartition
from consumer_offsets.instances.instance_member import InstanceMember, new_membership, regex_of, resumed_membership
from consumer_offsets.instances.instance_record import Assigned, InstanceValue, Start, Subscriber
from consumer_offsets.instances.instance_starts import InstanceStarts, Position
from consumer_offsets.offsets import CommittingMember, OffsetToCommit
from logstore.backoff import backoffs
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import PartitionLog
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.fetching import FetchLimits, FetchPartition, Gone
from logstore.broker.topic_ids import require_topic_id, topic_id_text
from logstore.errors import (
    BrokerNotReadyError,
    CommitFailedError,
    IllegalGenerationError,
    IllegalStateError,
    InvalidTopicError,
    LogStoreError,
    OffsetOutOfRangeError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicError,
)
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.log.isolation import Isolation
from logstore.log.log_reader import require_in_range
from logstore.names import is_legal_name
from logstore.protocol.members.classic_member import ClassicMember
from logstore.protocol.members.identity import TopicPartition
from logstore.protocol.members.membership import Assigned as AssignedStep
from logstore.protocol.members.membership import Lost, MemberOptions, Membership, State
from logstore.records.offset_record import InstanceKey, OffsetCommit

log = structlog.stdlib.get_logger(__name__)

#: Eager ones, too: a group with members of any kind has one of them in common. Alone, instances keep what they have.
_ASSIGNORS: Final = ("sticky", "range", "cooperative-sticky", "roundrobin")
# A heartbeat is a call here, no request over a network: rebalances are noticed soon.
_HEARTBEAT_INTERVAL_S: Final = 1.0
_GIVE_UP_S: Final = 60.0
_TIMEOUT_MS: Final = 30_000
# A poll waits that long for its group, whatever its time-out is: one that never did would never read.
_SETTLE_S: Final = 0.5
_AUTO_COMMIT_S: Final = 5.0
_PARTITION_BYTES_MAX: Final = 4 << 20
_AGAIN: Final = (IllegalGenerationError, StaleMemberEpochError, RebalanceInProgressError)


class ConsumerInstance:
    """``start`` it when its record is durable, or was read from the log. All methods raise UnknownInstanceError once it
    is deleted.
    """

    def __init__(self, home: InstanceHome, shard: GroupShard, key: InstanceKey, id: str) -> None:
        self.shard = shard
        self.key = key
        self.id = id
        self._home = home
        self._broker = home.broker
        self._starts = InstanceStarts(home, shard, key, id)
        self._member: InstanceMember | None = None
        #: Positions that were given up in a generation, with what was handed out.
        self._aside: tuple[int, dict[TopicPartition, tuple[Position, int | None]]] | None = None
        self._positions: dict[TopicPartition, Position] = {}
        #: Of partitions with records that were handed out and are not committed: the offset behind the last one.
        self._handed: dict[TopicPartition, int] = {}
        #: What is to be read, as far as it is known; a new object when it changes.
        self.reading: tuple[TopicPartition, ...] = ()
        self._turn = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._woken = asyncio.Event()
        self._polls = 0
        self._settling: asyncio.Task[None] | None = None
        #: What a poll waits for before it reads.
        self._preparing: asyncio.Task[None] | None = None
        self._error: LogStoreError | None = None
        self._view = home.broker.authorizer.view
        self._auto_committed_at = home.clock.monotonic()
        self._turns = itertools.count()
        #: Requests under way; the instance does not time out meanwhile.
        self._uses = 0
        self._used_at = home.clock.monotonic()
        self._is_closed = False
        #: Called when ``reading`` or the positions were changed, or the instance is closed: for the stream that reads.
        self.on_change: Callable[[], None] = lambda: None
        #: Of the stream that reads: how far it has come.
        self.streamed: Callable[[], Mapping[TopicPartition, int]] | None = None

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on with the membership and the assignment that the record has."""
        self._wake()

    def close(self) -> None:
        """Stop without a word to the group: the store stops, or another one goes on with the instance."""
        self._is_closed = True
        if self._member is not None:
            self._member.stop()
        for task in (self._settling, self._preparing):
            if task is not None:
                task.cancel()
        self._woken.set()
        self.on_change()

    async def delete(self, *, reason: str, commits: bool) -> None:
        """Remove it, and leave the group; polls end. With ``commits`` what was handed out is committed before, if the
        instance commits by itself.
        """
        async with self._changing:
            if commits and self.value.config.auto_commit:
                with suppress(LogStoreError):
                    await self._commit_handed(self._handed)
            member = await self._end()
        if member is not None:
            await member.leave(reason)

    async def delete_unused(self, timeout_s: float) -> bool:
        """``delete`` it if no request is under way, and none was for ``timeout_s``. What was handed out last may not be
        done: it is not committed.
        """
        async with self._changing:
            if not self.is_unused(timeout_s):
                return False
            member = await self._end()
        if member is not None:
            await member.leave("The consumer instance was not used.")
        return True

    async def _end(self) -> InstanceMember | None:
        """The member, which is to leave, once the record is gone."""
        self.require_there()
        await self._starts.put(None)
        member, self._member = self._member, None
        self.close()
        return member

    @property
    def value(self) -> InstanceValue:
        """Its record. UnknownInstanceError, and as ``CoordinatorShard.machine``; BrokerNotReadyError when it goes on
        elsewhere: a client that hears of no instance makes another one.
        """
        value = self._starts.value
        if self._is_closed:
            raise BrokerNotReadyError("The store is stopping. Try again in a few seconds.")
        return value

    def require_there(self) -> None:
        """Raises as ``value``."""
        _ = self.value

    def is_unused(self, timeout_s: float) -> bool:
        """Whether no request is under way, and none was for ``timeout_s``."""
        return not self._uses and self._used_at <= self._home.clock.monotonic() - timeout_s

    @asynccontextmanager
    async def used(self) -> AsyncIterator["ConsumerInstance"]:
        """While this lasts, and ``consumer.instance.timeout.ms`` from then on, it is not removed."""
        self._uses += 1
        try:
            yield self
        finally:
            self._uses -= 1
            self._used_at = self._home.clock.monotonic()

    # ---- subscription and assignment --------------------------------------------------------------------------------

    def subscription(self) -> list[str]:
        """Topics that the instance is subscribed to; of a pattern those that match it now."""
        value = self.value
        return sorted(self._starts.subscribed(value)) if value.is_subscribed else []

    def assignment(self) -> list[TopicPartition]:
        """The partitions that the instance holds."""
        return sorted(self._held(self.value))

    async def subscribe(self, context: RequestContext, topics: list[str] | None, pattern: str | None) -> None:
        """Read ``topics``, which need not exist yet, or those that match ``pattern``, as a member of the group.

        Raises IllegalStateError, InvalidTopicError, TopicAuthorizationError, InvalidRegularExpressionError.
        """
        for name in topics or ():
            if not is_legal_name(name, TOPIC_NAME_LENGTH_MAX):
                raise InvalidTopicError(f"{name[:TOPIC_NAME_LENGTH_MAX]!r} cannot be a topic: see its name.")
            self._broker.authorizer.require(context, Operation.READ, ResourceType.TOPIC, name)
        if pattern is not None:
            compiled(pattern)
        async with self._changing:
            value = self.value
            if value.assigned is not None:
                raise _exclusive("has partitions assigned")
            if (topics is None) != (value.topics is None) and value.is_subscribed:
                raise _exclusive("is subscribed in the other way")
            image = self._home.topics.topics
            by = Subscriber(context.principal, context.peer)
            changed = msgspec.structs.replace(value, topics=topics, pattern=pattern, subscriber=by)
            names = self._starts.subscribed(changed)
            seen = {
                name: value.seen.get(name) or (str(image[name].topic_id), image[name].partitions)
                for name in names
                if name in image
            }
            await self._starts.put(msgspec.structs.replace(changed, seen=seen))
            if self._member is not None:
                self._member.resubscribe(names)
        self._wake()

    async def unsubscribe(self) -> None:
        """End the subscription, or the assignment; nothing if there is none."""
        async with self._changing:
            value = self.value
            if not value.is_subscribed and value.assigned is None:
                return
            held = self._held(value)
            if value.is_subscribed:
                await self._commit_before_giving_up(held)
            member, self._member = self._member, None
            await self._starts.put(InstanceValue(value.id, value.config))
            self._forget(held)
        if member is not None:
            await member.leave("It has unsubscribed.")

    async def assign(self, context: RequestContext, partitions: Iterable[TopicPartition]) -> None:
        """Read these and no others. Those that are read already go on where they are.

        Raises IllegalStateError, UnknownTopicError, UnknownPartitionError, TopicAuthorizationError.
        """
        wanted = dict.fromkeys(partitions)
        async with self._changing:
            value = self.value
            if value.is_subscribed:
                raise _exclusive("is subscribed")
            assigned = []
            for name, partition in wanted:
                topic = self._broker.topic(context, name, Operation.READ)
                topic.partition(partition)
                assigned.append(Assigned(name, partition, topic_id_text(topic.topic_id)))
            ids = {TopicPartition(each.topic, each.partition): each.topic_id for each in assigned}
            kept = {p for p, at in self._positions.items() if ids.get(p) == at.topic_id}
            positions, starts = self._starts.resolved({p: ids[p] for p in ids.keys() - kept})
            starts += [s for s in value.starts if TopicPartition(s.topic, s.partition) in kept]
            await self._starts.put(msgspec.structs.replace(value, assigned=assigned or None, starts=starts))
            self._forget(self._positions.keys() - kept)
            self._positions |= positions
            self._show()
        self._wake()

    # ---- positions --------------------------------------------------------------------------------------------------

    async def seek(self, context: RequestContext, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on from these. IllegalStateError for a partition that is not held, OffsetOutOfRangeError."""
        async with self._changing:
            self._require_no_stream()
            await self._seek({p: (self._log(context, p), offset) for p, offset in offsets.items()})

    async def seek_to_times(self, context: RequestContext, times: Mapping[TopicPartition, int]) -> None:
        """Go on from the first records of these times (ms), or at the ends. Raises as ``seek``."""
        async with self._changing:
            self._require_no_stream()
            found = {}
            for at, time in times.items():
                partition_log = self._log(context, at)
                topic = self._broker.topic(context, at.topic, Operation.READ)
                first = await self._broker.offset_for_timestamp(context, topic, at.partition, time)
                found[at] = partition_log, partition_log.high_watermark if first is None else first[0]
            await self._seek(found)

    async def seek_to(self, context: RequestContext, partitions: Iterable[TopicPartition], *, end: bool) -> None:
        """Go on from the first records, or behind the last. Raises as ``seek``."""
        async with self._changing:
            self._require_no_stream()
            logs = {at: self._log(context, at) for at in partitions}
            ends = {
                at: (one, self._starts.readable_end(one) if end else one.log_start_offset) for at, one in logs.items()
            }
            await self._seek(ends)

    def _require_no_stream(self) -> None:
        if self.streamed is not None:
            raise IllegalStateError(
                f"Illegal state: a stream of instance {self.key.instance!r} is open: end it first, or connect it again "
                "with the position in Last-Event-ID."
            )

    async def _seek(self, wanted: Mapping[TopicPartition, tuple[PartitionLog, int]]) -> None:
        positions = {}
        for at, (partition_log, offset) in wanted.items():
            partition_log.require_served()
            require_in_range(partition_log, offset)
            held = self._positions.get(at)
            if held is None:
                raise self._not_held(at)
            positions[at] = Position(held.topic_id, offset)
        await self._starts.put_starts({at: Start(*at, one.topic_id, one.offset) for at, one in positions.items()})
        self._positions |= positions
        for at in positions:
            self._handed.pop(at, None)
        self._changed()

    def _log(self, context: RequestContext, at: TopicPartition) -> PartitionLog:
        """The log of a partition that is held."""
        topic = self._broker.topic(context, at.topic, Operation.READ)
        found = topic.partition(at.partition)
        held = self._positions.get(at)
        if held is None:
            raise self._not_held(at)
        require_topic_id(topic, held.topic_id)
        return found

    def _not_held(self, at: TopicPartition) -> IllegalStateError:
        value = self.value
        how = "the group has not assigned it; poll, and see assignments" if value.is_subscribed else "assign it"
        return IllegalStateError(
            f"Illegal state: partition {at.partition} of topic {at.topic!r} is not assigned to instance "
            f"{self.key.instance!r}: {how}."
        )

    # ---- commits ----------------------------------------------------------------------------------------------------

    async def commit(
        self, context: RequestContext, offsets: Sequence[OffsetToCommit] | None
    ) -> dict[TopicPartition, int]:
        """Commit ``offsets``, the next ones to read, or (None) all that was handed out. What is committed now.

        Raises IllegalStateError for a partition that is not held, and as ``GroupCoordinator.commit``.
        """
        async with self._changing:
            value = self.value
            self._absorb()
            if offsets is None:
                return await self._commit_handed(self._handed, context)
            is_free = not value.is_subscribed and value.assigned is None
            asked = []
            for one in offsets:
                at = TopicPartition(one.topic, one.partition)
                partition_log = self._broker.topic(context, at.topic, Operation.READ).partition(at.partition)
                held = self._positions.get(at)
                if held is None and not is_free:
                    raise self._not_held(at)
                if one.offset > (end := partition_log.high_watermark):
                    last = f"its last record has offset {end - 1}" if end else "it has no records yet"
                    raise OffsetOutOfRangeError(
                        f"Cannot commit beyond the end of {at.topic}-{at.partition}: {last}. Send the offset of the "
                        "last record that is done.",
                        log_start_offset=partition_log.log_start_offset,
                        high_watermark=end,
                    )
                asked.append(OffsetToCommit(*at, one.offset, one.metadata, None if held is None else held.topic_id))
            await self._commit(context, asked)
            return {TopicPartition(one.topic, one.partition): one.offset for one in asked}

    def committed(
        self, context: RequestContext, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetCommit]:
        """The group's commits of these, where there are any. UnknownTopicError, UnknownPartitionError."""
        self.require_there()
        wanted = list(partitions)
        for at in wanted:
            self._broker.topic(context, at.topic).partition(at.partition)
        commits = self._home.commits(self.key.group)
        return {at: commits[at] for at in wanted if at in commits}

    async def _commit_handed(
        self, handed: Mapping[TopicPartition, int], context: RequestContext = INTERNAL
    ) -> dict[TopicPartition, int]:
        """What is committed: a topic that is gone keeps no other from it."""
        offsets = [
            OffsetToCommit(*at, offset, "", self._positions[at].topic_id)
            for at, offset in handed.items()
            if at in self._positions and self._positions[at].topic_id == self._starts.topic_id(at)
        ]
        if offsets:
            await self._commit(context, offsets)
        return {TopicPartition(one.topic, one.partition): one.offset for one in offsets}

    async def _commit(self, context: RequestContext, offsets: Sequence[OffsetToCommit]) -> None:
        """As the member that the instance is. IllegalStateError if the group took the partitions meanwhile."""
        member = self._member
        hold = None
        try:
            if member is not None:
                hold = member.membership.hold([TopicPartition(one.topic, one.partition) for one in offsets])
            give_up = self._home.clock.monotonic() + _TIMEOUT_MS / 1000
            for wait_s in backoffs():
                identity = CommittingMember()
                if member is not None and hold is not None:
                    member_id, generation, _ = member.membership.identity_of(hold)
                    identity = CommittingMember(member_id, generation)
                try:
                    await self._home.commit(context, self.key, self.id, offsets, identity)
                    break
                except _AGAIN:
                    if self._home.clock.monotonic() + wait_s > give_up:
                        raise
                    await asyncio.sleep(wait_s)
                except UnknownMemberIdError:
                    if member is not None and hold is not None:
                        member.membership.refused(member.membership.identity_of(hold), UnknownMemberIdError(""))
                        self._wake()
                    raise
        except CommitFailedError as error:
            raise IllegalStateError(f"Illegal state: {error.message}") from None
        for one in offsets:
            at = TopicPartition(one.topic, one.partition)
            if self._handed.get(at, one.offset + 1) <= one.offset:
                del self._handed[at]
        self._auto_committed_at = self._home.clock.monotonic()
        self._wake()

    # ---- reading ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def poll(self, context: RequestContext, timeout_ms: int, max_bytes: int, gone: Gone) -> AsyncIterator[Polled]:
        """What was polled, empty if nothing came within ``timeout_ms``. The turn lasts as long as the block.

        Raises IllegalStateError for an instance that is neither subscribed nor assigned, the errors of the membership,
        and as ``Broker.fetch_records``.
        """
        end = asyncio.get_running_loop().time() + timeout_ms / 1000
        async with self._reading(timeout_ms) as has_turn:
            if not has_turn:
                yield Polled([], None)
                return
            yield await self._until_polled(context, end, max_bytes, gone)

    @asynccontextmanager
    async def streaming(self, timeout_ms: int) -> AsyncIterator[bool]:
        """The turn of a stream, False if it did not come in time."""
        async with self._reading(timeout_ms) as has_turn:
            if has_turn:
                await self.settle()
                await self._mend_out_of_range()
            yield has_turn

    @asynccontextmanager
    async def _reading(self, timeout_ms: int) -> AsyncIterator[bool]:
        self._require_something_to_read()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._turn.acquire()
        except TimeoutError:
            yield False
            return
        self._polls = 1
        if self._member is not None:
            self._member.begin_poll()
        try:
            yield True
        finally:
            self._polls = 0
            if self._member is not None:
                self._member.end_poll()
            self._turn.release()
            if self._woken.is_set():
                self._wake()

    def _require_something_to_read(self) -> None:
        value = self.value
        if not value.is_subscribed and value.assigned is None:
            raise IllegalStateError(
                f"Illegal state: instance {self.key.instance!r} is neither subscribed nor has it partitions assigned: "
                "subscribe it first."
            )

    async def _until_polled(self, context: RequestContext, end: float, max_bytes: int, gone: Gone) -> Polled:
        loop = asyncio.get_running_loop()
        settled_by = max(end, loop.time() + _SETTLE_S)
        while True:
            self._woken.clear()
            if not await self._settled_by(settled_by):
                return Polled([], None)
            self._require_something_to_read()
            left_ms = max(0, round((end - loop.time()) * 1000))
            positions = self._in_turn()
            polled = await self._fetch(context, positions, left_ms, max_bytes, gone)
            if polled is not None and polled.partitions:
                return polled
            self.require_there()
            if loop.time() >= end or polled is None:
                return Polled([], None)

    async def _settled_by(self, end: float) -> bool:
        """Commit what is due and ``settle``. False: it takes longer, and goes on without the poll; its error, if it
        has one, is the next poll's.
        """
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.get_running_loop().create_task(self._prepare())
            self._preparing.add_done_callback(self._prepared)
        preparing = self._preparing
        await asyncio.wait([preparing], timeout=max(0, end - asyncio.get_running_loop().time()))
        if not preparing.done():
            return False
        if preparing.cancelled():
            self.require_there()
            return False
        preparing.result()
        return True

    async def _prepare(self) -> None:
        await self._auto_commit()
        await self.settle()

    def _prepared(self, preparing: "asyncio.Task[None]") -> None:
        if preparing.cancelled() or (error := preparing.exception()) is None or self._polls:
            return
        if isinstance(error, LogStoreError):
            self._error = error
        else:
            log.error("instance.settle_failed", group=self.key.group, instance=self.key.instance, exc_info=error)

    def _in_turn(self) -> list[tuple[TopicPartition, Position]]:
        """The positions; each time another partition is the first, so that a busy one keeps no other out."""
        positions = sorted(self._positions.items(), key=lambda item: item[0])
        first = next(self._turns) % len(positions) if positions else 0
        return positions[first:] + positions[:first]

    async def _fetch(
        self,
        context: RequestContext,
        positions: Sequence[tuple[TopicPartition, Position]],
        wait_ms: int,
        max_bytes: int,
        gone: Gone,
    ) -> Polled | None:
        """Records; none if something has changed, or nothing came. None: no answer is wanted any more."""
        config = self.value.config
        wanted_no_more = was_woken = False

        async def interrupted() -> None:
            nonlocal wanted_no_more, was_woken
            leaving = asyncio.ensure_future(gone())
            waking = asyncio.ensure_future(self._woken.wait())
            try:
                await asyncio.wait((leaving, waking), return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    leaving.result()
                    wanted_no_more = True
                else:
                    was_woken = True
            finally:
                for task in (leaving, waking):
                    task.cancel()
                await asyncio.gather(leaving, waking, return_exceptions=True)

        if not positions:
            with suppress(TimeoutError):
                await asyncio.wait_for(interrupted(), wait_ms / 1000)
            return None if wanted_no_more else Polled([], None)
        limits = FetchLimits(
            max_bytes,
            min(max_bytes, _PARTITION_BYTES_MAX),
            max(1, config.fetch_min_bytes),
            wait_ms,
            fill=False,
            isolation=Isolation(config.isolation),
        )
        wanted = [FetchPartition(*at, position.offset, position.topic_id) for at, position in positions]
        fetched = await self._broker.fetch_records(context, wanted, limits, interrupted, copies=2.5)
        try:
            partitions, moved, num_bytes = [], [], 0
            failure: LogStoreError | None = None
            for place, answer in fetched.answers.items():
                at, position = positions[place]
                if isinstance(answer, LogStoreError):
                    failure = failure or await self._mend(at, position, answer)
                    continue
                moved.append((at, position, answer.next_offset, bool(answer.count)))
                num_bytes += answer.num_bytes
                if answer.count:
                    string_keys = self._broker.topic(INTERNAL, at.topic).config.string_keys
                    partitions.append(PolledPartition(*at, answer.records, string_keys))
            if failure is not None and not partitions:
                raise failure
            if not partitions:
                self._move(moved)
            if not partitions or (was_woken and num_bytes < min(config.fetch_min_bytes, max_bytes)):
                fetched.reservation.release()
                return None if wanted_no_more else Polled([], None)
            return Polled(partitions, fetched.reservation, lambda: self._move(moved))
        except BaseException:
            fetched.reservation.release()
            raise

    def _move(self, moved: Iterable[tuple[TopicPartition, Position, int, bool]]) -> None:
        for at, position, offset, has_records in moved:
            if self._positions.get(at) is position and offset > position.offset:
                self._positions[at] = Position(position.topic_id, offset)
                if has_records:
                    self._handed[at] = offset

    async def _mend_out_of_range(self) -> None:
        for at, position in list(self._positions.items()):
            try:
                require_in_range(self._log(INTERNAL, at), position.offset)
            except OffsetOutOfRangeError as error:
                await self._mend(at, position, error)
            except LogStoreError:
                continue  # the stream tells

    async def _mend(self, at: TopicPartition, position: Position, error: LogStoreError) -> LogStoreError | None:
        """Begin anew where a partition cannot be read on; the error if the client has to know."""
        async with self._changing:
            if self._positions.get(at) is not position:
                return None  # it was moved meanwhile, by a seek for example
            is_subscribed = self.value.is_subscribed
            if isinstance(error, OffsetOutOfRangeError):
                found, starts = self._starts.reset({at: position.topic_id})
                await self._starts.put_starts({TopicPartition(s.topic, s.partition): s for s in starts})
                self._forget([at])
                self._positions |= found
                self._show()
                return None
            if isinstance(error, UnknownTopicError) and is_subscribed:
                # Another topic of that name begins anew; without one the group takes the partition away.
                self._forget([at])
                self._wake()
                return None
        return error

    # ---- streams ----------------------------------------------------------------------------------------------------

    def position(self, at: TopicPartition) -> Position | None:
        return self._positions.get(at)

    async def resume_stream(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on behind the last event that the client has received; where that cannot be, as without it."""
        async with self._changing:
            moved: dict[TopicPartition, tuple[PartitionLog, int]] = {}
            for at, offset in offsets.items():
                held = self._positions.get(at)
                if held is None or held.offset == offset:
                    continue
                with suppress(LogStoreError):
                    partition_log = self._log(INTERNAL, at)
                    require_in_range(partition_log, offset)
                    moved[at] = partition_log, offset
            await self._seek(moved)

    def _absorb(self) -> None:
        """Take over how far the stream has come."""
        if self.streamed is None:
            return
        for at, offset in self.streamed().items():
            position = self._positions.get(at)
            if position is not None and offset > position.offset:
                self._positions[at] = Position(position.topic_id, offset)
                self._handed[at] = offset

    def end_stream(self) -> None:
        """Its turn ends: what it has sent was handed out."""
        self._absorb()
        self.streamed = None
        self.on_change = lambda: None

    async def auto_commit_stream(self, handed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Commit ``handed``, of an instance that commits by itself; what was sent until now, to be committed next."""
        async with self._changing:
            self._absorb()
            if self.value.config.auto_commit and handed:
                await self._commit_handed({at: offset for at, offset in handed.items() if at in self._handed})
            return dict(self._handed)

    # ---- membership -------------------------------------------------------------------------------------------------

    def topics_changed(self) -> None:
        """Topics were made, deleted or have grown."""
        if self._is_closed:
            return
        if self._member is not None:
            with suppress(LogStoreError):
                self._member.found_topics(self._starts.subscribed(self.value))
        self._wake()

    def _wake(self) -> None:
        """Somebody is to look: the poll that waits, or a task if there is none."""
        self._woken.set()
        if self._is_closed or (self._polls and self.streamed is None):
            return
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle_alone())

    async def _settle_alone(self) -> None:
        while self._woken.is_set() and not self._is_closed and not (self._polls and self.streamed is None):
            self._woken.clear()
            try:
                await self.settle()
            except LogStoreError as error:
                # The next poll tells it; a load of the shard ends by itself.
                self._error = error
                await asyncio.sleep(_HEARTBEAT_INTERVAL_S)
                if error.retriable:
                    self._woken.set()
            except Exception:
                log.exception("instance.settle_failed", group=self.key.group, instance=self.key.instance)
                return

    async def settle(self) -> None:
        """Take the steps of a rebalance that can be taken now, and find the positions that are missing."""
        async with self._changing:
            value = self.value
            if value.is_subscribed:
                self._look_at_permissions()
                if self._polls and self._error is not None and not self._error.retriable:
                    error, self._error = self._error, None
                    raise error
                await self._take_steps()
                self._forget(at for at, one in self._positions.items() if one.topic_id != self._starts.topic_id(at))
            elif value.assigned is not None and not self._positions:
                await self._find_assigned(value)
            self._error = None
            await self._find_missing()
            self._show()

    def _look_at_permissions(self) -> None:
        """Other topics may match for the subscriber since the last look."""
        view = self._broker.authorizer.view
        if view is not self._view and self._member is not None:
            self._member.found_topics(self._starts.subscribed(self.value))
        self._view = view

    async def _take_steps(self) -> None:
        member = await self._entered()
        while (step := member.step()) is not None:
            if isinstance(step, AssignedStep):
                self._take_back(member.membership)
                found = step.partitions - self._positions.keys()
                await self._find({at: self._starts.topic_id(at) for at in found})
            elif isinstance(step, Lost):
                # Nothing of the old membership counts in the next, which has another id.
                await self._starts.put(msgspec.structs.replace(self.value, member_id=None, starts=[]))
                self._forget(step.partitions)
                member.stop()
                member.done(step)
                self._member = None
                member = await self._entered()
                continue
            else:
                self._absorb()
                if not self._polls and any(at in self._handed for at in step.partitions):
                    return
                await self._commit_before_giving_up(step.partitions)
                await self._starts.drop_starts(step.partitions)
                self._lay_aside(member.membership, step.partitions)
                self._forget(step.partitions)
            member.done(step)
            self._show()

    def _lay_aside(self, membership: Membership, partitions: Iterable[TopicPartition]) -> None:
        """An eager assignor takes everything away for a rebalance, and gives most of it back. What comes back in the
        next generation was nobody's in between, and goes on where it was.
        """
        self._aside = None
        if isinstance(membership, ClassicMember) and membership.identity is not None:
            places = {at: (self._positions[at], self._handed.get(at)) for at in partitions if at in self._positions}
            self._aside = membership.identity.generation, places

    def _take_back(self, membership: Membership) -> None:
        aside, self._aside = self._aside, None
        if aside is None or membership.identity is None or membership.identity.generation != aside[0] + 1:
            return
        assigned = membership.assigned
        for at, (position, handed) in aside[1].items():
            if at in assigned and self._starts.topic_id(at) == position.topic_id:
                self._positions[at] = position
                if handed is not None:
                    self._handed[at] = handed

    async def _entered(self) -> InstanceMember:
        """The membership: the present one, the one that the group has a record of, or a new one."""
        described = self.shard.machine.describe(self.key.group)
        if self._member is not None:
            present = self._member.membership
            kind = type(new_membership(described, present.options))
            if present.state is not State.UNJOINED or present.owned or isinstance(present, kind):
                return self._member
            self._member.stop()
            self._member = None
        value = self.value
        found: Membership | None = None
        if value.member_id is not None:
            found = resumed_membership(described, self._options(value, value.member_id), self._home.topics)
        if found is None:
            member_id = f"{self.key.instance}-{uuid4()}"
            before = value.member_id
            await self._starts.put(msgspec.structs.replace(value, member_id=member_id, starts=[]))
            membership = new_membership(described, self._options(self.value, member_id))
            if before is not None and described is not None and any(m.member_id == before for m in described.members):
                # The group need not wait for the end of its session.
                left = events.LeavingMember(before, None, "Its place in a rebalance was lost by a restart.")
                with suppress(LogStoreError):
                    await self._home.members.leave(INTERNAL, self.key.group, events.LeaveGroup(0, (left,)))
        else:
            membership = found
            held = membership.owned.keys()
            await self._starts.drop_starts({TopicPartition(s.topic, s.partition) for s in value.starts} - held)
        home = self._home
        self._member = InstanceMember(
            self.key.group, self.key.instance, membership, home.members, home.topics, home.clock, self._wake
        )
        self._member.start()
        if self._polls:
            self._member.begin_poll()
        return self._member

    def _options(self, value: InstanceValue, member_id: str) -> MemberOptions:
        return MemberOptions(
            member_id=member_id,
            group_instance_id=None,
            assignors=_ASSIGNORS,
            session_timeout_s=self._home.session_timeout_ms / 1000,
            heartbeat_interval_s=_HEARTBEAT_INTERVAL_S,
            max_poll_interval_s=self._home.max_poll_interval_ms / 1000,
            give_up_s=_GIVE_UP_S,
            topics=(topics := self._starts.subscribed(value)),
            regex=regex_of(topics),
        )

    async def _commit_before_giving_up(self, partitions: Iterable[TopicPartition]) -> None:
        """What the next owner must know: where an instance that commits by itself is; and where it began, if the group
        has committed nothing, so that the next owner does not begin behind that.
        """
        value = self.value
        starts = {TopicPartition(start.topic, start.partition): start for start in value.starts}
        commits = self._home.commits(self.key.group)
        offsets: list[OffsetToCommit] = []
        for at in partitions:
            position, start = self._positions.get(at), starts.get(at)
            # One of a topic that is gone would have the commit of all others refused.
            if position is None or position.topic_id != self._starts.topic_id(at):
                continue
            if value.config.auto_commit and at in self._handed:
                offsets.append(OffsetToCommit(*at, self._handed[at], "", position.topic_id))
            elif at not in commits and start is not None and start.topic_id == position.topic_id:
                offsets.append(OffsetToCommit(*at, start.offset, "", start.topic_id))
        if not offsets:
            return
        try:
            await self._commit(INTERNAL, offsets)
        except LogStoreError as error:
            if error.retriable:
                raise
            log.warning("instance.commit_failed", instance=self.key.instance, group=self.key.group, error=str(error))

    # ---- where to begin ---------------------------------------------------------------------------------------------

    def _held(self, value: InstanceValue) -> set[TopicPartition]:
        if value.assigned is not None:
            return {TopicPartition(each.topic, each.partition) for each in value.assigned}
        return set(self._member.membership.owned) if self._member is not None else set()

    async def _find_missing(self) -> None:
        if self._member is not None:
            missing = self._member.membership.owned.keys() - self._positions.keys()
            await self._find({at: self._starts.topic_id(at) for at in missing})

    async def _find_assigned(self, value: InstanceValue) -> None:
        """After a restart: an assigned partition is of the topic that it was assigned of."""
        assert value.assigned is not None
        ids = {TopicPartition(each.topic, each.partition): each.topic_id for each in value.assigned}
        positions, starts = self._starts.resolved(ids)
        await self._starts.put_starts({TopicPartition(start.topic, start.partition): start for start in starts})
        # One of a topic that is gone has a position, too: the poll tells.
        self._positions = {at: positions.get(at) or Position(ids[at], 0) for at in ids}

    async def _find(self, wanted: Mapping[TopicPartition, str | None]) -> None:
        """Find the positions of partitions, of topics with these ids; the starts among them are durable then."""
        there = {at: topic_id for at, topic_id in wanted.items() if topic_id is not None}
        if not there:
            return
        positions, starts = self._starts.resolved(there)
        await self._starts.put_starts({TopicPartition(start.topic, start.partition): start for start in starts})
        self._positions |= positions

    async def _auto_commit(self) -> None:
        due_at = self._auto_committed_at + _AUTO_COMMIT_S
        if not self.value.config.auto_commit or not self._handed or self._home.clock.monotonic() < due_at:
            return
        async with self._changing:
            try:
                await self._commit_handed(self._handed)
            except LogStoreError as error:
                log.warning("instance.auto_commit_failed", instance=self.key.instance, error=str(error))
                self._auto_committed_at = self._home.clock.monotonic()

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for at in list(partitions):
            self._positions.pop(at, None)
            self._handed.pop(at, None)
        self._show()

    def _show(self) -> None:
        reading = tuple(sorted(self._positions))
        if reading != self.reading:
            self.reading = reading
            self._changed()

    def _changed(self) -> None:
        self._woken.set()
        self.on_change()


def _exclusive(what: str) -> IllegalStateError:
    return IllegalStateError(
        f"Illegal state: the instance {what}. Topics, topic_pattern and assignments are mutually exclusive: send "
        "DELETE to its subscription first."
    )
