"""The newest chain of files, compared with histories of rolls and jobs whose files are all still on the disk."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from logstore.inspection.rebuild_plan import Candidate, newest_chain


def file(base: int, end: int, records: int | None = None, *, epoch: int = 0, name: str = "") -> Candidate:
    return Candidate(
        name or f"{base}-{end}-{records}-{epoch}", base, end, end - base if records is None else records, epoch
    )


def chain(*files: Candidate, start: int = 0, end: int) -> tuple[list[Candidate], list[tuple[int, int]]]:
    found = newest_chain(files, start, end)
    return list(found.files), list(found.gaps)


def test_replaced_files_give_way():
    rolls = [file(0, 10), file(10, 20), file(20, 30)]
    compacted = file(0, 20, 3)
    assert chain(*rolls, compacted, end=30) == ([compacted, rolls[2]], [])


def test_a_merged_file_goes_before_its_sources():
    merged = file(0, 20)
    assert chain(file(0, 10), merged, file(10, 20), end=20) == ([merged], [])


def test_a_merge_that_lost_to_a_compaction_gives_way():
    """Prefer the compacted files to the larger one, which is older and has records that the compaction removed."""
    compacted = [file(0, 10, 2), file(10, 20, 3)]
    assert chain(file(0, 20), *compacted, end=20) == (compacted, [])


def test_the_roll_of_the_newer_leader_counts():
    newer = file(0, 10, epoch=2)
    assert chain(file(0, 10, epoch=1), newer, end=10) == ([newer], [])


def test_a_compaction_that_removed_nothing_goes_before_the_roll():
    compacted = replace(file(0, 10), path="later", rewritten=7)
    assert chain(file(0, 10, epoch=9), compacted, replace(compacted, path="earlier", rewritten=5), end=10) == (
        [compacted],
        [],
    )


def test_missing_offsets_are_reported_and_never_more_than_need_be():
    first, last = file(0, 10), file(20, 30)
    assert chain(first, last, end=40) == ([first, last], [(10, 20), (30, 40)])
    assert chain(end=5) == ([], [(0, 5)])
    assert chain(file(0, 10, 1), file(5, 20), end=20) == ([file(5, 20)], [(0, 5)])


def test_a_file_with_the_log_start_inside():
    whole, cut = file(0, 10), file(4, 10)
    assert chain(whole, start=4, end=10) == ([whole], [])
    assert chain(whole, cut, start=4, end=10) == ([cut], [])


def test_the_last_file_stays_when_nothing_is_above_the_log_start():
    rolled, emptied = file(10, 20), file(10, 20, 0)
    assert chain(file(0, 10), rolled, emptied, start=20, end=20) == ([emptied], [])
    assert chain(file(0, 10), start=20, end=30) == ([file(0, 10)], [(20, 30)])


@dataclass
class History:
    """A partition of a table: ``active`` files of (base, end, remaining offsets), and all files ever made."""

    active: list[tuple[int, int, frozenset[int]]] = field(default_factory=list)
    made: set[tuple[int, int, frozenset[int]]] = field(default_factory=set)
    log_start: int = 0

    @property
    def sealed(self) -> int:
        return self.active[-1][1] if self.active else self.log_start

    def roll(self, count: int) -> None:
        base = self.sealed
        self._replace([], [(base, base + count, frozenset(range(base, base + count)))])

    def rewrite(self, first: int, count: int, lost: frozenset[int], groups: int) -> None:
        """Merge or compact neighbours, into ``groups`` files."""
        old = self.active[first : first + count]
        if not old:
            return
        size = max(1, len(old) // groups)
        new = []
        for at in range(0, len(old), size):
            group = old[at : at + size]
            left = frozenset().union(*(offsets for _, _, offsets in group))
            base = max(group[0][0], self.log_start)
            if base < group[-1][1]:
                new.append((base, group[-1][1], frozenset(o for o in left - lost if o >= self.log_start)))
        if new:
            self._replace(old, new)

    def expire(self, count: int) -> None:
        gone = self.active[: min(count, len(self.active) - 1)]
        if gone:
            self.log_start = max(self.log_start, gone[-1][1])
            self.active = self.active[len(gone) :]

    def delete_records(self, offset: int) -> None:
        self.log_start = max(self.log_start, min(offset, self.sealed))
        self.active = [f for f in self.active if f[1] > self.log_start] or self.active[-1:]

    def _replace(self, old: list[tuple[int, int, frozenset[int]]], new: list[tuple[int, int, frozenset[int]]]) -> None:
        self.active = sorted([f for f in self.active if f not in old] + new)
        self.made.update(new)

    def records(self) -> set[int]:
        return {o for _, _, offsets in self.active for o in offsets if o >= self.log_start}


steps = st.one_of(
    st.tuples(st.just("roll"), st.integers(1, 6)),
    st.tuples(
        st.just("rewrite"), st.integers(0, 6), st.integers(1, 6), st.frozensets(st.integers(0, 60)), st.integers(1, 3)
    ),
    st.tuples(st.just("expire"), st.integers(1, 3)),
    st.tuples(st.just("delete_records"), st.integers(0, 60)),
)


@given(st.lists(steps, max_size=14))
def test_the_records_of_the_table_are_found_among_all_files_that_it_ever_had(history):
    partition = History()
    for name, *arguments in history:
        getattr(partition, name)(*arguments)
    candidates = {
        file(base, end, len(offsets), name=f"{base} {end} {sorted(offsets)}"): offsets
        for base, end, offsets in partition.made
    }
    found = newest_chain(candidates, partition.log_start, partition.sealed)
    kept = {offset for one in found.files for offset in candidates[one] if offset >= partition.log_start}
    assert kept == partition.records()
    assert not found.gaps
    assert all(one.end_offset <= other.base_offset for one, other in zip(found.files, found.files[1:], strict=False))
