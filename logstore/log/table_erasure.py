"""Removes erased records from a table, and deletes the files that still have them. Blocking; for threads.

Invariants:

- A commit replaces files by files without the records, and adds no records: the rules of every rewrite hold, and a
  commit that loses against another one is planned again (R4, R6). Only a commit after which each active file is known
  to have none of the records marks the erasure as included in the table (``erased_files``).
- A file on disk that the table does not name is deleted if it has one of the records, or if it is an unreadable segment
  that may have one: its writer has lost the source files, and the writer's commit is refused. The file is not deleted
  if it has records that the table misses.
- Deletions are durable before they are reported.
"""

import itertools
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import numpy as np
import structlog

from logstore.delta.actions import OWN_PREFIX
from logstore.delta.erased_files import ERASED, erased_facts, is_erased
from logstore.delta.log_entries import list_log, read_actions
from logstore.delta.preconditions import RewritePart
from logstore.delta.removed_files import is_change_file, is_data_file
from logstore.delta.snapshot import SegmentFile, TopicSnapshot, sharing
from logstore.delta.topic_table import PartsCommit, TopicTable
from logstore.errors import (
    CommitConflictError,
    CommitRefusedError,
    CorruptionError,
    StorageError,
    StorageFullError,
)
from logstore.limits import MIB
from logstore.log.erasures import ErasedUpTo, Selects, TableErasure
from logstore.log.history import missing_records
from logstore.log.merge import MergeGroup, merge_parts, merge_task
from logstore.records.log_batches import int64_values
from logstore.records.transactions import OFFSET_MAX
from logstore.segments.foreign_file import stored_batches
from logstore.segments.merge import Rows, write_here
from logstore.segments.names import SegmentName, known_segment_name
from logstore.segments.reader import read_footer, read_row_group, row_groups
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles
from logstore.topic_config import TopicConfig

log = structlog.stdlib.get_logger(__name__)

#: The ``operation`` of the segments that an erasure writes, and of its commits.
ERASE: Final = "erase"
#: The field with the number of the erasure in the history of the table.
_NUMBER: Final = "erasure"
_ATTEMPTS: Final = 20
#: Space that is left free for rolls and commits that come meanwhile.
_RESERVE_BYTES: Final = 16 * MIB
_PARTITION: Final = re.compile(r"(?:_change_data/)?partition=(\d{1,10})/")


_TableFacts = Callable[[TopicSnapshot, Collection[str]], dict[str, int]]
#: A commit of an erasure, which blocks; and an erasure that yields its commits.
ErasingCommit = Callable[[], PartsCommit]
ErasingCommits = Generator[ErasingCommit, PartsCommit | None, TableErasure]


class ErasureWaitsError(CommitRefusedError):
    """The erasure cannot continue now; it continues by itself when the reason is gone."""


@dataclass(slots=True)
class ErasureProgress:
    """The progress of an erasure. Other threads read it."""

    step: str = ""
    files: int = 0
    files_done: int = 0


def erased_rows(files: TableFiles, partition: int, path: str, selected: Sequence[Selects]) -> Rows:
    """Return the rows of a file, numbered from 0, that ``selected`` selects.

    Raises FileNotFoundError, OSError and CorruptionError.
    """
    return _joined(rows for rows, _ in _erased_rows(files, partition, path, selected))


def _joined(parts: Iterable[Rows]) -> Rows:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _erased_rows(
    files: TableFiles, partition: int, path: str, selected: Sequence[Selects]
) -> Iterator[tuple[Rows, Rows]]:
    """Yield the rows that ``erased_rows`` returns, with their offsets, one row group after the other."""
    if is_change_file(path):
        yield from _erased_changes(files, partition, path, selected)
        return
    epochs = read_footer(files, path, partition).leader_epochs
    limits = [(one, one.limit(partition, epochs)) for one in selected]
    row = 0
    for group in row_groups(files, path):
        first, last = group.first_offset, group.last_offset
        asked = [(one, end) for one, end in limits if first < end and one.touches(partition, first, last)]
        if asked:
            columns = sorted({name for one, _ in asked for name in one.columns})
            batch = read_row_group(files, path, group.index, columns)
            mask = np.zeros(batch.num_rows, dtype=bool)
            for one, end in asked:
                mask |= one.mask(partition, batch, end)
            found = np.flatnonzero(mask)
            yield found + row, int64_values(batch.column("offset"))[found]
        row += group.num_rows


