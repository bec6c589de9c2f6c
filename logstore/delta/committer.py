"""The one commit protocol to a topic table (rules R4 and R5), for the roll, for administration and for jobs.

An attempt: open a fresh snapshot V; check every precondition on V; put the entry of version V + 1 if there is none, a
compare-and-set; fsync the log entry (R7). A log that only this store has written to needs no Delta reader or writer for
that; any other is committed to through delta-rs, with the handle at V and no retries. On a conflict the handle is
thrown away and the next attempt starts at the check. A handle is never refreshed between check and commit, nor kept for
the next attempt: a kept handle would not see a foreign commit that overwrote an entry it has read. All entries up to V,
foreign ones too, are durable before V + 1 is written: a power cut can tear only the newest.

An exception of a commit does not say whether the commit happened. The committer then looks for its unique commit id in
the log, and for its transaction values and files in a fresh snapshot. If it cannot look, it raises
CommitStateUnknownError.
"""

import contextlib
import errno
import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from logstore.delta.actions import (
    COMMIT_ID_KEY,
    OPERATION_KEY,
    OWN_PREFIX,
    USER_METADATA_KEY,
    added,
    encode_entry,
    removed,
    transactions,
    with_digest,
    with_properties,
)
from logstore.delta.erased_files import with_erased_files
from logstore.delta.log_entries import (
    LogReplay,
    entry_name,
    list_log,
    read_entry,
)
from logstore.delta.log_repair import drop_bad_hint
from logstore.delta.protocol_upgrade import require_readable, upgraded
from logstore.delta.schema import FORBIDDEN_PROPERTY, PARTITION_COLUMNS, PROTOCOL, add_action, remove_action
from logstore.delta.snapshot import Removal, TopicSnapshot, plain_snapshot, read_snapshot
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
from logstore.segments.writer import Segment
from logstore.table_files import Entry, OutcomeUnknownError, TableFiles

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

log = structlog.stdlib.get_logger(__name__)

_OPEN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of one commit. ``properties`` are table properties to set; they exclude adds and removes.
    ``restated`` are transactions that hold already. They are repeated, so that they outlive a commit that is
    overwritten. ``details`` are numbers for the table's history. ``removed_before``: a commit has removed the adds.
    ``are_found``: the adds were found on a disk, and may have records that were erased since.
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
    are_found: bool = False


