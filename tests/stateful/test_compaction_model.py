"""Random histories of puts, tombstones, deletions, time and jobs, against a model of a few lines (I1 and I3).

The same histories run through the local jobs and through the tasks of Spark's executors.
"""

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.log.history import history_gaps
from tests.support.examples import examples
from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.local_jobs import compact, compact_by_tasks, merge, retain
from tests.support.table_paths import path_of, read_footer

KEYS = st.sampled_from([None, b"", b"a", b"b", b"c", b"d"])
VALUES = st.one_of(st.none(), st.binary(max_size=4))
SEGMENTS = st.lists(st.none() | st.tuples(KEYS, VALUES), min_size=1, max_size=8)
#: A round has segments to roll (an offset in them may have no record), the time that passes, the number of offsets to
#: delete
#: at the log start, and three flags: merge small segments before compaction, merge them after it, run retention.
ROUNDS = st.lists(
    st.tuples(st.lists(SEGMENTS, max_size=6), st.integers(1, 60), st.integers(0, 3), st.tuples(*[st.booleans()] * 3)),
    min_size=1,
    max_size=5,
)
DELETE_RETENTION_MS = 50


@dataclass
class Model:
    """The records of a partition by offset, and when each was first compacted."""

    lag_ms: int = 0
    records: dict[int, Record] = field(default_factory=dict)
    first_cleaned: dict[int, int] = field(default_factory=dict)
    segments: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0
    log_start: int = 0
    cleaned: int = 0

    def merge(self, files) -> None:
        """Take the bounds of the files that a merge left; it changes no records."""
        assert {o for f in files for o in range(f.base_offset, f.end_offset)} >= set(range(self.log_start, self.end))
        self.segments = [(file.base_offset, file.end_offset) for file in files]

    def roll(self, appended: list[Record | None]) -> None:
        self.records |= {o: record for o, record in enumerate(appended, self.end) if record is not None}
        self.segments.append((self.end, self.end + len(appended)))
        self.end += len(appended)

    def compact(self, now: int) -> None:
        """Compact up to the first segment that was never compacted and has a record younger than the lag."""
        dirty = [(b, e) for b, e in self.segments if e > max(self.log_start, self.cleaned)]
        young = (b for b, e in dirty if any(now - r.timestamp_ms < self.lag_ms for r in self._in(b, e).values()))
        clean_point = next(young, self.end)
        if not any(self._in(b, e) for b, e in dirty if e <= clean_point):
            return
        self.cleaned = clean_point
        for offset in range(clean_point):
            self.first_cleaned.setdefault(offset, now)
        below = self._in(self.log_start, clean_point)
        latest = {record.key: o for o, record in below.items() if record.key is not None}
        for offset, record in below.items():
            expired = record.value is None and now - self.first_cleaned[offset] >= DELETE_RETENTION_MS
            if latest.get(record.key) != offset or expired:
                del self.records[offset]

    def visible(self) -> dict[int, Record]:
        return self._in(self.log_start, self.end)

    def _in(self, begin: int, end: int) -> dict[int, Record]:
        return {o: record for o, record in self.records.items() if begin <= o < end}


def run_history(directory: str, rounds, segment_bytes: int, lag_ms: int, clean) -> None:
    topic = KeyedTopic.create(
        Path(directory),
        "users",
        cleanup_policy="compact,delete",
        delete_retention_ms=DELETE_RETENTION_MS,
        min_cleanable_dirty_ratio=0,
        min_compaction_lag_ms=lag_ms,
        segment_bytes=segment_bytes,
    )
    model = Model(lag_ms)
    now = 0
    for rolls, passed, deleted, (merged_before, merged_after, retained) in rounds:
        now += passed
        for roll in rolls:
            records = [None if appended is None else Record(*appended, now) for appended in roll]
            topic.roll({0: records})
            model.roll(records)
        model.log_start = min(model.end, model.log_start + deleted)
        topic.table.advance_log_start({0: model.log_start}, {0: 1})
        if merged_before:
            merge(topic, now)
            check(topic, model)
            model.merge(topic.table.snapshot().segments(0))
        before = topic.table.snapshot()
        clean(topic, now)
        model.compact(now)
        check(topic, model)
        check_untouched(before, topic)
        if merged_after:
            merge(topic, now)
            check(topic, model)
        model.merge(topic.table.snapshot().segments(0))
        if retained:
            retain(topic, now)
            check(topic, model)
            assert all(offset >= model.log_start for offset in topic.contents())
            model.records = model.visible()
        again = topic.table.snapshot().version
        clean(topic, now)
        assert topic.table.snapshot().version == again, "a second run has nothing to do"


def check(topic: KeyedTopic, model: Model) -> None:
    contents = topic.contents()
    assert {o: r for o, r in contents.items() if o >= model.log_start} == model.visible()
    snapshot = topic.table.snapshot()
    assert history_gaps(snapshot, 0) == []
    assert snapshot.partitions[0].sealed == model.end
    for file in snapshot.segments(0):
        footer = read_footer(path_of(topic.table) / file.path)
        assert (footer.base_offset, footer.end_offset) == (file.base_offset, file.end_offset)
        assert (footer.leader_epoch, footer.leader_epochs) == (1, ((1, 0),))


def check_untouched(before, topic: KeyedTopic) -> None:
    """Check that each new file had a reason: it lost a record, met a tombstone for the first time, or merges several
    files.
    """
    after = topic.table.snapshot()
    old = [file for file in before.segments(0) if file.path not in after.paths]
    new = [file for file in after.segments(0) if file.path not in before.paths]
    for file in new:
        parts = [f for f in old if f.base_offset < file.end_offset and file.base_offset < f.end_offset]
        records = sum(f.num_records for f in parts)
        tombstones = any(
            record.value is None
            for offset, record in topic.contents().items()
            if file.base_offset <= offset < file.end_offset
        )
        assert file.num_records < records or tombstones or len(parts) > 1, (file, parts)


@settings(max_examples=examples(15), deadline=None)
@given(ROUNDS, st.sampled_from([1, 600, 10_000]), st.sampled_from([0, 30]))
def test_rounds_of_jobs_leave_the_latest_of_each_key(rounds, segment_bytes, lag_ms):
    with tempfile.TemporaryDirectory() as directory:
        run_history(directory, rounds, segment_bytes, lag_ms, compact)


@settings(max_examples=examples(10), deadline=None)
@given(ROUNDS, st.sampled_from([1, 600, 10_000]), st.integers(1, 5))
def test_rounds_of_the_executors_tasks_leave_the_same(rounds, segment_bytes, chunk):
    with tempfile.TemporaryDirectory() as directory:
        run_history(directory, rounds, segment_bytes, 0, lambda topic, now: compact_by_tasks(topic, now, chunk))
