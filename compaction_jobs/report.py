"""Output of a job: progress on stderr while it works, and at its end a summary as a table or as JSON."""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compaction_jobs.waiting import Waiting
from logstore.delta.snapshot import SegmentFile
from logstore.segments.writer import Segment


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over active files; bytes of Parquet."""

    segments: int = 0
    records: int = 0
    bytes: int = 0

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(self.segments + other.segments, self.records + other.records, self.bytes + other.bytes)

    def __sub__(self, other: "Totals") -> "Totals":
        return Totals(self.segments - other.segments, self.records - other.records, self.bytes - other.bytes)


NOTHING = Totals()

#: Limits on the lines that say why nothing was done, and on the names in each.
_REASONS_MAX = 20
_NAMES_MAX = 3


@dataclass(frozen=True, slots=True)
class TopicReport:
    """The result for one topic, or with ``--dry-run`` the expected one.

    ``partitions`` were touched. ``before`` counts the records that the job found, ``after`` those that it left, or is
    None if only a real run can know. ``versions`` of the Delta table are its commits. ``deleted_files`` and their bytes
    are vacuum's. ``error`` is set if it failed. ``waiting`` has the reason for each partition that was not touched; for
    vacuum, the files left on disk. ``busy`` is set if nothing was done because another run of the job is working on the
    topic. New segments take ``bytes_needed_max`` beside the old ones.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    before: Totals | None = None
    after: Totals | None = None
    versions: tuple[int, ...] = ()
    deleted_files: int | None = None
    deleted_bytes: int | None = None
    seconds: float = 0.0
    error: str | None = None
    waiting: tuple[Waiting, ...] = ()
    busy: bool = False
    bytes_needed_max: int = 0


@dataclass(frozen=True, slots=True)
class JobReport:
    job: str
    dry_run: bool
    topics: tuple[TopicReport, ...]
    seconds: float

    @property
    def failed(self) -> bool:
        return any(topic.error for topic in self.topics)

    @property
    def busy(self) -> bool:
        """True if another run of the job has a topic; the work on it is left to the next run."""
        return any(topic.busy for topic in self.topics)

    def as_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode()


def totals(files: Iterable[SegmentFile | Segment]) -> Totals:
    return sum((Totals(1, file.num_records, file.size) for file in files), NOTHING)


def print_summary(report: JobReport, console: Console) -> None:
    """Print the topics where something was done or failed, then one line for all."""
    vacuum = any(topic.deleted_files is not None for topic in report.topics)
    columns = ["topic", "deleted files", "bytes"] if vacuum else ["topic", "partitions", "segments", "records", "bytes"]
    table = Table(*columns, "seconds", box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    shown = [topic for topic in report.topics if topic.partitions or topic.deleted_files or topic.error]
    for topic in shown:
        if topic.error:
            cells = ["failed", *[""] * (len(columns) - 2)]
        elif vacuum:
            cells = [f"{topic.deleted_files or 0:,}", f"{topic.deleted_bytes or 0:,}"]
        else:
            cells = [f"{len(topic.partitions):,}", *_changes(topic.before or NOTHING, topic.after)]
        table.add_row(Text(topic.topic), *cells, f"{topic.seconds:,.1f}")
    if shown:
        console.print(table)
    for topic in shown:
        if topic.error:
            console.print(Text(f"{topic.topic}: {topic.error}"), style="red", soft_wrap=True)
    unchanged = len(report.topics) - len(shown)
    failed = sum(topic.error is not None for topic in report.topics)
    done = f"failed for {failed:,} topics" if failed else "would be done" if report.dry_run else "done"
    rest = f"; nothing to do in {unchanged:,} of {len(report.topics):,} topics" if unchanged else ""
    console.print(f"{report.job} {done} in {report.seconds:.1f} s{rest}", highlight=False, soft_wrap=True)
    for line in _why_nothing(topic for topic in report.topics if topic not in shown):
        console.print(Text(line), soft_wrap=True)


def _why_nothing(topics: Iterable[TopicReport]) -> Iterator[str]:
    """Yield a line for each reason, with its topics."""
    names: dict[str, list[str]] = {}
    for topic in topics:
        for name, message in _reasons(topic):
            names.setdefault(message, []).append(name)
    for message, found in list(names.items())[:_REASONS_MAX]:
        more = f" and {len(found) - _NAMES_MAX:,} more" if len(found) > _NAMES_MAX else ""
        yield f"{', '.join(found[:_NAMES_MAX])}{more}: {message}"
    if len(names) > _REASONS_MAX:
        yield f"and {len(names) - _REASONS_MAX:,} more reasons: see --json"


def _reasons(topic: TopicReport) -> Iterator[tuple[str, str]]:
    """Yield one line if all partitions of a topic have the same reason, otherwise the one that falls due first."""
    if topic.busy:
        yield topic.topic, "another run of the job is working on it"
    elif topic.waiting and topic.waiting[0].partition is None:
        yield from ((topic.topic, waiting.message) for waiting in topic.waiting)
    elif topic.waiting:
        # A partition without segments is the least informative.
        first = min(topic.waiting, key=lambda w: (w.due_ms is None, w.due_ms or 0, w.reason == "empty"))
        unrolled = sum(waiting.unrolled_records or 0 for waiting in topic.waiting)
        what = "record of the topic is" if unrolled == 1 else "records of the topic are"
        rolled = f"; {unrolled:,} {what} not rolled yet" if unrolled else ""
        if all(waiting.message == first.message for waiting in topic.waiting):
            yield topic.topic, first.message + rolled
        else:
            rest = len(topic.waiting) - 1
            others = f"; {rest:,} other {'partitions wait' if rest > 1 else 'partition waits'}, see --json"
            yield f"partition {first.partition} of {topic.topic}", first.message + others + rolled


def _changes(before: Totals, after: Totals | None) -> list[str]:
    pairs = (
        (before.segments, after and after.segments),
        (before.records, after and after.records),
        (before.bytes, after and after.bytes),
    )
    return [f"{old:,} → {'?' if new is None else f'{new:,}'}" for old, new in pairs]


class Progress:
    """Prints one line for each step; on a terminal the last one moves, with its elapsed time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        began = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(Text(text)):
                yield
            self._console.print(Text(f"{text}: {time.monotonic() - began:.1f} s"))
        else:
            self._console.print(Text(f"{text} ..."), soft_wrap=True)
            yield

    def note(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
