"""Reads the files of ``_delta_log``: the newest whole checkpoint up to a version, then every later entry.

A file is parsed once per content, which its version identifies: another writer's commit that renames over an entry
changes it. Invariant: an entry with a digest and a checkpoint with a checksum file (all of ours have them) are compared
with these before anything is taken from them. CorruptionError names a file that differs, and an entry that is empty.
"""

import contextlib
import errno
import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from logstore.crc32c import crc32c
from logstore.delta.actions import (
    COMMIT_ID_KEY,
    DECODER,
    IN_COMMIT_TIMESTAMP,
    Action,
    entry_digest,
    stored_digest,
)
from logstore.delta.table_state import (
    StateChange,
    TableState,
    change_of_rows,
    joined_changes,
    state_change,
    table_state,
)
from logstore.errors import CorruptionError
from logstore.segments.deletion_vectors import DeletionVector
from logstore.table_files import LOG_DIRECTORY, Entry, TableFiles

#: The suffix of the file with the CRC-32C of a checkpoint's parts, beside each checkpoint of ours. No Delta reader or
#: clean-up knows it.
CHECKSUM_SUFFIX = ".checkpoint.crc32c"

T = TypeVar("T")

_ENTRY_NAME_LENGTH = len("00000000000000000000.json")
#: The directory of files with the adds and removes of V2 checkpoints.
SIDECARS = "_sidecars"
_OF_STATE = ("protocol", "metaData", "add", "domainMetadata")
# There may be many removals, and only these fields are of use.
_OF_REMOVALS = ("path", "deletionTimestamp", "deletionVector")
_COLUMNS_READ = ("txn", *_OF_STATE, "sidecar", *(f"remove.{name}" for name in _OF_REMOVALS))
_V2_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")

#: The messages of msgspec and Python for a document and a UTF-8 sequence that end too early.
_CUT = "Input data was truncated"
_CUT_LETTER = "unexpected end of data"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Transactions and paths in one commit or one checkpoint part; ``change`` has the rest of what it says about the
    table.

    ``removed`` paths come with the time (ms) of their removal; None if the entry does not have it. ``vectors`` are
    those of removed files, by path. ``in_commit_timestamp`` is as in ``commitInfo``.
    """

    transactions: dict[str, int]
    added: frozenset[str]
    removed: Mapping[str, int | None]
    change: StateChange
    commit_id: str | None = None
    vectors: Mapping[str, DeletionVector] = field(default_factory=dict)
    in_commit_timestamp: int | None = None


class CheckpointRemovals(Mapping[str, int | None]):
    """The removals of a checkpoint as columns: a week of them may be a million, and they stay as long as the topic is
    open. ``in`` and ``[]`` search all of them.
    """

    def __init__(self, paths: pa.StringArray, times_ms: pa.Int64Array) -> None:
        self._paths = paths
        self._times_ms = times_ms

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[str]:
        return (path.as_py() for path in self._paths)

    def __getitem__(self, path: str) -> int | None:
        row = pc.index(self._paths, pa.scalar(path, self._paths.type)).as_py()
        if row < 0:
            raise KeyError(path)
        time_ms: int | None = self._times_ms[row].as_py()
        return time_ms

    def items(self) -> ItemsView[str, int | None]:
        """Return all pairs, read in one pass, as a dict's items."""
        return dict(zip(self._paths.to_pylist(), self._times_ms.to_pylist(), strict=True)).items()


@dataclass(frozen=True, slots=True)
class LogFiles:
    """One listing of the log directory: versions that have an entry; whole checkpoints with their files' names."""

    entries: set[int]
    checkpoints: dict[int, tuple[str, ...]]

    @property
    def last_version(self) -> int:
        return max(self.entries, default=-1)


def entry_name(version: int) -> str:
    return f"{LOG_DIRECTORY}/{version:020d}.json"


def _is_entry(name: str) -> bool:
    return name.endswith(".json") and len(_in_log(name)) == _ENTRY_NAME_LENGTH


def checksum_name(version: int) -> str:
    return f"{LOG_DIRECTORY}/{version:020d}{CHECKSUM_SUFFIX}"


