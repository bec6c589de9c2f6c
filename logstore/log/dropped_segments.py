"""Segments that another writer's commit dropped though nobody asked for that: a ``RESTORE`` takes out the rolls since
the version that it restores, an overwrite without a predicate all that there was. Their records were acknowledged.
While the files are on disk, the same files are committed again (rule R7).

Not so after a statement that says which records go: a ``DELETE``, ``UPDATE``, ``MERGE``, or a write with a predicate,
unless a ``RESTORE`` takes it back. Nor of segments that were joined (``OPTIMIZE``, merge) before such a statement
changed the joined file, or that had a deletion vector: they hold what was deleted or changed.
And not where the records are still served, because a commit only rewrote them (``OPTIMIZE``, compaction, merge).
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
    """The segments to commit again, of sound ``partitions``. Files that are damaged or gone are left out: their records
    are missing. OSError.
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
    """Segments within the missing ranges: what was dropped first, then what only a rewrite had replaced before. Below
    the log start nothing is missing; there they may not overlap what is ``kept``.
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
    """Version, base offset and end of each file of a partition that lost rows to a statement of others."""
    found = []
    for path, removal in history.removals.items():
        if removal.ours or removal.rewritten or not removal.meant:
            continue
        bounds = segment_bounds(files, path, removal)
        if bounds is not None and bounds[0] == partition:
            found.append((removal.version, bounds[1], bounds[2]))
    return found


def _joined(missing: Sequence[MissingRange]) -> list[tuple[int, int]]:
    """Ranges that touch, whatever took them out, as one."""
    joined: list[tuple[int, int]] = []
    for gap in missing:
        if joined and joined[-1][1] == gap.start:
            joined[-1] = (joined[-1][0], gap.end)
        else:
            joined.append((gap.start, gap.end))
    return joined
