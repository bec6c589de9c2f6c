"""The files of ``_delta_log`` as this project reads them itself: application transactions, paths, commit ids.

delta-rs hands out one application transaction per call, each a replay of the log (about 1 ms); a topic has several per
partition. Here one replay reads them all: the newest whole checkpoint up to a version, then every later entry. A file
is parsed once per content. Its inode, size and modification time tell its content: a foreign commit that renames over
an entry changes them.

Invariant: an entry with a digest and a checkpoint with a checksum file (all of ours have them) are compared with these
before anything is taken from them; CorruptionError names a file that differs. delta-rs checks neither, and takes an
empty entry for a commit that changed nothing.
"""

import contextlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.crc32c import crc32c
from logstore.delta.actions import COMMIT_ID_KEY, DECODER, Action, Add, entry_digest, stored_digest
from logstore.errors import CorruptionError
from logstore.segments.names import known_segment_name

LOG_DIRECTORY = "_delta_log"
#: Suffix of the file with the CRC-32C of a checkpoint's parts, beside each checkpoint of ours. No Delta reader or
#: clean-up knows it.
CHECKSUM_SUFFIX = ".checkpoint.crc32c"

_ENTRY_NAME_LENGTH = len("00000000000000000000.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")

_TICK_NS_MAX = 2 * 10**9

#: The messages of msgspec and Python for a document and a UTF-8 sequence that end too early.
_CUT = "Input data was truncated"
_CUT_LETTER = "unexpected end of data"

#: Inode, size and modification time: they tell one content of a name from another.
Signature = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """Transactions and paths in one commit or one checkpoint part."""

    transactions: dict[str, int]
    added: frozenset[str]
    removed: frozenset[str]
    commit_id: str | None = None


@dataclass(frozen=True, slots=True)
class LogFiles:
    """One listing of the log directory: versions that have an entry; whole checkpoints with their files."""

    entries: set[int]
    checkpoints: dict[int, tuple[Path, ...]]

    @property
    def last_version(self) -> int:
        return max(self.entries, default=-1)


def entry_path(table_path: Path, version: int) -> Path:
    return table_path / LOG_DIRECTORY / f"{version:020d}.json"


def checksum_path(table_path: Path, version: int) -> Path:
    return table_path / LOG_DIRECTORY / f"{version:020d}{CHECKSUM_SUFFIX}"


def signature(path: Path) -> Signature:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def log_mark(table_path: Path) -> int | None:
    """When a name was last added to the log directory or removed from it; None if that was just now, or if there is no
    log.

    File systems count this time in ticks of up to two seconds, and two names may come within one tick.
    """
    try:
        changed = (table_path / LOG_DIRECTORY).stat().st_mtime_ns
    except OSError:
        return None
    return changed if time.time_ns() - changed > _TICK_NS_MAX else None


def list_log(table_path: Path) -> LogFiles:
    log = table_path / LOG_DIRECTORY
    entries: set[int] = set()
    parts: dict[tuple[int, int], list[Path]] = {}
    # Names only: a Path for each of thousands of entries would be most of the cost of a commit.
    for name in os.listdir(log):  # noqa: PTH208
        if name.endswith(".json"):
            if len(name) == _ENTRY_NAME_LENGTH and name[:20].isdecimal():
                entries.add(int(name[:20]))
        elif match := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(log / name)
    whole = {version: tuple(sorted(paths)) for (version, total), paths in parts.items() if len(paths) == total}
    return LogFiles(entries, whole)


# ---- entries --------------------------------------------------------------------------------------------------------


def read_actions(path: Path) -> list[Action]:
    """All actions of one ``N.json``. FileNotFoundError; CorruptionError if it is not the entry that was committed."""
    raw, version = path.read_bytes(), int(path.stem)
    try:
        return _parse(version, raw)
    except ValueError as error:
        if is_torn(version, raw):
            raise CorruptionError(
                f"{path} is torn, as by a power cut ({error}). If it is the newest entry: start the store on this data "
                "directory, it sets the entry aside and commits its records again. If later entries stand on it: "
                "restore it from a backup"
            ) from error
        raise CorruptionError(
            f"{path} is damaged, it is not the entry that was committed ({error}). Restore it from a backup"
        ) from error


