"""Undoes a commit of another writer that names files which an erasure has deleted.

A ``RESTORE`` looks for the files of its version and then commits. If an erasure deletes one of them in between, the
table names a file that nobody can read. The files that the table had in its place before that commit are on disk,
without the erased records. So for the ranges of offsets that the missing files cover, the store takes out the files
that the commit added, and commits the files that it removed. The rest of the ``RESTORE`` stays as it is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import structlog

from logstore.delta.log_entries import list_log, read_actions
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.topic_table import TopicTable
from logstore.errors import CorruptionError
from logstore.segments.names import known_segment_name
from logstore.segments.reader import segment_from_file, verify_segment
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles

log = structlog.stdlib.get_logger(__name__)

#: Partition, base offset and exclusive end.
_Range = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Commit:
    """The paths that a commit added and removed."""

    version: int
    added: frozenset[str]
    removed: frozenset[str]


def put_back_gone_files(table: TopicTable, snapshot: TopicSnapshot, new_paths: Collection[str]) -> bool:
    """Replace files that are not on disk by the files that the table had before; return whether anything changed.

    ``new_paths`` are the active files to look for. Files that cannot be replaced stay in the table, and are logged:
    their readers fail. Raises OSError, CorruptionError, and the errors of ``TopicTable.put_back``.
    """
    changed = False
    while gone := {path for path in snapshot.paths.intersection(new_paths) if not _is_there(table.files, path)}:
        commit = _last_commit_that_added(table.files, gone)
        replacement = None if commit is None else _replacement(table.files, snapshot, commit, gone)
        if commit is None or replacement is None:
            log.error("history.file_lost", table=table.files.uri, files=sorted(gone))
            break
        removes, adds = replacement
        log.error("erasure.put_back", table=table.files.uri, version=commit.version, files=sorted(removes))
        table.put_back(removes, adds)
        snapshot = table.snapshot()
        changed = True
    return changed


def is_on_disk(files: TableFiles, path: str) -> bool:
    """Return whether the table's directory has the file. Raises OSError."""
    try:
        files.head(path)
    except FileNotFoundError:
        return False
    return True


def _is_there(files: TableFiles, path: str) -> bool:
    """Return whether a file that the table names is on disk. Paths of other writers are percent-encoded. A path that
    leads out of the table counts as present, as the store deletes nothing there.
    """
    return "://" in path or path.startswith("/") or is_on_disk(files, unquote(path))


def _last_commit_that_added(files: TableFiles, paths: Collection[str]) -> _Commit | None:
    for version in sorted(list_log(files).entries, reverse=True):
        try:
            actions = read_actions(files, version)
        except FileNotFoundError:
            return None  # the log was cleaned up to this point
        added = frozenset(action.add.path for action in actions if action.add is not None)
        if not added.isdisjoint(paths):
            removed = frozenset(action.remove.path for action in actions if action.remove is not None)
            return _Commit(version, added, removed)
    return None


def _replacement(
    files: TableFiles, snapshot: TopicSnapshot, commit: _Commit, gone: Collection[str]
) -> tuple[set[str], list[Segment]] | None:
    """Return the files to take out and the segments to commit; None if a segment is missing or damaged."""
    active = snapshot.ranges()
    came = {path: active[path] for path in commit.added if path in active}
    went = {path: _named_range(path) for path in commit.removed - snapshot.paths}
    if not came.keys() & gone or None in went.values():
        return None  # files of other writers were removed, and the store cannot commit these
    ranges = [*came.values(), *(bounds for bounds in went.values() if bounds is not None)]
    lost = [_widened(came[path], ranges) for path in came.keys() & gone]
    removes, back = _within(came, lost), _within(went, lost)
    if not back or _within({path: active[path] for path in active.keys() - removes}, lost):
        return None
    adds = []
    for path in sorted(back):
        try:
            verify_segment(files, path)
            adds.append(segment_from_file(files, path))
        except (FileNotFoundError, CorruptionError):
            return None
    return removes, adds


def _named_range(path: str) -> _Range | None:
    name = known_segment_name(path)
    if name is None or name.end_offset is None:
        return None
    return name.partition, name.base_offset, name.end_offset


def _widened(lost: _Range, others: Sequence[_Range]) -> _Range:
    """Widen a range until it wholly contains each of ``others`` that it touches."""
    partition, low, high = lost
    while True:
        inside = [one for one in others if _overlap(one, (partition, low, high))]
        wider = (min([low, *(one[1] for one in inside)]), max([high, *(one[2] for one in inside)]))
        if wider == (low, high):
            return partition, low, high
        low, high = wider


def _within(files: Mapping[str, _Range | None], ranges: Collection[_Range]) -> set[str]:
    return {
        path for path, bounds in files.items() if bounds is not None and any(_overlap(bounds, one) for one in ranges)
    }


def _overlap(one: _Range, other: _Range) -> bool:
    return one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
