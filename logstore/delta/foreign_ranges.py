"""The place of other writers' files among the segments of a partition.

A file of another writer that holds only offsets that no segment covers is history: the rewritten rows of segments that
an ``OPTIMIZE``, an ``UPDATE`` or a ``DELETE`` removed. Ranges may interleave: a writer joins segments that are not
neighbours, or spreads their rows over files (Z-order). Then the offsets of the file are read, and its rows become
several ranges, between segments and merged with those of other files. A segment with a deletion vector is placed the
same way: an ``UPDATE`` with vectors leaves its old rows in the segment and writes the new ones, of the same offsets, to
another file.

A file with an offset that is taken, or that was never assigned, is refused: it is in no range. If two such files have
the same offset, the older one counts. Invariant: the ranges rise and do not overlap, and no offset is in two of them.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from logstore.errors import CorruptionError
from logstore.segments.foreign_file import OffsetRuns
from logstore.segments.foreign_names import foreign_records, joined_name

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")


@dataclass(frozen=True, slots=True)
class ForeignAdd:
    """An add action of another writer. Bounds are inclusive, and None if it has no statistics.

    ``name`` is that of the file, masked if it has a deletion vector. ``is_segment``: the file is a segment with a
    vector, and covers ``bounds`` whichever rows are left of it.
    """

    name: str
    size: int
    modified_ms: int
    num_records: int
    bounds: tuple[int, int] | None
    timestamps_ms: tuple[int, int]
    is_segment: bool = False

    @property
    def path(self) -> str:
        return foreign_records(self.name).paths[0]


@dataclass(frozen=True, slots=True)
class ForeignRange:
    """Records of other writers, under the name by which they are read. Bounds are inclusive. ``shared``: a file of the
    name also has records in another range.
    """

    name: str
    size: int
    num_records: int
    min_offset: int
    max_offset: int
    timestamps_ms: tuple[int, int]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that is in the table and is not served."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The ranges of other writers' files, by rising offset, and the refused files."""

    ranges: tuple[ForeignRange, ...]
    refused: tuple[RefusedFile, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """The rows of a file between two segments."""

    file: ForeignAdd
    num_records: int
    min_offset: int
    max_offset: int
    timestamps_ms: tuple[int, int]


def is_elsewhere(path: str) -> bool:
    """Return whether a path in the log is absolute: then the file is another table's (protocol, add file)."""
    return _ABSOLUTE.match(path) is not None


def arrange(
    adds: Sequence[ForeignAdd],
    segments: Sequence[tuple[int, int]],
    sealed: int,
    read_runs: Callable[[str], OffsetRuns],
) -> Arrangement:
    """Place files among ``segments``, the ranges [base, end) of a partition, which rise and do not overlap.

    ``read_runs`` reads the offsets of a file by its name, and is called only if the statistics do not suffice. It
    raises CorruptionError, FileNotFoundError, OSError.
    """
    refused: list[RefusedFile] = []
    bases, ends = [base for base, _ in segments], [end for _, end in segments]
    accepted: list[tuple[ForeignAdd, OffsetRuns | None]] = []
    alone = _alone(adds, bases, ends)
    for add in sorted(adds, key=lambda add: (add.modified_ms, add.name)):
        if is_elsewhere(add.path):
            refused.append(RefusedFile(add.path, "it is a file of another table, as a shallow clone names them"))
            continue
        try:
            runs = None if add.name in alone else read_runs(add.name)
        except (CorruptionError, FileNotFoundError) as error:
            refused.append(RefusedFile(add.path, f"it cannot be read: {error}"))
            continue
        first, last = add.bounds or (0, -1)
        if runs is not None:
            first, last = (int(runs.starts[0]), int(runs.ends[-1]) - 1) if len(runs.starts) else (0, -1)
        taken = None
        if last >= sealed or first < 0:
            taken = f"it has offset {last if last >= sealed else first}, which was never given out"
        elif runs is not None and (at := _common(runs, np.array(bases), np.array(ends))) is not None:
            taken = f"it has offset {at}, which is taken"
        elif runs is not None:
            for other, others in accepted:
                if others is not None and (at := _common(runs, others.starts, others.ends)) is not None:
                    taken = f"it has offset {at}, which {other.path} has, too"
        if taken is not None:
            refused.append(RefusedFile(add.path, taken))
        elif last >= first or add.is_segment:
            accepted.append((add, runs))
    pieces = [piece for add, runs in accepted for piece in _pieces(add, runs, bases)]
    return Arrangement(_ranges(pieces), tuple(sorted(refused, key=lambda file: file.path)))


def _alone(adds: Sequence[ForeignAdd], bases: Sequence[int], ends: Sequence[int]) -> set[str]:
    """Return the names of files whose statistics say that they overlap no other file."""
    known = sorted((add.bounds, add.name) for add in adds if add.bounds is not None)
    alone = set()
    reach = -1
    for at, ((first, last), name) in enumerate(known):
        before, reach = reach, max(reach, last)
        if first <= before or (at + 1 < len(known) and known[at + 1][0][0] <= last):
            continue
        segment = bisect_right(ends, first)
        if segment == len(bases) or bases[segment] > last:
            alone.add(name)
    # A file without statistics may be anywhere.
    return alone if len(known) == len(adds) else set()


def _common(runs: OffsetRuns, starts: np.ndarray, ends: np.ndarray) -> int | None:
    """Return an offset that ``runs`` and the ranges [start, end), which rise, have in common."""
    if not len(starts) or not len(runs.starts):
        return None
    at = np.searchsorted(ends, runs.starts, side="right")
    within = at < len(starts)
    meets = np.flatnonzero(within & (starts[np.minimum(at, len(starts) - 1)] < runs.ends))
    if not len(meets):
        return None
    run = meets[0]
    return int(max(runs.starts[run], starts[at[run]]))


def _pieces(add: ForeignAdd, runs: OffsetRuns | None, bases: Sequence[int]) -> list[_Piece]:
    """Return the file's rows, cut where segments lie between them."""
    if runs is None:
        first, last = add.bounds or (0, -1)
        return [_Piece(add, add.num_records, first, last, add.timestamps_ms)]
    # The statistics' times are not used, because they may be absent: retention would take the records for old ones.
    times = runs.min_timestamp_ms, runs.max_timestamp_ms
    if add.is_segment:
        first, last = add.bounds or (0, -1)
        return [_Piece(add, runs.num_records, first, last, times)]
    slots = np.searchsorted(np.array(bases, dtype=np.int64), runs.starts, side="right")
    cuts = [0, *(np.flatnonzero(np.diff(slots)) + 1).tolist(), len(slots)]
    lengths = runs.ends - runs.starts
    pieces = [
        _Piece(add, int(lengths[low:high].sum()), int(runs.starts[low]), int(runs.ends[high - 1]) - 1, times)
        for low, high in pairwise(cuts)
    ]
    return pieces if len(pieces) > 1 else [replace(pieces[0], num_records=runs.num_records)]


def _ranges(pieces: list[_Piece]) -> tuple[ForeignRange, ...]:
    """Join pieces that overlap into ranges, because they are read together."""
    pieces.sort(key=lambda piece: (piece.min_offset, piece.file.name))
    groups: list[list[_Piece]] = []
    reach = -1
    for piece in pieces:
        if groups and piece.min_offset <= reach:
            groups[-1].append(piece)
        else:
            groups.append([piece])
        reach = max(reach, piece.max_offset)
    # A file has one piece between two segments, so it is in a group once.
    count: dict[str, int] = {}
    for piece in pieces:
        count[piece.file.name] = count.get(piece.file.name, 0) + 1
    found = []
    for group in groups:
        first, last = group[0].min_offset, max(piece.max_offset for piece in group)
        names = tuple(sorted(piece.file.name for piece in group))
        shared = any(count[name] > 1 for name in names)
        whole = len(group) == 1 and not shared
        found.append(
            ForeignRange(
                names[0] if whole else joined_name(names, first, last + 1),
                sum(
                    piece.file.size * piece.num_records // max(1, piece.num_records, piece.file.num_records)
                    for piece in group
                ),
                sum(piece.num_records for piece in group),
                first,
                last,
                (
                    min(piece.timestamps_ms[0] for piece in group),
                    max(piece.timestamps_ms[1] for piece in group),
                ),
                shared,
            )
        )
    return tuple(found)
