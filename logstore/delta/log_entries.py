"""The files of ``_delta_log`` as this project reads them itself: application transactions, paths, commit ids.

delta-rs hands out one application transaction per call, each a replay of the log (about 1 ms); a topic has several
per partition. Here one replay reads them all: the newest whole checkpoint up to a version, then every later entry. A
file is parsed once per content: another inode, size or modification time, as after a foreign commit that renamed over
an entry, makes it new.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from logstore.errors import CorruptionError

LOG_DIRECTORY = "_delta_log"
#: Key in ``commitInfo`` of a value that no other commit has.
COMMIT_ID_KEY = "logstore.commit_id"

_ENTRY_NAME_LENGTH = len("00000000000000000000.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")


class _Txn(msgspec.Struct, rename="camel"):
    app_id: str
    version: int


class _File(msgspec.Struct):
    path: str


class _CommitInfo(msgspec.Struct):
    commit_id: str | None = msgspec.field(default=None, name=COMMIT_ID_KEY)


class _Action(msgspec.Struct, rename="camel"):
    txn: _Txn | None = None
    add: _File | None = None
    remove: _File | None = None
    commit_info: _CommitInfo | None = None


_DECODER = msgspec.json.Decoder(_Action)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """What one commit, or one checkpoint part, says."""

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


def list_log(table_path: Path) -> LogFiles:
    log = table_path / LOG_DIRECTORY
    entries: set[int] = set()
    parts: dict[tuple[int, int], list[Path]] = {}
    # Names only: a Path for each of some thousand entries would be most of the cost of a commit.
    for name in os.listdir(log):  # noqa: PTH208
        if name.endswith(".json"):
            if len(name) == _ENTRY_NAME_LENGTH and name[:20].isdecimal():
                entries.add(int(name[:20]))
        elif match := _CHECKPOINT.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(log / name)
    whole = {version: tuple(sorted(paths)) for (version, total), paths in parts.items() if len(paths) == total}
    return LogFiles(entries, whole)


def read_entry(path: Path) -> LogEntry:
    """Parse one ``N.json``. FileNotFoundError; CorruptionError if it is not lines of actions."""
    transactions: dict[str, int] = {}
    added: set[str] = set()
    removed: set[str] = set()
    commit_id = None
    try:
        actions = _DECODER.decode_lines(path.read_bytes())
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{path} is not a Delta log entry: {error}") from error
    for action in actions:
        if action.txn is not None:
            transactions[action.txn.app_id] = action.txn.version
        elif action.add is not None:
            added.add(action.add.path)
        elif action.remove is not None:
            removed.add(action.remove.path)
        elif action.commit_info is not None:
            commit_id = action.commit_info.commit_id
    return LogEntry(transactions, frozenset(added), frozenset(removed), commit_id)


def read_checkpoint_part(path: Path) -> LogEntry:
    """Transactions and tombstones of a checkpoint file. FileNotFoundError; CorruptionError if it is unreadable."""
    try:
        table = pq.ParquetFile(path).read(columns=["txn.appId", "txn.version", "add.path", "remove.path"])
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptionError(f"{path} is not a readable Delta checkpoint: {error}") from error
    transactions = {row["appId"]: row["version"] for row in _rows(table, "txn")}
    added, removed = (frozenset(row["path"] for row in _rows(table, column)) for column in ("add", "remove"))
    return LogEntry(transactions, added, removed)


def _rows(table: pa.Table, column: str) -> list[dict[str, Any]]:
    if column not in table.column_names:
        return []
    rows: list[dict[str, Any]] = table.column(column).drop_null().to_pylist()
    return rows


class LogState:
    """The log up to one version, as far as this project reads it itself."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
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
        self._parsed: dict[Path, tuple[tuple[int, int, int], LogEntry]] = {}

    def state(self, version: int) -> LogState:
        """The log up to ``version``. CorruptionError if it has a hole or cannot be parsed; OSError."""
        files = list_log(self._table_path)
        base = max((v for v in files.checkpoints if v <= version), default=-1)
        paths = list(files.checkpoints.get(base, ()))
        for number in range(base + 1, version + 1):
            path = entry_path(self._table_path, number)
            if number not in files.entries:
                raise CorruptionError(f"{path} is missing, and no checkpoint covers it: restore it")
            paths.append(path)
        parsed: dict[Path, tuple[tuple[int, int, int], LogEntry]] = {}
        for path in paths:
            status = path.stat()
            signature = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._parsed.get(path)
            if known is None or known[0] != signature:
                known = signature, read_entry(path) if path.suffix == ".json" else read_checkpoint_part(path)
            parsed[path] = known
        self._parsed = parsed
        return LogState([entry for _, entry in parsed.values()])
