"""The identity of a broker's log directory: its cluster, its broker, and how many starts it has seen.

``<log directory>/meta.json``, with a checksum. The incarnation rises with every start, here first and in ZooKeeper
after that: a directory whose incarnation is below ZooKeeper's is an old image of the disk, and lacks records (C12).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from logstore.cluster import checked_file
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem

#: The file with the identity.
META: Final = "meta.json"
_GIVE_UP: Final = "remove it: the broker then leaves its ISRs, and copies its partitions from their leaders"


@dataclass(frozen=True, slots=True)
class LogDirectory:
    cluster_id: str
    broker_id: int
    directory_id: UUID
    incarnation: int

    @classmethod
    def read(cls, path: Path) -> "LogDirectory | None":
        """None for a new directory. DataDirectoryError for a damaged file."""
        content = checked_file.read(path / META, _GIVE_UP)
        if not content:
            return None
        match content:
            case {
                "cluster_id": str(cluster_id),
                "broker_id": int(broker_id),
                "directory_id": str(directory_id),
                "incarnation": int(incarnation),
            }:
                return cls(cluster_id, broker_id, UUID(directory_id), incarnation)
            case _:
                raise checked_file.damaged(path / META, _GIVE_UP)

    @classmethod
    def open(cls, path: Path, cluster_id: str, broker_id: int) -> "LogDirectory":
        """The directory's identity, a new one for a new directory. DataDirectoryError for another broker's (C19)."""
        found = cls.read(path)
        if found is None:
            return cls(cluster_id, broker_id, uuid4(), 0)
        if found.cluster_id != cluster_id:
            raise DataDirectoryError(
                f"{path} is a log directory of the cluster {found.cluster_id}, and ZooKeeper's is {cluster_id}: "
                "correct zookeeper.connect, or give the broker another directory."
            )
        if found.broker_id != broker_id:
            raise DataDirectoryError(
                f"{path} is the log directory of broker {found.broker_id}, not of {broker_id}: set broker.id to "
                f"{found.broker_id}, or give the broker another directory."
            )
        return found

    def begun(self, path: Path, filesystem: FileSystem, above: int) -> "LogDirectory":
        """The next incarnation, above ``above`` too; it is durable on return. OSError."""
        next_one = replace(self, incarnation=max(self.incarnation, above) + 1)
        content = {
            "cluster_id": next_one.cluster_id,
            "broker_id": next_one.broker_id,
            "directory_id": str(next_one.directory_id),
            "incarnation": next_one.incarnation,
        }
        filesystem.make_directory(path)
        checked_file.write(filesystem, path / META, content)
        return next_one
