"""Repairs that a start makes in ``_delta_log`` by itself: only those that lose nothing.

- The newest entries are set aside if a power cut tore them (``is_torn``): they were not durable, so nobody was told of
  them. Their records are in the journal or in segment files still; the broker commits them again.
- A checkpoint that does not match its checksum file is set aside if the entries that are still there cover it. A
  checkpoint without such a file (another writer made it, or a crash came between) is set aside only if it cannot be
  read or says something else than the entries; one that says the same gets its checksum file.
- ``_last_checkpoint`` is removed if it names no checkpoint. So are Spark's checksums of versions that are not there.

A file that is set aside is renamed to ``<name>.set-aside``; no Delta reader, writer or clean-up takes such a name for
its own. Any other damaged file stays where it is, and its readers refuse it (``log_entries``).
"""

import contextlib
import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from logstore.delta.actions import Action
from logstore.delta.log_entries import (
    CHECKSUM_SUFFIX,
    LOG_DIRECTORY,
    LogFiles,
    checksum_path,
    checksums,
    entry_path,
    is_torn,
    list_log,
    read_actions,
    read_checkpoint_actions,
    stored_checksums,
)
from logstore.errors import CorruptionError
from logstore.filesystem import FileSystem

log = structlog.stdlib.get_logger(__name__)

LAST_CHECKPOINT = "_last_checkpoint"
_SUFFIX = ".set-aside"
_SPARK_CHECKSUM = re.compile(r"\.?(\d{20})\.")


class _Hint(msgspec.Struct):
    version: int


def repair_log(table_path: Path, filesystem: FileSystem) -> None:
    """Do all repairs; for the table's owner, before anybody reads the table. OSError."""
    _check_checkpoints(table_path, filesystem)
    drop_stale_checksums(table_path, filesystem)
    _set_aside_torn_entries(table_path, filesystem)
    _drop_checksums_ahead(table_path, filesystem)
    drop_bad_hint(table_path, filesystem)


def drop_bad_hint(table_path: Path, filesystem: FileSystem) -> None:
    """Remove a ``_last_checkpoint`` that names no checkpoint. Readers need no hint, but some fail on a wrong one."""
    path = table_path / LOG_DIRECTORY / LAST_CHECKPOINT
    try:
        version = msgspec.json.decode(path.read_bytes(), type=_Hint).version
    except FileNotFoundError:
        return
    except (msgspec.MsgspecError, UnicodeDecodeError):
        version = -1
    if version not in list_log(table_path).checkpoints:
        filesystem.unlink(path)
        filesystem.sync_directory(path.parent)
        log.warning("delta.hint_removed", file=str(path), version=version)


def _set_aside_torn_entries(table_path: Path, filesystem: FileSystem) -> None:
    files = list_log(table_path)
    base = max(files.checkpoints, default=-1)
    for version in itertools.count(files.last_version, -1):
        path = entry_path(table_path, version)
        # Durable for certain: the first entry (before there was a topic), and entries below a checkpoint.
        if version <= max(base, 0) or not path.exists() or not is_torn(version, path.read_bytes()):
            return
        _set_aside(path, filesystem, "torn by a power cut; nobody was told of its commit")


def _check_checkpoints(table_path: Path, filesystem: FileSystem) -> None:
    files = list_log(table_path)
    newest_first = sorted(files.checkpoints, reverse=True)
    base = next((version for version in newest_first if _is_vouched_for(files.checkpoints[version])), -1)
    for version in sorted(v for v in files.checkpoints if v > base):
        parts = files.checkpoints[version]
        covering = _covering(table_path, files, base, version)
        if covering is not None:
            why = "it does not match its checksum file; the entries cover it"
            # A checkpoint that does not match its checksum file has changed since: its content proves nothing.
            if stored_checksums(parts[0]) is None:
                try:
                    compared = checksums(parts)
                    found = _difference(parts, covering)
                    if found is None:
                        _vouch(table_path, version, parts, compared, filesystem)
                        base = version
                        continue
                except FileNotFoundError:
                    continue  # another writer's clean-up of the log
                why = f"no checksum vouches for this checkpoint, and {found}; the entries cover it"
            if _set_checkpoint_aside(table_path, base, version, parts, filesystem, why):
                continue
        if all(part.exists() for part in parts):
            base = version


def _is_vouched_for(parts: tuple[Path, ...]) -> bool:
    stored = stored_checksums(parts[0])
    with contextlib.suppress(FileNotFoundError):  # another writer's clean-up of the log
        return stored is not None and stored == checksums(parts)
    return False


def _covering(table_path: Path, files: LogFiles, base: int, version: int) -> list[Action] | None:
    """The actions of the checkpoint of ``base`` and of the entries up to ``version``; None if not all can be read."""
    needed = range(base + 1, version + 1)
    if not files.entries.issuperset(needed):
        return None
    try:
        actions = read_checkpoint_actions(files.checkpoints.get(base, ()))
        for number in needed:
            actions += read_actions(entry_path(table_path, number))
    except (CorruptionError, ValueError, FileNotFoundError):
        return None
    return actions


