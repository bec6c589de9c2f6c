"""Plans of merges on random histories: the rewrites of a record, the files that are left, and files that stay apart."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from logstore.delta.snapshot import PartitionState, SegmentFile
from logstore.log.merge import FACTOR, NEWEST_KEPT, count_small, plan_merge
from logstore.segments.names import segment_name
from logstore.topic_config import TopicConfig

TARGET = 10_000
#: The bytes of a file for each record, and those for the file itself.
RECORD, FOOTER = 1, 0


def file(base: int, end: int, *, size: int | None = None, newest_ms: int = 0) -> SegmentFile:
    path = segment_name(0, base, end, 1, "0" * 32)
    return SegmentFile(path, size or (end - base) * RECORD + FOOTER, end - base, base, end, base, end - 1, 0, newest_ms)


def config(**keys: str) -> TopicConfig:
    return TopicConfig.parse({"merge.target.bytes": str(TARGET)} | {k.replace("_", "."): v for k, v in keys.items()})


def tier(width: int) -> int:
    return (width.bit_length() - 1) // 2


@dataclass
class History:
    """Files of a partition, and for each the files that were rolled: their widths and how often they were rewritten."""

    config: TopicConfig
    state: PartitionState = field(default_factory=lambda: PartitionState(0, 1, 0, 0, 0))
    files: list[SegmentFile] = field(default_factory=list)
    rolled: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    bytes_written: int = 0

    def roll(self, width: int, newest_ms: int = 0, gap: int = 0) -> None:
        base = (self.files[-1].end_offset if self.files else 0) + gap
        self.files.append(file(base, base + width, newest_ms=newest_ms))
        self.rolled[base] = [(width, 0)]

    def merge(self, shrink: float = 1) -> bool:
        """Make one plan and carry it out; return whether it had groups."""
        groups = plan_merge(0, self.state, self.files, self.config)
        for group in groups:
            low = self.files.index(group.files[0])
            assert tuple(self.files[low : low + len(group.files)]) == group.files, "they are neighbours"
            newest_ms = max(f.max_timestamp_ms for f in group.files)
            size = max(1, round(group.size * shrink))
            joined = file(group.base_offset, group.end_offset, size=size, newest_ms=newest_ms)
            self.files[low : low + len(group.files)] = [joined]
            parts = [part for f in group.files for part in self.rolled.pop(f.base_offset)]
            self.rolled[group.base_offset] = [(width, count + 1) for width, count in parts]
            self.bytes_written += size
        return bool(groups)

    def settle(self) -> None:
        while self.merge():
            pass

    def rewrites_beyond_tiers(self) -> int:
        """Return the most rewrites of a record, not counting one for each tier between its first file and its last.

        A full file is one tier more.
        """
        widths = {f.base_offset: f for f in self.files}
        return max(
            (
                count - (tier(widths[base].end_offset - base) - tier(width)) - (widths[base].size >= TARGET)
                for base, parts in self.rolled.items()
                for width, count in parts
            ),
            default=0,
        )

    def most_small(self) -> int:
        """Return the number of non-full files that the second invariant allows."""
        widths = [f.end_offset - f.base_offset for f in self.files if f.size < TARGET]
        if not widths:
            return 0
        return (FACTOR - 1) * (tier(max(widths)) - tier(min(widths)) + 1) + NEWEST_KEPT


WIDTHS = st.one_of(st.integers(1, 3), st.integers(1, 200), st.integers(1, 2 * TARGET))


@given(st.lists(st.tuples(WIDTHS, st.booleans()), max_size=120))
@example([(width, False) for width in (1, 4, 1, 16, 1, 1, 1, 1)])
@example([(width, False) for width in (1, 1, 1, 1, 4, 16, 1, 1, 1, 1)])
def test_a_record_is_rewritten_once_a_tier_and_few_files_are_left(rolls):
    history = History(config())
    for width, merges in rolls:
        history.roll(width)
        if merges:
            history.merge()
        assert history.rewrites_beyond_tiers() <= 1
    history.settle()
    assert history.rewrites_beyond_tiers() <= 1
    small = count_small(history.files, history.config)
    assert small <= history.most_small()
    assert all(f.end_offset == later.base_offset for f, later in zip(history.files, history.files[1:], strict=False))


@given(st.lists(st.tuples(WIDTHS, st.floats(0.3, 1)), max_size=100))
def test_files_that_shrink_when_they_are_merged_also_come_to_rest(rolls):
    history = History(config())
    for width, shrink in rolls:
        history.roll(width)
        history.merge(shrink)
    history.settle()
    assert count_small(history.files, history.config) <= history.most_small()


@given(st.lists(st.tuples(WIDTHS, st.integers(0, 40), st.booleans()), max_size=120))
def test_no_file_outgrows_its_window_and_old_windows_have_one_small_file(rolls):
    history = History(config(retention_ms="1000"))  # windows of 100 ms
    now = 0
    newest_of: dict[int, int] = {}
    for width, passed, merges in rolls:
        now += passed
        base = history.files[-1].end_offset if history.files else 0
        newest_of[base] = now
        history.roll(width, newest_ms=now)
        if merges:
            history.merge()
        assert history.rewrites_beyond_tiers() <= 2
    history.settle()
    assert history.rewrites_beyond_tiers() <= 2
    for f in history.files:
        oldest = min(newest for base, newest in newest_of.items() if f.base_offset <= base < f.end_offset)
        assert f.max_timestamp_ms - oldest < 100
    resting = history.files[: -NEWEST_KEPT or None]
    newest = min((f.max_timestamp_ms // 100 for f in history.files[-NEWEST_KEPT:]), default=0)
    over = [f for f in resting if f.max_timestamp_ms // 100 < newest and f.size < TARGET]
    assert len(over) == len({f.max_timestamp_ms // 100 for f in over})


def test_a_file_far_ahead_of_its_time_does_not_split_those_behind_it():
    """Roll a file for which retention waits; all later files wait with it."""
    history = History(config(retention_ms="1000"))
    history.roll(1, newest_ms=1_000_000)
    for at in range(40):
        history.roll(1, newest_ms=at * 50)
    history.settle()
    assert len(history.files) <= history.most_small()


@given(st.lists(st.tuples(WIDTHS, st.integers(0, 3)), max_size=60), st.data())
def test_gaps_the_clean_point_and_the_log_start_keep_files_apart(rolls, data):
    history = History(config(cleanup_policy="compact,delete"))
    for width, gap in rolls:
        history.roll(width, gap=gap // 3)
    bounds = sorted({f.base_offset for f in history.files} | {0})
    cleaned = data.draw(st.sampled_from(bounds))
    log_start = data.draw(st.integers(0, bounds[-1]))
    history.state = PartitionState(10**9, 1, log_start, 0, cleaned)
    before = [(f.base_offset, f.end_offset) for f in history.files]
    history.settle()
    for f in history.files:
        inside = [(base, end) for base, end in before if f.base_offset <= base < f.end_offset]
        assert sum(end - base for base, end in inside) == f.end_offset - f.base_offset
        if len(inside) > 1:
            assert not f.base_offset < cleaned < f.end_offset
            assert f.base_offset >= log_start


def test_the_newest_files_stay():
    history = History(config())
    for _ in range(4 + NEWEST_KEPT):
        history.roll(1)
    newest = history.files[-NEWEST_KEPT:]
    history.settle()
    assert [f.end_offset - f.base_offset for f in history.files] == [4] + [1] * NEWEST_KEPT
    assert history.files[-NEWEST_KEPT:] == newest


def test_a_backlog_is_joined_in_one_go():
    history = History(config())
    for _ in range(5_000):
        history.roll(7)
    assert history.merge()
    assert max(count for parts in history.rolled.values() for _, count in parts) == 1
    history.settle()
    assert history.bytes_written < 2.2 * 5_000 * 7
    assert all(f.size < 2 * TARGET for f in history.files)


def test_rolls_of_one_record_for_a_year_are_cheap():
    """Roll often: a year has 525,600 rolls. A plan comes after every forty; 13 tiers would hold 67 million."""
    history = History(replace(config(), merge_target_bytes=10**9))
    most = 0
    for at in range(100_000):
        history.roll(1)
        if at % 40 == 0:
            history.merge()
            most = max(most, len(history.files))
    assert most <= 50
    assert history.bytes_written < 10 * 100_000


@pytest.mark.parametrize(
    ("keys", "least"),
    [
        ({}, TARGET),
        ({"retention_bytes": "20000"}, 2_000),
        ({"retention_bytes": "20000", "cleanup_policy": "compact"}, TARGET),
        ({"merge_target_bytes": "0"}, 0),
        ({"merge_target_bytes": "-1", "segment_bytes": "5000"}, 5_000),
    ],
)
def test_a_full_file_has_the_target(keys, least):
    files = [file(at * 500, at * 500 + 500) for at in range(100)]
    groups = plan_merge(0, PartitionState(50_000, 1, 0, 0, 0), files, config(**keys))
    assert bool(groups) == (least > 0)
    if groups:
        assert least * 9 / 8 <= groups[0].size < least * 9 / 8 + 500


@pytest.mark.parametrize(
    ("shared", "expected"), [(True, [(0, 10), (11, 36)]), (False, [(0, 36)])], ids=["shared", "alone"]
)
def test_files_of_others_are_joined_unless_they_have_records_elsewhere(shared, expected):
    files = [file(at, at + 1) for at in range(40)]
    files[10] = files[10]._replace(path="partition=0/part-00000-1.snappy.parquet", foreign=True, shared=shared)
    groups = plan_merge(0, PartitionState(40, 1, 0, 0, 0), files, config())
    assert [(g.base_offset, g.end_offset) for g in groups] == expected


def test_a_file_of_others_becomes_a_segment_by_itself_if_it_is_joined_to_none():
    files = [file(at, at + 1) for at in range(8)]
    size = 2 * config().merge_target
    files[0] = files[0]._replace(path="partition=0/part-0.parquet", foreign=True, size=size)
    groups = plan_merge(0, PartitionState(8, 1, 0, 0, 0), files, config())
    assert (0, 1) in [(g.base_offset, g.end_offset) for g in groups]