def list_log(files: TableFiles, since: int = 0) -> LogFiles:
    """List the log's files of the version ``since`` and later ones; fewer names cost less. Raises OSError."""
    entries: set[int] = set()
    parts: dict[tuple[int, int], list[str]] = {}
    v2: dict[int, tuple[str, ...]] = {}
    prefix = len(LOG_DIRECTORY) + 1
    for name in files.names(LOG_DIRECTORY, f"{LOG_DIRECTORY}/{since:020d}"):
        short = name[prefix:]
        if short.endswith(".json"):
            if len(short) == _ENTRY_NAME_LENGTH and short[:20].isdecimal():
                entries.add(int(short[:20]))
            elif match := _V2_CHECKPOINT.fullmatch(short):
                v2[int(match[1])] = (name,)  # a version may have several; each is whole
        elif match := _CHECKPOINT.fullmatch(short):
            parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(name)
        elif match := _V2_CHECKPOINT.fullmatch(short):
            v2[int(match[1])] = (name,)  # a version may have several; each is whole
    whole = {version: tuple(found) for (version, total), found in parts.items() if len(found) == total}
    return LogFiles(entries, v2 | whole)


# ---- entries --------------------------------------------------------------------------------------------------------


def read_actions(files: TableFiles, version: int) -> list[Action]:
    """Read all actions of one ``N.json``. Raises FileNotFoundError, and CorruptionError if it is not the committed
    entry.
    """
    path = files.where(entry_name(version))
    raw = files.read(entry_name(version))
    try:
        return _parse(version, raw)
    except ValueError as error:
        if is_torn(version, raw):
            raise CorruptionError(
                f"{path} is torn, as by a power cut ({error}). If it is the newest entry: start the store on this data "
                "directory, it sets the entry aside and commits its records again. If later entries stand on it: "
                f"restore it from a backup, or rebuild the log: logstore topic rebuild {files.name}"
            ) from error
        raise CorruptionError(
            f"{path} is damaged, it is not the entry that was committed ({error}). Restore it from a backup, or stop "
            f"the store and rebuild the log: logstore topic rebuild {files.name}"
        ) from error


def read_entry(files: TableFiles, version: int) -> LogEntry:
    """Parse one ``N.json``. Raises FileNotFoundError, and CorruptionError if it is not the entry that was committed."""
    actions = read_actions(files, version)
    commit_id = None
    in_commit_timestamp = None
    transactions: dict[str, int] = {}
    added: set[str] = set()
    removed: dict[str, int | None] = {}
    vectors: dict[str, DeletionVector] = {}
    for action in actions:
        if action.txn is not None:
            transactions[action.txn.app_id] = action.txn.version
        elif action.add is not None:
            added.add(action.add.path)
        elif action.remove is not None:
            removed[action.remove.path] = action.remove.deletion_timestamp
            if action.remove.deletion_vector is not None:
                vectors[action.remove.path] = action.remove.deletion_vector
        elif action.commit_info is not None:
            commit_id = action.commit_info.get(COMMIT_ID_KEY)
            told = action.commit_info.get(IN_COMMIT_TIMESTAMP)
            in_commit_timestamp = told if isinstance(told, int) else None
    change = state_change(actions)
    return LogEntry(transactions, frozenset(added), removed, change, commit_id, vectors, in_commit_timestamp)


def adds_last(actions: Iterable[Action]) -> list[Action]:
    """Order the actions of an entry so that they can be done one by one. A deletion vector replaces a file by the same
    file, and Spark writes its add before its remove.
    """
    return sorted(actions, key=lambda action: action.add is not None)


def is_ours(files: TableFiles, version: int) -> bool:
    """Return whether this project made the commit; true if its entry is gone. Raises CorruptionError and OSError."""
    try:
        return read_entry(files, version).commit_id is not None
    except FileNotFoundError:
        return True


