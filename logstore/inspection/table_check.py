"""``topic verify``: compares a topic's table with its Delta log, its files and the journal, without a change to any.

Each finding names the check that failed. A finding that is not damage, such as a file of another writer below
``sealed``, is a note. The check may run beside a store: the journal is read first, so that the table is never older
than the journal's tail, and a file that a job has replaced meanwhile does not count.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from logstore.delta.actions import Add
from logstore.delta.file_history import removals_since
from logstore.delta.log_check import differences, observed_snapshot, read_remains
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError, LogStoreError
from logstore.journal.journal_file import PartitionKey
from logstore.log.history import history_gaps, missing_ranges, removed_ranges
from logstore.log.journal_tail import JournalTail
from logstore.log.leader_epochs import LeaderEpochs
from logstore.records.batch_identity import RememberedBatch, unpack_batches
from logstore.segments.checking import CheckedFile, check_file
from logstore.segments.deletion_vectors import DeletionVector, deleted_rows
from logstore.segments.footer import SegmentFooter
from logstore.segments.names import known_segment_name
from logstore.segments.parquet_file import open_parquet
from logstore.segments.reader import segment_from_file
from logstore.table_files import LOG_DIRECTORY, TableFiles

NOT_THERE = "file-missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """A failed check, or a note. ``check`` is the name of the check; ``file`` is the file in the table that it is
    about, if any. Checks: ``delta-log``, ``ranges``, ``foreign-file``, ``file-missing``, ``file-damaged``,
    ``file-differs``, ``records-missing``, ``offsets``, ``leader-epochs``, ``journal``, ``producers``; notes also have
    ``deletion-vector``.
    """

    check: str
    partition: int | None
    text: str
    file: str | None = None


@dataclass
class TopicReport:
    """The report on one topic. ``problems`` are damage, ``notes`` are not. Counts are of active files; ``unnamed`` are
    files on disk that the Delta log does not name.
    """

    topic: str
    version: int | None = None
    partitions: int = 0
    files: int = 0
    foreign_files: int = 0
    unnamed_files: int = 0
    records: int = 0
    bytes: int = 0
    problems: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)


Tails = Mapping[PartitionKey, JournalTail]
#: The tails of each broker by its log directory.
Journals = Mapping[str, Tails]


def newest_tails(journals: Iterable[Tails]) -> Tails:
    """Return for each partition the tail of the replica that has everything acknowledged, if it is among them."""
    newest: dict[PartitionKey, JournalTail] = {}
    for tails in journals:
        for key, tail in tails.items():
            if key not in newest or tail.last_epoch_and_end > newest[key].last_epoch_and_end:
                newest[key] = tail
    return newest


def verify_topic(files: TableFiles, journals: Journals, *, quick: bool = False) -> TopicReport:
    """Run all checks of one topic. Each broker's journal is compared with the table separately; the journals must have
    been read before this call. ``quick`` reads only the ends of files. Raises OSError.
    """
    report = TopicReport(files.name)
    remains = read_remains(files)
    report.problems += [Finding("delta-log", None, text) for text in remains.problems]
    report.notes += [Finding("delta-log", None, text) for text in remains.notes]
    snapshot: TopicSnapshot | None = None
    try:
        snapshot = observed_snapshot(files)
    except LogStoreError as error:
        told = any(finding.text in str(error) or str(error) in finding.text for finding in report.problems)
        if not (told or remains.last_version < 0):
            report.problems.append(Finding("delta-log", None, str(error)))
    active = remains.added
    footers = _check_files(files, active, report, quick=quick)
    _count_unnamed(files, active, report)
    if snapshot is not None:
        report.version, report.partitions = snapshot.version, snapshot.num_partitions
        if snapshot.topic_name not in (None, files.name):
            report.problems.append(
                Finding("delta-log", None, f"{files} is the table of topic {snapshot.topic_name!r}, or a copy of it")
            )
        if snapshot.version == remains.last_version and snapshot.paths != remains.added.keys():
            odd = sorted(snapshot.paths ^ remains.added.keys())
            report.problems.append(Finding("delta-log", None, f"readers of the log disagree on {', '.join(odd[:3])}"))
        for homeless in snapshot.homeless:
            text = f"{files.where(homeless.path)} is not served: {homeless.reason}"
            report.problems.append(Finding("foreign-file", None, text, homeless.path))
        for partition in range(snapshot.num_partitions):
            of_partition = footers.get(partition, [])
            _check_partition(files, snapshot, partition, of_partition, report)
            for home, tails in journals.items():
                if (tail := tails.get((snapshot.topic_id, partition))) is not None:
                    where = home if len(journals) > 1 else None
                    _check_tail(tail, snapshot, partition, of_partition[-1] if of_partition else None, where, report)
        _check_gaps(files, snapshot, report)
        for tails in journals.values():
            _check_partition_count(snapshot.topic_id, snapshot.num_partitions, tails, report)
    _forget_replaced(files, report)
    return report


# ---- files ----------------------------------------------------------------------------------------------------------


def _check_files(
    files: TableFiles,
    active: Mapping[str, Add],
    report: TopicReport,
    *,
    quick: bool,
) -> dict[int, list[SegmentFooter]]:
    """Check the active files, and return the footers of segments by partition, by rising base offset."""
    footers: dict[int, list[SegmentFooter]] = {}
    for path, add in sorted(active.items()):
        partition = _partition_of(add)
        try:
            checked = check_active(files, add, report.problems.append, quick=quick)
        except FileNotFoundError:
            report.problems.append(
                Finding(NOT_THERE, partition, f"{files.where(path)} is not there, and the Delta log names it", path)
            )
            continue
        except (LogStoreError, OSError) as error:
            report.problems.append(Finding("file-damaged", partition, str(error), path))
            continue
        report.files += 1
        report.records += checked.num_records
        if add.deletion_vector is not None:
            report.records -= _check_vector(files, add, add.deletion_vector, checked, report)
        report.bytes += checked.size
        if checked.footer is None:
            report.foreign_files += 1
            report.notes.append(Finding("foreign-file", partition, f"{files.where(path)} is another writer's", path))
        elif partition is not None:
            footers.setdefault(partition, []).append(checked.footer)
    for found in footers.values():
        found.sort(key=lambda footer: footer.base_offset)
    return footers


def _check_vector(
    files: TableFiles, add: Add, vector: DeletionVector, checked: CheckedFile, report: TopicReport
) -> int:
    """Return how many rows the deletion vector removes from the file."""
    try:
        rows = deleted_rows(vector, files)
    except (LogStoreError, OSError) as error:
        report.problems.append(Finding("file-damaged", _partition_of(add), str(error), add.path))
        return 0
    if rows and rows.max() >= checked.num_records:
        text = f"{files.where(add.path)} has {checked.num_records} rows, and its deletion vector row {rows.max()}"
        report.problems.append(Finding("file-differs", _partition_of(add), text, add.path))
    report.notes.append(
        Finding(
            "deletion-vector", _partition_of(add), f"{files.where(add.path)}: {len(rows)} rows are deleted", add.path
        )
    )
    return len(rows)


def check_active(
    files: TableFiles, add: Add, problem: Callable[[Finding], None], *, quick: bool = False
) -> CheckedFile:
    """Compare an active file with itself, and with its add action. Raises FileNotFoundError, OSError, and
    CorruptionError if the file itself is damaged.
    """
    partition = _partition_of(add)
    checked = _ends_of(files, add.path) if quick else check_file(files, add.path)
    of_footer = None if checked.footer is None else checked.footer.partition
    if quick and checked.footer is None:
        found = [] if add.size == checked.size else [f"it has {checked.size} bytes, the Delta log says {add.size}"]
    else:
        found = differences(checked, add, of_footer)
    for difference in found:
        problem(Finding("file-differs", partition, f"{files.where(add.path)}: {difference}", add.path))
    return checked


def _ends_of(files: TableFiles, name: str) -> CheckedFile:
    """Check like ``check_file``, but read only the beginning and the end of the file."""
    file = open_parquet(files, name)
    if known_segment_name(name) is None:
        return CheckedFile(name, file.size, None, file.metadata.num_rows)
    found = segment_from_file(files, name)
    if not found.num_records:
        return CheckedFile(name, file.size, file.footer, 0)
    bounds = (found.min_offset, found.max_offset, found.min_timestamp_us, found.max_timestamp_us)
    return CheckedFile(name, file.size, file.footer, found.num_records, *bounds)


def _partition_of(add: Add) -> int | None:
    text = (add.partition_values or {}).get("partition") or ""
    return int(text) if text.isdecimal() else None


def _count_unnamed(files: TableFiles, active: Mapping[str, Add], report: TopicReport) -> None:
    try:
        on_disk = [entry.name for entry in files.list("") if entry.name.endswith(".parquet")]
    except FileNotFoundError:
        return
    report.unnamed_files = sum(name not in active and not name.startswith(LOG_DIRECTORY) for name in on_disk)


def _forget_replaced(files: TableFiles, report: TopicReport) -> None:
    """Keep the problems of missing files only if the table still names them: a job may have replaced them meanwhile."""
    missing = {finding.file for finding in report.problems if finding.check == NOT_THERE}
    if missing:
        still = read_remains(files).added.keys()
        report.problems = [f for f in report.problems if f.check != NOT_THERE or f.file in still]


# ---- partitions -----------------------------------------------------------------------------------------------------


def _check_partition(
    files: TableFiles,
    snapshot: TopicSnapshot,
    partition: int,
    footers: list[SegmentFooter],
    report: TopicReport,
) -> None:
    state = snapshot.partitions[partition]

    def problem(check: str, text: str) -> None:
        report.problems.append(Finding(check, partition, text))

    try:
        for refused in snapshot.refused(partition):
            text = f"{files.where(refused.path)} is another writer's, and it is not served: {refused.reason}"
            remedy = f"Take it out of the table, beside a store: logstore topic drop-foreign-files {files.name}"
            report.problems.append(Finding("foreign-file", partition, f"{text}. {remedy}", refused.path))
    except (LogStoreError, OSError) as error:
        problem("ranges", str(error))
    for name, offset in (("log start", state.log_start), ("clean point", state.cleaned)):
        if not 0 <= offset <= state.sealed:
            problem("offsets", f"{files}: the {name} is {offset}, outside of 0 to the sealed offset, {state.sealed}")
    epochs: dict[int, int] = {}
    for footer in footers:
        for epoch, start in footer.leader_epochs:
            if epochs.setdefault(epoch, start) != start:
                problem("leader-epochs", f"{files}: epoch {epoch} begins at {epochs[epoch]} and at {start}")
        rising = sorted(footer.leader_epochs)
        if list(footer.leader_epochs) != rising or [s for _, s in rising] != sorted(s for _, s in rising):
            problem("leader-epochs", f"{files}: the segment at {footer.base_offset} has epochs that do not rise")
    newest = max((footer.leader_epoch for footer in footers), default=0)
    if newest > state.leader_epoch:
        problem("leader-epochs", f"{files}: a segment has leader epoch {newest}, the Delta log {state.leader_epoch}")


def _check_tail(
    tail: JournalTail,
    snapshot: TopicSnapshot,
    partition: int,
    last: SegmentFooter | None,
    home: str | None,
    report: TopicReport,
) -> None:
    """Check that the journal's frames continue at ``sealed`` without a hole, and remember what the last segment
    remembers.

    ``home`` is the log directory, if there are journals of several brokers. One of them may be of a replica that is out
    of sync: another one was elected, and records that only this one had were never acknowledged.
    """
    sealed = snapshot.partitions[partition].sealed

    def problem(check: str, text: str) -> None:
        report.problems.append(Finding(check, partition, text if home is None else f"{home}: {text}"))

    if home is not None and _has_parted(tail, sealed, last):
        text = f"{home} is not in sync: it has other records below {sealed}, and drops them when its broker follows"
        report.notes.append(Finding("journal", partition, text))
        return
    freed_to = tail.sealed_beyond(sealed)
    if freed_to > sealed:
        problem(
            "journal",
            f"offsets {sealed} to {freed_to - 1} are neither in the table, which is sealed up to {sealed}, nor in the "
            "journal. They were sealed: a start commits their files again if they are on disk. Else restore the table "
            "from a backup",
        )
    if last is not None and last.end_offset == sealed:
        _check_producers(tail, last, problem)
    before = last.leader_epochs if last is not None else ()
    known = dict(before)
    for epoch, start in () if tail.snapshot is None else tail.snapshot.leader_epochs:
        if known.get(epoch, start) != start:
            problem("leader-epochs", f"epoch {epoch} begins at {known[epoch]} in the table, at {start} in the journal")
    try:
        tail.index.finish_recovery(freed_to)
    except CorruptionError as error:
        problem("journal", f"{error}. Restore the journal, or the table, from a backup")


def _has_parted(tail: JournalTail, sealed: int, last: SegmentFooter | None) -> bool:
    """Return whether the last offset that both have is from another leader in the journal than in the table."""
    if last is None or last.end_offset != sealed or not (shared := min(sealed, tail.end_offset)):
        return False
    in_journal = tail.leader_epochs(() if tail.snapshot is None else tail.snapshot.leader_epochs).epoch_of(shared - 1)
    return in_journal not in (None, LeaderEpochs(last.leader_epochs).epoch_of(shared - 1))


def _check_producers(tail: JournalTail, last: SegmentFooter, problem: Callable[[str, str], None]) -> None:
    """Check that batches of the same producer, or key, that both remember are the same batches."""
    found: dict[tuple[int, int], RememberedBatch] = {}
    if tail.snapshot is not None:
        for packed in (tail.snapshot.producers, tail.snapshot.idempotency_keys):
            found.update(((b.owner, b.base_offset), b) for b in unpack_batches(packed))
    found.update(((b.owner, b.base_offset), b) for b in tail.batches() if isinstance(b, RememberedBatch))
    for batch in (*last.producers, *last.idempotency_keys):
        other = found.get((batch.owner, batch.base_offset))
        if other is not None and other != batch:
            problem(
                "producers",
                f"the batch at offset {batch.base_offset} is {tuple(batch)} in the last segment, {tuple(other)} in the "
                "journal",
            )


def _check_partition_count(topic_id: UUID, partitions: int, tails: Tails, report: TopicReport) -> None:
    beyond = sorted(partition for found, partition in tails if found == topic_id and partition >= partitions)
    if beyond and not any(finding.check == "journal" and finding.partition is None for finding in report.problems):
        report.problems.append(
            Finding(
                "journal",
                None,
                f"the journal has partition {beyond[-1]}, the table has {partitions}: the commit that added it was "
                "overwritten. A start commits it again",
            )
        )


def _check_gaps(files: TableFiles, snapshot: TopicSnapshot, report: TopicReport) -> None:
    """Report ranges that no file covers: removed by a DELETE or an old compaction, or missing."""
    unsound = {finding.partition for finding in report.problems if finding.check == "ranges"}
    gaps = {p: history_gaps(snapshot, p) for p in range(snapshot.num_partitions) if p not in unsound}
    if not any(gaps.values()):
        return
    try:
        removed = removed_ranges(removals_since(files, -1), None, files)
    except LogStoreError:
        removed = {}  # the entry is among the problems already
    for partition, found in gaps.items():
        missing = missing_ranges(found, removed.get(partition, []), unexplained=None)
        for gap in missing:
            text = (
                f"{files}: offsets {gap.start} to {gap.end - 1} are missing: {gap.cause}. A store commits the files "
                "again that are on disk; restore the others"
            )
            report.problems.append(Finding("records-missing", partition, text))
        covered = {(gap.start, gap.end) for gap in missing}
        report.notes += [
            Finding("gap", partition, f"{files}: no file stands for offsets {start} to {end - 1}")
            for start, end in found
            if (start, end) not in covered
        ]