def _erased_changes(
    files: TableFiles, partition: int, path: str, selected: Sequence[Selects]
) -> Iterator[tuple[Rows, Rows]]:
    """Yield like ``_erased_rows`` for a file of changes, which has a changed row before and after. The row numbers mean
    nothing. The file has no leader epochs, so a newer record at an erased offset may also be selected.
    """
    columns = sorted({name for one in selected for name in one.columns})
    for stored in stored_batches(files, path, columns):
        batch = stored.sort_by("offset")
        mask = np.zeros(batch.num_rows, dtype=bool)
        for one in selected:
            mask |= one.mask(partition, batch, one.limit(partition, ()))
        found = np.flatnonzero(mask)
        yield found, int64_values(batch.column("offset"))[found]


class _Without:
    """All rows of a source except some (``KeptRows``)."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._taken = 0

    def take(self, end: int) -> Rows:
        begin, self._taken = self._taken, end
        low, high = np.searchsorted(self._rows, (begin, end))
        kept = np.ones(end - begin, dtype=bool)
        kept[self._rows[low:high] - begin] = False
        return np.flatnonzero(kept) + begin


def concerned_files(snapshot: TopicSnapshot, selected: Sequence[Selects]) -> list[tuple[int, SegmentFile]]:
    """Return the served files, with their partitions, that may have selected records. Raises CorruptionError."""
    return [
        (partition, file)
        for partition in sorted(snapshot.partitions)
        for file in snapshot.segments(partition)
        if any(one.touches(partition, file.base_offset, file.end_offset - 1) for one in selected)
    ]


def unserved_file(snapshot: TopicSnapshot) -> str:
    """Return why a file of another writer in the table is not served, and what to do; empty if all are served. Such a
    file may have selected records. Raises CorruptionError.
    """
    for file in snapshot.unserved:
        return (
            f"{file.path} is in the table and not served: {file.reason}. Take it out with logstore topic "
            "drop-foreign-files"
        )
    return ""


def _may_show(snapshot: TopicSnapshot, number: int) -> bool:
    """Return whether a commit may say that the table includes the erasures up to ``number``: all files are served, and
    no later erasure has been committed whose records may have come back.
    """
    return snapshot.transactions.get(ERASED, -1) <= number and not unserved_file(snapshot)


def _require_served(snapshot: TopicSnapshot) -> None:
    """Raise ErasureWaitsError if a file is not served."""
    if why := unserved_file(snapshot):
        raise ErasureWaitsError(why)


def count_records(
    files: TableFiles, snapshot: TopicSnapshot, selected: Sequence[Selects], pool: Executor, progress: ErasureProgress
) -> dict[tuple[int, SegmentFile], Rows]:
    """Return the selected rows of each served file that has any.

    Raises ErasureWaitsError while a file is not served, and the errors of ``concerned_files`` and ``erased_rows``.
    """
    _require_served(snapshot)
    return _scan(files, concerned_files(snapshot, selected), selected, pool, progress)


def find_offsets(
    files: TableFiles, snapshot: TopicSnapshot, selected: Selects, pool: Executor, progress: ErasureProgress
) -> dict[int, Rows]:
    """Return, by partition, the offsets of the selected records, rising.

    They include records in files that the table no longer names. Raises the errors of ``count_records``.
    """
    _require_served(snapshot)
    concerned = concerned_files(snapshot, [selected])
    names = [(partition, path) for partition, file in concerned for path in (file.path, *file.masked_paths)]
    others = _unnamed_files(files, snapshot)
    progress.step, progress.files, progress.files_done = "looking", len(names) + len(others), 0

    def look(one: tuple[int, str]) -> Rows:
        offsets = _joined(offsets for _, offsets in _erased_rows(files, *one, [selected]))
        progress.files_done += 1
        return offsets

    def look_if_there(one: tuple[tuple[int, ...], str]) -> tuple[int, Rows]:
        partitions, name = one
        with suppress(FileNotFoundError, CorruptionError):
            offsets = look((partitions[0], name))
            if len(offsets) and len(partitions) > 1:
                raise ErasureWaitsError(
                    f"{name}, which the table does not name any more, has records that are selected, and its directory "
                    "does not tell their partition. Vacuum deletes it when file.delete.delay.ms is over"
                )
            return partitions[0], offsets
        return partitions[0], np.empty(0, dtype=np.int64)

    found: dict[int, list[Rows]] = {}
    of_table = zip((partition for partition, _ in names), pool.map(look, names), strict=True)
    for partition, offsets in itertools.chain(of_table, pool.map(look_if_there, others)):
        found.setdefault(partition, []).append(offsets)
    return {partition: np.unique(_joined(offsets)) for partition, offsets in found.items()}


def _unnamed_files(files: TableFiles, snapshot: TopicSnapshot) -> list[tuple[tuple[int, ...], str]]:
    """Return the files on disk that the table does not name, each with the partitions that it may belong to.

    Files of the change data feed of another writer are among them. In a table with column mapping, the names of
    Spark's directories do not contain the partition.
    """
    active = {unquote(path) for path in snapshot.paths}
    stored = (entry.name for entry in files.list(""))
    names = (name for name in stored if is_change_file(name) or (is_data_file(name) and name not in active))
    all_partitions = tuple(sorted(snapshot.partitions))
    return [((int(one[1]),) if (one := _PARTITION.match(name)) else all_partitions, name) for name in names]


def _scan(
    files: TableFiles,
    found: Sequence[tuple[int, SegmentFile]],
    selected: Sequence[Selects],
    pool: Executor,
    progress: ErasureProgress,
) -> dict[tuple[int, SegmentFile], Rows]:
    progress.step, progress.files, progress.files_done = "looking", len(found), 0

    def look(one: tuple[int, SegmentFile]) -> Rows | None:
        rows = erased_rows(files, one[0], one[1].path, selected)
        hidden = any(len(rows) for path in one[1].masked_paths for rows in _erased_rows(files, one[0], path, selected))
        progress.files_done += 1
        return rows if len(rows) or hidden else None

    looked = zip(found, pool.map(look, found), strict=True)
    return {one: rows for one, rows in looked if rows is not None}


def erase_from_table(
    table: TopicTable,
    topic: str,
    erasures: ErasedUpTo,
    config: TopicConfig,
    now_ms: int,
    pool: Executor,
    *,
    clean: set[str] | None = None,
) -> TableErasure:
    """Remove the records of ``erasures`` from the table. Takes arguments and raises errors as ``erasing_commits``."""
    commits = erasing_commits(table, topic, erasures, config, now_ms, pool, clean=clean)
    found = next_commit(commits)
    while not isinstance(found, TableErasure):
        found = next_commit(commits, found())
    return found


def next_commit(commits: ErasingCommits, outcome: PartsCommit | None = None) -> ErasingCommit | TableErasure:
    """Continue to the next commit, or to the end. ``outcome`` is that of the commit before; None at the beginning."""
    try:
        return commits.send(outcome)
    except StopIteration as end:
        done: TableErasure = end.value
        return done


def erasing_commits(
    table: TopicTable,
    topic: str,
    erasures: ErasedUpTo,
    config: TopicConfig,
    now_ms: int,
    pool: Executor,
    *,
    clean: set[str] | None = None,
    progress: ErasureProgress | None = None,
) -> ErasingCommits:
    """Remove the records of ``erasures`` from the table: yield each commit, which the caller runs and answers with its
    outcome.

    ``clean`` are paths of files that are known to have none of the records; files that turn out to have none, and those
    that are written, are added. Files that are not served stay as they are: then the table
    does not include the erasures, and ``TableErasure.unserved`` says why. Raises StorageFullError, StorageError,
    CorruptionError, CommitConflictError; a commit also raises CommitStateUnknownError.
    """
    progress = progress or ErasureProgress()
    files, clean, done = table.files, set[str]() if clean is None else clean, TableErasure()
    number, overtaken = erasures.number, ""
    for _ in range(_ATTEMPTS):
        snapshot = table.snapshot()
        if is_erased(snapshot, number):
            return done
        selected = [one for one in erasures.erasures if not is_erased(snapshot, one.number)]
        concerned = [one for one in concerned_files(snapshot, selected) if not clean.issuperset(one[1].paths)]
        if not concerned and not _may_show(snapshot, number):
            done.unserved = unserved_file(snapshot)
            return done
        try:
            found = _scan(files, concerned, selected, pool, progress)
            clean.update(path for one in concerned if one not in found for path in one[1].paths)
            found |= _sharing(snapshot, found)
            _require_space(files, found)
            joined = _write(table, topic, snapshot, found, config, now_ms, pool, progress)
        except (FileNotFoundError, StorageError, CorruptionError) as error:
            paths = {path for _, file in concerned for path in file.paths}
            if not isinstance(error, StorageFullError) and not paths <= table.snapshot().paths:
                overtaken = str(error)
                continue
            raise
        files.reached("erase.written")
        parts, written = merge_parts(joined), [segment for _, segment in joined]
        wanted = {segment.path for segment in written}

        def table_facts(
            now: TopicSnapshot,
            removed: Collection[str],
            selected: Sequence[Selects] = selected,
            wanted: Collection[str] = wanted,
        ) -> dict[str, int]:
            concerned = {path for _, file in concerned_files(now, selected) for path in file.paths}
            is_shown = concerned <= clean.union(removed) and _may_show(now, number)
            return erased_facts(number, now, wanted, removed) if is_shown else {}

        def change(parts: Sequence[RewritePart] = parts, table_facts: _TableFacts = table_facts) -> PartsCommit:
            return table.commit_rewrites(
                parts,
                data_change=False,
                operation=ERASE,
                table_facts=table_facts,
                more_details={_NUMBER: number},
            )

        outcome = yield change
        assert outcome is not None
        for partition, why in outcome.refused.items():
            log.info("erase.overtaken", topic=topic, partition=partition, why=str(why))
            overtaken = str(why)
        clean.update(segment.path for segment in written if segment.partition in outcome.committed)
        committed = [one for one in found if one[0] in outcome.committed]
        if committed:
            done.versions.append(outcome.version)
            done.rewritten += len(committed)
            done.records += sum(len(found[one]) for one in committed)
        files.reached("erase.committed")
    raise CommitConflictError(f"Erasing from {files}: {_ATTEMPTS} plans were overtaken by other commits {overtaken}")


def erase_commits(files: TableFiles, number: int) -> TableErasure:
    """Return the commits of an erasure that the log shows, including those of a process that was killed. Raises
    CorruptionError and OSError.
    """
    found = TableErasure()
    for version in sorted(list_log(files).entries):
        try:
            actions = read_actions(files, version)
        except FileNotFoundError:
            continue  # the log was cleaned meanwhile
        info = next((action.commit_info for action in actions if action.commit_info is not None), {})
        removed = int(info.get(f"{OWN_PREFIX}removed_records", 0))
        if info.get(f"{OWN_PREFIX}{_NUMBER}") == str(number) and removed:
            found.versions.append(version)
            found.records += removed - int(info[f"{OWN_PREFIX}added_records"])
            found.rewritten += int(info[f"{OWN_PREFIX}removed_segments"])
    return found


def _sharing(
    snapshot: TopicSnapshot, found: dict[tuple[int, SegmentFile], Rows]
) -> dict[tuple[int, SegmentFile], Rows]:
    """Return the records of other writers that share a file with ``found`` records: a file is replaced as a whole."""
    shared: dict[tuple[int, SegmentFile], Rows] = {}
    for partition in dict.fromkeys(partition for partition, file in found if file.shared):
        paths = {path for p, file in found if p == partition and file.shared for path in file.paths}
        files = sharing((file for file in snapshot.segments(partition) if file.shared), paths)
        shared |= {(partition, f): np.empty(0, np.int64) for f in files if (partition, f) not in found}
    return shared


def _require_space(files: TableFiles, found: Collection[tuple[int, SegmentFile]]) -> None:
    needed, free = sum(file.size for _, file in found), files.free_bytes()
    if found and needed + _RESERVE_BYTES > free:
        raise StorageFullError(f"Erasing from {files} needs up to {needed} bytes, and {free} are free: free some space")


def _write(
    table: TopicTable,
    topic: str,
    snapshot: TopicSnapshot,
    found: dict[tuple[int, SegmentFile], Rows],
    config: TopicConfig,
    now_ms: int,
    pool: Executor,
    progress: ErasureProgress,
) -> list[tuple[MergeGroup, Segment]]:
    """Write a segment for each file, without the selected rows. If one fails, no segment is left."""
    files = table.files
    progress.step, progress.files, progress.files_done = "rewriting", len(found), 0
    groups = [MergeGroup(partition, (file,), file.base_offset) for partition, file in found]

    def write(number: int, group: MergeGroup, rows: Rows) -> Segment:
        task = merge_task(group, topic, files.uri, snapshot, config, now_ms, ERASE)
        segment = write_here(number, task, _Without(rows), files=files).segment
        progress.files_done += 1
        return segment

    work = enumerate(zip(groups, found.values(), strict=True))
    futures = [pool.submit(write, number, group, rows) for number, (group, rows) in work]
    written: list[Segment] = []
    failure: BaseException | None = None
    for future in futures:
        try:
            written.append(future.result())
        except BaseException as error:  # noqa: BLE001  the other files are also removed
            for other in futures:
                other.cancel()
            failure = failure or error
    if failure is not None:
        files.discard(segment.path for segment in written)
        raise failure
    return list(zip(groups, written, strict=True))


# ---- files that the table does not name -----------------------------------------------------------------------------


def _end_of(segment: SegmentName) -> int:
    """Return the segment's end offset, or the largest offset, because names of earlier releases do not have it."""
    return segment.end_offset or OFFSET_MAX