def _parse(version: int, raw: bytes) -> list[Action]:
    """Return the actions of one entry. Raises ValueError with the reason if ``raw`` is not a whole entry."""
    actions = _decode(raw)
    if not actions:
        raise ValueError("it is empty")
    digest = stored_digest(actions)
    if digest is not None and digest != (actual := entry_digest(version, actions)):
        raise ValueError(f"its digest is {digest}, its actions make {actual}")
    return actions


def _decode(raw: bytes) -> list[Action]:
    raw.decode()  # msgspec does not check text that it skips; delta-rs does
    try:
        return DECODER.decode_lines(raw)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def is_torn(version: int, raw: bytes) -> bool:
    """Return whether a power cut explains ``raw``: an entry that was not synced is left empty, with zeros, or cut
    short.

    A flipped bit in the last line can look like a cut. Any other damage was done to an entry that was durable.
    """
    with contextlib.suppress(ValueError):
        _parse(version, raw)
        return False
    # Zeros fill at least a sector, or reach to the end. A single zero is a blank (0x20) with a flipped bit.
    if not raw or raw.endswith(b"\0") or b"\0\0" in raw:
        return True
    head, _, last = raw.removesuffix(b"\n").rpartition(b"\n")
    try:
        actions = _decode(head)
    except ValueError:
        return False
    try:
        actions += _decode(last)
    except ValueError as error:
        return str(error) == _CUT or getattr(error, "reason", "") == _CUT_LETTER
    return _lacks_actions(version, actions)


def _lacks_actions(version: int, actions: Sequence[Action]) -> bool:
    """Return whether an entry of these actions was cut between lines: its digest counts more, and sums up others."""
    promised, _, total = (stored_digest(actions) or "").partition(":")
    count, _, actual = entry_digest(version, actions).partition(":")
    return promised.isdecimal() and int(promised) > int(count) and total != actual


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def checksums(files: TableFiles, parts: Sequence[str]) -> dict[str, str]:
    """Return the content of the checksum file for a checkpoint of these files: CRC-32C by name."""
    return {_in_log(part): f"{crc32c(files.read(part)):08x}" for part in parts}


def vouch(files: TableFiles, version: int, sums: dict[str, str]) -> None:
    """Write the checksum file of a checkpoint, durably. Raises OSError."""
    name, content = checksum_name(version), msgspec.json.encode(sums)
    while not files.put_if_absent(name, content):
        with contextlib.suppress(FileNotFoundError):
            if files.replace(name, content, files.head(name)):
                return


def stored_checksums(files: TableFiles, version: int) -> dict[str, str] | None:
    """Return the checksums in the file beside a checkpoint; None if no file exists, empty if it is unreadable."""
    try:
        return msgspec.json.decode(files.read(checksum_name(version)), type=dict[str, str])
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _in_log(name: str) -> str:
    return name.removeprefix(f"{LOG_DIRECTORY}/")


def read_checkpoint_part(files: TableFiles, name: str) -> LogEntry:
    """Read transactions and paths of a checkpoint file. Raises FileNotFoundError, and CorruptionError if it was
    changed.
    """
    remedy = (
        "Start the store on this data directory: it sets the checkpoint aside if older log files still cover it; if "
        "they do not, restore it from a backup, or stop the store and rebuild the log: logstore topic rebuild "
        f"{files.name}"
    )
    path, short = files.where(name), _in_log(name)
    version = int(short[:20])
    raw = files.read(name)
    stored, actual = stored_checksums(files, version), f"{crc32c(raw):08x}"
    if stored is not None and stored.get(short) != actual:
        raise CorruptionError(
            f"{path} or {_in_log(checksum_name(version))} beside it is damaged: CRC-32C {actual}, noted is "
            f"{stored.get(short, 'none')}. {remedy}"
        )
    try:
        actions, tables = _contents(files, name, raw, _COLUMNS_READ)
        change = joined_changes(
            [
                state_change(actions),
                *(change_of_rows(*(_rows(table, column) for column in _OF_STATE)) for table in tables),
            ]
        )
        transactions = {action.txn.app_id: action.txn.version for action in actions if action.txn is not None}
        transactions |= {row["appId"]: row["version"] for table in tables for row in _rows(table, "txn")}
        removals = [_removed(table) for table in tables]
        vectors = {path: vector for table in tables for path, vector in _vectors(table).items()}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise CorruptionError(f"{path} is not a readable Delta checkpoint: {error}. {remedy}") from error
    removed = removals[0] if len(removals) == 1 else {at: ms for part in removals for at, ms in part.items()}
    return LogEntry(transactions, frozenset(file.path for file in change.added), removed, change, vectors=vectors)


