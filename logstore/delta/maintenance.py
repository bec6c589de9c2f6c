"""Checkpoints and log clean-up, apart from commits: a failure here says nothing about any commit.

The order: a checkpoint is written, compared with its snapshot, made durable, and confirmed by a file with its
checksums. Only then are expired log entries removed (those before the newest checkpoint that is itself older than
``delta.logRetentionDuration``), because after that only a checkpoint can replace them.
"""

import structlog

from logstore.delta.log_entries import (
    checksums,
    list_log,
    read_checkpoint_part,
    read_entry,
    vouch,
)
from logstore.delta.log_repair import LAST_CHECKPOINT, drop_bad_hint, drop_stale_checksums
from logstore.delta.snapshot import TopicSnapshot
from logstore.delta.table_features import CHECKPOINT_PROTECTION
from logstore.errors import CorruptionError, StorageError
from logstore.limits import DELTA_CHECKPOINT_INTERVAL
from logstore.table_files import LOG_DIRECTORY, TableFiles

log = structlog.stdlib.get_logger(__name__)


def is_checkpoint_due(files: TableFiles, snapshot: TopicSnapshot) -> bool:
    """Return whether the last checkpoint is at least one interval of versions old. Raises CorruptionError, OSError."""
    if snapshot.version < DELTA_CHECKPOINT_INTERVAL:
        return False
    # One interval is enough to look back, and cheaper than the whole log.
    since = max(0, snapshot.version - DELTA_CHECKPOINT_INTERVAL + 1)
    found = list_log(files, since).checkpoints
    newest = max((version for version in found if version <= snapshot.version), default=0)
    if snapshot.version - newest < DELTA_CHECKPOINT_INTERVAL:
        return False
    # The writer that committed this version may be writing its checkpoint now. Ours can wait for the next version.
    return read_entry(files, snapshot.version).commit_id is not None


def write_checkpoint(files: TableFiles, snapshot: TopicSnapshot) -> None:
    """Checkpoint the version of ``snapshot``, and clean up.

    Raises StorageError, or CorruptionError if the checkpoint does not say what the snapshot says (it is then removed).
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        drop_bad_hint(files)
        table = DeltaTable(files.uri, version=snapshot.version, storage_options=files.storage_options)
        table.create_checkpoint()
        files.reached("delta.checkpointed")
        _verify_and_sync(files, snapshot)
        files.reached("delta.vouched")
        if CHECKPOINT_PROTECTION not in snapshot.features:
            table.cleanup_metadata()
        files.reached("delta.cleaned")
        drop_stale_checksums(files)
        files.sync_names(LOG_DIRECTORY)
    except (DeltaError, OSError) as error:
        raise StorageError(f"Checkpoint or log clean-up of {files} failed at {snapshot.version}: {error}") from error
    log.info("delta.checkpoint", table=files.uri, version=snapshot.version)


def _verify_and_sync(files: TableFiles, snapshot: TopicSnapshot) -> None:
    hint = f"{LOG_DIRECTORY}/{LAST_CHECKPOINT}"
    parts = list_log(files, snapshot.version).checkpoints.get(snapshot.version, ())
    entries = [read_checkpoint_part(files, part) for part in parts]
    transactions = {app: value for entry in entries for app, value in entry.transactions.items()}
    added = {added for entry in entries for added in entry.added}
    if transactions != snapshot.transactions or added != snapshot.paths:
        files.remove((hint, *parts), durable=False)
        raise CorruptionError(
            f"{files}: the checkpoint of version {snapshot.version} lacks transactions or files of that version; it "
            "was removed, the log entries are kept"
        )
    files.sync((*parts, hint))
    vouch(files, snapshot.version, checksums(files, parts))
