"""The shards of the group coordinator: one for each partition of ``__consumer_offsets`` that this broker leads."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

import structlog

from consumer_offsets.coordinator_shard import CoordinatorShard
from consumer_offsets.groups_machine import GroupsMachine
from logstore.broker.broker import Broker
from logstore.broker.context import INTERNAL
from logstore.clock import Clock
from logstore.errors import (
    BrokerNotReadyError,
    CoordinatorNotAvailableError,
    InvalidGroupError,
    LeaderNotAvailableError,
    LogStoreError,
    NotCoordinatorError,
    QuarantinedError,
    RequestTimedOutError,
    UnknownTopicError,
)
from logstore.limits import SHOWN_NAME_LENGTH_MAX
from logstore.log.topic import Topic
from logstore.names import GROUP_NAME_BYTES_MAX, is_group_name
from logstore.records.murmur2 import partition_for
from logstore.records.offset_record import OFFSETS_TOPIC

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")

GroupShard = CoordinatorShard[GroupsMachine]

#: Readers of the table see commits after this time; compaction keeps the latest of each key.
OFFSETS_TOPIC_CONFIGS = {"cleanup.policy": "compact", "segment.ms": "5000"}
# In a cluster the topic gets fewer replicas than configured if no further broker registers for this long.
_BROKERS_SETTLED_S = 10.0
_LOOK_S = 0.5
# A start waits until all offsets are loaded, however many there are.
_LOAD_TIMEOUT_MS = 3_600_000


class GroupShards:
    """The shards of this broker, which follow the leadership of the topic's partitions. ``new_machine`` makes an empty
    machine.
    """

    def __init__(self, broker: Broker, clock: Clock, new_machine: Callable[[], GroupsMachine]) -> None:
        self._broker = broker
        self._clock = clock
        self._new_machine = new_machine
        #: Called when a shard has loaded its machine, and when it no longer has one.
        self.listeners: list[Callable[[GroupShard], None]] = []
        self._topic: Topic | None = None
        self._shards: dict[int, GroupShard] = {}
        #: The reason why the topic cannot be read at all.
        self._quarantined: QuarantinedError | None = None
        #: The empty machine that is read as long as the topic does not exist.
        self._nothing = new_machine()
        self._is_closed = False
        self._making: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the groups, and follow leaders.

        Groups that cannot be read are refused until a restart finds the topic repaired; other groups are served.
        """
        self._broker.leadership_listeners.append(self._on_leadership)
        try:
            topic = self._broker.topics.served.topic(INTERNAL, OFFSETS_TOPIC)
        except UnknownTopicError:
            if not self._broker.elsewhere.is_alone:
                self._making = asyncio.create_task(self._make_topic())
            return
        except LeaderNotAvailableError:
            return  # Another broker has just made the topic: its partitions come with their leadership.
        except QuarantinedError as error:
            self._quarantined = error
            return
        # The partitions are loaded one after another, to bound the memory. The start does not wait for partitions with
        # other replicas: their load waits until these replicas fetch, which they can do only once this broker has
        # started.
        for partition_log in topic.partitions:
            self._on_leadership(topic, partition_log.partition)
            shard = self._shards.get(partition_log.partition)
            state = self._broker.topics.leaders.partition_state(INTERNAL, topic, partition_log.partition)
            if shard is not None and len(state.replicas) == 1:
                await shard.until_settled(_LOAD_TIMEOUT_MS)

    async def close(self) -> None:
        """Take no more requests. Appends under way still finish; requests that wait for members are refused."""
        self._is_closed = True
        if self._making is not None:
            self._making.cancel()
        self._broker.leadership_listeners.remove(self._on_leadership)
        await asyncio.gather(*(shard.close() for shard in self._shards.values()), return_exceptions=True)

    async def _make_topic(self) -> None:
        """Make the topic from the controller when there are enough brokers for its replicas, or when no more of them
        come. So a broker that is asked for a group need not ask for the topic.
        """
        factor, settled, brokers = self._broker.settings.offsets_topic_replication_factor, 0.0, 0
        while self._topic is None:
            settled = settled + _LOOK_S if len(self._broker.brokers_by_id) == brokers else 0.0
            brokers = len(self._broker.brokers_by_id)
            if self._broker.is_controller and (brokers >= factor or settled >= _BROKERS_SETTLED_S):
                try:
                    await self.make_topic()
                except LogStoreError as error:
                    log.warning("groups.topic_not_made", why=error.message)
            await asyncio.sleep(_LOOK_S)

    @property
    def has_topic(self) -> bool:
        """True if this broker knows the topic of groups, or why it cannot be read."""
        return self._topic is not None or self._quarantined is not None

    async def make_topic(self) -> None:
        """Make the topic of groups unless it exists. Raises what ``Broker.internal_topic`` raises."""
        settings = self._broker.settings
        await self._broker.topics.changes.internal(
            INTERNAL,
            OFFSETS_TOPIC,
            partitions=settings.offsets_topic_num_partitions,
            configs=OFFSETS_TOPIC_CONFIGS,
            replication_factor=settings.offsets_topic_replication_factor,
        )

    def _on_leadership(self, topic: Topic, partition: int) -> None:
        if topic.name != OFFSETS_TOPIC:
            return
        self._topic = topic
        if topic.partition(partition).is_leader:
            if partition not in self._shards:
                self._shards[partition] = CoordinatorShard(
                    self._broker, topic, partition, self._new_machine, self._clock, self._notify
                )
            self._shards[partition].load()
        elif partition in self._shards:
            self._shards[partition].unload()

    def _notify(self, shard: GroupShard) -> None:
        for listener in self.listeners:
            listener(shard)

    # ---- lookups ----------------------------------------------------------------------------------------------------

    def coordinator_of(self, group: str) -> int:
        """Return the id of the group's coordinator; -1 while it has none, or before there are any groups."""
        if self._topic is None:
            return -1
        partition = partition_for(group, len(self._topic.partitions))
        return self._broker.topics.leaders.partition_state(INTERNAL, self._topic, partition).leader

    def active(self) -> list[GroupShard]:
        """Return the shards that take requests."""
        return [shard for shard in self._shards.values() if shard.is_active]

    def require_loaded(self) -> None:
        """Raise CoordinatorLoadInProgressError if a shard is not read yet, so that ``machines`` is not complete."""
        for shard in self._shards.values():
            if not shard.is_readable and shard.failure is None:
                with contextlib.suppress(NotCoordinatorError):
                    shard.require_active()

    def machines(self) -> list[GroupsMachine]:
        """Return the machines of the shards that are loaded."""
        return [shard.machine for shard in self._shards.values() if shard.is_readable]

    def get_machine(self, group: str) -> GroupsMachine:
        """Return the machine of the group, for reading.

        Raises QuarantinedError, NotCoordinatorError, CoordinatorLoadInProgressError.
        """
        shard = self.find_shard(group)
        return self._nothing if shard is None else shard.machine

    def get_active_shard(self, group: str) -> GroupShard | None:
        """Return the shard of the group if it takes requests now; None if there are no groups.

        Raises what ``wait_for_shard`` raises.
        """
        shard = self.find_shard(group)
        if shard is not None:
            shard.require_active()
        return shard

    async def wait_for_shard(self, group: str, timeout_ms: int) -> GroupShard:
        """Return the shard of the group, once it is loaded. Its topic is made when it is first needed.

        Raises what ``get_machine`` raises, BrokerNotReadyError, CoordinatorNotAvailableError.
        """
        if self._is_closed:
            raise BrokerNotReadyError("The store is stopping. Try again in a few seconds.")
        self.find_shard(group)
        await self.make_topic()
        shard = self.find_shard(group)
        if shard is None:  # The topic was made, and this broker does not see it in ZooKeeper yet.
            raise CoordinatorNotAvailableError(
                f"{OFFSETS_TOPIC} was made a moment ago, and nobody coordinates group {group!r} yet: try again."
            )
        await shard.until_settled(timeout_ms)
        self.find_shard(group)  # This raises an error if the log could not be read.
        shard.require_active()
        return shard

    def find_shard(self, group: str) -> GroupShard | None:
        """Return the shard of the group, loaded or not; None if nothing was committed.

        Raises QuarantinedError, and NotCoordinatorError, which it also raises while another broker may have taken
        commits.
        """
        if self._topic is None:
            if self._quarantined is not None:
                raise _unreadable(group, self._quarantined)
            return None
        partition = partition_for(group, len(self._topic.partitions))
        shard = self._shards.get(partition)
        if shard is None:
            raise NotCoordinatorError(f"This broker does not coordinate group {group!r}: ask for its coordinator.")
        if shard.failure is not None:
            raise _unreadable(group, shard.failure)
        partition_log = self._topic.partitions[partition]
        if partition_log.is_leader and partition_log.require_leader().is_cut_off:
            raise NotCoordinatorError(
                f"This broker reaches neither ZooKeeper nor all replicas of group {group!r}, so that another one may "
                "coordinate it by now: ask for its coordinator, and try again."
            )
        return shard


async def answered(group: str, answer: "asyncio.Future[T]", timeout_ms: int) -> T:
    """Return the response of a shard. Raises RequestTimedOutError without one. The event continues if the caller is
    cancelled.
    """
    await asyncio.wait([answer], timeout=timeout_ms / 1000)
    if not answer.done():
        raise RequestTimedOutError(
            f"The request of group {group!r} was not acknowledged within {timeout_ms} ms; it may or may not be done."
        )
    return answer.result()


def _unreadable(group: str, error: LogStoreError) -> QuarantinedError:
    return QuarantinedError(f"The offsets of group {group!r} cannot be read: {error}", "Then restart the store")


def check_group_name(group: str, *, may_be_empty: bool = False) -> None:
    """Raise InvalidGroupError for a name that no client can give a group. Kafka's commits allow an empty name
    (``may_be_empty``).
    """
    if not is_group_name(group) and not (may_be_empty and not group):
        shown = group if len(group) <= SHOWN_NAME_LENGTH_MAX else group[:32] + "..."
        raise InvalidGroupError(f"Group name {shown!r} is not allowed: use 1 to {GROUP_NAME_BYTES_MAX} bytes of UTF-8.")
