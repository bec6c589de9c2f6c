"""The file beside a broker's journal: its identity, and up to where the journal was durable.

A broker of a cluster has ``<log directory>/meta.json``: its cluster, its broker, and the number of its starts. The
incarnation rises with every start, first here and then in ZooKeeper: a directory whose incarnation is below ZooKeeper's
is an old image of the disk, and lacks records (C12). One node has ``broker.json`` in the same place, whose leader epoch
counts the starts. Both have the directory id that is also in the head of each journal file, and a position up to which
the journal was durable (``ExpectedJournal``), which reveals an image of the journal alone. Each file has a checksum of
its content.
"""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID

from logstore.cluster import checked_file
from logstore.entropy import new_uuid
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.journal.errors import JournalDiffersError
from logstore.journal.identity import ExpectedJournal, FoundJournal, JournalIdentity

#: The file of a broker of a cluster, and that of one node.
META: Final = "meta.json"
BROKER: Final = "broker.json"
_GIVE_UP_META: Final = "remove it: the broker then leaves its ISRs, and copies its partitions from their leaders"
_GIVE_UP_BROKER: Final = "remove it: the next leader epoch is then above those in the tables"
_FORMER_IDS: Final = "former_directory_ids"
#: The former ids that are kept of a log directory, newest last.
_FORMER_IDS_MAX: Final = 100
#: The consequence for a broker of a cluster without its journal.
REPLICAS_ARE_COPIED: Final = (
    "the broker then leaves its ISRs, and copies its partitions from their leaders. Partitions without another replica "
    "stay without a leader until `logstore topic elect-leaders --election-type unclean`."
)


@dataclass(frozen=True, slots=True)
class _Directory(abc.ABC):
    """``durable_end``, ``file_id`` and ``begin`` are those of ``ExpectedJournal``."""

    directory_id: UUID
    durable_end: int | None
    file_id: int | None = field(default=None, kw_only=True)
    begin: int | None = field(default=None, kw_only=True)

    @property
    @abc.abstractmethod
    def starts(self) -> int:
        """A number that rises with each start; 0 before the first."""

    @property
    @abc.abstractmethod
    def remedy(self) -> str:
        """Advice for a journal that is not the expected one."""

    @property
    def expected(self) -> ExpectedJournal:
        return ExpectedJournal(
            self.directory_id, self.durable_end, self.file_id, self.begin, has_started=self.starts > 0
        )

    @abc.abstractmethod
    def record(self, path: Path, filesystem: FileSystem) -> "DirectoryRecord":
        """Return the file in the log directory ``path``, as a journal writes it from now on."""

    def write(self, path: Path, filesystem: FileSystem) -> None:
        """Write the file durably. Raises OSError."""
        filesystem.make_directory(path)
        self.record(path, filesystem).record(self.durable_end, self.file_id, self.begin)

    def with_new_journal(self) -> Self:
        """Return the directory with another identity, of whose journal nothing is known."""
        return replace(self, directory_id=new_uuid(), durable_end=None, file_id=None, begin=None)

    def with_journal(self, found: FoundJournal) -> Self:
        """Return the directory with ``found`` as the expected journal, whatever identity its files have.

        Only the begin of its newest file counts as durable, because the end that a start has read may not be.
        """
        if not found.files:
            return replace(self, durable_end=0, file_id=None, begin=None)
        durable_end, file_id = found.files[-1]
        return replace(self, durable_end=durable_end, file_id=file_id, begin=found.files[0][0])


