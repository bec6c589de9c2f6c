"""Who leads a partition, with which epoch, and what the cluster is called.

``Coordinator`` is the seam: ``EmbeddedCoordinator`` keeps one node's answers in two small files and needs no other
process.
"""

import json
import uuid
from pathlib import Path
from typing import Protocol

from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem

#: Layout of the data directory; raised when an older release could not read it.
FORMAT_VERSION = 1


class Coordinator(Protocol):
    @property
    def cluster_id(self) -> str: ...

    @property
    def broker_id(self) -> int: ...

    def elect(self, *, above: int) -> int:
        """Become leader; the epoch to lead with, higher than ``above`` and than that of any leader before."""
        ...

    def in_sync_replicas(self) -> tuple[int, ...]:
        """Broker ids whose journals hold all that is acknowledged, the leader first."""
        ...


class EmbeddedCoordinator:
    """One broker leads everything. Its leader epoch counts its starts, so that each start fences the one before.

    Files: ``<data>/cluster.json`` (cluster id, format version), ``<data>/brokers/<id>/broker.json`` (leader epoch).
    Raises DataDirectoryError for a directory of another format, of another broker (whose journal may hold what nobody
    else would see), or with a file that cannot be read.
    """

    def __init__(self, data: Path, broker_id: int, filesystem: FileSystem) -> None:
        self._broker_id = broker_id
        cluster_file = data / "cluster.json"
        cluster = _read(cluster_file)
        if not cluster:
            cluster = {"cluster_id": uuid.uuid4().hex, "format_version": FORMAT_VERSION}
            filesystem.write_atomically(cluster_file, json.dumps(cluster).encode())
        if cluster.get("format_version") != FORMAT_VERSION:
            raise DataDirectoryError(
                f"{data} has format version {cluster.get('format_version')}; this release reads {FORMAT_VERSION}."
            )
        others = sorted(p.name for p in (data / "brokers").glob("*/") if p.name != str(broker_id))
        if others:
            raise DataDirectoryError(
                f"{data} belongs to broker {others[0]}, not to {broker_id}: set broker.id to {others[0]}."
            )
        self._cluster_id = str(cluster["cluster_id"])
        self._broker_file = data / "brokers" / str(broker_id) / "broker.json"
        self._filesystem = filesystem

    @property
    def cluster_id(self) -> str:
        return self._cluster_id

    @property
    def broker_id(self) -> int:
        return self._broker_id

    def elect(self, *, above: int) -> int:
        last = int(str(_read(self._broker_file).get("leader_epoch", 0)))
        leader_epoch = max(last, above) + 1
        self._filesystem.write_atomically(self._broker_file, json.dumps({"leader_epoch": leader_epoch}).encode())
        return leader_epoch

    def in_sync_replicas(self) -> tuple[int, ...]:
        return (self._broker_id,)


def _read(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataDirectoryError(f"{path} is not readable as JSON: restore it from a backup.") from error
    if not isinstance(content, dict):
        raise DataDirectoryError(f"{path} does not hold a JSON object: restore it from a backup.")
    return content