@dataclass(frozen=True, slots=True)
class SweptFiles:
    """The names of ``deleted`` files, and of ``unreadable`` ones, which another writer may be writing."""

    deleted: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def delete_erased_files(
    files: TableFiles,
    snapshot: TopicSnapshot,
    selected: Sequence[Selects],
    *,
    known: set[str],
    progress: ErasureProgress | None = None,
) -> SweptFiles:
    """Delete the files that have selected records and that the table does not name.

    ``snapshot`` is current and includes the erasures. ``known`` has the names of files that were searched before; the
    files without selected records are added to it. Raises ErasureWaitsError if such a file has records that the table
    misses, OSError and CorruptionError.
    """
    progress = progress or ErasureProgress()
    others = [one for one in _unnamed_files(files, snapshot) if one[1] not in known]
    progress.step, progress.files, progress.files_done = "deleting", len(others), 0
    deleted, unreadable = [], []
    for partitions, name in others:
        progress.files_done += 1
        segment = known_segment_name(name)
        if segment is not None:
            first, last = segment.base_offset, _end_of(segment) - 1
            if not any(one.touches(segment.partition, first, last) for one in selected):
                continue
        try:
            goes = any(len(rows) for at in partitions for rows, _ in _erased_rows(files, at, name, selected))
        except FileNotFoundError:
            continue
        except CorruptionError:
            if segment is None:
                unreadable.append(name)
                continue
            goes = True
        if goes:
            deleted.append(name)
        else:
            known.add(name)
    if deleted:
        _require_not_missing(files, snapshot, deleted)
        for name in deleted:
            try:
                files.remove([name], durable=False)
            except FileNotFoundError:
                continue
            files.reached("erase.deleted")
        for directory in dict.fromkeys(name.rpartition("/")[0] for name in deleted):
            files.sync_names(directory)
    return SweptFiles(tuple(deleted), tuple(unreadable))


def _require_not_missing(files: TableFiles, snapshot: TopicSnapshot, names: Iterable[str]) -> None:
    """Raise ErasureWaitsError if one of the files has records that the table misses and that may be committed again."""
    ranges = {partition: (state.log_start, state.sealed) for partition, state in snapshot.partitions.items()}
    missing = missing_records(files, snapshot, ranges)
    for name in names:
        segment = known_segment_name(name)
        if segment is None:
            continue
        for gap in missing.get(segment.partition, []):
            if segment.base_offset < gap.end and gap.start < _end_of(segment):
                raise ErasureWaitsError(
                    f"{gap.told(files.name, segment.partition)}; {files.where(name)} has them beside records that go. "
                    "Restore the table, or give the missing records up with logstore topic delete-records"
                )