def _contents(
    files: TableFiles, name: str, raw: bytes, columns: Sequence[str] | None = None
) -> tuple[list[Action], list[pa.Table]]:
    """Return the actions of a checkpoint file as they are in it, as JSON or as rows; a V2 checkpoint has more rows in
    sidecars. Raises pa.ArrowException, OSError, ValueError.
    """
    if name.endswith(".json"):
        actions, tables = _decode(raw), []
        sidecars = [action.sidecar.path for action in actions if action.sidecar is not None]
    else:
        actions, tables = [], [_parquet(raw, columns)]
        sidecars = [row["path"] for row in _rows(tables[0], "sidecar")]
    for path in sidecars:
        content = files.read(f"{LOG_DIRECTORY}/{SIDECARS}/{path.rpartition('/')[2]}")
        tables.append(_parquet(content, columns))
    return actions, tables


def _parquet(raw: bytes, columns: Sequence[str] | None) -> pa.Table:
    file = pq.ParquetFile(pa.BufferReader(raw), coerce_int96_timestamp_unit="us")
    return file.read(columns=None if columns is None else list(columns))


def read_checkpoint_actions(files: TableFiles, parts: Sequence[str]) -> list[Action]:
    """Read all actions, and so every page, of a checkpoint. Raises FileNotFoundError, and ValueError if it is
    unreadable.
    """
    actions: list[Action] = []
    for part in parts:
        raw = files.read(part)
        try:
            found, tables = _contents(files, part, raw)
            rows = [row for table in tables for row in table.to_pylist(maps_as_pydicts="strict")]
            actions += [*found, *msgspec.convert(rows, list[Action])]
        except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
            raise ValueError(f"{files.where(part)} is not a readable Delta checkpoint: {error}") from error
    return actions


def _rows(table: pa.Table, column: str) -> list[dict[str, Any]]:
    """Return the rows of one kind of action."""
    if column not in table.column_names:
        return []
    rows: list[dict[str, Any]] = table.column(column).drop_null().to_pylist(maps_as_pydicts="strict")
    return rows


def _vectors(table: pa.Table) -> dict[str, DeletionVector]:
    """Return the vectors of removed files; most tables have none."""
    if "remove" not in table.column_names:
        return {}
    removals = table.column("remove").drop_null().combine_chunks()
    at = removals.type.get_field_index("deletionVector")
    if at < 0:
        return {}
    rows = removals.filter(removals.field(at).is_valid()).to_pylist()
    return {row["path"]: msgspec.convert(row["deletionVector"], DeletionVector) for row in rows}


def _removed(table: pa.Table) -> Mapping[str, int | None]:
    if "remove" not in table.column_names:
        return {}
    removals = table.column("remove").drop_null().combine_chunks()
    has_times = removals.type.get_field_index("deletionTimestamp") >= 0
    times = removals.field("deletionTimestamp") if has_times else pa.nulls(len(removals), pa.int64())
    return CheckpointRemovals(removals.field("path"), times)