def read_entry(path: Path) -> LogEntry:
    """Parse one ``N.json``. FileNotFoundError; CorruptionError if it is not the entry that was committed."""
    actions = read_actions(path)
    commit_id = None
    transactions: dict[str, int] = {}
    added: set[str] = set()
    removed: set[str] = set()
    for action in actions:
        if action.txn is not None:
            transactions[action.txn.app_id] = action.txn.version
        elif action.add is not None:
            added.add(action.add.path)
        elif action.remove is not None:
            removed.add(action.remove.path)
        elif action.commit_info is not None:
            commit_id = action.commit_info.get(COMMIT_ID_KEY)
    return LogEntry(transactions, frozenset(added), frozenset(removed), commit_id)


@dataclass(frozen=True, slots=True)
class Removal:
    """The commit that took a file out of the table: ``ours``, or another writer's ``operation``.

    ``bounds`` are the file's partition, base offset and end, if the entry that added it is still there.
    """

    version: int
    operation: str
    ours: bool
    bounds: tuple[int, int, int] | None = None


def removals_since(table_path: Path, version: int) -> dict[str, Removal]:
    """The files that entries after ``version`` removed for good, as far as those entries are still there.

    CorruptionError, OSError.
    """
    found: dict[str, Removal] = {}
    bounds: dict[str, tuple[int, int, int]] = {}
    for number in sorted(list_log(table_path).entries):
        try:
            actions = read_actions(entry_path(table_path, number))
        except FileNotFoundError:
            continue  # cleaned up meanwhile
        info: dict[str, Any] = next((a.commit_info for a in actions if a.commit_info is not None), {})
        added = [action.add for action in actions if action.add is not None]
        bounds.update((add.path, known) for add in added if (known := _bounds(add)) is not None)
        if number <= version:
            continue
        for action in actions:
            if action.remove is not None:
                path = action.remove.path
                ours = info.get(COMMIT_ID_KEY) is not None
                found[path] = Removal(number, str(info.get("operation")), ours, bounds.get(path))
        for add in added:
            found.pop(add.path, None)
    return found


def _bounds(add: Add) -> tuple[int, int, int] | None:
    """Partition, base offset and end of a file, as its name or its statistics have them."""
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


def _parse(version: int, raw: bytes) -> list[Action]:
    """The actions of one entry. ValueError with the reason if ``raw`` is not a whole entry."""
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
    """Whether a power cut explains ``raw``: an entry that was not synced is left empty, with zeros, or cut short.

    A flipped bit in the last line can look like a cut. Any other damage was done to an entry that was durable.
    """
    with contextlib.suppress(ValueError):
        _parse(version, raw)
        return False
    # Zeros are at least a sector, or reach to the end. A single zero is a blank (0x20) with a flipped bit.
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
    """Whether an entry of these actions was cut between two lines: its digest counts more, and sums up others."""
    promised, _, total = (stored_digest(actions) or "").partition(":")
    count, _, actual = entry_digest(version, actions).partition(":")
    return promised.isdecimal() and int(promised) > int(count) and total != actual


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def checksums(paths: Sequence[Path]) -> dict[str, str]:
    """The content of the checksum file for a checkpoint of these files: CRC-32C by name."""
    return {path.name: f"{crc32c(path.read_bytes()):08x}" for path in paths}


