import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.segments.offset_ranges import join_ranges, look_up


@given(st.lists(st.booleans(), max_size=40))
def test_a_look_up_shows_each_offset_and_where_it_changes(inside: list[bool]):
    ranges = join_ranges((at, at + 1) for at, is_inside in enumerate(inside) if is_inside)
    # No offset after the last range is in a range.
    inside = [*inside, False, False]
    for offset, is_inside in enumerate(inside):
        others = [at for at in range(offset, len(inside)) if inside[at] is not is_inside]
        assert look_up(offset, ranges) == (is_inside, others[0] if others else None)
    assert join_ranges(ranges) == ranges
    assert all(before[1] < behind[0] for before, behind in itertools.pairwise(ranges))


@pytest.mark.parametrize(
    "ranges", [[(3, 3)], [(4, 3)], [(-1, 2)], [(5, 6), (3, 4)], [(1, 4), (3, 6)], [(2, 3), (2, 3)]]
)
def test_ranges_that_do_not_rise_are_refused(ranges: list[tuple[int, int]]):
    with pytest.raises(ValueError, match="does not follow"):
        join_ranges(ranges)
