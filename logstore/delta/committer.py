"""The one commit protocol to a topic table (rules R4 and R5), for the roll, for administration and for jobs.

An attempt has these steps: read a fresh snapshot V; check every precondition on V; put the entry of version V + 1 if
none exists, a compare-and-set; fsync the log entry (R7). After a conflict the next attempt starts at the read. A
snapshot is never kept for the next attempt, unless every file of the log is unchanged. All entries up to V, including
those of other writers, are durable before V + 1 is written: a power cut can tear only the newest. What table features
require of a commit is done here (row tracking, in-commit timestamps) or refused (``table_features``).

An exception of a commit does not say whether the commit happened. The committer then looks for its unique commit id in
the log, and for its transaction values and files in a fresh snapshot. If it cannot look, it raises
CommitStateUnknownError.
"""

import contextlib
import errno
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from logstore.delta.actions import (
    COMMIT_ID_KEY,
    IN_COMMIT_TIMESTAMP,
    OPERATION_KEY,
    OWN_PREFIX,
    USER_METADATA_KEY,
    Action,
    DomainMetadata,
    MetaData,
    Protocol,
    Remove,
    commit_info_of,
    encode_entry,
    transactions,
    with_digest,
)
from logstore.delta.erased_files import with_erased_files
from logstore.delta.log_entries import (
    LogReplay,
    entry_name,
    list_log,
    read_entry,
)
from logstore.delta.log_repair import drop_bad_hint
from logstore.delta.schema import FORBIDDEN_PROPERTY, add_action
from logstore.delta.snapshot import Removal, TopicSnapshot, read_snapshot
from logstore.delta.table_features import APPEND_ONLY_PROPERTY, ROW_TRACKING, ROW_TRACKING_DOMAIN, Verdict, judge
from logstore.delta.table_state import TableState
from logstore.entropy import new_uuid, random_float
from logstore.errors import (
    CommitConflictError,
    CommitRefusedError,
    CommitStateUnknownError,
    CorruptionError,
    StorageError,
    storage_error,
)
from logstore.limits import COMMIT_ATTEMPTS_MAX
from logstore.segments.foreign_file import OffsetRuns, read_offset_runs
from logstore.segments.foreign_names import foreign_records
from logstore.segments.writer import Segment
from logstore.table_files import Entry, OutcomeUnknownError, TableFiles

log = structlog.stdlib.get_logger(__name__)

