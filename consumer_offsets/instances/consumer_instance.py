"""One consumer instance, as its client uses it: subscription or assignment, positions, commits, polls.

Its parts: ``instance_starts`` has its record, ``instance_positions`` the memory beyond that, ``instance_group`` its
place in the group, ``instance_reader`` reads. ``instance_table`` says why no record is skipped after a restart.
Invariants:

* One poll or stream at a time reads; others wait for their turn. Changes of subscription, assignment and positions take
  effect at once, and a poll that waits continues from there.
* One change is under way at a time: everything that writes the record, or the positions outside a poll, has the lock.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import msgspec
import structlog

from consumer_offsets.followed_topics import compiled
from consumer_offsets.group_shards import GroupShard
from consumer_offsets.groups.instance_record import Assigned, InstanceValue, Start, Subscriber
from consumer_offsets.instances.instance_group import HEARTBEAT_INTERVAL_S, InstanceGroup
from consumer_offsets.instances.instance_home import InstanceHome, Polled
from consumer_offsets.instances.instance_member import InstanceMember
from consumer_offsets.instances.instance_positions import InstancePositions
from consumer_offsets.instances.instance_reader import InstanceReader
from consumer_offsets.instances.instance_starts import InstanceStarts, Position
from consumer_offsets.offsets import OffsetToCommit
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import INTERNAL, RequestContext
from logstore.broker.elsewhere.partition_offsets import PartitionOffsets
from logstore.broker.fetch.fetching import Gone
from logstore.broker.topics.ids import require_topic_id, topic_id_text
from logstore.errors import (
    IllegalStateError,
    InvalidTopicError,
    LeaderNotAvailableError,
    LogStoreError,
    OffsetOutOfRangeError,
    QuarantinedError,
    UnknownTopicError,
)
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.log.log_reader import require_in_range
from logstore.log.partition_log import PartitionLog
from logstore.names import is_legal_name
from logstore.protocol.members.identity import TopicPartition
from logstore.records.offset_record import InstanceKey, OffsetCommit

log = structlog.stdlib.get_logger(__name__)

# A poll waits this long for its group, even if its time-out is shorter: otherwise a short poll would never read.
_SETTLE_S: Final = 0.5


class ConsumerInstance:
    """The owner calls ``start`` when the record is durable, or was read from the log. All methods raise
    UnknownInstanceError once the instance is deleted.
    """

    def __init__(self, home: InstanceHome, shard: GroupShard, key: InstanceKey, id: str) -> None:
        self.shard = shard
        self.key = key
        self.id = id
        self._home = home
        self._broker = home.broker
        self._starts = InstanceStarts(home, shard, key, id)
        self._positions = InstancePositions(self._changed)
        self._group = InstanceGroup(home, shard, key, id, self._starts, self._positions, self._wake)
        self._reader = InstanceReader(home.broker, self._positions)
        self._turn = asyncio.Lock()
        self._changing = asyncio.Lock()
        self._woken = asyncio.Event()
        self._settling: asyncio.Task[None] | None = None
        #: The task that a poll waits for before it reads.
        self._preparing: asyncio.Task[None] | None = None
        self._error: LogStoreError | None = None
        #: The number of requests under way; the instance does not time out meanwhile.
        self._uses = 0
        self._used_at = home.clock.monotonic()
        # The callback of the stream that reads, for when the positions to read from change, or the instance is closed.
        self._on_change: Callable[[], None] = lambda: None

    # ---- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Continue with the membership and the assignment of the record."""
        self._wake()

    def close(self) -> None:
        """Stop without leaving the group: the store stops, or another object continues with the instance."""
        self._starts.close()
        self._group.stop()
        for task in (self._settling, self._preparing):
            if task is not None:
                task.cancel()
        self._woken.set()
        self._on_change()

    async def delete(self, *, reason: str, commits: bool) -> None:
        """Delete the instance, and leave the group; polls end. With ``commits``, an instance that commits automatically
        first commits what was handed out.
        """
        async with self._changing:
            if commits and self.value.config.auto_commit:
                with suppress(LogStoreError):
                    await self._group.commit_handed(self._positions.handed)
            member = await self._end()
        if member is not None:
            await member.leave(reason)

    async def delete_unused(self, timeout_s: float) -> bool:
        """Delete the instance if no request is under way, and none was for ``timeout_s``. What was handed out last is
        not committed, because the client may not have processed it.
        """
        async with self._changing:
            if not self.is_unused(timeout_s):
                return False
            member = await self._end()
        if member is not None:
            await member.leave("The consumer instance was not used.")
        return True

    async def _end(self) -> InstanceMember | None:
        """Delete the record, and return the member, which has to leave."""
        self.require_there()
        await self._starts.put(None)
        member = self._group.give_up()
        self.close()
        return member

    @property
    def value(self) -> InstanceValue:
        """The record of the instance. Raises what ``InstanceStarts.value`` raises."""
        return self._starts.value

    def require_there(self) -> None:
        """Raise what ``value`` raises."""
        _ = self.value

    def is_unused(self, timeout_s: float) -> bool:
        """Return whether no request is under way, and none was for ``timeout_s``."""
        return not self._uses and self._used_at <= self._home.clock.monotonic() - timeout_s

    @asynccontextmanager
    async def used(self) -> AsyncIterator["ConsumerInstance"]:
        """Keep the instance from being removed inside the block, and for ``consumer.instance.timeout.ms`` after it."""
        self._uses += 1
        try:
            yield self
        finally:
            self._uses -= 1
            self._used_at = self._home.clock.monotonic()

    # ---- subscription and assignment --------------------------------------------------------------------------------

    def subscription(self) -> list[str]:
        """Return the topics that the instance is subscribed to; for a pattern those that match it now."""
        value = self.value
        return sorted(self._starts.subscribed(value)) if value.is_subscribed else []

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that the instance holds."""
        return sorted(self._held(self.value))

    async def subscribe(self, context: RequestContext, topics: Sequence[str] | None, pattern: str | None) -> None:
        """Read ``topics``, which need not exist yet, or those that match ``pattern``, as a member of the group.

        Missing topics of the list are created, if the store creates topics. Raises IllegalStateError,
        InvalidTopicError, TopicAuthorizationError, InvalidRegularExpressionError, and what
        ``Broker.find_or_create_topic`` raises.
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
            for name in topics or ():
                await self._create_topic(context, name)
            image = self._home.topics.topics
            by = Subscriber(context.principal, context.peer)
            changed = msgspec.structs.replace(
                value, topics=None if topics is None else [*topics], pattern=pattern, subscriber=by
            )
            names = self._starts.subscribed(changed)
            seen = {
                name: value.seen.get(name) or (str(image[name].topic_id), image[name].partitions)
                for name in names
                if name in image
            }
            await self._starts.put(msgspec.structs.replace(changed, seen=seen))
            self._group.resubscribe(names)
        self._wake()

    async def _create_topic(self, context: RequestContext, name: str) -> None:
        """Create a topic that is subscribed to, if the store creates topics; otherwise it may appear later."""
        try:
            is_there = self._broker.topics.changes.find(context, name, Operation.READ) is not None
        except (UnknownTopicError, QuarantinedError, LeaderNotAvailableError):
            return
        if not is_there:
            await self._broker.topics.changes.find_or_create(context.answered_here(), name, Operation.READ)

    async def unsubscribe(self) -> None:
        """End the subscription, or the assignment; do nothing if there is none."""
        async with self._changing:
            value = self.value
            if not value.is_subscribed and value.assigned is None:
                return
            held = self._held(value)
            if value.is_subscribed:
                await self._group.commit_before_giving_up(held)
            member = self._group.give_up()
            await self._starts.put(InstanceValue(value.id, value.config))
            self._positions.forget(held)
        if member is not None:
            await member.leave("It has unsubscribed.")

    async def assign(self, context: RequestContext, partitions: Iterable[TopicPartition]) -> None:
        """Read only these partitions. Those that are read already continue at their positions.

        Raises IllegalStateError, UnknownTopicError, UnknownPartitionError, TopicAuthorizationError,
        LeaderNotAvailableError.
        """
        wanted = dict.fromkeys(partitions)
        async with self._changing:
            value = self.value
            if value.is_subscribed:
                raise _exclusive("is subscribed")
            assigned = []
            here = context.answered_here()
            for name, partition in wanted:
                topic = await self._broker.topics.changes.find_or_create(here, name, Operation.READ, partition)
                topic.partition(partition)
                assigned.append(Assigned(name, partition, topic_id_text(topic.topic_id)))
            ids = {TopicPartition(each.topic, each.partition): each.topic_id for each in assigned}
            kept = {p for p, at in self._positions.items() if ids.get(p) == at.topic_id}
            positions, starts = await self._starts.resolved({p: ids[p] for p in ids if p not in kept})
            value = self.value  # The record may have changed during the wait.
            starts += [s for s in value.starts if TopicPartition(s.topic, s.partition) in kept]
            await self._starts.put(msgspec.structs.replace(value, assigned=assigned or None, starts=starts))
            self._positions.forget(set(self._positions) - kept)
            self._positions.put(positions)
            self._positions.show()
        self._wake()

    # ---- positions --------------------------------------------------------------------------------------------------

    async def seek(self, context: RequestContext, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue from these offsets. As in Kafka, the next poll finds out whether the offset is in the log; if it is
        not, ``auto.offset.reset`` decides where to continue.

        Raises IllegalStateError for a partition that is not held; UnknownTopicError, UnknownPartitionError,
        QuarantinedError.
        """
        async with self._changing:
            self._require_no_stream()
            await self._seek({p: (self._log(context, p), offset) for p, offset in offsets.items()})

    async def seek_to_times(self, context: RequestContext, times: Mapping[TopicPartition, int]) -> None:
        """Continue from the first records at or after these times (ms), or at the ends. Raises what ``seek`` raises."""
        async with self._changing:
            self._require_no_stream()
            found: dict[TopicPartition, tuple[PartitionLog, int]] = {}
            without: dict[TopicPartition, PartitionLog] = {}
            for at, time in times.items():
                partition_log = self._log(context, at)
                topic = self._broker.topics.served.topic(context, at.topic, Operation.READ)
                first = await self._broker.fetch.offset_for_timestamp(
                    context.answered_here(), topic, at.partition, time
                )
                if first is None:
                    without[at] = partition_log
                else:
                    found[at] = partition_log, first[0]
            ends = await self._starts.readable_ends(without)
            await self._seek(found | {at: (one, ends[at]) for at, one in without.items()})

    async def seek_to(self, context: RequestContext, partitions: Iterable[TopicPartition], *, end: bool) -> None:
        """Continue from the first records, or behind the last. Raises what ``seek`` raises."""
        async with self._changing:
            self._require_no_stream()
            logs = {at: self._log(context, at) for at in partitions}
            ends = await self._starts.readable_ends(logs) if end else {}
            await self._seek({at: (one, ends.get(at, one.log_start_offset)) for at, one in logs.items()})

    def _require_no_stream(self) -> None:
        if self._positions.streamed is not None:
            raise IllegalStateError(
                f"Illegal state: a stream of instance {self.key.instance!r} is open: end it first, or connect it again "
                "with the position in Last-Event-ID."
            )

    async def _seek(self, wanted: Mapping[TopicPartition, tuple[PartitionLog, int]]) -> None:
        positions = {}
        for at, (partition_log, offset) in wanted.items():
            partition_log.require_served()
            held = self._positions.get(at)
            if held is None:
                raise self._not_held(at)
            positions[at] = Position(held.topic_id, offset)
        await self._starts.put_starts({at: Start(*at, one.topic_id, one.offset) for at, one in positions.items()})
        self._positions.seek(positions)

    def _log(self, context: RequestContext, at: TopicPartition) -> PartitionLog:
        """Return the log of a partition that is held."""
        topic = self._broker.topics.served.topic(context, at.topic, Operation.READ)
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
        """Commit ``offsets``, the next ones to read, or all that was handed out (None), and return what is committed
        now. As in Kafka's protocol, the records need not exist yet.

        Raises IllegalStateError for a partition that is not held, and what ``GroupCoordinator.commit`` raises.
        """
        async with self._changing:
            value = self.value
            self._positions.absorb()
            if offsets is None:
                return await self._group.commit_handed(self._positions.handed, context)
            is_free = not value.is_subscribed and value.assigned is None
            asked = []
            for one in offsets:
                self._broker.topics.served.topic(context, one.topic, Operation.READ).partition(one.partition)
                at = TopicPartition(one.topic, one.partition)
                held = self._positions.get(at)
                if held is None and not is_free:
                    raise self._not_held(at)
                asked.append(OffsetToCommit(*at, one.offset, one.metadata, None if held is None else held.topic_id))
            await self._group.commit(context, asked)
            return {TopicPartition(one.topic, one.partition): one.offset for one in asked}

    def committed(
        self, context: RequestContext, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetCommit]:
        """Return the group's commits of these partitions, if there are any. Raises UnknownTopicError,
        UnknownPartitionError.
        """
        self.require_there()
        wanted = list(partitions)
        for at in wanted:
            self._broker.topics.served.topic(context, at.topic).partition(at.partition)
        commits = self._home.commits(self.key.group)
        return {at: commits[at] for at in wanted if at in commits}

    # ---- reading ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def poll(self, context: RequestContext, timeout_ms: int, max_bytes: int, gone: Gone) -> AsyncIterator[Polled]:
        """Poll, and yield the records, none if nothing came within ``timeout_ms``. The turn lasts as long as the block.

        Raises IllegalStateError for an instance that is neither subscribed nor assigned, the errors of the membership,
        and what ``Broker.fetch_records`` raises.
        """
        end = asyncio.get_running_loop().time() + timeout_ms / 1000
        async with self._reading(timeout_ms) as has_turn:
            if not has_turn:
                yield Polled([], None)
                return
            yield await self._until_polled(context, end, max_bytes, gone)

    @asynccontextmanager
    async def streaming(self, timeout_ms: int) -> AsyncIterator[bool]:
        """Wait for the turn of a stream, and yield False if it did not come in time."""
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
        self._group.begin_poll()
        try:
            yield True
        finally:
            self._group.end_poll()
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
            polled = await self._reader.read(
                context, self.value.config, left_ms, max_bytes, self._woken, gone, self._mend
            )
            if polled is not None and polled.partitions:
                return polled
            self.require_there()
            if loop.time() >= end or polled is None:
                return Polled([], None)

    async def _settled_by(self, end: float) -> bool:
        """Commit what is due and ``settle``. Return False if it takes longer: then it continues without the poll, and
        the next poll raises its error, if it has one.
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
        if self._group.is_auto_commit_due:
            async with self._changing:
                await self._group.auto_commit()
        await self.settle()

    def _prepared(self, preparing: "asyncio.Task[None]") -> None:
        if preparing.cancelled() or (error := preparing.exception()) is None or self._group.is_polled:
            return
        if isinstance(error, LogStoreError):
            self._error = error
        else:
            log.error("instance.settle_failed", group=self.key.group, instance=self.key.instance, exc_info=error)

    async def _mend_out_of_range(self) -> None:
        for at, position in self._positions.items():
            try:
                require_in_range(self._log(INTERNAL, at), position.offset)
            except OffsetOutOfRangeError as error:
                await self._mend(at, position, error)
            except LogStoreError:
                continue  # The stream reports the error, also for partitions that other brokers lead.

    async def _mend(self, at: TopicPartition, position: Position, error: LogStoreError) -> LogStoreError | None:
        """Begin again where a partition cannot be read further. Return the error if the client has to know it."""
        async with self._changing:
            if self._positions.get(at) is not position:
                return None  # The position was moved meanwhile, by a seek for example.
            is_subscribed = self.value.is_subscribed
            if isinstance(error, OffsetOutOfRangeError):
                found, starts = await self._starts.reset({at: position.topic_id})
                await self._starts.put_starts({TopicPartition(s.topic, s.partition): s for s in starts})
                self._positions.forget([at])
                self._positions.put(found)
                self._positions.show()
                return None
            if isinstance(error, UnknownTopicError) and is_subscribed:
                # A new topic with that name is read from its beginning; without one the group takes the partition away.
                self._positions.forget([at])
                self._wake()
                return None
        return error

    # ---- streams ----------------------------------------------------------------------------------------------------

    @property
    def reading(self) -> tuple[TopicPartition, ...]:
        """The partitions to read; a new object when they change."""
        return self._positions.reading

    def position(self, at: TopicPartition) -> Position | None:
        return self._positions.get(at)

    def begin_stream(self, streamed: Callable[[], Mapping[TopicPartition, int]], on_change: Callable[[], None]) -> None:
        """Begin a stream. ``streamed`` gives the positions that the stream has reached; ``on_change`` makes it look
        again.
        """
        self._positions.streamed, self._on_change = streamed, on_change

    async def resume_stream(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue behind the last event that the client has received. A position that is out of range stays."""
        async with self._changing:
            logs: dict[TopicPartition, PartitionLog] = {}
            for at, offset in offsets.items():
                held = self._positions.get(at)
                if held is not None and held.offset != offset:
                    with suppress(LogStoreError):
                        logs[at] = self._log(INTERNAL, at)
            elsewhere = await self._broker.elsewhere.offsets(list(logs.values()))
            moved: dict[TopicPartition, tuple[PartitionLog, int]] = {}
            for at, partition_log in logs.items():
                ends = PartitionOffsets.of(partition_log, elsewhere)
                ends.require_known(partition_log)
                with suppress(OffsetOutOfRangeError):
                    ends.require_in_range(partition_log, offsets[at])
                    moved[at] = partition_log, offsets[at]
            await self._seek(moved)

    def end_stream(self) -> None:
        """End the turn of the stream: what it has sent was handed out."""
        self._positions.absorb()
        self._positions.streamed = None
        self._on_change = lambda: None

    async def auto_commit_stream(self, handed: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Commit ``handed`` if the instance commits automatically. Return what was sent until now, to be committed
        next.
        """
        async with self._changing:
            self._positions.absorb()
            if self.value.config.auto_commit and handed:
                await self._group.commit_handed(
                    {at: offset for at, offset in handed.items() if at in self._positions.handed}
                )
            return dict(self._positions.handed)

    # ---- membership -------------------------------------------------------------------------------------------------

    def topics_changed(self) -> None:
        """Look at topics that were made, were deleted or have grown."""
        if self._starts.is_closed:
            return
        with suppress(LogStoreError):
            self._group.found_topics()
        self._wake()

    def _wake(self) -> None:
        """Wake the poll that waits, or start a task if there is none."""
        self._woken.set()
        if not self._settles_alone:
            return
        if self._settling is None or self._settling.done():
            self._settling = asyncio.get_running_loop().create_task(self._settle_alone())

    @property
    def _settles_alone(self) -> bool:
        """True if no poll settles the instance."""
        is_polled = self._group.is_polled and self._positions.streamed is None
        return not is_polled and not self._starts.is_closed

    async def _settle_alone(self) -> None:
        while self._woken.is_set() and self._settles_alone:
            self._woken.clear()
            try:
                await self.settle()
            except LogStoreError as error:
                # The next poll raises the error; a load of the shard ends by itself.
                self._error = error
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
                if error.retriable:
                    self._woken.set()
            except Exception:
                log.exception("instance.settle_failed", group=self.key.group, instance=self.key.instance)
                return

    async def settle(self) -> None:
        """Take the steps of a rebalance that can be taken now, and find the missing positions."""
        async with self._changing:
            value = self.value
            if value.is_subscribed:
                if self._group.is_polled and self._error is not None and not self._error.retriable:
                    error, self._error = self._error, None
                    raise error
                await self._group.take_steps()
                positions = self._positions.items()
                self._positions.forget(at for at, one in positions if one.topic_id != self._starts.topic_id(at))
            elif value.assigned is not None and not self._positions:
                await self._find_assigned(value.assigned)
            self._error = None
            await self._group.find_missing()
            self._positions.show()

    async def _find_assigned(self, assigned: Sequence[Assigned]) -> None:
        """Find the positions after a restart. An assigned partition belongs to the topic that had the name when it was
        assigned.
        """
        ids = {TopicPartition(each.topic, each.partition): each.topic_id for each in assigned}
        positions = await self._starts.find(ids)
        # A partition of a deleted topic also gets a position, so that the poll reports the deletion.
        self._positions.put({at: positions.get(at) or Position(ids[at], 0) for at in ids})

    def _held(self, value: InstanceValue) -> set[TopicPartition]:
        if value.assigned is not None:
            return {TopicPartition(each.topic, each.partition) for each in value.assigned}
        return self._group.held()

    def _changed(self) -> None:
        self._woken.set()
        self._on_change()


def _exclusive(what: str) -> IllegalStateError:
    return IllegalStateError(
        f"Illegal state: the instance {what}. Topics, topic_pattern and assignments are mutually exclusive: send "
        "DELETE to its subscription first."
    )
