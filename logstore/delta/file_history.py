"""The history of a table's files: which commits removed them, and whether anybody asked for that. It goes as far back
as the log still has entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from logstore.delta.actions import COMMIT_ID_KEY, DROP_FOREIGN_FILES, OPERATION_KEY, Add
from logstore.delta.log_entries import list_log, read_actions
from logstore.delta.schema import SEALED, app_id
from logstore.segments.names import known_segment_name
from logstore.table_files import TableFiles

T = TypeVar("T")

#: Statements that remove records because the owner of the table says so.
_MEANT = frozenset({"DELETE", "TRUNCATE", "UPDATE", "MERGE"})


@dataclass(frozen=True, slots=True)
class Removal:
    """The commit that took a file out of the table: ``ours``, or another writer's ``operation``.

    ``rewritten``: the commit changed no record (``dataChange`` is false for all of it). ``meant``: records are missing
    after it because somebody said so; false after a ``RESTORE`` or an overwrite without a predicate. ``bounds`` are the
    file's partition, base offset and end, if the log still has the entry that added it. Records below ``since`` are
    missing for other reasons: a RESTORE to a version before the file leaves them as they were in that version.
    ``masked``: the file had a deletion vector, so it holds deleted records.
    """

    version: int
    operation: str
    ours: bool
    bounds: tuple[int, int, int] | None = None
    rewritten: bool = False
    meant: bool = False
    since: int = 0
    masked: bool = False


@dataclass(frozen=True, slots=True)
class FileHistory:
    """Files by path: the removals that last, and the files that an overwrite without a predicate added and that are
    still active.
    """

    removals: dict[str, Removal]
    overwriting: frozenset[str]


def removals_since(files: TableFiles, version: int) -> dict[str, Removal]:
    """Return the files that entries after ``version`` removed for good, as far as the log still has those entries.
    Raises CorruptionError and OSError.
    """
    return file_history(files, version).removals


def file_history(files: TableFiles, version: int) -> FileHistory:
    """Return the ``removals_since`` a version, and the files that overwrites added."""
    found: dict[str, Removal] = {}
    #: Each change of ``found`` with its version, by path.
    told: dict[str, list[tuple[int, Removal | None]]] = {}
    bounds: dict[str, tuple[int, int, int]] = {}
    sealed: dict[str, list[tuple[int, int]]] = {}
    overwriting: set[str] = set()
    for number in sorted(list_log(files).entries):
        try:
            actions = read_actions(files, number)
        except FileNotFoundError:
            continue  # the log was cleaned meanwhile
        info: dict[str, Any] = next((a.commit_info for a in actions if a.commit_info is not None), {})
        added = [action.add for action in actions if action.add is not None]
        removed = [action.remove for action in actions if action.remove is not None]
        bounds.update((add.path, known) for add in added if (known := _bounds(add)) is not None)
        for action in actions:
            if action.txn is not None:
                sealed.setdefault(action.txn.app_id, []).append((number, action.txn.version))
        operation, ours = str(info.get("operation")), info.get(COMMIT_ID_KEY) is not None
        rewritten = all(
            change is False for change in (*(a.data_change for a in added), *(r.data_change for r in removed))
        )
        if info.get(OPERATION_KEY) == DROP_FOREIGN_FILES:
            continue  # they were never served, so nothing is missing without them
        meant = ours or rewritten or operation in _MEANT or _has_predicate(info)
        changes: dict[str, Removal | None] = {
            action.path: Removal(
                number,
                operation,
                ours,
                bounds.get(action.path),
                rewritten,
                meant,
                masked=action.deletion_vector is not None,
            )
            for action in removed
        }
        if operation == "RESTORE" and (back := _restored_version(info)) is not None:
            # The RESTORE takes back everything that others did since: the files that they removed stay away because of
            # it. The store may have committed a file again after that version, and then replaced it. The RESTORE drops
            # the replacement, so the file is missing for the same reason as in that version.
            for path, removal in found.items():
                if removal.version > back and not removal.ours:
                    changes[path] = replace(removal, version=number, operation=operation, meant=False)
                elif removal.version > back and (before := _at(told[path], back)) is not None:
                    changes[path] = before
            # A file that was missing in that version is missing as it was then.
            for path, change in changes.items():
                assert change is not None
                known = change.bounds
                since = _at(sealed.get(app_id(known[0], SEALED), []), back) if known else None
                before = _at(told.get(path, []), back)
                changes[path] = before if before is not None else replace(change, since=since or 0)
        changes |= dict.fromkeys((add.path for add in added), None)
        for path, change in changes.items():
            told.setdefault(path, []).append((number, change))
            if change is None:
                found.pop(path, None)
            else:
                found[path] = change
        overwriting.difference_update(add.path for add in added)
        if removed and not meant and operation != "RESTORE":
            overwriting.update(add.path for add in added)
        overwriting.difference_update(action.path for action in removed if action.path in found)
    return FileHistory(
        {path: removal for path, removal in found.items() if told[path][-1][0] > version}, frozenset(overwriting)
    )


def _at(changes: Sequence[tuple[int, T]], version: int) -> T | None:
    """Return the value of the last change at a version."""
    return next((value for number, value in reversed(changes) if number <= version), None)


def _restored_version(info: dict[str, Any]) -> int | None:
    """Return the version to which the table was restored; None if it was restored to a time."""
    told = str((info.get("operationParameters") or {}).get("version"))
    return int(told) if told.isdecimal() else None


def _has_predicate(info: dict[str, Any]) -> bool:
    """Return whether a write says which rows it replaces."""
    told = (info.get("operationParameters") or {}).get("predicate")
    return told not in (None, "", "[]", "true", '["true"]')


def _bounds(add: Add) -> tuple[int, int, int] | None:
    """Return partition, base offset and end of a file, as its name or its statistics have them."""
    try:
        name = known_segment_name(add.path)
        if name is not None and name.end_offset is not None:
            return name.partition, name.base_offset, name.end_offset
        stats = msgspec.json.decode(add.stats or "null", type=_Stats)
        return (
            int((add.partition_values or {})["partition"] or ""),
            stats.min_values.offset,
            stats.max_values.offset + 1,
        )
    except (msgspec.MsgspecError, KeyError, ValueError):
        return None


class _Offset(msgspec.Struct):
    offset: int


class _Stats(msgspec.Struct, rename="camel"):
    min_values: _Offset
    max_values: _Offset
