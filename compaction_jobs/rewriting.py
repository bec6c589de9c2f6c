"""Jobs that replace a topic's files: plan on a snapshot, work, commit on a fresh one, and plan again if overtaken.

Invariant: only partitions that a commit left out are planned again, so that a job ends however fast others commit.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from compaction_jobs.context import JobContext
from compaction_jobs.report import NOTHING, TopicReport, Totals, totals
from compaction_jobs.topics import JobTopic
from compaction_jobs.waiting import Waiting, append_only_waits
from logstore.delta.snapshot import PartitionState, SegmentFile, TopicSnapshot
from logstore.delta.topic_table import RewritePart
from logstore.errors import (
    CommitRefusedError,
    CorruptionError,
    LogStoreError,
    StorageError,
    storage_error,
)
from logstore.log import history
from logstore.segments.foreign_names import foreign_records
from logstore.topic_config import TopicConfig

#: The most plans of a topic in a run. Only another job on the same files makes a second plan necessary.
PLANS_MAX = 5


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of one attempt: files that its commits removed and added, and the partitions that they left out.

    ``added`` is None if a dry run cannot know it. The plan needs at most ``bytes_needed_max`` of space.
    """

    partitions: frozenset[int] = frozenset()
    removed: Totals = NOTHING
    added: Totals | None = NOTHING
    versions: tuple[int, ...] = ()
    refused: dict[int, LogStoreError] = field(default_factory=dict)
    bytes_needed_max: int = 0

    def and_then(self, other: "AttemptResult") -> "AttemptResult":
        return AttemptResult(
            self.partitions | other.partitions,
            self.removed + other.removed,
            None if self.added is None or other.added is None else self.added + other.added,
            self.versions + other.versions,
            self.refused | other.refused,
            max(self.bytes_needed_max, other.bytes_needed_max),
        )


Attempt = Callable[[JobContext, JobTopic, TopicSnapshot, Collection[int]], AttemptResult]


class PlanOvertakenError(CommitRefusedError):
    """Raised if other commits repeatedly removed the files of a job's plan. The files are not damaged."""

    retriable = True


#: ``retention_waits``, ``compaction_waits`` or ``merge_waits``.
Waits = Callable[[int, PartitionState, Sequence[SegmentFile], TopicConfig, int], Waiting]


def rewrite(
    context: JobContext, topic: JobTopic, job: str, attempt: Attempt, waits: Waits, *, removes_records: bool = True
) -> TopicReport:
    """Run ``attempt`` on the partitions of a topic until none is left out.

    ``waits`` gives the reasons for untouched partitions. A job that ``removes_records`` leaves an append-only table
    alone. A run passes over a topic that another run of the same ``job`` is working on. Raises PlanOvertakenError, and
    as ``attempt``.
    """
    if removes_records and (snapshot := topic.table.snapshot()).is_append_only:
        there = totals(file for p in snapshot.partitions for file in snapshot.segments(p))
        return TopicReport(
            topic.name, before=there, after=there, waiting=tuple(map(append_only_waits, snapshot.partitions))
        )
    if context.dry_run:
        return _rewrite(context, topic, attempt, waits)
    with topic.table.files.try_lock(f".{job}.lock") as held:
        if not held:
            context.progress.note(f"{topic.name}: another run of {job} is working on it, skipped")
            return TopicReport(topic.name, busy=True)
        return _rewrite(context, topic, attempt, waits)


def _rewrite(context: JobContext, topic: JobTopic, attempt: Attempt, waits: Waits) -> TopicReport:
    snapshot = topic.table.snapshot()
    before = totals(file for p in snapshot.partitions for file in snapshot.segments(p))
    whole = AttemptResult()
    left: Collection[int] = sorted(snapshot.partitions)
    for _ in range(PLANS_MAX):
        outcome = attempt(context, topic, snapshot, left)
        whole = replace(whole.and_then(outcome), refused={})
        for error in outcome.refused.values():
            if not isinstance(error, CommitRefusedError):
                raise error
        left = sorted(outcome.refused)
        if not left:
            after = None if whole.added is None else before - whole.removed + whole.added
            config, now_ms = topic.config(snapshot), context.clock.now_ms()
            waiting = (
                waits(p, state, snapshot.segments(p), config, now_ms)
                for p, state in sorted(snapshot.partitions.items())
                if p not in whole.partitions
            )
            touched = tuple(sorted(whole.partitions))
            return TopicReport(
                topic.name,
                touched,
                before,
                after,
                whole.versions,
                waiting=tuple(waiting),
                bytes_needed_max=whole.bytes_needed_max,
            )
        context.progress.note(f"{topic.name}: others changed partitions {', '.join(map(str, left))}: planning again")
        snapshot = topic.table.snapshot()
    raise PlanOvertakenError(f"{PLANS_MAX} plans were overtaken by other commits; run the job again")


def commit(
    topic: JobTopic, snapshot: TopicSnapshot, parts: Sequence[RewritePart], *, data_change: bool, operation: str
) -> AttemptResult:
    """Commit ``parts``, which were planned on ``snapshot``. Raises as ``TopicTable.commit_rewrites``."""
    topic.table.files.reached("job.written")
    done = topic.table.commit_rewrites(parts, data_change=data_change, operation=operation)
    committed = [part for part in parts if part.partition in done.committed]
    files = {file.path: file for part in committed for file in snapshot.segments(part.partition)}
    return AttemptResult(
        frozenset(done.committed),
        totals(files[path] for part in committed for path in part.removes),
        totals(segment for part in committed for segment in part.adds),
        (done.version,) if committed else (),
        done.refused,
    )


def require_whole(topic: JobTopic, snapshot: TopicSnapshot, ends: Mapping[int, int]) -> None:
    """Raise MissingRecordsError if another writer removed records of a partition below its end in ``ends``.

    Readers pass over gaps below a log start offset or a clean point, so the job would hide the loss.
    """
    history.require_whole(
        topic.name,
        topic.table.files,
        snapshot,
        {partition: (0, end) for partition, end in ends.items()},
        "This job would hide that: restore the table to the version before, or give them up with logstore topic "
        "delete-records",
    )


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError of the block into StorageError or StorageFullError."""
    try:
        yield
    except OSError as error:
        raise storage_error(doing, error) from error


def refused_as_overtaken(
    topic: JobTopic, partitions: Collection[int], planned: Collection[str], error: StorageError | CorruptionError
) -> AttemptResult:
    """Return the error of reading ``planned`` files as a refusal if they left the table meanwhile; else raise it."""
    paths = {path for name in planned for path in foreign_records(name).paths}
    if paths <= topic.table.snapshot().paths:
        raise error
    return AttemptResult(refused=dict.fromkeys(partitions, CommitRefusedError(error.message)))
