"""Segments made of several: their records, their footers, and the first compaction of their tombstones."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.records.batch_identity import RememberedBatch
from logstore.records.transactions import Marker, OpenTransaction
from logstore.segments.layout import PLAIN_LAYOUT
from logstore.segments.merge import Source, WriteTask, join_cleanings, write_segment
from logstore.segments.offset_ranges import join_ranges
from logstore.segments.reader import read_footer, read_row_group, verify_segment
from logstore.segments.writer import Segment, SegmentWriter
from logstore.table_files import open_table
from tests.support.examples import examples
from tests.support.topics import log_batch


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=8), st.data())
def test_cleanings_remember_the_first_time_of_every_offset(rounds, data):
    """Compare rounds of compaction, each (offsets further, time passed), with one remembered time per offset."""
    first: dict[int, int] = {}
    parts: list[tuple[tuple[tuple[int, int], ...], int]] = []
    end = now = 0
    for further, passed in rounds:
        first_dirty, now = end, now + passed
        end += further
        first |= dict.fromkeys(range(first_dirty, end), now)
        joined = join_cleanings([*parts, ((), end)], first_dirty, end, now)
        assert {o: next(time for cleaned_end, time in joined if o < cleaned_end) for o in range(end)} == first
        assert all(cleaned_end <= end for cleaned_end, _ in joined)
        assert list(joined) == sorted(set(joined))
        assert len({time for _, time in joined}) == len(joined)
        # The next round gets one segment, or two that each have their part of the times.
        cut = data.draw(st.integers(0, end))
        low = join_cleanings([(joined, cut)], cut, cut, now) if cut else ()
        parts = [(low, cut), (joined, end)] if cut else [(joined, end)]


def test_offsets_without_a_cleaning_count_from_now():
    assert join_cleanings([((), 10), (((20, 5),), 20)], 20, 30, 7) == ((10, 7), (20, 5), (30, 7))
    assert join_cleanings([(((10, 5),), 10)], 10, 10, 7) == ((10, 5),)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_the_footer_of_joined_files_is_that_of_one_roll(data):
    """Draw points in the life of a partition: the state at the end, and the idempotency keys in the window."""
    ends = sorted(data.draw(st.sets(st.integers(1, 60), min_size=2, max_size=6)))
    bases = [0, *ends[:-1]]
    appends = [1_000 * end for end in ends]
    window_ms = data.draw(st.integers(0, 70_000))
    keys = [RememberedBatch(n, 0, n, 1, n, 1_000 * n) for n in range(1, ends[-1], 3)]
    producers = [RememberedBatch(7, 0, n, 1, n, 1_000 * n) for n in range(1, ends[-1])]
    epochs = ((1, 0), (3, ends[0]))
    types = data.draw(st.lists(st.booleans(), min_size=ends[-1], max_size=ends[-1]))
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "_delta_log").mkdir()
        files = open_table(directory)

        def write(base: int, end: int, append_ms: int) -> Segment:
            rows = log_batch(range(base, end))
            with SegmentWriter(files, 0, base, end, 3 if end > ends[0] else 1) as writer:
                writer.write(rows)
                return writer.finish(
                    [epoch for epoch in epochs if epoch[1] < end],
                    [batch for batch in producers if batch.base_offset < end][-5:],
                    # The window ends where the file ends.
                    [b for b in keys if base <= b.base_offset < end and b.append_time_ms > append_ms - window_ms],
                    append_time_ms=append_ms,
                    open_transactions=[OpenTransaction(9, 0, end - 1, append_ms)],
                    markers=[Marker(8, 0, 0, end - 1, append_ms)],
                    log_append_times=join_ranges((at, at + 1) for at in range(base, end) if types[at]),
                )

        segments = [write(*part) for part in zip(bases, ends, appends, strict=True)]
        once = write(0, ends[-1], appends[-1])
        sources = tuple(Source(0, segment.path, segment.num_records, 0) for segment in segments)
        task = WriteTask(
            "t",
            directory,
            0,
            sources,
            0,
            ends[-1],
            0,
            "zstd",
            "roll",
            window_ms,
            now_ms=appends[-1],
            layout=PLAIN_LAYOUT,
        )
        joined = write_segment(0, task, None).segment
        assert read_footer(files, joined.path) == read_footer(files, once.path)
        assert replace(joined, path="", size=0) == replace(once, path="", size=0)
        rows = [read_row_group(files, s.path, 0) for s in (joined, once)]
        assert rows[0].equals(rows[1])
        verify_segment(files, joined.path)


def test_work_that_is_given_up_leaves_no_file(tmp_path):
    (tmp_path / "_delta_log").mkdir()
    files = open_table(tmp_path)
    segments = []
    for base in (0, 10):
        with SegmentWriter(files, 0, base, base + 10, 1) as writer:
            writer.write(log_batch(range(base, base + 10)))
            segments.append(writer.finish(((1, 0),)))
    sources = tuple(Source(0, segment.path, 10, 0) for segment in segments)
    task = WriteTask("t", str(tmp_path), 0, sources, 0, 20, 0, "zstd", "merge", 0, layout=PLAIN_LAYOUT)
    told: list[int] = []

    def pace(stored_bytes: int) -> None:
        told.append(stored_bytes)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_segment(0, task, None, pace, files)
    assert all(told)
    assert len(list(tmp_path.glob("*/*.parquet"))) == 2
