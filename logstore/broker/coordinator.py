"""Who leads a partition, with which epoch, and what the cluster is called.

``Coordinator`` is the seam: ``EmbeddedCoordinator`` keeps one node's answers in two small files and needs no other
process.
"""

import json
import uuid
from pathlib import Path
from typing import Protocol

from logstore.crc32c import crc32c
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem
from logstore.records.batch_identity import first_producer_id

#: Layout of the data directory; raised when an older release could not read it.
FORMAT_VERSION = 1


_CHECKSUM = "crc32c"
_GIVE_UP_CLUSTER = "remove it: the cluster then gets a new id"
_GIVE_UP_BROKER = "remove it: the next leader epoch is then above those in the tables"


class Coordinator(Protocol):
    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    def elect(self, *, above: int) -> int:
        """Become leader; the epoch to lead with, higher than ``above`` and than that of any leader before."""
        ...

    def new_producer_id(self) -> int:
        """An id for an idempotent producer that nobody had before or gets later, higher than all before."""
        ...

    def is_issued(self, producer_id: int) -> bool:
        """Whether ``producer_id`` may be somebody's."""
        ...

    def in_sync_replicas(self) -> tuple[int, ...]:
        """Broker ids whose journals hold all that is acknowledged, the leader first."""
        ...


class EmbeddedCoordinator:
    """One broker leads everything. Its leader epoch counts its starts, so that each start fences the one before.

    Files: ``<data>/cluster.json`` (cluster id, format version), ``<data>/brokers/<id>/broker.json`` (leader epoch),
    each with a checksum of what it says. Raises DataDirectoryError for a directory of another format, of another broker
    (whose journal may hold what nobody else would see), or with a file that is not what was written.
    """

    def __init__(self, data: Path, broker_id: int, filesystem: FileSystem) -> None:
        self._broker_id = broker_id
        cluster_file = data / "cluster.json"
        cluster = _read(cluster_file, _GIVE_UP_CLUSTER)
        if not cluster:
            cluster = {"cluster_id": uuid.uuid4().hex, "format_version": FORMAT_VERSION}
            filesystem.write_atomically(cluster_file, _encode(cluster))
        if cluster.get("format_version", FORMAT_VERSION) != FORMAT_VERSION:
            raise DataDirectoryError(
                f"{data} has format version {cluster['format_version']}; this release reads {FORMAT_VERSION}."
            )
        if cluster.keys() != {"cluster_id", "format_version"}:
            raise _damaged(cluster_file, _GIVE_UP_CLUSTER)
        others = sorted(p.name for p in (data / "brokers").glob("*/") if p.name != str(broker_id))
        if others:
            raise DataDirectoryError(
                f"{data} belongs to broker {others[0]}, not to {broker_id}: set broker.id to {others[0]}."
            )
        self._cluster_id = str(cluster["cluster_id"])
        self._broker_file = data / "brokers" / str(broker_id) / "broker.json"
        self._filesystem = filesystem
        self._next_producer_id = 0

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def broker_id(self) -> int:
        return self._broker_id

    def elect(self, *, above: int) -> int:
        broker = _read(self._broker_file, _GIVE_UP_BROKER) or {"leader_epoch": 0}
        last = broker.get("leader_epoch")
        if not isinstance(last, int) or len(broker) > 1:
            raise _damaged(self._broker_file, _GIVE_UP_BROKER)
        leader_epoch = max(last, above) + 1
        self._filesystem.write_atomically(self._broker_file, _encode({"leader_epoch": leader_epoch}))
        self._next_producer_id = first_producer_id(leader_epoch)
        return leader_epoch

    def new_producer_id(self) -> int:
        # No write of its own: no other start has this leader epoch.
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id

    def is_issued(self, producer_id: int) -> bool:
        return 0 <= producer_id < self._next_producer_id

    def in_sync_replicas(self) -> tuple[int, ...]:
        return (self._broker_id,)


def _encode(content: dict[str, object]) -> bytes:
    return json.dumps({**content, _CHECKSUM: _checksum(content)}).encode()


def _checksum(content: dict[str, object]) -> str:
    return f"{crc32c(json.dumps(content, sort_keys=True).encode()):08x}"


def _read(path: Path, give_up: str) -> dict[str, object]:
    """Nothing if the file is not there. Files of the first releases have no checksum."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _damaged(path, give_up) from error
    if not isinstance(content, dict):
        raise _damaged(path, give_up)
    stored = content.pop(_CHECKSUM, None)
    if not content or stored not in {None, _checksum(content)}:
        raise _damaged(path, give_up)
    return content


def _damaged(path: Path, give_up: str) -> DataDirectoryError:
    return DataDirectoryError(f"{path} is damaged: it is not what was written. Restore it from a backup, or {give_up}.")
