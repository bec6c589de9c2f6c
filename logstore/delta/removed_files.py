"""Deletes files from storage that no version of the table needs, according to the Delta log. No commit is made.

Invariants:

- An active file of the snapshot is never deleted.
- ``delete_removed_files`` deletes only files that a commit removed, durably. A file that a roll, a merge or a job has
  written and not committed yet has no removal.
- ``delete_unnamed_files`` deletes only files that no commit names, and only old ones: no roll, merge or job takes days
  from its file to its commit.
- A file of the change data feed, which is in no version's list of files, is deleted by its age, as by Delta's VACUUM.
- The file of a deletion vector is deleted when no active file has one of its vectors, like a data file that was removed
  with the last of them; a file of vectors that no commit names is deleted like a data file.
- A segment of offsets that the table lacks is deleted only if a commit meant to remove its records (a ``DELETE``, a
  job). The store may commit any other again (rule R7), after a ``RESTORE`` for example.
- A deletion that is cut short, or that runs twice at once, leaves a table on which a later deletion can continue.

Versions of the table from before a removal cannot be read, or restored with RESTORE, once its file is deleted.
"""

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from logstore.delta.file_history import file_history
from logstore.delta.log_entries import entry_name, list_log
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError
from logstore.segments.deletion_vectors import DeletionVector, file_of
from logstore.segments.names import SegmentName, known_segment_name
from logstore.table_files import Entry, TableFiles

#: The directory is that of the partition, or has any name if Spark has column mapping; Delta's own begin with _ or a
#: dot.
_DATA_FILE = re.compile(r"((?![_.])[^/]+)/[^/]*\.parquet")
_CHANGE_FILE = re.compile(r"_change_data/(?:[^/]+/)?[^/]*\.parquet")
_VECTOR_FILE = re.compile(r"(?:(?![_.])[^/]+/)?deletion_vector_[0-9a-f-]{36}\.bin")


def may_be_deleted(name: str) -> bool:
    """Return whether a vacuum considers a file of this name: one with data, deletion vectors or changed rows."""
    return is_data_file(name) or is_vector_file(name) or is_change_file(name)


def is_data_file(name: str) -> bool:
    return _DATA_FILE.fullmatch(name) is not None


def is_change_file(name: str) -> bool:
    """Return whether a file of this name belongs to the change data feed."""
    return _CHANGE_FILE.fullmatch(name) is not None


def is_vector_file(name: str) -> bool:
    return _VECTOR_FILE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class DeletedFiles:
    """The names within the table, by rising name, and the sum of the files' bytes."""

    names: tuple[str, ...] = ()
    bytes: int = 0


def delete_removed_files(
    files: TableFiles, snapshot: TopicSnapshot, *, delay_ms: int, now_ms: int, dry_run: bool = False
) -> DeletedFiles:
    """Delete files that a commit removed at ``now_ms - delay_ms`` or before; with ``dry_run`` only return them.

    ``snapshot`` is current. ``now_ms`` is a time that both this machine's clock and the storage's clock have reached.
    The log forgets removals after a while (``schema.removals_kept_ms``); their files are then unnamed. Costs a list of
    names per partition with such a file. Raises OSError.
    """
    removals = named_files(files, snapshot)
    due = {at for at, removed_ms in removals.items() if removed_ms is not None and removed_ms <= now_ms - delay_ms}
    found = _on_disk(files, due)
    found = _without_dropped(files, snapshot, found)
    if found and not dry_run:
        _sync_removals(files, snapshot.version)
    return _delete(files, found, dry_run=dry_run)


def delete_unnamed_files(
    files: TableFiles, unnamed: Mapping[str, Entry], *, age_ms: int, now_ms: int, dry_run: bool = False
) -> DeletedFiles:
    """Delete the ``unnamed`` files (see ``unnamed_files``) written at ``now_ms - age_ms`` or before. Raises OSError."""
    due = [entry for entry in unnamed.values() if entry.modified_ms <= now_ms - age_ms]
    return _delete(files, due, dry_run=dry_run)


#: The value in place of the time (ms) at which a file left the table, for a file that is active.
ACTIVE = 2**63 - 1


def named_files(files: TableFiles, snapshot: TopicSnapshot) -> dict[str, int | None]:
    """Return the names of all files, of data and of vectors, that the log names, with the time (ms) at which they left
    the table: ``ACTIVE`` if they have not left it, None if the log does not say when.
    """
    found: dict[str, int | None] = {unquote(path): at for path, at in snapshot.log.removals().items()}
    for vector, removed_ms in snapshot.log.removed_vectors():
        if (name := _vector_file(files, vector)) is not None:
            # A file may hold several vectors: it goes with the last one.
            last = found.get(name, removed_ms)
            found[name] = None if last is None or removed_ms is None else max(last, removed_ms)
    for vector in snapshot.vectors:
        if (name := _vector_file(files, vector)) is not None:
            found[name] = ACTIVE
    return found | dict.fromkeys((unquote(path) for path in snapshot.paths), ACTIVE)


