"""Ranges without records - aborted, compacted, deleted, expired - never stop a start, a read, a roll or a job. They do
not
count as lost, and no remaining record is skipped.

A real broker and real jobs (without Spark) work on one partition, against a dict of offset to key. The store does not
abort transactions yet, so rolls leave out the records that are marked as aborted. Some segments have names of earlier
releases, which do not contain their end offset.
"""

import asyncio
import itertools
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from logstore.broker.context import INTERNAL
from logstore.delta.snapshot import SegmentFile
from logstore.delta.topic_table import RewritePart, TopicTable
from logstore.filesystem import local_filesystem
from logstore.log import roller
from logstore.log.frame_records import frame_records
from logstore.log.history import history_gaps
from logstore.settings import Settings
from logstore.table_files import open_table
from tests.support.data_directory import lose_journal
from tests.support.keyed_topics import KeyedTopic
from tests.support.local_jobs import compact, retain
from tests.support.running_broker import records, start_broker, stop_broker
from tests.support.table_paths import path_of, segment_from_file

ABORTED = b"aborted"
#: The time of the jobs, far after the timestamps of all records: no record is too young, and no tombstone is due.
NOW_MS = 2_000_000_000_000
CONFIG = {
    "cleanup.policy": "compact,delete",
    "segment.ms": "100000000",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "86400000",
}
SEEDS = range(12)
#: The number of seeds that ``make test`` runs.
FEW = 4
STEPS = 25


def without_aborted(stored: Any, **sizes: int) -> Iterator[pa.RecordBatch]:
    for batch in frame_records(stored, **sizes):
        yield batch.filter(pc.not_equal(batch.column("value"), ABORTED))


