"""A Delta log as it is, damaged or not: a check that changes nothing, for ``topic verify`` and for a rebuild.

It reads every file of the log separately, and no damaged file stops it. ``problems`` are those for which a reader
refuses the table, or that make its history doubtful.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from logstore.delta.actions import COMMIT_ID_KEY, Action, Add, MetaData, Protocol, stored_digest
from logstore.delta.log_entries import (
    LogReplay,
    adds_last,
    checksum_name,
    checksums,
    entry_name,
    list_log,
    read_actions,
    read_checkpoint_actions,
    stored_checksums,
)
from logstore.delta.log_repair import LAST_CHECKPOINT
from logstore.delta.snapshot import TopicSnapshot, read_snapshot
from logstore.delta.table_features import judge
from logstore.errors import CorruptionError, StorageError
from logstore.segments.foreign_file import OffsetRuns, read_offset_runs
from logstore.table_files import LOG_DIRECTORY, TableFiles

if TYPE_CHECKING:
    from logstore.segments.checking import CheckedFile

_ATTEMPTS = 5
_REPLACING = ("DELETE", "UPDATE", "MERGE", "OPTIMIZE")


@dataclass
class LogRemains:
    """The readable part of a log. Transactions only rise, so the largest value of each is a lower bound of the true
    one.

    ``added`` and ``removed`` are the files whose last mention adds and removes them, as far as entries can be read.
    ``replaced`` are those that another writer's DELETE, UPDATE, MERGE or OPTIMIZE removed: the remaining records of
    them are in files that it added.
    """

    entries: set[int] = field(default_factory=set)
    checkpoints: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    meta_data: MetaData | None = None
    transactions: dict[str, int] = field(default_factory=dict)
    added: dict[str, Add] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)
    protocol: Protocol | None = None

    @property
    def last_version(self) -> int:
        return max(self.entries | self.checkpoints, default=-1)

    def take(self, actions: Iterable[Action]) -> None:
        """Take over the actions of one entry, or of a checkpoint."""
        for action in adds_last(actions):
            if action.txn is not None:
                known = self.transactions.get(action.txn.app_id, action.txn.version)
                self.transactions[action.txn.app_id] = max(known, action.txn.version)
            elif action.meta_data is not None:
                self.meta_data = action.meta_data
            elif action.protocol is not None:
                self.protocol = action.protocol
            elif action.add is not None:
                self.removed.discard(action.add.path)
                self.replaced.discard(action.add.path)
                self.added[action.add.path] = action.add
            elif action.remove is not None:
                self.added.pop(action.remove.path, None)
                self.removed.add(action.remove.path)


def read_remains(files: TableFiles) -> LogRemains:
    """Read every entry and checkpoint that can be read, in order of their versions. Raises OSError except
    FileNotFoundError.
    """
    remains = LogRemains()
    try:
        found = list_log(files)
    except FileNotFoundError:
        remains.problems.append(
            f"{files.where(LOG_DIRECTORY)} is not there. Restore it from a backup, or stop the store and make it anew: "
            f"logstore topic rebuild {files.name}"
        )
        return remains
    remains.entries, remains.checkpoints = found.entries, set(found.checkpoints)
    for version in sorted(found.entries | set(found.checkpoints)):
        if version in found.entries:
            _take_entry(files, version, remains)
        if version in found.checkpoints:
            _take_checkpoint(files, version, found.checkpoints[version], remains)
    _check_versions(files, found.entries, set(found.checkpoints), remains)
    _check_hint(files, set(found.checkpoints), remains)
    return remains


def _take_entry(files: TableFiles, version: int, remains: LogRemains) -> None:
    try:
        actions = read_actions(files, version)
    except FileNotFoundError:
        remains.entries.discard(version)  # the log was cleaned meanwhile
        return
    except CorruptionError as error:
        remains.problems.append(str(error))
        return
    info: dict[str, Any] = next((a.commit_info for a in actions if a.commit_info is not None), {})
    ours = info.get(COMMIT_ID_KEY) is not None
    if ours and stored_digest(actions) is None:
        remains.problems.append(f"{files.where(entry_name(version))} is a commit of ours, and has no digest")
    remains.take(actions)
    if not ours and info.get("operation") in _REPLACING:
        removed = {action.remove.path for action in actions if action.remove is not None}
        remains.replaced |= removed & remains.removed  # a file with a new deletion vector is still active


def _take_checkpoint(files: TableFiles, version: int, parts: Sequence[str], remains: LogRemains) -> None:
    try:
        stored = stored_checksums(files, version)
        if stored is not None and stored != checksums(files, parts):
            remains.problems.append(
                f"{files.where(parts[0])} or {checksum_name(version)} beside it is damaged: the checksums do not match"
            )
            return
        actions = read_checkpoint_actions(files, parts)
    except FileNotFoundError:
        remains.checkpoints.discard(version)
        return
    except ValueError as error:
        remains.problems.append(str(error))
        return
    if stored is None:
        remains.notes.append(f"{files.where(parts[0])} has no checksum file: a start compares it with the entries")
    state = LogRemains()
    state.take(actions)
    remains.take(actions)
    # A checkpoint is the whole state: a file that it does not name was removed by an entry that is missing or damaged.
    remains.removed |= remains.added.keys() - state.added.keys()
    remains.added = dict(state.added)


def _check_versions(files: TableFiles, entries: set[int], checkpoints: set[int], remains: LogRemains) -> None:
    base = max(checkpoints, default=-1)
    last = max(entries | checkpoints, default=-1)
    if last < 0:
        remains.problems.append(f"{files.where(LOG_DIRECTORY)} holds no log")
    missing = [version for version in range(base + 1, last + 1) if version not in entries]
    remains.problems += [
        f"{files.where(entry_name(version))} is missing, and no checkpoint covers it" for version in missing
    ]
    older = [version for version in range(min(entries, default=0), base) if version not in entries]
    if older:
        remains.notes.append(
            f"{files.where(entry_name(older[0]))} is missing; the checkpoint of version {base} covers it"
        )


def _check_hint(files: TableFiles, checkpoints: set[int], remains: LogRemains) -> None:
    try:
        hint = msgspec.json.decode(files.read(f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"), type=dict[str, Any])
    except FileNotFoundError:
        return
    except (msgspec.MsgspecError, UnicodeDecodeError):
        hint = {}
    if hint.get("version") not in checkpoints:
        remains.problems.append(
            f"{files.where(f'{LOG_DIRECTORY}/{LAST_CHECKPOINT}')} names no checkpoint that is there: a start removes it"
        )


def observed_snapshot(files: TableFiles) -> TopicSnapshot:
    """Return the newest version, read without a change to any file: ``TopicTable.snapshot`` removes a wrong hint.

    Raises CorruptionError, UnsupportedTableError, and StorageError if it cannot be read.
    """
    failure: OSError | None = None
    for _ in range(_ATTEMPTS):
        held: dict[str, OffsetRuns] = {}

        def read_runs(name: str, held: dict[str, OffsetRuns] = held) -> OffsetRuns:
            if name not in held:
                held[name] = read_offset_runs(files, name, held.values())
            return held[name]

        try:
            snapshot = read_snapshot(LogReplay(files).state(), files.uri, read_runs)
        except OSError as error:
            failure = error  # a clean-up of the log is no damage
            continue
        if (refused := judge(files, snapshot.table).reading) is not None:
            raise refused
        return snapshot
    raise StorageError(f"Cannot read the Delta table {files}: {failure}") from failure


# ---- a file and its add action --------------------------------------------------------------------------------------


class _Bounds(msgspec.Struct):
    offset: int | None = None
    timestamp: str | None = None


class _Stats(msgspec.Struct, rename="camel"):
    num_records: int | None = None
    min_values: _Bounds = msgspec.field(default_factory=_Bounds)
    max_values: _Bounds = msgspec.field(default_factory=_Bounds)


def differences(file: "CheckedFile", add: Add, partition: int | None) -> list[str]:
    """Return in words how an add action differs from the file that it names. For another writer's file, only existing
    statistics count, and only if they leave out a record.
    """
    found = []
    if add.size != file.size:
        found.append(f"it has {file.size} bytes, the Delta log says {add.size}")
    if partition is not None and add.partition_values != {"partition": str(partition)}:
        found.append(f"it is of partition {partition}, the Delta log says {add.partition_values}")
    try:
        stats = msgspec.json.decode(add.stats or "{}", type=_Stats)
        low, high = _timestamp_us(stats.min_values.timestamp), _timestamp_us(stats.max_values.timestamp)
    except (msgspec.MsgspecError, ValueError) as error:
        return [*found, f"its statistics in the Delta log cannot be read: {error}"]
    actual = (file.num_records, file.min_offset, file.max_offset, file.min_timestamp_us, file.max_timestamp_us)
    stated: tuple[int | None, ...] = (stats.num_records, stats.min_values.offset, stats.max_values.offset, low, high)
    if file.footer is None:
        # Another writer may leave some out, and round times: a minimum down and a maximum up, or both to milliseconds.
        least, most = file.min_timestamp_us, file.max_timestamp_us
        if low is not None and least is not None and low < least + 1000:
            low = least
        if high is not None and most is not None and high > most - 1000:
            high = most
        stated = tuple(
            value if told is None else told for value, told in zip(actual, (*stated[:3], low, high), strict=True)
        )
    names = ("records", "as smallest offset", "as largest offset", "µs as smallest time", "µs as largest time")
    found += [
        f"it has {value} {name}, the Delta log says {told}"
        for name, value, told in zip(names, actual, stated, strict=True)
        if value != told
    ]
    return found


def _timestamp_us(text: str | None) -> int | None:
    import numpy as np

    if text is None:
        return None
    return int(np.datetime64(text.removesuffix("Z").removesuffix("+00:00"), "us").astype(np.int64))
