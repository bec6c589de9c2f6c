"""A look at a journal from outside, also while its broker writes it. Changes nothing, and takes no lock.

A scan reads the end of the last file while it grows: a frame that was not there yet, and later ones that say that it
was durable, look like corruption. ``ObservedJournal`` therefore looks again at the one frame that a scan calls bad. If
it is good now, the scan was overtaken, and everything before that frame is good.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from logstore.errors import StorageError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.journal.errors import JournalCorruptionError
from logstore.journal.frame import HEADER_BYTES, HONOURED, Frame, FrameHeader, FrameType, Kinds
from logstore.journal.identity import FoundJournal
from logstore.journal.journal_file import JournalFile, list_files
from logstore.journal.scan import JournalScan, RecoveredFrame, good_frames

_LISTINGS = 20


class ObservedJournal:
    """Exhaust ``frames``, then take ``end`` and ``tail_bytes``; or take ``records``."""

    def __init__(
        self,
        directory: Path,
        filesystem: FileSystem | None = None,
        kinds: Kinds = HONOURED,
        check: Callable[[FoundJournal], None] = lambda _: None,
    ) -> None:
        """``check`` raises for a journal that is not the one that stood here; what it knows was read before this.
        StorageError if there is no such directory.
        """
        if not directory.is_dir():
            raise StorageError(f"there is no journal directory {directory}; name one as <data>/brokers/<id>/journal/0")
        self.directory = directory
        self._filesystem = filesystem or local_filesystem()
        self._kinds = kinds
        self._check = check
        #: The journal position behind the last good frame.
        self.end = 0
        #: Bytes of a crash's tail, which a start will cut; 0 while the journal is written.
        self.tail_bytes = 0
        #: Bytes of the good frames.
        self.frame_bytes = 0
        #: (first position, path) of the files that were read.
        self.files: list[tuple[int, Path]] = []

    def frames(self) -> Iterator[RecoveredFrame]:
        """Give all good frames in journal order, without marks.

        Raises JournalCorruptionError, StorageError, DataDirectoryError, and behind the last frame as ``check`` does.
        """
        self.end = self.tail_bytes = self.frame_bytes = 0
        for attempt in range(_LISTINGS):
            self.files = list_files(self.directory)
            scan = JournalScan(self.directory, self._filesystem, self._kinds)
            found = scan.frames()
            try:
                first = next(found, None)
            except StorageError as error:
                # A file that was freed between the listing and the opening of it.
                if isinstance(error.__cause__, FileNotFoundError) and attempt < _LISTINGS - 1:
                    continue
                raise
            except JournalCorruptionError as error:
                if not self._is_good_now(error):
                    raise
                return
            yield from self._rest(scan, first, found)
            return

    def _rest(
        self, scan: JournalScan, first: RecoveredFrame | None, found: Iterator[RecoveredFrame]
    ) -> Iterator[RecoveredFrame]:
        frame = first
        try:
            while frame is not None:
                self.end = sum(frame.location)
                self.frame_bytes += frame.location.length
                yield frame
                frame = next(found, None)
        except JournalCorruptionError as error:
            if not self._is_good_now(error):
                raise
            return
        verdict = scan.verdict
        self.end, self.tail_bytes = verdict.end, verdict.tail_bytes
        for file in verdict.files:
            file.close()
        self._check(verdict.found(self.directory))

    def _is_good_now(self, damage: JournalCorruptionError) -> bool:
        """Whether the frame, or the file's header, that was bad has been written since. Only a last file grows."""
        start, last = self.files[-1]
        if damage.path != last:
            return not damage.path.exists()  # freed: everything in it was sealed
        try:
            file = JournalFile.open(damage.path, start, self._filesystem)
        except FileNotFoundError:
            return True
        try:
            if file.file_id is None:
                return False
            limit = start + file.allocated
            good = (stored for stored, at in good_frames(file, limit, self._kinds) if at == damage.position)
            stored = next(good, None)
            return damage.position == start or (stored is not None and stored.header.type is not FrameType.MARK)
        finally:
            file.close()

    def records(self, wanted: Callable[[FrameHeader], bool]) -> Iterator[Frame]:
        """The frames with records whose headers are ``wanted``, in journal order, with their payloads: one at a time is
        held. Raises as ``frames``.
        """
        file: JournalFile | None = None
        try:
            for header, (position, length), _ in self.frames():
                if not header.has_records or not wanted(header):
                    continue
                start, path = next(at for at in reversed(self.files) if at[0] <= position)
                if file is None or file.start != start:
                    if file is not None:
                        file.close()
                        file = None
                    try:
                        file = JournalFile.open(path, start, self._filesystem)
                    except FileNotFoundError:
                        continue  # freed meanwhile: its records are in the tables
                yield Frame(header, file.read(position + HEADER_BYTES, length - HEADER_BYTES))
        finally:
            if file is not None:
                file.close()
