"""Reads a journal from outside, even while its broker writes it. Changes nothing, and takes no lock.

A scan may read the end of the last file while it grows. A frame that was not written yet, followed by later frames that
say that it was durable, looks like corruption. So ``ObservedJournal`` reads a frame that a scan reports as bad a second
time. If it is good now, the broker wrote during the scan, and everything before that frame is good.
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
    """A journal read from outside. Exhaust ``frames``, then read ``end`` and ``tail_bytes``; or use ``records``."""

    def __init__(
        self,
        directory: Path,
        filesystem: FileSystem | None = None,
        kinds: Kinds = HONOURED,
        check: Callable[[FoundJournal], None] = lambda _: None,
    ) -> None:
        """Open a directory. ``check`` raises if the journal is not the expected one; the expectation must be read
        before this call. Raises StorageError if the directory does not exist.
        """
        self._filesystem = filesystem or local_filesystem()
        if not self._filesystem.is_directory(directory):
            raise StorageError(f"there is no journal directory {directory}; name one as <data>/brokers/<id>/journal/0")
        self.directory = directory
        self._kinds = kinds
        self._check = check
        #: The journal position after the last good frame.
        self.end = 0
        #: The bytes of a crash's tail, which a start will cut; 0 while the journal is written.
        self.tail_bytes = 0
        #: The bytes of the good frames.
        self.frame_bytes = 0
        #: (first position, path) of the files that were read.
        self.files: list[tuple[int, Path]] = []

    def frames(self) -> Iterator[RecoveredFrame]:
        """Yield all good frames in journal order, without marks.

        Raises JournalCorruptionError, StorageError, DataDirectoryError, and after the last frame the errors of
        ``check``.
        """
        self.end = self.tail_bytes = self.frame_bytes = 0
        for attempt in range(_LISTINGS):
            self.files = list_files(self.directory, self._filesystem)
            scan = JournalScan(self.directory, self._filesystem, self._kinds)
            found = scan.frames()
            try:
                first = next(found, None)
            except StorageError as error:
                # The file was freed after the directory was listed, before the file was opened.
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
        """Return whether the bad frame or file header has been written since. Only the last file grows."""
        start, last = self.files[-1]
        if damage.path != last:
            return not self._filesystem.exists(damage.path)  # freed: everything in it was sealed
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
        """Yield the frames with records whose headers are ``wanted``, with payloads, in journal order.

        One frame at a time is in memory. Raises the errors of ``frames``.
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
