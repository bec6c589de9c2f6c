"""What a start may put right in ``_delta_log`` by itself: only what nothing is lost by.

- The newest entries, if a power cut tore them (``is_torn``): they were not durable, so nobody was told of them. Their
  records are in the journal or in segment files still; the broker commits them again.
- A checkpoint without a matching checksum file, if the entries that are still there say all that it says.
- ``_last_checkpoint`` where it is no more than a wrong hint, and Spark's checksums of versions that are not there.

What is set aside is renamed, ``<name>.set-aside``, which no Delta reader, writer or clean-up takes for its own. All
else that is damaged stays where it is and is refused by whoever reads it (``log_entries``).
"""

import itertools
import re
from pathlib import Path

import msgspec
import structlog

from logstore.delta.log_entries import (
    CHECKSUM_SUFFIX,
    LOG_DIRECTORY,
    LogFiles,
    checksums,
    entry_path,
    is_torn,
    list_log,
    read_entry,
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
    """For the one who owns the table, before anybody reads it. OSError."""
    _set_aside_checkpoints(table_path, filesystem)
    _set_aside_torn_entries(table_path, filesystem)
    _drop_checksums_ahead(table_path, filesystem)
    drop_bad_hint(table_path, filesystem)


def drop_bad_hint(table_path: Path, filesystem: FileSystem) -> None:
    """Remove a ``_last_checkpoint`` that names no checkpoint: readers do without, but some fail on a wrong one."""
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
        # The first entry was durable before there was a topic; what a checkpoint covers, before that.
        if version <= max(base, 0) or not path.exists() or not is_torn(version, path.read_bytes()):
            return
        _set_aside(path, filesystem, "torn by a power cut; nobody was told of its commit")


def _set_aside_checkpoints(table_path: Path, filesystem: FileSystem) -> None:
    files = list_log(table_path)
    vouched = {version for version, parts in files.checkpoints.items() if _is_vouched_for(parts)}
    base = max(vouched, default=-1)
    for version in sorted(v for v in files.checkpoints if v > base):
        if _covered(table_path, files, base, version):
            for part in files.checkpoints[version]:
                # Checksums, ours and Spark's, would condemn the next checkpoint of that version.
                for name in (f"{version:020d}{CHECKSUM_SUFFIX}", f".{part.name}.crc"):
                    if part.with_name(name).exists():
                        filesystem.unlink(part.with_name(name))
                _set_aside(part, filesystem, "no checksum vouches for this checkpoint; the entries say the same")
        else:
            base = version


def _is_vouched_for(parts: tuple[Path, ...]) -> bool:
    stored = stored_checksums(parts[0])
    return stored is not None and stored == checksums(parts)


def _covered(table_path: Path, files: LogFiles, base: int, version: int) -> bool:
    needed = range(base + 1, version + 1)
    if not files.entries.issuperset(needed):
        return False
    try:
        for number in needed:
            read_entry(entry_path(table_path, number))
    except CorruptionError:
        return False
    return True


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


def _set_aside(path: Path, filesystem: FileSystem, why: str) -> None:
    names = (path.with_name(f"{path.name}{_SUFFIX}{n or ''}") for n in itertools.count())
    aside = next(name for name in names if not name.exists())
    filesystem.rename(path, aside)
    filesystem.sync_directory(path.parent)
    log.warning("delta.set_aside", file=str(path), now=aside.name, why=why)