_OPEN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of one commit. ``properties`` are table properties to set. ``protocol``, ``meta_data`` and
    ``domains`` are set if the commit takes features back; then a feature does not prevent it. ``restated`` are
    transactions that hold already. They are repeated, so that they outlive a commit that is overwritten. ``details``
    are numbers for the table's history. ``removed_before``: a commit has removed the adds. ``are_found``: the adds were
    found on a disk, and may have records that were erased since.
    """

    operation: str
    transactions: dict[str, int] = field(default_factory=dict)
    adds: tuple[Segment, ...] = ()
    removes: tuple[Removal, ...] = ()
    data_change: bool = True
    properties: dict[str, str] = field(default_factory=dict)
    restated: dict[str, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)
    removed_before: bool = False
    protocol: Protocol | None = None
    meta_data: MetaData | None = None
    domains: tuple[DomainMetadata, ...] = ()
    are_found: bool = False


class Committer:
    """Commits to one table. The caller serialises its calls."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        self._replay = LogReplay(files)
        #: The last snapshot, and the files from which it was read, as they were then.
        self._known: tuple[dict[str, Entry], TopicSnapshot] | None = None
        self._synced: dict[str, Entry] = {}
        #: Entries whose fsync failed. A later fsync that succeeds does not bring back the lost pages.
        self._doubtful: set[str] = set()
        #: The offsets of other writers' files by path, or the reason why they are unknown.
        self._runs: dict[str, OffsetRuns | CorruptionError] = {}
        #: The verdict on the last protocol and metadata.
        self._judged: tuple[Protocol, MetaData, Verdict] | None = None

    def _place_foreign_files(self, snapshot: TopicSnapshot) -> None:
        """Place other writers' files now, because later callers of the snapshot may not wait for a disk."""
        if not snapshot.has_foreign_files:
            self._runs.clear()
            return
        for name in [name for name in self._runs if foreign_records(name).paths[0] not in snapshot.paths]:
            del self._runs[name]
        for partition in snapshot.partitions:
            with contextlib.suppress(CorruptionError):
                snapshot.check(partition)

    def _read_runs(self, name: str) -> OffsetRuns:
        known = self._runs.get(name)
        if known is None:
            try:
                others = [runs for runs in self._runs.values() if isinstance(runs, OffsetRuns)]
                known = read_offset_runs(self._files, name, others)
            except CorruptionError as error:
                known = error
            self._runs[name] = known
        if isinstance(known, CorruptionError):
            raise known
        return known

    @property
    def latest(self) -> TopicSnapshot:
        """The last snapshot. Raises RuntimeError if none was read."""
        if self._known is None:
            raise RuntimeError(f"{self._files} was not read yet")
        return self._known[1]

    def snapshot(self) -> TopicSnapshot:
        """Return the newest version, read again unless every file of the log is unchanged.

        Raises CorruptionError, UnsupportedTableError for a refused feature of readers, and StorageError.
        """
        snapshot = self.any_snapshot()
        if (refused := self._verdict(snapshot.table).reading) is not None:
            raise refused
        return snapshot

    def any_snapshot(self) -> TopicSnapshot:
        """Return the snapshot like ``snapshot``, whichever features the table has. Its records may not be served."""
        failure: OSError | None = None
        for _ in range(_OPEN_ATTEMPTS):
            try:
                state = self._replay.state()
            except OSError as error:
                # A checkpoint and clean-up may remove log entries between listing and reading.
                failure = error
                continue
            contents = self._replay.contents
            if self._known is not None and self._known[0] == contents:
                return self._known[1]
            if self._known is None and state.has_checkpoint:
                with contextlib.suppress(OSError):
                    drop_bad_hint(self._files)  # other readers fail over one
            snapshot = read_snapshot(state, self._files.uri, self._read_runs)
            if self._verdict(snapshot.table).reading is None:
                self._place_foreign_files(snapshot)
            self._known = contents, snapshot
            return snapshot
        raise StorageError(f"Cannot read the Delta table {self._files}: {failure}") from failure

    def _verdict(self, table: TableState) -> Verdict:
        if self._judged is None or self._judged[0] is not table.protocol or self._judged[1] is not table.meta_data:
            self._judged = table.protocol, table.meta_data, judge(self._files, table)
        return self._judged[2]

    def commit(self, plan: Callable[[TopicSnapshot], Plan | None], *, taking_back: bool = False) -> int:
        """Commit the actions that ``plan`` chooses on a fresh snapshot, and return the version that holds it, durably.

        ``plan`` is called for each attempt, on its snapshot. It raises CommitRefusedError, or returns None for nothing
        to do. ``taking_back``: the commit takes table features back, and no feature prevents it. Raises
        CommitRefusedError, CommitConflictError (others kept winning), CommitStateUnknownError, CorruptionError,
        StorageFullError, StorageError. Nothing was committed, except perhaps after CommitStateUnknownError.
        """
        for attempt in range(COMMIT_ATTEMPTS_MAX):
            snapshot = self.any_snapshot() if taking_back else self.snapshot()
            self._files.reached("delta.opened")
            wanted = plan(snapshot)
            if wanted is None:
                self.sync(snapshot.version)
                return snapshot.version
            if not taking_back and (refused := self._verdict(snapshot.table).writing) is not None:
                raise CommitRefusedError(refused.message)
            wanted = with_erased_files(wanted, snapshot)
            self._check(wanted, snapshot)
            self.sync(snapshot.version)
            self._files.reached("delta.checked")
            commit_id = new_uuid().hex
            failure: BaseException | None = None
            try:
                self._put(snapshot, wanted, commit_id)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # noqa: BLE001  a Rust panic is no Exception; what happened is looked up
                failure = error
            self._files.reached("delta.committed")
            if isinstance(failure, OutcomeUnknownError):
                raise _not_durable(snapshot.version + 1, self._files, failure) from failure
            version = self._find(wanted, commit_id, snapshot.version, failure)
            if version is not None:
                self.sync(version)
                self._files.reached("delta.synced")
                return version
            if failure is not None and list_log(self._files, snapshot.version).last_version <= snapshot.version:
                raise storage_error(f"commit {wanted.operation} to {self._files}", failure) from failure
            log.info("delta.conflict", table=self._files.uri, operation=wanted.operation, version=snapshot.version + 1)
            self._files.clock.sleep(random_float(0, 0.002 * 2 ** min(attempt, 6)))  # jitter
        raise CommitConflictError(
            f"Commit to {self._files}: {COMMIT_ATTEMPTS_MAX} attempts lost against other commits; try again"
        )

    def _check(self, plan: Plan, snapshot: TopicSnapshot) -> None:
        """Check the preconditions of any commit on the snapshot (rule R4)."""
        if FORBIDDEN_PROPERTY in snapshot.properties:
            raise CommitRefusedError(
                f"{self._files} has the table property {FORBIDDEN_PROPERTY}, which makes Spark forget the offsets kept "
                f"as transactions. Run: ALTER TABLE delta.`{self._files}` UNSET TBLPROPERTIES ('{FORBIDDEN_PROPERTY}')"
            )
        if plan.removes and plan.data_change and snapshot.is_append_only:
            raise CommitRefusedError(
                f"{self._files} has the table property {APPEND_ONLY_PROPERTY}, and {plan.operation} removes records. "
                f"Run: ALTER TABLE delta.`{self._files}` UNSET TBLPROPERTIES ('{APPEND_ONLY_PROPERTY}')"
            )
        for app, value in plan.transactions.items():
            current = snapshot.transactions.get(app)
            if current is not None and value <= current:
                raise CommitRefusedError(f"{self._files}: {app} is {current} and cannot become {value}")
        for removal in plan.removes:
            if removal.path not in snapshot.paths:
                raise CommitRefusedError(f"{self._files}: {removal.path} is not active, it cannot be removed")
        if not plan.adds:
            return
        for segment in plan.adds:
            if segment.path in snapshot.paths:
                raise CommitRefusedError(f"{self._files}: {segment.path} is active already")
            if not plan.removed_before and snapshot.log.was_removed(segment.path):
                raise CommitRefusedError(f"{self._files}: {segment.path} was removed by a later commit")
            try:
                size = self._files.head(segment.path).size
            except FileNotFoundError as error:
                raise CommitRefusedError(f"{self._files}: {segment.path} is not on disk, was it vacuumed?") from error
            if size != segment.size:
                raise CorruptionError(
                    f"{self._files.where(segment.path)} has {size} bytes, written were {segment.size}"
                )

    def _put(self, snapshot: TopicSnapshot, plan: Plan, commit_id: str) -> None:
        """Write the entry of a plan as the version after ``snapshot``, if that does not exist."""
        version, now_ms = snapshot.version + 1, self._files.clock.now_ms()
        info: dict[str, Any] = {**commit_info(plan.operation, commit_id, plan.details)}
        removes = [Action(remove=_remove(removal, now_ms, data_change=plan.data_change)) for removal in plan.removes]
        adds = [Action(add=add_action(segment, now_ms, data_change=plan.data_change)) for segment in plan.adds]
        domains = list(plan.domains)
        if ROW_TRACKING in snapshot.features and not plan.protocol:
            domains += _give_row_ids(adds, version, snapshot)
            if snapshot.is_on("delta.enableRowTracking"):
                # Rows that a job copies get new ids, and this tag says so.
                info["tags"] = {"delta.rowTracking.preserved": str(not (adds and removes)).lower()}
        if snapshot.is_on("delta.enableInCommitTimestamps"):
            info[IN_COMMIT_TIMESTAMP] = max(now_ms, self._last_in_commit_timestamp(snapshot) + 1)
        changed = plan.meta_data
        if plan.properties:
            told = changed or snapshot.table.meta_data
            changed = msgspec.structs.replace(told, configuration={**(told.configuration or {}), **plan.properties})
        actions = [
            *([Action(protocol=plan.protocol)] if plan.protocol else []),
            *([Action(meta_data=changed)] if changed else []),
            *removes,
            *adds,
            *transactions(plan.restated | plan.transactions),
            *(Action(domain_metadata=domain) for domain in domains),
        ]
        shown = ("SET TBLPROPERTIES", {}) if changed else ("WRITE", {"mode": "Append", "partitionBy": '["partition"]'})
        entry = encode_entry(commit_info_of(*shown, now_ms, with_digest(version, info, actions)), actions)
        name = entry_name(version)
        try:
            if not self._files.put_if_absent(name, entry):
                raise FileExistsError(errno.EEXIST, "another commit was first", self._files.where(name))
        except OutcomeUnknownError:
            self._doubtful.add(name)
            raise

    def _last_in_commit_timestamp(self, snapshot: TopicSnapshot) -> int:
        known = snapshot.log.in_commit_timestamp
        if known is None:
            with contextlib.suppress(FileNotFoundError):
                known = read_entry(self._files, snapshot.version).in_commit_timestamp
        if known is None:  # a clean-up left only the checkpoint, or its writer did not honour the feature
            known = int(snapshot.properties.get("delta.inCommitTimestampEnablementTimestamp") or 0)
        return known

    def _find(self, plan: Plan, commit_id: str, read_version: int, failure: BaseException | None) -> int | None:
        """Return the version that holds our commit now, or None if no version does (rule R5)."""
        try:
            if failure is None:
                # Without retries our commit is the next version or none; another writer's commit may have overwritten
                # it.
                mine = read_entry(self._files, read_version + 1).commit_id == commit_id
                return read_version + 1 if mine else None
            versions = sorted(list_log(self._files, read_version + 1).entries)
            version = next((v for v in versions if read_entry(self._files, v).commit_id == commit_id), None)
            if version is None:
                return None
            snapshot = self.any_snapshot()
            held = all(snapshot.transactions.get(app, -1) >= value for app, value in plan.transactions.items())
            return version if held and all(segment.path in snapshot.paths for segment in plan.adds) else None
        except (CorruptionError, StorageError, OSError) as error:
            raise CommitStateUnknownError(
                f"Whether the commit {plan.operation} to {self._files} happened is unknown: {failure or error}, and "
                f"looking for it failed: {error}. Look again before doing anything else"
            ) from (failure or error)

    def sync(self, version: int) -> None:
        """Make the entries of ``version`` durable (rule R7); the Delta writers fsync nothing.

        It syncs every entry that this committer has not synced in its present form: another process may have ended
        between commit and fsync, and a snapshot also shows entries that a power cut would take back. An entry of ours
        below a later one of ours is durable: it was synced before the later one was written.
        """
        newest = entry_name(version)
        due: dict[str, Entry] = {}
        try:
            seen = self._replay.contents
            perhaps_not_durable = (*self._replay.perhaps_not_durable(), *(self._doubtful & seen.keys()))
            entries = {name for name in perhaps_not_durable if self._synced.get(name) != seen[name]}
            for name in sorted({*entries, newest}):
                try:
                    now = self._files.head(name)
                except FileNotFoundError:
                    if name in entries:
                        raise
                    continue  # a checkpoint has replaced the newest
                if now != self._synced.get(name):
                    due[name] = now
            if not due:
                return
            for name in sorted(due.keys() & self._doubtful):
                # The same bytes go into a new file: its fsync cannot skip pages that were lost.
                rewritten = self._files.replace(name, self._files.read(name), due[name])
                if rewritten is None:
                    raise FileNotFoundError(errno.ENOENT, "it was replaced meanwhile", self._files.where(name))
                due[name] = rewritten
            self._files.sync(sorted(due.keys() - self._doubtful))
        except OSError as error:
            self._doubtful |= due.keys()
            raise _not_durable(version, self._files, error) from error
        self._synced = {name: then for name, then in self._synced.items() if name in seen} | due
        self._doubtful -= due.keys()


