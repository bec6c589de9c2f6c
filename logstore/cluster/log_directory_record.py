"""``<data>/brokers/<id>/log_directory.json``: the place of a broker's log directory outside ``data`` (``log.dirs``).

Tools that only get the data directory find the broker's journal by it. The broker writes it at each start. The path
belongs to the broker's machine. Another machine has nothing there, or the log directory of another broker: the identity
in it names its broker.
"""

import contextlib
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from logstore.cluster import checked_file
from logstore.cluster.log_directory import BROKER, META, LogDirectory, homes_of
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem, local_filesystem

RECORD: Final = "log_directory.json"
_GIVE_UP: Final = "remove it: the broker writes it when it starts"


@dataclass(frozen=True, slots=True)
class BrokerDirectory:
    """The log directory of a broker. ``out_of_reach`` is the reason why it cannot be read here; None if it can."""

    broker: str
    path: Path
    out_of_reach: str | None = None


def record_log_directory(filesystem: FileSystem, data: Path, broker_id: int, log_directory: Path) -> None:
    """Record where the broker has its log directory; without a record it is in ``data``. Raises OSError."""
    home = data / "brokers" / str(broker_id)
    path = filesystem.real_path(log_directory)
    if path == filesystem.real_path(home):
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(home / RECORD)
        return
    filesystem.make_directory(home)
    content = {"log_directory": str(path), "host": socket.gethostname()}
    checked_file.write(filesystem, home / RECORD, content)


def broker_directories(data: Path, named: Sequence[Path] = ()) -> list[BrokerDirectory]:
    """Return the log directories of the brokers of ``data``, for tools: those in it, those recorded there, and those
    that a user has ``named``, each once. A broker whose directory is named is not out of reach.
    """
    filesystem = local_filesystem()
    found: dict[Path, BrokerDirectory] = {}
    out_of_reach: list[BrokerDirectory] = []
    for home in sorted(homes_of(data, filesystem), key=lambda path: (path.name.zfill(12), path.name)):
        if any(filesystem.exists(home / name) for name in ("journal", META, BROKER)):
            found[filesystem.real_path(home)] = BrokerDirectory(home.name, home)
        recorded = _recorded(data, home, filesystem)
        if recorded is not None and recorded.out_of_reach is not None:
            out_of_reach.append(recorded)
        elif recorded is not None:
            found.setdefault(filesystem.real_path(recorded.path), recorded)
    for path in named:
        found.setdefault(filesystem.real_path(path), BrokerDirectory(_broker_of(path, filesystem) or path.name, path))
    known = {_broker_of(path, filesystem) for path in named}
    return [*found.values(), *(one for one in out_of_reach if one.broker not in known)]


def _recorded(data: Path, home: Path, filesystem: FileSystem) -> BrokerDirectory | None:
    """Return the directory that the broker of ``home`` has recorded; None without a record."""
    path = home
    try:
        content = checked_file.read(filesystem, home / RECORD, _GIVE_UP)
        if not content:
            return None
        path, host = Path(str(content.get("log_directory"))), content.get("host")
        identity = LogDirectory.read(path, filesystem)
        cluster_id = checked_file.read(filesystem, data / "cluster.json", "restore it").get("cluster_id")
    except DataDirectoryError as error:
        return BrokerDirectory(
            home.name, home, f"the log directory of broker {home.name} is not known: {error.message}"
        )
    except OSError as error:
        return BrokerDirectory(home.name, path, f"the log directory of broker {home.name} cannot be read: {error}")
    if identity is not None and (str(identity.broker_id), identity.cluster_id) == (home.name, cluster_id):
        return BrokerDirectory(home.name, path)
    return BrokerDirectory(
        home.name, path, f"broker {home.name} has its log directory on {host} ({path}): here it is not"
    )


def _broker_of(path: Path, filesystem: FileSystem) -> str | None:
    with contextlib.suppress(DataDirectoryError, OSError):
        identity = LogDirectory.read(path, filesystem)
        return None if identity is None else str(identity.broker_id)
    return None
