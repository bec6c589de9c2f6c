"""Leaders and replicas of partitions: their states, how many lack something, elections and reassignments."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext
from logstore.cluster.cluster_state import ClusterState, Elected, ElectionType, PartitionState
from logstore.log.topic import Topic


@dataclass(slots=True)
class PartitionCounts:
    """The number of partitions, of those that lack replicas in sync, and of those without a leader.

    ``under_min_isr`` counts those with fewer in sync than ``min.insync.replicas`` (at most the number of replicas).
    """

    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    unavailable: int = 0

    def add(self, topic: Topic, state: PartitionState) -> None:
        self.partitions += 1
        self.under_replicated += state.is_under_replicated
        self.under_min_isr += is_under_min_isr(topic, state)
        self.unavailable += state.leader < 0


def is_under_min_isr(topic: Topic, state: PartitionState) -> bool:
    return len(state.in_sync_replicas) < min(topic.config.min_insync_replicas, len(state.replicas))


class Leaders:
    def __init__(self, cluster_state: ClusterState, authorizer: Authorizer) -> None:
        self._cluster_state = cluster_state
        self._authorizer = authorizer

    def partition_state(self, context: RequestContext, topic: Topic, partition: int) -> PartitionState:
        """Return the leader and the replicas of a partition. Raises TopicAuthorizationError."""
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        return self._cluster_state.partition_state(topic.topic_id, partition)

    def partition_states(self, context: RequestContext, topic: Topic) -> list[PartitionState]:
        """Return the leader and the replicas of each partition. Raises TopicAuthorizationError."""
        self._authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        return [self._cluster_state.partition_state(topic.topic_id, log.partition) for log in topic.partitions]

    async def elect_leaders(
        self, context: RequestContext, election: ElectionType, partitions: Mapping[str, Collection[int]] | None = None
    ) -> Elected:
        """Call ``ClusterState.elect_leaders``. Raises ClusterAuthorizationError and NotControllerError."""
        self._authorizer.require_cluster(context, Operation.ALTER)
        return await self._cluster_state.elect_leaders(election, partitions)

    async def reassign(
        self, context: RequestContext, topic: Topic, targets: Mapping[int, Sequence[int] | None]
    ) -> None:
        """Call ``ClusterState.reassign``. Raises ClusterAuthorizationError and NotControllerError."""
        self._authorizer.require_cluster(context, Operation.ALTER)
        await self._cluster_state.reassign(topic.name, targets)
