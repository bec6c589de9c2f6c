"""The coordinator: the leader of each partition with its epoch, the replicas, and the id of the cluster.

``Coordinator`` is the seam: a view of all partitions, and events when it changes. A broker tells which topics there
are, and becomes a partition's leader when an event says so, and only then. Methods that may have to ask other processes
are asynchronous; the others answer from the coordinator's own view. ``EmbeddedCoordinator`` keeps one node's answers in
two small files, needs no other process, and emits the same events as any other.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

from logstore.crc32c import crc32c
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem
from logstore.lock_file import LockFile
from logstore.records.batch_identity import first_producer_id

#: Layout of the data directory; raised when an older release could not read it.
FORMAT_VERSION = 2
#: Version 1 had segments whose names tell no end offset. Its releases would take those of version 2 for foreign files.
_OLDER_VERSIONS = (1,)


_CHECKSUM = "crc32c"
_GIVE_UP_CLUSTER = "remove it: the cluster then gets a new id"
_GIVE_UP_BROKER = "remove it: the next leader epoch is then above those in the tables"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Kafka's partition state: broker ids of the leader, all replicas, and those with all acknowledged records."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


_NO_LEADER = PartitionState(-1, -1, (), ())


#: Told that a partition has a leader, or another one, or other replicas in sync: topic id, partition, its new state.
#: Called on the event loop, in the order of the changes of a partition.
PartitionListener = Callable[[UUID, int, PartitionState], None]


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
    def locks(self) -> Sequence[LockFile]:
        """The locks without which this process must acknowledge nothing."""
        ...

    async def start(self) -> None:
        """Join the cluster. DataDirectoryError if the data directory is another process's, or not what was written."""
        ...

    async def stop(self) -> None:
        """Leave the cluster; another process may take the place."""
        ...

    async def find_leaders(self, topics: Mapping[UUID, Sequence[int]]) -> None:
        """The topics that there are at the start: of each, by partition, the last leader epoch that is known.

        Each partition gets a leader, now or later, with an epoch above that one and above that of any leader before.
        """
        ...

    def listen(self, listener: PartitionListener) -> None:
        """Tell ``listener`` of each partition that has a leader now, and of each change from now on."""
        ...

    def set_partitions(self, topic_id: UUID, count: int) -> None:
        """The topic was made, or has grown, to ``count`` partitions: the new ones get a leader, now or later."""
        ...

    def forget_topic(self, topic_id: UUID) -> None:
        """The topic was deleted."""
        ...

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        """The leader (-1: none) and the replicas of the partition."""
        ...

    @property
    def producer_ids_begin(self) -> int:
        """Ids of producers below this one may have been given before the start; 0 until leaders are found."""
        ...

    async def new_producer_id(self) -> int:
        """A new id for an idempotent producer, higher than all before; it is given once."""
        ...

    def is_issued(self, producer_id: int) -> bool:
        """Whether ``producer_id`` may have been given to a producer."""
        ...


