"""The frame index agrees with a list of frames."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import CorruptionError
from logstore.journal.frame import FrameFlags, FrameHeader, FrameLocation, FrameType
from logstore.log.frame_index import FrameIndex

TOPIC = uuid.uuid4()


def control(base: int, timestamp: int) -> FrameHeader:
    return header(base, 1, timestamp)._replace(type=FrameType.CONTROL)


def header(base: int, count: int, timestamp: int = 0, inflated: int = 0) -> FrameHeader:
    return FrameHeader(
        type=FrameType.DATA,
        flags=FrameFlags(0),
        topic_id=TOPIC,
        partition=0,
        base_offset=base,
        record_count=count,
        leader_epoch=1,
        append_time_ms=base,
        max_timestamp_ms=timestamp,
        inflated_bytes=inflated,
    )


def filled(counts: list[int], start: int = 0) -> FrameIndex:
    index = FrameIndex()
    base = start
    for at, count in enumerate(counts):
        index.add(header(base, count, base * 10, inflated=1000 + count), FrameLocation(at * 1000, 100 + count))
        base += count
    return index


counts = st.lists(st.integers(1, 9), min_size=1, max_size=30)


@given(counts, st.integers(0, 300), st.integers(0, 300))
def test_frames_are_those_that_overlap_the_range(counts: list[int], start: int, end: int) -> None:
    spans = []
    base = 0
    for count in counts:
        spans.append((base, base + count))
        base += count
    found = [(f.base_offset, f.end_offset) for f in filled(counts).frames(start, end)]
    assert found == [(b, e) for b, e in spans if e > start and b < end]


@given(counts, st.integers(0, 300), st.integers(0, 300))
def test_a_part_has_the_frames_of_its_range_whatever_the_index_drops_then(
    counts: list[int], start: int, end: int
) -> None:
    index = filled(counts)
    frames = list(index.frames(start, end))
    part = index.part(start, end)
    index.drop_below(10**9)
    assert list(part) == frames
    assert part.num_bytes == sum(frame.location.length for frame in frames)


@given(counts, st.integers(0, 300))
def test_dropping_keeps_exactly_the_frames_that_reach_beyond(counts: list[int], offset: int) -> None:
    index = filled(counts)
    index.drop_below(offset)
    kept = list(index.frames(0, 10**9))
    assert all(f.end_offset > offset for f in kept)
    assert index.num_bytes == sum(f.location.length for f in kept)
    assert index.end_offset == (sum(counts) if sum(counts) > offset else None)


@given(counts, st.integers(1, 1000))
def test_a_piece_ends_at_the_first_frame_that_reaches_the_bytes(counts: list[int], max_bytes: int) -> None:
    index, total = filled(counts), sum(counts)
    end = index.offset_after_bytes(0, total, max_bytes)
    frames = list(index.frames(0, end))
    assert frames[-1].end_offset == end
    assert sum(f.location.length for f in frames[:-1]) < max_bytes
    assert end == total or sum(f.location.length for f in frames) >= max_bytes


def test_a_fetch_takes_at_least_one_frame_and_stops_at_its_bytes_when_inflated() -> None:
    index = filled([5, 5, 5])
    assert [f.base_offset for f in index.frames_by_bytes(0, 15, 1)] == [0]
    assert [f.base_offset for f in index.frames_by_bytes(7, 15, 1006)] == [5, 10]
    assert index.frames_by_bytes(15, 15, 1000) == []


def test_bytes_from_an_offset_count_what_lies_between_the_frames() -> None:
    index = FrameIndex()
    for base, position in ((0, 100), (10, 200), (20, 1_000)):
        index.add(header(base, 10), FrameLocation(position, 50))
    assert [index.bytes_from(offset) for offset in (0, 9, 10, 29, 30)] == [950, 950, 850, 50, 0]


def test_recovered_frames_come_into_order_and_the_later_copy_stays() -> None:
    index = FrameIndex()
    for base, position in ((10, 0), (20, 100), (0, 200), (10, 300)):
        index.add(header(base, 10), FrameLocation(position, 50))
    assert index.settle().tolist() == [2, 3, 1]
    index.finish_recovery(5)
    assert [(f.base_offset, f.location.position) for f in index.frames(0, 100)] == [(0, 200), (10, 300), (20, 100)]
    assert index.num_bytes == 150


@pytest.mark.parametrize(("bases", "start"), [((0, 20), 0), ((10, 20), 0), ((0, 5), 0)])
def test_a_hole_or_an_overlap_is_corruption(bases: tuple[int, ...], start: int) -> None:
    index = FrameIndex()
    for at, base in enumerate(bases):
        index.add(header(base, 10), FrameLocation(at * 100, 50))
    with pytest.raises(CorruptionError, match="does not hold offsets"):
        index.finish_recovery(start)


def test_sealed_offsets_may_have_holes() -> None:
    index = FrameIndex()
    for at, base in enumerate((0, 20, 30)):
        index.add(header(base, 10), FrameLocation(at * 100, 50))
    index.finish_recovery(20)
    assert index.base_offset == 20


def test_a_frame_copied_forward_is_found_at_its_new_place() -> None:
    index = filled([5, 5])
    first, second = index.frames(0, 10)
    index.move(second, FrameLocation(9000, 105))
    assert [f.location.position for f in index.frames(0, 10)] == [0, 9000]
    index.move(second, FrameLocation(1, 1))  # it is no longer in the index
    index.drop_below(5)
    index.move(first, FrameLocation(1, 1))
    assert [f.location.position for f in index.frames(0, 10)] == [9000]
    assert (index.holds(first), index.holds(second)) == (False, False)


def test_a_truncation_drops_the_frames_before_it_that_reach_beyond_its_end() -> None:
    index = FrameIndex()
    for base, position in ((0, 0), (10, 100), (20, 200), (10, 400), (20, 600)):
        index.add(header(base, 10), FrameLocation(position, 50))
    index.settle([(500, 20), (300, 10)])
    assert [(f.base_offset, f.location.position) for f in index.frames(0, 100)] == [(0, 0), (10, 400), (20, 600)]


def test_frames_are_found_by_their_places_and_by_an_offset_inside() -> None:
    index = filled([5, 5, 5])
    assert [f.base_offset for f in index.located_in(1000, 2000)] == [5]
    assert [index.boundary(offset) for offset in (0, 4, 5, 14, 15)] == [0, 0, 5, 10, None]
    index.truncate(12)
    assert (index.end_offset, index.num_bytes) == (10, 210)


def test_timestamps_prune_frames() -> None:
    assert [f.base_offset for f in filled([5, 5, 5]).frames_since(0, 15, 50)] == [5, 10]


def test_a_frame_may_hold_an_offset_and_no_record() -> None:
    index = FrameIndex()
    for at, of in enumerate((header(0, 5, 10), control(5, 60), control(6, 70), header(7, 3, 80, inflated=1000))):
        index.add(of, FrameLocation(at * 1000, 140))
    index.finish_recovery(0)
    assert (index.base_offset, index.end_offset, index.num_bytes) == (0, 10, 560)
    found = list(index.frames(0, 10))
    assert [(f.base_offset, f.end_offset, f.has_records) for f in found] == [
        (0, 5, True),
        (5, 6, False),
        (6, 7, False),
        (7, 10, True),
    ]
    assert [f.base_offset for f in index.frames_since(0, 10, 50)] == [7], "none has a timestamp"
    assert index.newest_timestamp_ms == 80
    assert index.inflated_bytes(5, 7) == 0
    assert [f.base_offset for f in index.frames_by_bytes(5, 10, 300)] == [5, 6, 7]
    assert [f.base_offset for f in index.frames_by_bytes(5, 10, 100)] == [5], "many of them are bounded, too"
    index.drop_below(6)
    assert (index.base_offset, len(index)) == (6, 2)