class Committer:
    """Commits to one table; the caller serialises its calls."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files
        self._replay = LogReplay(files)
        #: The last snapshot, and the files that it was read from, as they were then.
        self._known: tuple[dict[str, Entry], TopicSnapshot] | None = None
        self._synced: dict[str, Entry] = {}
        #: Entries whose fsync failed. A later fsync that succeeds does not bring back the pages that were lost.
        self._doubtful: set[str] = set()
        #: Offsets of other writers' files, by path, or why they cannot be told.
        self._runs: dict[str, OffsetRuns | CorruptionError] = {}

    def open(self) -> tuple["DeltaTable", TopicSnapshot]:
        """A fresh handle and the snapshot it holds. CorruptionError; StorageError if it cannot be read.

        The log is verified before delta-rs sees it, which panics on some damaged checkpoints.
        """
        from deltalake import DeltaTable

        failure: BaseException | None = None
        for _ in range(_OPEN_ATTEMPTS):
            try:
                state = self._replay.state()
                contents = self._replay.contents
                table = DeltaTable(self._files.uri, storage_options=self._files.storage_options)
                if table.version() != state.version:
                    state = self._replay.state(table.version())
                    contents = {}
                snapshot = read_snapshot(table, state, self._files.uri, self._read_runs)
                require_readable(self._files, snapshot, table.protocol().reader_features or ())
                self._place_foreign_files(snapshot)
                self._known = contents, snapshot
                return table, snapshot
            except (KeyboardInterrupt, SystemExit, CorruptionError):
                raise
            except BaseException as error:  # noqa: BLE001  a Rust panic is no Exception
                # A checkpoint and clean-up may take log entries away between listing and reading.
                failure = error
                with contextlib.suppress(OSError):
                    drop_bad_hint(self._files)
        raise StorageError(f"Cannot read the Delta table {self._files}: {failure}") from failure

    def _place_foreign_files(self, snapshot: TopicSnapshot) -> None:
        """Whoever asks the snapshot later may not wait for a disk."""
        if not snapshot.has_foreign_files:
            self._runs.clear()
            return
        for path in self._runs.keys() - snapshot.paths:
            del self._runs[path]
        for partition in snapshot.partitions:
            with contextlib.suppress(CorruptionError):
                snapshot.check(partition)

    def _read_runs(self, path: str) -> OffsetRuns:
        known = self._runs.get(path)
        if known is None:
            try:
                others = [runs for runs in self._runs.values() if isinstance(runs, OffsetRuns)]
                known = read_offset_runs(self._files, path, others)
            except CorruptionError as error:
                known = error
            self._runs[path] = known
        if isinstance(known, CorruptionError):
            raise known
        return known

    @property
    def latest(self) -> TopicSnapshot:
        """The last snapshot. RuntimeError if none was read."""
        if self._known is None:
            raise RuntimeError(f"{self._files} was not read yet")
        return self._known[1]

    def snapshot(self) -> TopicSnapshot:
        """The newest version, read afresh unless every file of the log is as it was. Raises as ``open``.

        delta-rs takes ten times as long to read a log as it takes to see that there is nothing new in it. It reads only
        logs that are not plain.
        """
        return self._read() or self.open()[1]

    def _read(self) -> TopicSnapshot | None:
        """The newest version; None if delta-rs has to read it."""
        with contextlib.suppress(OSError):
            state = self._replay.state()
            contents = self._replay.contents
            if self._known is not None and self._known[0] == contents:
                return self._known[1]
            if state.plain is not None:
                if self._known is None and state.has_checkpoint:
                    drop_bad_hint(self._files)  # other readers fail over one
                snapshot = plain_snapshot(state.plain, state, self._files.uri)
                self._known = contents, snapshot
                return snapshot
        return None

    def commit(self, plan: Callable[[TopicSnapshot], Plan | None]) -> int:
        """Commit the actions that ``plan`` chooses on a fresh snapshot, and return the version that holds it, durably.

        ``plan`` is called for each attempt, on its snapshot; it raises CommitRefusedError, or returns None for nothing
        to do. Raises
        CommitRefusedError, CommitConflictError (others kept winning), CommitStateUnknownError, CorruptionError,
        StorageFullError, StorageError; nothing is committed but perhaps with CommitStateUnknownError.
        """
        for attempt in range(COMMIT_ATTEMPTS_MAX):
            table, snapshot = self._open_to_commit()
            self._files.reached("delta.opened")
            wanted = plan(snapshot)
            if wanted is not None and wanted.properties and table is None:
                table, snapshot = self.open()
                wanted = plan(snapshot)
            if wanted is None:
                self.sync(snapshot.version)
                return snapshot.version
            wanted = with_erased_files(wanted, snapshot)
            self._check(wanted, snapshot)
            self.sync(snapshot.version)
            self._files.reached("delta.checked")
            commit_id = uuid.uuid4().hex
            failure: BaseException | None = None
            try:
                self._write(snapshot.version + 1, table, wanted, commit_id)
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
            time.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 6)))  # noqa: S311  jitter
        raise CommitConflictError(
            f"Commit to {self._files}: {COMMIT_ATTEMPTS_MAX} attempts lost against other commits; try again"
        )

    def _open_to_commit(self) -> tuple["DeltaTable | None", TopicSnapshot]:
        """As ``open``; no handle where the snapshot needs no Delta reader."""
        snapshot = self._read()
        if snapshot is None or snapshot.log.plain is None:
            return self.open()
        return None, snapshot

    def _check(self, plan: Plan, snapshot: TopicSnapshot) -> None:
        """Rule R4: the preconditions of any commit on the snapshot. delta-rs checks none of it."""
        if FORBIDDEN_PROPERTY in snapshot.properties:
            raise CommitRefusedError(
                f"{self._files} has the table property {FORBIDDEN_PROPERTY}, which makes Spark forget the offsets kept "
                f"as transactions. Run: ALTER TABLE delta.`{self._files}` UNSET TBLPROPERTIES ('{FORBIDDEN_PROPERTY}')"
            )
        if snapshot.protocol != PROTOCOL:
            raise CommitRefusedError(upgraded(self._files, snapshot).message)
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

    def _put(self, version: int, plan: Plan, commit_id: str) -> None:
        """Add a plain entry to a table of plain ones.

        delta-rs would read the log again for that, which takes longer the more entries and removals there are.
        """
        removes = [remove_action(r.path, r.size, r.partition, data_change=plan.data_change) for r in plan.removes]
        adds = [add_action(segment, data_change=plan.data_change) for segment in plan.adds]
        actions = [*map(removed, removes), *map(added, adds), *transactions(plan.restated | plan.transactions)]
        info = with_digest(version, commit_info(plan.operation, commit_id, plan.details), actions)
        name = entry_name(version)
        try:
            if not self._files.put_if_absent(name, encode_entry(info, time.time_ns() // 1_000_000, actions)):
                raise FileExistsError(errno.EEXIST, "another commit was first", self._files.where(name))
        except OutcomeUnknownError:
            self._doubtful.add(name)
            raise

    def _write(self, version: int, table: "DeltaTable | None", plan: Plan, commit_id: str) -> None:
        """Write the entry of a plan, if there is none; by ``table``, a handle at the version before it, if given."""
        if table is None:
            self._put(version, plan, commit_id)
            return
        from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

        info = commit_info(plan.operation, commit_id, plan.details)
        values = plan.restated | plan.transactions
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        if plan.properties:
            info = with_digest(version, info, [with_properties(table, plan.properties), *transactions(values)])
            table.alter.set_table_properties(
                plan.properties,
                raise_if_not_exists=False,
                commit_properties=commit_properties(info, values),
                post_commithook_properties=hooks,
            )
            return
        removes = [remove_action(r.path, r.size, r.partition, data_change=plan.data_change) for r in plan.removes]
        adds = [add_action(segment, data_change=plan.data_change) for segment in plan.adds]
        info = with_digest(version, info, [*map(removed, removes), *map(added, adds), *transactions(values)])
        actions: list[AddAction | RemoveAction] = [*removes, *adds]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            PARTITION_COLUMNS,
            commit_properties=commit_properties(info, values),
            post_commithook_properties=hooks,
        )

    def _find(self, plan: Plan, commit_id: str, read_version: int, failure: BaseException | None) -> int | None:
        """The version that holds our commit now, or None if none does (rule R5)."""
        try:
            if failure is None:
                # Without retries our commit is the next version or none; a foreign commit may have overwritten it.
                mine = read_entry(self._files, read_version + 1).commit_id == commit_id
                return read_version + 1 if mine else None
            versions = sorted(list_log(self._files, read_version + 1).entries)
            version = next((v for v in versions if read_entry(self._files, v).commit_id == commit_id), None)
            if version is None:
                return None
            _, snapshot = self.open()
            held = all(snapshot.transactions.get(app, -1) >= value for app, value in plan.transactions.items())
            return version if held and all(segment.path in snapshot.paths for segment in plan.adds) else None
        except (CorruptionError, StorageError, OSError) as error:
            raise CommitStateUnknownError(
                f"Whether the commit {plan.operation} to {self._files} happened is unknown: {failure or error}, and "
                f"looking for it failed: {error}. Look again before doing anything else"
            ) from (failure or error)

    def sync(self, version: int) -> None:
        """Rule R7: make the entries of ``version`` durable; the Delta writers fsync nothing.

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
                    continue  # a checkpoint has taken the place of the newest
                if now != self._synced.get(name):
                    due[name] = now
            if not due:
                return
            for name in due.keys() & self._doubtful:
                # The same bytes in a new file: its fsync cannot pass over pages that were lost.
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
    """Our keys of ``commitInfo``: Delta's history shows the operation and its numbers."""
    details = details or {}
    shown = {USER_METADATA_KEY: json.dumps({"operation": operation, **details})} if details else {}
    return {
        OPERATION_KEY: operation,
        COMMIT_ID_KEY: commit_id,
        **{OWN_PREFIX + name: str(number) for name, number in details.items()},
        **shown,
    }


def commit_properties(info: dict[str, str], transactions: dict[str, int]) -> "CommitProperties":
    """Properties of a commit that is attempted once, without the Delta writer's retries."""
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=dict(info),
        max_commit_retries=0,
        app_transactions=[Transaction(app, value) for app, value in transactions.items()],
    )
