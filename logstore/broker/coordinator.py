"""The coordinator: the leader of each partition with its epoch, the replicas, and the id of the cluster.

``Coordinator`` is the seam. Methods that may have to ask other processes are asynchronous; the others answer from the
coordinator's own view. ``EmbeddedCoordinator`` keeps one node's answers in two small files and needs no other process.
"""

import asyncio
import json
import uuid
from collections.abc import Sequence
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
FORMAT_VERSION = 1


_CHECKSUM = "crc32c"
_GIVE_UP_CLUSTER = "remove it: the cluster then gets a new id"
_GIVE_UP_BROKER = "remove it: the next leader epoch is then above those in the tables"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Kafka's partition state: broker ids of the leader, of all replicas, and of those that hold all that is
    acknowledged.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync_replicas: tuple[int, ...]


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

    async def elect(self, *, above: int) -> int:
        """Become leader. Returns the leader epoch, higher than ``above`` and than that of any leader before."""
        ...

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:
        """The leader and the replicas of the partition."""
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
    ``<data>/brokers/<id>/broker.json`` (leader epoch), each with a checksum of what it says. ``start`` raises
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
        self._leader_epoch = 0
        self._next_producer_id = 0

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
        except BaseException:
            self._release()
            raise

    def _read_cluster_id(self) -> str:
        cluster_file = self._data / "cluster.json"
        cluster = _read(cluster_file, _GIVE_UP_CLUSTER)
        if not cluster:
            cluster = {"cluster_id": uuid.uuid4().hex, "format_version": FORMAT_VERSION}
            self._filesystem.write_atomically(cluster_file, _encode(cluster))
        if cluster.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
            raise DataDirectoryError(
                f"{self._data} has format version {cluster['format_version']}; this release reads {FORMAT_VERSION}."
            )
        if cluster.keys() != {"cluster_id", "format_version"}:
            raise _damaged(cluster_file, _GIVE_UP_CLUSTER)
        others = sorted(p.name for p in (self._data / "brokers").glob("*/") if p.name != str(self._broker_id))
        if others:
            raise DataDirectoryError(
                f"{self._data} belongs to broker {others[0]}, not to {self._broker_id}: set broker.id to {others[0]}."
            )
        return str(cluster["cluster_id"])

    async def stop(self) -> None:
        self._release()

    def _release(self) -> None:
        for lock in self._locks:
            lock.release()

    async def elect(self, *, above: int) -> int:
        self._leader_epoch = await asyncio.to_thread(self._write_next_epoch, above)
        self._next_producer_id = first_producer_id(self._leader_epoch)
        return self._leader_epoch

    def _write_next_epoch(self, above: int) -> int:
        broker = _read(self._broker_file, _GIVE_UP_BROKER) or {"leader_epoch": 0}
        last = broker.get("leader_epoch")
        if not isinstance(last, int) or len(broker) > 1:
            raise _damaged(self._broker_file, _GIVE_UP_BROKER)
        leader_epoch = max(last, above) + 1
        self._filesystem.write_atomically(self._broker_file, _encode({"leader_epoch": leader_epoch}))
        return leader_epoch

    def partition_state(self, topic_id: UUID, partition: int) -> PartitionState:  # noqa: ARG002 - all have this one
        return PartitionState(self._broker_id, self._leader_epoch, (self._broker_id,), (self._broker_id,))

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
    """The content, {} without a file. DataDirectoryError if it is not what was written."""
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