def _not_durable(version: int, files: TableFiles, error: OSError) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"Version {version} of {files} is committed, but its fsync failed: {error}. It may not survive a power cut; "
        "look again before freeing anything"
    )


def commit_info(operation: str, commit_id: str, details: dict[str, int] | None = None) -> dict[str, str]:
    """Return our keys of ``commitInfo``: Delta's history shows the operation and its numbers."""
    details = details or {}
    shown = {USER_METADATA_KEY: json.dumps({"operation": operation, **details})} if details else {}
    return {
        OPERATION_KEY: operation,
        COMMIT_ID_KEY: commit_id,
        **{OWN_PREFIX + name: str(number) for name, number in details.items()},
        **shown,
    }


def _remove(removal: Removal, now_ms: int, *, data_change: bool) -> Remove:
    return Remove(
        removal.path,
        removal.size,
        {"partition": str(removal.partition)},
        now_ms,
        data_change,
        removal.vector,
        *removal.row_ids,
    )


def _give_row_ids(adds: list[Action], version: int, snapshot: TopicSnapshot) -> list[DomainMetadata]:
    """Give each file the ids of its rows, after the highest that was ever given, and return the new highest (Delta
    protocol, "Writer Requirements for Row Tracking").
    """
    if not adds or snapshot.is_on("delta.rowTrackingSuspended"):
        return []
    told = msgspec.json.decode(snapshot.table.domains.get(ROW_TRACKING_DOMAIN) or "{}")
    highest = told.get("rowIdHighWaterMark", -1)
    for action in adds:
        assert action.add is not None
        action.add.base_row_id, action.add.default_row_commit_version = highest + 1, version
        highest += msgspec.json.decode(action.add.stats or "{}")["numRecords"]
    return [DomainMetadata(ROW_TRACKING_DOMAIN, json.dumps({"rowIdHighWaterMark": highest}))]
