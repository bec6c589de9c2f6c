"""Repairs that a start makes in ``_delta_log`` by itself: only those that lose nothing.

- The newest entries are set aside if a power cut tore them (``is_torn``): they were not durable, so nobody was notified
  of them. Their records are still in the journal or in segment files; the broker commits them again.
- A checkpoint that does not match its checksum file is set aside if the remaining entries cover it. A checkpoint
  without such a file (another writer made it, or a crash came between the two) is set aside only if it cannot be read
  or says something else than the entries; one that says the same gets its checksum file.
- ``_last_checkpoint`` is removed if it names no checkpoint. So are Spark's checksums of versions that do not exist.

A file that is set aside is renamed to ``<name>.set-aside``; no Delta reader, writer or clean-up takes such a name for
one of its files. Any other damaged file stays where it is, and its readers refuse it (``log_entries``).
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import structlog

from logstore.delta.actions import Action
from logstore.delta.log_entries import (
    CHECKSUM_SUFFIX,
    LogFiles,
    adds_last,
    checksums,
    entry_name,
    is_torn,
    list_log,
    read_actions,
    read_checkpoint_actions,
    stored_checksums,
    vouch,
)
from logstore.errors import CorruptionError
from logstore.table_files import LOG_DIRECTORY, TableFiles

log = structlog.stdlib.get_logger(__name__)

LAST_CHECKPOINT = "_last_checkpoint"
_ENTRY = re.compile(r"[0-9]{20}\.json")
_SPARK_CHECKSUM = re.compile(r"\.?(\d{20})\.")
_SPARK_CHECKPOINT_CHECKSUM = re.compile(r"\.(.*\.checkpoint.*\.parquet)\.crc")


class _Hint(msgspec.Struct):
    version: int


def repair_log(files: TableFiles) -> None:
    """Do all repairs, for the table's owner, before anybody reads the table. Raises OSError."""
    if all(map(_ENTRY.fullmatch, _names(files))):  # as in most tables: one listing shows it
        _set_aside_torn_entries(files)
        return
    _check_checkpoints(files)
    drop_stale_checksums(files)
    _set_aside_torn_entries(files)
    _drop_checksums_ahead(files)
    drop_bad_hint(files)


def drop_bad_hint(files: TableFiles) -> None:
    """Remove a ``_last_checkpoint`` that names no checkpoint. Readers need no hint, but some fail on a wrong one."""
    name = f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"
    try:
        version = msgspec.json.decode(files.read(name), type=_Hint).version
    except FileNotFoundError:
        return
    except (msgspec.MsgspecError, UnicodeDecodeError):
        version = -1
    if version not in list_log(files).checkpoints:
        files.remove([name])
        log.warning("delta.hint_removed", file=files.where(name), version=version)


def _set_aside_torn_entries(files: TableFiles) -> None:
    found = list_log(files)
    base = max(found.checkpoints, default=-1)
    for version in range(found.last_version, max(base, 0), -1):
        # Two kinds are certainly durable: the first entry (written before the topic existed), and entries below a
        # checkpoint.
        if version not in found.entries or not is_torn(version, files.read(entry_name(version))):
            return
        _set_aside(files, entry_name(version), "torn by a power cut; nobody was told of its commit")


def _check_checkpoints(files: TableFiles) -> None:
    found = list_log(files)
    newest_first = sorted(found.checkpoints, reverse=True)
    base = next((version for version in newest_first if _is_vouched_for(files, version, found)), -1)
    for version in sorted(v for v in found.checkpoints if v > base):
        parts = found.checkpoints[version]
        covering = _covering(files, found, base, version)
        if covering is not None:
            why = "it does not match its checksum file; the entries cover it"
            # A checkpoint that does not match its checksum file has changed since: its content proves nothing.
            if stored_checksums(files, version) is None:
                try:
                    compared = checksums(files, parts)
                    difference = _difference(files, parts, covering)
                    if difference is None:
                        _vouch(files, version, parts, compared)
                        base = version
                        continue
                except FileNotFoundError:
                    continue  # another writer cleaned the log
                why = f"no checksum vouches for this checkpoint, and {difference}; the entries cover it"
            if _set_checkpoint_aside(files, base, version, parts, why):
                continue
        if version in list_log(files, version).checkpoints:
            base = version


def _is_vouched_for(files: TableFiles, version: int, found: LogFiles) -> bool:
    stored = stored_checksums(files, version)
    with contextlib.suppress(FileNotFoundError):  # another writer cleaned the log
        return stored is not None and stored == checksums(files, found.checkpoints[version])
    return False