def stored_checksums(part: Path) -> dict[str, str] | None:
    """The checksums in the file beside a checkpoint part; None if there is no file, empty if it is unreadable."""
    try:
        return msgspec.json.decode(_checksum_file(part).read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _checksum_file(part: Path) -> Path:
    return checksum_path(part.parent.parent, int(part.name[:20]))


def read_checkpoint_part(path: Path) -> LogEntry:
    """Transactions and tombstones of a checkpoint file. FileNotFoundError; CorruptionError if it was changed or is
    unreadable.
    """
    remedy = (
        "Start the store on this data directory: it sets the checkpoint aside if older log files still cover it; if "
        "they do not, restore it from a backup"
    )
    raw = path.read_bytes()
    stored, actual = stored_checksums(path), f"{crc32c(raw):08x}"
    if stored is not None and stored.get(path.name) != actual:
        raise CorruptionError(
            f"{path} or {_checksum_file(path).name} beside it is damaged: CRC-32C {actual}, noted is "
            f"{stored.get(path.name, 'none')}. {remedy}"
        )
    try:
        table = pq.ParquetFile(pa.BufferReader(raw)).read(
            columns=["txn.appId", "txn.version", "add.path", "remove.path"]
        )
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{path} is not a readable Delta checkpoint: {error}. {remedy}") from error
    transactions = {row["appId"]: row["version"] for row in _rows(table, "txn")}
    added, removed = (frozenset(row["path"] for row in _rows(table, column)) for column in ("add", "remove"))
    return LogEntry(transactions, added, removed)


def read_checkpoint_actions(parts: Sequence[Path]) -> list[Action]:
    """All actions of a checkpoint, every page read. FileNotFoundError; ValueError if it cannot be read."""
    actions: list[Action] = []
    for part in parts:
        raw = part.read_bytes()
        try:
            rows = pq.ParquetFile(pa.BufferReader(raw)).read().to_pylist(maps_as_pydicts="strict")
            actions += msgspec.convert(rows, list[Action])
        except (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError) as error:
            raise ValueError(f"{part} is not a readable Delta checkpoint: {error}") from error
    return actions


def _rows(table: pa.Table, column: str) -> list[dict[str, Any]]:
    if column not in table.column_names:
        return []
    rows: list[dict[str, Any]] = table.column(column).drop_null().to_pylist()
    return rows


class LogState:
    """The log up to one version, as far as this project reads it itself."""

    def __init__(self, version: int, entries: Sequence[LogEntry]) -> None:
        self.version = version
        self._entries = entries
        self.transactions: dict[str, int] = {}
        for entry in entries:
            self.transactions.update(entry.transactions)

    @cached_property
    def tombstones(self) -> frozenset[str]:
        """Paths that a commit removed, while the log remembers (``delta.deletedFileRetentionDuration``, 7 days)."""
        removed: set[str] = set()
        for entry in self._entries:
            removed -= entry.added
            removed |= entry.removed
        return frozenset(removed)


class LogReplay:
    """Replays one table's log. Not safe for use from several threads at once."""

    def __init__(self, table_path: Path) -> None:
        self._table_path = table_path
        self._parsed: dict[Path, tuple[Signature, LogEntry]] = {}

    @property
    def contents(self) -> dict[Path, Signature]:
        """The files that made the last state."""
        return {path: known[0] for path, known in self._parsed.items()}

    def perhaps_not_durable(self) -> list[Path]:
        """Entries of the last state, except ours that have a later one of ours above them (see ``Committer.sync``)."""
        entries = [(path, entry.commit_id) for path, (_, entry) in self._parsed.items() if path.suffix == ".json"]
        last_own = max((at for at, (_, commit_id) in enumerate(entries) if commit_id is not None), default=-1)
        return [path for at, (path, commit_id) in enumerate(entries) if commit_id is None or at == last_own]

    def state(self, version: int | None = None) -> LogState:
        """The log up to ``version``, the newest unless told. CorruptionError if it has a hole or cannot be parsed;
        OSError.
        """
        try:
            found, paths = self._files(version)
        except CorruptionError:
            # A listing of a directory that others write to is not atomic: only a hole in two of them is one.
            found, paths = self._files(version)
        parsed: dict[Path, tuple[Signature, LogEntry]] = {}
        for path in paths:
            now = signature(path)
            known = self._parsed.get(path)
            if known is None or known[0] != now:
                known = now, read_entry(path) if path.suffix == ".json" else read_checkpoint_part(path)
            parsed[path] = known
        self._parsed = parsed
        return LogState(found, [entry for _, entry in parsed.values()])

    def _files(self, version: int | None) -> tuple[int, list[Path]]:
        """The version found, and the files to read for it, in order. CorruptionError if one is missing."""
        files = list_log(self._table_path)
        if version is None:
            version = files.last_version if files.entries else max(files.checkpoints, default=-1)
        base = max((v for v in files.checkpoints if v <= version), default=-1)
        paths = list(files.checkpoints.get(base, ()))
        for number in range(base + 1, version + 1):
            path = entry_path(self._table_path, number)
            if number not in files.entries:
                raise CorruptionError(f"{path} is missing, and no checkpoint covers it: restore it")
            paths.append(path)
        return version, paths
