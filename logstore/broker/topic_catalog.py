"""The catalogue of topics: one directory with a Delta table each under ``<data>/topics``, and nothing else.

Invariants: no two names differ only by case or by ``.`` and ``_``; a topic appears and disappears by one rename, so a
crash leaves it whole or absent. A deleted topic is moved to ``<data>/deleted/<topic id>``, and its files go. The empty
directory stays as long as the journal has records of the topic: it tells that the topic was deleted, not lost.
"""

import contextlib
import errno
import shutil
import uuid
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    InvalidTopicError,
    LogStoreError,
    QuarantinedError,
    StorageError,
    TopicExistsError,
    storage_error,
)
from logstore.filesystem import FileSystem
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.names import is_legal_name
from logstore.segments.layout import layout_of

log = structlog.stdlib.get_logger(__name__)

# Topics that are opened at a time: delta-rs and disk reads release the GIL.
_OPENERS = 4


# Errors of the disk or the process, not of the table: another start may open it.
_NOT_THE_TOPICS = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})

# A directory of that name makes Delta readers take the one above for a table.
_DELTAS_NAMES = frozenset({"_delta_log", "_delta_index", "_change_data", "_symlink_format_manifest", "_sidecars"})


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError unless a user may create a topic of that name."""
    if not is_legal_name(name, TOPIC_NAME_LENGTH_MAX):
        shown = name if len(name) <= TOPIC_NAME_LENGTH_MAX else name[:32] + "..."
        raise InvalidTopicError(
            f"Topic name {shown!r} is not allowed: use 1 to {TOPIC_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - "
            "(but not '.' or '..')."
        )
    if name.lower() in _DELTAS_NAMES:
        raise InvalidTopicError(f"Topic name {name!r} is not allowed: Delta Lake has files of its own under that name.")
    if name.startswith("__"):
        raise InvalidTopicError(f"Topic name {name!r} is not allowed: names that begin with '__' are internal.")


def check_no_collision(name: str, existing: Iterable[str]) -> None:
    """Raise TopicExistsError for the same name, InvalidTopicError for one that a metric or file name would confuse."""
    for other in existing:
        if other == name:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if names_collide(other, name):
            raise InvalidTopicError(
                f"Topic '{name}' collides with the existing '{other}': names may not differ only by case "
                "or by '.' and '_'."
            )


def names_collide(one: str, other: str) -> bool:
    """Whether there cannot be topics of both names at a time."""
    return _folded(one) == _folded(other)


def _folded(name: str) -> str:
    return name.lower().replace(".", "_")


def _same_id(tables: Mapping[str, TopicTable]) -> dict[str, QuarantinedError]:
    """Tables that share a topic id. Each says that it is the original, so none of them is served."""
    by_id: dict[uuid.UUID, list[str]] = {}
    for name, table in tables.items():
        by_id.setdefault(table.latest.topic_id, []).append(name)
    return {
        name: QuarantinedError(
            f"Topic {name!r} is quarantined: the tables of {', '.join(map(repr, names))} have the same id, {topic_id}",
            "Move all but the original out of the directory topics, then restart the store",
        )
        for topic_id, names in by_id.items()
        if len(names) > 1
        for name in names
    }


class TopicCatalog:
    """Blocking; the broker calls it from threads, one change at a time."""

    def __init__(self, data: Path, filesystem: FileSystem) -> None:
        self._topics = data / "topics"
        self._staging = data / "staging"
        self._deleted = data / "deleted"
        self._filesystem = filesystem
        filesystem.make_directory(self._topics)

    def load(self) -> tuple[dict[str, TopicTable], dict[str, QuarantinedError]]:
        """The tables that can be served, by name, and why others cannot.

        Remains of a creation or deletion that a crash cut short are removed. OSError; StorageError for a disk that
        fails.
        """
        shutil.rmtree(self._staging, ignore_errors=True)
        if any(self._deleted.glob("*/*")):  # the journal's records of it go next: it must not come back
            self._sync_removals()
        self.purge()
        paths = []
        for path in sorted(self._topics.iterdir()):
            if is_legal_name(path.name, TOPIC_NAME_LENGTH_MAX) and (path / "_delta_log").is_dir():
                paths.append(path)
            else:
                log.warning("catalog.not_a_topic", path=str(path))
        with ThreadPoolExecutor(_OPENERS, thread_name_prefix="open") as opening:
            found = {path.name: table for path, table in zip(paths, opening.map(self._open, paths), strict=True)}
        tables = {name: table for name, table in found.items() if isinstance(table, TopicTable)}
        quarantined = {name: error for name, error in found.items() if isinstance(error, QuarantinedError)}
        for name, error in _same_id(tables).items():
            del tables[name]
            quarantined[name] = error
        for name, error in quarantined.items():
            log.error("topic.quarantined", topic=name, why=str(error))
        return tables, quarantined

    def _open(self, path: Path) -> TopicTable | QuarantinedError:
        quarantined = f"Topic {path.name!r} is quarantined: "
        if path.is_symlink() and path.resolve().parent == path.parent.resolve():
            return QuarantinedError(
                f"{quarantined}{path} is a link to topic {path.resolve().name!r}", "Remove it, then restart the store"
            )
        try:
            table = TopicTable.recover(path, filesystem=self._filesystem)
            named = table.latest.topic_name
            if named is None:
                table.record_name()
                table.snapshot()
            elif named != path.name:
                return QuarantinedError(
                    f"{quarantined}{path} is the table of topic {named!r}, or a copy of it",
                    f"If it is a copy, move it out of {path.parent}; if the topic itself was renamed, move it back to "
                    f"{path.with_name(named)}. Then restart the store",
                )
        except LogStoreError as error:
            if isinstance(cause := error.__cause__, OSError) and cause.errno in _NOT_THE_TOPICS:
                raise
            return QuarantinedError(f"{quarantined}{error}", "Then restart the store")
        return table

    def create(self, name: str, *, num_partitions: int, config_overrides: dict[str, str]) -> TopicTable:
        return TopicTable.create(
            self._topics / name,
            num_partitions=num_partitions,
            config_overrides=config_overrides,
            filesystem=self._filesystem,
            staging=self._staging,
            layout=layout_of(name),
        )

    def take_back(self, name: str) -> None:
        """Undo ``create``: nobody was told of the topic, and nothing was produced to it."""
        aside = self._staging / uuid.uuid4().hex
        with contextlib.suppress(OSError):
            self._filesystem.rename(self._topics / name, aside)
            self._filesystem.sync_directory(self._topics)
        shutil.rmtree(aside, ignore_errors=True)

    def remove(self, name: str, topic_id: uuid.UUID) -> None:
        """Take the topic away in one step, and keep in mind that it was deleted; then ``sync_removal``, and ``purge``.

        Raises StorageFullError, StorageError; the topic is then there as before.
        """
        try:
            self._filesystem.make_directory(self._deleted)
            self._filesystem.rename(self._topics / name, self._deleted / str(topic_id))
        except OSError as error:
            raise storage_error(f"deleting topic {name!r}", error) from error
        self._filesystem.reached("topic.removed")

    def sync_removal(self, name: str) -> None:
        """Make it durable that the topic is gone. StorageError if that fails: it is gone, but may come back.

        After an error call it again; a success then can be trusted. (After a failed fsync of a file's data it could
        not: the pages are clean, and the next fsync writes nothing. But a rename is in the file system's own journal:
        it is committed by the next sync that succeeds, or the file system has shut down and no sync succeeds any more.)
        """
        try:
            self._sync_removals()
        except OSError as error:
            raise StorageError(
                f"Topic {name!r} is deleted, but its directory could not be synced: {error}. It may be there again "
                "after a power cut."
            ) from error

    def _sync_removals(self) -> None:
        self._filesystem.sync_directory(self._deleted)
        self._filesystem.sync_directory(self._topics)

    def purge(self) -> None:
        """Delete the files of deleted topics. An empty directory stays: the journal may still have their records."""
        for path in self._deleted.glob("*/*"):
            self._filesystem.reached("topic.purge_half")
            shutil.rmtree(path, ignore_errors=True)

    def deleted(self) -> dict[uuid.UUID, Path]:
        """Topics that were deleted on purpose: their records in the journal are not missing from a table."""
        found = {}
        for path in self._deleted.glob("*/"):
            with contextlib.suppress(ValueError):
                found[uuid.UUID(path.name)] = path
        return found

    def forget_deleted(self, in_journal: Collection[uuid.UUID]) -> None:
        """Forget deleted topics but those ``in_journal``: the journal has no records of them any more."""
        for topic_id, path in self.deleted().items():
            if topic_id not in in_journal:
                shutil.rmtree(path, ignore_errors=True)
