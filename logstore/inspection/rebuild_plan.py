"""The files that make up a partition's history, chosen from all files on disk when no Delta log names them.

The functions are pure. The rule (decision 39): jobs only ever remove records. So of all chains of files that cover
every offset, the one with the fewest records is the newest: the files that a job replaced hold records that its result
does not. Among chains with the same number of records it is the one with the fewest files (a merged file before its
sources), then the one of the latest rewrites (a compaction that found nothing to remove has another footer), then the
one of the highest leader epochs (a roll before the one of a deposed leader).
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A readable file for [base_offset, end_offset). ``rewritten`` is 0 for a roll, and rises with the time at which a
    job compacted its offsets.
    """

    path: str
    base_offset: int
    end_offset: int
    num_records: int
    leader_epoch: int
    rewritten: int = 0


@dataclass(frozen=True, slots=True)
class Chain:
    """The chosen ``files`` by rising offset; no two overlap. ``gaps`` are the ranges from the log start to the end that
    no file covers.
    """

    files: tuple[Candidate, ...]
    gaps: tuple[tuple[int, int], ...]


# Missing offsets, records, files, and the sums of `rewritten` and of the leader epochs, negated.
_Cost = tuple[int, int, int, int, int]


def newest_chain(candidates: Iterable[Candidate], log_start: int, end: int) -> Chain:
    """Return the newest chain over [log_start, end) with the fewest missing offsets.

    A file that contains the log start counts from there. If no file reaches beyond the log start, the newest one that
    ends nearest to it is included, because its footer has the state there.
    """
    files = sorted(candidates, key=lambda file: (file.base_offset, file.end_offset, file.path))
    live = [file for file in files if log_start < file.end_offset <= end]
    if not live:
        gaps = ((log_start, end),) if log_start < end else ()
        return Chain(_keeper(files, log_start), gaps)
    places = sorted({log_start, end, *(max(f.base_offset, log_start) for f in live), *(f.end_offset for f in live)})
    by_base: dict[int, list[Candidate]] = {}
    for file in live:
        by_base.setdefault(max(file.base_offset, log_start), []).append(file)
    best: dict[int, tuple[_Cost, Candidate | None, int]] = {log_start: ((0, 0, 0, 0, 0), None, log_start)}
    for at, following in itertools.pairwise(places):
        (missing, records, count, rewritten, epochs), _, _ = best[at]
        steps: list[tuple[int, _Cost, Candidate | None]] = [
            (file.end_offset, _with(best[at][0], file), file) for file in by_base.get(at, ())
        ]
        steps.append((following, (missing + following - at, records, count, rewritten, epochs), None))
        for to, cost, step in steps:
            if to not in best or cost < best[to][0]:
                best[to] = cost, step, at
    return _walk_back(best, end)


def _with(cost: _Cost, file: Candidate) -> _Cost:
    missing, records, count, rewritten, epochs = cost
    return missing, records + file.num_records, count + 1, rewritten - file.rewritten, epochs - file.leader_epoch


def _walk_back(best: dict[int, tuple[_Cost, Candidate | None, int]], end: int) -> Chain:
    chosen: list[Candidate] = []
    gaps: list[tuple[int, int]] = []
    at = end
    while True:
        _, file, before = best[at]
        if before == at:
            break
        if file is not None:
            chosen.append(file)
        elif gaps and gaps[-1][0] == at:
            gaps[-1] = before, gaps[-1][1]
        else:
            gaps.append((before, at))
        at = before
    return Chain(tuple(reversed(chosen)), tuple(reversed(gaps)))


def _keeper(files: Sequence[Candidate], log_start: int) -> tuple[Candidate, ...]:
    below = [file for file in files if file.end_offset <= log_start]
    newest = max(below, key=lambda f: (f.end_offset, -f.num_records, f.rewritten, f.leader_epoch), default=None)
    return () if newest is None else (newest,)
