"""The places of other writers' files agree with sets of offsets."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.delta.foreign_ranges import ForeignAdd, arrange
from logstore.errors import CorruptionError
from logstore.segments.foreign_file import OffsetRuns, read_offset_runs
from logstore.segments.foreign_names import foreign_records
from logstore.table_files import open_table

SEALED = 40


def runs_of(offsets: set[int]) -> OffsetRuns:
    rising = np.array(sorted(offsets), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(rising) > 1)
    starts, ends = rising[np.append(0, breaks + 1)], rising[np.append(breaks, len(rising) - 1)] + 1
    return OffsetRuns(starts, ends, len(rising), 0, 0)


@st.composite
def segments(draw: st.DrawFn) -> list[tuple[int, int]]:
    bounds = sorted(draw(st.sets(st.integers(0, SEALED), max_size=8)))
    return list(zip(bounds[::2], bounds[1::2], strict=False))


files = st.lists(
    st.tuples(st.sets(st.integers(0, SEALED + 3), min_size=1, max_size=12), st.booleans(), st.integers(0, 2)),
    max_size=6,
)


@settings(deadline=None, max_examples=300)
@given(segments(), files)
def test_every_offset_is_in_one_place_and_taken_ones_are_refused(
    ours: list[tuple[int, int]], others: list[tuple[set[int], bool, int]]
) -> None:
    held = {f"{n}.parquet": offsets for n, (offsets, _, _) in enumerate(others)}
    adds = [
        ForeignAdd(f"{n}.parquet", 100, modified, len(offsets), (min(offsets), max(offsets)) if told else None, (0, 0))
        for n, (offsets, told, modified) in enumerate(others)
    ]
    arranged = arrange(adds, ours, SEALED, lambda path: runs_of(held[path]))

    taken = {offset for base, end in ours for offset in range(base, end)}
    kept: dict[str, set[int]] = {}
    for add in sorted(adds, key=lambda add: (add.modified_ms, add.path)):
        if not held[add.path] & taken and max(held[add.path]) < SEALED:
            kept[add.path] = held[add.path]
            taken |= held[add.path]
    assert {file.path for file in arranged.refused} == held.keys() - kept.keys()

    found: list[int] = []
    for place in arranged.ranges:
        records = foreign_records(place.name)
        low, high = records.bounds or (0, SEALED)
        within = {o for path in records.paths for o in kept[path] if low <= o < high}
        assert (min(within), max(within), len(within)) == (place.min_offset, place.max_offset, place.num_records)
        elsewhere = any(kept[path] - within for path in records.paths)
        assert place.shared == elsewhere
        found += sorted(within)
    assert sorted(found) == sorted(o for offsets in kept.values() for o in offsets)
    # Ranges rise, and overlap neither each other nor a segment.
    everything = sorted([*ours, *((place.min_offset, place.max_offset + 1) for place in arranged.ranges)])
    assert all(before[1] <= after[0] for before, after in pairwise(everything))
    assert [place.min_offset for place in arranged.ranges] == sorted(place.min_offset for place in arranged.ranges)


def test_files_that_overlap_nothing_are_not_opened() -> None:
    def never(path: str) -> OffsetRuns:
        raise AssertionError(path)

    adds = [ForeignAdd(f"{n}", 1, 0, 5, (n * 10, n * 10 + 4), (0, 0)) for n in range(4)]
    arranged = arrange(adds, [(5, 10), (15, 20)], SEALED, never)
    assert [place.name for place in arranged.ranges] == ["0", "1", "2", "3"]
    assert arranged.refused == ()


def test_a_file_that_cannot_be_read_is_refused_by_name() -> None:
    def damaged(path: str) -> OffsetRuns:
        raise CorruptionError(f"{path} is damaged")

    arranged = arrange([ForeignAdd("x", 1, 0, 5, None, (0, 0))], [], SEALED, damaged)
    assert arranged.ranges == ()
    (refused,) = arranged.refused
    assert "x is damaged" in refused.reason


def test_times_come_from_the_file_where_statistics_lack_them() -> None:
    """Read the times, because retention would take records of an unknown time for old ones."""
    runs = replace(runs_of({0, 1, 7}), min_timestamp_ms=100, max_timestamp_ms=300)
    add = ForeignAdd("a", 100, 0, -1, None, (-1, -1))
    for ours in ([], [(3, 5)]):
        arranged = arrange([add], ours, SEALED, lambda _: runs)
        assert {place.timestamps_ms for place in arranged.ranges} == {(100, 300)}


def test_files_whose_rows_interleave_at_random_are_all_placed(tmp_path: Path) -> None:
    """Write files as a Z-order does."""
    rows = 400_000
    order = np.random.default_rng(7).permutation(rows)
    (tmp_path / "partition=0").mkdir()
    files, adds, held = open_table(tmp_path), [], []
    for number, offsets in enumerate(np.array_split(order, 2)):
        path = f"partition=0/{number}.parquet"
        times = pa.array(offsets).cast(pa.timestamp("ms", "UTC"))
        pq.write_table(pa.table({"offset": offsets, "timestamp": times}), tmp_path / path)
        adds.append(ForeignAdd(path, 100, 0, len(offsets), (int(offsets.min()), int(offsets.max())), (0, rows)))

    def read_runs(path: str) -> OffsetRuns:
        held.append(read_offset_runs(files, path, held))
        return held[-1]

    arranged = arrange(adds, [], rows, read_runs)
    assert arranged.refused == ()
    assert [(place.min_offset, place.max_offset, place.num_records) for place in arranged.ranges] == [
        (0, rows - 1, rows)
    ]


def test_a_file_of_another_table_is_refused_without_a_look() -> None:
    """Name files as a shallow clone over an empty topic does."""

    def not_read(path: str) -> OffsetRuns:
        raise AssertionError(path)

    roots = ("file:/lake/t", "s3://lake/t", "/lake/t")
    adds = [ForeignAdd(f"{root}/partition=0/f.parquet", 1, 0, 10, (0, 9), (0, 0)) for root in roots]
    arranged = arrange(adds, [], SEALED, not_read)
    told = {file.reason for file in arranged.refused}
    assert told == {"it is a file of another table, as a shallow clone names them"}
    assert arranged.ranges == ()
