"""Checkpoints and log clean-up, apart from commits: a failure here says nothing about any commit.

Order: a checkpoint is written, compared with the snapshot that it stands for, made durable, and vouched for by a file
with its checksums; only then are expired log entries removed (those before the newest checkpoint that is itself older
than ``delta.logRetentionDuration``), which from then on nothing but a checkpoint can replace.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog

from logstore.delta.log_entries import (
    LOG_DIRECTORY,
    checksum_path,
    checksums,
    entry_path,
    list_log,
    read_checkpoint_part,
    read_entry,
)
from logstore.delta.log_repair import LAST_CHECKPOINT, drop_stale_checksums
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError, StorageError
from logstore.filesystem import FileSystem
from logstore.limits import DELTA_CHECKPOINT_INTERVAL

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = structlog.stdlib.get_logger(__name__)


def is_checkpoint_due(path: Path, snapshot: TopicSnapshot) -> bool:
    """Whether so many versions lie behind the last checkpoint. CorruptionError, OSError."""
    newest = max((version for version in list_log(path).checkpoints if version <= snapshot.version), default=0)
    if snapshot.version - newest < DELTA_CHECKPOINT_INTERVAL:
        return False
    # The writer that committed this version may be writing its checkpoint now. Ours can wait for the next version.
    return read_entry(entry_path(path, snapshot.version)).commit_id is not None


def maintain_log(path: Path, table: "DeltaTable", snapshot: TopicSnapshot, filesystem: FileSystem) -> None:
    """Checkpoint the version of ``table``, if that ``is_checkpoint_due``, and clean up.

    Raises StorageError, or CorruptionError if the checkpoint does not say what the snapshot says (it is then removed).
    """
    from deltalake.exceptions import DeltaError

    if not is_checkpoint_due(path, snapshot):
        return
    try:
        table.create_checkpoint()
        filesystem.reached("delta.checkpointed")
        _verify_and_sync(path, snapshot, filesystem)
        filesystem.reached("delta.vouched")
        table.cleanup_metadata()
        filesystem.reached("delta.cleaned")
        drop_stale_checksums(path, filesystem)
        filesystem.sync_directory(path / LOG_DIRECTORY)
    except (DeltaError, OSError) as error:
        raise StorageError(f"Checkpoint or log clean-up of {path} failed at {snapshot.version}: {error}") from error
    log.info("delta.checkpoint", table=str(path), version=snapshot.version)


def _verify_and_sync(path: Path, snapshot: TopicSnapshot, filesystem: FileSystem) -> None:
    directory = path / LOG_DIRECTORY
    parts = list_log(path).checkpoints.get(snapshot.version, ())
    entries = [read_checkpoint_part(part) for part in parts]
    transactions = {app: value for entry in entries for app, value in entry.transactions.items()}
    added = {added for entry in entries for added in entry.added}
    if transactions != snapshot.transactions or added != snapshot.paths:
        for file in (directory / LAST_CHECKPOINT, *parts):
            filesystem.unlink(file)
        raise CorruptionError(
            f"{path}: the checkpoint of version {snapshot.version} lacks transactions or files of that version; it was "
            "removed, the log entries are kept"
        )
    for file in (*parts, directory / LAST_CHECKPOINT):
        filesystem.sync_file(file)
    vouching = checksum_path(path, snapshot.version)
    filesystem.write_atomically(vouching, msgspec.json.encode(checksums(parts)))