class LogState:
    """The log up to one version, as far as this project reads it itself."""

    def __init__(self, version: int, entries: Sequence[LogEntry]) -> None:
        self.version = version
        self._entries = entries
        self.transactions: dict[str, int] = {}
        for entry in entries:
            self.transactions.update(entry.transactions)

    @property
    def has_checkpoint(self) -> bool:
        """True if it begins with a checkpoint."""
        return len(self._entries) <= self.version

    @cached_property
    def table(self) -> TableState | None:
        """The table that results from the log; None if the log has neither protocol nor metadata."""
        return table_state([(entry.change, entry.removed.keys()) for entry in self._entries])

    @property
    def in_commit_timestamp(self) -> int | None:
        """The timestamp of the newest entry; None if it has none, or if a checkpoint replaced it."""
        return self._entries[-1].in_commit_timestamp if self._entries else None

    def removed_vectors(self) -> list[tuple[DeletionVector, int | None]]:
        """Return the vectors of removed files, and the times (ms) of removal; a file may have another vector since."""
        return [(vector, entry.removed[path]) for entry in self._entries for path, vector in entry.vectors.items()]

    def removals(self) -> dict[str, int | None]:
        """Return the paths that a commit removed, and when (ms); None if the log does not say when. The dict is made
        for each call, because it may be large. A checkpoint forgets removals after a while: see
        ``schema.removals_kept_ms``.
        """
        removed: dict[str, int | None] = {}
        for entry in self._entries:
            for path in entry.added & removed.keys():
                del removed[path]
            # A deletion vector replaces a file by the same file.
            removed |= {path: at for path, at in entry.removed.items() if path not in entry.added}
        return removed

    @property
    def has_removals(self) -> bool:
        return any(entry.removed for entry in self._entries)

    def was_removed(self, path: str) -> bool:
        """Return whether ``path in removals()``, without a walk over all removals."""
        last = next((e for e in reversed(self._entries) if path in e.removed or path in e.added), None)
        return last is not None and path in last.removed


class LogReplay:
    """Replays one table's log. Not safe for use from several threads at once."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        self._parsed: dict[str, tuple[Entry, LogEntry]] = {}
        #: The checkpoint of the last state. The log before it matters only for older versions.
        self._base = 0

    @property
    def contents(self) -> dict[str, Entry]:
        """The files that made the last state, by name."""
        return {name: known[0] for name, known in self._parsed.items()}

    def perhaps_not_durable(self) -> list[str]:
        """Return the entries of the last state, except ours below a later one of ours (see ``Committer.sync``)."""
        entries = [(name, entry.commit_id) for name, (_, entry) in self._parsed.items() if _is_entry(name)]
        last_own = max((at for at, (_, commit_id) in enumerate(entries) if commit_id is not None), default=-1)
        return [name for at, (name, commit_id) in enumerate(entries) if commit_id is None or at == last_own]

    def state(self, version: int | None = None) -> LogState:
        """Return the log up to ``version``, by default the newest. Raises CorruptionError if it has a hole or cannot be
        parsed, and OSError.
        """
        try:
            found, names = self._list(version, self._base)
        except CorruptionError:
            # A listing of a directory to which others write is not atomic, so a hole counts only if two listings have
            # it.
            found, names = self._list(version, 0)
        parsed: dict[str, tuple[Entry, LogEntry]] = {}
        for name in names:
            now = self._files.head(name)
            known = self._parsed.get(name)
            if known is None or known[0] != now:
                known = now, self._read(name)
            parsed[name] = known
        self._parsed = parsed
        return LogState(found, [entry for _, entry in parsed.values()])

    def _read(self, name: str) -> LogEntry:
        if _is_entry(name):
            return read_entry(self._files, int(_in_log(name)[:20]))
        return read_checkpoint_part(self._files, name)

    def _list(self, version: int | None, since: int) -> tuple[int, list[str]]:
        """Return the version found, and the files to read for it, in order. Raises CorruptionError if a file is
        missing.
        """
        found = list_log(self._files, since)
        if not found.entries and not found.checkpoints:
            if since:
                return self._list(version, 0)
            raise FileNotFoundError(errno.ENOENT, "there is no Delta log", self._files.where(LOG_DIRECTORY))
        if version is None:
            version = found.last_version if found.entries else max(found.checkpoints, default=-1)
        base = max((v for v in found.checkpoints if v <= version), default=-1)
        names = list(found.checkpoints.get(base, ()))
        for number in range(base + 1, version + 1):
            if number not in found.entries:
                path = self._files.where(entry_name(number))
                raise CorruptionError(
                    f"{path} is missing, and no checkpoint covers it: restore it from a backup, or stop the store and "
                    f"rebuild the log: logstore topic rebuild {self._files.name}"
                )
            names.append(entry_name(number))
        self._base = max(base, 0)
        return version, names
