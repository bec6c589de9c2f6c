"""The tables of a store: ``<data>/topics``, with ``<data>/staging`` and ``<data>/deleted`` beside it.

Invariants: a table appears by one step (``create``) and disappears by one (``remove``); a crash leaves it whole or
absent, and ``recover`` removes its remains. The id of a removed table stays known until it is forgotten.

Blocking; safe from several threads, with one change of a table at a time. Every method raises OSError as the disk does.
"""

import contextlib
import errno
import os
import uuid
from pathlib import Path
from typing import Final

from logstore.clock import SYSTEM_CLOCK, Clock
from logstore.entropy import new_uuid
from logstore.filesystem import FileSystem, local_filesystem
from logstore.local_path import absolute_path
from logstore.table_files import LOG_DIRECTORY, OutcomeUnknownError, TableFiles

_FIRST_ENTRY: Final = f"{LOG_DIRECTORY}/{0:020d}.json"


class TableRoot:
    def __init__(
        self, data: Path, filesystem: FileSystem, broker_id: int | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Open the tables below ``data``. A broker that shares the tables with others has a ``broker_id``, and a
        separate staging directory.
        """
        self.data = data
        self.clock = clock
        self._topics, self._staging, self._deleted = data / "topics", data / "staging", data / "deleted"
        if broker_id is not None:
            self._staging /= str(broker_id)
        self._filesystem = filesystem

    def where(self, name: str = "") -> str:
        """Return the place of a table, for messages; without a name that of all tables."""
        return str(self._topics / name)

    def exists(self) -> bool:
        """Return whether a store has used this directory."""
        return self._filesystem.is_directory(self._topics)

    def tables(self) -> list[str]:
        """Return the names of all tables, rising."""
        return [name for name in self._names(self._topics) if self.open(name).exists()]

    def strays(self) -> list[str]:
        """Return the names among the tables that are not tables."""
        return [name for name in self._names(self._topics) if not self.open(name).exists()]

    def open(self, name: str) -> TableFiles:
        """Return the files of a table, whether it exists or not."""
        return TableFiles(self._topics / name, self._filesystem, clock=self.clock)

    def link_target(self, name: str) -> str | None:
        """Return the table of this root to which ``name`` is only a link; None if it is a separate table."""
        if not self._filesystem.is_link(self._topics / name):
            return None
        target = self._filesystem.real_path(self._topics / name)
        return target.name if target.parent == self._filesystem.real_path(self._topics) else None

    def now_ms(self) -> int:
        """Return the time of the storage, in milliseconds since the Unix epoch."""
        return self._filesystem.now_ns(self.data) // 1_000_000

    # ---- changes ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directories that a new store needs; for the store that owns the tables."""
        self._filesystem.make_directory(self._topics)

    def recover(self) -> None:
        """Finish what a crash cut short: creations are undone, removals made durable. It is for the store that owns the
        tables.
        """
        self._filesystem.remove_tree(self._staging)
        if any(self._names(self._deleted / table_id) for table_id in self._names(self._deleted)):
            # The journal's records of the table are removed next, so the table must not come back.
            self.sync_removals()
        self.purge()

    def create(self, name: str, first_entry: bytes) -> TableFiles:
        """Create a table whose log has ``first_entry``, durably. Raises FileExistsError, and OutcomeUnknownError if a
        power cut could take it away: then the creation was undone, but the table may exist again after a power cut.
        """
        path, built = self._topics / name, self._staging / new_uuid().hex
        if self._filesystem.is_directory(path):
            raise FileExistsError(errno.EEXIST, "there is a table of that name", str(path))
        try:
            self._filesystem.make_directory(built)
            with TableFiles(built, self._filesystem).create(_FIRST_ENTRY) as upload:
                upload.write(first_entry)
                upload.finish()
            self._filesystem.reached("delta.staged")
            self._filesystem.make_directory(self._topics)
            self._filesystem.rename(built, path)
        except OSError:
            self._filesystem.remove_tree(built)
            raise
        self._filesystem.reached("topic.created")
        try:
            self._filesystem.sync_directory(self._topics)
        except OSError as error:
            # Nobody may use it, and the next attempt needs its place.
            with contextlib.suppress(OSError):
                self._filesystem.rename(path, built)
            self._filesystem.remove_tree(built)
            raise OutcomeUnknownError(error.errno, error.strerror, str(path)) from error
        return self.open(name)

    def renew_log(self, name: str, first_entry: bytes) -> str | None:
        """Give a table a new log, durably. Return the name under which the table keeps the old one; None if it had
        none. A crash between the two renames leaves the table without a log: ``log_set_aside`` then returns the old
        one.
        """
        table, built = self._topics / name, self._staging / new_uuid().hex
        files = self.open(name)
        try:
            self._filesystem.make_directory(built)
            with TableFiles(built, self._filesystem).create(_FIRST_ENTRY) as upload:
                upload.write(first_entry)
                upload.finish()
            self._filesystem.reached("rebuild.staged")
            aside = files.set_aside(LOG_DIRECTORY) if files.exists() else None
            self._filesystem.reached("rebuild.set_aside")
            self._filesystem.rename(built / LOG_DIRECTORY, table / LOG_DIRECTORY)
            self._filesystem.reached("rebuild.renamed")
            self._filesystem.sync_directory(table)
        finally:
            self._filesystem.remove_tree(built)
        return aside

    def log_set_aside(self, name: str) -> str | None:
        """Return the newest log of a table that was set aside, if the table has no other; ``TableFiles.put_back``
        restores it.
        """
        if self.open(name).exists():
            return None
        prefix = f"{LOG_DIRECTORY}.set-aside"
        asides = [found for found in self._names(self._topics / name) if found.startswith(prefix)]
        return max(asides, key=lambda found: int(found.removeprefix(prefix) or 0), default=None)

    def take_back(self, name: str) -> None:
        """Undo ``create``, as far as possible: nobody was notified of the table, and nothing was written to it."""
        aside = self._staging / new_uuid().hex
        with contextlib.suppress(OSError):
            self._filesystem.rename(self._topics / name, aside)
            self._filesystem.sync_directory(self._topics)
        self._filesystem.remove_tree(aside)

    def remove(self, name: str, table_id: uuid.UUID) -> None:
        """Take a table away in one step, and remember its id; then call ``sync_removals``, and ``purge``."""
        self._filesystem.make_directory(self._deleted)
        self._filesystem.rename(self._topics / name, self._deleted / str(table_id))
        self._filesystem.reached("topic.removed")

    def sync_removals(self) -> None:
        """Make the removal of tables durable. After an error call it again; a success then can be trusted. (After a
        failed fsync of a file's data it could not: the pages are clean, and the next fsync writes nothing. But a rename
        is in the file system's own journal: it is committed by the next sync that succeeds, or the file system has shut
        down and no sync succeeds any more.)
        """
        self._filesystem.sync_directory(self._deleted)
        self._filesystem.sync_directory(self._topics)

    def removed_ms(self, table_id: uuid.UUID) -> int:
        """Return a time, in ms since 1970, by which the files of a removed table had been deleted. Raises
        FileNotFoundError.
        """
        return self._filesystem.stat(self._deleted / str(table_id)).st_mtime_ns // 1_000_000

    def removed(self) -> set[uuid.UUID]:
        """Return the ids of tables that were removed and not forgotten."""
        found = set()
        for name in self._names(self._deleted):
            with contextlib.suppress(ValueError):
                found.add(uuid.UUID(name))
        return {table_id for table_id in found if self._filesystem.is_directory(self._deleted / str(table_id))}

    def purge(self) -> None:
        """Delete the files of removed tables, as far as possible; their ids stay known."""
        for table_id in self._names(self._deleted):
            for name in self._names(self._deleted / table_id):
                self._filesystem.reached("topic.purge_half")
                self._filesystem.remove_tree(self._deleted / table_id / name)

    def forget(self, table_id: uuid.UUID) -> None:
        """Forget a table that was removed."""
        self._filesystem.remove_tree(self._deleted / str(table_id))

    # ---- local --------------------------------------------------------------------------------------------------

    def _names(self, directory: Path) -> list[str]:
        try:
            return sorted(self._filesystem.names(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []


def open_root(data: str | os.PathLike[str], filesystem: FileSystem | None = None) -> TableRoot:
    """Open the tables of a store by a path or a ``file://`` location. Raises DataDirectoryError."""
    return TableRoot(absolute_path(data), filesystem or local_filesystem())
