"""The space that a job needs at most, reported before it writes; the job is refused if it is not available.

New segments are written beside the old ones, which stay until a vacuum. They are hardly ever larger, unless the topic's
compression has changed: values that a codec makes less than 5 % smaller are written without it.
"""

from collections.abc import Iterable

from compaction_jobs.context import JobContext
from compaction_jobs.topics import JobTopic
from logstore.delta.snapshot import SegmentFile
from logstore.errors import StorageFullError
from logstore.limits import MIB
from logstore.segments.merge import WriteTask

#: Reserved for rolls and commits that come meanwhile.
_RESERVE_BYTES = 16 * MIB


def require_space(context: JobContext, topic: JobTopic, old: Iterable[SegmentFile]) -> None:
    """Raise StorageFullError if a second copy of the files to be replaced would not fit; OSError."""
    files = topic.table.files
    needed, free = sum(file.size for file in old), files.free_bytes()
    context.progress.note(f"{topic.name}: {needed:,} bytes are needed at most; {free:,} are free")
    if needed + _RESERVE_BYTES > free:
        raise StorageFullError(
            f"{topic.name}: up to {needed:,} bytes are needed, and {free:,} are free at {files}. Free some space, with "
            "logstore job vacuum, or work on fewer topics at once"
        )


def replaced(plan_files: Iterable[SegmentFile], tasks: Iterable[WriteTask]) -> list[SegmentFile]:
    """Return the files that ``tasks`` replace."""
    paths = {source.path for task in tasks for source in task.sources}
    return [file for file in plan_files if file.path in paths]
