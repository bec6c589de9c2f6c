"""The catalogue of topics: one Delta table each in the store's ``TableRoot``, and nothing else.

Invariants: no two names differ only by case or by ``.`` and ``_``. A topic appears and disappears in one step, so a
crash leaves it whole or absent. The id of a deleted topic is kept as long as the journal has records of the topic: it
proves that the topic was deleted, not lost.
"""

import errno
import functools
import uuid
from collections.abc import Collection, Iterable, Mapping

import structlog

from logstore.delta.log_check import read_remains
from logstore.delta.topic_table import TopicTable
from logstore.errors import (
    InvalidTopicError,
    LogStoreError,
    QuarantinedError,
    StorageError,
    TopicExistsError,
    storage_error,
)
from logstore.limits import TOPIC_NAME_LENGTH_MAX
from logstore.names import INTERNAL_TOPICS, is_legal_name
from logstore.segments.layout import new_layout
from logstore.table_files import TableFiles
from logstore.table_root import TableRoot
from logstore.threads import threads

log = structlog.stdlib.get_logger(__name__)

# The number of topics that are opened at once: delta-rs and disk reads release the GIL.
_OPENERS = 4


# Errors of the disk or the process, not of the table: another start may open it.
_NOT_THE_TOPICS = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE})

# Journals of other brokers may have records of a deleted topic. A broker that was away for longer has only ZooKeeper to
# ask.
_REMEMBERED_MS = 30 * 86_400_000

# A directory of that name makes Delta readers take its parent for a table.
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
    for internal in INTERNAL_TOPICS:
        # The store makes its own topics when it needs them, and no other topic may keep it from that.
        if names_collide(name, internal):
            raise InvalidTopicError(f"Topic name {name!r} is not allowed: {internal!r} is reserved for the store.")


def check_no_collision(name: str, existing: Iterable[str]) -> None:
    """Raise TopicExistsError for the same name, InvalidTopicError for one that differs only by case or ``.`` and
    ``_``.
    """
    for other in existing:
        if other == name:
            raise TopicExistsError(f"Topic '{name}' already exists.")
        if names_collide(other, name):
            raise InvalidTopicError(
                f"Topic '{name}' collides with the existing '{other}': names may not differ only by case "
                "or by '.' and '_'."
            )


def names_collide(one: str, other: str) -> bool:
    """Return True if topics of both names cannot exist at the same time."""
    return _folded(one) == _folded(other)


def _folded(name: str) -> str:
    return name.lower().replace(".", "_")


def _same_id(tables: Mapping[str, TopicTable]) -> dict[str, QuarantinedError]:
    """Return errors for tables that share a topic id. Each claims to be the original, so none of them is served."""
    by_id: dict[uuid.UUID, list[str]] = {}
    for name, table in tables.items():
        by_id.setdefault(table.latest.topic_id, []).append(name)
    return {
        name: QuarantinedError(
            f"Topic {name!r} is quarantined: the tables of {', '.join(map(repr, names))} have the same id, {topic_id}",
            "Move all but the original out of the directory topics, then restart the store",
            topic_id,
        )
        for topic_id, names in by_id.items()
        if len(names) > 1
        for name in names
    }


def _id_left_in(files: TableFiles) -> uuid.UUID | None:
    """Return the id of a topic whose table cannot be served, if its log still has it."""
    try:
        found = read_remains(files).meta_data
        return None if found is None else uuid.UUID(found.id)
    except (LogStoreError, OSError, ValueError):
        return None