def _vector_file(files: TableFiles, vector: DeletionVector) -> str | None:
    """Return the vector's file; None for a vector that has no file within the table."""
    with contextlib.suppress(CorruptionError):
        return file_of(vector, files)
    return None


@dataclass(frozen=True, slots=True)
class UnnamedFiles:
    """Files in storage that are neither active nor known as removed, by name.

    ``superseded``: files of deletion vectors and of changes, and segments whose offsets the table has in other files,
    or had to give up. The log forgot their removal, or a job was killed before its commit. ``needed``: segments of
    offsets that the table lacks, perhaps because a commit was lost. ``others`` have names that are not ours.
    """

    superseded: dict[str, Entry]
    needed: dict[str, Entry]
    others: dict[str, Entry]


def unnamed_files(files: TableFiles, snapshot: TopicSnapshot, entries: Iterable[Entry]) -> UnnamedFiles:
    """Return the unnamed files among ``entries``. Raises CorruptionError if the table's own files overlap."""
    found = UnnamedFiles({}, {}, {})
    named = named_files(files, snapshot)
    gaps = _Gaps(snapshot)
    for entry in entries:
        if not may_be_deleted(entry.name) or entry.name in named:
            continue
        if is_vector_file(entry.name) or is_change_file(entry.name):
            found.superseded[entry.name] = entry
            continue
        name = known_segment_name(entry.name)
        if name is None or name.partition not in snapshot.partitions:
            found.others[entry.name] = entry
        elif gaps.reach(name):
            found.needed[entry.name] = entry
        else:
            found.superseded[entry.name] = entry
    return found


class _Gaps:
    """The offsets of each partition, from its log start on, for which the table has no file."""

    def __init__(self, snapshot: TopicSnapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[int, list[tuple[int, int]]] = {}

    def reach(self, name: SegmentName) -> bool:
        """Return whether the segment of the name has offsets that the table lacks. Raises CorruptionError if the
        table's own files overlap.
        """
        state = self._snapshot.partitions[name.partition]
        if name.partition not in self._known:
            self._snapshot.check(name.partition)
            self._known[name.partition] = self._snapshot.uncovered(name.partition, state.log_start)
        # A name of an earlier release does not say where its range ends.
        end = name.base_offset + 1 if name.end_offset is None else name.end_offset
        return end > state.sealed or any(
            low < end and name.base_offset < high for low, high in self._known[name.partition]
        )


def _without_dropped(files: TableFiles, snapshot: TopicSnapshot, entries: list[Entry]) -> list[Entry]:
    """Return ``entries`` without the segments of offsets that the table lacks because a commit dropped them unasked."""
    gaps = _Gaps(snapshot)
    lacked = set()
    for entry in entries:
        name = known_segment_name(entry.name)
        if name is not None and name.partition in snapshot.partitions and gaps.reach(name):
            lacked.add(entry.name)
    if not lacked:
        return entries
    removals = {unquote(path): removal for path, removal in file_history(files, -1).removals.items()}

    def is_dropped(name: str) -> bool:
        removal = removals.get(name)
        return removal is not None and (not removal.meant or removal.rewritten)

    return [entry for entry in entries if entry.name not in lacked or not is_dropped(entry.name)]


def _sync_removals(files: TableFiles, version: int) -> None:
    """Make the log up to ``version`` durable: a power cut must not take back a removal whose file is gone."""
    log = list_log(files)
    base = max((v for v in log.checkpoints if v <= version), default=0)
    entries = [entry_name(v) for v in sorted(log.entries) if base <= v <= version]
    files.sync([*log.checkpoints.get(base, ()), *entries])


def _on_disk(files: TableFiles, names: Iterable[str]) -> list[Entry]:
    by_directory: dict[str, set[str]] = {}
    for name in names:
        # Other writers also write to the log from which the names come.
        if may_be_deleted(name):
            by_directory.setdefault(name.rpartition("/")[0], set()).add(name)
    found: list[Entry] = []
    for directory, wanted in sorted(by_directory.items()):
        try:
            there = files.names(directory) if directory else sorted(wanted)
        except FileNotFoundError:
            continue
        for name in there:
            if name in wanted:
                try:
                    found.append(files.head(name))
                except FileNotFoundError:
                    continue  # another vacuum was faster
    return found


def _delete(files: TableFiles, entries: Iterable[Entry], *, dry_run: bool) -> DeletedFiles:
    names: list[str] = []
    size = 0
    for entry in sorted(entries):
        if not dry_run:
            try:
                # A power cut may bring it back, and the next vacuum deletes it again.
                files.remove([entry.name], durable=False)
            except FileNotFoundError:
                continue
            files.reached("vacuum.deleted")
        names.append(entry.name)
        size += entry.size
    return DeletedFiles(tuple(names), size)
