"""The cluster state of one node: one broker leads everything and needs no other process. Its state is in two small
files.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import structlog

from logstore.cluster import checked_file
from logstore.cluster.cluster_state import (
    NO_PARTITION,
    BrokerEndpoint,
    Elected,
    ElectionType,
    KnownTopic,
    PartitionListener,
    PartitionState,
    ReadJournal,
    RegisteredTopic,
    TopicListener,
)
from logstore.cluster.log_directory import META, DirectoryRecord, OneNodeDirectory, homes_of
from logstore.entropy import new_uuid
from logstore.errors import (
    DataDirectoryError,
    ElectionNotNeededError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
)
from logstore.filesystem import FileSystem
from logstore.journal.errors import JournalDiffersError
from logstore.journal.identity import FoundJournal
from logstore.lock_file import NAME, LockFile
from logstore.records.batch_identity import first_producer_id

log = structlog.stdlib.get_logger(__name__)

#: The layout of the data directory; raised when an older release could not read it.
FORMAT_VERSION = 2
#: Segments of version 1 have names without end offsets. Its releases would take those of version 2 for foreign files.
_OLDER_VERSIONS = (1,)

_GIVE_UP_CLUSTER = "remove it: the cluster then gets a new id"


class EmbeddedClusterState:
    """One broker leads everything. Its leader epoch counts its starts, so that each start fences the one before.

    It holds the lock of the data directory. Files: ``<data>/cluster.json`` (cluster id, format version),
    ``<data>/brokers/<id>/broker.json`` (``OneNodeDirectory``), each with a checksum of its content. ``start`` only
    reads, so that a refused start changes neither; ``find_leaders`` writes both.

    ``start`` raises DataDirectoryError for a directory of another format, of another broker (whose journal may hold
    records that this one would not read), with a changed file, or whose journal is not the expected one.
    ``new_journal`` accepts that journal anyway, and is refused if there is no need for it.
    """

    def __init__(self, data: Path, broker_id: int, filesystem: FileSystem, *, new_journal: bool = False) -> None:
        self._data = data
        self._broker_id = broker_id
        self._filesystem = filesystem
        self._new_journal = new_journal
        self._home = home_of(data, broker_id)
        self._locks: tuple[LockFile, ...] = ()
        #: The content of ``cluster.json``, as this start writes it.
        self._cluster: dict[str, object] = {}
        #: The log directory of this start; its leader epoch is final once ``find_leaders`` has run.
        self._directory: OneNodeDirectory | None = None
        #: The state of every known partition.
        self._led = NO_PARTITION
        self._partitions: dict[UUID, int] = {}
        self._listeners: list[PartitionListener] = []
        self._producer_ids_begin = self._next_producer_id = 0

    @property
    def cluster_id(self) -> str:
        return str(self._cluster["cluster_id"])

    @property
    def broker_id(self) -> int:
        return self._broker_id

    @property
    def brokers(self) -> Sequence[int]:
        return (self._broker_id,)

    @property
    def brokers_by_id(self) -> Mapping[int, BrokerEndpoint]:
        return {self._broker_id: BrokerEndpoint(self._broker_id, None)}

    @property
    def is_migration(self) -> bool:
        return False

    @property
    def placeable_brokers(self) -> int:
        return 1

    @property
    def not_ready_reason(self) -> str | None:
        return None  # it has the locks

    @property
    def damaged_topics(self) -> Mapping[str, str]:
        return {}  # it has no registrations

    @property
    def locks(self) -> Sequence[LockFile]:
        return self._locks

    async def start(self, read_journal: ReadJournal) -> None:
        await asyncio.to_thread(self._start, read_journal)

    def _start(self, read_journal: ReadJournal) -> None:
        self._filesystem.make_directory(self._data)
        self._locks = (LockFile.acquire(self._data, self._filesystem),)
        try:
            self._cluster = self._read_cluster()
            directory = OneNodeDirectory.open(self._home, self._filesystem)
            self._directory = self._accepted(directory, read_journal(self._locks))
        except BaseException:
            self._release()
            raise

    def _accepted(self, directory: OneNodeDirectory, found: FoundJournal) -> OneNodeDirectory:
        """Return the directory with the leader epoch of this start. Raises DataDirectoryError."""
        difference = directory.expected.difference(found)
        if difference is None and self._new_journal:
            raise DataDirectoryError(
                f"The journal in {found.directory} is the one that was here before: start without --new-journal."
            )
        if difference is not None and not self._new_journal:
            raise JournalDiffersError(found.directory, difference, f"Nothing was changed. {directory.remedy}")
        if difference is not None:
            log.warning("cluster_state.new_journal", directory=str(found.directory), why=difference)
            directory = directory.with_new_journal()
        if directory.durable_end is None:
            directory = directory.with_journal(found)
        return replace(directory, leader_epoch=max(directory.leader_epoch, found.incarnation) + 1)

    def _read_cluster(self) -> dict[str, object]:
        """Return the content of ``cluster.json`` as this release writes it. Raises DataDirectoryError."""
        cluster_file = self._data / "cluster.json"
        cluster = checked_file.read(self._filesystem, cluster_file, _GIVE_UP_CLUSTER)
        if not cluster:
            cluster = {"cluster_id": new_uuid().hex, "format_version": FORMAT_VERSION}
        if "coordinator" in cluster:
            raise DataDirectoryError(
                f"{self._data} belongs to a cluster, whose brokers agree through ZooKeeper: give its broker "
                "zookeeper.connect, or give this store another directory with --data."
            )
        version = cluster.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION and version not in _OLDER_VERSIONS:
            raise DataDirectoryError(f"{self._data} has format version {version}; this release reads {FORMAT_VERSION}.")
        if cluster.keys() != {"cluster_id", "format_version"}:
            raise checked_file.damaged(cluster_file, _GIVE_UP_CLUSTER)
        others = [name for name in brokers_of(self._data, self._filesystem) if name != str(self._broker_id)]
        if others:
            raise DataDirectoryError(
                f"{self._data} belongs to broker {others[0]}, not to {self._broker_id}: set broker.id to {others[0]}."
            )
        return {**cluster, "format_version": FORMAT_VERSION}

    async def stop(self) -> None:
        self._release()

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    @property
    def controller_id(self) -> int:
        return self._broker_id

    @property
    def has_lease(self) -> bool:
        return True  # the locks decide who leads

    async def find_leaders(self, topics: Sequence[KnownTopic]) -> None:
        assert self._directory is not None
        # The broker's own directory may have been lost, so the tables' epochs also count.
        above = max((epoch for topic in topics for epoch in topic.leader_epochs), default=0)
        epoch = max(self._directory.leader_epoch, above + 1)
        self._directory = replace(self._directory, leader_epoch=epoch)
        await asyncio.to_thread(self._write_files, self._directory)
        self._producer_ids_begin = self._next_producer_id = first_producer_id(epoch)
        # All partitions have one epoch, that of this start.
        self._led = PartitionState(self._broker_id, epoch, (self._broker_id,), (self._broker_id,))
        for topic in topics:
            self.set_partitions(topic)

    def listen(self, listener: PartitionListener) -> None:
        self._listeners.append(listener)
        for topic_id, count in list(self._partitions.items()):
            for partition in range(count):
                listener(topic_id, partition, self._led)

    def set_partitions(self, topic: KnownTopic) -> None:
        topic_id, count = topic.topic_id, len(topic.leader_epochs)
        before = self._partitions.get(topic_id, 0)
        self._partitions[topic_id] = max(before, count)
        for partition in range(before, count):
            for listener in self._listeners:
                listener(topic_id, partition, self._led)

    def listen_to_brokers(self, listener: Callable[[], None]) -> None: ...

    def may_join(self, broker_id: int, broker_epoch: int) -> bool:  # noqa: ARG002
        return False

    def listen_to_topics(self, listener: TopicListener) -> None:
        """Do nothing: no other broker makes topics."""

    def registered_topics(self) -> Sequence[str]:
        return ()

    def registered_topic(self, name: str) -> RegisteredTopic | None:  # noqa: ARG002
        return None

    async def refresh_topics(self, names: Collection[str]) -> None:
        """Do nothing: no other broker makes topics."""

    def is_gone(self, topic_id: UUID) -> bool:  # noqa: ARG002
        return False  # the catalogue keeps the ids of deleted topics

    def on_election(self, prepare: Callable[[], Awaitable[None]]) -> None:
        """Do nothing: it is the controller from its start on, and gets all tables then."""

    async def table_changed(self, topic_id: UUID) -> None:
        """Do nothing: no other broker reads the table."""

    async def mark_deleting(self, topic_id: UUID) -> None:
        """Do nothing: this broker leads all partitions, and deletes them itself."""

    def forget_topic(self, topic_id: UUID) -> None:
        self._partitions.pop(topic_id, None)

    def _write_files(self, directory: OneNodeDirectory) -> None:
        cluster_file = self._data / "cluster.json"
        if checked_file.read(self._filesystem, cluster_file, _GIVE_UP_CLUSTER) != self._cluster:
            checked_file.write(self._filesystem, cluster_file, self._cluster)
        directory.write(self._home, self._filesystem)
        # An interrupted migration to a cluster has left it; the next one begins from ``broker.json``.
        if self._filesystem.exists(stale := self._home / META):
            self._filesystem.unlink(stale)
            self._filesystem.sync_directory(self._home)

    @property
    def journal_record(self) -> DirectoryRecord:
        assert self._directory is not None
        return self._directory.record(self._home, self._filesystem)

    @property
    def may_lack_frames(self) -> bool:
        """Return False: a store of one node quarantines a partition that lacks offsets, because it has no copy."""
        return False

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        return self._led if partition < self._partitions.get(topic_id, 0) else NO_PARTITION

    async def leads_still(self, topic_id: UUID, partition: int, leader_epoch: int) -> bool:  # noqa: ARG002
        return True

    async def alter_partition(
        self,
        topic_id: UUID,
        partition: int,
        seen: PartitionState,  # noqa: ARG002
        in_sync_replicas: Sequence[int],
        *,
        broker_epochs: Mapping[int, int],  # noqa: ARG002
        recovering: bool = False,
    ) -> PartitionState:
        state = self.partition_state(topic_id, partition)
        if tuple(in_sync_replicas) != state.in_sync_replicas or recovering:
            raise IneligibleReplicaError(f"Broker {self._broker_id} is the only replica there can be on one node.")
        return state

    async def elect_leaders(
        self,
        election: ElectionType,  # noqa: ARG002
        partitions: Mapping[str, Collection[int]] | None = None,
    ) -> Elected:
        not_needed = ElectionNotNeededError(f"Broker {self._broker_id} leads everything: there is no other one.")
        return {(topic, number): not_needed for topic, numbers in (partitions or {}).items() for number in numbers}

    async def reassign(self, topic: str, targets: Mapping[int, Sequence[int] | None]) -> None:
        for number, replicas in targets.items():
            if replicas is None:
                raise NoReassignmentInProgressError(f"The partition {topic}-{number} is not being reassigned.")
            if tuple(replicas) != (self._broker_id,):
                raise InvalidReplicaAssignmentError(
                    f"The partition {topic}-{number} is on broker {self._broker_id}: there is no other one."
                )

    @contextlib.asynccontextmanager
    async def table_lock(self, topic: str) -> AsyncIterator[None]:  # noqa: ARG002
        yield  # the lock of the data directory keeps others away

    async def set_offline(self, offline: Mapping[str, Sequence[int]]) -> None:
        """Do nothing: no other broker can lead."""

    def replicas_here(self) -> Mapping[str, Sequence[int]]:
        return {}

    async def hand_over(self, timeout_s: float) -> bool:  # noqa: ARG002
        return True  # there is no other broker

    @property
    def producer_ids_begin(self) -> int:
        return self._producer_ids_begin

    async def new_producer_id(self) -> int:
        # Nothing is written: the id contains the leader epoch, which no other start has.
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id

    def is_issued(self, producer_id: int) -> bool:
        return 0 <= producer_id < self._next_producer_id

    async def refresh_producer_ids(self) -> None:
        """Do nothing: no other broker gives ids."""


def brokers_of(data: Path, filesystem: FileSystem) -> list[str]:
    """Return the ids of the brokers that have used ``data``. A directory with lock files alone comes from a refused
    start; an empty one may be a mount point.
    """

    def is_used(path: Path) -> bool:
        if not filesystem.is_directory(path):
            return path.name != NAME
        names = filesystem.names(path)
        return not names or any(is_used(path / name) for name in names)

    homes = homes_of(data, filesystem)
    return [home.name for home in homes if any(is_used(home / name) for name in filesystem.names(home))]


def home_of(data: Path, broker_id: int) -> Path:
    """Return the log directory of a store of one node."""
    return data / "brokers" / str(broker_id)