class EmbeddedCoordinator:
    """One broker leads everything. Its leader epoch counts its starts, so that each start fences the one before.

    It holds the lock of the data directory. Files: ``<data>/cluster.json`` (cluster id, format version),
    ``<data>/brokers/<id>/broker.json`` (leader epoch), each with a checksum of its content. ``start`` raises
    DataDirectoryError for a directory of another format, of another broker (whose journal may hold records that this
    one would not read), or with a file that is not what was written.
    """

    def __init__(self, data: Path, broker_id: int, filesystem: FileSystem) -> None:
        self._data = data
        self._broker_id = broker_id
        self._filesystem = filesystem
        self._broker_file = data / "brokers" / str(broker_id) / "broker.json"
        self._locks: tuple[LockFile, ...] = ()
        self._cluster_id = ""
        #: Of this start.
        self._leader_epoch = 0
        #: The state of every partition that is known.
        self._led = _NO_LEADER
        self._partitions: dict[UUID, int] = {}
        self._listeners: list[PartitionListener] = []
        self._producer_ids_begin = self._next_producer_id = 0

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def broker_id(self) -> int:
        return self._broker_id

    @property
    def brokers(self) -> Sequence[int]:
        return (self._broker_id,)

    @property
    def locks(self) -> Sequence[LockFile]:
        return self._locks

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        self._filesystem.make_directory(self._data)
        self._locks = (LockFile.acquire(self._data),)
        try:
            self._cluster_id = self._read_cluster_id()
            self._filesystem.make_directory(self._broker_file.parent)
            self._leader_epoch = self._write_next_epoch(above=0)
        except BaseException:
            self._release()
            raise

    def _read_cluster_id(self) -> str:
        cluster_file = self._data / "cluster.json"
        cluster = _read(cluster_file, _GIVE_UP_CLUSTER)
        if not cluster:
            cluster = {"cluster_id": uuid.uuid4().hex, "format_version": FORMAT_VERSION}
            self._filesystem.write_atomically(cluster_file, _encode(cluster))
        version = cluster.get("format_version", FORMAT_VERSION)
        if version != FORMAT_VERSION and version not in _OLDER_VERSIONS:
            raise DataDirectoryError(f"{self._data} has format version {version}; this release reads {FORMAT_VERSION}.")
        if cluster.keys() != {"cluster_id", "format_version"}:
            raise _damaged(cluster_file, _GIVE_UP_CLUSTER)
        others = sorted(p.name for p in (self._data / "brokers").glob("*/") if p.name != str(self._broker_id))
        if others:
            raise DataDirectoryError(
                f"{self._data} belongs to broker {others[0]}, not to {self._broker_id}: set broker.id to {others[0]}."
            )
        if version != FORMAT_VERSION:
            self._filesystem.write_atomically(cluster_file, _encode({**cluster, "format_version": FORMAT_VERSION}))
        return str(cluster["cluster_id"])

    async def stop(self) -> None:
        self._release()

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    async def find_leaders(self, topics: Mapping[UUID, Sequence[int]]) -> None:
        above = max((epoch for epochs in topics.values() for epoch in epochs), default=0)
        if above >= self._leader_epoch:  # the broker's own directory was lost
            self._leader_epoch = await asyncio.to_thread(self._write_next_epoch, above)
        epoch = self._leader_epoch
        self._producer_ids_begin = self._next_producer_id = first_producer_id(epoch)
        # One epoch for all: it is that of this start.
        self._led = PartitionState(self._broker_id, epoch, (self._broker_id,), (self._broker_id,))
        for topic_id, epochs in topics.items():
            self.set_partitions(topic_id, len(epochs))

    def listen(self, listener: PartitionListener) -> None:
        self._listeners.append(listener)
        for topic_id, count in list(self._partitions.items()):
            for partition in range(count):
                listener(topic_id, partition, self._led)

    def set_partitions(self, topic_id: UUID, count: int) -> None:
        before = self._partitions.get(topic_id, 0)
        self._partitions[topic_id] = max(before, count)
        for partition in range(before, count):
            for listener in self._listeners:
                listener(topic_id, partition, self._led)

    def forget_topic(self, topic_id: UUID) -> None:
        self._partitions.pop(topic_id, None)

    def _write_next_epoch(self, above: int) -> int:
        broker = _read(self._broker_file, _GIVE_UP_BROKER) or {"leader_epoch": 0}
        last = broker.get("leader_epoch")
        if not isinstance(last, int) or len(broker) > 1:
            raise _damaged(self._broker_file, _GIVE_UP_BROKER)
        leader_epoch = max(last, above) + 1
        self._filesystem.write_atomically(self._broker_file, _encode({"leader_epoch": leader_epoch}))
        return leader_epoch

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        return self._led if partition < self._partitions.get(topic_id, 0) else _NO_LEADER

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


def _encode(content: dict[str, object]) -> bytes:
    return json.dumps({**content, _CHECKSUM: _checksum(content)}).encode()


def _checksum(content: dict[str, object]) -> str:
    return f"{crc32c(json.dumps(content, sort_keys=True).encode()):08x}"


def _read(path: Path, give_up: str) -> dict[str, object]:
    """The content, {} without a file. DataDirectoryError if the file has changed since it was written."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _damaged(path, give_up) from error
    if not isinstance(content, dict):
        raise _damaged(path, give_up)
    stored = content.pop(_CHECKSUM, None)
    if not content or stored != _checksum(content):
        raise _damaged(path, give_up)
    return content


def _damaged(path: Path, give_up: str) -> DataDirectoryError:
    return DataDirectoryError(f"{path} is damaged: it is not what was written. Restore it from a backup, or {give_up}.")
