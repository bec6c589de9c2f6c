"""Segments that another writer's commit dropped although nobody asked for that. A ``RESTORE`` takes out the rolls since
the version that it restores; an overwrite without a predicate takes out everything. Their records were acknowledged.
While the files are on disk, the same files are committed again (rule R7).

They are not committed again after a statement that says which records go: a ``DELETE``, ``UPDATE``, ``MERGE``, or a
write with a predicate, unless a ``RESTORE`` takes it back. Nor are segments that were joined (``OPTIMIZE``, merge)
before such a statement changed the joined file, or that had a deletion vector: they hold what was deleted or changed.
Nor are segments whose records are still served, because a commit only rewrote them (``OPTIMIZE``, compaction, merge).
"""

from collections.abc import Collection, Sequence

import structlog

from logstore.delta.file_history import FileHistory
from logstore.delta.snapshot import TopicSnapshot
from logstore.errors import CorruptionError
from logstore.log.history import MissingRange, missing_ranges, new_gaps, removed_ranges, segment_bounds
from logstore.segments.names import known_segment_name
from logstore.segments.reader import segment_from_file, verify_segment
from logstore.segments.writer import Segment
from logstore.table_files import TableFiles

log = structlog.stdlib.get_logger(__name__)


def dropped_segments(
    files: TableFiles, snapshot: TopicSnapshot, history: FileHistory, partitions: Collection[int]
) -> list[Segment]:
    """Return the segments to commit again, of sound ``partitions``. Files that are damaged or missing are left out;
    their records stay missing. Raises OSError.
    """
    found: list[Segment] = []
    removed = removed_ranges(history.removals, None, files)
    for partition in partitions:
        start, sealed = snapshot.partitions[partition].log_start, snapshot.partitions[partition].sealed
        kept = [
            (segment.base_offset, segment.end_offset)
            for segment in snapshot.segments(partition)
            if not history.overwriting.intersection(segment.paths)
        ]
        gaps = new_gaps([(start, sealed)], kept)
        missing = missing_ranges(gaps, removed.get(partition, []), unexplained=None) if gaps else ()
        if missing:
            found += _chosen(files, snapshot, history, partition, _joined(missing), kept)
    return found


def _chosen(
    files: TableFiles,
    snapshot: TopicSnapshot,
    history: FileHistory,
    partition: int,
    missing: Sequence[tuple[int, int]],
    kept: Sequence[tuple[int, int]],
) -> list[Segment]:
    """Return segments within the missing ranges: first those that were dropped, then those that only a rewrite had
    replaced before. Nothing is missing below the log start; there they may not overlap what is ``kept``.
    """
    log_start = snapshot.partitions[partition].log_start
    statements = _statements(files, history, partition)
    candidates = []
    for path, removal in history.removals.items():
        name = known_segment_name(path)
        if name is None or name.partition != partition or path in snapshot.paths:
            continue
        if removal.masked or (removal.meant and not removal.rewritten):
            continue
        bounds = segment_bounds(files, path, removal)
        if bounds is None:
            continue
        _, base, end = bounds
        changed = any(version > removal.version and base < high and low < end for version, low, high in statements)
        if not (removal.meant and changed):
            candidates.append((removal.meant, -removal.version, bounds, path))
    chosen = list(kept)
    found: list[Segment] = []
    for _, _, (_, base, end), path in sorted(candidates):
        inside = any(low <= max(base, log_start) and end <= high for low, high in missing)
        if not inside or any(base < high and low < end for low, high in chosen):
            continue
        try:
            verify_segment(files, path)
            found.append(segment_from_file(files, path))
            chosen.append((base, end))
        except (FileNotFoundError, CorruptionError) as error:
            log.error("history.dropped_file_lost", table=files.uri, file=path, error=str(error))
    return found


def _statements(files: TableFiles, history: FileHistory, partition: int) -> list[tuple[int, int, int]]:
    """Return version, base offset and end of each file of a partition that lost rows to another writer's statement."""
    found = []
    for path, removal in history.removals.items():
        if removal.ours or removal.rewritten or not removal.meant:
            continue
        bounds = segment_bounds(files, path, removal)
        if bounds is not None and bounds[0] == partition:
            found.append((removal.version, bounds[1], bounds[2]))
    return found


def _joined(missing: Sequence[MissingRange]) -> list[tuple[int, int]]:
    """Join ranges that touch, whatever took them out."""
    joined: list[tuple[int, int]] = []
    for gap in missing:
        if joined and joined[-1][1] == gap.start:
            joined[-1] = (joined[-1][0], gap.end)
        else:
            joined.append((gap.start, gap.end))
    return joined
