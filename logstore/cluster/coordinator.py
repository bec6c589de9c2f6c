"""The coordinator: the leader of each partition with its epoch, the replicas, and the id of the cluster.

``Coordinator`` is the seam: a view of all partitions, and events when it changes. A broker tells which topics there
are, and becomes a partition's leader when an event says so, and only then. Methods that may have to ask other processes
are asynchronous; the others answer from the coordinator's own view. ``EmbeddedCoordinator`` answers for one node,
``ZooKeeperCoordinator`` for a broker of a cluster; both emit the same events.
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

    ``recovering`` after an unclean election: the leader reads the table before it takes or gives a record (C11).
    ``adding_replicas`` and ``removing_replicas`` are those of a reassignment under way.
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
        """Whether a replica is not in sync, as Kafka counts: those that a reassignment adds do not matter yet."""
        return len(self.in_sync_replicas) < len(self.replicas) - len(self.adding_replicas)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)


class ElectionType(enum.StrEnum):
    """Kafka's (KIP-460): the first replica leads again, or one leads that is not in sync, for want of others."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


#: By topic and partition, the leader that was elected, or the error of the election.
Elected = Mapping[tuple[str, int], int | LogStoreError]


#: Of a partition that is not known.
NO_PARTITION: Final = PartitionState(-1, -1, (), ())


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """What a coordinator needs to know of a topic's table.

    ``leader_epochs``: by partition, the last that table and journal have seen. ``has_records``: whether any are known,
    in the table or in this broker's journal. ``replication_factor``: that of a new topic (None: the default).
    ``assignments``: by partition, the brokers of its replicas as somebody has chosen them; () or none: the controller
    chooses. ``unclean``: whether its partitions may lose records to have a leader (``unclean.leader.election.enable``).
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
    """A broker that is there, as clients find it. ``url`` is None on one node: it is where the client found it.
    ``kafka`` is the host:port for Kafka's clients; None if it has none for them, or on one node.
    """

    id: int
    url: str | None
    rack: str | None = None
    kafka: str | None = None


#: The command for a topic whose table has records, and that the cluster does not know.
ADOPT: Final = "logstore cluster adopt {}"

#: Told that a partition has a leader, or another one, or other replicas in sync: topic id, partition, its new state.
#: Called on the event loop, in the order of the changes of a partition.
PartitionListener = Callable[[UUID, int, PartitionState], None]
#: Told the name of a topic whose ``RegisteredTopic`` came, changed or went. Called on the event loop, after the
#: listeners of its partitions.
TopicListener = Callable[[str], None]


#: Reads the journal of this broker to its end, without a change, once these locks keep others away. Called in a thread;
#: raises CorruptionError, StorageError, DataDirectoryError.
ReadJournal = Callable[[Sequence[LockFile]], FoundJournal]


class Coordinator(Protocol):
    """Started before a broker is, and stopped after it. Attributes and plain methods need ``start`` to have ended."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    @property
    def brokers(self) -> Sequence[int]:
        """Ids of the brokers that are there now."""
        ...

    @property
    def brokers_by_id(self) -> Mapping[int, BrokerEndpoint]:
        """The same brokers with their addresses, in the order of their ids."""
        ...

    @property
    def is_migration(self) -> bool:
        """Whether the data directory is still that of a store of one node, which ``find_leaders`` makes a cluster's."""
        ...

    @property
    def placeable_brokers(self) -> int:
        """The number of brokers that new replicas can be given to now."""
        ...

    @property
    def not_ready_reason(self) -> str | None:
        """Why requests had better go to another broker; None if this one has its place in the cluster."""
        ...

    @property
    def damaged_topics(self) -> Mapping[str, str]:
        """By name, why the registration of a topic is not believed. What it said before stays in force."""
        ...

    @property
    def locks(self) -> Sequence[LockFile]:
        """The locks without which this process must acknowledge nothing."""
        ...

    async def start(self, read_journal: ReadJournal) -> None:
        """Join the cluster, once the journal is read and compared with the one that stood here.

        Raises DataDirectoryError if the data directory is another process's, or not what was written, and as
        ``read_journal`` does.
        """
        ...

    async def stop(self) -> None:
        """Leave the cluster; another process may take the place."""
        ...

    @property
    def controller_id(self) -> int:
        """Id of the broker that decides who leads; -1 while there is none."""
        ...

    @property
    def has_lease(self) -> bool:
        """Whether no other broker can have been given what this one leads (C14). Asked when an append with acks 0 or 1
        is acknowledged.
        """
        ...

    async def find_leaders(self, topics: Sequence[KnownTopic]) -> None:
        """The topics that there are at the start.

        Each partition gets a leader, now or later, with an epoch above the last one and above that of any leader
        before.
        """
        ...

    @property
    def journal_record(self) -> JournalRecord:
        """The file beside the journal, of this start; from ``find_leaders`` on."""
        ...

    @property
    def may_lack_frames(self) -> bool:
        """Whether the journal is not the expected one, so that this broker has left every ISR (C12)."""
        ...

    def listen(self, listener: PartitionListener) -> None:
        """Tell ``listener`` of each partition that has a leader now, and of each change from now on."""
        ...

    def listen_to_brokers(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when brokers have come, gone or changed, after the listeners of partitions."""
        ...

    def listen_to_topics(self, listener: TopicListener) -> None:
        """Tell ``listener`` of each topic that is registered now, and of each change from now on.

        A coordinator of one node has none: the tables of its broker are all there is.
        """
        ...

    def registered_topics(self) -> Sequence[str]:
        """The names of the topics that are registered."""
        ...

    def registered_topic(self, name: str) -> RegisteredTopic | None:
        """The topic as the cluster has it; None if it is not registered."""
        ...

    async def refresh_topics(self, names: Collection[str]) -> None:
        """Look again whether topics of these names are registered, and how: afterwards ``registered_topic`` and
        ``partition_state`` show at least what any broker could know before the call.

        ZooKeeperUnavailableError.
        """
        ...

    def is_gone(self, topic_id: UUID) -> bool:
        """Whether a topic with records was deleted for certain: no topic that is registered has its id."""
        ...

    def on_election(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Await ``prepare`` whenever this broker was elected, before it decides anything: it tells of all tables by
        ``set_partitions`` and ``forget_topic``.
        """
        ...

    def set_partitions(self, topic: KnownTopic) -> None:
        """The topic was made, or has grown: the new partitions get a leader, or later. Or ``unclean`` is another."""
        ...

    async def table_changed(self, topic_id: UUID) -> None:
        """The configuration in the topic's table has changed: other brokers read it again.

        UnknownTopicIdError, ClusterStateError, ZooKeeperUnavailableError.
        """
        ...

    async def mark_deleting(self, topic_id: UUID) -> None:
        """The topic is about to be deleted: no partition of it gets a leader any more.

        NotControllerError on a broker that is not the controller.
        """
        ...

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic was deleted."""
        ...

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        """The leader (-1: none) and the replicas of the partition."""
        ...

    def may_join(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether a replica may join an ISR, as far as this broker knows: it is registered with that epoch, and does
        not stop.
        """
        ...

    async def leads_still(self, topic_id: UUID, partition: int, leader_epoch: int) -> bool:
        """Whether this broker leads the partition in this epoch now; False where nobody can tell it so."""
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
        """As the leader, change the in-sync replicas or end its recovery: the committed state (C5, KIP-497).

        ``seen`` is the state that the leader decided on: nothing is written if the partition has another one.
        ``broker_epochs``: of each replica that is added, the registration whose position the leader knows (KIP-903).
        Raises FencedLeaderEpochError (step down), InvalidUpdateVersionError (decide anew), IneligibleReplicaError,
        BrokerNotReadyError (the outcome is open: the next event tells it).
        """
        ...

    async def elect_leaders(
        self, election: ElectionType, partitions: Mapping[str, Collection[int]] | None = None
    ) -> Elected:
        """Elect leaders of these partitions by topic, or of all that need it (None).

        NotControllerError on a broker that is not the controller. Errors of a partition: UnknownTopicError,
        UnknownPartitionError, ElectionNotNeededError, PreferredLeaderNotAvailableError,
        EligibleLeadersNotAvailableError.
        """
        ...

    async def reassign(self, topic: str, targets: Mapping[int, Sequence[int] | None]) -> None:
        """Move partitions to other replicas, the preferred leader first; None takes a move back (KIP-455).

        Raises NotControllerError, UnknownTopicError, UnknownPartitionError, InvalidReplicaAssignmentError,
        NoReassignmentInProgressError.
        """
        ...

    def table_lock(self, topic: str) -> AbstractAsyncContextManager[None]:
        """Held while the log of the topic's table is repaired or checkpointed: by one broker at a time."""
        ...

    async def set_offline(self, offline: Mapping[str, Sequence[int]]) -> None:
        """By topic, the partitions that this broker's disk cannot serve: others lead them.

        ZooKeeperUnavailableError.
        """
        ...

    def replicas_here(self) -> Mapping[str, Sequence[int]]:
        """By topic, the partitions that this broker has a replica of."""
        ...

    async def hand_over(self, timeout_s: float) -> bool:
        """Before a stop: let others lead what this broker leads. Whether it leads nothing that another one could."""
        ...

    @property
    def producer_ids_begin(self) -> int:
        """Ids of producers below this one may have been given before the start; 0 until leaders are found."""
        ...

    async def new_producer_id(self) -> int:
        """A new id for an idempotent producer, higher than all before; it is given once."""
        ...

    def is_issued(self, producer_id: int) -> bool:
        """Whether ``producer_id`` may have been given to a producer, as far as this broker knows."""
        ...

    async def refresh_producer_ids(self) -> None:
        """Learn which ids other brokers have given, before ``is_issued`` refuses one. ZooKeeperUnavailableError."""
        ...