@dataclass(frozen=True, slots=True)
class LogDirectory(_Directory):
    """The log directory of a broker of a cluster."""

    cluster_id: str
    broker_id: int
    incarnation: int
    #: The ids that the directory had before it was given a new journal.
    former_ids: tuple[UUID, ...] = ()

    @property
    def starts(self) -> int:
        return self.incarnation

    @property
    def remedy(self) -> str:
        return f"Put the journal back before the broker starts. If it starts without: {REPLICAS_ARE_COPIED}"

    def with_new_journal(self) -> Self:
        former_ids = (*self.former_ids, self.directory_id)[-_FORMER_IDS_MAX:]
        return replace(super(LogDirectory, self).with_new_journal(), former_ids=former_ids)

    def is_own(self, found: FoundJournal) -> bool:
        """Return False if another directory wrote the journal: this broker must not write to it."""
        if found.identity is None or self.expected.is_recorded(found):
            return True
        return self.starts == 0 or found.identity.directory_id in (self.directory_id, *self.former_ids)

    @classmethod
    def read(cls, path: Path, filesystem: FileSystem) -> "LogDirectory | None":
        """Return the directory's identity, or None for a new directory. Raises DataDirectoryError for a damaged
        file.
        """
        content = checked_file.read(filesystem, path / META, _GIVE_UP_META)
        if not content:
            return None
        match content:
            case {
                "cluster_id": str(cluster_id),
                "broker_id": int(broker_id),
                "directory_id": str(directory_id),
                "incarnation": int(incarnation),
            }:
                former_ids = _former_ids(content)
                return cls(
                    UUID(directory_id),
                    cluster_id=cluster_id,
                    broker_id=broker_id,
                    incarnation=incarnation,
                    former_ids=former_ids,
                    **_known_journal(content),
                )
            case _:
                raise checked_file.damaged(path / META, _GIVE_UP_META)

    @classmethod
    def open(cls, path: Path, filesystem: FileSystem, cluster_id: str, broker_id: int) -> "LogDirectory":
        """Return the identity, a new one for a new directory. Raises DataDirectoryError if it is another broker's
        (C19).
        """
        found = cls.read(path, filesystem)
        if found is None:
            return cls(new_uuid(), None, cluster_id, broker_id, 0)
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
        """Return the directory in its next incarnation, which is above ``above``. It is durable on return. Raises
        OSError.
        """
        next_one = replace(self, incarnation=max(self.incarnation, above) + 1)
        next_one.write(path, filesystem)
        return next_one

    def record(self, path: Path, filesystem: FileSystem) -> "DirectoryRecord":
        content: dict[str, object] = {
            "cluster_id": self.cluster_id,
            "broker_id": self.broker_id,
            "directory_id": str(self.directory_id),
            "incarnation": self.incarnation,
        }
        if self.former_ids:
            content[_FORMER_IDS] = [str(one) for one in self.former_ids]
        identity = JournalIdentity(self.directory_id, self.incarnation)
        return DirectoryRecord(filesystem, path / META, content, identity)


@dataclass(frozen=True, slots=True)
class OneNodeDirectory(_Directory):
    """The log directory of a store of one node. ``leader_epoch`` is that of the last start; 0 before the first."""

    leader_epoch: int

    @property
    def starts(self) -> int:
        return self.leader_epoch

    @property
    def remedy(self) -> str:
        return (
            "Mount its file system or put the journal back, and start again. If it is lost, acknowledged records "
            "that are in no table are lost as well: to continue without them, start once with --new-journal."
        )

    @classmethod
    def open(cls, path: Path, filesystem: FileSystem) -> "OneNodeDirectory":
        """Return the identity, a new one for a new directory. Raises DataDirectoryError for a damaged file."""
        content = checked_file.read(filesystem, path / BROKER, _GIVE_UP_BROKER)
        match content:
            case {"leader_epoch": int(leader_epoch), "directory_id": str(directory_id)}:
                return cls(UUID(directory_id), leader_epoch=leader_epoch, **_known_journal(content))
            case {"leader_epoch": int(leader_epoch)}:  # an earlier release wrote it
                return cls(new_uuid(), None, leader_epoch)
            case _ if content:
                raise checked_file.damaged(path / BROKER, _GIVE_UP_BROKER)
        return cls(new_uuid(), None, 0)

    def record(self, path: Path, filesystem: FileSystem) -> "DirectoryRecord":
        content = {"leader_epoch": self.leader_epoch, "directory_id": str(self.directory_id)}
        identity = JournalIdentity(self.directory_id, self.leader_epoch)
        return DirectoryRecord(filesystem, path / BROKER, content, identity)


