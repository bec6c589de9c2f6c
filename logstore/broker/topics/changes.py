"""Topics are created, altered, grown and deleted here.

In a cluster only the controller does so: the table first, then its registration. On the other brokers topics appear and
disappear by ``TopicDiscovery``. Invariant: one change of the catalogue at a time, each to its end even if the caller is
cancelled.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TypeVar
from uuid import UUID

import structlog

from logstore.broker.admission import Admission
from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import Forwarding, RequestContext
from logstore.broker.elsewhere.nobody import Elsewhere
from logstore.broker.roll_schedule import RollSchedule
from logstore.broker.topics.catalog import check_no_collision, check_topic_name
from logstore.broker.topics.served import Topics
from logstore.cluster.cluster_state import ClusterState
from logstore.errors import (
    CoordinatorNotAvailableError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    LogStoreError,
    NotControllerError,
    RequestTimedOutError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
    UnknownTopicIdError,
)
from logstore.limits import PARTITIONS_PER_TOPIC_MAX
from logstore.log.roller import Roller
from logstore.log.topic import Topic
from logstore.names import is_internal
from logstore.settings import Settings
from logstore.topic_config import TopicConfig, config_key, validate_overrides

log = structlog.stdlib.get_logger(__name__)

#: Seconds that a new partition may be without a leader before its request is answered with an error.
_LEADERS_S = 15.0
#: Seconds that a broker waits for a topic that the controller makes.
_APPEARS_S = 10.0

T = TypeVar("T")


class TopicChanges:
    def __init__(
        self,
        topics: Topics,
        settings: Settings,
        cluster_state: ClusterState,
        roller: Roller,
        schedule: RollSchedule,
        admission: Admission,
        authorizer: Authorizer,
        elsewhere: Elsewhere,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._cluster_state = cluster_state
        self._roller = roller
        self._schedule = schedule
        self._admission = admission
        self._authorizer = authorizer
        self._elsewhere = elsewhere

    async def create(
        self,
        context: RequestContext,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        assignments: Sequence[Sequence[int]] = (),
        configs: Mapping[str, str | None] | None = None,
        validate_only: bool = False,
    ) -> Topic | None:
        """Make a new topic; return None for ``validate_only``. ``assignments`` has, by partition, the brokers of its
        replicas, instead of the two numbers.

        Raises TopicAuthorizationError, InvalidTopicError, TopicExistsError, InvalidPartitionsError,
        InvalidReplicationFactorError, InvalidReplicaAssignmentError, InvalidConfigError and StorageFullError.
        """
        self._authorizer.require_create(context, name)
        self._require_controller()
        topic = await self._change(
            self._create(name, partitions, replication_factor, assignments, configs or {}, validate_only)
        )
        if topic is not None:
            await self._until_led(topic)
        return topic

    async def internal(
        self,
        context: RequestContext,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
    ) -> Topic:
        """Return one of the store's own topics; make it if it does not exist. Only INTERNAL writes to it, and no user
        alters or deletes it.

        With fewer brokers than ``replication_factor`` it has one replica for each broker. The controller makes it;
        another broker waits for it. Raises ClusterAuthorizationError, StorageFullError, QuarantinedError,
        CoordinatorNotAvailableError and RequestTimedOutError.
        """
        self._authorizer.require_cluster(context, Operation.CLUSTER_ACTION)

        async def find_or_create() -> Topic:
            try:
                return self._topics.get(name)
            except UnknownTopicError:
                factor = max(1, min(replication_factor, self._cluster_state.placeable_brokers))
                return await self._topics.make(name, partitions, dict(configs), factor)

        if (found := self._topics.served(name)) is not None:
            return found
        if not self._is_controller:
            await self._elsewhere.discovery.until(lambda: self._is_served(name) or self._is_controller, _APPEARS_S)
        if not self._is_controller and not self._is_served(name):
            raise CoordinatorNotAvailableError(f"The controller has not made {name} yet. Try again in a few seconds.")
        topic = await self._change(find_or_create())
        await self._until_led(topic)
        return topic

    def _is_served(self, name: str) -> bool:
        return self._topics.served(name) is not None

    @property
    def _is_controller(self) -> bool:
        return self._cluster_state.controller_id == self._cluster_state.broker_id

    def _require_controller(self) -> None:
        found = self._cluster_state.controller_id
        if found < 0:
            raise NotControllerError("The cluster has no controller at present. Nothing was changed: try again soon.")
        if found != self._cluster_state.broker_id:
            raise NotControllerError(
                f"Broker {found} is the controller: topics are made, changed and deleted there. Nothing was changed."
            )

    async def _until_led(self, topic: Topic) -> None:
        """Wait until the whole topic has leaders. Raises RequestTimedOutError."""

        def is_led() -> bool:
            states = (self._cluster_state.partition_state(topic.topic_id, p.partition) for p in topic.partitions)
            return topic.deleted or all(state.leader >= 0 for state in states)

        if not await self._elsewhere.discovery.until(is_led, _LEADERS_S):
            raise RequestTimedOutError(
                f"Topic {topic.name!r} is there, and not all of its partitions have a leader yet: see the log of "
                "the controller."
            )

    def find(self, context: RequestContext, name: str, operation: Operation) -> Topic | None:
        """Return the topic, for ``operation``; None if it does not exist and may be made. It changes nothing.

        Raises TopicAuthorizationError, UnknownTopicError, QuarantinedError, and LeaderNotAvailableError for one that
        other brokers already know.
        """
        self._authorizer.require(context, operation, ResourceType.TOPIC, name)
        try:
            return self._topics.get(name)
        except UnknownTopicError:
            # One of the store's own topics may come later, and its reader waits for it. A writer gets an error with its
            # name.
            if not self._settings.auto_create_topics_enable or (is_internal(name) and operation is not Operation.WRITE):
                raise
        self._authorizer.require_create(context, name)
        return None

    async def find_or_create(
        self, context: RequestContext, name: str, operation: Operation, partition: int = 0
    ) -> Topic:
        """Return the topic, for ``operation``; create it first if it does not exist and ``auto.create.topics.enable``
        is true.

        ``partition`` is the last one that is wanted. If a new topic would not have it, nothing is created and
        UnknownPartitionError is raised. In a cluster the controller creates the topic, and this broker waits until it
        also serves it. Raises the errors of ``find``, and InvalidTopicError, BrokerNotReadyError, StorageFullError and
        NotControllerError.
        """
        if (topic := self.find(context, name, operation)) is not None:
            return topic
        count = self._settings.num_partitions
        if partition >= count:
            raise UnknownPartitionError(
                f"Partition {partition} not found: topic {name!r} is not there, and a new one has partitions 0 to "
                f"{count - 1}."
            )
        self._admission.require_ready()
        with contextlib.suppress(TopicExistsError):  # another request was faster
            if self._is_controller or context.forwarding is Forwarding.DONE:
                await self.create(context, name)
            else:
                await self._elsewhere.create_topic(context, name)
        await self._elsewhere.discovery.until(lambda: self._is_served(name), _APPEARS_S)
        return self._topics.get(name)

    async def _create(
        self,
        name: str,
        partitions: int | None,
        replication_factor: int | None,
        assignments: Sequence[Sequence[int]],
        configs: Mapping[str, str | None],
        validate_only: bool,
    ) -> Topic | None:
        check_topic_name(name)
        check_no_collision(name, self._topics.names())
        if assignments:
            count = len(assignments)
            self._check_assignments(name, assignments, len(assignments[0]))
        else:
            count = self._settings.num_partitions if partitions is None else partitions
            _check_replication_factor(
                replication_factor, self._settings.default_replication_factor, self._cluster_state.placeable_brokers
            )
        _check_partitions(count)
        overrides = validate_overrides({key: value for key, value in configs.items() if value is not None})
        TopicConfig.parse(overrides, self._settings.topic_defaults)
        if validate_only:
            return None
        return await self._topics.make(name, count, overrides, replication_factor, assignments)

    def _check_assignments(self, name: str, assignments: Sequence[Sequence[int]], replication_factor: int) -> None:
        there = self._cluster_state.brokers
        for replicas in assignments:
            if not replicas or len(set(replicas)) < len(replicas):
                raise InvalidReplicaAssignmentError(
                    f"A partition of topic {name!r} cannot have the replicas {list(replicas)}: name distinct brokers."
                )
            if missing := [one for one in replicas if one not in there]:
                raise InvalidReplicaAssignmentError(
                    f"A partition of topic {name!r} cannot have replicas on brokers {missing}: those that are there "
                    f"are {', '.join(map(str, there))}."
                )
            if len(replicas) != replication_factor:
                raise InvalidReplicaAssignmentError(
                    f"Partitions of topic {name!r} have as many replicas as one another: {replication_factor}, not "
                    f"{len(replicas)}."
                )

    async def delete(self, context: RequestContext, name: str, topic_id: UUID | None = None) -> None:
        """Delete a topic. It is gone for readers and writers at once; its files follow.

        With a ``topic_id``, delete only the topic that has it, or raise UnknownTopicIdError. Raises
        TopicAuthorizationError, UnknownTopicError, InvalidTopicError, StorageFullError. Raises StorageError if it is
        gone, but a power cut may bring it back: the removal is then tried again until it is durable.
        """
        self._authorizer.require(context, Operation.DELETE, ResourceType.TOPIC, name)
        self._require_controller()
        await self._change(self._delete(name, topic_id))

    async def _delete(self, name: str, topic_id: UUID | None) -> None:
        topic = self._topics.get(name)
        if topic_id not in (None, topic.topic_id):
            raise UnknownTopicIdError(f"Topic {name!r} has the id {topic.topic_id} now, not {topic_id}.")
        topic.require_not_internal()
        await self._cluster_state.mark_deleting(topic.topic_id)
        await self._topics.remove(topic)

    async def alter_configs(
        self, context: RequestContext, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> Topic:
        """Set keys; None returns a key to its default.

        Raises TopicAuthorizationError, UnknownTopicError, InvalidTopicError and InvalidConfigError.
        """
        topic = self.require_alterable(context, name)
        checked: dict[str, str | None] = dict(
            validate_overrides({key: value for key, value in changes.items() if value is not None})
        )
        checked.update({config_key(key).name: None for key, value in changes.items() if value is None})

        def alter() -> int:
            topic.config_with(checked)  # no other change of the topic is under way here
            return topic.table.alter_config(checked)

        if validate_only:
            topic.config_with(checked)
        elif checked:
            await self.change_table(topic, alter)
            log.info("topic.configs_altered", topic=name, changes=checked)
        return topic

    def require_alterable(self, context: RequestContext, name: str) -> Topic:
        """Return a topic whose table may be changed here. Raises TopicAuthorizationError, NotControllerError,
        UnknownTopicError and InvalidTopicError.
        """
        self._authorizer.require(context, Operation.ALTER_CONFIGS, ResourceType.TOPIC, name)
        self._require_controller()
        topic = self._topics.get(name)
        topic.require_not_internal()
        return topic

    async def change_table(self, topic: Topic, change: Callable[[], T]) -> T:
        """Run a blocking change of the table's metadata, and let the other brokers know. Raises its errors."""
        result = await self._roller.commit(topic, change)
        self._schedule.touch(topic)
        try:
            await self._cluster_state.table_changed(topic.topic_id)
        except LogStoreError as error:
            # The other brokers check the table's log every few seconds.
            log.warning("topic.change_not_told", topic=topic.name, why=error.message)
        return result

    async def add_partitions(
        self,
        context: RequestContext,
        name: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] = (),
        validate_only: bool = False,
    ) -> Topic:
        """Grow to ``total`` partitions. ``assignments`` has, for each new partition, the brokers of its replicas.

        Raises TopicAuthorizationError, InvalidPartitionsError for fewer than there are, InvalidReplicaAssignmentError,
        UnknownTopicError and InvalidTopicError.
        """
        self._authorizer.require(context, Operation.ALTER, ResourceType.TOPIC, name)
        self._require_controller()
        topic = await self._change(self._add_partitions(name, total, assignments, validate_only))
        if not validate_only:
            await self._until_led(topic)
        return topic

    async def _add_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]], validate_only: bool
    ) -> Topic:
        topic = self._topics.get(name)
        topic.require_not_internal()
        _check_partitions(total)
        if total < len(topic.partitions):
            raise InvalidPartitionsError(
                f"Topic '{name}' has {len(topic.partitions)} partitions; partitions can be added, never removed."
            )
        added = total - len(topic.partitions)
        if assignments:
            if len(assignments) != added:
                raise InvalidReplicaAssignmentError(
                    f"Topic {name!r} gets {added} new partitions, and replicas are named of {len(assignments)}."
                )
            of_first = self._cluster_state.partition_state(topic.topic_id, 0)
            factor = len(of_first.replicas) - len(of_first.adding_replicas)
            self._check_assignments(name, assignments, factor)
        if added and not validate_only:
            topic.assign(len(topic.partitions), assignments)
            await self._roller.commit(topic, lambda: topic.table.add_partitions(total))
            log.info("topic.partitions_added", topic=name, partitions=total)
        return topic

    async def _change(self, change: Coroutine[object, object, T]) -> T:
        """Run one change of the catalogue at a time, each to its end even if the caller is cancelled."""

        async def locked() -> T:
            async with self._topics.lock:
                try:
                    self._admission.require_locks()
                except LogStoreError:
                    change.close()
                    raise
                return await change

        return await asyncio.shield(asyncio.create_task(locked()))


def _check_replication_factor(asked: int | None, default: int, brokers: int) -> None:
    """Check the factor; None and -1 mean ``default.replication.factor``. Raises InvalidReplicationFactorError."""
    if asked is None or asked == -1:
        if default > brokers:
            raise InvalidReplicationFactorError(
                f"default.replication.factor ({default}) is larger than the number of brokers ({brokers}): start "
                "brokers, or name a replication factor."
            )
        return
    if asked < 1:
        raise InvalidReplicationFactorError(f"Replication factor {asked} is below 1: leave it out.")
    if asked > brokers:
        raise InvalidReplicationFactorError(
            f"Replication factor {asked} is larger than the number of brokers ({brokers}): name {brokers} at "
            "most, or leave it out."
        )


def _check_partitions(count: int) -> None:
    if not 1 <= count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(f"A topic has 1 to {PARTITIONS_PER_TOPIC_MAX} partitions, not {count}.")
