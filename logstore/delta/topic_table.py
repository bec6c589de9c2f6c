"""A topic as a Delta table: reads of it and commits to it.

Invariants: all metadata of the topic is in the Delta log, and each fact is committed together with the files that it is
about; every change goes through ``Committer`` (rules R4-R7). Calls block; they are safe from any thread, with one
commit at a time per instance. The commit protocol, and no lock, excludes other instances, processes and machines.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import structlog

from logstore.delta.actions import DROP_FOREIGN_FILES
from logstore.delta.columns import ChangedColumns, ColumnChange, changed_columns
from logstore.delta.committer import Committer, Plan, commit_info
from logstore.delta.first_entry import first_entry, schema_string_of
from logstore.delta.log_repair import repair_log
from logstore.delta.maintenance import is_checkpoint_due, write_checkpoint
from logstore.delta.preconditions import (
    RewritePart,
    RollPart,
    check_epoch,
    check_part,
    check_partition_count,
    epoch_transaction,
    is_rolled,
    partition_state,
    rewrite_facts,
)
from logstore.delta.schema import (
    DELTA_PROPERTIES,
    LOG_RETENTION_PROPERTY,
    PARTITIONS_PROPERTY,
    PROPERTY_PREFIX,
    REWRITE,
    SEALED,
    START,
    TOMBSTONE_RETENTION_PROPERTY,
    TOPIC_PROPERTY,
    app_id,
    removals_kept_for,
    removals_kept_ms,
)
from logstore.delta.snapshot import Removal, SegmentFile, TopicSnapshot
from logstore.entropy import new_uuid
from logstore.errors import (
    CommitRefusedError,
    CommitStateUnknownError,
    CorruptionError,
    FencedLeaderEpochError,
    InvalidPartitionsError,
    LogStoreError,
    StorageError,
    TopicExistsError,
    UnknownPartitionError,
    storage_error,
)
from logstore.segments.layout import PLAIN_LAYOUT, TableLayout
from logstore.segments.writer import Segment
from logstore.table_files import LOG_DIRECTORY, OutcomeUnknownError, TableFiles
from logstore.table_root import TableRoot

log = structlog.stdlib.get_logger(__name__)

__all__ = ["PartsCommit", "RewritePart", "RollPart", "TopicTable"]


@dataclass(frozen=True, slots=True)
class PartsCommit:
    """The outcome of a commit: at ``version`` every partition of ``committed`` has its change; those of ``refused`` do
    not.
    """

    version: int
    committed: tuple[int, ...]
    refused: dict[int, LogStoreError]


class TopicTable:
    def __init__(self, files: TableFiles) -> None:
        self.files = files
        self._committer = Committer(files)
        self._lock = threading.Lock()

    @classmethod
    def create(
        cls,
        root: TableRoot,
        name: str,
        *,
        num_partitions: int,
        config_overrides: Mapping[str, str],
        layout: TableLayout = PLAIN_LAYOUT,
    ) -> Self:
        """Create the table of a new topic. ``layout`` is ``new_layout`` of the topic. A crash leaves no half topic."""
        check_partition_count(num_partitions)
        configuration = {
            **DELTA_PROPERTIES,
            LOG_RETENTION_PROPERTY: layout.log_retention,
            TOPIC_PROPERTY: name,
            PARTITIONS_PROPERTY: str(num_partitions),
            **{PROPERTY_PREFIX + key: value for key, value in config_overrides.items()},
        }
        info = commit_info("create", new_uuid().hex)
        try:
            entry = first_entry(
                schema_string_of(layout.table_schema), configuration, num_partitions, info, root.clock.now_ms()
            )
            files = root.create(name, entry)
        except FileExistsError as error:
            raise TopicExistsError(f"Topic {name!r} already exists") from error
        except OutcomeUnknownError as error:
            raise StorageError(
                f"creating topic {name!r} failed, its directory could not be synced: {error}. It was taken back, "
                "but may be there, empty, after a power cut"
            ) from error
        except OSError as error:
            raise storage_error(f"creating topic {name!r}", error) from error
        return cls(files)

    @classmethod
    def recover(cls, files: TableFiles) -> Self:
        """Open like ``open``, for a store that starts: torn files are set aside first. Raises CorruptionError,
        StorageError.
        """
        try:
            repair_log(files)
        except OSError as error:
            raise storage_error(f"recovering the Delta log of {files}", error) from error
        return cls.open(files)

    @classmethod
    def open(cls, files: TableFiles) -> Self:
        """Open an existing topic, and make its log durable. Raises CorruptionError and StorageError."""
        table = cls(files)
        table._committer.sync(table.snapshot().version)
        return table

    def snapshot(self) -> TopicSnapshot:
        """Return the newest version. Raises CorruptionError and StorageError."""
        with self._lock:
            return self._committer.snapshot()

    def any_snapshot(self) -> TopicSnapshot:
        """Return the snapshot of ``Committer.any_snapshot``."""
        with self._lock:
            return self._committer.any_snapshot()

    def commit_taking_back(self, plan: Callable[[TopicSnapshot], Plan | None]) -> int:
        """Commit a plan that takes table features back, with ``Committer.commit``."""
        with self._lock:
            return self._committer.commit(plan, taking_back=True)

    @property
    def latest(self) -> TopicSnapshot:
        """The snapshot that was read last, first by ``open``. It does not show later commits."""
        return self._committer.latest

    def log_mark(self) -> int | None:
        """Return a mark that changes with the log: by a new commit, or by one that was renamed over an old one. None if
        the last change is so recent that a further one might not change the mark.
        """
        return self.files.mark(LOG_DIRECTORY)

    def commit_roll(self, parts: Sequence[RollPart], *, found: bool = False) -> PartsCommit:
        """Seal several partitions in one commit, all or nothing; partitions that fail their check are left out (rule
        R6).

        A part that the table already shows counts as committed, so a roll of unknown outcome can be repeated. The same
        files may be committed again after another writer's commit took them away (rule R7). ``found``: the files, or
        the frames from which they are made, may have records that were erased since. Raises the errors of
        ``Committer.commit``.
        """
        if len({part.partition for part in parts}) != len(parts):
            raise ValueError("a roll has one part per partition")
        for part in parts:
            check_part(part)
        committed: tuple[int, ...] = ()
        refused: dict[int, LogStoreError] = {}

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            nonlocal committed
            refused.clear()
            passed: list[RollPart] = []
            present: list[RollPart] = []
            for part in parts:
                try:
                    (present if is_rolled(part, snapshot, self.files) else passed).append(part)
                except (CommitRefusedError, FencedLeaderEpochError, CorruptionError, UnknownPartitionError) as error:
                    refused[part.partition] = error
            committed = tuple(sorted(part.partition for part in (*present, *passed)))
            if not passed:
                return None
            transactions: dict[str, int] = {}
            for part in passed:
                transactions[app_id(part.partition, SEALED)] = part.end_offset
                transactions |= epoch_transaction(snapshot, part.partition, part.leader_epoch)
            segments = tuple(segment for part in passed for segment in part.segments)
            return Plan("roll", transactions, segments, are_found=found)

        with self._lock:
            version = self._committer.commit(plan)
        return PartsCommit(version, committed, dict(refused))

    def recommit(self, segments: Sequence[Segment], *, removed: bool = False) -> int:
        """Commit again files that another writer's commit took out of the log while later rolls continued (rule R7).

        It is for files below ``sealed``. Active files are left alone, and so are files that a commit removed, unless
        ``removed`` is true. Other writers' files do not keep them out: they are replaced. Raises the errors of
        ``Committer.commit``.
        """

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            lost = tuple(
                s
                for s in segments
                if s.path not in snapshot.paths and (removed or not snapshot.log.was_removed(s.path))
            )
            for segment in lost:
                partition_state(snapshot, segment.partition, self.files)
                if segment.end_offset > snapshot.partitions[segment.partition].sealed:
                    raise CommitRefusedError(f"{self.files}: {segment.path} reaches past sealed: roll it instead")
                snapshot.check(segment.partition)
                for other in snapshot.segments(segment.partition):
                    if other.foreign:
                        continue
                    if other.base_offset < segment.end_offset and segment.base_offset < other.end_offset:
                        raise CommitRefusedError(f"{self.files}: {segment.path} overlaps {other.path}, which is active")
            return Plan("recommit", adds=lost, removed_before=removed, are_found=True) if lost else None

        with self._lock:
            return self._committer.commit(plan)

    def put_back(self, removes: Collection[str], adds: Sequence[Segment]) -> int:
        """Replace active files, even those that are not served, by segments that a commit has removed. Return the
        version that shows it; nothing is committed if one of the files is no longer active. Raises the errors of
        ``Committer.commit``.
        """

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            if not snapshot.paths.issuperset(removes):
                return None
            changed = {segment.partition for segment in adds}
            transactions = {app_id(one, REWRITE): snapshot.partitions[one].rewrite + 1 for one in changed}
            restated = {app_id(one, SEALED): snapshot.partitions[one].sealed for one in changed}
            return Plan(
                "put-back",
                transactions,
                tuple(adds),
                snapshot.removals_of(removes),
                data_change=False,
                restated=restated,
                removed_before=True,
                are_found=True,
            )

        with self._lock:
            return self._committer.commit(plan)

    def advance_log_start(self, starts: Mapping[int, int], leader_epochs: Mapping[int, int]) -> int:
        """Move the log start of partitions forward, and return the version that shows it. It never moves back: a value
        that another commit (such as retention's) has overtaken changes nothing.

        Raises CommitRefusedError (beyond sealed), FencedLeaderEpochError, and the errors of ``Committer.commit``.
        """

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            transactions: dict[str, int] = {}
            for partition, start in starts.items():
                epoch = leader_epochs[partition]
                state = partition_state(snapshot, partition, self.files)
                check_epoch(snapshot, partition, epoch, self.files)
                if start > state.sealed:
                    raise CommitRefusedError(
                        f"{self.files}: log start of partition {partition} cannot become {start}: "
                        f"sealed is {state.sealed}"
                    )
                if start > state.log_start:
                    transactions[app_id(partition, START)] = start
                    transactions |= epoch_transaction(snapshot, partition, epoch)
            return Plan("advance-log-start", transactions) if transactions else None

        with self._lock:
            return self._committer.commit(plan)

    def begin_epoch(self, partition: int, leader_epoch: int) -> int:
        """Refuse later commits of leaders before ``leader_epoch``, and return the version that shows it (C11).

        Raises FencedLeaderEpochError, and the errors of ``Committer.commit``.
        """

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            partition_state(snapshot, partition, self.files)
            check_epoch(snapshot, partition, leader_epoch, self.files)
            transactions = epoch_transaction(snapshot, partition, leader_epoch)
            return Plan("begin-leader-epoch", transactions) if transactions else None

        with self._lock:
            return self._committer.commit(plan)

    def commit_rewrites(
        self,
        parts: Sequence[RewritePart],
        *,
        data_change: bool,
        operation: str,
        found: bool = False,
        taking_back: bool = False,
        table_facts: Callable[[TopicSnapshot, Collection[str]], dict[str, int]] | None = None,
        more_details: Mapping[str, int] | None = None,
    ) -> PartsCommit:
        """Replace files in one commit: compaction, merge and erasure (``data_change=False``), retention (True, no
        adds).

        ``found`` is as for ``commit_roll``. ``table_facts`` returns transactions of the table that go with a commit of
        all parts, for its snapshot and the paths that it removes; they may be all that is committed. ``more_details``
        go into the history of the table.

        A rewrite is planned on any older snapshot, and checked and committed on a fresh one. Partitions that fail their
        check are left out (rule R6), and their new segments are deleted unless they were ``found``: nobody else would
        delete them for days, and they may have records that were erased meanwhile. After CommitStateUnknownError they
        stay, as the table may name them. ``taking_back`` is as for ``Committer.commit``. Raises CommitRefusedError if a
        removed file is no longer active or an added file would hold records that the removed ones did not, ValueError
        for removes with dataChange beside adds (plain streams would lose the adds), and the errors of
        ``Committer.commit``.
        """
        if not all(part.removes or (part.cleaned is not None and not part.adds) for part in parts):
            raise ValueError("a rewrite removes files, or only moves the clean point")
        if data_change and any(part.adds for part in parts):
            raise ValueError("a commit never mixes dataChange removes with adds")
        if any(segment.partition != part.partition for part in parts for segment in part.adds):
            raise ValueError("a part of a rewrite is of one partition")
        if len({part.partition for part in parts}) != len(parts):
            raise ValueError("a rewrite has one part per partition")
        committed: tuple[int, ...] = ()
        refused: dict[int, LogStoreError] = {}

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            nonlocal committed
            refused.clear()
            passed: list[int] = []
            transactions: dict[str, int] = {}
            restated: dict[str, int] = {}
            old: list[SegmentFile] = []
            removes: list[Removal] = []
            adds: list[Segment] = []
            for part in parts:
                try:
                    files, facts = rewrite_facts(part, snapshot, self.files)
                except (CommitRefusedError, CorruptionError, UnknownPartitionError) as error:
                    refused[part.partition] = error
                    continue
                passed.append(part.partition)
                transactions |= facts
                # If that roll's commit is lost, files that replace its files must not be above ``sealed``.
                restated[app_id(part.partition, SEALED)] = snapshot.partitions[part.partition].sealed
                old += files
                removes += snapshot.removals_of(path for file in files for path in file.paths)
                adds += part.adds
            committed = tuple(sorted(passed))
            if table_facts is not None and not refused:
                transactions |= table_facts(snapshot, [one.path for one in removes])
            if not passed and not transactions:
                return None
            details = {
                "removed_segments": len(old),
                "removed_records": sum(file.num_records for file in old),
                "removed_bytes": sum(file.size for file in old),
                "added_segments": len(adds),
                "added_records": sum(segment.num_records for segment in adds),
                "added_bytes": sum(segment.size for segment in adds),
                **(more_details or {}),
            }
            return Plan(
                operation,
                transactions,
                tuple(adds),
                tuple(removes),
                data_change,
                restated=restated,
                details=details,
                are_found=found,
            )

        with self._lock:
            try:
                version = self._committer.commit(plan, taking_back=taking_back)
            except LogStoreError as error:
                if not found and not isinstance(error, CommitStateUnknownError):
                    self._delete_unnamed(parts)
                raise
            if not found:
                self._delete_unnamed([part for part in parts if part.partition in refused])
        return PartsCommit(version, committed, dict(refused))

    def _delete_unnamed(self, parts: Sequence[RewritePart]) -> None:
        """Delete the new segments of parts that were not committed, unless the table names them."""
        if not (paths := {segment.path for part in parts for segment in part.adds}):
            return
        try:
            unnamed = paths - self._committer.any_snapshot().paths
        except (OSError, LogStoreError) as error:
            log.warning("rewrite.leftover", table=self.files.uri, files=sorted(paths), why=str(error))
            return
        self.files.discard(sorted(unnamed))

    def alter_config(self, changes: Mapping[str, str | None]) -> int:
        """Set topic configuration (names without ``logstore.``, values validated); None restores the default."""
        if "partitions" in changes:
            raise ValueError("the partition count is changed by add_partitions")
        # delta-rs cannot remove Delta properties, so an empty value counts as removed.
        wanted = {PROPERTY_PREFIX + key: value or "" for key, value in changes.items()}

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            changed = {key: value for key, value in wanted.items() if snapshot.properties.get(key, "") != value}
            return Plan("alter-config", properties=changed) if changed else None

        with self._lock:
            return self._committer.commit(plan)

    def change_columns(self, change: ColumnChange) -> ChangedColumns | None:
        """Add and retire declared columns in one commit, and return what changed; None if nothing did. Raises
        InvalidConfigError, and the errors of ``Committer.commit``.
        """
        changed: ChangedColumns | None = None

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            nonlocal changed
            changed = changed_columns(self.files.name, snapshot.table.meta_data, change)
            if changed is None:
                return None
            details = {"added_columns": len(changed.added), "retired_columns": len(changed.retired)}
            return Plan("change-columns", meta_data=changed.meta_data, details=details)

        with self._lock:
            self._committer.commit(plan)
        return changed

    def drop_foreign_files(self) -> tuple[str, ...]:
        """Remove unserved files of other writers from the table (``foreign_removals``), and return their paths. They
        stay on disk until a vacuum. Raises the errors of ``Committer.commit``.
        """
        dropped: tuple[str, ...] = ()

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            nonlocal dropped
            removes = snapshot.foreign_removals()
            dropped = tuple(removal.path for removal in removes)
            return Plan(DROP_FOREIGN_FILES, removes=removes) if removes else None

        with self._lock:
            self._committer.commit(plan)
        return dropped

    def keep_removals(self, delay_ms: int) -> int:
        """Make checkpoints keep removals of files for longer than ``delay_ms``, if they do not yet.

        A property of the table that is not in whole days is its owner's, and stays. Raises the errors of
        ``Committer.commit``.
        """

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            kept_ms = removals_kept_ms(snapshot.properties)
            if kept_ms is None or delay_ms <= kept_ms:
                return None
            return Plan("keep-removals", properties={TOMBSTONE_RETENTION_PROPERTY: removals_kept_for(delay_ms)})

        with self._lock:
            return self._committer.commit(plan)

    def record_name(self) -> int:
        """Store in the table which topic it is, if it does not say so yet."""

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            if snapshot.topic_name is not None:
                return None
            return Plan("record-name", properties={TOPIC_PROPERTY: self.files.name})

        with self._lock:
            return self._committer.commit(plan)

    def add_partitions(self, total: int) -> int:
        """Grow to ``total`` partitions in one commit; also if only the property of the table is less than that. Raises
        InvalidPartitionsError if there are more already, or if ``total`` is too high.
        """
        check_partition_count(total)

        def plan(snapshot: TopicSnapshot) -> Plan | None:
            if total < snapshot.num_partitions:
                raise InvalidPartitionsError(
                    f"Topic {self.files.name!r} has {snapshot.num_partitions} partitions; they are added, never removed"
                )
            if total == snapshot.stated_partitions:
                return None
            sealed = {app_id(partition, SEALED): 0 for partition in range(snapshot.num_partitions, total)}
            return Plan("add-partitions", sealed, properties={PARTITIONS_PROPERTY: str(total)})

        with self._lock:
            return self._committer.commit(plan)

    def is_maintenance_due(self) -> bool:
        """Return whether ``maintain`` would write a checkpoint. Raises CorruptionError and StorageError."""
        with self._lock:
            return is_checkpoint_due(self.files, self._committer.snapshot())

    def checkpoint(self) -> None:
        """Checkpoint the newest version, and remove expired log entries. Raises the errors of ``maintain``."""
        with self._lock:
            snapshot = self._committer.snapshot()
            self._committer.sync(snapshot.version)
            write_checkpoint(self.files, snapshot)

    def maintain(self) -> None:
        """Checkpoint if due, and remove expired log entries. Raises StorageError and CorruptionError; no commit is
        affected.
        """
        with self._lock:
            snapshot = self._committer.snapshot()
            self._committer.sync(snapshot.version)  # a checkpoint outlives the entries from which it is made
            if is_checkpoint_due(self.files, snapshot):
                write_checkpoint(self.files, snapshot)