class TopicCatalog:
    """The catalogue. It is blocking; the broker calls it from threads, one change at a time.

    If it ``is_shared`` with other brokers, they may be writing: a log is mended by ``open`` only, when the caller asks.
    """

    def __init__(self, root: TableRoot, *, is_shared: bool = False) -> None:
        self._root = root
        self.is_shared = is_shared
        root.prepare()

    def load(self) -> tuple[dict[str, TopicTable], dict[str, QuarantinedError]]:
        """Return the tables that can be served, by name, and the reasons why others cannot.

        Remains of a creation or deletion that a crash interrupted are removed. Raises OSError, and StorageError for a
        failing disk.
        """
        self._root.recover()
        names = self.names()
        for name in sorted({*self._root.tables()}.difference(names)):
            log.warning("catalog.not_a_topic", path=self._root.where(name))
        for name in self._root.strays():
            log.warning("catalog.not_a_topic", path=self._root.where(name))
        open_one = functools.partial(self.open, mend=not self.is_shared)
        with threads().pool(_OPENERS, "open") as opening:
            found = dict(zip(names, opening.map(open_one, names), strict=True))
        tables = {name: table for name, table in found.items() if isinstance(table, TopicTable)}
        quarantined = {name: error for name, error in found.items() if isinstance(error, QuarantinedError)}
        for name, error in _same_id(tables).items():
            del tables[name]
            quarantined[name] = error
        for name, error in quarantined.items():
            log.error("topic.quarantined", topic=name, why=str(error))
        return tables, quarantined

    def names(self) -> list[str]:
        """Return the topics whose tables exist, in ascending order. Raises OSError."""
        return [name for name in self._root.tables() if is_legal_name(name, TOPIC_NAME_LENGTH_MAX)]

    def exists(self, name: str) -> bool:
        """Return True if the table exists. Raises OSError."""
        return self._root.open(name).exists()

    def open(self, name: str, *, mend: bool) -> TopicTable | QuarantinedError:
        """Return the table, or the reason why it cannot be served. ``mend`` repairs its log first; no other process may
        do so meanwhile.

        Raises StorageError for a failing disk.
        """
        quarantined = f"Topic {name!r} is quarantined: "
        where = self._root.where(name)
        files = self._root.open(name)
        if (target := self._root.link_target(name)) is not None:
            return QuarantinedError(
                f"{quarantined}{where} is a link to topic {target!r}", "Remove it, then restart the store"
            )
        try:
            table = TopicTable.recover(files) if mend else TopicTable.open(files)
            named = table.latest.topic_name
            if named is None:
                table.record_name()
                table.snapshot()
            elif named != name:
                return QuarantinedError(
                    f"{quarantined}{where} is the table of topic {named!r}, or a copy of it",
                    f"If it is a copy, move it out of {self._root.where()}; if the topic itself was renamed, move it "
                    f"back to {self._root.where(named)}. Then restart the store",
                )
        except LogStoreError as error:
            if isinstance(cause := error.__cause__, OSError) and cause.errno in _NOT_THE_TOPICS:
                raise
            return QuarantinedError(f"{quarantined}{error}", "Then restart the store", _id_left_in(files))
        return table

    def create(self, name: str, *, num_partitions: int, config_overrides: dict[str, str]) -> TopicTable:
        return TopicTable.create(
            self._root,
            name,
            num_partitions=num_partitions,
            config_overrides=config_overrides,
            layout=new_layout(name),
        )

    def take_back(self, name: str) -> None:
        """Undo ``create`` of a topic that was never reported or written to."""
        self._root.take_back(name)

    def remove(self, name: str, topic_id: uuid.UUID) -> None:
        """Remove the topic in one step, and remember that it was deleted; then call ``sync_removal``, and ``purge``.

        Raises StorageFullError and StorageError; the topic then exists as before.
        """
        try:
            self._root.remove(name, topic_id)
        except OSError as error:
            raise storage_error(f"deleting topic {name!r}", error) from error

    def sync_removal(self, name: str) -> None:
        """Make the removal durable. Raises StorageError if that fails: the topic is gone, but may come back.

        After an error call it again; a success can then be trusted.
        """
        try:
            self._root.sync_removals()
        except OSError as error:
            raise StorageError(
                f"Topic {name!r} is deleted, but its directory could not be synced: {error}. It may be there again "
                "after a power cut."
            ) from error

    def purge(self) -> None:
        """Delete the files of deleted topics, as far as possible; the next deletion or start deletes the rest.

        Their ids stay: the journal may still have their records.
        """
        try:
            self._root.purge()
        except OSError as error:
            log.warning("topic.files_not_deleted", error=str(error))

    def deleted(self) -> set[uuid.UUID]:
        """Return topics that were deleted on purpose: their records in the journal are not missing from a table."""
        return self._root.removed()

    def forget_deleted(self, in_journal: Collection[uuid.UUID]) -> None:
        """Forget deleted topics except those ``in_journal``: the journal no longer has records of the others."""
        for topic_id in self.deleted().difference(in_journal):
            if not self.is_shared or self._root.now_ms() - self._root.removed_ms(topic_id) > _REMEMBERED_MS:
                self._root.forget(topic_id)