def _covering(files: TableFiles, found: LogFiles, base: int, version: int) -> list[Action] | None:
    """Return the actions of the checkpoint of ``base`` and of the entries up to ``version``; None if some cannot be
    read.
    """
    needed = range(base + 1, version + 1)
    if not found.entries.issuperset(needed):
        return None
    try:
        actions = read_checkpoint_actions(files, found.checkpoints.get(base, ()))
        for number in needed:
            actions += adds_last(read_actions(files, number))
    except (CorruptionError, ValueError, FileNotFoundError):
        return None
    return actions


def _difference(files: TableFiles, parts: Sequence[str], covering: list[Action]) -> str | None:
    """Return how a checkpoint differs from the state that results from ``covering``; None if it does not."""
    try:
        actual, expected = _outcome(read_checkpoint_actions(files, parts)), _outcome(covering)
    except ValueError as error:
        return str(error)
    return next((f"its {what} differ" for what in expected if actual[what] != expected[what]), None)


def _outcome(actions: Iterable[Action]) -> dict[str, Any]:
    """Return the table's state after ``actions``, without the parts that a checkpoint may leave out (tombstones,
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
            files[add.path] = add.size, add.partition_values, add.modification_time, stats, add.deletion_vector
        elif action.remove is not None:
            files.pop(action.remove.path, None)
        elif action.meta_data is not None:
            now = action.meta_data
            schema = msgspec.json.decode(now.schema_string or "null")
            metadata = now.id, schema, now.partition_columns or [], now.configuration or {}
        elif action.protocol is not None:
            asked = action.protocol
            features = frozenset(asked.reader_features or ()), frozenset(asked.writer_features or ())
            protocol = asked.min_reader_version, asked.min_writer_version, *features
    return {"transactions": transactions, "files": files, "metadata": metadata, "protocol": protocol}


def _vouch(files: TableFiles, version: int, parts: Sequence[str], compared: dict[str, str]) -> None:
    """Sync another writer's checkpoint, then write its checksum file, unless a new one was renamed over it."""
    files.sync(parts)
    if checksums(files, parts) != compared:
        return
    vouch(files, version, compared)
    log.info("delta.checkpoint_vouched", table=files.uri, version=version)


def _set_checkpoint_aside(files: TableFiles, base: int, version: int, parts: Sequence[str], why: str) -> bool:
    """Set a checkpoint aside. Put it back and return False if another writer removed the covering entries meanwhile."""
    aside = []
    for part in parts:
        with contextlib.suppress(FileNotFoundError):
            aside.append(_set_aside(files, part, why))
    found = list_log(files)
    if found.entries.issuperset(range(base + 1, version + 1)) and (base < 0 or base in found.checkpoints):
        return True
    for name in aside:
        files.put_back(name)
    log.warning("delta.put_back", table=files.uri, version=version, why="what covers it was cleaned up")
    return False


def drop_stale_checksums(files: TableFiles) -> None:
    """Remove checksum files, ours and Spark's, of checkpoints that are gone: the next checkpoint of that version would
    not match them.
    """
    names = _names(files)
    checkpoints = list_log(files).checkpoints
    stale = [n for n in names if n.endswith(CHECKSUM_SUFFIX) and int(n[:20]) not in checkpoints]
    stale += [n for n in names if (match := _SPARK_CHECKPOINT_CHECKSUM.fullmatch(n)) and match[1] not in names]
    _drop(files, stale)


def _drop_checksums_ahead(files: TableFiles) -> None:
    """Remove Spark's checksum files of versions that do not exist: delta-rs refuses the log because of them, and Spark
    the next entry of their name.
    """
    found = list_log(files)
    newest = max((found.last_version, *found.checkpoints))
    of_spark = [name for name in _names(files) if name.endswith(".crc")]
    _drop(files, [n for n in of_spark if (match := _SPARK_CHECKSUM.match(n)) and int(match[1]) > newest])


def _names(files: TableFiles) -> set[str]:
    """Return the names of all files in the log directory."""
    return {name.removeprefix(f"{LOG_DIRECTORY}/") for name in files.names(LOG_DIRECTORY)}


def _drop(files: TableFiles, names: Sequence[str]) -> None:
    if names:
        files.remove(f"{LOG_DIRECTORY}/{name}" for name in names)


def _set_aside(files: TableFiles, name: str, why: str) -> str:
    aside = files.set_aside(name)
    log.warning("delta.set_aside", file=files.where(name), now=aside.removeprefix(f"{LOG_DIRECTORY}/"), why=why)
    return aside
