"""Slices cover every offset once: history to the sealed offset, and the tail from there."""

import os
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.free_port import free_port
from logstore.delta.snapshot import SegmentFile
from logstore.errors import StoreUnreachableError
from logstore.limits import MIB
from logstore.spark.source.options import ReadOptions, Subscription
from logstore.spark.source.planning import SLICE_BYTES, Part, Planner, divide
from logstore.spark.source.slices import Slice, TimeRange, TopicRange
from logstore.spark.topic_view import TopicView
from tests.support import foreign_writers as others
from tests.support.table_paths import create_table, path_of
from tests.support.topics import roll


def file(first: int, end: int, size: int = 1000, times: tuple[int, int] = (0, 0)) -> SegmentFile:
    return SegmentFile(f"f-{first}", size, end - first, first, end, first, end - 1, *times)


@st.composite
def parts(draw):
    """Draw histories of neighbouring files, and tails."""
    found = []
    for partition in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, 50))
        lengths = draw(st.lists(st.integers(1, 60), max_size=5))
        files, at = [], start
        for length in lengths:
            files.append(file(at, at + length, draw(st.integers(1, 200)) * MIB))
            at += length
        if files:
            end = draw(st.integers(start + 1, at))
            kept = tuple(f for f in files if f.min_offset < end)
            names = tuple(f.path for f in kept)
            found.append(Part(Slice("t", "id", partition, start, end, "table", names), kept))
            at = end
        if tail := draw(st.integers(0, 100)):
            found.append(Part(Slice("t", "id", partition, at, at + tail)))
    return found


@given(parts(), st.none() | st.integers(1, 40), st.none() | st.integers(1, 60))
def test_every_offset_is_in_one_slice_and_no_slice_is_too_large(whole, slices_min, records_max):
    slices = divide(whole, slices_min, records_max)
    covered = [(s.partition, offset) for s in slices for offset in range(s.start, s.end)]
    assert covered == [(p.slice.partition, offset) for p in whole for offset in range(p.slice.start, p.slice.end)]
    assert all(s.start < s.end for s in slices)
    if records_max:
        assert all(s.end - s.start <= records_max for s in slices)
    by_path = {(p.slice.partition, f.path): f for p in whole for f in p.files}
    for s in slices:
        touched = [f for (p, _), f in by_path.items() if p == s.partition and f.min_offset < s.end > s.start]
        wanted = tuple(f.path for f in touched if f.max_offset >= s.start)
        assert s.files == (wanted if s.table else ())


def test_a_large_segment_is_read_by_several_tasks():
    big = file(0, 1000, 4 * SLICE_BYTES)
    slices = divide([Part(Slice("t", "id", 0, 0, 1000, "table", ("f-0",)), (big,))], None, None)
    assert [(s.start, s.end) for s in slices] == [(0, 250), (250, 500), (500, 750), (750, 1000)]


def test_files_of_few_and_large_records_are_read_by_as_many_tasks_as_their_bytes_need():
    files = (file(0, 1000, 4 * SLICE_BYTES), file(1000, 101_000, SLICE_BYTES // 4))
    slices = divide([Part(Slice("t", "id", 0, 0, 101_000, "table", ("f-0", "f-1000")), files)], None, None)
    assert [s.start for s in slices] == [0, 212, 425, 637, 850]
    assert slices[-1].files == ("f-0", "f-1000")
    # A task gets few records, however large they are.
    slices = divide([Part(Slice("t", "id", 0, 0, 101_000, "table", ("f-0", "f-1000")), files)], None, 40_000)
    assert [s.start for s in slices] == [0, 212, 425, 637, 850, 34_233, 67_616]


def test_min_partitions_divides_in_proportion_and_never_joins():
    tails = [Part(Slice("t", "id", 0, 0, 900)), Part(Slice("t", "id", 1, 0, 100)), Part(Slice("t", "id", 2, 0, 1))]
    assert [s.partition for s in divide(tails, 10, None)] == [0] * 9 + [1, 2]
    assert len(divide(tails, 2, None)) == 3


def test_a_file_of_other_times_is_not_touched():
    assert TimeRange(10, 20).touches(file(0, 1, times=(20, 30)))
    assert TimeRange(None, 20).touches(file(0, 1, times=(0, 5)))
    assert not TimeRange(10, None).touches(file(0, 1, times=(0, 9)))
    assert not TimeRange(10, 20).touches(file(0, 1, times=(21, 30)))


def test_a_store_that_is_gone_is_asked_for_as_long_as_the_options_say():
    options = ReadOptions(Subscription(topics=("t",)), bootstrap=f"127.0.0.1:{free_port()}", retry_seconds=0.2)
    begun = time.monotonic()
    with pytest.raises(StoreUnreachableError):
        Planner(options).slices([TopicRange("t", "id", 0, 0, 1)])
    assert time.monotonic() - begun < 30


# ---- which version of the table -------------------------------------------------------------------------------------


class CountingPlanner(Planner):
    """A planner of a table whose tail a store serves; it counts how often it looks at the store and the table."""

    looks = 0

    def _look(self, topic: str) -> TopicView:
        self.looks += 1
        return replace(super()._look(topic), urls=("http://127.0.0.1:1",))


@pytest.fixture
def table(tmp_path):
    """Create three segments of ten records."""
    made = create_table(tmp_path / "data" / "topics" / "t", num_partitions=1, config_overrides={})
    for base in (0, 10, 20):
        roll(made, 0, base, base + 10)
    return made


def planner_of(table) -> CountingPlanner:
    return CountingPlanner(ReadOptions(Subscription(topics=("t",)), storage=str(path_of(table).parents[1])))


def files_of(planner, table, start, end) -> list[str]:
    """Return the files in the plan of a range, after checking that the newest version of the table has them."""
    topic_id = str(table.snapshot().topic_id)
    files = [file for s in planner.slices([TopicRange("t", topic_id, 0, start, end)]) for file in s.files]
    assert set(files) <= table.snapshot().paths
    return files


@pytest.mark.parametrize(
    "change",
    [
        lambda path: others.delete(path, '"offset" = 13'),
        lambda path: others.delete(path, '"offset" >= 10'),
        lambda path: others.update(path, '"offset" = 13', "new"),
        others.optimize,
    ],
    ids=["delete", "delete files", "update", "optimize"],
)
def test_each_batch_of_a_query_that_is_behind_is_planned_by_the_newest_version(table, change):
    planner = planner_of(table)
    assert len(files_of(planner, table, 0, 10)) == 1
    change(path_of(table))
    files_of(planner, table, 10, 20)
    roll(table, 0, 30, 40)
    files_of(planner, table, 20, 25)
    # No file of a range has changed, and the log may be old enough for a mark.
    log = path_of(table) / "_delta_log"
    os.utime(log, (time.time() - 60, time.time() - 60))
    files_of(planner, table, 20, 25)
    change(path_of(table))
    files_of(planner, table, 25, 30)


def test_a_query_that_is_not_behind_looks_at_the_table_once(table):
    planner = planner_of(table)
    for start in range(30, 60, 10):
        assert files_of(planner, table, start, start + 10) == []
        roll(table, 0, start, start + 10)
    assert planner.looks == 1


def test_a_table_whose_log_is_at_rest_is_read_once(table):
    log = path_of(table) / "_delta_log"
    os.utime(log, (time.time() - 60, time.time() - 60))
    planner = planner_of(table)
    for start in range(0, 30, 5):
        assert len(files_of(planner, table, start, start + 5)) == 1
    assert planner.looks == 1
