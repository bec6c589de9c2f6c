"""Copies the frames of the journal's oldest files forward, so that the files can be freed.

Only frames that an index points to are copied. A scan of the file would also find truncated frames, and their copies
would come after the TRUNCATE frame that dropped them. Invariants: the check that a frame still counts is made in the
same step of the loop that hands its copy to the journal; from then on a truncation comes after the copy. While a
truncation is being written, nothing is copied, as a copy would bring back what it drops, and no file is freed, as the
truncation may fail.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from logstore.errors import StorageError
from logstore.journal.errors import JournalRangeFreedError
from logstore.journal.frame import FrameLocation
from logstore.journal.journal import Journal
from logstore.journal.journal_file import PartitionKey
from logstore.log.frame_index import FrameIndex, IndexedFrame


class KeepsFrames(Protocol):
    """A keeper of journal frames: an ``ActiveSegment``, or the frames of a partition that is not served."""

    @property
    def index(self) -> FrameIndex: ...

    @property
    def is_truncating(self) -> bool:
        """True while a truncation is being written."""
        ...

    def frames_to_keep(self, start: int, end: int) -> list[IndexedFrame]:
        """Return the frames at the journal positions [start, end) that count."""
        ...


async def relocate_oldest(
    journal: Journal, keeper_of: Callable[[PartitionKey], KeepsFrames | None], max_bytes: int
) -> list[FrameLocation]:
    """Copy the needed frames of the oldest file forward and free it. Return the places of the copies.

    Does nothing, and returns an empty list, if there is no older file, if its needed frames are larger than
    ``max_bytes``, or if it has frames of an unknown partition, or of one that is being truncated. Raises the errors of
    ``Journal.append`` and ``Journal.read``.
    """
    oldest = journal.oldest_needed
    if oldest is None:
        return []
    keepers: list[KeepsFrames] = []
    for key in oldest.needed_by:
        keeper = keeper_of(key)
        if keeper is None or keeper.is_truncating:  # None: a topic whose removal is not durable yet
            return []
        keepers.append(keeper)
    wanted = [(keeper, frame) for keeper in keepers for frame in keeper.frames_to_keep(oldest.start, oldest.end)]
    if sum(frame.location.length for _, frame in wanted) > max_bytes:
        return []
    wanted.sort(key=lambda found: found[1].location.position)
    try:
        frames = await asyncio.to_thread(journal.read_many, [frame.location for _, frame in wanted])
    except JournalRangeFreedError:
        return []
    if any(keeper.is_truncating for keeper in keepers):
        return []
    copied = [at for at, (keeper, frame) in enumerate(wanted) if keeper.index.holds(frame)]
    locations = await journal.relocate([frames[at] for at in copied]) if copied else []
    for at, location in zip(copied, locations, strict=True):
        keeper, frame = wanted[at]
        keeper.index.move(frame, location)
    journal.relocated(oldest)
    return locations


async def renew(journal: Journal, keeper_of: Callable[[PartitionKey], KeepsFrames | None]) -> int:
    """Begin a new journal file, and durably remove all older ones after copying forward what is still needed. Return
    the number of files removed. Afterwards no file has what was sealed, truncated or deleted before the call.

    Raises StorageError if a file cannot be freed yet, StorageFullError, and BrokerNotReadyError.
    """
    begin = await journal.rotate()
    removed = sum(start < begin for start, _ in journal.files)
    while (left := journal.files) and left[0][0] < begin:
        oldest, size = left[0]
        await relocate_oldest(journal, keeper_of, size)
        if journal.files and journal.files[0][0] == oldest:
            raise StorageError(
                f"the journal file at position {oldest} has frames of a partition that is being truncated or deleted: "
                "try again in a moment"
            )
    await journal.freed()
    return removed