def _difference(parts: tuple[Path, ...], covering: list[Action]) -> str | None:
    """How a checkpoint differs from the state that ``covering`` makes; None if it does not."""
    try:
        actual, expected = _outcome(read_checkpoint_actions(parts)), _outcome(covering)
    except ValueError as error:
        return str(error)
    return next((f"its {what} differ" for what in expected if actual[what] != expected[what]), None)


def _outcome(actions: Iterable[Action]) -> dict[str, Any]:
    """The table's state after ``actions``, without the parts that a checkpoint may leave out (tombstones,
    ``dataChange``).
    """
    transactions: dict[str, int] = {}
    files: dict[str, Any] = {}
    metadata: Any = None
    protocol: Any = None
    for action in actions:
        if action.txn is not None:
            transactions[action.txn.app_id] = action.txn.version
        elif action.add is not None:
            add = action.add
            stats = None if add.stats is None else msgspec.json.decode(add.stats)
            files[add.path] = add.size, add.partition_values, add.modification_time, stats
        elif action.remove is not None:
            files.pop(action.remove.path, None)
        elif action.meta_data is not None:
            now = action.meta_data
            schema = msgspec.json.decode(now.schema_string or "null")
            metadata = now.id, schema, now.partition_columns or [], now.configuration or {}
        elif action.protocol is not None:
            protocol = action.protocol
    return {"transactions": transactions, "files": files, "metadata": metadata, "protocol": protocol}


def _vouch(
    table_path: Path, version: int, parts: tuple[Path, ...], compared: dict[str, str], filesystem: FileSystem
) -> None:
    """Sync another writer's checkpoint, then write its checksum file, unless a new one was renamed over it."""
    for part in parts:
        filesystem.sync_file(part)
    filesystem.sync_directory(table_path / LOG_DIRECTORY)
    if checksums(parts) != compared:
        return
    filesystem.write_atomically(checksum_path(table_path, version), msgspec.json.encode(compared))
    log.info("delta.checkpoint_vouched", table=str(table_path), version=version)


def _set_checkpoint_aside(
    table_path: Path, base: int, version: int, parts: tuple[Path, ...], filesystem: FileSystem, why: str
) -> bool:
    """Whether it was set aside; not if another writer cleaned up the covering entries meanwhile."""
    renamed = [(part, _set_aside(part, filesystem, why)) for part in parts if part.exists()]
    files = list_log(table_path)
    if files.entries.issuperset(range(base + 1, version + 1)) and (base < 0 or base in files.checkpoints):
        return True
    for part, aside in renamed:
        filesystem.rename(aside, part)
    filesystem.sync_directory(table_path / LOG_DIRECTORY)
    log.warning("delta.put_back", table=str(table_path), version=version, why="what covers it was cleaned up")
    return False


def drop_stale_checksums(table_path: Path, filesystem: FileSystem) -> None:
    """Remove checksum files, ours and Spark's, of checkpoints that are gone: the next checkpoint of that version would
    not match them.
    """
    checkpoints = list_log(table_path).checkpoints
    log_directory = table_path / LOG_DIRECTORY
    stale = [p for p in log_directory.glob("*" + CHECKSUM_SUFFIX) if int(p.name[:20]) not in checkpoints]
    spark = log_directory.glob(".*.checkpoint*.parquet.crc")
    stale += [p for p in spark if not p.with_name(p.name[1:].removesuffix(".crc")).exists()]
    for path in stale:
        filesystem.unlink(path)
    if stale:
        filesystem.sync_directory(log_directory)


def _drop_checksums_ahead(table_path: Path, filesystem: FileSystem) -> None:
    """Spark's checksum files of versions that are not there: delta-rs refuses the log over them, and Spark the next
    entry of their name.
    """
    files = list_log(table_path)
    newest = max((files.last_version, *files.checkpoints))
    log_directory = table_path / LOG_DIRECTORY
    ahead = [p for p in log_directory.glob("*.crc") if (m := _SPARK_CHECKSUM.match(p.name)) and int(m[1]) > newest]
    for path in ahead:
        filesystem.unlink(path)
    if ahead:
        filesystem.sync_directory(log_directory)


def _set_aside(path: Path, filesystem: FileSystem, why: str) -> Path:
    names = (path.with_name(f"{path.name}{_SUFFIX}{n or ''}") for n in itertools.count())
    aside = next(name for name in names if not name.exists())
    filesystem.rename(path, aside)
    filesystem.sync_directory(path.parent)
    log.warning("delta.set_aside", file=str(path), now=aside.name, why=why)
    return aside