class DirectoryRecord:
    """A ``JournalRecord``: the file beside a journal, for one start."""

    def __init__(
        self, filesystem: FileSystem, path: Path, content: Mapping[str, object], identity: JournalIdentity
    ) -> None:
        self._filesystem = filesystem
        self._path = path
        self._content = content
        self.identity = identity

    def record(self, durable_end: int | None, file_id: int | None, begin: int | None) -> None:
        """Record as ``JournalRecord.record`` does; None leaves a field out."""
        # Readers of JSON may round a number of 64 bits.
        known = {"durable_end": durable_end, "file_id": None if file_id is None else f"{file_id:016x}", "begin": begin}
        content = {**self._content, **{name: value for name, value in known.items() if value is not None}}
        checked_file.write(self._filesystem, self._path, content)


def homes_of(data: Path, filesystem: FileSystem) -> list[Path]:
    """Return the directories of brokers in ``data``, in ascending order. Raises OSError."""
    try:
        names = filesystem.names(data / "brokers")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [home for name in sorted(names) if filesystem.is_directory(home := data / "brokers" / name)]


def read_directory(path: Path, filesystem: FileSystem | None = None) -> LogDirectory | OneNodeDirectory | None:
    """Return the identity beside the journal of a log directory; None without one. Raises DataDirectoryError."""
    filesystem = filesystem or local_filesystem()
    return LogDirectory.read(path, filesystem) or _read_one_node(path, filesystem)


def journal_check(path: Path) -> Callable[[FoundJournal], None]:
    """Return a check that compares the journal in the log directory ``path`` with the file beside it now.

    The check raises JournalDiffersError; the function itself raises DataDirectoryError.
    """
    directory = read_directory(path)

    def check(found: FoundJournal) -> None:
        if directory is None:
            return
        expected, now = directory.expected, read_directory(path)
        if now is not None and now.begin != directory.begin:  # a running broker has freed files meanwhile
            expected = replace(expected, file_id=None, begin=None)
        if (difference := expected.difference(found)) is not None:
            raise JournalDiffersError(found.directory, difference, directory.remedy)

    return check


def give_up_journal(path: Path, filesystem: FileSystem) -> None:
    """Give a log directory another identity, because something other than a broker changes its journal. In a cluster
    the broker leaves its ISRs; one node takes the journal as it is. Raises DataDirectoryError and OSError.
    """
    for directory in (LogDirectory.read(path, filesystem), _read_one_node(path, filesystem)):
        if directory is not None:
            directory.with_new_journal().write(path, filesystem)


def accept_journal(path: Path, filesystem: FileSystem, found: FoundJournal) -> None:
    """Record the journal that ``give_up_journal`` has left, so that the next start misses it if it is lost. It must be
    durable up to its end. Raises DataDirectoryError and OSError.
    """
    for directory in (LogDirectory.read(path, filesystem), _read_one_node(path, filesystem)):
        if directory is not None:
            replace(directory.with_journal(found), durable_end=found.end).write(path, filesystem)


def _read_one_node(path: Path, filesystem: FileSystem) -> OneNodeDirectory | None:
    return OneNodeDirectory.open(path, filesystem) if filesystem.exists(path / BROKER) else None


def _known_journal(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that describe the journal, None for those that an earlier release did not write."""
    file_id = content.get("file_id")
    return {
        "durable_end": content.get("durable_end"),
        "file_id": None if file_id is None else int(file_id, 16),
        "begin": content.get("begin"),
    }


def _former_ids(content: Mapping[str, Any]) -> tuple[UUID, ...]:
    return tuple(UUID(one) for one in content.get(_FORMER_IDS, ()))
