"""The state of the cluster: the leader of each partition with its epoch, the replicas, and the cluster's id.

``ClusterState`` is the seam: a view of all partitions, and events when it changes. A broker reports its topics, and
becomes a partition's leader when an event says so, and only then. Methods that may have to ask other processes are
asynchronous; the others read the broker's own view. ``EmbeddedClusterState`` serves one node,
``ZooKeeperClusterState`` a broker of a cluster; both emit the same events.
"""

import enum
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from logstore.errors import LogStoreError
from logstore.journal.identity import FoundJournal, JournalRecord
from logstore.lock_file import LockFile


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Kafka's partition state: broker ids of the leader, all replicas, and those with all acknowledged records.

    ``recovering`` is set after an unclean election: the leader reads the table before it takes or serves a record
    (C11). ``adding_replicas`` and ``removing_replicas`` belong to a reassignment under way.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]
    recovering: bool = False
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in sync. As in Kafka, the replicas that a reassignment adds do not count yet."""
        return len(self.in_sync_replicas) < len(self.replicas) - len(self.adding_replicas)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)


class ElectionType(enum.StrEnum):
    """Kafka's election types (KIP-460): the first replica leads again, or a replica that is not in sync leads because
    no other can.
    """

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


#: By topic and partition, the elected leader, or the error of the election.
Elected = Mapping[tuple[str, int], int | LogStoreError]


#: The state of an unknown partition.
NO_PARTITION: Final = PartitionState(-1, -1, (), ())


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """The facts about a topic's table that the cluster state needs.

    ``leader_epochs`` has, by partition, the last epoch that table and journal have seen. ``has_records`` is true if any
    are known, in the table or in this broker's journal. ``replication_factor`` is for a new topic (None: the default).
    ``assignments`` has, by partition, the brokers that a user chose for its replicas; with () or none the controller
    chooses. ``unclean`` is true if its partitions may lose records to get a leader
    (``unclean.leader.election.enable``).
    """

    name: str
    topic_id: UUID
    leader_epochs: tuple[int, ...]
    has_records: bool = False
    replication_factor: int | None = None
    unclean: bool = False
    assignments: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredTopic:
    """A topic as the cluster has it. ``version`` rises when the configuration in its table has changed."""

    topic_id: UUID
    version: int
    deleting: bool
    num_partitions: int


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """A registered broker, as clients find it. ``url`` is None on one node: it is where the client found it. ``kafka``
    is the host:port for Kafka's clients; None without a listener for them, or on one node.
    """

    id: int
    url: str | None
    rack: str | None = None
    kafka: str | None = None


#: The command for a topic whose table has records, and that the cluster does not know.
ADOPT: Final = "logstore cluster adopt {}"

#: Called when a partition gets a leader, another leader or other in-sync replicas: topic id, partition, its new state.
#: Calls are on the event loop, in the order of the changes of a partition.
PartitionListener = Callable[[UUID, int, PartitionState], None]
#: Called with the name of a topic whose ``RegisteredTopic`` came, changed or went. Calls are on the event loop, after
#: those of its partitions' listeners.
TopicListener = Callable[[str], None]


#: Reads this broker's journal to its end, without a change, once these locks keep others away. Called in a thread;
#: raises CorruptionError, StorageError, DataDirectoryError.
ReadJournal = Callable[[Sequence[LockFile]], FoundJournal]


class ClusterState(Protocol):
    """It starts before its broker and stops after it. Attributes and plain methods may be used once ``start`` has
    returned.
    """

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def brokers(self) -> Sequence[int]:
        """Ids of the registered brokers."""
        ...

    @property
    def brokers_by_id(self) -> Mapping[int, BrokerEndpoint]:
        """The same brokers with their addresses, in the order of their ids."""
        ...

    @property
    def is_migration(self) -> bool:
        """True if the data directory is still that of a store of one node, which ``find_leaders`` turns into a
        cluster's.
        """
        ...

    @property
    def placeable_brokers(self) -> int:
        """The number of brokers that can get new replicas now."""
        ...

    @property
    def not_ready_reason(self) -> str | None:
        """The reason why requests should go to another broker; None if this one has its place in the cluster."""
        ...

    @property
    def damaged_topics(self) -> Mapping[str, str]:
        """By name, the reason why a topic's registration is rejected. Its last valid content stays in force."""
        ...

    @property
    def locks(self) -> Sequence[LockFile]:
        """The locks without which this process must acknowledge nothing."""
        ...

    async def start(self, read_journal: ReadJournal) -> None:
        """Join the cluster, once the journal is read and compared with the expected one.

        Raises DataDirectoryError if the data directory belongs to another process, or is not what was written. Also
        raises the errors of ``read_journal``.
        """
        ...

    async def stop(self) -> None:
        """Leave the cluster; another process may take the place."""
        ...

    @property
    def controller_id(self) -> int:
        """The id of the broker that decides on leaders; -1 while there is none."""
        ...

    @property
    def has_lease(self) -> bool:
        """True if no other broker can have been given what this one leads (C14). It is read when an append with acks 0
        or 1 is acknowledged.
        """
        ...

    async def find_leaders(self, topics: Sequence[KnownTopic]) -> None:
        """Register the topics that exist at the start.

        Each partition gets a leader, now or later, with an epoch above the last one and above that of any former
        leader.
        """
        ...

    @property
    def journal_record(self) -> JournalRecord:
        """The file beside the journal for this start; valid from ``find_leaders`` on."""
        ...

    @property
    def may_lack_frames(self) -> bool:
        """True if the journal is not the expected one, so that this broker has left every ISR (C12)."""
        ...

    def listen(self, listener: PartitionListener) -> None:
        """Call ``listener`` for each partition that has a leader now, and for each change from now on."""
        ...

    def listen_to_brokers(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when brokers have come, gone or changed, after the listeners of partitions."""
        ...

    def listen_to_topics(self, listener: TopicListener) -> None:
        """Call ``listener`` for each topic that is registered now, and for each change from now on.

        The state of one node has none: only its broker's tables exist.
        """
        ...

    def registered_topics(self) -> Sequence[str]:
        """Return the names of the registered topics."""
        ...

    def registered_topic(self, name: str) -> RegisteredTopic | None:
        """Return the topic as the cluster has it; None if it is not registered."""
        ...

    async def refresh_topics(self, names: Collection[str]) -> None:
        """Read the registrations of these topics again. Afterwards ``registered_topic`` and ``partition_state`` show at
        least what any broker could know before the call.

        Raises ZooKeeperUnavailableError.
        """
        ...

    def is_gone(self, topic_id: UUID) -> bool:
        """Return True if a topic with records was certainly deleted: no registered topic has its id."""
        ...

    def on_election(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Await ``prepare`` whenever this broker was elected, before it decides anything. ``prepare`` reports all
        tables by ``set_partitions`` and ``forget_topic``.
        """
        ...

    def set_partitions(self, topic: KnownTopic) -> None:
        """Report that the topic was made or has grown, so that new partitions get a leader, now or later; or that
        ``unclean`` has changed.
        """
        ...

    async def table_changed(self, topic_id: UUID) -> None:
        """Make other brokers read the changed configuration in the topic's table.

        Raises UnknownTopicIdError, ClusterStateError and ZooKeeperUnavailableError.
        """
        ...

    async def mark_deleting(self, topic_id: UUID) -> None:
        """Leave the topic's partitions without leaders from now on, because it is about to be deleted.

        Raises NotControllerError on a broker that is not the controller.
        """
        ...

    def forget_topic(self, topic_id: UUID) -> None:
        """Forget the topic, which was deleted."""
        ...

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        """Return the leader (-1: none) and the replicas of the partition."""
        ...

    def may_join(self, broker_id: int, broker_epoch: int) -> bool:
        """Return True if a replica may join an ISR as far as this broker knows: it is registered with that epoch, and
        is not stopping.
        """
        ...

    async def leads_still(self, topic_id: UUID, partition: int, leader_epoch: int) -> bool:
        """Return True if this broker leads the partition in this epoch now; False if that cannot be confirmed."""
        ...

    async def alter_partition(
        self,
        topic_id: UUID,
        partition: int,
        seen: PartitionState,
        in_sync_replicas: Sequence[int],
        *,
        broker_epochs: Mapping[int, int],
        recovering: bool = False,
    ) -> PartitionState:
        """Change the in-sync replicas or end the recovery, as the leader: the committed state (C5, KIP-497).

        ``seen`` is the state that the leader decided on: nothing is written if the partition has another one.
        ``broker_epochs`` has, for each added replica, the registration whose position the leader knows (KIP-903).

        Raises FencedLeaderEpochError (step down), InvalidUpdateVersionError (decide again), IneligibleReplicaError, and
        BrokerNotReadyError (the outcome is open: the next event has it).
        """
        ...

    async def elect_leaders(
        self, election: ElectionType, partitions: Mapping[str, Collection[int]] | None = None
    ) -> Elected:
        """Elect leaders of these partitions by topic, or of all that need it (None).

        Raises NotControllerError on a broker that is not the controller. Errors of a partition: UnknownTopicError,
        UnknownPartitionError, ElectionNotNeededError, PreferredLeaderNotAvailableError,
        EligibleLeadersNotAvailableError.
        """
        ...

    async def reassign(self, topic: str, targets: Mapping[int, Sequence[int] | None]) -> None:
        """Move partitions to other replicas, the preferred leader first; None cancels a move (KIP-455).

        Raises NotControllerError, UnknownTopicError, UnknownPartitionError, InvalidReplicaAssignmentError and
        NoReassignmentInProgressError.
        """
        ...

    def table_lock(self, topic: str) -> AbstractAsyncContextManager[None]:
        """Return the lock to hold while the log of the topic's table is repaired or checkpointed: one broker at a time
        does so.
        """
        ...

    async def set_offline(self, offline: Mapping[str, Sequence[int]]) -> None:
        """Report, by topic, the partitions that this broker's disk cannot serve, so that others lead them.

        Raises ZooKeeperUnavailableError.
        """
        ...

    def replicas_here(self) -> Mapping[str, Sequence[int]]:
        """Return, by topic, the partitions that this broker has a replica of."""
        ...

    async def hand_over(self, timeout_s: float) -> bool:
        """Let others lead what this broker leads, before a stop. Return True if nothing is left that another could
        lead.
        """
        ...

    @property
    def producer_ids_begin(self) -> int:
        """Ids of producers below this one may have been given before the start; 0 until leaders are found."""
        ...

    async def new_producer_id(self) -> int:
        """Return a new id for an idempotent producer, higher than all before; it is given once."""
        ...

    def is_issued(self, producer_id: int) -> bool:
        """Return True if ``producer_id`` may have been given to a producer, as far as this broker knows."""
        ...

    async def refresh_producer_ids(self) -> None:
        """Learn which ids other brokers have given, before ``is_issued`` refuses one. Raises
        ZooKeeperUnavailableError.
        """
        ...
