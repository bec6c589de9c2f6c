"""The state of a partition after a file that another writer wrote in place of segments.

Such a file has no footer. The segments that it replaced have one, and stay on disk until a vacuum deletes them; the
last one before its end knows epochs and producers there. If none is left, the state is lost, as the documentation says.
"""

from collections.abc import Iterator

from logstore.errors import CorruptionError
from logstore.records.batch_identity import RememberedBatch
from logstore.segments.footer import SegmentFooter
from logstore.segments.names import SegmentName, known_segment_name, partition_directory
from logstore.segments.parquet_file import open_parquet
from logstore.table_files import TableFiles

#: The ``operation`` of a file that is not a segment.
FOREIGN = "foreign"


def inherited_footer(files: TableFiles, partition: int, base_offset: int, end_offset: int) -> SegmentFooter:
    """Return the footer that a file of [base_offset, end_offset) would have: epochs, producers and markers of the
    segment with the highest end up to there, or of one that contains the end, as records at the end of the file may
    have been deleted. It also has the idempotency keys of all segments in the range. Segments in the table and replaced
    ones count alike. Raises OSError.
    """
    last: SegmentFooter | None = None
    keys: dict[int, RememberedBatch] = {}
    for footer in _footers(files, partition, base_offset, end_offset):
        if last is None or _closeness(footer, end_offset) > _closeness(last, end_offset):
            last = footer
        keys.update({k.base_offset: k for k in footer.idempotency_keys if base_offset <= k.base_offset < end_offset})
    return SegmentFooter(
        partition=partition,
        base_offset=base_offset,
        end_offset=end_offset,
        leader_epoch=last.leader_epoch if last else 0,
        leader_epochs=last.leader_epochs if last else (),
        producers=last.producers if last else (),
        idempotency_keys=tuple(keys[base] for base in sorted(keys)),
        operation=FOREIGN,
        append_time_ms=last.append_time_ms if last else 0,
        markers=last.markers if last else (),
        producers_forgotten_up_to=last.producers_forgotten_up_to if last else None,
    )


def _closeness(footer: SegmentFooter, end_offset: int) -> tuple[bool, int, int]:
    """Return a rank of how well a segment's end represents ``end_offset``: best is the first end from there on, else
    the last.
    """
    beyond = footer.end_offset >= end_offset
    return beyond, -footer.end_offset if beyond else footer.end_offset, footer.leader_epoch


def _footers(files: TableFiles, partition: int, base_offset: int, end_offset: int) -> Iterator[SegmentFooter]:
    """Yield the footers of segments that begin below ``end_offset``: all in the range, and the last one before it."""
    try:
        names = files.names(partition_directory(partition))
    except (FileNotFoundError, NotADirectoryError):
        return
    parsed = [(name, path) for path in names if (name := known_segment_name(path)) and name.base_offset < end_offset]
    parsed.sort(key=lambda entry: _highest(entry[0]), reverse=True)
    found_last = False
    for name, path in parsed:
        if found_last and name.end_offset is not None and name.end_offset <= base_offset:
            break
        try:
            footer = open_parquet(files, path).footer
        except (CorruptionError, FileNotFoundError):
            continue
        found_last = True
        yield footer


def _highest(name: SegmentName) -> int:
    # A name of an earlier release does not contain its end.
    return name.base_offset + 1 if name.end_offset is None else name.end_offset
