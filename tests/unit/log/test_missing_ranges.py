import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.delta.file_history import Removal
from logstore.log.history import RemovedRange, missing_ranges, new_gaps

offsets = st.integers(0, 30)


@st.composite
def gaps(draw: st.DrawFn) -> list[tuple[int, int]]:
    bounds = sorted(draw(st.sets(offsets, max_size=10)))
    return list(zip(bounds[::2], bounds[1::2], strict=False))


@st.composite
def removed(draw: st.DrawFn) -> RemovedRange:
    start = draw(offsets)
    operation = draw(st.sampled_from(["DELETE", "RESTORE", "WRITE"]))
    ours = draw(st.booleans())
    removal = Removal(draw(st.integers(1, 5)), operation, ours=ours, meant=ours or operation == "DELETE")
    return RemovedRange(start, start + draw(st.integers(1, 10)), removal)


def members(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


@settings(deadline=None)
@given(gaps(), gaps())
def test_new_gaps_are_the_parts_that_were_no_gap_before(
    found: list[tuple[int, int]], known: list[tuple[int, int]]
) -> None:
    new = new_gaps(found, known)
    assert members(new) == members(found) - members(known)
    assert sum(end - start for start, end in new) == len(members(new))


@settings(deadline=None)
@given(gaps(), st.lists(removed(), max_size=6, unique_by=lambda r: r.removal.version), st.sampled_from([None, "?"]))
def test_an_offset_is_missing_by_the_last_commit_that_removed_it(
    found: list[tuple[int, int]], removals: list[RemovedRange], unexplained: str | None
) -> None:
    expected = {}
    for offset in members(found):
        last = max((r for r in removals if r.start <= offset < r.end), key=lambda r: r.removal.version, default=None)
        if last is None:
            cause = unexplained
        elif last.removal.ours or last.removal.operation == "DELETE":
            cause = None
        else:
            cause = f"{last.removal.operation} in version {last.removal.version}"
        if cause is not None:
            expected[offset] = cause
    missing = missing_ranges(found, removals, unexplained=unexplained)
    assert {o: gap.cause for gap in missing for o in range(gap.start, gap.end)} == expected
    assert all(
        a.end < b.start or a.cause != b.cause or a.end in {s for s, _ in found} for a, b in itertools.pairwise(missing)
    )