class Ranges:
    def __init__(self, seed: int, data: Path) -> None:
        self.random = random.Random(seed)
        self.loop = asyncio.new_event_loop()
        self.data = data
        #: Offset to key of the remaining records, including aborted ones that the next roll will leave out.
        self.rows: dict[int, bytes] = {}
        self.start = self.end = self.sealed = 0
        #: True if only compaction and rolls of this release made the ranges, so that segments touch.
        self.touching = True

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def open(self) -> None:
        self.broker = self.run(start_broker(Settings(data=self.data)))

    @property
    def topic(self) -> Any:
        return self.broker.topics.served.topic(INTERNAL, "t")

    @property
    def keyed(self) -> KeyedTopic:
        table = TopicTable(open_table(self.data / "topics" / "t", local_filesystem()))
        return KeyedTopic(self.data, "t", table)

    def refresh(self) -> None:
        self.run(self.broker.topics.tables.refresh(INTERNAL, self.topic))

    @property
    def left(self) -> dict[int, bytes]:
        """The records that readers get."""
        return {o: key for o, key in self.rows.items() if o >= self.start}

    def is_sealed(self) -> None:
        self.sealed = self.end
        self.rows = {o: key for o, key in self.rows.items() if key != ABORTED}

    def begin(self) -> None:
        self.open()
        self.run(self.broker.topics.changes.create(INTERNAL, "t", partitions=1, configs=CONFIG))

    # ---- what a store does -----------------------------------------------------------------------------------------

    def produce(self) -> None:
        # One request in three has aborted records only.
        kinds = self.random.choice([[ABORTED], [b"a", b"b", b"c"], [ABORTED, b"a", b"b"]])
        keys = self.random.choices(kinds, k=self.random.randint(1, 12))
        appended = records([key if key == ABORTED else b"v" for key in keys], keys=list(keys), timestamp=self.end)
        self.run(self.broker.produce.records.produce(INTERNAL, self.topic, appended, partition=0)).require_stored()
        self.rows |= dict(enumerate(keys, self.end))
        self.end += len(keys)

    def roll(self) -> None:
        assert self.run(self.broker.topics.tables.roll(INTERNAL, self.topic)).sealed == {0: self.end}
        self.is_sealed()

    def delete_records(self) -> None:
        before = self.random.randint(0, self.end)
        if before > self.sealed:
            self.is_sealed()
        self.start = max(self.start, before)
        assert self.run(self.broker.topics.tables.delete_records(INTERNAL, self.topic, 0, before)) == self.start

    def restart(self) -> None:
        """Restart; the stop rolls, so the table alone has all records."""
        self.run(stop_broker(self.broker))
        self.is_sealed()
        if self.random.random() < 0.5:
            lose_journal(self.data)
        self.open()

    # ---- what jobs and users do ------------------------------------------------------------------------------------

    def compact(self) -> None:
        state = self.keyed.table.snapshot().partitions[0]
        # The setting lasts only as long as the job, because it would make the store roll by itself.
        self.keyed.table.alter_config({"segment.bytes": str(self.random.choice([1, 3_000, 10_000_000]))})
        done = bool(compact(self.keyed, NOW_MS).versions)
        self.keyed.table.alter_config({"segment.bytes": None})
        if not done:
            return
        self.refresh()
        latest = {key: o for o, key in self.rows.items() if self.start <= o < state.sealed}
        self.rows = {
            o: key for o, key in self.rows.items() if o < self.start or o >= state.sealed or latest.get(key) == o
        }
        after = self.keyed.table.snapshot()
        covered = [(f.base_offset, f.end_offset) for f in after.segments(0) if f.end_offset > self.start]
        assert covered[0][0] <= self.start
        assert all(one[1] == other[0] for one, other in itertools.pairwise(covered))
        assert covered[-1][1] == state.sealed
        self.touching = True

    def retain(self) -> None:
        """Run retention, which removes what is below the log start, or sometimes the whole history as if it were too
        old.
        """
        if self.random.random() < 0.4:
            self.keyed.table.alter_config({"retention.bytes": "0"})
            if any(f.end_offset > self.start for f in self.keyed.table.snapshot().segments(0)):
                self.start = max(self.start, self.keyed.table.snapshot().partitions[0].sealed)
        last = [f.end_offset for f in self.keyed.table.snapshot().segments(0)][-1:]
        retain(self.keyed, NOW_MS)
        after = self.keyed.table.snapshot()
        assert not any(f.num_records and f.min_offset < after.partitions[0].log_start for f in after.segments(0))
        if self.touching:
            assert [f.end_offset for f in after.segments(0)][-1:] == last, "the last one keeps the state at its end"
        self.start = after.partitions[0].log_start
        self.keyed.table.alter_config({"retention.bytes": None})
        self.refresh()

    def segment_with_records(self) -> SegmentFile | None:
        files = [f for f in self.keyed.table.snapshot().segments(0) if f.num_records]
        return self.random.choice(files) if files else None

    def delete_with_sql(self) -> None:
        """Delete all records of a segment: it leaves the table, and a gap."""
        if (file := self.segment_with_records()) is not None:
            DeltaTable(path_of(self.keyed.table)).delete(
                f'"offset" >= {file.min_offset} AND "offset" <= {file.max_offset}'
            )
            self.rows = {o: key for o, key in self.rows.items() if not file.min_offset <= o <= file.max_offset}
            self.touching = False
            self.refresh()

    def rename_as_earlier_release(self) -> None:
        if (file := self.segment_with_records()) is None or f"-{file.end_offset:020d}-" not in file.path:
            return
        table = self.keyed.table
        old = file.path.replace(f"-{file.end_offset:020d}-", "-")
        shutil.copy(path_of(table) / file.path, path_of(table) / old)
        added = replace(segment_from_file(path_of(table), file.path), path=old)
        table.commit_rewrites([RewritePart(0, (file.path,), (added,))], data_change=False, operation="test")
        self.touching = False
        self.refresh()

    # ---- what must hold --------------------------------------------------------------------------------------------

    def nothing_is_refused_or_lost(self) -> None:
        (partition,) = self.topic.partitions
        assert (partition.quarantined, partition.missing, partition.segments.unreadable) == (None, (), {})
        assert partition.log_start_offset == self.start
        assert (partition.sealed_offset, partition.high_watermark) == (self.sealed, self.end)
        assert self.broker.topics.problems.all(INTERNAL) == []
        assert partition.record_count >= len(self.left)
        if self.touching:
            assert history_gaps(self.topic.snapshot, 0) == []

    def every_record_is_read_from_every_place(self) -> None:
        expected = self.left
        for max_bytes in (1, 10**6):
            at, found = self.start, []
            while at < self.end:
                fetched = self.run(
                    self.broker.fetch.partition(
                        INTERNAL, self.topic, 0, at, max_bytes=max_bytes, min_bytes=1, max_wait_ms=0
                    )
                )
                assert fetched.next_offset > at
                found += fetched.records["offset"].to_pylist()
                at = fetched.next_offset
            assert found == sorted(expected)
        for time in {self.start, self.sealed, (self.start + self.end) // 2}:
            self.check_offset_of_time(time, expected)

    def check_offset_of_time(self, time: int, expected: dict[int, bytes]) -> None:
        """Check a lookup by time. A record's timestamp is the base offset of its request."""
        found = self.run(self.broker.fetch.offset_for_timestamp(INTERNAL, self.topic, 0, time))
        if found is None:
            assert not any(o >= time + 12 for o in expected)
        else:
            offset, timestamp = found
            assert offset in expected
            assert timestamp >= time
            assert not any(time + 12 <= o < offset for o in expected), "a later record was taken"


#: Each action with its weight.
ACTIONS: dict[Callable[[Ranges], None], int] = {
    Ranges.produce: 6,
    Ranges.roll: 4,
    Ranges.compact: 3,
    Ranges.retain: 2,
    Ranges.delete_records: 1,
    Ranges.restart: 2,
    Ranges.delete_with_sql: 1,
    Ranges.rename_as_earlier_release: 1,
}


@pytest.mark.parametrize("seed", [*SEEDS[:FEW], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[FEW:])])
def test_ranges_without_records_stop_nothing(seed: int, tmp_path: Path) -> None:
    with mock.patch.object(roller, "frame_records", without_aborted):
        ranges = Ranges(seed, tmp_path / "data")
        ranges.begin()
        try:
            for _ in range(STEPS):
                (action,) = ranges.random.choices(list(ACTIONS), weights=list(ACTIONS.values()))
                print(action.__name__, ranges.start, ranges.sealed, ranges.end)
                action(ranges)
                ranges.nothing_is_refused_or_lost()
                ranges.every_record_is_read_from_every_place()
        finally:
            ranges.run(stop_broker(ranges.broker))
            ranges.loop.close()
        ranges.is_sealed()
        found = {o: r.key for o, r in ranges.keyed.contents().items() if o >= ranges.start}
        assert found == ranges.left
