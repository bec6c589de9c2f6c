"""``<data>/cluster``: files that a cluster on this machine keeps for its next start, and for people.

<data>/cluster/lock               held while the cluster runs
<data>/cluster/processes.json     the ports and the ZooKeeper, kept over restarts
<data>/cluster/control            a socket, by which a command asks for the start of a broker or ZooKeeper
<data>/cluster/broker-<id>.log    the log of a broker
<data>/cluster/zookeeper          the data and the log of the cluster's ZooKeeper
"""

import contextlib
from collections.abc import Container
from pathlib import Path
from typing import Final

import msgspec

from logstore.cluster import checked_file
from logstore.cluster.embedded_cluster_state import brokers_of
from logstore.errors import LogStoreError
from logstore.filesystem import local_filesystem

_GIVE_UP: Final = "remove it: a cluster then gets a new id"


class ClusterProcessesError(LogStoreError):
    """The processes cannot be run as asked. The message says what to change."""


class Directory:
    """The paths below a data directory."""

    def __init__(self, data: Path) -> None:
        self.data = data.absolute()
        self.home = self.data / "cluster"
        self.record = self.home / "processes.json"
        self.control = self.home / "control"
        self.zookeeper = self.home / "zookeeper"

    def log(self, broker_id: int) -> Path:
        return self.home / f"broker-{broker_id}.log"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """The ZooKeeper and the ports of a cluster. ``zookeeper`` is the user's (``zookeeper.connect``), or None;
    ``zookeeper_port`` is for the cluster's own. ``ports`` has every broker that ever ran here; ``kafka_ports`` has the
    chosen ports for Kafka's clients.
    """

    zookeeper: str | None = None
    zookeeper_port: int | None = None
    ports: dict[int, int] = {}
    kafka_ports: dict[int, int] = {}

    @classmethod
    def read(cls, directory: Directory) -> "Record | None":
        """Return the record; None if no cluster has run there. Raises ClusterProcessesError."""
        try:
            return msgspec.json.decode(directory.record.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ClusterProcessesError(
                f"{directory.record} is not what was written ({error}): put its former content back, or remove it; "
                "the brokers then get other ports."
            ) from None

    def write(self, directory: Directory) -> None:
        """Write the record atomically. Raises OSError."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=2)
        local_filesystem().write_atomically(directory.record, content + b"\n")


def broker_ids(directory: Directory, count: int) -> range:
    """Return ``count`` ids. The first is the first one of the last start, else that of a store of one node, else 1.

    Raises ClusterProcessesError and DataDirectoryError.
    """
    record = Record.read(directory)
    first = min(record.ports, default=None) if record is not None else None
    if first is None:
        first = one_node(directory)
    first = 1 if first is None else first
    return range(first, first + count)


def one_node(directory: Directory) -> int | None:
    """Return the broker id if the data directory belongs to a store of one node, else None.

    Raises DataDirectoryError for a damaged file.
    """
    content: dict[str, object] = {}
    with contextlib.suppress(NotADirectoryError):
        content = checked_file.read(local_filesystem(), directory.data / "cluster.json", _GIVE_UP)
    if not content or "coordinator" in content:
        return None
    return min((int(name) for name in brokers_of(directory.data, local_filesystem()) if name.isdecimal()), default=None)


def check_directory(
    directory: Directory, record: Record | None, zookeeper: str | None, broker_ids: Container[int]
) -> None:
    """Check that the data directory is new, or belongs to a store of one node in ``broker_ids``, or to a cluster whose
    ZooKeeper is known. Raises ClusterProcessesError otherwise.
    """
    content: dict[str, object] = {}
    with contextlib.suppress(NotADirectoryError):
        content = checked_file.read(local_filesystem(), directory.data / "cluster.json", _GIVE_UP)
    if directory.data.exists() and not directory.data.is_dir():
        raise ClusterProcessesError(f"{directory.data} is no directory: name one with --data.")
    if (alone := one_node(directory)) is not None and alone not in broker_ids:
        raise ClusterProcessesError(
            f"{directory.data} belongs to a store of one node, broker {alone}: set broker.id to {alone}, so that it is "
            "the first of the cluster."
        )
    if "coordinator" in content and record is None and zookeeper is None:
        raise ClusterProcessesError(
            f"{directory.data} belongs to a cluster whose ZooKeeper was not started here: name it with --zookeeper."
        )
