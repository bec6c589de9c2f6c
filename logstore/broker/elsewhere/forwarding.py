"""Forwarding: which broker of a cluster has to answer a request, according to this broker's view of the cluster.

Any broker takes any request (decision 7 of the cluster's design; docs/decisions/0052). Invariant: a request is
forwarded at most once (C18): views differ for a moment, and two brokers could send a request to each other for ever.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from enum import Enum, auto
from typing import Final, Protocol
from uuid import UUID

from logstore.broker.context import Forwarding, RequestContext
from logstore.cluster.cluster_state import ClusterState
from logstore.errors import (
    CoordinatorNotAvailableError,
    LeaderNotAvailableError,
    LogStoreError,
    NotControllerError,
    NotLeaderOrFollowerError,
    UnknownTopicError,
    WrongBrokerError,
)
from logstore.log.partition_log import PartitionLog
from logstore.log.topic import Topic
from logstore.records.murmur2 import partition_for
from logstore.records.offset_record import OFFSETS_TOPIC

#: No broker.
NOBODY: Final = -1


class Target(Enum):
    """The broker that answers a request."""

    #: The broker that was asked: it has the response, or asks others itself.
    ANY = auto()
    #: The leader of the partition in the path.
    PARTITION_LEADER = auto()
    #: The leader of partition 0, which maintains the topic's table.
    TABLE_LEADER = auto()
    #: The leader of the partition of ``__consumer_offsets`` that the group in the path belongs to.
    GROUP_COORDINATOR = auto()
    CONTROLLER = auto()
    #: The broker in the path.
    BROKER = auto()


class KnownTopics(Protocol):
    """The lookups of ``Topics``."""

    def get(self, name: str) -> Topic:
        """Return the topic. Raises LogStoreError if it is not served here."""
        ...

    def is_known(self, name: str, partitions: int = 1) -> bool: ...


class Waits(Protocol):
    """The waits of ``Discovery``."""

    async def until_known(self, name: str, partitions: int = 1) -> None: ...

    async def until_led(self, logs: Collection[PartitionLog]) -> None: ...


class Router:
    def __init__(self, cluster_state: ClusterState, topics: KnownTopics, waits: Waits) -> None:
        self._cluster_state = cluster_state
        self._topics = topics
        self._waits = waits
        self._find_topic = topics.get

    @property
    def broker_id(self) -> int:
        """The id of this broker."""
        return self._cluster_state.broker_id

    @property
    def other_brokers(self) -> list[int]:
        """The ids of the other registered brokers."""
        return [one for one in self._cluster_state.brokers if one != self.broker_id]

    def leader(self, topic: Topic, partition: int) -> int:
        """Return the leader of a partition; ``NOBODY`` while there is none."""
        return self.leader_of(topic.topic_id, partition)

    def leader_of(self, topic_id: UUID, partition: int) -> int:
        """Return the leader as ``leader`` does."""
        return self._cluster_state.partition_state(topic_id, partition).leader

    async def until_target_known(self, target: Target, names: Mapping[str, str]) -> None:
        """Wait for the topic and the partition in a request's path, or for the topic of groups, if another broker has
        just made it. Afterwards this broker knows which one answers, and whether the topic exists.
        """
        if target is Target.GROUP_COORDINATOR:
            name, partitions = OFFSETS_TOPIC, 1
        elif "topic" in names:
            number = names.get("partition", "0")
            name, partitions = names["topic"], int(number) + 1 if number.isdecimal() else 1
        else:
            return
        if not self._topics.is_known(name, partitions):
            await self._waits.until_known(name, partitions)

    async def until_led(self, logs: Collection[PartitionLog]) -> None:
        """Wait for the partitions that this broker is about to lead."""
        await self._waits.until_led(logs)

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Return those of the topics that a request's body names and that this broker does not know."""
        return [name for name in dict.fromkeys(names) if not self._topics.is_known(name)]

    async def until_known(self, names: Iterable[str]) -> None:
        """Wait as ``until_target_known`` does, for topics that a request's body names."""
        if missing := self.unknown(names):
            await asyncio.gather(*map(self._waits.until_known, missing))

    def other_broker(self, target: Target, names: Mapping[str, str], context: RequestContext) -> int | None:
        """Return the other broker that must answer a request; None if this one answers, even if only with an error.

        ``names`` are those in the request's path. Raises LeaderNotAvailableError, CoordinatorNotAvailableError,
        NotControllerError while there is no such broker, and WrongBrokerError if the client wants no forwarding.
        """
        if target is Target.ANY or context.is_forwarded:
            return None
        try:
            found = self._find(target, names)
        except (LeaderNotAvailableError, CoordinatorNotAvailableError, NotControllerError):
            raise
        except LogStoreError:
            return None  # there is no such topic, so this broker answers
        if found is None or found == self.broker_id:
            return None
        if context.forwarding is Forwarding.REFUSED:
            raise self.wrong_broker(found)
        return found

    def wrong_broker(self, right: int) -> WrongBrokerError:
        """Return the refusal of a request that is not to be forwarded to broker ``right``."""
        endpoint = self._cluster_state.brokers_by_id.get(right)
        url = None if endpoint is None else endpoint.url
        at = f"at {url}" if url else "whose address is not known now"
        return WrongBrokerError(
            f"Broker {right} answers this, {at}. Nothing was done: send it there, or leave Logstore-Forward out.",
            broker_id=right,
            url=url,
        )

    def refusal(self, topic: Topic, partition: int, context: RequestContext) -> LogStoreError | None:
        """Return the reason why a request for another leader's partition is not forwarded; None if it is."""
        leader = self.leader(topic, partition)
        if leader == NOBODY:
            return no_leader(topic.partitions[partition])
        if context.forwarding is Forwarding.DONE:
            return NotLeaderOrFollowerError(
                f"Broker {self.broker_id} does not lead {topic.name}-{partition}, and a request is forwarded once: "
                "try again."
            )
        return self.wrong_broker(leader) if context.forwarding is Forwarding.REFUSED else None

    def _find(self, target: Target, names: Mapping[str, str]) -> int | None:
        match target:
            case Target.PARTITION_LEADER | Target.TABLE_LEADER:
                number = names["partition"] if target is Target.PARTITION_LEADER else "0"
                topic = self._find_topic(names["topic"])
                if not number.isdecimal() or int(number) >= len(topic.partitions):
                    return None
                return self._leader(topic, int(number))
            case Target.GROUP_COORDINATOR:
                return self.group_coordinator(names["group"])
            case Target.CONTROLLER:
                return self.controller()
            case Target.BROKER:
                number = names["broker_id"]
                return int(number) if number.isdecimal() and int(number) in self._cluster_state.brokers else None
            case _:
                return None

    def _leader(self, topic: Topic, partition: int) -> int:
        leader = self.leader(topic, partition)
        if leader == NOBODY:
            raise no_leader(topic.partitions[partition])
        return leader

    def group_coordinator(self, group: str) -> int | None:
        """Return the broker that coordinates ``group``. Before there are any groups it is the controller, which makes
        their topic. Return None if their topic is quarantined. Raises CoordinatorNotAvailableError and
        NotControllerError.
        """
        try:
            topic = self._find_topic(OFFSETS_TOPIC)
        except UnknownTopicError:
            return self.controller()
        except LogStoreError:
            return None
        leader = self.leader(topic, partition_for(group, len(topic.partitions)))
        if leader == NOBODY:
            raise CoordinatorNotAvailableError(f"No broker coordinates group {group!r} at present: try again soon.")
        return leader

    def controller(self) -> int:
        """Return the broker that changes topics. Raises NotControllerError while there is none."""
        found = self._cluster_state.controller_id
        if found == NOBODY:
            raise NotControllerError("The cluster has no controller at present. Nothing was changed: try again soon.")
        return found

    def unreachable(self, target: Target, broker_id: int, why: str) -> LogStoreError:
        """Return the error of a request that could not be sent to ``broker_id``: nothing was done."""
        text = f"Broker {broker_id} answers this, and cannot be reached: {why}. Nothing was done: try again soon."
        match target:
            case Target.GROUP_COORDINATOR:
                return CoordinatorNotAvailableError(text)
            case Target.CONTROLLER:
                return NotControllerError(text)
            case _:
                return LeaderNotAvailableError(text)


def no_leader(log: PartitionLog) -> LeaderNotAvailableError:
    return LeaderNotAvailableError(f"{log.topic}-{log.partition} has no leader at present: try again soon.")
